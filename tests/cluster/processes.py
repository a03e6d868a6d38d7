"""The processes of one folder: whoever names it, and what they have started.

Owns: telling such processes from all others, and ending them. Must not: look at a program's name, or signal a pid that
may meanwhile be somebody else's. Reads /proc as proc(5) describes it; needs to be root to see other users' processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class ProcessRecord(NamedTuple):
    """One line of the process table, as far as we need it."""

    pid: int
    parent: int
    session: int
    start: str
    names_us: bool


def end_processes(folder: Path, timeout: float = 20) -> None:
    """Kill every process of `folder` until none is left. Raises TimeoutError after `timeout` seconds."""
    end = time.monotonic() + timeout
    quiet = 0
    while quiet < 2:
        found = _stop_processes(folder)
        quiet = 0 if found else quiet + 1
        for entry in found:
            send(entry, signal.SIGKILL)
        if found and time.monotonic() > end:
            raise TimeoutError(f"processes of {folder} do not end: {[entry.pid for entry in found]}")
        time.sleep(0.02)


def _stop_processes(folder: Path) -> list[ProcessRecord]:
    """Stop all, until a look finds nothing new.

    What is stopped forks no more and stays the parent of what it has forked. Killed at once, it would leave children
    that were not there at the first look and name nothing at the second.
    """
    stopped: dict[tuple[int, str], ProcessRecord] = {}
    while new := [entry for entry in find_processes(folder) if (entry.pid, entry.start) not in stopped]:
        for entry in new:
            send(entry, signal.SIGSTOP)
            stopped[entry.pid, entry.start] = entry
    return list(stopped.values())


def find_processes(folder: Path) -> list[ProcessRecord]:
    """The processes of `folder`: those that name it, their descendants, and sessions that they lead.

    A process names the folder in its command line, environment or working folder. One with a terminal never does:
    a person may look at a cluster. Nor do the caller and its ancestors.
    """
    table = {record.pid: record for pid in _pids() if (record := read_process(pid, folder)) is not None}
    spared = set(_ancestors(os.getpid(), table))
    candidates = [record for record in table.values() if record.pid not in spared]
    ours = with_descendants([record for record in candidates if record.names_us], candidates)
    leaders = {record.pid for record in ours if record.session == record.pid}
    return with_descendants([entry for entry in candidates if entry in ours or entry.session in leaders], candidates)


def with_descendants(roots: Iterable[ProcessRecord], table: Iterable[ProcessRecord]) -> list[ProcessRecord]:
    children: dict[int, list[ProcessRecord]] = {}
    for record in table:
        children.setdefault(record.parent, []).append(record)
    found: dict[int, ProcessRecord] = {}
    queue = list(roots)
    while queue:
        record = queue.pop()
        if record.pid not in found:
            found[record.pid] = record
            queue += children.get(record.pid, [])
    return list(found.values())


def _ancestors(pid: int, table: Mapping[int, ProcessRecord]) -> Iterator[int]:
    while pid > 0:
        yield pid
        pid = table[pid].parent if pid in table else 0


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def read_process(pid: int, folder: Path) -> ProcessRecord | None:
    """None when the process is gone, or a zombie."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    has_terminal = fields[4] != "0"
    names_us = not has_terminal and _names(pid, folder)
    return ProcessRecord(pid, int(fields[1]), int(fields[3]), fields[19], names_us)


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: proc(5) counts it as field 3; the name before it may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _names(pid: int, folder: Path) -> bool:
    word = re.compile(re.escape(os.fsencode(folder)) + rb"(?![A-Za-z0-9_])")
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            if word.search(Path(f"/proc/{pid}/{name}").read_bytes()):
                return True
    with contextlib.suppress(OSError):
        return bool(word.search(os.fsencode(os.readlink(f"/proc/{pid}/cwd"))))
    return False


def holds_open(pid: int, path: str) -> bool:
    """slurmstepd writes its title over its command line; its node's log tells whose it is."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{entry}") == path:
                    return True
    return False


def is_same_process(record: ProcessRecord) -> bool:
    try:
        fields = stat_fields(record.pid)
    except OSError:
        return False
    return fields[19] == record.start and fields[0] not in "ZX"


def send(record: ProcessRecord, with_signal: signal.Signals) -> None:
    """A pid may have been given to somebody else since we looked: through a pidfd, and only if it is the same."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(record.pid)
        try:
            if is_same_process(record):
                signal.pidfd_send_signal(handle, with_signal)
        finally:
            os.close(handle)
