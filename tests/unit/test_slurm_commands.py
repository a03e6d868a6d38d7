"""Reading what Slurm's commands print, and what is passed to them, with programs that stand for Slurm's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_recovery.slurm.commands import Commands, exit_pair, node_state
from slurm_recovery.slurm.errors import Refused, SlurmUnavailable
from slurm_recovery.slurm.port import Job, job_record


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("0", (0, 0)),
        ("768", (3, 0)),  # 22.05: a wait status
        ("35584", (139, 0)),
        ("65280", (255, 0)),
        ("9", (0, 9)),
        ("15", (0, 15)),
        ("137", (0, 9)),  # with a core dump
        ("3:0", (3, 0)),  # 23.02 and later
        ("139:0", (139, 0)),
        ("0:125", (0, 125)),
        ("", (0, 0)),
        ("N/A", (0, 0)),
    ],
)
def test_exit_pair(text: str, pair: tuple[int, int]) -> None:
    assert exit_pair(text) == pair


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("idle", {"IDLE"}),
        ("IDLE+DRAIN", {"IDLE", "DRAIN"}),
        ("idle*", {"IDLE", "NOT_RESPONDING"}),
        ("down+drain+not_responding", {"DOWN", "DRAIN", "NOT_RESPONDING"}),
        ("idle~", {"IDLE"}),
        ("", set()),
    ],
)
def test_node_state(text: str, words: set[str]) -> None:
    assert node_state(text) == words


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_arguments_reach_the_program_as_they_are(tmp_path: Path) -> None:
    program(tmp_path, "scontrol", f"""for word; do printf '%s\\0' "$word"; done >{tmp_path}/said""")
    comment = "$(touch pwned); `x` 'a' \"b\"\n* = --help"
    Commands(bin_dir=tmp_path).update(Job(job_id=7), excluded=["n2", "n1"], start_in=31.4, admin_comment=comment)
    said = (tmp_path / "said").read_bytes().decode().split("\0")
    assert said == [
        "update", "JobId=7", "ExcNodeList=n[1-2]", "StartTime=now+31", f"AdminComment={comment}", "",
    ]  # fmt: skip
    assert not Path("pwned").exists()


def test_nothing_to_update_is_no_call(tmp_path: Path) -> None:
    Commands(bin_dir=tmp_path / "nothing here").update(Job(job_id=7))


def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    program(tmp_path, "squeue", "exec sleep 60")
    began = time.monotonic()
    with pytest.raises(SlurmUnavailable, match=r"no answer within 0\.3 s"):
        Commands(bin_dir=tmp_path, timeout=0.3).jobs([1])
    assert time.monotonic() - began < 20


def expediting(folder: Path, flags: object, parameters: str = "enable_expedited_requeue") -> Commands:
    program(folder, "scontrol", f"echo 'SlurmctldParameters = {parameters}'")
    answer = folder / "answer"
    answer.write_text(json.dumps({"jobs": [{"job_id": 7, "name": "EXPEDITED_REQUEUE", "flags": flags}]}))
    program(folder, "squeue", f"cat {answer}")
    return Commands(bin_dir=folder)


def test_an_expedited_job_is_known_by_its_flag_alone(tmp_path: Path) -> None:
    assert expediting(tmp_path, ["EXPEDITED_REQUEUE"]).expedited([7]) == {7}
    assert expediting(tmp_path, ["JOB_WAS_RUNNING"]).expedited([7]) == frozenset()


def test_where_expedited_jobs_are_not_allowed_nothing_is_asked(tmp_path: Path) -> None:
    assert expediting(tmp_path, ["EXPEDITED_REQUEUE"], parameters="idle_on_node_suspend").expedited([7]) == frozenset()


def test_an_answer_that_is_not_understood_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--json"):
        expediting(tmp_path, None).expedited([7])


def test_a_pending_job_keeps_nothing_of_its_former_run() -> None:
    shown = {"job_id": 7, "start_time": 1.0, "end_time": 2.0, "exit_code": 3, "derived_exit_code": "3:0"}
    pending = job_record(shown | {"state": "PENDING"})
    assert (pending.start_time, pending.end_time, pending.exit_code) == (None, None, 0)
    running = job_record(shown | {"state": "RUNNING"})
    assert (running.start_time, running.end_time, running.exit_code) == (1.0, None, 0)
    ended = job_record(shown | {"state": "FAILED"})
    assert (ended.start_time, ended.end_time, ended.exit_code) == (1.0, 2.0, 3)


@pytest.mark.parametrize(
    ("shown", "more", "pattern"),
    [
        ("/w/slurm-7.out", {}, "/w/slurm-%j.out"),  # 22.05
        ("/w/slurm-7.out", {"array_job_id": 5, "array_task_id": 0}, "/w/slurm-%A_%a.out"),  # 22.05
        ("/w/slurm-%A_%a.out", {"array_job_id": 5, "array_task_id": 0}, "/w/slurm-%A_%a.out"),  # 24.11
        ("slurm-%j.out", {}, "/w/slurm-%j.out"),  # 26.05
        ("/logs/%x.out", {}, "/logs/%x.out"),
        ("", {}, ""),
        ("/w/slurm-7.out", {"batch": False}, ""),
    ],
)
def test_the_log_is_one_pattern_on_every_release(shown: str, more: dict[str, object], pattern: str) -> None:
    job = job_record({"job_id": 7, "work_dir": "/w", "stdout": shown, "stderr": shown, **more})
    assert (job.stdout, job.stderr) == (pattern, "")
