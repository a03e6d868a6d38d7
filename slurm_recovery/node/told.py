"""RunDir/JOBID: what the Prolog leaves on the node for TaskProlog, which runs as the job's user.

Owns that file: a line of JSON (slurm_recovery/resume.py's form), then one line NAME=VALUE for each variable that the
job is to be given, ready to be printed, and LOOK where there may be a checkpoint to look for. RunDir is root's, so that
nobody can put another file there; the file is the user's, who alone can read it. Runs as root; a value that could pass
for another line is left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Mapping, Sequence

from slurm_recovery.resume import Refused, Resume, encode, write_file

FOLDER_MODE = 0o711
FILE_MODE = 0o400
MOST_VALUE = 32 << 10  # bytes; the kernel takes 128 KiB for one variable, execve(2)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def merge(job_id: int, restart_count: int, folder: str, written: Resume | None) -> Resume:
    """What the coming attempt is told. What the controller wrote for another attempt holds only where it lasts.

    `folder` is what the job says; the controller's word goes before it, since it saw more of the job.
    """
    attempt = restart_count + 1
    if written is None:
        return Resume(job_id, attempt, folder=folder)
    if written.attempt != attempt:
        return Resume(job_id, attempt, folder=folder or written.folder, refused=written.refused, tasks=written.tasks)
    return written._replace(folder=written.folder or folder)


def assignments(resume: Resume) -> list[bytes]:
    """NAME=VALUE for all that is known; of a first attempt only where it can start from."""
    values: list[tuple[str, str]] = [("JOB_ID", str(resume.job_id))]
    if resume.attempt > 1:
        values.append(("ATTEMPT", str(resume.attempt)))
        values += [("REASON", resume.reason), ("EXCLUDED", ",".join(resume.excluded))]
    tasks = [b"%s=%d" % (name, resume.tasks) for name in (b"SLURM_NTASKS", b"SLURM_NPROCS") if resume.tasks]
    return assign(values) + starting_point(resume.checkpoint, resume.step) + tasks


def starting_point(checkpoint: str, step: int | None) -> list[bytes]:
    """A step without its checkpoint says nothing."""
    where = assign([("CHECKPOINT", checkpoint)])
    return where + assign([("STEP", str(step))]) if where and step is not None else where


def assign(values: Sequence[tuple[str, str]]) -> list[bytes]:
    lines = []
    for name, text in values:
        value = os.fsencode(text) if _is_encodable(text) else b"\n"
        if value and len(value) <= MOST_VALUE and not _CONTROL.search(value):
            lines.append(b"SLURM_RECOVERY_" + name.encode("ascii") + b"=" + value)
    return lines


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def write_told(run_dir: str, resume: Resume, user_id: int) -> None:
    """Leave the file. Raises Refused, OSError."""
    look = [b"LOOK"] if resume.folder or resume.checkpoint else []
    data = encode(resume) + b"".join(line + b"\n" for line in [*assignments(resume), *look])
    folder = _open(run_dir)
    try:
        half = f".{resume.job_id}.{os.getpid()}.tmp"
        write_file(folder, str(resume.job_id), data, half, FILE_MODE, lambda handle: os.fchown(handle, user_id, -1))
    finally:
        os.close(folder)


def remove_told(run_dir: str, job_id: int) -> None:
    """Take away what an attempt left that ended without its Epilog."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{run_dir}/{job_id}")


def _open(run_dir: str) -> int:
    """RunDir, made where it is missing; refused where it is not root's alone."""
    _make_way(os.path.dirname(run_dir))
    with contextlib.suppress(FileExistsError):
        os.mkdir(run_dir, 0o700)
    try:
        folder = os.open(run_dir, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused(f"RunDir={run_dir} is not a folder; hint: remove it") from None
        raise
    status = os.fstat(folder)
    if status.st_uid != 0 or status.st_mode & 0o022:
        os.close(folder)
        raise Refused(f"RunDir={run_dir} can be written by others than root; hint: chown root, chmod 0711")
    os.fchmod(folder, FOLDER_MODE)
    return folder


def _make_way(folder: str) -> None:
    """Folders above, for any user to pass through, whatever the umask; one that is there stays as it is."""
    if os.path.isdir(folder):
        return
    _make_way(os.path.dirname(folder))
    with contextlib.suppress(FileExistsError):  # another slurmd of this host
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755)


def number(environment: Mapping[str, str], name: str) -> int:
    """A variable that Slurm sets to a number; 0 where it did not."""
    text = environment.get(name, "")
    return int(text) if len(text) <= 10 and text.isascii() and text.isdigit() else 0
