"""Reads a job's log from this attempt's first byte to its last: bounded in bytes and time, as the job's user.

The path is the user's choice, so it may be a FIFO, a device, a link, another user's file, or hang. Only a
regular file that belongs to the job's user is read, opened without following a link or waiting for a writer.
What cannot be read is a Gap, not an error. Of what is too long, or comes too slowly, the beginning and the end
are read: a cascade's first words and its last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from slurm_recovery.detect.lines import PIECE
from slurm_recovery.evidence.as_user import Child, Refused, TooLate, Write
from slurm_recovery.evidence.pieces import GZIP, Unpacked
from slurm_recovery.records import Gap, Source

MARKED = 4096  # bytes by which a former attempt's end is known again
_HEADER = struct.Struct("!cQQQQ")  # +, inode, size, where this attempt's bytes begin, length of the tail that follows
_FRAME = struct.Struct("!cQQ")  # +, offset in the file, length of the bytes that follow
_NOT_REGULAR = "not a regular file"
_NOT_OWNER = "belongs to uid {found}, not to the job's uid {wanted}"


class Bounds(NamedTuple):
    """How much is read: `most` bytes of one attempt, within `timeout` seconds; the last `tail` bytes come first."""

    most: int
    timeout: float
    tail: int = 64 << 10


class Former(NamedTuple):
    """Where an earlier attempt's bytes end, by its observation; and when this attempt started.

    Slurm truncates the file at a restart, and keeps its inode, unless the job appends: then `mark` is still there.
    """

    end: int = 0
    inode: int = 0
    mark: str = ""
    started: float | None = None


NO_FORMER = Former()


def mark_of(data: bytes) -> str:
    """A log's last bytes in short: their number and their digest."""
    last = data[-MARKED:]
    return f"{len(last)}:{hashlib.sha256(last).hexdigest()[:32]}" if last else ""


def marked(mark: str) -> int:
    """How many bytes a mark speaks of."""
    number = mark.partition(":")[0]
    return int(number) if number.isdigit() else 0


class Part(NamedTuple):
    """Bytes without a gap, `offset` bytes into the file. To be read to their end before the next part is asked for."""

    offset: int
    pieces: Iterator[bytes]


class _Frame(NamedTuple):
    offset: int
    data: bytes


class JobLog:
    """An open log. `size` and `inode` are the file's; `tail` its last bytes; `gaps` is complete after `parts`."""

    def __init__(self, path: str, child: Child, bounds: Bounds, header: bytes) -> None:
        _, self.inode, self.size, self.begin, length = _HEADER.unpack(header)
        self.path, self.gaps = path, [_gap(path, why) for why in _too_long(self.size - self.begin, bounds)]
        self._child, self._bounds = child, bounds
        self.tail = child.read(length)
        self.mark = mark_of(self.tail)
        self._read_to, self._packed, self._why = self.begin, False, "the file became shorter"

    def parts(self) -> Iterator[Part]:
        """This attempt's bytes: one part, or a beginning and an end where the middle was not read."""
        frames = self._frames()
        following = next(frames, None)
        while following is not None:
            first, following = following, None

            def pieces(frame: _Frame | None = first) -> Iterator[bytes]:
                nonlocal following
                while frame is not None and frame.offset == self._read_to:
                    self._read_to += len(frame.data)
                    yield frame.data
                    frame = next(frames, None)
                following = frame

            self._read_to = first.offset
            yield Part(first.offset, self._text(first, pieces()))
        yield from self._tail_unread()

    def _text(self, first: _Frame, read: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces, unpacked if the file is packed; then its tail is the text's."""
        if first.offset or not first.data.startswith(GZIP):
            yield from read
            return
        unpacked, self.tail, self._packed = Unpacked(read, self._bounds.most), b"", True
        for text in unpacked:
            self.tail = (self.tail + text)[-self._bounds.tail :]
            yield text
        if unpacked.trouble:
            self.gaps.append(_gap(self.path, unpacked.trouble))

    def _frames(self) -> Iterator[_Frame]:
        try:
            while (head := self._child.read(_FRAME.size)).startswith(b"+") and len(head) == _FRAME.size:
                _, offset, length = _FRAME.unpack(head)
                yield _Frame(offset, self._child.read(length))
        except TooLate:
            self._why = f"no more within {self._bounds.timeout:g} s (LogTimeout)"
        else:
            self._why = head[1:].decode(errors="replace") or self._why

    def _tail_unread(self) -> Iterator[Part]:
        """The file's end, where the reading stopped before it."""
        behind = self.size - self._read_to
        if behind <= 0:
            return
        text = b"" if self._packed else self.tail[-behind:]
        self.gaps.append(_gap(self.path, f"{behind - len(text)} of {self.size} bytes were not read: {self._why}"))
        if text:
            yield Part(self.size - len(text), iter((text,)))


@contextlib.contextmanager
def open_log(path: str, user_id: int, bounds: Bounds, former: Former = NO_FORMER) -> Iterator[JobLog | Gap]:
    """The log, to be read inside the block, without what a former attempt left in it."""
    deadline = time.monotonic() + bounds.timeout
    with Child(lambda write: _send(write, path, user_id, bounds, former), user_id, deadline) as child:
        try:
            header = child.read(_HEADER.size)
            answer = JobLog(path, child, bounds, header) if _is_header(header) else None
        except TooLate:
            yield _gap(path, f"no answer within {bounds.timeout:g} s")
            return
        if answer is None:
            with contextlib.suppress(TooLate):
                header += child.read(1000)
        yield answer or _gap(path, header[1:].decode(errors="replace") or "the reader died")


def _is_header(answer: bytes) -> bool:
    return answer.startswith(b"+") and len(answer) == _HEADER.size


def _gap(path: str, why: str) -> Gap:
    return Gap(source=Source.JOB_LOG, what=path, why=why)


def _too_long(size: int, bounds: Bounds) -> list[str]:
    unread = size - bounds.most
    return [f"{unread} of {size} bytes, in its middle, were not read (LogBytes)"] if unread > 0 else []


def _send(write: Write, path: str, user_id: int, bounds: Bounds, former: Former) -> None:
    """In the child: the header, the tail, then frame after frame."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise Refused(_NOT_REGULAR)
    if status.st_uid != user_id:
        raise Refused(_NOT_OWNER.format(found=status.st_uid, wanted=user_id))
    begin = _begin(handle, status, former)
    size = status.st_size
    tail = os.pread(handle, min(bounds.tail, size - begin), max(begin, size - bounds.tail))
    write(_HEADER.pack(b"+", status.st_ino, size, begin, len(tail)) + tail)
    for first, last in _spans(begin, size, bounds.most):
        while first < last and (data := os.pread(handle, min(PIECE, last - first), first)):
            write(_FRAME.pack(b"+", first, len(data)))
            write(data)
            first += len(data)


def _begin(handle: int, status: os.stat_result, former: Former) -> int:
    """Where this attempt's bytes begin: behind the former's, where those are still there."""
    if status.st_ino != former.inode or status.st_size < former.end:
        return 0
    length = marked(former.mark)
    if former.mark and mark_of(os.pread(handle, length, former.end - length)) != former.mark:
        return 0
    # As long as before, and written since the start: the same words once more, not an append of nothing.
    again = status.st_size == former.end and former.started is not None and status.st_mtime >= former.started
    return 0 if again else former.end


def _spans(begin: int, end: int, most: int) -> tuple[tuple[int, int], ...]:
    """All of it, or as much of the beginning and of the end as may be read."""
    if end - begin <= most:
        return ((begin, end),)
    return (begin, begin + most // 2), (end - (most - most // 2), end)
