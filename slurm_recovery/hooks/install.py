"""Puts the hooks where slurm.conf will point to, with this installation's interpreter and paths written in.

Owns the files in HookDir and nothing else. Every step looks first whether it is done.
"""

from __future__ import annotations

import ast
import importlib.resources
import json
import os
import py_compile
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from slurm_recovery.config.settings import Config, YesNo
from slurm_recovery.job_options import CHECKPOINT

HOOKS = ("epilog_slurmctld", "node_down")
MODULE = "slurm_recovery_hook.py"
# The hooks of compute nodes: where each is installed, below HookDir, and the file that it is made of.
NODE_HOOKS = {
    "epilog.d/50-slurm-recovery": "epilog-50-slurm-recovery",
    "prolog.d/50-slurm-recovery": "prolog-50-slurm-recovery",
    "health_check": "health_check",
}
NODE_MODULE = "slurm_recovery_node_hook.py"
TASK_HOOK = "task_prolog"
TASK_MODULE = "slurm_recovery_task_prolog.py"
HEALTH_INTERVAL = 300  # seconds between two health checks, as setup proposes
OTHERS = ("plugstack.conf", "slurm_recovery.so")  # hooks/spank.py writes them
UNITS = ("slurm-recovery-sweep.service", "slurm-recovery-sweep.timer")
DEFAULT_HOOK_DIR = Path("/usr/local/libexec/slurm_recovery")
_SETTINGS = re.compile(r"^SETTINGS = \{.*?^\}$", re.MULTILINE | re.DOTALL)


def slurm_conf_lines(hook_dir: Path) -> tuple[str, ...]:
    """What the administrator adds to slurm.conf."""
    return (f"EpilogSlurmctld={hook_dir}/epilog_slurmctld",)


def node_conf_lines(hook_dir: Path) -> tuple[str, ...]:
    """What else the administrator adds where EvidenceDir is set."""
    return (
        f"Epilog={hook_dir}/epilog.d/50-slurm-recovery",
        f"Prolog={hook_dir}/prolog.d/50-slurm-recovery",
        f"TaskProlog={hook_dir}/{TASK_HOOK}",
        f"HealthCheckProgram={hook_dir}/health_check",
        f"HealthCheckInterval={HEALTH_INTERVAL}",
        "HealthCheckNodeState=ANY",
    )


def trigger_arguments(hook_dir: Path) -> tuple[str, ...]:
    """strigger(1): tell us of every node that goes down, for good."""
    return ("--set", "--node", "--down", "--flags=PERM", f"--program={hook_dir}/node_down")


def hook_settings(config: Config, conf_path: Path, slurm_conf: Path | None) -> dict[str, Any]:
    """What the hooks have to know: they cannot read recovery.conf in the time that they have."""
    settings = config.settings
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    if slurm_conf:
        environment["SLURM_CONF"] = str(slurm_conf)
    state = str(settings.state_dir)
    return {
        "state": state,
        "worker": [sys.executable, "-I", "-m", "slurm_recovery.worker", "--conf", str(conf_path), "--state", state],
        "environment": environment,
        "watchdog": settings.watchdog_timeout,
        "hold_timeout": settings.hold_timeout,
    }


def node_hook_settings(config: Config, slurm_conf: Path | None) -> dict[str, Any]:
    """What the hooks of compute nodes have to know: nodes need no recovery.conf."""
    settings = config.settings
    assert settings.evidence_dir is not None
    options = {
        "--evidence-dir": str(settings.evidence_dir),
        "--timeout": f"{settings.evidence_timeout:g}",
        "--evidence-bytes": str(settings.evidence_bytes),
        "--kernel-log": settings.kernel_log,
        "--kernel-log-bytes": str(settings.kernel_log_bytes),
        "--job-log-bytes": str(settings.job_log_bytes),
        "--max-drains-per-hour": str(settings.max_drains_per_hour),
        "--run-dir": settings.run_dir,
        "--checkpoint": "yes" if CHECKPOINT in settings.job_options else "no",
        "--checkpoint-otherwise": _otherwise(config),
        "--checkpoint-formats": _formats(config),
        **({"--slurm-conf": str(slurm_conf)} if slurm_conf else {}),
    }
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    if settings.nvml_lib_dir:
        environment["LD_LIBRARY_PATH"] = str(settings.nvml_lib_dir)
    words = [word for pair in options.items() for word in pair]
    return {
        "collector": [sys.executable, "-I", "-m", "slurm_recovery.node.collector", *words],
        "environment": environment,
        "timeout": settings.evidence_timeout,
        "gate": settings.prolog_gate is YesNo.YES,
        "run_dir": settings.run_dir,
    }


def task_prolog_settings(config: Config) -> dict[str, Any]:
    """What TaskProlog has to know. Every user can read it."""
    settings = config.settings
    timeout = settings.task_prolog_timeout
    options = ("--timeout", f"{timeout:g}", "--checkpoint-formats", _formats(config))
    return {
        "look": [sys.executable, "-I", "-m", "slurm_recovery.node.look", *options],
        "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
        "timeout": timeout,
        "run_dir": settings.run_dir,
    }


def _formats(config: Config) -> str:
    """The site's own kinds of checkpoint, for a command line."""
    formats = config.checkpoint_formats.items()
    return json.dumps([[name, one.pattern, one.marker] for name, one in formats], separators=(",", ":"))


def _otherwise(config: Config) -> str:
    """Partitions whose jobs may name a checkpoint folder where others may not, or the other way round."""
    usual = CHECKPOINT in config.settings.job_options
    differing = [name for name, policy in config.partitions.items() if (CHECKPOINT in policy.job_options) != usual]
    return ",".join(sorted(differing))


def system_python() -> str:
    """The interpreter below the virtual environment: it starts faster, and outlives an upgrade of ours."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (Path(sys.base_prefix) / "bin", Path("/usr/bin")):
        if (folder / name).is_file():
            return str(folder / name)
    return sys.executable


def hook_text(name: str, settings: dict[str, Any], python: str) -> str:
    """The hook's file with the interpreter and the settings written in. `name`: where it is installed."""
    text = _file(NODE_HOOKS.get(name, name))
    rows = "".join(f'    "{key}": {value!r},\n' for key, value in settings.items())
    text = _SETTINGS.sub(lambda match: f"SETTINGS = {{\n{rows}}}", text, count=1)
    text = text.replace("#!/usr/bin/python3 -IS", f"#!{python} -IS", 1)
    text = text.replace("\npython=/usr/bin/python3\n", f"\npython={python}\n", 1)
    if settings.get("gate"):
        text = text.replace("\ngate=no\n", "\ngate=yes\n", 1)
    if run_dir := settings.get("run_dir"):
        text = text.replace("\nrun_dir=/run/slurm_recovery\n", f"\nrun_dir={_for_sh(run_dir)}\n", 1)
    return text


def _for_sh(path: str) -> str:
    """A word of sh's, with `%n` as the node's name."""
    return '"$SLURMD_NODENAME"'.join(shlex.quote(part) if part else "" for part in path.split("%n"))


def written_settings(path: Path) -> dict[str, Any] | None:
    """The settings in an installed hook; None where it is not one of ours."""
    try:
        match = _SETTINGS.search(path.read_text())
        value = ast.literal_eval(match[0].removeprefix("SETTINGS = ")) if match else None
    except (OSError, ValueError, SyntaxError):
        return None
    return value if isinstance(value, dict) else None


def install_hooks(hook_dir: Path, settings: dict[str, Any]) -> list[str]:
    """Write the hooks; the files that were changed. HookDir and its files belong to root and all may read them."""
    return _install(hook_dir, HOOKS, MODULE, settings)


def install_node_hooks(hook_dir: Path, settings: dict[str, Any]) -> list[str]:
    """The same for the hooks of compute nodes."""
    return _install(hook_dir, tuple(NODE_HOOKS), NODE_MODULE, settings)


def install_task_prolog(hook_dir: Path, settings: dict[str, Any]) -> list[str]:
    """The same for TaskProlog, which needs the node hooks' module beside its own."""
    return _install(hook_dir, (TASK_HOOK,), TASK_MODULE, settings)


def _install(hook_dir: Path, hooks: tuple[str, ...], module: str, settings: dict[str, Any]) -> list[str]:
    python = system_python()
    texts = {name: hook_text(name, settings, python) for name in hooks} | {module: _file(module)}
    for folder in dict.fromkeys([hook_dir, *((hook_dir / name).parent for name in texts)]):
        _open_folder(folder)
    changed = [name for name, text in texts.items() if _write(hook_dir / name, text)]
    _open_folder(hook_dir / "__pycache__")
    if compiled := py_compile.compile(str(hook_dir / module), doraise=True):
        Path(compiled).chmod(0o644)
    return changed


def write_units(folder: Path, conf_path: Path, user: str, slurm_conf: Path | None) -> None:
    """The systemd units of the sweep, ready for `systemctl enable`."""
    _open_folder(folder)
    environment = f"Environment=SLURM_CONF={slurm_conf}\n" if slurm_conf else ""
    program = Path(sys.executable).with_name("srecover")
    for name in UNITS:
        text = _file(name).replace("User=slurm\n", f"User={user}\n{environment}")
        text = re.sub(r"^ExecStart=.*$", f"ExecStart={program} --conf {conf_path} sweep", text, flags=re.MULTILINE)
        _write(folder / name, text, 0o644)


def remove_hooks(hook_dir: Path) -> list[str]:
    """Take out what install_hooks and write_units wrote; anything else in the folder stays, and so does it."""
    cache = hook_dir / "__pycache__"
    paths = [hook_dir / name for name in (*HOOKS, MODULE, *NODE_HOOKS, NODE_MODULE, TASK_HOOK, TASK_MODULE, *OTHERS)]
    paths += [hook_dir / "systemd" / name for name in UNITS]
    for module in (MODULE, NODE_MODULE, TASK_MODULE):
        paths += list(cache.glob(f"{module.removesuffix('.py')}.*.pyc"))
    gone = [path for path in paths if path.exists()]
    for path in gone:
        path.unlink()
    for folder in (cache, *(hook_dir / name for name in ("systemd", "epilog.d", "prolog.d")), hook_dir):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return [str(path) for path in gone]


def _file(name: str) -> str:
    return (importlib.resources.files("slurm_recovery.hooks") / "files" / name).read_text()


def _open_folder(folder: Path) -> None:
    """Whatever root's umask: SlurmUser has to enter it."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder.chmod(0o755)


def _write(path: Path, text: str, mode: int = 0o755) -> bool:
    """Replace the file as a whole, where it differs."""
    if path.is_file() and path.read_text() == text and path.stat().st_mode & 0o777 == mode:
        return False
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
    return True
