"""What the nodes are told before a restarted job is released, and what it costs where they cannot be told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_recovery import begin
from slurm_recovery.begin import said, tell_nodes
from slurm_recovery.resume import Resume, read_resume

RESUME = Resume(7, 2, "checkpoint_corrupt", ("n1",), "/ckpt", "/ckpt/200", 200, ("/ckpt/300",))


def test_the_nodes_read_what_was_told(tmp_path: Path) -> None:
    (tmp_path / "resume").mkdir(mode=0o700)
    assert tell_nodes(tmp_path, RESUME, 10) == ""
    assert read_resume(str(tmp_path), 7) == RESUME


def test_a_folder_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    assert tell_nodes(tmp_path, RESUME, 10) == "ENOENT: No such file or directory"


@pytest.mark.timing
def test_a_file_system_that_hangs_keeps_nobody_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "write_resume", lambda *_: time.sleep(60))
    started = time.monotonic()
    assert tell_nodes(tmp_path, RESUME, 0.3) == "no answer within 0.3 s"
    assert time.monotonic() - started < 5


def test_the_record_says_where_the_job_begins_and_where_not() -> None:
    assert said(RESUME) == "attempt 2 begins from /ckpt/200 (step 200), not from /ckpt/300"
    assert said(RESUME._replace(checkpoint="", step=None)) == (
        "attempt 2 begins from what the job's start finds, not from /ckpt/300"
    )
    assert said(Resume(7, 2)) == ""
