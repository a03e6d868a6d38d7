"""`srecover setup`: install the hooks for a cluster, register the trigger, make the folders; or undo it.

Doing it again is nothing. slurm.conf itself is never written: the lines are printed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_recovery.cli.common import Context
from slurm_recovery.cli.tables import say
from slurm_recovery.hooks.install import DEFAULT_HOOK_DIR, slurm_conf_lines
from slurm_recovery.resume import FOLDER as RESUME

if TYPE_CHECKING:
    from slurm_recovery.cli.cluster import Cluster
    from slurm_recovery.cli.owner import Account
    from slurm_recovery.config.settings import Config

SAMPLE_MODE = 0o644
STATE_FOLDERS = ("", "spool", "holds")


class SetupError(Exception):
    """Setup cannot go on: one line with a hint."""


def setup(
    ctx: typer.Context,
    remove: Annotated[bool, typer.Option("--remove", help="Take out what setup installed.")] = False,
    hook_dir: Annotated[Path, typer.Option(help="Folder for the hooks.")] = DEFAULT_HOOK_DIR,
    slurm_conf: Annotated[
        Path | None, typer.Option(help="slurm.conf of the cluster, where Slurm does not find it by itself.")
    ] = None,
    trigger: Annotated[bool, typer.Option(help="Register the strigger for nodes that go down.")] = True,
    node: Annotated[
        bool, typer.Option("--node", help="On a compute node: install (or remove) its hooks, and nothing else.")
    ] = False,
    spank: Annotated[
        bool, typer.Option("--spank", help="Build the plugin for sbatch --recovery too, against Slurm's headers here.")
    ] = False,
    plugin_dir: Annotated[
        Path | None, typer.Option(help="Folder for the plugin, where that is not the hooks' folder.")
    ] = None,
) -> None:
    """Install the hooks and print the slurm.conf lines that switch them on.

    Writes the hooks with this installation's paths, a recovery.conf where there is none, and StateDir with
    SlurmUser as its owner; registers the trigger; prepares the store. Run it as root on the controller, and
    again after every change of recovery.conf or of this package.

    Where EvidenceDir is set it also makes that folder and writes the hooks of compute nodes. Unless the nodes share
    the folder of the hooks, run it with --node on each of them too, with the same recovery.conf.

    --spank needs make, a C compiler and Slurm's headers. sbatch, srun and salloc and every compute node load the plugin
    from the same path; build it anew with each major release of Slurm.
    """
    common: Context = ctx.obj
    if " " in str(hook_dir) or not hook_dir.is_absolute():
        raise SetupError(f"{hook_dir}: strigger takes only an absolute path without blanks; hint: --hook-dir")
    if os.geteuid() != 0:
        raise SetupError("only root can install the hooks; hint: sudo srecover setup")
    plugin = (plugin_dir or hook_dir).absolute() if spank else None
    if node:
        _node(common, hook_dir, slurm_conf, remove, plugin)
    elif remove:
        _remove(common, hook_dir, slurm_conf)
    else:
        _install(common, hook_dir, slurm_conf, trigger, plugin)


def _install(common: Context, hook_dir: Path, slurm_conf: Path | None, trigger: bool, plugin: Path | None) -> None:
    from slurm_recovery.cli.cluster import Cluster
    from slurm_recovery.config.sample import sample
    from slurm_recovery.config.settings import Settings
    from slurm_recovery.hooks.install import hook_settings, install_hooks, write_units

    conf_path = common.conf_path.absolute()
    if not conf_path.exists():
        if not Cluster(Settings(), slurm_conf).config:
            raise SetupError("no slurm.conf found; hint: --slurm-conf PATH, or SLURM_CONF")
        conf_path.parent.mkdir(parents=True, exist_ok=True)
        conf_path.write_text(sample())
        conf_path.chmod(SAMPLE_MODE)
        _say(f"{conf_path}: sample written, Mode=observe")
    config = common.config()
    cluster = Cluster(config.settings, slurm_conf)
    user = _slurm_user(cluster)
    for folder in STATE_FOLDERS:
        _make_folder(config.settings.state_dir / folder, user)
    open_store = (sys.executable, "-I", "-m", "slurm_recovery.cli.open_store", str(conf_path))
    if problem := cluster.try_as_slurm_user(*open_store):
        raise SetupError(
            f"SlurmUser ({user.name}) cannot open the store: {problem}; "
            f"hint: it must be able to read {conf_path} and run {Path(sys.executable).resolve()}"
        )
    for name in install_hooks(hook_dir, hook_settings(config, conf_path, cluster.slurm_conf)):
        _say(f"{hook_dir / name}: written")
    write_units(hook_dir / "systemd", conf_path, user.name, cluster.slurm_conf)
    if config.settings.evidence_dir is not None:
        _make_evidence_dir(config.settings.evidence_dir, user)
        _install_node_hooks(config, hook_dir, cluster.slurm_conf)
    _install_plugin(config, hook_dir, plugin)
    _print_lines(cluster, hook_dir, config)
    if trigger:
        _register(cluster, hook_dir)


def _node(common: Context, hook_dir: Path, slurm_conf: Path | None, remove: bool, plugin: Path | None) -> None:
    """A compute node's part. It asks nobody: slurm.conf is read on the node, for its GPUs."""
    from slurm_recovery.cli.cluster import slurm_conf_of
    from slurm_recovery.hooks.install import remove_hooks

    if remove:
        for path in remove_hooks(hook_dir):
            _say(f"{path}: removed")
        return
    config = common.config()
    if config.settings.evidence_dir is not None:
        _install_node_hooks(config, hook_dir, slurm_conf_of(config.settings, slurm_conf))
    elif plugin is None:
        raise SetupError(f"{common.conf_path}: EvidenceDir is not set, so nodes have nothing to do; hint: set it first")
    _install_plugin(config, hook_dir, plugin)


def _install_node_hooks(config: Config, hook_dir: Path, slurm_conf: Path | None) -> None:
    from slurm_recovery.hooks.install import (
        install_node_hooks,
        install_task_prolog,
        node_hook_settings,
        task_prolog_settings,
    )

    changed = install_node_hooks(hook_dir, node_hook_settings(config, slurm_conf))
    for name in (*changed, *install_task_prolog(hook_dir, task_prolog_settings(config))):
        _say(f"{hook_dir / name}: written")


def _install_plugin(config: Config, hook_dir: Path, plugin_dir: Path | None) -> None:
    """Build it where that was asked for; keep its line as recovery.conf says where it was built before."""
    from slurm_recovery.hooks.spank import (
        PLUGIN,
        PLUGSTACK,
        BuildError,
        build_plugin,
        installed_plugin,
        write_plugstack,
    )

    plugin = plugin_dir / PLUGIN if plugin_dir else installed_plugin(hook_dir)
    if plugin is None:
        return
    try:
        if plugin_dir and build_plugin(plugin_dir):
            _say(f"{plugin}: written")
    except BuildError as error:
        raise SetupError(str(error)) from None
    if write_plugstack(hook_dir, config, plugin):
        _say(f"{hook_dir / PLUGSTACK}: written")
    _say("Add to plugstack.conf, on the nodes and wherever jobs are submitted:")
    say(f"include {hook_dir / PLUGSTACK}")


def _make_evidence_dir(path: Path, user: Account) -> None:
    """Root's, because what nodes say is believed by its owner; SlurmUser's group may read, and files inherit it."""
    if path.is_symlink():
        raise SetupError(f"{path}: is a symbolic link; hint: set EvidenceDir to the folder itself")
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, 0, user.gid, follow_symlinks=False)
    path.chmod(0o2750)
    if path.stat().st_uid != 0:
        raise SetupError(f"{path}: does not belong to root; hint: export it with no_root_squash, or choose another")
    _make_folder(path / RESUME, user)


def _make_folder(path: Path, user: Account) -> None:
    """A folder of SlurmUser's. A link is refused: SlurmUser could point it at what only root may give away."""
    if path.is_symlink():
        raise SetupError(f"{path}: is a symbolic link; hint: set StateDir to the folder itself")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    os.chown(path, user.uid, user.gid, follow_symlinks=False)


def _slurm_user(cluster: Cluster) -> Account:
    if not cluster.config:
        raise SetupError(f"no slurm.conf found; hint: --slurm-conf PATH ({cluster.unreachable})")
    try:
        return cluster.slurm_user
    except KeyError as error:
        raise SetupError(f"SlurmUser has no account here: {error}; hint: run setup on the controller") from error


def _register(cluster: Cluster, hook_dir: Path) -> None:
    from slurm_recovery.hooks.install import trigger_arguments
    from slurm_recovery.slurm.errors import SlurmError

    if cluster.unreachable:
        raise SetupError(f"trigger not registered: {cluster.unreachable}; hint: start slurmctld, then run setup again")
    try:
        cluster.strigger(*trigger_arguments(hook_dir))
        _say("trigger registered: nodes that go down")
    except SlurmError as error:
        if "Duplicate" not in str(error):
            raise
        _say("trigger registered already")


def _print_lines(cluster: Cluster, hook_dir: Path, config: Config) -> None:
    from slurm_recovery.hooks.install import TASK_HOOK, node_conf_lines

    ours = f"{hook_dir}/epilog_slurmctld"
    there = cluster.config.get("epilogslurmctld", "")
    units = hook_dir / "systemd"
    if ours in there:
        _say("slurm.conf has the line already:")
    else:
        _say("Add to slurm.conf, then restart slurmctld (22.05 does not start a new hook at a reconfigure):")
    for line in slurm_conf_lines(hook_dir):
        say(line)
    if there and ours not in there:
        say(f"# slurm.conf has EpilogSlurmctld={there} already: let that script call ours as its last command.")
    if config.settings.evidence_dir is not None:
        _say("Add to slurm.conf for the nodes, then scontrol reconfigure (an Epilog of your own may call ours):")
        for line in node_conf_lines(hook_dir):
            say(line)
        theirs = cluster.config.get("taskprolog", "(null)")
        if theirs not in ("", "(null)") and f"{hook_dir}/{TASK_HOOK}" not in theirs:
            say(f"# slurm.conf has TaskProlog={theirs} already, and takes only one: let that script call ours,")
            say(f"# {hook_dir}/{TASK_HOOK}, and leave it its standard output.")
    _say("Run the sweep every minute:")
    say(f"systemctl link {units}/slurm-recovery-sweep.service")
    say(f"systemctl enable --now {units}/slurm-recovery-sweep.timer")


def _remove(common: Context, hook_dir: Path, slurm_conf: Path | None) -> None:
    from slurm_recovery.cli.cluster import Cluster
    from slurm_recovery.config.confile import ConfigError
    from slurm_recovery.config.settings import Settings
    from slurm_recovery.hooks.install import remove_hooks
    from slurm_recovery.hooks.spank import plugstack_lines, plugstack_of

    try:
        settings = common.config().settings
    except ConfigError:
        settings = Settings()
    cluster = Cluster(settings, slurm_conf)
    if f"{hook_dir}/epilog_slurmctld" in cluster.config.get("epilogslurmctld", ""):
        raise SetupError(
            "slurmctld still runs our hook; "
            f"hint: take the line with {hook_dir}/epilog_slurmctld out of slurm.conf and restart slurmctld first"
        )
    plugstack = plugstack_of(cluster.config, cluster.slurm_conf)
    if plugstack_lines(plugstack):
        raise SetupError(f"{plugstack} still loads our plugin; hint: take that line out first")
    if cluster.unreachable:
        what = f"the trigger cannot be cleared: {cluster.unreachable}"
        raise SetupError(f"{what}; hint: --slurm-conf PATH where Slurm does not find it; else start slurmctld")
    for trigger in cluster.triggers():
        if trigger.program == f"{hook_dir}/node_down":
            cluster.strigger("--clear", f"--id={trigger.number}")
            _say(f"trigger {trigger.number} cleared")
    for path in remove_hooks(hook_dir):
        _say(f"{path}: removed")
    _say("if the sweep's timer is enabled: systemctl disable --now slurm-recovery-sweep.timer")
    _say(f"kept: {common.conf_path} and {settings.state_dir} (the record of every incident); remove them by hand")


def _say(text: str) -> None:
    say(f"# {text}")
