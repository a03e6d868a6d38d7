"""Builds the SPANK plugin as a site does, into a folder of the caller's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "spank_hooks"
HEADERS = Path("/usr/include/slurm")


def build_plugin(folder: Path, *options: str) -> Path:
    """Raises CalledProcessError."""
    command = ["make", "-s", "-C", str(SOURCES), f"BUILD={folder}", *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return folder / "slurm_recovery.so"


def headers_of_another_release(folder: Path) -> Path:
    """Slurm's headers as this machine has them, less the release: an include folder."""
    copy = folder / "slurm"
    shutil.copytree(HEADERS, copy)
    version = copy / "slurm_version.h"
    version.write_text(re.sub(r"(SLURM_VERSION_NUMBER) .*", r"\1 0x140b00", version.read_text()))  # 20.11
    return folder
