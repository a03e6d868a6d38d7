"""The gate's brake: over the whole cluster not more than MaxDrainsPerHour nodes may refuse a job within an hour.

slurmd drains a node whose Prolog fails, and nobody is asked before. So a node that wants to refuse first claims a slot
in EvidenceDir/.gate, which all nodes share. A slot is a file whose name only one node can make. Ages are told by the
file server's clock alone. Whatever goes wrong, no slot is claimed, and the node is given its job.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import NamedTuple

from slurm_recovery.node.report_file import FILE_MODE, Refused, evidence_folder

FOLDER = ".gate"
HOUR = 3600.0
MOST_ENTRIES = 20_000
_SLOT = re.compile(r"slot\.(\d{1,12})\.(\d{1,6})")


class Slot(NamedTuple):
    """A claim: the hour that it was made in, counted since the epoch, its number in that hour, when and by whom."""

    hour: int
    number: int
    time: float
    node: str


def claim(evidence_dir: str, node: str, most: int) -> bool:
    """Whether this node may refuse: it has claimed one of `most` slots, now or within the last hour.

    Raises OSError, report_file.Refused where the folder cannot be used.
    """
    if most <= 0:
        return False
    with evidence_folder(evidence_dir, FOLDER) as folder:
        mark = f".{node}.{os.getpid()}"
        try:
            now = _mark(folder, mark, node)
            recent = _recent(folder, now)
            if any(slot.node == node for slot in recent):
                return True
            return _claim(folder, mark, now, most, recent)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(mark, dir_fd=folder)


def _mark(folder: int, name: str, node: str) -> float:
    """A file of our own with our name in it; the server's time."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    handle = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=folder
    )
    try:
        os.fchmod(handle, FILE_MODE)
        os.write(handle, node.encode())
        os.fsync(handle)
        status = os.fstat(handle)
        if status.st_uid != 0:
            raise Refused(f"what root writes there belongs to uid {status.st_uid}; hint: no_root_squash")
        return status.st_mtime
    finally:
        os.close(handle)


def _claim(folder: int, mark: str, now: float, most: int, recent: list[Slot]) -> bool:
    """link(2) gives a name to one node only, and a slot is whole as soon as it is there.

    Slots of the hour before count as long as they are younger than an hour. Nodes that cross the full hour at once
    may each count before the other claims; therefore all is counted again, and whoever sees too many withdraws.
    """
    hour = int(now // HOUR)
    for number in range(most - sum(slot.hour != hour for slot in recent)):
        name = f"slot.{hour}.{number}"
        try:
            os.link(mark, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            continue
        if len(_recent(folder, now)) <= most:
            return True
        os.unlink(name, dir_fd=folder)
        return False
    return False


def _recent(folder: int, now: float) -> list[Slot]:
    """Slots of the last hour. Older ones go; their names come never again, so that takes nobody's slot away."""
    slots = []
    with os.scandir(folder) as entries:
        names = [entry.name for number, entry in enumerate(entries) if number < MOST_ENTRIES]
    for name in names:
        if match := _SLOT.fullmatch(name):
            slot = _read(folder, name, int(match[1]), int(match[2]))
            if slot and slot.time > now - HOUR:
                slots.append(slot)
            elif slot and slot.time < now - 2 * HOUR:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        elif name.startswith("."):  # a mark; an old one is of a node that died
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < now - HOUR:
                    os.unlink(name, dir_fd=folder)
    return slots


def _read(folder: int, name: str, hour: int, number: int) -> Slot | None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0:
            return None
        return Slot(hour, number, status.st_mtime, os.read(handle, 255).decode(errors="replace"))
    finally:
        os.close(handle)
