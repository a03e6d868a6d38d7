"""Reading a job's log against all that a user can put at its path. Real files, real processes, as root."""

from __future__ import annotations

import gzip
import os
import pwd
import socket
import stat
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_recovery.detect.lines import PIECE
from slurm_recovery.evidence.joblog import NO_FORMER, Bounds, Former, mark_of, open_log
from slurm_recovery.records import Gap

NOBODY = pwd.getpwnam("nobody").pw_uid
LIMIT = 64 << 10


def owned(path: Path, text: bytes = b"line\n", uid: int = NOBODY, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


class Whole(NamedTuple):
    """All that was read of a log: its parts with their offsets."""

    parts: list[tuple[int, bytes]]
    tail: bytes
    size: int
    inode: int
    gaps: list[str]


BOUNDS = Bounds(LIMIT, 2)


def read(path: Path | str, uid: int = NOBODY, bounds: Bounds = BOUNDS, former: Former = NO_FORMER) -> Whole | Gap:
    with open_log(str(path), uid, bounds, former) as log:
        if isinstance(log, Gap):
            return log
        parts = [(part.offset, b"".join(part.pieces)) for part in log.parts()]
        return Whole(parts, log.tail, log.size, log.inode, [gap.why for gap in log.gaps])


def whole(path: Path | str, bounds: Bounds = BOUNDS, former: Former = NO_FORMER) -> Whole:
    answer = read(path, bounds=bounds, former=former)
    assert isinstance(answer, Whole)
    return answer


def why(answer: Whole | Gap) -> str:
    assert isinstance(answer, Gap)
    return answer.why


def test_the_users_own_private_log_is_read_as_the_user(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"hello\n")
    answer = whole(log)
    assert answer == ([(0, b"hello\n")], b"hello\n", 6, log.stat().st_ino, [])


def test_another_users_file_is_refused(open_folder: Path) -> None:
    log = owned(open_folder / "log", uid=0, mode=0o644)
    assert why(read(log)) == f"belongs to uid 0, not to the job's uid {NOBODY}"


def test_what_only_root_could_read_is_not_read(open_folder: Path) -> None:
    assert why(read(owned(open_folder / "log", uid=0))) == "EACCES: Permission denied"
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    assert why(read(owned(closed / "log"))) == "EACCES: Permission denied"


def test_a_link_is_not_followed(open_folder: Path) -> None:
    target = owned(open_folder / "target")
    link = open_folder / "log"
    link.symlink_to(target)
    assert why(read(link)).startswith("ELOOP")
    link.unlink()
    link.symlink_to("/etc/shadow")
    assert why(read(link)).startswith("ELOOP")


def test_a_fifo_does_not_hang(open_folder: Path) -> None:
    fifo = open_folder / "log"
    os.mkfifo(fifo)
    os.chown(fifo, NOBODY, NOBODY)
    began = time.monotonic()
    assert why(read(fifo)) == "not a regular file"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full"])
def test_a_device_is_refused(device: str) -> None:
    assert why(read(device)) == "not a regular file"


def test_a_socket_and_a_folder_are_refused(open_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(open_folder / "log"))
        assert why(read(open_folder / "log")).startswith(("ENXIO", "EACCES"))
    made = open_folder / "folder"
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    assert why(read(made)) == "not a regular file"


def test_of_a_terabyte_both_ends_are_read(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"the beginning\n")
    with log.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    began = time.monotonic()
    answer = whole(log)
    assert time.monotonic() - began < 20
    (begin, first), (end, last) = answer.parts
    assert (begin, end) == (0, answer.size - LIMIT // 2)
    assert (len(first), len(last)) == (LIMIT // 2, LIMIT // 2)
    assert first.startswith(b"the beginning\n\0")
    assert last.endswith(b"\0the end\n")
    assert answer.gaps == [f"{answer.size - LIMIT} of {answer.size} bytes, in its middle, were not read (LogBytes)"]


def test_what_comes_too_slowly_is_read_at_its_beginning_and_its_end(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"begin\n" + b"x" * (8 * PIECE) + b"\nend\n")
    with open_log(str(log), NOBODY, Bounds(1 << 30, 1, tail=100)) as answer:
        assert not isinstance(answer, Gap)
        parts = []
        for part in answer.parts():
            read = next(part.pieces)
            time.sleep(1 if part.offset == 0 else 0)
            parts.append((part.offset, read + b"".join(part.pieces)))
    assert parts[0][1].startswith(b"begin\n")
    assert parts[1] == (log.stat().st_size - 100, b"x" * 95 + b"\nend\n")
    (gap,) = answer.gaps
    assert gap.why.endswith("were not read: no more within 1 s (LogTimeout)")


def test_a_packed_log_is_unpacked_within_the_same_bounds(open_folder: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(3000))
    answer = whole(owned(open_folder / "log", gzip.compress(text)))
    assert (answer.parts, answer.tail, answer.gaps) == ([(0, text)], text, [])
    bomb = whole(owned(open_folder / "bomb", gzip.compress(b"x" * (100 * LIMIT))))
    assert (bomb.parts, bomb.gaps) == ([(0, b"x" * LIMIT)], [f"only the first {LIMIT} bytes were unpacked"])
    cut = whole(owned(open_folder / "cut", gzip.compress(text)[:-200]))
    assert cut.gaps == ["the gzip data is cut short"]
    assert len(cut.parts[0][1]) > 1000
    assert text.startswith(cut.parts[0][1])
    broken = whole(owned(open_folder / "broken", gzip.compress(text)[:20] + b"\xff" * 100))
    assert broken.gaps[0].startswith("the gzip data is damaged")


def test_only_this_attempts_part_of_an_appended_file(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"first attempt\nsecond attempt\n")
    former = Former(14, log.stat().st_ino, mark_of(b"first attempt\n"))
    answer = whole(log, former=former)
    assert (answer.parts, answer.tail) == ([(14, b"second attempt\n")], b"second attempt\n")


def test_a_truncated_or_new_file_is_read_from_its_begin(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"second\n")
    inode = log.stat().st_ino
    for former in (Former(1000, inode), Former(3, 1), Former(3, inode, mark_of(b"fir"))):
        assert whole(log, former=former).parts == [(0, b"second\n")]


def test_missing_and_impossible_paths_are_gaps(open_folder: Path) -> None:
    assert why(read(open_folder / "none")).startswith("ENOENT")
    assert why(read(str(open_folder / ("x" * 5000)))).startswith("ENAMETOOLONG")
    assert "null" in why(read("/tmp/a\0b"))
    assert why(read(open_folder / "log" / "deeper")).startswith(("ENOENT", "ENOTDIR"))


def test_an_unknown_user_is_a_gap(open_folder: Path) -> None:
    assert why(read(owned(open_folder / "log"), uid=3_999_999)) == "uid 3999999 has no account here"


def test_no_answer_in_time_is_a_gap(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"x" * LIMIT)
    assert why(read(log, bounds=Bounds(LIMIT, 0.0))) == "no answer within 0 s"


def test_no_child_is_left_and_we_are_still_root(open_folder: Path) -> None:
    for _ in range(3):
        read(owned(open_folder / "log"))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert os.geteuid() == 0
    assert stat.S_ISREG((open_folder / "log").stat().st_mode)


def test_the_same_words_once_more_are_this_attempts(open_folder: Path) -> None:
    """Slurm truncates the file at a restart and keeps its inode; a job that fails alike writes as much again."""
    log = owned(open_folder / "log", b"OSError: stale\n")
    status = log.stat()
    former = Former(15, status.st_ino, mark_of(b"OSError: stale\n"), status.st_mtime - 5)
    assert whole(log, former=former).parts == [(0, b"OSError: stale\n")]
    assert whole(log, former=former._replace(started=status.st_mtime + 5)).parts == [], "appended nothing"


def test_a_rewritten_file_that_is_longer_is_this_attempts_from_its_begin(open_folder: Path) -> None:
    log = owned(open_folder / "log", b"step 1\nstep 2\nTraceback: CUDA error\n")
    former = Former(15, log.stat().st_ino, mark_of(b"step 1\nOSError\n"), 0.0)
    assert whole(log, former=former).parts[0][0] == 0
