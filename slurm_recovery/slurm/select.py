"""Chooses the adapter: SlurmBackend=auto takes pyslurm where it is installed and of Slurm's own release."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import subprocess
from importlib.metadata import PackageNotFoundError, version
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
    if settings.slurm_conf:
        os.environ["SLURM_CONF"] = str(settings.slurm_conf)  # read when pyslurm is imported
    from slurm_recovery.slurm.pyslurm_adapter import PySlurm

    return PySlurm(commands)


def pyslurm_unfit(settings: Settings) -> str:
    """Why pyslurm cannot be used here; "" where it can. Finds out without importing it.

    Importing pyslurm with no slurm.conf ends the whole process after a minute, and with one that Slurm cannot
    parse, at once: scontrol reads the same file first. A pyslurm of another release than Slurm's reads its structures
    wrongly.
    """
    spec = importlib.util.find_spec("pyslurm")
    if spec is None:
        return "pyslurm is not installed"
    conf = _slurm_conf(settings)
    try:
        if not stat.S_ISREG(conf.stat().st_mode) or not conf.read_bytes().strip():
            return f"no slurm.conf at {conf}"
    except OSError as error:
        return f"no slurm.conf at {conf}: {error.strerror}"
    ours, slurms = _pyslurm_release(), slurm_release(settings)
    if not slurms:
        return f"scontrol --version fails with {conf}"
    if ours != slurms:
        return f"pyslurm {_dotted(ours)} does not match Slurm {_dotted(slurms)}"
    return ""


def slurm_release(settings: Settings) -> tuple[int, ...]:
    """(major, minor) of the installed commands, e.g. (22, 5). From 24.11 on they need a slurm.conf to say it."""
    program = str(settings.slurm_bin_dir / "scontrol") if settings.slurm_bin_dir else "scontrol"
    try:
        said = subprocess.run(
            [program, "--version"],
            env=os.environ | {"SLURM_CONF": str(_slurm_conf(settings))},
            capture_output=True,
            text=True,
            timeout=settings.command_timeout,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmUnavailable(f"{program} --version: {error}") from error
    return _release(said)


def _slurm_conf(settings: Settings) -> Path:
    return settings.slurm_conf or Path(os.environ.get("SLURM_CONF") or _DEFAULT_CONF)


def _pyslurm_release() -> tuple[int, ...]:
    """() for a pyslurm that is not an installed package, a folder of that name for instance."""
    try:
        return _release(version("pyslurm"))
    except PackageNotFoundError:
        return ()


def _release(text: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else ()


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release)) or "of no known release"
