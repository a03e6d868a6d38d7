"""The beginning and the end of a job's own logs, as the batch node sees them.

Owns where the batch step's output is, as far as a node is told, and reads it. `read_logs` is run as the job's user, in
a process that gave root up for good and that is given up when its time is over: path, file and file system are the
user's choice. Only a regular file that is the user's is read, opened without following a link or waiting for a writer.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SOURCE = "job_log"  # records.Source.JOB_LOG
HEAD = 64 << 10  # of a log that is too long: a cascade's first words
MOST_ENTRIES = 10_000
MOST_FOLDERS = 64
MOST_PARTS = 64
RECENT = 3600.0  # where the start is not told: a log that was not written to for so long is not this attempt's
SKEW = 60.0  # between the clocks of controller, node and file server
MOST_PATTERN = 4096

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_SPANS = re.compile(r"\[(\d{1,9})[\d,-]*+\]")
_SYMBOL = re.compile(r"%(\d{0,2})([%AaJjNnstux])")
_ANY = "\0"  # stands for what a node is not told; no path has it
_UNTOLD = "Aax"  # array job, array task, job name: node hooks have no variable for them


class Job(NamedTuple):
    """What a node hook knows of its job. `start` is None where Slurm does not tell it."""

    job_id: str
    user_id: int
    user: str
    node: str
    work_dir: str
    stdout: str
    stderr: str
    start: float | None


def batch_node(nodelist: str) -> str:
    """The first host of a host list, which runs the batch script; "" where it is none."""
    first = _SPANS.sub(r"\1", nodelist[:65536]).partition(",")[0]
    return first if _NAME.fullmatch(first) else ""


def job_of(environment: Mapping[str, str], start: float | None) -> Job | str:
    """The job of a node hook's environment; or why its logs cannot be read."""
    job_id, uid = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_UID", "")
    if not re.fullmatch(r"[0-9]{1,10}", job_id) or not re.fullmatch(r"[0-9]{1,10}", uid):
        return "Slurm did not tell the job's id and user"
    node = batch_node(environment.get("SLURM_NODELIST", ""))
    if not node:
        return "Slurm did not tell the job's nodes: which is the batch node is not known"
    return Job(
        job_id=job_id,
        user_id=int(uid),
        user=environment.get("SLURM_JOB_USER", ""),
        node=node,
        work_dir=environment.get("SLURM_JOB_WORK_DIR", ""),
        stdout=environment.get("SLURM_JOB_STDOUT", ""),
        stderr=environment.get("SLURM_JOB_STDERR", ""),
        start=start,
    )


def patterns(job: Job) -> tuple[str, ...]:
    """Paths of standard output and error, with `_ANY` where a name is not told. sbatch(1), "filename pattern"."""
    stdout = expand(job.stdout, job) if job.stdout else expand("slurm-%j.out", job)
    return tuple(dict.fromkeys([stdout, expand(job.stderr, job)] if job.stderr else [stdout]))


def expand(pattern: str, job: Job) -> str:
    """As evidence/paths.py does on the controller, where all is told."""
    values = {
        "%": "%",
        "J": job.job_id,
        "j": job.job_id,
        "N": job.node.partition(".")[0],
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": job.user,
        **dict.fromkeys(_UNTOLD, _ANY),
    }

    def value(match: re.Match[str]) -> str:
        text = values[match[2]]
        return text.zfill(min(int(match[1]), 10)) if match[1] and text.isdigit() else text

    pattern = pattern[:MOST_PATTERN].replace(_ANY, "")
    # A backslash switches the symbols off and is itself removed.
    path = pattern.replace("\\", "") if "\\" in pattern else _SYMBOL.sub(value, pattern)
    return os.path.join(job.work_dir or "/", path)


def read_logs(job: Job, most: int) -> dict[str, list[dict[str, Any]]]:
    """`logs` in the form of node_report.Log, at most HEAD and `most` bytes of each; and `gaps`. As the job's user."""
    logs: list[dict[str, Any]] = []
    gaps: list[dict[str, str]] = []
    for pattern in patterns(job):
        try:
            path = _find(pattern, job)
            logs += _read(path, job.user_id, most)
        except _Unreadable as refused:
            gaps.append(gap(pattern, str(refused)))
        except OSError as error:
            gaps.append(gap(pattern, f"{errno.errorcode.get(error.errno or 0, 'OSError')}: {error.strerror}"))
        except ValueError:
            gaps.append(gap(pattern, "no path"))
    return {"logs": logs, "gaps": gaps}


def gap(pattern: str, why: str) -> dict[str, str]:
    return {"source": SOURCE, "what": printable(pattern.replace(_ANY, "*"))[:4096], "why": why[:500]}


def printable(text: str) -> str:
    """A user's text that every reader of JSON takes."""
    return text.encode(errors="backslashreplace").decode()


class _Unreadable(Exception):
    """There is no log that may be read; why."""


def _find(pattern: str, job: Job) -> str:
    """The one file that fits the pattern."""
    if _ANY not in pattern:
        if job.stdout or _is_there(pattern):
            return pattern
        pattern = expand("slurm-%A_%a.out", job)  # nothing was asked for: an array's task has another default
    since = time.time() - RECENT if job.start is None else job.start - SKEW
    fitting = [path for path in _fitting(pattern) if _is_of(path, job.user_id, since)]
    if len(fitting) != 1:
        raise _Unreadable(f"a node is not told the log's whole name, and {len(fitting)} files fit")
    return fitting[0]


def _fitting(pattern: str) -> list[str]:
    """Paths that fit, where `_ANY` stands for any text without a slash."""
    parts = pattern.split("/")
    if len(parts) > MOST_PARTS:
        raise _Unreadable("no path that can be searched")
    found, room = [parts[0]], MOST_ENTRIES
    for part in parts[1:]:
        if _ANY not in part:
            found = [f"{folder}/{part}" for folder in found]
            continue
        if len(found) > MOST_FOLDERS:
            raise _Unreadable(f"a node is not told the log's whole name, and more than {MOST_FOLDERS} folders fit")
        texts, deeper = part.split(_ANY), []
        for folder in found:
            for name in _names(folder or "/", alone=len(found) == 1):
                room -= 1
                if room < 0:
                    raise _Unreadable(
                        f"a node is not told the log's whole name, and its folder has more than {MOST_ENTRIES} files"
                    )
                if _fits(name, texts):
                    deeper.append(f"{folder}/{name}")
        found = deeper
    return found


def _fits(name: str, texts: list[str]) -> bool:
    """Whether the name is these texts with at least one character between each two."""
    first, *middle, last = texts
    if not name.startswith(first):
        return False
    at = len(first)
    for text in middle:
        at = name.find(text, at + 1)
        if at < 0:
            return False
        at += len(text)
    return name.endswith(last) and len(name) - len(last) > at


def _names(folder: str, alone: bool) -> Iterator[str]:
    """Of several folders those that cannot be read are passed over."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name
    except (NotADirectoryError, FileNotFoundError, PermissionError):
        if alone:
            raise


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _is_of(path: str, user_id: int, since: float) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == user_id and status.st_mtime >= since


def _read(path: str, user_id: int, most: int) -> list[dict[str, Any]]:
    """The whole log, or its beginning and its end."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _Unreadable("not a regular file")
        if status.st_uid != user_id:
            raise _Unreadable(f"belongs to uid {status.st_uid}, not to the job's uid {user_id}")
        size = status.st_size
        pieces = [(0, size)] if size <= HEAD + most else [(0, HEAD), (size - most, most)]
        return [
            {
                "path": printable(path)[:4096],
                "size": size,
                "inode": status.st_ino,
                "offset": offset,
                "data": base64.b64encode(_bytes(handle, offset, length)).decode("ascii"),
            }
            for offset, length in pieces
        ]
    finally:
        os.close(handle)


def _bytes(handle: int, offset: int, length: int) -> bytes:
    read = bytearray()
    while len(read) < length and (block := os.pread(handle, length - len(read), offset + len(read))):
        read += block
    return bytes(read)
