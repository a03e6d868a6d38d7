"""What a restarted job is told: EvidenceDir/resume/JOBID, from the controller to the nodes on which the job starts.

Owns that file: its form, writing it and reading it. It is written by SlurmUser just before the job is released, read by
root on the nodes, and on from there, in the same form, as the job's user. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1
FOLDER = "resume"  # below EvidenceDir; SlurmUser's, mode 0700
MOST_BYTES = 1 << 20
MOST_PATH = 4096
MOST_NODES = 4096
MOST_REFUSED = 32
MOST_FILES = 1024  # from so many on, the old ones are taken away
MOST_ENTRIES = 20_000
KEEP = 30 * 86400.0  # seconds that a released job may wait for its start

_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_OURS = re.compile(r"[0-9]{1,10}|\.[0-9]{1,10}\.[0-9]{1,10}\.tmp")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The file is there and is not believed: one line with a hint."""


class Resume(NamedTuple):
    """`attempt` counts from 1 and is the number of the coming one. `refused`: checkpoints that did not load."""

    job_id: int
    attempt: int
    reason: str = ""  # why the attempt before failed
    excluded: tuple[str, ...] = ()
    folder: str = ""
    checkpoint: str = ""  # the one to start from, complete when the attempt before had ended
    step: int | None = None
    refused: tuple[str, ...] = ()
    tasks: int = 0  # of all its nodes, where they are fewer than it was submitted with: sbatch's SLURM_NTASKS is wrong


def write_resume(evidence_dir: Path, resume: Resume) -> None:
    """Whole or not at all. A folder that is a link is not written to. Raises OSError."""
    folder = os.open(evidence_dir / FOLDER, _FOLDER)
    try:
        write_file(folder, str(resume.job_id), encode(resume), f".{resume.job_id}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            _remove_old(folder)
    finally:
        os.close(folder)


def write_file(
    folder: int,
    name: str,
    data: bytes,
    half: str,
    mode: int = 0o600,
    ready: Callable[[int], None] = lambda handle: None,
) -> None:
    """Put a whole file in place of `name`. Raises OSError, and then leaves what was there.

    `ready` is given the descriptor of the whole file before it gets its name; what it raises is raised.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(half, dir_fd=folder)  # of a process of this number that died
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(half, flags, mode, dir_fd=folder)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fchmod(handle, mode)
            ready(handle)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(half, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(half, dir_fd=folder)
        raise


def remove_resume(evidence_dir: Path, job_id: int) -> None:
    """Take a job's file away; nothing where there is none. Raises OSError."""
    folder = os.open(evidence_dir / FOLDER, _FOLDER)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(str(job_id), dir_fd=folder)
    finally:
        os.close(folder)


def _remove_old(folder: int) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False)]
    if len(names) <= MOST_FILES:
        return
    before = time.time() - KEEP
    for name in filter(_OURS.fullmatch, names):
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < before:
                os.unlink(name, dir_fd=folder)


def read_resume(evidence_dir: str, job_id: int) -> Resume | None:
    """The job's file; None where there is none. Raises Refused where it cannot be SlurmUser's or is none; OSError."""
    path = f"{evidence_dir}/{FOLDER}"
    try:
        folder = os.open(path, _FOLDER)
    except FileNotFoundError:
        return None
    try:
        above = os.fstat(folder)
        if above.st_mode & 0o022:
            raise Refused(f"{path} can be written by others; hint: chmod 0700")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(str(job_id), flags, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Refused(f"{path}/{job_id} is a symbolic link") from None
            raise
    finally:
        os.close(folder)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        # Root made the folder and gave it to SlurmUser.
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, above.st_uid) or status.st_mode & 0o022:
            raise Refused(f"{path}/{job_id} is not a file that only SlurmUser can write")
        resume = decode(file.read(MOST_BYTES + 1))
    if resume is None or resume.job_id != job_id:
        raise Refused(f"{path}/{job_id} is not understood")
    return resume


def encode(resume: Resume) -> bytes:
    """One line of JSON. What is too long to be read is left out."""
    paths = [path for path in resume.refused if _is_path(path)][-MOST_REFUSED:]
    kept = resume._replace(
        excluded=resume.excluded if len(resume.excluded) <= MOST_NODES else (),
        folder=resume.folder if _is_path(resume.folder) else "",
        checkpoint=resume.checkpoint if _is_path(resume.checkpoint) else "",
        refused=tuple(paths),
    )
    return json.dumps({"format": FORMAT, **kept._asdict()}, separators=(",", ":")).encode("ascii") + b"\n"


def decode(data: bytes) -> Resume | None:
    """The inverse; None where any of it is not as it must be. Keys that a later release adds are left aside."""
    if len(data) > MOST_BYTES:
        return None
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        return None
    words = [told.get(name, "") for name in ("reason", "folder", "checkpoint")]
    lists = [told.get(name, []) for name in ("excluded", "refused")]
    numbers = [told.get("job_id"), told.get("attempt"), told.get("tasks", 0)]
    step = told.get("step")
    fits = (
        all(_is_number(number) for number in numbers)
        and (step is None or _is_number(step))
        and all(isinstance(word, str) for word in words)
        and all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in lists)
    )
    if not fits:
        return None
    (reason, folder, checkpoint), (excluded, refused) = words, lists
    if not all(_is_path(path) for path in (folder, checkpoint) if path) or not all(map(_is_path, refused)):
        return None
    if len(excluded) > MOST_NODES or len(refused) > MOST_REFUSED or not all(map(_NODE.fullmatch, excluded)):
        return None
    if reason and not _REASON.fullmatch(reason):
        return None
    lasting = (tuple(refused), numbers[2])
    return Resume(told["job_id"], told["attempt"], reason, tuple(excluded), folder, checkpoint, step, *lasting)


def _is_path(text: str) -> bool:
    return text.startswith("/") and len(text) < MOST_PATH and "\0" not in text


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
