"""Reading a job's log against all that a user can put at its path. Real files, real processes, as root."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import time
from pathlib import Path

import pytest

from slurm_recovery.evidence.joblog import LogTail, read_tail
from slurm_recovery.records import Gap

NOBODY = pwd.getpwnam("nobody").pw_uid
LIMIT = 64 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that every user may enter."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    return tmp_path


def owned(path: Path, text: bytes = b"line\n", uid: int = NOBODY, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def read(path: Path | str, uid: int = NOBODY, **options: int) -> LogTail | Gap:
    return read_tail(str(path), uid, limit=LIMIT, timeout=2, **options)


def why(answer: LogTail | Gap) -> str:
    assert isinstance(answer, Gap)
    return answer.why


def test_the_users_own_private_log_is_read_as_the_user(folder: Path) -> None:
    log = owned(folder / "log", b"hello\n")
    answer = read(log)
    assert isinstance(answer, LogTail)
    assert (answer.data, answer.offset, answer.size, answer.inode) == (b"hello\n", 0, 6, log.stat().st_ino)


def test_another_users_file_is_refused(folder: Path) -> None:
    assert why(read(owned(folder / "log", uid=0, mode=0o644))) == f"belongs to uid 0, not to the job's uid {NOBODY}"


def test_what_only_root_could_read_is_not_read(folder: Path) -> None:
    assert why(read(owned(folder / "log", uid=0))) == "EACCES: Permission denied"
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    assert why(read(owned(closed / "log"))) == "EACCES: Permission denied"


def test_a_link_is_not_followed(folder: Path) -> None:
    target = owned(folder / "target")
    link = folder / "log"
    link.symlink_to(target)
    assert why(read(link)).startswith("ELOOP")
    link.unlink()
    link.symlink_to("/etc/shadow")
    assert why(read(link)).startswith("ELOOP")


def test_a_fifo_does_not_hang(folder: Path) -> None:
    fifo = folder / "log"
    os.mkfifo(fifo)
    os.chown(fifo, NOBODY, NOBODY)
    began = time.monotonic()
    assert why(read(fifo)) == "not a regular file"
    assert time.monotonic() - began < 1.9


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full"])
def test_a_device_is_refused(device: str) -> None:
    assert why(read(device)) == "not a regular file"


def test_a_socket_and_a_folder_are_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(folder / "log"))
        assert why(read(folder / "log")).startswith(("ENXIO", "EACCES"))
    made = folder / "folder"
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    assert why(read(made)) == "not a regular file"


def test_a_terabyte_is_read_at_its_end_only(folder: Path) -> None:
    log = owned(folder / "log")
    with log.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    began = time.monotonic()
    answer = read(log)
    assert time.monotonic() - began < 1.9
    assert isinstance(answer, LogTail)
    assert len(answer.data) == LIMIT
    assert answer.data.endswith(b"\0the end\n")
    assert answer.offset == answer.size - LIMIT


def test_only_this_attempts_part_of_an_appended_file(folder: Path) -> None:
    log = owned(folder / "log", b"first attempt\nsecond attempt\n")
    answer = read(log, start=14, inode=log.stat().st_ino)
    assert isinstance(answer, LogTail)
    assert answer.data == b"second attempt\n"


def test_a_truncated_or_new_file_is_read_from_its_begin(folder: Path) -> None:
    log = owned(folder / "log", b"second\n")
    for options in ({"start": 1000, "inode": log.stat().st_ino}, {"start": 3, "inode": 1}):
        answer = read(log, **options)
        assert isinstance(answer, LogTail)
        assert answer.data == b"second\n"


def test_missing_and_impossible_paths_are_gaps(folder: Path) -> None:
    assert why(read(folder / "none")).startswith("ENOENT")
    assert why(read(str(folder / ("x" * 5000)))).startswith("ENAMETOOLONG")
    assert "null" in why(read("/tmp/a\0b"))
    assert why(read(folder / "log" / "deeper")).startswith(("ENOENT", "ENOTDIR"))


def test_an_unknown_user_is_a_gap(folder: Path) -> None:
    assert why(read(owned(folder / "log"), uid=3_999_999)) == "uid 3999999 has no account here"


def test_no_answer_in_time_is_a_gap(folder: Path) -> None:
    log = owned(folder / "log", b"x" * LIMIT)
    assert why(read_tail(str(log), NOBODY, limit=LIMIT, timeout=0.0)) == "no answer within 0 s"


def test_no_child_is_left_and_we_are_still_root(folder: Path) -> None:
    for _ in range(3):
        read(owned(folder / "log"))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert os.geteuid() == 0
    assert stat.S_ISREG((folder / "log").stat().st_mode)
