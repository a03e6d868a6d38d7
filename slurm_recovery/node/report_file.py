"""A report's file, EvidenceDir/NODE/NAME: written whole or not at all, within a bound, and the old ones taken away.

EvidenceDir is a shared folder, and what lies in it counts as root's word only because nobody else can write there. So
folders are opened without following a link, and one that is not root's alone is refused. Nothing that was there is
touched before the new file is whole. A file system that hangs is for the hook to end.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any

from slurm_recovery.resume import write_file

HEALTH = "health.json"
MOST_BYTES = 8 << 20  # of one report
MOST_FILES = 512  # of one node
MOST_ENTRIES = 20_000
STALE = 600.0  # seconds after which a half-written file is nobody's
FOLDER_MODE = 0o2750  # files get the folder's group, SlurmUser's, which may read them
FILE_MODE = 0o640
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_REPORT = re.compile(r"(?:gate\.)?\d{1,10}\.\d{1,20}\.json|health\.json")
_HALF = re.compile(r"\.[A-Za-z0-9.]{1,80}\.\d{1,10}\.tmp")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The folder is there and must not be used: one line with a hint."""


@contextlib.contextmanager
def evidence_folder(evidence_dir: str, name: str) -> Iterator[int]:
    """The descriptor of a folder below EvidenceDir, which is made where it is missing. Raises Refused, OSError."""
    above = os.open(evidence_dir, _FOLDER)
    try:
        group = _roots_own(above, evidence_dir).st_gid
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
        folder = os.open(name, _FOLDER, dir_fd=above)
    finally:
        os.close(above)
    try:
        status = _roots_own(folder, f"{evidence_dir}/{name}")
        if status.st_gid != group:
            os.fchown(folder, 0, group)
        if stat.S_IMODE(status.st_mode) != FOLDER_MODE or status.st_gid != group:  # chown takes the setgid bit away
            os.fchmod(folder, FOLDER_MODE)
        yield folder
    finally:
        os.close(folder)


def _roots_own(folder: int, path: str) -> os.stat_result:
    status = os.fstat(folder)
    if status.st_uid != 0:
        raise Refused(f"{path} belongs to uid {status.st_uid}; hint: it must be root's, and root root (no_root_squash)")
    if status.st_mode & 0o022:
        raise Refused(f"{path} can be written by others than root; hint: chmod 2750")
    return status


def is_node(name: str) -> bool:
    return bool(_NODE.fullmatch(name))


def write_report(evidence_dir: str, report: dict[str, Any], name: str, most: int) -> None:
    """Write the report as `name` into the node's folder, then clear that folder down to `most` bytes.

    Raises Refused, OSError.
    """
    node = report["node"]
    if not is_node(node) or not _REPORT.fullmatch(name):
        raise Refused(f"no name for a report: {node[:80]!r} {name[:80]!r}")
    data = fit(report)
    with evidence_folder(evidence_dir, node) as folder:
        _remove_half_written(folder)
        _write(folder, name, data)
        remove_old(folder, name, most)


def _write(folder: int, name: str, data: bytes) -> None:
    write_file(folder, name, data, f".{name}.{os.getpid()}.tmp", FILE_MODE, _must_be_roots)
    with contextlib.suppress(OSError):  # the name, too, shall outlive a crash of the node
        os.fsync(folder)


def _must_be_roots(handle: int) -> None:
    if (owner := os.fstat(handle).st_uid) != 0:
        raise Refused(f"what root writes there belongs to uid {owner}; hint: no_root_squash")


def _entries(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Our files in the folder. It is root's own, so there is little else; what is not ours stays."""
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_ENTRIES:
                return
            if _REPORT.fullmatch(entry.name) or _HALF.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield entry.name, status


def _remove_half_written(folder: int) -> None:
    with contextlib.suppress(OSError):
        for name, status in list(_entries(folder)):
            if name.startswith(".") and status.st_mtime < time.time() - STALE:
                os.unlink(name, dir_fd=folder)


def remove_old(folder: int, newest: str, most: int) -> None:
    """The oldest reports beyond `most` bytes or MOST_FILES. The newest and the last health check stay."""
    with contextlib.suppress(OSError):
        reports = [(status.st_mtime_ns, name, status.st_size) for name, status in _entries(folder) if name[0] != "."]
        size, files = sum(one[2] for one in reports), len(reports)
        for _, name, length in sorted(reports):
            if size <= most and files <= MOST_FILES:
                return
            if name not in (newest, HEALTH):
                os.unlink(name, dir_fd=folder)
                size, files = size - length, files - 1


def fit(report: dict[str, Any]) -> bytes:
    """The report as JSON of at most MOST_BYTES: the logs' beginnings go first, then the kernel log's."""
    data = _json(report)
    if len(data) <= MOST_BYTES:
        return data
    report = {**report, "gaps": [*report["gaps"], _gap(f"more than {MOST_BYTES} bytes: logs were cut")]}
    room = MOST_BYTES - len(_json({**report, "logs": [{**log, "data": ""} for log in report["logs"]]}))
    share = max(0, room // max(1, len(report["logs"])) - 32)  # offsets get more digits
    report["logs"] = [_last(log, share // 4 * 3) for log in report["logs"]]
    data = _json(report)
    if len(data) <= MOST_BYTES:
        return data
    report["gaps"] = [*report["gaps"], _gap("the kernel log was cut at its beginning, too")]
    keep = max(0, MOST_BYTES - len(_json({**report, "kernel": ""})))
    report["kernel"] = report["kernel"][max(0, len(report["kernel"]) - keep // 2) :].partition("\n")[2]
    return _json(report)


def _last(log: dict[str, Any], length: int) -> dict[str, Any]:
    data = base64.b64decode(log["data"])
    kept = data[max(0, len(data) - length) :]
    return {**log, "offset": log["offset"] + len(data) - len(kept), "data": base64.b64encode(kept).decode("ascii")}


def _json(report: dict[str, Any]) -> bytes:
    return json.dumps(report, separators=(",", ":"), allow_nan=False).encode("ascii")


def _gap(why: str) -> dict[str, str]:
    return {"source": "node", "what": "report", "why": why}
