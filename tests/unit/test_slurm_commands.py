"""Reading what Slurm's commands print, and what is passed to them, with programs that stand for Slurm's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_recovery.slurm.commands import Commands, exit_pair, node_state
from slurm_recovery.slurm.errors import Refused, SlurmUnavailable, UnknownNode
from slurm_recovery.slurm.port import REASON_LENGTH, Job, Node, drain_reason, job_record


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


def said(folder: Path) -> list[str]:
    return (folder / "said").read_bytes().decode().split("\0")[:-1]


def test_a_drain_and_a_resume_name_one_node(tmp_path: Path) -> None:
    program(tmp_path, "scontrol", f"""for word; do printf '%s\\0' "$word"; done >>{tmp_path}/said""")
    slurm = Commands(bin_dir=tmp_path)
    slurm.drain("gpu-01.rack", 'slurm_recovery: gpu_missing incident 7\nState=RESUME "$(touch pwned)"')
    slurm.resume("gpu-01.rack")
    assert said(tmp_path) == [
        "update", "NodeName=gpu-01.rack", "State=DRAIN",
        "Reason=slurm_recovery: gpu_missing incident 7 State?RESUME ??(touch pwned)?",
        "update", "NodeName=gpu-01.rack", "State=UNDRAIN",
    ]  # fmt: skip
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "name", ["", "ALL", "all", "n1,n2", "n[1-2]", "-n1", "n1 State=DOWN", "n1\n", "n1=", "\u00e9", "n" * 300]
)
def test_what_is_not_the_name_of_one_node_is_refused_unasked(tmp_path: Path, name: str) -> None:
    slurm = Commands(bin_dir=tmp_path / "nothing here")
    with pytest.raises(UnknownNode, match="not the name of one node"):
        slurm.drain(name, "slurm_recovery: x")
    with pytest.raises(UnknownNode, match="not the name of one node"):
        slurm.resume(name)


@pytest.mark.parametrize("reason", ["", " \n\t"])
def test_a_drain_needs_a_reason(tmp_path: Path, reason: str) -> None:
    with pytest.raises(Refused, match="needs a reason"):
        Commands(bin_dir=tmp_path / "nothing here").drain("n1", reason)


def test_a_reason_is_one_short_line_without_meaning_to_any_program() -> None:
    assert drain_reason("slurm_recovery: gpu_fell_off_bus health check 2026-11-29T20:11:12Z") == (
        "slurm_recovery: gpu_fell_off_bus health check 2026-11-29T20:11:12Z"
    )
    assert drain_reason("  a\r\n b\tc ") == "a b c"
    assert drain_reason("a=\"b\" 'c' `d` $e;|&<>\\ \x1b[31m \u00e9") == "a??b? ?c? ?d? ?e?????? ??31m ?"
    assert len(drain_reason("x" * 100_000)) == REASON_LENGTH
    assert drain_reason("x " * REASON_LENGTH) == drain_reason(drain_reason("x " * REASON_LENGTH))


def sinfo(folder: Path, rows: list[tuple[str, ...]]) -> Commands:
    """A sinfo that prints these rows, parted as it is asked to, and counts how often it is called."""
    text = "".join("".join(f"{cell}@" for cell in row) + "\n" for row in rows)
    (folder / "rows").write_text(text)
    script = f"""echo "$@" >>{folder}/calls
for word; do format=$word; done
mark=${{format##*:}}
sed "s/@/$mark/g" {folder}/rows"""
    program(folder, "sinfo", script)
    return Commands(bin_dir=folder)


def test_nodes_are_one_question_however_many_there_are(tmp_path: Path) -> None:
    rows = [(f"n{number}", "idle", "main*", "(null)", "none", "Unknown", "Unknown") for number in range(2000)]
    rows += [
        ("n7", "idle", "few", "(null)", "none", "Unknown", "Unknown"),
        ("d1", "mixed+drain", "main*", "a,b", "someone: a | b\nc", "bob (x)(1001)", "1795982928"),
    ]
    nodes = sinfo(tmp_path, rows).nodes()
    assert len(nodes) == 2001
    assert (tmp_path / "calls").read_text().count("\n") == 1
    assert nodes["n7"] == Node(name="n7", state=frozenset({"IDLE"}), partitions=frozenset({"main", "few"}))
    assert nodes["d1"] == Node(
        name="d1",
        state=frozenset({"MIXED", "DRAIN"}),
        reason="someone: a | b\nc",
        reason_user="bob (x)",
        reason_time=1795982928,
        partitions=frozenset({"main"}),
        features=frozenset({"a", "b"}),
    )


@pytest.mark.parametrize(
    ("text", "drained", "idle", "alloc"),
    [
        ("idle", False, True, False),
        ("idle+drain", True, True, False),
        ("idle+completing", False, False, True),
        ("allocated+drain", True, False, True),
        ("mixed", False, False, True),
        ("drained", True, False, False),
        ("down+drain+not_responding", True, False, False),
        ("", False, False, False),
    ],
)
def test_what_a_nodes_state_says(text: str, drained: bool, idle: bool, alloc: bool) -> None:
    node = Node(name="n1", state=node_state(text))
    assert (node.drained, node.idle, node.alloc) == (drained, idle, alloc)


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
