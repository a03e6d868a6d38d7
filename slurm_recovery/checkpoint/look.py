"""Reads a checkpoint's files: regular ones only, inside the folder only, a few bytes of each, never for writing.

Every file and folder that a format asks for goes through a Look. It refuses links that lead out of the folder and
whatever is not a regular file (a FIFO would block for ever), counts what it opens, ends at the deadline, and notes
times and sizes, so that a checkpoint that changes meanwhile is not called complete. Knows no format.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from slurm_recovery.checkpoint.names import number_of, shape_of

MOST_ENTRIES = 200_000  # of one checkpoint's folder: 65,536 ranks with three files each
LONGEST_JSON = 32 << 20  # an index of a model of a million tensors has some 100 MB less
LONGEST_NAME = 120  # of a name inside a sentence


class Broken(Exception):
    """This checkpoint is not complete. Its text is the why."""


class Unseen(Exception):
    """It could not be looked at, so it may be complete. Its text is the why."""


class Changed(Broken):
    """It is being written, moved or deleted."""


class Late(Unseen):
    """The deadline has passed."""


class Entry(NamedTuple):
    """One name in a folder. A link has neither of both until it is followed."""

    name: str
    path: str
    is_folder: bool
    is_file: bool
    is_link: bool


class File(NamedTuple):
    """An open regular file."""

    name: str
    fd: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file."""
        parts = []
        while size > 0:
            try:
                part = os.pread(self.fd, size, offset)
            except OSError as error:
                raise Unseen(f"{printable(self.name)} cannot be read: {error.strerror}") from error
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)


class Look:
    """One look at one checkpoint. `root`: what links must not lead out of."""

    def __init__(self, root: str, deadline: float = math.inf) -> None:
        self.root, self.deadline = root, deadline
        self.opened = 0
        self.at = root  # the checkpoint: files beside it, as a tracker file, are not its own
        self.seen: dict[str, tuple[int, int, int]] = {}  # inode, size, time of each of its files
        self.listed: dict[str, int] = {}  # time of each of its folders
        self.rows: dict[str, dict[str, list[tuple[int, str]]]] = {}  # folders of a folder, by shape and number

    def in_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise Late("the time for looking was over")

    def begin(self, path: str) -> None:
        """Another checkpoint: forget the files of the last."""
        self.at = path
        self.seen.clear()
        self.listed.clear()

    def folder(self, path: str) -> dict[str, Entry]:
        """What a folder of a checkpoint holds, by name."""
        self.in_time()
        found: dict[str, Entry] = {}
        for entry in self.entries(path):
            found[entry.name] = entry
            if len(found) > MOST_ENTRIES:
                raise Unseen(f"{printable(os.path.basename(path))} holds more than {MOST_ENTRIES} names")
        return found

    def entries(self, path: str) -> Iterator[Entry]:
        """The same as a stream, for folders of any size."""
        real = self._real(path)
        try:
            self.opened += 1
            with os.scandir(real) as entries:
                if self._is_own(path):
                    self.listed[real] = os.stat(real).st_mtime_ns
                for count, entry in enumerate(entries):
                    if not count % 1024:
                        self.in_time()
                    yield Entry(
                        entry.name,
                        os.path.join(path, entry.name),
                        entry.is_dir(follow_symlinks=False),
                        entry.is_file(follow_symlinks=False),
                        entry.is_symlink(),
                    )
        except OSError as error:
            raise _failed(path, error) from error

    def is_there(self, path: str) -> bool:
        """Whether there is anything of that name."""
        try:
            os.lstat(path)
        except (OSError, ValueError):  # ValueError: a zero byte, from a damaged file that names others
            return False
        return True

    def size(self, path: str) -> int:
        """Of a regular file, which is noted as part of the checkpoint, but not opened."""
        real = self._real(path)
        try:
            status = os.lstat(real)
        except OSError as error:
            raise _failed(path, error) from error
        return self._note(path, real, status)

    @contextmanager
    def file(self, path: str) -> Iterator[File]:
        self.in_time()
        real = self._real(path)
        try:
            # O_NONBLOCK: a FIFO without a writer does not block; what it is, is asked before it is read.
            status = os.lstat(real)
            if not stat.S_ISREG(status.st_mode):
                raise Broken(f"{printable(os.path.basename(path))} is not a regular file")
            self.opened += 1
            fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise _failed(path, error) from error
        try:
            yield File(os.path.basename(path), fd, self._note(path, real, os.fstat(fd)))
        finally:
            os.close(fd)

    def json(self, path: str) -> object:
        """What a file of JSON holds."""
        name = printable(os.path.basename(path))
        with self.file(path) as file:
            if file.size > LONGEST_JSON:
                raise Unseen(f"{name} has {file.size} bytes, more than {LONGEST_JSON}")
            data = file.read(0, file.size)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Broken(f"{name} is not JSON" if data.strip(b"\0 \n") else f"{name} is empty") from error

    def word(self, path: str) -> str:
        """The only word of a small file, such as a tracker file."""
        with self.file(path) as file:
            return file.read(0, 256).decode("utf-8", "replace").strip()

    def before(self, path: str) -> str:
        """The folder beside this one whose name differs in its number alone, the greatest below this one's."""
        step = number_of(os.path.basename(path))
        if step is None:
            return ""
        return max((one for one in self._row(path) if one[0] < step), default=(0, ""))[1]

    def is_last(self, path: str) -> bool:
        """Whether no folder beside this one has its name with a greater number."""
        step = number_of(os.path.basename(path))
        return step is None or all(number <= step for number, _ in self._row(path))

    def _row(self, path: str) -> list[tuple[int, str]]:
        parent, name = os.path.split(path)
        if parent not in self.rows:
            self.rows[parent] = self._rows(parent)
        return self.rows[parent].get(shape_of(name), [])

    def _rows(self, parent: str) -> dict[str, list[tuple[int, str]]]:
        rows: dict[str, list[tuple[int, str]]] = {}
        try:
            for entry in itertools.islice(self.entries(parent), MOST_ENTRIES):
                number = number_of(entry.name) if entry.is_folder else None
                if number is not None:
                    rows.setdefault(shape_of(entry.name), []).append((number, entry.path))
        except Late:
            raise
        except (Broken, Unseen):  # then nothing is known of what is beside it
            pass
        return rows

    def unchanged(self) -> None:
        """Raises if a file or folder of the checkpoint is not as it was when it was judged."""
        for path, before in (*self.seen.items(), *self.listed.items()):
            try:
                status = os.lstat(path)
            except OSError:
                status = None
            is_file = isinstance(before, tuple)
            now = status and ((status.st_ino, status.st_size, status.st_mtime_ns) if is_file else status.st_mtime_ns)
            if now != before:
                raise Changed(f"{printable(os.path.basename(path))} changed while it was looked at")

    def _is_own(self, path: str) -> bool:
        return path == self.at or path.startswith(self.at + "/")

    def times(self) -> tuple[float, float]:
        """The earliest and the latest time that one of its files was written."""
        times = [time for _, _, time in self.seen.values()] or list(self.listed.values()) or [0]
        return min(times) / 1e9, max(times) / 1e9

    def _note(self, path: str, real: str, status: os.stat_result) -> int:
        if not stat.S_ISREG(status.st_mode):
            raise Broken(f"{printable(os.path.basename(path))} is not a regular file")
        if self._is_own(path):
            self.seen[real] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return status.st_size

    def _real(self, path: str) -> str:
        """The path itself, or where it leads to if it is a link that stays in the folder."""
        try:
            if not stat.S_ISLNK(os.lstat(path).st_mode):
                return path
            real = os.path.realpath(path)
        except OSError as error:
            raise _failed(path, error) from error
        if real != self.root and not real.startswith(self.root.rstrip("/") + "/"):
            raise Broken(f"{printable(os.path.basename(path))} is a link that leads out of the folder")
        return real


def _failed(path: str, error: OSError) -> Broken | Unseen:
    name = printable(os.path.basename(path))
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Broken(f"no {name}")
    if error.errno in (errno.ELOOP, errno.ENXIO):
        return Broken(f"{name} is a link or no regular file")
    return Unseen(f"{name} cannot be looked at: {error.strerror}")


def printable(name: str, longest: int = LONGEST_NAME) -> str:
    """A name from a file system inside a sentence: one line of printable UTF-8, not too long."""
    text = "".join(one if one.isprintable() else "?" for one in name[: longest + 1])
    return text if len(text) <= longest else text[: longest - 3] + "..."
