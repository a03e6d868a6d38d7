"""The SPANK plugin of an installation: built of the sources that this package brings, and its line for plugstack.conf.

Owns two files, slurm_recovery.so and a plugstack.conf beside the hooks that the site's own includes. A plugin fits one
release of Slurm, so it is built where it is used, against the headers that are there.
"""

from __future__ import annotations

import importlib.resources
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from slurm_recovery.config.settings import Config, Mode
from slurm_recovery.job_options import NAMES

SOURCES = ("*.c", "*.h", "exports.map", "Makefile")
PLUGIN = "slurm_recovery.so"
PLUGSTACK = "plugstack.conf"
PATIENCE = 300.0  # seconds for the compiler
MOST_BYTES = 1 << 20  # of a plugstack.conf
MOST_INCLUDED = 32
MODES = (Mode.OFF, Mode.OBSERVE, Mode.ACT)


class BuildError(Exception):
    """The plugin cannot be built here: one line with a hint."""


def plugin_arguments(config: Config) -> dict[str, str]:
    """What the plugin tells a user of before the job is queued: the most that any partition allows."""
    policies = [config.settings, *config.partitions.values()]
    names = [name for name in NAMES if any(name in policy.job_options for policy in policies)]
    return {
        "max_mode": max((policy.mode for policy in policies), key=MODES.index).value,
        "max_requeues": str(max(policy.max_requeues for policy in policies)),
        "job_options": ",".join(names) or "none",
    }


def plugstack_line(config: Config, plugin: Path) -> str:
    words = [f"{name}={value}" for name, value in plugin_arguments(config).items()]
    return " ".join(["optional", str(plugin), *words])


def build_plugin(plugin_dir: Path) -> bool:
    """Build and install it; whether it is another than before. Raises BuildError, OSError."""
    for program in ("make", "cc"):
        if shutil.which(program) is None:
            raise BuildError(f"{program} not found; hint: apt-get install make gcc libslurm-dev, or leave out --spank")
    with tempfile.TemporaryDirectory(prefix="slurm_recovery.") as name:
        folder = Path(name)
        with importlib.resources.as_file(importlib.resources.files("slurm_recovery.hooks") / "spank_hooks") as sources:
            for path in (path for pattern in SOURCES for path in sources.glob(pattern)):
                shutil.copy(path, folder)
        built = folder / "out" / PLUGIN
        command = ["make", "--directory", name, f"BUILD={built.parent}"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"the plugin was not built within {PATIENCE:g} s; hint: make -C spank_hooks") from None
        if done.returncode != 0 or not built.is_file():
            raise BuildError(f"the plugin cannot be built: {_why(done.stderr)}; hint: install Slurm's headers")
        return _install(built, plugin_dir)


def _why(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), (lines or ["no message"])[-1])[:300]


def _install(built: Path, plugin_dir: Path) -> bool:
    """By a rename: a job that starts meanwhile finds the old one or the new one."""
    plugin_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = plugin_dir / PLUGIN
    if path.is_file() and path.read_bytes() == built.read_bytes():
        return False
    fresh = path.with_name(f".{PLUGIN}.{os.getpid()}")
    shutil.copyfile(built, fresh)
    fresh.chmod(0o644)
    fresh.replace(path)
    return True


def installed_plugin(hook_dir: Path) -> Path | None:
    """The plugin of our own plugstack.conf; None where setup has not built one."""
    lines = plugstack_lines(hook_dir / PLUGSTACK)
    return Path(lines[0][1]) if lines else None


def write_plugstack(hook_dir: Path, config: Config, plugin: Path) -> bool:
    """Whether the line is another than before."""
    path = hook_dir / PLUGSTACK
    text = f"# Written by `srecover setup` from recovery.conf.\n{plugstack_line(config, plugin)}\n"
    if path.is_file() and path.read_text() == text:
        return False
    fresh = path.with_name(f".{PLUGSTACK}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(path)
    return True


def plugstack_of(config: Mapping[str, str], slurm_conf: Path | None) -> Path:
    """The site's plugstack.conf. `config`: keys of slurm.conf in lower case; the default lies beside it."""
    named = config.get("plugstackconfig", "")
    if named.startswith("/"):
        return Path(named)
    return (slurm_conf or Path("/etc/slurm/slurm.conf")).with_name(PLUGSTACK)


def plugstack_lines(path: Path, depth: int = 3) -> list[list[str]]:
    """The lines of a plugstack.conf that load our plugin, with those of the files that it includes, as words."""
    found: list[list[str]] = []
    for text in _read(path).splitlines():
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            continue
        if words[:1] == ["include"] and len(words) == 2 and depth:
            try:
                included = sorted(path.parent.glob(words[1]) if words[1][0] != "/" else Path("/").glob(words[1][1:]))
            except (OSError, ValueError, NotImplementedError):
                continue
            for one in included[:MOST_INCLUDED]:
                found += plugstack_lines(one, depth - 1)
        elif len(words) > 1 and Path(words[1]).name == PLUGIN:
            found.append(words)
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
