"""`srecover check`: what is wrong with an installation, one line and one hint each.

Each check is a row of CHECKS: a function from the installation to its problems. Reads only.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from slurm_recovery.cli.cluster import Cluster
from slurm_recovery.cli.common import Context
from slurm_recovery.cli.sweep import LAST_SWEEP
from slurm_recovery.cli.tables import say, say_json
from slurm_recovery.config.confile import ConfigError
from slurm_recovery.config.settings import Config, Mode
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.signature import SignatureError
from slurm_recovery.evidence.attributor import unusable
from slurm_recovery.evidence.node_reports import HEALTH
from slurm_recovery.hooks.install import (
    DEFAULT_HOOK_DIR,
    HEALTH_INTERVAL,
    HOOKS,
    MODULE,
    NODE_HOOKS,
    TASK_HOOK,
    hook_settings,
    node_hook_settings,
    task_prolog_settings,
    written_settings,
)
from slurm_recovery.hooks.spank import PLUGSTACK, installed_plugin, plugin_arguments, plugstack_lines, plugstack_of
from slurm_recovery.hostlist import fold
from slurm_recovery.resume import FOLDER as RESUME
from slurm_recovery.slurm.errors import SlurmError
from slurm_recovery.store.errors import StoreError

MOST_NAMED = 20  # nodes of one line
SWEEP_AGE = 600.0  # seconds after which a sweep is overdue, and an event in the spool forgotten


class Problem(NamedTuple):
    """What is wrong, and what to do. An error keeps recovery from working; a warning limits it."""

    level: str
    what: str
    hint: str


@dataclass
class Installation:
    """What the checks look at."""

    common: Context
    config: Config
    hook_dir: Path
    cluster: Cluster
    slurm_conf: Path | None

    @property
    def conf_path(self) -> Path:
        return self.common.conf_path

    @property
    def setup(self) -> str:
        """The hint that mends most: setup, with the options that this check was given."""
        options = [] if self.hook_dir == DEFAULT_HOOK_DIR else [f"--hook-dir {self.hook_dir}"]
        options += [f"--slurm-conf {self.slurm_conf}"] if self.slurm_conf else []
        return " ".join([f"srecover --conf {self.conf_path} setup", *options])

    @property
    def state(self) -> Path:
        return self.config.settings.state_dir

    def seconds(self, key: str) -> float | None:
        """A time of slurm.conf such as `300 sec`; None where it is not set."""
        match = re.match(r"(\d+)", self.cluster.config.get(key, ""))
        return float(match[1]) if match and match[1] != "65534" else None  # NO_VAL16: not set


def check(
    ctx: typer.Context,
    hook_dir: Annotated[Path, typer.Option(help="Folder of the hooks.")] = DEFAULT_HOOK_DIR,
    slurm_conf: Annotated[Path | None, typer.Option(help="slurm.conf of the cluster.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Say what is wrong with the installation: one line and one hint each.

    Exit status 0 where nothing keeps recovery from working (warnings may be there), 1 where something does.
    """
    problems = list(find_problems(ctx.obj, hook_dir, slurm_conf))
    if as_json:
        say_json([problem._asdict() for problem in problems])
    else:
        for problem in problems:
            say(f"{problem.level}: {problem.what}; hint: {problem.hint}")
        if not problems:
            say("nothing is wrong")
    if any(problem.level == "error" for problem in problems):
        raise typer.Exit(1)


def find_problems(common: Context, hook_dir: Path, slurm_conf: Path | None) -> Iterator[Problem]:
    """Everything that the checks find; a recovery.conf that does not parse ends it, for all else depends on it."""
    if os.geteuid() != 0:
        yield Problem("error", "check looks at what only root can see", "sudo srecover check")
        return
    try:
        config = common.config()
    except ConfigError as error:
        what, _, hint = str(error).partition("; hint: ")
        yield Problem("error", what, hint or "correct the line; until then nothing is recovered")
        return
    there = Installation(common, config, hook_dir, Cluster(config.settings, slurm_conf), slurm_conf)
    if not there.cluster.config:
        yield Problem("error", f"no slurm.conf found: {there.cluster.unreachable}", "--slurm-conf PATH, or SLURM_CONF")
        return
    if not there.state.exists() and not (hook_dir / MODULE).exists():
        yield Problem("error", "not set up yet", there.setup)
        return
    for one in CHECKS:
        yield from one(there)


def _slurmctld(there: Installation) -> Iterator[Problem]:
    if there.cluster.unreachable:
        yield Problem("error", f"slurmctld: {there.cluster.unreachable}", "start it, or set SlurmConf and SlurmBinDir")


def _state(there: Installation) -> Iterator[Problem]:
    try:
        user = there.cluster.slurm_user
    except KeyError:
        yield Problem("error", "SlurmUser has no account on this host", "run check on the controller")
        return
    for path in (there.state, there.state / "spool", there.state / "holds"):
        try:
            status = path.stat()
        except OSError as error:
            yield Problem("error", f"{path}: {error.strerror}", there.setup)
            continue
        if status.st_uid != user.uid:
            yield Problem("error", f"{path} belongs to uid {status.st_uid}, not to {user.name}", there.setup)
        elif status.st_mode & 0o077:
            yield Problem("error", f"{path} is open to others (mode {status.st_mode & 0o777:o})", there.setup)


def _hooks(there: Installation) -> Iterator[Problem]:
    wanted = hook_settings(there.config, there.conf_path, there.cluster.slurm_conf)
    for name in HOOKS:
        path = there.hook_dir / name
        written = written_settings(path)
        if written is None:
            yield Problem("error", f"{path}: not there, or not ours", there.setup)
        elif not os.access(path, os.X_OK):
            yield Problem("error", f"{path}: not executable", there.setup)
        elif differing := sorted(key for key in wanted if written.get(key) != wanted[key]):
            yield Problem("error", f"{path}: written for other settings ({', '.join(differing)})", there.setup)
        elif path.stat().st_uid != 0 or path.stat().st_mode & 0o022:
            yield Problem("error", f"{path}: others than root can change what slurmctld runs", there.setup)
    files = [str(there.hook_dir / name) for name in (*HOOKS, MODULE)]
    if problem := there.cluster.try_as_slurm_user("/bin/sh", "-c", 'for f; do : < "$f" || exit 1; done', "sh", *files):
        yield Problem("error", f"SlurmUser cannot read the hooks: {problem}", there.setup)


def _slurm_conf(there: Installation) -> Iterator[Problem]:
    if there.cluster.unreachable:
        return
    yield from _hook_line(there)
    if there.cluster.config.get("jobrequeue") == "0":
        yield Problem("error", "JobRequeue=0: no job can be requeued", "JobRequeue=1 in slurm.conf")
    if there.cluster.config.get("jobfileappend") == "0":
        what = "JobFileAppend=0: a restarted job overwrites the log of its failed attempt"
        yield Problem("warning", what, "JobFileAppend=1 in slurm.conf, or sbatch --open-mode=append")


def _hook_line(there: Installation) -> Iterator[Problem]:
    """Whether slurmctld runs our hook, itself or from the site's own script, and has done so since setup."""
    hook = there.hook_dir / "epilog_slurmctld"
    running = there.cluster.config.get("epilogslurmctld", "")
    if str(hook) not in running and not any(_calls(Path(script), hook) for script in running.split(",")):
        what = f"EpilogSlurmctld={running} does not call our hook" if running else "EpilogSlurmctld is not set"
        hint = f"EpilogSlurmctld={hook} in slurm.conf, or call it from your script; restart slurmctld"
        yield Problem("error", what, hint)
        return
    try:
        silent = (there.state / "spool").stat().st_mtime <= hook.stat().st_mtime
    except OSError:
        return
    if silent:
        hint = "where jobs have ended since, restart slurmctld: 22.05 starts no new hook otherwise"
        yield Problem("warning", "no event since the hooks were installed", hint)


def _calls(script: Path, hook: Path) -> bool:
    try:
        with script.open(errors="replace") as file:
            return str(hook) in file.read(65536)
    except OSError:
        return False


def _timeouts(there: Installation) -> Iterator[Problem]:
    settings = there.config.settings
    forgets = there.seconds("minjobage")
    needs = settings.watchdog_timeout + settings.hold_timeout + 60
    if forgets is not None and forgets < needs:
        what = f"MinJobAge={forgets:g}: slurmctld may forget a job before we restart it (we need {needs:g} s)"
        yield Problem("error", what, f"MinJobAge={max(300, needs):g} in slurm.conf")
    for key in ("prologepilogtimeout", "epilogtimeout"):
        limit = there.seconds(key)
        if limit and limit < settings.watchdog_timeout + 5:
            what = f"slurmctld ends hooks after {limit:g} s, WatchdogTimeout is {settings.watchdog_timeout:g}"
            yield Problem("error", what, f"WatchdogTimeout={max(1, limit - 5):g} in recovery.conf, then srecover setup")


def _trigger(there: Installation) -> Iterator[Problem]:
    if there.cluster.unreachable:
        return
    program = f"{there.hook_dir}/node_down"
    try:
        registered = [trigger.program for trigger in there.cluster.triggers()]
    except SlurmError as error:
        yield Problem("error", f"strigger: {error}", "is strigger installed here?")
        return
    if program not in registered:
        what = "no trigger for nodes that go down: their jobs wait for the next sweep"
        yield Problem("warning", what, there.setup)


def _evidence(there: Installation) -> Iterator[Problem]:
    """EvidenceDir as setup makes it, and readable for SlurmUser."""
    folder = there.config.settings.evidence_dir
    if folder is None:
        return
    try:
        status = folder.lstat()
    except OSError as error:
        yield Problem("error", f"EvidenceDir={folder}: {error.strerror}", there.setup)
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        what = f"EvidenceDir={folder}: not a folder that only root can write, so nothing in it is believed"
        yield Problem("error", what, there.setup)
    elif problem := there.cluster.try_as_slurm_user("/bin/ls", "-f", str(folder)):
        yield Problem("error", f"SlurmUser cannot read EvidenceDir: {problem}", there.setup)
    else:
        yield from _resume_folder(there, folder / RESUME)


def _resume_folder(there: Installation, path: Path) -> Iterator[Problem]:
    """Where the controller leaves what a restarted job is told."""
    try:
        status = path.lstat()
    except OSError as error:
        yield Problem("error", f"{path}: {error.strerror}", there.setup)
        return
    try:
        user = there.cluster.slurm_user
    except KeyError:
        return  # _state says so
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user.uid or status.st_mode & 0o077:
        yield Problem("error", f"{path}: not a folder that only {user.name} can enter", there.setup)


def _node_hooks(there: Installation) -> Iterator[Problem]:
    """The hooks of compute nodes as they are on this host, and what slurm.conf says of them."""
    settings = there.config.settings
    if settings.evidence_dir is None:
        return
    ours = dict.fromkeys(NODE_HOOKS, node_hook_settings(there.config, there.cluster.slurm_conf))
    for name, wanted in (*ours.items(), (TASK_HOOK, task_prolog_settings(there.config))):
        path = there.hook_dir / name
        written = written_settings(path)
        if written is None:
            yield Problem("error", f"{path}: not there, or not ours", there.setup)
        elif differing := sorted(key for key in wanted if written.get(key) != wanted[key]):
            yield Problem("error", f"{path}: written for other settings ({', '.join(differing)})", there.setup)
    closed = [path for path in Path(sys.executable).parents if not path.stat().st_mode & 0o001]
    if closed:
        what = f"{closed[-1]}: users cannot enter it, so TaskProlog cannot look for their checkpoints"
        yield Problem("warning", what, "install slurm_recovery where every user can read it")
    if there.cluster.unreachable:
        return
    needed = {
        "epilog": "epilog.d/50-slurm-recovery",
        "prolog": "prolog.d/50-slurm-recovery",
        "taskprolog": TASK_HOOK,
        "healthcheckprogram": "health_check",
    }
    for key, name in needed.items():
        hook, running = there.hook_dir / name, there.cluster.config.get(key, "")
        if str(hook) not in running and not any(_calls(Path(script), hook) for script in running.split(",")):
            yield Problem("warning", f"{_WORDS[key]} does not call {hook}", _MISSED[key])
    if there.seconds("healthcheckinterval") == 0:
        what = "HealthCheckInterval is not set: no node that we drained is found well again"
        yield Problem("warning", what, f"HealthCheckInterval={HEALTH_INTERVAL} in slurm.conf")


_WORDS = {
    "epilog": "Epilog",
    "healthcheckprogram": "HealthCheckProgram",
    "prolog": "Prolog",
    "taskprolog": "TaskProlog",
}
_MISSED = {
    "epilog": "Epilog= in slurm.conf, or call it from your own; until then nodes tell nothing of failed jobs",
    "healthcheckprogram": "HealthCheckProgram= in slurm.conf; until then no node that we drained is resumed by us",
    "prolog": "Prolog= in slurm.conf, or call it from your own; until then nothing is told to restarted jobs",
    "taskprolog": "TaskProlog= in slurm.conf, or call it from your own; until then nothing is told to restarted jobs",
}


def _plugin(there: Installation) -> Iterator[Problem]:
    """The SPANK plugin, where setup built one, or plugstack.conf loads one."""
    named = plugstack_of(there.cluster.config, there.cluster.slurm_conf)
    lines = plugstack_lines(named)
    again = f"{there.setup} --spank"
    if not lines:
        if installed_plugin(there.hook_dir):
            what = f"{named} does not load the plugin: sbatch does not know --recovery"
            yield Problem("warning", what, f"include {there.hook_dir / PLUGSTACK}")
        return
    if len(lines) > 1:
        yield Problem("warning", f"{named} loads the plugin {len(lines)} times", "leave one of these lines")
    how, plugin, *arguments = lines[0]
    if how != "optional":
        yield Problem("warning", f"{named}: {how}: no job would start without the plugin", f"optional {plugin}")
    if not Path(plugin).is_file():
        yield Problem("warning", f"{named}: {plugin} is not there", again)
    wanted = {f"{name}={value}" for name, value in plugin_arguments(there.config).items()}
    if set(arguments) != wanted:
        what = f"{named}: users are told other limits than recovery.conf's ({' '.join(sorted(wanted))})"
        yield Problem("warning", what, f"{there.setup}; or correct the line")


def _silent_nodes(there: Installation) -> Iterator[Problem]:
    """Nodes that have never left a health report, where others have."""
    folder = there.config.settings.evidence_dir
    if folder is None or there.cluster.unreachable:
        return
    nodes = there.cluster.commands.nodes()
    try:
        told = {path.name for path in folder.iterdir() if (path / HEALTH).exists()}
    except OSError:
        return
    silent = sorted(name for name, node in nodes.items() if name not in told and not node.down)
    if told and silent:
        what = f"{len(silent)} of {len(nodes)} nodes have never reported: {fold(silent[:MOST_NAMED])}"
        yield Problem("warning", what, f"srecover --conf {there.conf_path} setup --node, there; is {folder} mounted?")


def _store(there: Installation) -> Iterator[Problem]:
    if problem := there.cluster.try_as_slurm_user(
        sys.executable, "-I", "-m", "slurm_recovery.cli.open_store", str(there.conf_path)
    ):
        what = f"SlurmUser cannot read {there.conf_path} or open the store: {problem}"
        yield Problem("error", what, there.setup)


def _logs(there: Installation) -> Iterator[Problem]:
    """Logs that could not be read lately, as the gaps of the recorded incidents tell."""
    try:
        with there.common.store() as store:
            recent = store.list(limit=100)
    except StoreError:
        return
    gaps = [gap for incident in recent if incident.observation for gap in incident.observation.gaps]
    denied = [gap for gap in gaps if gap.why.startswith(errno.errorcode[errno.EACCES])]
    if denied:
        what = f"{len(denied)} of the last {len(recent)} failed attempts had a log that SlurmUser cannot read"
        hint = f"let SlurmUser read it: {denied[0].what}"
        yield Problem("warning", f"{what}; their cause was judged without it", hint)


def _signatures(there: Installation) -> Iterator[Problem]:
    folder = there.config.settings.signature_dir
    if folder is None:
        return
    try:
        load_signatures([folder])
    except (SignatureError, OSError) as error:
        yield Problem("error", str(error), "correct it, or unset SignatureDir; until then nothing is recovered")


def _attributor(there: Installation) -> Iterator[Problem]:
    address = there.config.settings.attributor
    if address and (why := unusable(address)):
        yield Problem("warning", f"Attributor={address} is not asked: {why}", "correct it, or unset Attributor")


def _partitions(there: Installation) -> Iterator[Problem]:
    if there.cluster.unreachable:
        return
    known = {name for node in there.cluster.commands.nodes().values() for name in node.partitions}
    for name in sorted(set(there.config.partitions) - known):
        yield Problem("warning", f"PartitionName={name}: no such partition", f"one of {', '.join(sorted(known))}")


def _sweeps(there: Installation) -> Iterator[Problem]:
    now = time.time()
    try:
        age = now - (there.state / LAST_SWEEP).stat().st_mtime
    except OSError:
        age = None
    if age is None or age > SWEEP_AGE:
        what = "no sweep has run yet" if age is None else f"the last sweep was {age / 60:.0f} minutes ago"
        units = f"{there.hook_dir}/systemd/slurm-recovery-sweep"
        hint = f"systemctl link {units}.service && systemctl enable --now {units}.timer"
        yield Problem("error", f"{what}: jobs that end with 0:0 and what a dead worker left wait for one", hint)
    try:
        waiting = [path for path in (there.state / "spool").iterdir() if now - path.stat().st_mtime > SWEEP_AGE]
    except OSError:
        return
    if waiting:
        what = f"{len(waiting)} events older than {SWEEP_AGE / 60:.0f} minutes in the spool"
        yield Problem("warning", what, f"srecover sweep, and look into {there.state}/worker.log")


def _modes(there: Installation) -> Iterator[Problem]:
    modes: Mapping[str, Mode] = {name: policy.mode for name, policy in there.config.partitions.items()}
    if there.config.settings.mode is Mode.OFF and Mode.ACT not in modes.values() and Mode.OBSERVE not in modes.values():
        yield Problem("warning", "Mode=off everywhere: nothing is judged", "Mode=observe in recovery.conf")


CHECKS: tuple[Callable[[Installation], Iterator[Problem]], ...] = (
    _slurmctld,
    _state,
    _hooks,
    _slurm_conf,
    _timeouts,
    _trigger,
    _evidence,
    _node_hooks,
    _plugin,
    _silent_nodes,
    _store,
    _signatures,
    _attributor,
    _partitions,
    _sweeps,
    _modes,
    _logs,
)
