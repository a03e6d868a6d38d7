"""The spool: events of hooks, hostile files, marks, and the worker's lock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_recovery.hooks.slurm_recovery_hook import Hook
from slurm_recovery.hooks.spool import Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    (tmp_path / "spool").mkdir()
    return Spool(tmp_path)


def hook(tmp_path: Path) -> Hook:
    return Hook(str(tmp_path), ["/bin/true"], {}, 1.0, 60.0)


def test_what_the_hook_writes_is_read_back(tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_EXIT_CODE2", "3:0")
    monkeypatch.setenv("SLURM_JOB_NAME", "a\nb=c")
    monkeypatch.setenv("SECRET", "not recorded")
    path = hook(tmp_path).record("job_end")
    (event,) = spool.events()
    assert (str(event.path), event.kind, event.job_id, event.failed) == (path, "job_end", 12, True)
    assert event.variables["SLURM_JOB_NAME"] == "a\nb=c"
    assert "SECRET" not in event.variables
    assert abs(event.time - time.time()) < 5
    assert event.path.stat().st_mode & 0o777 == 0o600


def test_a_deferred_event_lets_its_hook_go_and_stays(tmp_path: Path, spool: Spool) -> None:
    hook(tmp_path).record("job_end")
    (event,) = spool.events()
    assert event.waited_for
    assert spool.waiting()
    spool.defer(event)
    assert not spool.waiting()
    (later,) = spool.events()
    assert not later.waited_for
    spool.defer(later)
    spool.done(later)
    assert spool.events() == []
    spool.done(event)


def test_what_is_no_event_is_left_out_or_set_aside(tmp_path: Path, spool: Spool) -> None:
    folder = tmp_path / "spool"
    (folder / "notes.txt").write_text("x")
    (folder / "1-job_end-1-1.tmp").write_text("half")
    (folder / "2-job_end-1-1.event").symlink_to("/etc/passwd")
    (folder / "3-job_end-1-1.event").mkdir()
    (folder / "4-job_end-1-1.event").write_bytes(b"x" * (2 << 20))
    (folder / "5-job_end-1-1.event").write_bytes(b"\0\xff=\xfe\0SLURM_JOB_ID\0SLURM_JOB_ID=abc\0")
    (event,) = spool.events()
    assert event.job_id == 0
    assert sorted(path.name for path in folder.glob("*.bad")) == [f"{n}-job_end-1-1.bad" for n in (2, 3, 4)]
    assert len(spool.events()) == 1


def test_an_empty_or_missing_spool_is_no_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "nowhere")
    assert spool.events() == []
    assert spool.holds() == {}
    assert not spool.waiting()


def test_marks_of_held_jobs(spool: Spool) -> None:
    spool.mark_hold("12_3", 15)
    spool.mark_hold("12_3", 15)
    (spool.holds_folder / "strange name").touch()
    (spool.holds_folder / "17_1").touch()
    assert {label: hold.job_id for label, hold in spool.holds().items()} == {"12_3": 15, "17_1": 17}
    spool.clear_hold("17_1")
    spool.clear_hold("12_3")
    spool.clear_hold("12_3")
    assert spool.holds() == {}


def test_one_worker_at_a_time_and_the_lock_dies_with_its_process(tmp_path: Path, spool: Spool) -> None:
    with spool.lock() as got:
        assert got
        with Spool(tmp_path).lock(wait=0.1) as again:
            assert not again
    holder = (
        "import sys, time; from pathlib import Path; from slurm_recovery.hooks.spool import Spool\n"
        "with Spool(Path(sys.argv[1])).lock() as got: print(got, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with spool.lock() as got:
            assert not got
        other.kill()
    with spool.lock(wait=2) as got:
        assert got


def test_the_worker_inherits_the_lock_that_its_hook_took(tmp_path: Path, spool: Spool) -> None:
    started = Hook(str(tmp_path), ["/bin/sh", "-c", "sleep 0.6"], {}, 1.0, 60.0)
    started.start_worker()
    with spool.lock() as got:
        assert not got
    started.start_worker()
    with spool.lock(wait=3) as got:
        assert got
    while True:  # the hook leaves its worker to init; here we are its parent
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
