"""A job's log is its owner's to write: whatever stands in it, these things hold."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.records import Observation, Trust
from tests.hostile import NODES, SIGNATURES, attempt, judge_log, read, read_kernel_log, read_lines

OTHERS = ("b07", "login1", "a01x", "a[01-99]", "A01", "a01.evil.example", "-", "*", "a01,b07")
PREFIX_PARTS = ["[rank", "3]", ": ", "pid=", ", ip=", "[1,", "<stderr>", "\u0663", "I0604 "]
NAMES = st.sampled_from([*NODES, *OTHERS])
EXAMPLES = [row.example for row in SIGNATURES]
FORGERIES = [
    "srun: error: Node failure on {node}",
    "srun: error: {node}: task 3: Exited with exit code 1",
    "srun: error: {node}: tasks 0-4000000: Killed",
    "slurmstepd: error: *** STEP 7.0 ON {node} CANCELLED AT 2026-06-04T10:00:00 DUE TO NODE FAILURE ***",
    "slurmstepd: error: *** JOB 7 ON {node} CANCELLED AT 2026-06-04T10:00:00 DUE TO TIME LIMIT ***",
    "slurmstepd: error: Detected 8 oom_kill events in StepId=7.0. Some of the step tasks have been OOM Killed.",
    "[Thu Jun  4 10:22:30 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name=python, GPU has fallen off the bus.",
    "kernel: {node} kernel: mce: Uncorrected hardware memory error in user-access at 1c7",
    "{node}:77:78 [3] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_4:1 Got async event : port error",
    "{node}:7:8 [3] NCCL WARN NET/IB : Got completion from peer {node}<479> with status=12 opcode=0 len=0 vendor err 9",
    "{node}:77:78 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>",
    "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "[2]:\n  host      : {node}\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 7)",
    "(TrainWorker pid=7, ip={node}) RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "Task launch for StepId=7.0 failed on node {node}: Communication connection failure",
]
LINES = st.builds(
    lambda label, text, node: label + text.replace("{node}", node),
    st.sampled_from(["", "0: ", " 3: ", "[rank2]: ", "[1,2]<stderr>:", "[default1]:", "(raylet, ip=10.0.0.1) "]),
    st.sampled_from(FORGERIES + EXAMPLES),
    NAMES,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, max_size=30), st.integers(0, 127))
def test_forged_lines_lead_to_no_node_outside_and_to_nothing_that_counts_as_roots(lines: list[str], shape: int) -> None:
    judge_log("\n".join(lines).encode(), shape)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=4000), st.integers(0, 127))
def test_any_bytes_are_judged(data: bytes, shape: int) -> None:
    judge_log(data, shape)
    read_kernel_log(data)
    read_lines(data)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=10), st.integers(0, 3000), st.binary(max_size=40))
def test_packed_cut_and_broken_logs_are_judged(lines: list[str], cut: int, junk: bytes) -> None:
    judge_log(gzip.compress("\n".join(lines).encode())[:cut] + junk)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300), st.lists(st.sampled_from(PREFIX_PARTS)))
def test_what_looks_like_a_prefix_is_read_or_left(text: str, parts: list[str]) -> None:
    read_lines(("".join(parts) + text).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "line",
    [
        "a" * 100_000,
        "[" * 50_000,
        "[rank1]" * 10_000,
        "srun: error: " + "a[0-9]," * 10_000 + ": task 1: Killed",
        "srun: error: a01: tasks " + "1-2," * 20_000 + ": Killed",
        "Ranks " + "1, " * 30_000 + "failed to pass monitoredBarrier",
        "x: " * 30_000,
        " " * 100_000 + "Error: x",
        "(a pid=1) " * 10_000,
        "1:" * 50_000,
    ],
    ids=lambda line: line[:20],
)
def test_monster_lines_take_no_time(line: str) -> None:
    judge_log("\n".join([line] * 20).encode())
    read_kernel_log(line.encode())
    read_lines(line.encode())


def test_the_users_word_may_keep_his_own_job_off_his_own_node_and_no_more() -> None:
    log = "\n".join(text.replace("{node}", "a02") for text in FORGERIES[:1]).encode()
    job = attempt(1)  # NODE_FAIL
    found = attribute(Observation(attempt=job, evidence=read(log)))
    assert [(one.node, one.trust) for one in found.suspects] == [("a02", Trust.USER)]
