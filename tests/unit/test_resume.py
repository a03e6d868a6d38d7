"""What a restarted job is told, on its way to the node: written whole, read with suspicion, merged by attempt."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery import resume as resume_file
from slurm_recovery.node.told import assignments, merge, write_told
from slurm_recovery.resume import (
    FOLDER,
    MOST_NODES,
    Refused,
    Resume,
    decode,
    encode,
    read_resume,
    remove_resume,
    write_resume,
)

STRANGER = 1000
FULL = Resume(7, 2, "gpu_ecc_uncorrectable", ("n1", "n3"), "/w/ckpt", "/w/ckpt/40", 40, ("/w/ckpt/50",))


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir(mode=0o700)
    return tmp_path


def test_what_is_written_is_read(evidence: Path) -> None:
    write_resume(evidence, FULL)
    path = evidence / FOLDER / "7"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes()) == {
        "format": 1, "job_id": 7, "attempt": 2, "reason": "gpu_ecc_uncorrectable", "excluded": ["n1", "n3"],
        "folder": "/w/ckpt", "checkpoint": "/w/ckpt/40", "step": 40, "refused": ["/w/ckpt/50"], "tasks": 0,
    }  # fmt: skip
    assert read_resume(str(evidence), 7) == FULL
    write_resume(evidence, FULL._replace(attempt=3))
    assert read_resume(str(evidence), 7) == FULL._replace(attempt=3)
    assert [one.name for one in (evidence / FOLDER).iterdir()] == ["7"]
    remove_resume(evidence, 7)
    remove_resume(evidence, 7)
    assert read_resume(str(evidence), 7) is None


def test_no_folder_is_an_os_error_to_the_writer_and_nothing_to_the_reader(tmp_path: Path) -> None:
    assert read_resume(str(tmp_path), 7) is None
    with pytest.raises(FileNotFoundError):
        write_resume(tmp_path, FULL)


def test_no_link_is_followed(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(encode(FULL))
    (evidence / FOLDER / "7").symlink_to(target)
    with pytest.raises(Refused, match="symbolic link"):
        read_resume(str(evidence), 7)
    write_resume(evidence, FULL._replace(attempt=5))
    assert decode(target.read_bytes()) == FULL
    assert read_resume(str(evidence), 7) == FULL._replace(attempt=5)
    folder = evidence / FOLDER
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        write_resume(evidence, FULL)


def test_a_file_that_another_could_have_written_is_refused(evidence: Path) -> None:
    write_resume(evidence, FULL)
    path = evidence / FOLDER / "7"
    os.chown(path, STRANGER, -1)
    with pytest.raises(Refused, match="only SlurmUser can write"):
        read_resume(str(evidence), 7)
    os.chown(evidence / FOLDER, STRANGER, -1)  # the folder is SlurmUser's, so its files are
    assert read_resume(str(evidence), 7) == FULL
    path.chmod(0o666)
    with pytest.raises(Refused, match="only SlurmUser can write"):
        read_resume(str(evidence), 7)
    (evidence / FOLDER).chmod(0o777)
    with pytest.raises(Refused, match="written by others"):
        read_resume(str(evidence), 7)


def test_a_pipe_keeps_nobody(evidence: Path) -> None:
    os.mkfifo(evidence / FOLDER / "7")
    with pytest.raises(Refused):
        read_resume(str(evidence), 7)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"job_id": "7"}, {"job_id": True}, {"attempt": -1}, {"attempt": 1.5}, {"attempt": None},
        {"reason": "x\nexport A=b"}, {"reason": 3}, {"excluded": "n1"}, {"excluded": ["n1,n2"]}, {"excluded": ["n\n1"]},
        {"excluded": [1]}, {"folder": "relative"}, {"folder": None}, {"checkpoint": "/a\0b"},
        {"checkpoint": "/" + "x" * 5000}, {"step": "40"}, {"step": -1}, {"step": 1 << 70}, {"step": False},
        {"refused": ["x"]}, {"refused": {"/a": 1}}, {"refused": ["/a"] * 33}, {"excluded": ["n"] * (MOST_NODES + 1)},
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_it_must_be_says_nothing(evidence: Path, change: dict[str, object]) -> None:
    told = json.loads(encode(FULL)) | change
    assert decode(json.dumps(told).encode()) is None
    path = evidence / FOLDER / "7"
    path.write_text(json.dumps(told))
    path.chmod(0o600)
    with pytest.raises(Refused, match="not understood"):
        read_resume(str(evidence), 7)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"null", b"\xff", b"[1]", b"x" * (2 << 20)])
def test_what_is_no_json_says_nothing(data: bytes) -> None:
    assert decode(data) is None


def test_a_file_of_another_job_is_refused(evidence: Path) -> None:
    write_resume(evidence, FULL)
    (evidence / FOLDER / "7").rename(evidence / FOLDER / "8")
    with pytest.raises(Refused, match="not understood"):
        read_resume(str(evidence), 8)


def test_what_could_not_be_read_is_not_written() -> None:
    many = FULL._replace(
        excluded=("n",) * (MOST_NODES + 1), refused=("/" + "x" * 5000, *(f"/{n}" for n in range(40))), folder="/\0"
    )
    told = decode(encode(many))
    assert told is not None
    assert (told.excluded, told.folder, told.refused) == ((), "", tuple(f"/{n}" for n in range(8, 40)))


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_nothing_that_is_read_raises(data: bytes) -> None:
    decode(data)
    decode(encode(FULL)[: len(data)] + data)


@given(st.lists(st.text(), max_size=5), st.text(), st.text(), st.integers(min_value=0, max_value=1 << 62))
def test_whatever_is_written_can_be_read(refused: list[str], folder: str, checkpoint: str, step: int) -> None:
    told = decode(encode(Resume(7, 2, "unknown", (), folder, checkpoint, step, tuple(refused))))
    assert told is not None
    assert told.folder in (folder, "")
    assert set(told.refused) <= set(refused)


def test_old_files_go_when_there_are_many(evidence: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_file, "MOST_FILES", 20)
    old = time.time() - 40 * 86400
    for job in range(100, 130):
        write_resume(evidence, FULL._replace(job_id=job))
        if job % 2:
            os.utime(evidence / FOLDER / str(job), (old, old))
    (evidence / FOLDER / "theirs").touch()
    os.utime(evidence / FOLDER / "theirs", (old, old))
    write_resume(evidence, FULL)
    left = {path.name for path in (evidence / FOLDER).iterdir()}
    assert left == {"7", "theirs", *(str(job) for job in range(100, 130, 2))}


# --- on the node


def test_what_was_written_for_another_attempt_holds_only_where_it_lasts() -> None:
    assert merge(7, 1, "/said", FULL) == FULL
    assert merge(7, 1, "/said", FULL._replace(folder="")) == FULL._replace(folder="/said")
    assert merge(7, 2, "/said", FULL) == Resume(7, 3, folder="/said", refused=FULL.refused)
    assert merge(7, 2, "", FULL) == Resume(7, 3, folder="/w/ckpt", refused=FULL.refused)
    assert merge(7, 2, "", Resume(7, 2, tasks=6)) == Resume(7, 3, tasks=6)
    assert merge(7, 4, "/said", None) == Resume(7, 5, folder="/said")


def test_the_variables_are_those_that_are_known() -> None:
    assert assignments(FULL) == [
        b"SLURM_RECOVERY_JOB_ID=7",
        b"SLURM_RECOVERY_ATTEMPT=2",
        b"SLURM_RECOVERY_REASON=gpu_ecc_uncorrectable",
        b"SLURM_RECOVERY_EXCLUDED=n1,n3",
        b"SLURM_RECOVERY_CHECKPOINT=/w/ckpt/40",
        b"SLURM_RECOVERY_STEP=40",
    ]
    assert assignments(Resume(7, 3)) == [b"SLURM_RECOVERY_JOB_ID=7", b"SLURM_RECOVERY_ATTEMPT=3"]
    assert assignments(Resume(7, 3, tasks=6))[2:] == [b"SLURM_NTASKS=6", b"SLURM_NPROCS=6"]
    assert assignments(Resume(7, 1, folder="/w")) == [b"SLURM_RECOVERY_JOB_ID=7"]
    assert assignments(Resume(7, 1, checkpoint="/caf\udce9", step=0))[1:] == [
        b"SLURM_RECOVERY_CHECKPOINT=/caf\xe9",
        b"SLURM_RECOVERY_STEP=0",
    ]


@pytest.mark.parametrize("path", ["/a\nexport X=1", "/a\rb", "/a\x1b[0m", "/a\x7f", "/\ud800", "/a\0b"])
def test_a_path_that_could_be_more_than_one_line_is_no_variable_and_neither_is_its_step(path: str) -> None:
    assert assignments(Resume(7, 1, checkpoint=path, step=3)) == [b"SLURM_RECOVERY_JOB_ID=7"]


def test_what_the_prolog_leaves_is_the_users_to_read_and_nobodys_to_replace(tmp_path: Path) -> None:
    run_dir = tmp_path / "run/n1"
    before = os.umask(0o077)
    try:
        write_told(str(run_dir), FULL, STRANGER)
    finally:
        os.umask(before)
    assert (run_dir.stat().st_uid, stat.S_IMODE(run_dir.stat().st_mode)) == (0, 0o711)
    assert stat.S_IMODE(run_dir.parent.stat().st_mode) == 0o755
    status = (run_dir / "7").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (STRANGER, 0o400)
    first, *others = (run_dir / "7").read_bytes().splitlines()
    assert decode(first) == FULL
    assert others == [*assignments(FULL), b"LOOK"]
    write_told(str(run_dir), FULL._replace(attempt=3), STRANGER)
    assert [path.name for path in run_dir.iterdir()] == ["7"]


def test_a_run_dir_that_is_not_roots_alone_is_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.symlink_to(tmp_path)
    with pytest.raises(resume_file.Refused, match="not a folder"):
        write_told(str(run_dir), FULL, STRANGER)
    run_dir.unlink()
    run_dir.mkdir()
    os.chown(run_dir, STRANGER, -1)
    with pytest.raises(resume_file.Refused, match="others than root"):
        write_told(str(run_dir), FULL, STRANGER)
    os.chown(run_dir, 0, -1)
    run_dir.chmod(0o777)
    with pytest.raises(resume_file.Refused, match="others than root"):
        write_told(str(run_dir), FULL, STRANGER)
    assert list(run_dir.iterdir()) == []
