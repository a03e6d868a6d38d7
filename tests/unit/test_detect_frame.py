"""Who printed a line, and what srun says of tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery.detect.frame import any_time, frame, hosts, task_end, tasks

PREFIXES = [
    ("12: KeyError: 1", {"task": 12}),
    ("   3: KeyError: 1", {"task": 3}),
    ("[rank5]: KeyError: 1", {"rank": 5}),
    ("[rank: 6] Child process", {"rank": 6}),
    (" 1: [rank9]: KeyError: 1", {"task": 1, "rank": 9}),
    ("[default3]:KeyError: 1", {"local_rank": 3}),
    ("[default0]:[rank8]:[W TCPStore.cpp:87] reset", {"local_rank": 0, "rank": 8}),
    ("[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog", {"rank": 3}),
    ("[PG ID 0 PG GUID 0(default_pg) Rank 7] Timeout", {"rank": 7}),
    ("[PG ID 5 PG GUID 11(TENSOR) Rank 1] Timeout", {"rank": None}),
    ("a01:3000:3400 [2] NCCL WARN x", {"node": "a01", "local_rank": 2}),
    ("[1,5]<stderr>:IndexError: x", {"rank": 5}),
    ("a02: [1,5]<stderr>:IndexError: x", {"rank": 5, "node": "a02"}),
    ("[a05:953501:0:953501] ib_mlx5_log.c:139  Transport", {"node": "a05"}),
    ("OSError: [Errno 28] No space left on device", {"node": None}),
    ("12:30:01 loss 3.1", {"task": None}),
]


@pytest.mark.parametrize(("line", "expected"), PREFIXES, ids=[line for line, _ in PREFIXES])
def test_prefixes(line: str, expected: dict[str, object]) -> None:
    found = frame(line)
    assert {key: getattr(found, key) for key in expected} == expected


TIMES = [
    ("[Thu Jan  1 00:01:00 1970] NVRM: x", 60.0, False),
    ("kern  :warn  : 1970-01-01T01:01:00,500000+01:00 NVRM: x", 60.5, True),
    ("1970-01-01 00:01:00,250 ERROR x", 60.25, False),
    ("[1970-01-01 00:01:00] step", 60.0, False),
    ("1970-01-01T00:01:00Z step", 60.0, True),
    ("[ 4711.100200] NVRM: x", None, False),
    ("[Thu Jan 99 00:01:00 1970] NVRM: x", None, False),
    ("9999-99-99 99:99:99 x", None, False),
]


@pytest.mark.parametrize(("line", "time", "zoned"), TIMES, ids=[line for line, _, _ in TIMES])
def test_times(line: str, time: float | None, zoned: bool) -> None:
    found = frame(line)
    assert (found.time, found.zoned) == (time, zoned)


def test_the_text_is_what_follows_the_prefixes() -> None:
    assert frame(" 9: [rank9]: 2026-03-02 10:00:02,771 ERROR gone").text == "ERROR gone"
    assert frame("[ 4711.100200] NVRM: Xid").text == "NVRM: Xid"


def test_a_time_within_the_line() -> None:
    assert any_time("*** JOB 1 ON a CANCELLED AT 1970-01-01T00:01:00 DUE TO TIME LIMIT ***") == 60.0
    assert any_time("no time at all") is None


def test_srun_says_how_tasks_ended() -> None:
    end = task_end("srun: error: a[03-04]: tasks 16-17,19: Killed")
    assert end is not None
    assert (end.hosts, end.how) == (("a03", "a04"), "Killed")
    assert (end.tasks, end.count, end.first, end.only) == ((range(16, 18), range(19, 20)), 3, 16, None)


@pytest.mark.parametrize(
    "text", ["n[1-99999999]", "n[1-9999][1-9999]", "n[1-", "@all", "", "a b", "n" * 5000, "n[5-1]"]
)
def test_host_lists_that_are_none_or_too_many(text: str) -> None:
    assert hosts(text) == ()


@pytest.mark.parametrize("text", ["1-x", "", ",", "-", "1" * 50, "5-1", "٣"])
def test_task_lists_that_are_none(text: str) -> None:
    assert tasks(text) == ()


@given(st.text(max_size=300))
def test_nothing_raises(text: str) -> None:
    frame(text)
    hosts(text)
    tasks(text)
    task_end(f"srun: error: {text}: tasks 1-{text}: {text}")
    any_time(text)


@given(st.text(alphabet="0123456789[]-,n.@*!&^%", max_size=60))
def test_nothing_that_looks_like_a_host_list_raises(text: str) -> None:
    assert len(hosts(text)) <= 16384
