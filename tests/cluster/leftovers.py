"""The folders of private clusters: who owns each, and the end of those whose owner is dead.

Owns: the owner's file in a folder, and removing a folder with all its processes. Must not: touch the folder of a living
owner, or one that another user has made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from pathlib import Path

from tests.cluster.processes import end_processes, stat_fields

PREFIX = "slurm_recovery."
OWNER_FILE = "owner.pid"


def clean_up_dead_clusters(parent: Path = Path("/tmp")) -> list[Path]:
    """End and remove every cluster whose owner is dead; gives their folders. Those of living owners stay."""
    dead = [folder for folder in sorted(parent.glob(PREFIX + "*")) if _is_ours(folder) and _owner_is_dead(folder)]
    for folder in dead:
        with contextlib.suppress(OSError):  # what cannot be removed must not keep a new cluster from starting
            remove_cluster(folder)
    return dead


def remove_cluster(folder: Path) -> None:
    """End every process of the cluster in `folder` and remove it. Raises OSError when that does not work."""
    end_processes(folder)
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    raise OSError(f"{folder} cannot be removed: see what is left in it")


def write_owner(folder: Path) -> None:
    text = json.dumps({"pid": os.getpid(), "start": stat_fields(os.getpid())[19], **_machine()})
    (folder / OWNER_FILE).write_text(text + "\n")


def _machine() -> dict[str, str]:
    """Where a pid means something."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"boot": boot, "namespace": os.readlink("/proc/self/ns/pid")}


def _is_ours(folder: Path) -> bool:
    """A real folder of this user: anyone may make one with that name in /tmp."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _owner_is_dead(folder: Path) -> bool:
    try:
        owner = json.loads((folder / OWNER_FILE).read_text())
        pid, start, boot, namespace = (owner[key] for key in ("pid", "start", "boot", "namespace"))
    except (OSError, ValueError, KeyError, TypeError):
        return _age(folder) > 60  # being made, or its owner was killed just then
    here = _machine()
    if boot != here["boot"]:
        return True
    if namespace != here["namespace"]:
        return _age(folder) > 86400  # of another container: its processes cannot be seen from here
    try:
        fields = stat_fields(pid)
    except OSError:
        return True
    return fields[19] != start or fields[0] in "ZX"


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.lstat().st_mtime
    except OSError:
        return 0
