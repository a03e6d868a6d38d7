"""The job's logs as the batch node reads them: where they are, as whom, how much. Real files, as root."""

from __future__ import annotations

import base64
import os
import pwd
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery.evidence.paths import expand_pattern
from slurm_recovery.node.collector import Part
from slurm_recovery.node.job_tail import HEAD, MOST_ENTRIES, Job, batch_node, expand, job_of, patterns, read_logs
from slurm_recovery.node_report import Log, NodeGap
from slurm_recovery.records import Attempt

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

NOBODY = pwd.getpwnam("nobody").pw_uid
MOST = 64 << 10
ENVIRONMENT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": str(NOBODY),
    "SLURM_JOB_USER": "nobody",
    "SLURM_NODELIST": "gpu[03-04,7]",
    "SLURM_JOB_WORK_DIR": "/home/nobody/run",
}


def job(folder: Path, start: float | None = None, **told: str) -> Job:
    return Job("4711", NOBODY, "nobody", "gpu03", str(folder), told.get("stdout", ""), told.get("stderr", ""), start)


def owned(path: Path, text: bytes = b"line\n", uid: int = NOBODY, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


@pytest.fixture
def work(open_folder: Path) -> Path:
    os.chown(open_folder, NOBODY, NOBODY)
    open_folder.chmod(0o700)
    return open_folder


def read(asked: Job, most: int = MOST, timeout: float = 5) -> tuple[list[Log], str]:
    """As the collector does: in a process that is the job's user."""
    with Part("job_log", "log", lambda: read_logs(asked, most), asked.user_id, time.monotonic() + timeout) as part:
        answer = part.answer()
    gaps = [NodeGap.model_validate(gap) for gap in answer["gaps"]]
    return [Log.model_validate(log) for log in answer.get("logs", [])], "; ".join(gap.why for gap in gaps)


def text(log: Log) -> bytes:
    return base64.b64decode(log.data)


def only(asked: Job, **how: Any) -> Log:
    logs, why = read(asked, **how)
    assert not why
    (log,) = logs
    return log


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu[03-04,7]", "gpu03"),
        ("gpu7,gpu[1-3]", "gpu7"),
        ("a[1-2]-b[05,06],c", "a1-b05"),
        ("n1.cluster.org", "n1.cluster.org"),
        ("n[" + "1," * 30_000 + "2]", "n1"),
        ("n[" + "1," * 90_000 + "2]", ""),
        ("", ""),
        ("../../etc", ""),
        ("[", ""),
        ("a[1", ""),
        ("a\nb", ""),
        ("[" * 60_000, ""),
    ],
)
def test_the_batch_node_is_the_lists_first(nodelist: str, first: str) -> None:
    assert batch_node(nodelist) == first


def test_the_job_is_what_the_hook_was_told() -> None:
    found = job_of(ENVIRONMENT, 5.0)
    assert found == Job("4711", NOBODY, "nobody", "gpu03", "/home/nobody/run", "", "", 5.0)
    for missing in ("SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_NODELIST"):
        assert isinstance(job_of({**ENVIRONMENT, missing: ""}, None), str)
    assert isinstance(job_of({**ENVIRONMENT, "SLURM_JOB_UID": "-1"}, None), str)


SYMBOLS = ["%j", "%J", "%u", "%N", "%n", "%s", "%t", "%%", "%05j", "%3n", "%b", "%", "log", "/", ".out", "\\"]


@given(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=6).map("".join))
def test_patterns_are_expanded_as_on_the_controller(pattern: str) -> None:
    attempt = Attempt(cluster="c", job_id=4711, user="nobody", nodes=("gpu03",), work_dir="/w", stdout=pattern)
    assert expand(pattern, job(Path("/w"))) == expand_pattern(pattern, attempt)


def test_standard_error_is_a_second_log_where_it_goes_elsewhere() -> None:
    assert patterns(job(Path("/w"), stdout="a", stderr="a")) == ("/w/a",)
    assert patterns(job(Path("/w"), stderr="%j.err")) == ("/w/slurm-4711.out", "/w/4711.err")


def test_the_users_own_private_log_is_read_as_the_user(work: Path) -> None:
    path = owned(work / "slurm-4711.out", b"one\ntwo\n")
    log = only(job(work))
    assert (log.path, log.size, log.inode, log.offset) == (str(path), 8, path.stat().st_ino, 0)
    assert text(log) == b"one\ntwo\n"


def test_both_logs_are_read(work: Path) -> None:
    owned(work / "o", b"out")
    owned(work / "e", b"err")
    logs, why = read(job(work, stdout="o", stderr="e"))
    assert [text(log) for log in logs] == [b"out", b"err"]
    assert not why


@pytest.mark.parametrize("more", [0, 1, 100_000])
def test_of_a_long_log_the_beginning_and_the_end_are_read(work: Path, more: int) -> None:
    data = os.urandom(HEAD + MOST + more)
    owned(work / "log", data)
    logs, why = read(job(work, stdout="log"))
    assert not why
    assert {log.size for log in logs} == {len(data)}
    if more:
        assert [(log.offset, text(log)) for log in logs] == [(0, data[:HEAD]), (HEAD + more, data[-MOST:])]
    else:
        assert [text(log) for log in logs] == [data]


def test_a_log_of_a_gigabyte_costs_no_more(work: Path) -> None:
    with owned(work / "log").open("r+b") as file:
        file.truncate(1 << 30)
    began = time.monotonic()
    logs, _ = read(job(work, stdout="log"), most=1 << 20)
    assert time.monotonic() - began < 3
    assert [(log.offset, len(text(log))) for log in logs] == [(0, HEAD), ((1 << 30) - (1 << 20), 1 << 20)]


def refused(work: Path, name: str) -> str:
    logs, why = read(job(work, stdout=name))
    assert not logs
    return why


def test_what_the_user_may_not_read_is_not_read(work: Path) -> None:
    """Privileges are gone: neither root's private file nor one in root's private folder can be opened."""
    owned(work / "secret", b"root's", uid=0)
    assert "EACCES" in refused(work, "secret")
    assert "EACCES" in refused(work, "/root/x")
    assert "EACCES" in refused(work, "/proc/1/environ")


def test_what_is_not_the_users_is_refused_where_he_may_read_it(work: Path) -> None:
    owned(work / "other", b"root's", uid=0, mode=0o644)
    assert refused(work, "other") == f"belongs to uid 0, not to the job's uid {NOBODY}"
    assert "belongs to uid 0" in refused(work, "/etc/passwd")


def test_links_and_what_is_no_file_are_refused(work: Path) -> None:
    owned(work / "real")
    (work / "link").symlink_to("real")
    os.mkfifo(work / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(work / "socket"))
    os.chown(work / "fifo", NOBODY, NOBODY)
    assert "ELOOP" in refused(work, "link")
    assert refused(work, "fifo") == "not a regular file"
    assert refused(work, "/dev/zero") == "not a regular file"
    assert refused(work, ".") == "not a regular file"
    assert "ENXIO" in refused(work, "socket") or "EACCES" in refused(work, "socket")
    assert "ENOENT" in refused(work, "missing")
    assert "ENAMETOOLONG" in refused(work, "x" * 5000)


def test_a_user_without_an_account_is_a_gap(work: Path) -> None:
    logs, why = read(job(work)._replace(user_id=60_123))
    assert not logs
    assert why == "uid 60123 has no account here"


def test_the_name_that_a_node_is_not_told_is_found(work: Path) -> None:
    (work / "logs").mkdir()
    owned(work / "logs/train-4711.out", b"mine")
    owned(work / "logs/train-4712.out", b"another job's")
    owned(work / "logs/-4711.out", b"no name at all")
    assert text(only(job(work, stdout="logs/%x-%j.out"))) == b"mine"


def test_folders_that_a_node_is_not_told_are_searched(work: Path) -> None:
    for name in ("train", "other"):
        (work / name / "day").mkdir(parents=True)
    owned(work / "train/day/4711.log", b"mine")
    assert text(only(job(work, stdout="%x/day/%j.log"))) == b"mine"


def test_an_array_task_without_output_is_found_at_its_default(work: Path) -> None:
    owned(work / "slurm-4700_3.out", b"task 3")
    assert text(only(job(work))) == b"task 3"


def test_a_folder_that_the_user_cannot_read_is_said(work: Path) -> None:
    (work / "closed").mkdir(mode=0o700)
    for asked in (job(work / "closed"), job(work / "closed", stdout="%x-%j.out")):
        assert read(asked) == ([], "EACCES: Permission denied")
    (work / "open").mkdir()
    owned(work / "open/4711.log", b"mine")
    assert text(only(job(work, stdout="%x/%a.log"))) == b"mine"


def test_two_that_fit_are_none(work: Path) -> None:
    owned(work / "a-4711.out")
    owned(work / "b-4711.out")
    logs, why = read(job(work, stdout="%x-%j.out"))
    assert not logs
    assert why == "a node is not told the log's whole name, and 2 files fit"


def test_other_users_files_links_and_old_ones_do_not_fit(work: Path) -> None:
    owned(work / "a-4711.out", b"mine")
    owned(work / "b-4711.out", uid=0, mode=0o644)
    (work / "c-4711.out").symlink_to("a-4711.out")
    old = owned(work / "d-4711.out")
    os.utime(old, (1, time.time() - 4000))
    assert text(only(job(work, stdout="%x-%j.out"))) == b"mine"
    assert text(only(job(work, start=time.time() - 600, stdout="%x-%j.out"))) == b"mine"
    logs, why = read(job(work, start=time.time() - 5000, stdout="%x-%j.out"))
    assert not logs
    assert "2 files fit" in why


def test_a_folder_of_too_many_files_is_a_gap(work: Path) -> None:
    for number in range(MOST_ENTRIES + 1):
        (work / f"f{number}").touch()
    logs, why = read(job(work, stdout="%x-%j.out"))
    assert not logs
    assert f"more than {MOST_ENTRIES} files" in why


def test_hostile_patterns_end_soon_and_in_words(work: Path) -> None:
    owned(work / ("a" * 250))
    for pattern in (
        "%x" * 2000,
        "/".join(["%x"] * 60),
        "%x/" * 100,
        "a\udcff%x\n",
        "%x" + "a" * 240 + "%ab",
        "/%x/%x/%x/%x",
    ):
        began = time.monotonic()
        logs, why = read(job(work, stdout=pattern))
        assert time.monotonic() - began < 5, pattern
        assert not logs, pattern
        assert why, pattern


def test_a_log_that_hangs_is_given_up(work: Path) -> None:
    """Nothing that a user can put there hangs an open by itself; a file system that does is like this."""
    began = time.monotonic()
    with Part("job_log", "log", lambda: time.sleep(60) or {}, NOBODY, time.monotonic() + 0.3) as part:
        assert part.answer() == {"gaps": [{"source": "job_log", "what": "log", "why": "no answer in time"}]}
    assert time.monotonic() - began < 3


def test_the_reader_holds_nothing_of_roots(work: Path) -> None:
    """Its ids are the user's, all of them, and it has no descriptor but its way to answer."""
    secret = os.open("/etc/shadow", os.O_RDONLY)

    def look() -> dict[str, Any]:
        status = Path("/proc/self/status").read_text()
        ids = {
            line.split()[0]: line.split()[1:]
            for line in status.splitlines()
            if line.startswith(("Uid", "Gid", "CapEff"))
        }
        return {"ids": ids, "files": [os.readlink(f"/proc/self/fd/{number}") for number in range(64) if _open(number)]}

    try:
        with Part("job_log", "log", look, NOBODY, time.monotonic() + 5) as part:
            found = part.answer()
    finally:
        os.close(secret)
    gid = pwd.getpwuid(NOBODY).pw_gid
    assert found["ids"] == {"Uid:": [str(NOBODY)] * 4, "Gid:": [str(gid)] * 4, "CapEff:": ["0" * 16]}
    assert not [name for name in found["files"] if "shadow" in name]


def _open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_paths_that_are_no_text_arrive_as_text(work: Path) -> None:
    owned(Path(os.fsdecode(os.fsencode(work) + b"/l\xff\xe9g")))
    log = only(job(work, stdout=os.fsdecode(b"l\xff\xe9g")))
    assert log.path.encode() == os.fsencode(work) + b"/l\\udcff\\udce9g"


def test_memory_is_bounded(work: Path) -> None:
    for name in ("o", "e"):
        with owned(work / name).open("r+b") as file:
            file.truncate(1 << 30)
    code = (
        "from slurm_recovery.node.job_tail import Job, read_logs; import json; "
        f"r = read_logs(Job('1', {NOBODY}, 'u', 'n', {str(work)!r}, 'o', 'e', None), 1 << 20); "
        "assert len(r['logs']) == 4; "
        "json.dumps(r).encode(); "
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 40_000  # KiB
