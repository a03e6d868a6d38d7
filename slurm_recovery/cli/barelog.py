"""Reads log files that somebody names on the command line: any file that the caller may read, and `-`.

Unlike evidence/joblog.py it runs with the caller's own rights on paths that the caller chose, so nothing is
refused; only the amount kept is bounded.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slurm_recovery.cli.common import CommandError
from slurm_recovery.records import Source

BLOCK = 1 << 20
STDIN = "-"
_KERNEL_NAME = re.compile(r"(?:dmesg|kern|kernel)(?:[.-](?P<node>.{1,200}?))??(?:\.log|\.txt)?(?:\.\d{1,3})?")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BareLog(NamedTuple):
    """The end of a log; `skipped` bytes before it were not read, and `node` is the host it belongs to, if known."""

    path: str
    data: bytes
    skipped: int
    source: Source
    node: str | None


def read_log(path: str, limit: int) -> BareLog:
    """The last `limit` bytes. `dmesg.NODE.log` and `kern.log` are kernel logs by their names."""
    source, node = _kind(Path(path).name)
    try:
        if path == STDIN:
            data, skipped = _last(sys.stdin.buffer, limit)
        else:
            with open(path, "rb") as file:
                data, skipped = _end(file, limit)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    return BareLog("stdin" if path == STDIN else path, data, skipped, source, node)


def _kind(name: str) -> tuple[Source, str | None]:
    match = _KERNEL_NAME.fullmatch(name)
    if match is None:
        return Source.JOB_LOG, None
    node = match["node"]
    return Source.KERNEL_LOG, node if node and _NODE_NAME.fullmatch(node) else None


def _end(file: BinaryIO, limit: int) -> tuple[bytes, int]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return _last(file, limit)
    skipped = max(0, status.st_size - limit)
    file.seek(skipped)
    return file.read(limit), skipped


def _last(stream: BinaryIO, limit: int) -> tuple[bytes, int]:
    """The last bytes of something that has no length: all of it is read, little of it kept."""
    kept, skipped = bytearray(), 0
    while block := stream.read(BLOCK):
        kept += block
        if (excess := len(kept) - limit) > 0:
            del kept[:excess]
            skipped += excess
    return bytes(kept), skipped
