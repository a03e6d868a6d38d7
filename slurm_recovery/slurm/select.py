"""Chooses the adapter: SlurmBackend=auto takes pyslurm where it is installed and of Slurm's own release."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import structlog

from slurm_recovery.config.settings import Backend, Settings
from slurm_recovery.slurm.commands import Commands
from slurm_recovery.slurm.errors import SlurmUnavailable
from slurm_recovery.slurm.port import Slurm

log = structlog.get_logger(__name__)
_DEFAULT_CONF = Path("/etc/slurm/slurm.conf")


def open_slurm(settings: Settings) -> Slurm:
    """The adapter that recovery.conf asks for. Raises SlurmUnavailable where pyslurm is asked for and unfit."""
    commands = Commands(
        timeout=settings.command_timeout, bin_dir=settings.slurm_bin_dir, slurm_conf=settings.slurm_conf
    )
    if settings.slurm_backend is Backend.COMMANDS:
        return commands
    if unfit := pyslurm_unfit(settings):
        if settings.slurm_backend is Backend.PYSLURM:
            raise SlurmUnavailable(f"SlurmBackend=pyslurm: {unfit}; hint: SlurmBackend=commands needs no pyslurm")
        log.debug("pyslurm not used", why=unfit)
        return commands
    from slurm_recovery.slurm.pyslurm_adapter import PySlurm

    return PySlurm(commands)


def pyslurm_unfit(settings: Settings) -> str:
    """Why pyslurm cannot be used here; "" where it can. Finds out without importing it.

    Importing pyslurm with no usable slurm.conf ends the whole process after a minute, so that is looked at
    first; and a pyslurm of another release than Slurm's reads its structures wrongly.
    """
    spec = importlib.util.find_spec("pyslurm")
    if spec is None:
        return "pyslurm is not installed"
    conf = settings.slurm_conf or Path(os.environ.get("SLURM_CONF", _DEFAULT_CONF))
    if not conf.is_file() or conf.stat().st_size == 0:
        return f"no slurm.conf at {conf}"
    ours, slurms = _pyslurm_release(), slurm_release(settings)
    if ours != slurms:
        return f"pyslurm {_dotted(ours)} does not match Slurm {_dotted(slurms)}"
    return ""


def slurm_release(settings: Settings) -> tuple[int, ...]:
    """(major, minor) of the installed commands, e.g. (22, 5)."""
    program = str(settings.slurm_bin_dir / "scontrol") if settings.slurm_bin_dir else "scontrol"
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=settings.command_timeout, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmUnavailable(f"{program} --version: {error}") from error
    return _release(said)


def _pyslurm_release() -> tuple[int, ...]:
    from importlib.metadata import version

    return _release(version("pyslurm"))


def _release(text: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else ()


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release)) or "of no known release"
