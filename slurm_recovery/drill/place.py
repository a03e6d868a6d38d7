"""The drill's folder on the file system that nodes share: its job's script, log and checkpoints.

Every file is touched as the job's user, in a child that is given up when the file system hangs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm_recovery.drill.errors import DrillError
from slurm_recovery.drill.job import EARLIER, NEWEST, OLD, SCRIPT, checkpoint_files
from slurm_recovery.evidence.as_user import Child, TooLate, Write

PATIENCE = 10.0  # seconds
LOG_BYTES = 1 << 16
PREFIX = "srecover-drill."


@dataclass(frozen=True)
class Place:
    """A folder of our own. Every method raises DrillError."""

    user_id: int
    folder: Path

    @classmethod
    def make(cls, user_id: int, above: Path) -> Place:
        """A new folder below `above`, and the script in it."""

        def work(write: Write) -> None:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
            _script(folder).write_text(SCRIPT, encoding="ascii")
            write(b"+" + os.fsencode(folder))

        return cls(user_id, Path(os.fsdecode(_as(user_id, work, str(above)))))

    @property
    def script(self) -> Path:
        return _script(self.folder)

    def log(self, drill: str) -> Path:
        return self.folder / f"{drill}.log"

    def checkpoints(self) -> Path:
        """Makes two checkpoints, older than any job of ours."""
        folder = self.folder / "checkpoints"

        def work(write: Write) -> None:
            folder.mkdir()
            for step, name, age in ((10, EARLIER, 2 * OLD), (20, NEWEST, OLD)):
                _save(folder / name, step, time.time() - age)
            write(b"+")

        _as(self.user_id, work, str(folder))
        return folder

    def read_log(self, drill: str) -> str:
        """The begin of the job's log; "" where it is not there yet."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

        def work(write: Write) -> None:
            try:
                handle = os.open(self.log(drill), flags)
            except FileNotFoundError:
                write(b"+")
                return
            with open(handle, "rb") as file:
                write(b"+" + file.read(LOG_BYTES))

        return _as(self.user_id, work, str(self.log(drill))).decode(errors="replace")

    def remove(self) -> None:
        def work(write: Write) -> None:
            shutil.rmtree(self.folder)
            write(b"+")

        _as(self.user_id, work, str(self.folder))


def _script(folder: Path) -> Path:
    return folder / "drill.sh"


def _save(folder: Path, step: int, when: float) -> None:
    folder.mkdir()
    for name, content in checkpoint_files(step).items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, (when, when))
    os.utime(folder, (when, when))


def _as(user_id: int, work: Callable[[Write], None], what: str) -> bytes:
    with Child(work, user_id, time.monotonic() + PATIENCE) as child:
        try:
            answer = child.read(LOG_BYTES + 1)
        except TooLate:
            raise DrillError(f"{what}: no answer within {PATIENCE:g} s; hint: another --dir") from None
    if not answer.startswith(b"+"):
        why = answer[1:].decode(errors="replace") or "the reader ended"
        raise DrillError(f"{what}: {why}; hint: --dir names a folder that the job's user may write, on all nodes")
    return answer[1:]
