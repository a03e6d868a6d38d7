"""Reads log files that somebody names on the command line: any file that the caller may read, and `-`.

Unlike evidence/joblog.py it runs with the caller's own rights on paths that the caller chose, so nothing is
refused and all is read; only what is unpacked from a packed file is bounded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from slurm_recovery.cli.common import CommandError
from slurm_recovery.config.settings import Settings
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature
from slurm_recovery.evidence.pieces import Unpacked, ahead, read_pieces, side_by_side
from slurm_recovery.evidence.trace_dumps import Traces, read_traces
from slurm_recovery.records import Attempt, Evidence, Source

STDIN = "-"
_KERNEL_NAME = re.compile(r"(?:dmesg|kern|kernel)(?:[.-](?P<node>.{1,200}?))??(?:\.log|\.txt)?(?:\.\d{1,3})?(?:\.gz)?")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BareLog(NamedTuple):
    """What a log says. `trouble` is what kept part of it from being read, "" if nothing did."""

    evidence: tuple[Evidence, ...]
    trouble: str


def scan_log(path: str, signatures: tuple[Signature, ...], most: int) -> BareLog:
    """Scans one log. `dmesg.NODE.log` and `kern.log` are kernel logs by their names; gzip is unpacked to `most` bytes.

    Raises CommandError where the file cannot be read.
    """
    source, node = _kind(Path(path).name)
    try:
        with sys.stdin.buffer if path == STDIN else open(path, "rb", buffering=0) as stream:
            text = Unpacked(read_pieces(stream), most)
            name = "stdin" if path == STDIN else path
            found = scan(ahead(text), signatures=signatures, source=source, path=name, node=node, each=side_by_side)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    return BareLog(found, f"{path}: {text.trouble}" if text.trouble else "")


def dumps_beside(paths: Iterable[str], attempt: Attempt, settings: Settings) -> Traces:
    """What PyTorch's flight recorder left beside the first log that is a file, of that file's owner."""
    for path in map(os.path.abspath, paths):
        if os.path.isfile(path):
            owner = attempt.model_copy(update={"user_id": os.stat(path).st_uid})
            return read_traces(owner, [path], most=settings.trace_bytes, timeout=settings.trace_timeout)
    return Traces()


def _kind(name: str) -> tuple[Source, str | None]:
    match = _KERNEL_NAME.fullmatch(name)
    if match is None:
        return Source.JOB_LOG, None
    node = match["node"]
    return Source.KERNEL_LOG, node if node and _NODE_NAME.fullmatch(node) else None
