"""Puts the hooks where slurm.conf will point to, with this installation's interpreter and paths written in.

Owns the files in HookDir and nothing else. Every step looks first whether it is done.
"""

from __future__ import annotations

import ast
import importlib.resources
import os
import py_compile
import re
import sys
from pathlib import Path
from typing import Any

from slurm_recovery.config.settings import Config

HOOKS = ("epilog_slurmctld", "node_down")
MODULE = "slurm_recovery_hook.py"
UNITS = ("slurm-recovery-sweep.service", "slurm-recovery-sweep.timer")
DEFAULT_HOOK_DIR = Path("/usr/local/libexec/slurm_recovery")
_SETTINGS = re.compile(r"^SETTINGS = \{.*?^\}$", re.MULTILINE | re.DOTALL)


def slurm_conf_lines(hook_dir: Path) -> tuple[str, ...]:
    """What the administrator adds to slurm.conf."""
    return (f"EpilogSlurmctld={hook_dir}/epilog_slurmctld",)


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


def system_python() -> str:
    """The interpreter below the virtual environment: it starts faster, and outlives an upgrade of ours."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (Path(sys.base_prefix) / "bin", Path("/usr/bin")):
        if (folder / name).is_file():
            return str(folder / name)
    return sys.executable


def hook_text(name: str, settings: dict[str, Any], python: str) -> str:
    """The hook's file with the interpreter and the settings written in."""
    text = _file(name)
    rows = "".join(f'    "{key}": {value!r},\n' for key, value in settings.items())
    text = _SETTINGS.sub(lambda match: f"SETTINGS = {{\n{rows}}}", text, count=1)
    return text.replace("#!/usr/bin/python3 -IS", f"#!{python} -IS", 1)


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
    _open_folder(hook_dir)
    python = system_python()
    texts = {name: hook_text(name, settings, python) for name in HOOKS} | {MODULE: _file(MODULE)}
    changed = [name for name, text in texts.items() if _write(hook_dir / name, text)]
    _open_folder(hook_dir / "__pycache__")
    if compiled := py_compile.compile(str(hook_dir / MODULE), doraise=True):
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
    paths = [hook_dir / name for name in (*HOOKS, MODULE)] + [hook_dir / "systemd" / name for name in UNITS]
    paths += list(cache.glob("slurm_recovery_hook.*.pyc"))
    gone = [path for path in paths if path.exists()]
    for path in gone:
        path.unlink()
    for folder in (cache, hook_dir / "systemd", hook_dir):
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
