"""Reads what compute nodes wrote of themselves into EvidenceDir, as far as only root can have written it.

Owns which files are opened, and why one is refused: the folder, the node's folder in it and the file must each be
root's, and nobody else's to write; nothing is reached through a link. Reads within bounds of names, bytes and time, in
a child that is given up when the file system hangs; what it has sent by then counts. What a report means is known in
detect/readings.py.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from pydantic import ValidationError

from slurm_recovery.evidence.as_user import Child, Refused, TooLate, Write
from slurm_recovery.node_report import FORMAT, Kind, Log, NodeReport
from slurm_recovery.records import Attempt, Gap, Source

MOST_REPORT = 16 << 20  # bytes of one report
MOST_LISTED = 4096  # names in one node's folder
MOST_NODES = 65536  # folders in EvidenceDir, where all nodes are asked for
MOST_TRIED = 16  # reports of one job on one node, the newest first
MOST_GAPS = 64
MOST_NAMED = 4  # nodes of one sentence
MOST_PIECES = 8  # logs of one report
READERS = 8  # threads: over a network most of the time goes into waiting
AFTER_END = 15 * 60.0  # an epilog that begins later tells of another time
CLOCKS = 300.0  # munged refuses messages whose clocks differ by more: munge(7)
SAME_START = 1.0
HEALTH = "health.json"

_NAME = re.compile(r"(\d{1,10})\.(\d{1,20})\.json", re.ASCII)
_FRAME = struct.Struct("!cdHHQ")  # what it is, the file's mtime, the lengths of the node's name, the path and the data
_REPORT, _TROUBLE, _DONE, _END = b"+", b"~", b".", b"!"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOBODY = 65534


class Reports(NamedTuple):
    """The newest report of each node that tells of the attempt, what could not be read, and who told nothing."""

    reports: tuple[NodeReport, ...] = ()
    gaps: tuple[Gap, ...] = ()
    missing: tuple[str, ...] = ()


class Health(NamedTuple):
    """Health reports that changed, and `seen` for the next reading: when each node's file was last written."""

    reports: tuple[NodeReport, ...] = ()
    gaps: tuple[Gap, ...] = ()
    seen: Mapping[str, float] = {}


class LogPiece(NamedTuple):
    """A part of a job's log that a node read as the job's user: `data` stands `offset` bytes into the file."""

    path: str
    size: int
    inode: int
    offset: int
    data: bytes


def read_reports(
    evidence_dir: Path,
    attempt: Attempt,
    nodes: Sequence[str],
    *,
    job_ids: Collection[int] = (),
    trusted_uid: int = 0,
    most: int,
    timeout: float,
) -> Reports:
    """What the nodes wrote at the end of the attempt: at most `most` bytes in all, within `timeout` seconds.

    `job_ids`: the ids of a heterogeneous job's components, which their nodes know instead of the job's.
    """
    ids = frozenset({attempt.job_id, *job_ids, *((attempt.het_job_id,) if attempt.het_job_id else ())})
    wanted = tuple(dict.fromkeys(nodes))
    if not wanted:
        return Reports()

    def of_node(reader: _Reader, node: str) -> Iterator[bytes]:
        return reader.epilog(node, ids, attempt)

    read = _read(evidence_dir, wanted, of_node, trusted_uid, most, timeout)
    order = {node: number for number, node in enumerate(wanted)}
    reports = sorted(read.reports, key=lambda report: order[report.node])
    missing = tuple(node for node in wanted if node not in {report.node for report in reports})
    silent = [node for node in missing if node in read.done and node not in read.troubled]
    gaps = [*read.gaps, *(_gap(f"{evidence_dir}/{node}", f"no report from {node}") for node in silent)]
    return Reports(tuple(reports), _bounded(gaps, evidence_dir), missing)


def read_health(
    evidence_dir: Path,
    nodes: Sequence[str] | None,
    seen: Mapping[str, float],
    *,
    trusted_uid: int = 0,
    most: int,
    timeout: float,
) -> Health:
    """The health reports that were written anew since `seen`; of all nodes that have a folder where none are named."""

    def of_node(reader: _Reader, node: str) -> Iterator[bytes]:
        return reader.health(node, seen.get(node))

    wanted = None if nodes is None else tuple(dict.fromkeys(nodes))
    read = _read(evidence_dir, wanted, of_node, trusted_uid, most, timeout)
    reports = tuple(sorted(read.reports, key=lambda report: report.node))
    return Health(reports, _bounded(read.gaps, evidence_dir), {**seen, **read.written})


def log_pieces(report: NodeReport) -> tuple[LogPiece | Gap, ...]:
    """The parts of the job's log that the report holds. They are the job's user's word."""
    return tuple(_piece(report.node, log) for log in report.logs[:MOST_PIECES])


def _piece(node: str, log: Log) -> LogPiece | Gap:
    try:
        data = base64.b64decode(log.data, validate=True)
    except (binascii.Error, ValueError):
        return Gap(source=Source.JOB_LOG, what=_shown(log.path), why=_shown(f"what {node} sent of it is not base64"))
    return LogPiece(log.path, log.size, log.inode, log.offset, data)


# --- the parent's side


class _Read:
    """What the child has sent."""

    def __init__(self) -> None:
        self.reports: list[NodeReport] = []
        self.gaps: list[Gap] = []
        self.done: set[str] = set()
        self.troubled: set[str] = set()
        self.written: dict[str, float] = {}


class _Died(Exception):
    """The child ended before its work did, and why."""


class _Frame(NamedTuple):
    kind: bytes
    written: float
    node: str
    path: str
    data: bytes


_OfNode = Callable[["_Reader", str], Iterator[bytes]]


def _read(
    evidence_dir: Path, nodes: Sequence[str] | None, of_node: _OfNode, trusted_uid: int, most: int, timeout: float
) -> _Read:
    read = _Read()

    def work(write: Write) -> None:
        _Reader(evidence_dir, trusted_uid, most).run(nodes, of_node, write)

    try:
        with Child(work, os.geteuid(), time.monotonic() + timeout) as child:
            for frame in _frames(child):
                _take(read, frame)
    except (_Died, TooLate, OSError) as error:
        why = f"no answer within {timeout:g} s" if isinstance(error, TooLate) else str(error)
        left = [node for node in nodes or () if node not in read.done]
        read.gaps.append(_gap(str(evidence_dir), f"{why}{f': nothing read of {_some(left)}' if left else ''}"))
    return read


def _frames(child: Child) -> Iterator[_Frame]:
    """What the child sends, to its end. Raises TooLate and _Died."""
    while head := child.read(_FRAME.size):
        if head.startswith(b"-"):
            raise _Died((head[1:] + child.read(1000)).decode(errors="replace"))
        if len(head) < _FRAME.size:
            raise _Died("the reader died")
        kind, written, *lengths = _FRAME.unpack(head)
        parts = [child.read(length) for length in lengths]
        if [len(part) for part in parts] != lengths:
            raise _Died("the reader died")
        if kind == _END:
            return
        yield _Frame(kind, written, os.fsdecode(parts[0]), os.fsdecode(parts[1]), parts[2])
    raise _Died("the reader died")


def _take(read: _Read, frame: _Frame) -> None:
    if frame.kind == _DONE:
        read.done.add(frame.node)
        return
    if frame.written:
        read.written[frame.node] = frame.written
    if frame.kind == _REPORT:
        read.reports.append(NodeReport.model_validate_json(frame.data))  # the child has seen that it is one
    else:
        read.troubled.add(frame.node)
        read.gaps.append(_gap(frame.path, frame.data.decode(errors="replace")))


def _some(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - MOST_NAMED} more nodes" if len(nodes) > MOST_NAMED else ""
    return ", ".join(nodes[:MOST_NAMED]) + more


def _bounded(gaps: Sequence[Gap], evidence_dir: Path) -> tuple[Gap, ...]:
    gaps = sorted(gaps, key=lambda gap: gap.what)
    if len(gaps) <= MOST_GAPS:
        return tuple(gaps)
    return (*gaps[:MOST_GAPS], _gap(str(evidence_dir), f"and {len(gaps) - MOST_GAPS} more like these"))


def _gap(what: str, why: str) -> Gap:
    return Gap(source=Source.NODE, what=_shown(what), why=_shown(why))


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:500])


# --- the child's side


class _Reader:
    """Opens, checks and sends. A trouble of one node is told, and the others are read all the same."""

    def __init__(self, evidence_dir: Path, trusted_uid: int, most: int) -> None:
        self._dir, self._uid, self._most, self._left = evidence_dir, trusted_uid, most, most
        self._root = -1
        self._lock = Lock()

    def run(self, nodes: Iterable[str] | None, of_node: _OfNode, write: Write) -> None:
        self._root = self._folder(str(self._dir), None)
        with ThreadPoolExecutor(READERS) as pool:
            tasks = [pool.submit(self._one, node, of_node) for node in (self._nodes() if nodes is None else nodes)]
            for task in as_completed(tasks):
                write(task.result())
                tasks.remove(task)  # what was sent is not kept
        write(_frame(_END, ""))

    def _nodes(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return [entry.name for entry in islice(entries, MOST_NODES)]

    def _one(self, node: str, of_node: _OfNode) -> bytes:
        """All that is to be said of a node."""
        said = bytearray()
        try:
            if not node or "/" in node or "\0" in node or node in (".", ".."):
                raise Refused("no node's name")
            for frame in of_node(self, node):
                said += frame
        except (Refused, OSError) as error:
            said += _frame(_TROUBLE, node, f"{self._dir}/{node}", _why(error).encode())
        return bytes(said + _frame(_DONE, node))

    def epilog(self, node: str, ids: Collection[int], attempt: Attempt) -> Iterator[bytes]:
        """The newest report of the node that tells of this attempt."""
        try:
            folder = self._folder(node, self._root)
        except FileNotFoundError:
            return
        try:
            names, cut = _listed(folder, ids)
            if cut:
                why = f"more than {MOST_LISTED} files: not all were looked at"
                yield _frame(_TROUBLE, node, f"{self._dir}/{node}", why.encode())
            for name in names[:MOST_TRIED]:
                try:
                    data, _ = self._file(folder, name)
                    report = _parsed(data, node, Kind.EPILOG)
                    if report.job_id != int(name.partition(".")[0]):
                        raise Refused(f"tells of job {report.job_id}: refused")
                    if fits(report, attempt):
                        yield _frame(_REPORT, node, f"{self._dir}/{node}/{name}", data)
                        return
                except (Refused, OSError) as error:
                    yield _frame(_TROUBLE, node, f"{self._dir}/{node}/{name}", _why(error).encode())
        finally:
            os.close(folder)

    def health(self, node: str, seen: float | None) -> Iterator[bytes]:
        """The node's health report, unless it is the one that was seen."""
        try:
            written = os.stat(f"{node}/{HEALTH}", dir_fd=self._root, follow_symlinks=False).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return
        if written == seen:
            return
        path = f"{self._dir}/{node}/{HEALTH}"
        try:
            folder = self._folder(node, self._root)
            try:
                data, written = self._file(folder, HEALTH)
            finally:
                os.close(folder)
            _parsed(data, node, Kind.HEALTH)
            yield _frame(_REPORT, node, path, data, written)
        except (Refused, OSError) as error:
            yield _frame(_TROUBLE, node, path, _why(error).encode(), written)

    def _folder(self, name: str, within: int | None) -> int:
        try:
            handle = os.open(name, _FOLDER, dir_fd=within)
        except NotADirectoryError:
            raise Refused("a link, or no folder: refused") from None
        try:
            self._trust(os.fstat(handle))
        except Refused:
            os.close(handle)
            raise
        return handle

    def _file(self, folder: int, name: str) -> tuple[bytes, float]:
        """A report's bytes, and when they were written."""
        try:
            handle = os.open(name, _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise Refused("a link, or no regular file: refused") from None
            raise
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise Refused("not a regular file: refused")
            self._trust(status)
            self._spend(status.st_size)
            return _whole(handle, status.st_size), status.st_mtime
        finally:
            os.close(handle)

    def _trust(self, status: os.stat_result) -> None:
        """An access list widens the group's bits, so that they tell of it, too: acl(5)."""
        if status.st_uid != self._uid:
            owner = "root" if self._uid == 0 else f"uid {self._uid}"
            hint = "; is it exported with root_squash?" if status.st_uid == _NOBODY else ""
            raise Refused(f"belongs to uid {status.st_uid}, not to {owner}: refused{hint}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Refused(f"mode {stat.S_IMODE(status.st_mode):04o} lets others write it: refused")

    def _spend(self, size: int) -> None:
        if size > MOST_REPORT:
            raise Refused(f"{size} bytes: no more than {MOST_REPORT} of one report are read")
        with self._lock:
            if size > self._left:
                raise Refused(f"not read: reports of more than {self._most} bytes in all")
            self._left -= size


def _listed(folder: int, ids: Collection[int]) -> tuple[list[str], bool]:
    """The names of the job's reports, the newest first, and whether there was more than was looked at."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_LISTED + 1)]
    matches = [match for name in names[:MOST_LISTED] if (match := _NAME.fullmatch(name)) and int(match[1]) in ids]
    matches.sort(key=lambda match: int(match[2]), reverse=True)
    return [match[0] for match in matches], len(names) > MOST_LISTED


def _whole(handle: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (block := os.read(handle, size - len(data))):
        data += block
    return bytes(data)


def _parsed(data: bytes, node: str, kind: Kind) -> NodeReport:
    try:
        report = NodeReport.model_validate_json(data)
    except ValidationError as error:
        raise Refused(_no_report(error)) from None
    if report.node != node:
        raise Refused(f"tells of node {_shown(report.node)}: refused")
    if report.kind is not kind:
        raise Refused(f"a report of kind {report.kind}, not {kind}: refused")
    return report


def _no_report(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return f"half-written, or not JSON: {first['msg']}"
    if where == "format":
        return f"not of form {FORMAT}: is slurm_recovery of one release on node and controller?"
    return f"not a node's report: {where}: {first['msg']}"


def fits(report: NodeReport, attempt: Attempt) -> bool:
    """Whether the report tells of this attempt, not of another one of the job or of another job of that id."""
    counted = report.restart_count is not None
    if counted and report.restart_count != attempt.restart_count:
        return False
    if report.start_time is not None and attempt.start_time is not None:
        return abs(report.start_time - attempt.start_time) <= SAME_START
    # Where no count tells attempts apart, one may begin as soon as the one before has ended.
    slack = CLOCKS if counted else SAME_START
    after = attempt.start_time is None or report.time >= attempt.start_time - slack
    return after and (attempt.end_time is None or report.time <= attempt.end_time + AFTER_END)


def _why(error: Refused | OSError) -> str:
    if isinstance(error, OSError):
        return f"{errno.errorcode.get(error.errno or 0, 'OSError')}: {error.strerror}"
    return str(error)


def _frame(kind: bytes, node: str, path: str = "", data: bytes = b"", written: float = 0.0) -> bytes:
    name, where = os.fsencode(node)[:4096], os.fsencode(path)[:8192]
    return _FRAME.pack(kind, written, len(name), len(where), len(data)) + name + where + data
