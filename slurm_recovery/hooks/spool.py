"""The spool: the events that hooks wrote, the marks of jobs that we hold, and the worker's lock.

Files only. An event is `TIME_NS-KIND-JOBID-PID.event`; its hook waits until that name is gone. The worker
removes it once the store has taken it over (`done`), or renames it to `.later` where that cannot be yet
(`defer`): the hook lets go, the event stays. A mark in holds/ says that a job waits for us even when the
store cannot be read any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MAX_EVENT_BYTES = 1 << 20
_NAME = re.compile(r"(\d{1,20})-(job_end|node_down)-(\d{1,10})-\d+\.(event|later)")


@dataclass(frozen=True)
class Event:
    """One event: what a hook was told. `time` is when the hook ran, seconds since the epoch."""

    path: Path
    kind: str
    time: float
    variables: dict[str, str] = field(hash=False)
    arguments: tuple[str, ...] = ()

    @property
    def waited_for(self) -> bool:
        """Whether its hook may still be waiting."""
        return self.path.suffix == ".event"

    def number(self, name: str) -> int | None:
        """A variable that Slurm sets to a number."""
        value = self.variables.get(name, "")
        return int(value) if value.isdigit() else None

    @property
    def job_id(self) -> int:
        return self.number("SLURM_JOB_ID") or 0

    @property
    def failed(self) -> bool:
        """A definite failure. The opposite proves nothing: 0:0 also stands for time limit, cancel and requeue."""
        return self.variables.get("SLURM_JOB_EXIT_CODE2", "0:0") != "0:0"


class Hold(NamedTuple):
    """A job that we hold, and since when (seconds since the epoch)."""

    job_id: int
    since: float


class Spool:
    """StateDir as the worker and the commands use it."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "spool"
        self.holds_folder = state_dir / "holds"
        self.lock_path = state_dir / "worker.lock"

    def events(self) -> list[Event]:
        """All events, oldest first. What is not one is set aside as `.bad`, once."""
        return sorted(self._read(), key=lambda event: event.time)

    def waiting(self) -> bool:
        """Whether a hook has written since."""
        return any(name.endswith(".event") and _NAME.fullmatch(name) for name in self._names())

    def done(self, event: Event) -> None:
        event.path.unlink(missing_ok=True)
        event.path.with_suffix(".later").unlink(missing_ok=True)

    def defer(self, event: Event) -> None:
        _rename(event.path, ".later")

    def set_aside(self, event: Event) -> None:
        """Out of the way of all others, for a person to look at."""
        _rename(event.path, ".bad")

    def mark_hold(self, label: str, job_id: int) -> None:
        """Before we hold a job: on disk, or the hold does not happen. An array task's own id is not in its label."""
        self.holds_folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(self.holds_folder / label, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"%d" % job_id)
            os.fsync(handle)
        finally:
            os.close(handle)

    def clear_hold(self, label: str) -> None:
        (self.holds_folder / label).unlink(missing_ok=True)

    def holds(self) -> dict[str, Hold]:
        """The jobs that we hold, by their labels."""
        try:
            names = os.listdir(self.holds_folder)
        except FileNotFoundError:
            return {}
        return {name: _hold(self.holds_folder / name) for name in names if re.fullmatch(r"\d+(_\d+)?", name)}

    @contextlib.contextmanager
    def lock(self, *, inherited: int | None = None, wait: float = 0.0) -> Iterator[bool]:
        """The worker's lock: one worker or sweep at a time. Yields whether it was got within `wait` seconds."""
        if inherited is not None:
            with os.fdopen(inherited, "r+b", buffering=0):
                yield True
            return
        handle = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _flock(handle, time.monotonic() + wait)
        finally:
            os.close(handle)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _read(self) -> Iterator[Event]:
        for name in self._names():
            match, path = _NAME.fullmatch(name), self.folder / name
            if not match:
                if path.suffix == ".event":
                    _rename(path, ".bad")
                continue
            try:
                data = _read_regular(path)
            except FileNotFoundError:
                continue
            except OSError:
                _rename(path, ".bad")
                continue
            entries = [os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry]
            yield Event(
                path=path,
                kind=match[2],
                time=int(match[1]) / 1e9,
                variables={key: value for key, _, value in entries if key != "argv"},
                arguments=tuple(value for key, _, value in entries if key == "argv"),
            )


def _hold(mark: Path) -> Hold:
    """A mark as it is; one whose number was never written stands for the job or array of its name."""
    try:
        text, since = mark.read_text(), mark.stat().st_mtime
    except FileNotFoundError:
        text, since = "", 0.0
    return Hold(int(text) if text.isdigit() else int(mark.name.partition("_")[0]), since)


def _rename(path: Path, suffix: str) -> None:
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(suffix))


def _read_regular(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_EVENT_BYTES + 1)
    if len(data) > MAX_EVENT_BYTES:
        raise OSError("too large")
    return data


def _flock(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
