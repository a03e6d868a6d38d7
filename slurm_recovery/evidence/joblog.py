"""Reads the end of a job's log: bounded in bytes and time, and as the job's user where we are root.

The path is the user's choice, so it may be a FIFO, a device, a link, another user's file, or hang. Only a
regular file that belongs to the job's user is read, opened without following a link or waiting for a
writer, in a child that is given up when its time is over. What cannot be read is a Gap, not an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import select
import signal
import stat
import struct
import time
from typing import NamedTuple

from slurm_recovery.records import Gap, Source

MAX_DESCRIPTORS = 4096
_HEADER = struct.Struct("!QQQ")  # inode, size, offset of the first byte that follows
_NOT_REGULAR = "not a regular file"
_NOT_OWNER = "belongs to uid {found}, not to the job's uid {wanted}"


class LogTail(NamedTuple):
    """The end of a log. `offset` is the place of data[0] in the file, `size` the file's length in bytes."""

    path: str
    data: bytes
    offset: int
    size: int
    inode: int


class _Refused(Exception):
    """The file is there and must not be read."""


def read_tail(path: str, user_id: int, *, limit: int, timeout: float, start: int = 0, inode: int = 0) -> LogTail | Gap:
    """The last `limit` bytes of the file, none before byte `start` of the file with that `inode`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(writing, path, user_id, limit, (start, inode))
    os.close(writing)
    try:
        answer = _collect(reading, limit + 4096, time.monotonic() + timeout)
    finally:
        os.close(reading)
        _end(child)
    if answer is None:
        return _gap(path, f"no answer within {timeout:g} s")
    if not answer.startswith(b"+") or len(answer) < 1 + _HEADER.size:
        return _gap(path, answer[1:].decode(errors="replace") or "the reader died")
    found_inode, size, offset = _HEADER.unpack_from(answer, 1)
    return LogTail(path, answer[1 + _HEADER.size :], offset, size, found_inode)


def _gap(path: str, why: str) -> Gap:
    return Gap(source=Source.JOB_LOG, what=path, why=why)


def _child(writing: int, path: str, user_id: int, limit: int, since: tuple[int, int]) -> None:
    """Reads and answers `+header data` or `-why`, then ends without running anything of the parent's."""
    answer = b"-the reader failed"
    try:
        # What we inherited goes first: a child that hangs in the kernel must not keep the worker's lock.
        os.closerange(3, writing)
        os.closerange(writing + 1, MAX_DESCRIPTORS)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _become(user_id)
        answer = b"+" + _read(path, user_id, limit, *since)
    except _Refused as refused:
        answer = b"-" + str(refused).encode(errors="replace")
    except OSError as error:
        answer = f"-{errno.errorcode.get(error.errno or 0, 'OSError')}: {error.strerror}".encode()
    except (KeyError, ValueError) as error:
        answer = f"-{error}".encode(errors="replace")
    finally:
        with contextlib.suppress(OSError):
            while answer:
                answer = answer[os.write(writing, answer) :]
        os._exit(0)


def _become(user_id: int) -> None:
    """Give up root for good; a no-op for any other user, who has nothing to give up."""
    if os.geteuid() != 0 or user_id == 0:
        return
    try:
        entry = pwd.getpwuid(user_id)
    except KeyError:
        raise _Refused(f"uid {user_id} has no account here") from None
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(user_id, user_id, user_id)


def _read(path: str, user_id: int, limit: int, start: int, inode: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise _Refused(_NOT_REGULAR)
    if status.st_uid != user_id:
        raise _Refused(_NOT_OWNER.format(found=status.st_uid, wanted=user_id))
    same = status.st_ino == inode and status.st_size >= start
    offset = max(status.st_size - limit, start if same else 0, 0)
    data = bytearray()
    while len(data) < limit and (block := os.pread(handle, min(1 << 20, limit - len(data)), offset + len(data))):
        data += block
    return _HEADER.pack(status.st_ino, status.st_size, offset) + bytes(data)


def _collect(reading: int, limit: int, deadline: float) -> bytes | None:
    """All that the child says until it closes its end; None where the time is over first."""
    answer = bytearray()
    while len(answer) <= limit:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        block = os.read(reading, 1 << 20)
        if not block:
            break
        answer += block
    return bytes(answer)


def _end(child: int) -> None:
    """Kill the child; one that the kernel cannot end (a dead file system) is left behind, not waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    for _ in range(50):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
                continue
        return
