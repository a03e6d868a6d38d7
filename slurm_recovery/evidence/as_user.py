"""Runs something as a job's user, in a child that is given up when its time is over.

What the child touches is the user's: paths that hang, files that are no files. So it gives root up for good
before the first of them, inherits nothing but its way to answer, and nobody waits for it beyond the deadline.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import select
import signal
import time
from collections.abc import Callable
from types import TracebackType

MAX_DESCRIPTORS = 4096


class Refused(Exception):
    """What was asked for is there and must not be read."""


class TooLate(Exception):
    """The child has not answered in time."""


Write = Callable[[bytes], None]


class Child:
    """`with Child(work, user_id, deadline) as child:` work writes, read() reads; the child ends with the block.

    `deadline` is a time of time.monotonic(). What `work` raises is answered as `-why`, for `failure`.
    """

    def __init__(self, work: Callable[[Write], None], user_id: int, deadline: float) -> None:
        self._deadline = deadline
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reading)
            _run(work, user_id, writing)
        os.close(writing)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._reading)
        _end(self._pid)

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer where the child has ended. Raises TooLate."""
        answer = bytearray()
        while len(answer) < size:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, self._deadline - time.monotonic()))
            if not ready:
                raise TooLate
            block = os.read(self._reading, min(1 << 20, size - len(answer)))
            if not block:
                break
            answer += block
        return bytes(answer)


def _run(work: Callable[[Write], None], user_id: int, writing: int) -> None:
    """Does the work, then ends without running anything of the parent's."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(writing, view) :]

    why = "the reader failed"
    try:
        # What we inherited goes first: a child that hangs in the kernel must not keep the worker's lock.
        os.closerange(3, writing)
        os.closerange(writing + 1, MAX_DESCRIPTORS)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _become(user_id)
        work(write)
        why = ""
    except Refused as refused:
        why = str(refused)
    except OSError as error:
        why = f"{errno.errorcode.get(error.errno or 0, 'OSError')}: {error.strerror}"
    except (KeyError, ValueError, MemoryError, RecursionError) as error:
        why = str(error) or type(error).__name__
    finally:
        with contextlib.suppress(OSError):
            if why:
                write(b"-" + why.encode(errors="replace"))
        os._exit(0)


def _become(user_id: int) -> None:
    """Give up root for good; a no-op for any other user, who has nothing to give up."""
    if os.geteuid() != 0 or user_id == 0:
        return
    try:
        entry = pwd.getpwuid(user_id)
    except KeyError:
        raise Refused(f"uid {user_id} has no account here") from None
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(user_id, user_id, user_id)


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
