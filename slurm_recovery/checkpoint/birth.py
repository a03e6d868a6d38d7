"""When a file or folder was made: statx(2), which Python's os.stat does not ask on Linux. None where nobody knows."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_STATX_DONT_SYNC = -100, 0x100, 0x4000
_STATX_BTIME = 0x800
_SIZE = 256  # struct statx of linux/stat.h: stx_mask at 0, stx_btime at 80


@cache
def _statx() -> Callable[..., int] | None:
    """The C library's: since glibc 2.28 (2018)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    return call


def born(path: str) -> float | None:
    """Seconds since the epoch. NFS, and old file systems, do not tell."""
    call = _statx()
    answer = ctypes.create_string_buffer(_SIZE)
    flags = _AT_SYMLINK_NOFOLLOW | _AT_STATX_DONT_SYNC
    if call is None or call(_AT_FDCWD, os.fsencode(path), flags, _STATX_BTIME, answer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", answer.raw)
    seconds, nanoseconds = struct.unpack_from("=qI", answer.raw, 80)
    return seconds + nanoseconds / 1e9 if mask & _STATX_BTIME and seconds > 0 else None
