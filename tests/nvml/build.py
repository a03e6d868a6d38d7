"""Builds the stand-in library into a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("standin.c")
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")


def build(folder: Path) -> Path:
    """The library in `folder`, which is made; put there in one step, since others may be loading it."""
    folder.mkdir(parents=True, exist_ok=True)
    library, made = folder / LIBRARY, folder / f".{LIBRARY}.{os.getpid()}"
    done = subprocess.run(
        [os.environ.get("CC", "cc"), *FLAGS, "-o", str(made), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(f"{SOURCE}: cannot be built: {done.stderr}")
    made.rename(library)
    return library
