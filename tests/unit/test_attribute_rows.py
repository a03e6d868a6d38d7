"""Who outranks whom, and when a node may be named."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.reasons import HARDWARE_TRIES, REASONS, TRANSIENT_TRIES, advised, requeues
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.scan import scan
from slurm_recovery.records import Attempt, Attribution, Category, Gap, Observation, Source, Trust, Verdict

SIGNATURES = load_signatures()
XID79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
XID45 = "NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=python, Ch 00000003"
LOST = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
KEY = "KeyError: 'pixel_values'"
WATCHDOG = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE)"


def observe(
    log: str = "",
    kernel: dict[str, str] | None = None,
    *,
    gaps: tuple[Gap, ...] = (),
    down: tuple[str, ...] = (),
    prolog: tuple[str, ...] = (),
    **fields: Any,
) -> Observation:
    values = {
        "cluster": "c",
        "job_id": 1,
        "nodes": ("a1", "a2"),
        "ntasks_per_node": 2,
        "state": "FAILED",
        "exit_code": 1,
    }
    evidence = scan(log.encode(), signatures=SIGNATURES, source=Source.JOB_LOG, path="job.log")
    for node, text in (kernel or {}).items():
        evidence += scan(text.encode(), signatures=SIGNATURES, source=Source.KERNEL_LOG, path=node, node=node)
    return Observation(
        attempt=Attempt(**{**values, **fields}),
        evidence=evidence,
        gaps=gaps,
        down_nodes=down,
        prolog_failed_nodes=prolog,
    )


def answer(*given: Any, **named: Any) -> Attribution:
    return attribute(observe(*given, **named))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("COMPLETED", "completed"),
        ("PREEMPTED", "preempted"),
        ("REQUEUED", "requeued"),
        ("CANCELLED", "cancelled_by_user"),
        ("CANCELLED by 0", "cancelled_by_admin"),
        ("NODE_FAIL", "node_fail"),
        ("BOOT_FAIL", "node_fail"),
        ("OUT_OF_MEMORY", "host_oom"),
    ],
)
def test_slurms_state_outranks_the_log(state: str, reason: str) -> None:
    found = answer(f"[rank3]: {KEY}\n", state=state, exit_code=0)
    assert (found.reason, found.suspects) == (reason, ())


def test_a_user_who_cancels_their_own_job_is_no_administrator() -> None:
    assert answer(state="CANCELLED by 1001", user_id=1001).reason == "cancelled_by_user"
    assert answer(state="CANCELLED by 1002", user_id=1001).reason == "cancelled_by_admin"


def test_a_node_that_slurm_shows_down_is_named_on_slurms_word() -> None:
    found = answer(f"[rank1]: {LOST}\n", down=("a2", "z9"))
    assert (found.reason, found.suspect_nodes, found.suspects[0].trust) == ("node_fail", ("a2",), Trust.ROOT)


def test_a_failed_prolog_is_slurms_word_too() -> None:
    found = answer(prolog=("a1",))
    assert (found.reason, found.suspect_nodes, found.suspects[0].trust) == ("launch_failed", ("a1",), Trust.ROOT)


def test_the_node_that_reports_a_failed_node_is_not_it() -> None:
    line = "slurmstepd: error: *** STEP 1.0 ON a1 CANCELLED AT 2026-03-06T04:26:37 DUE TO NODE FAILURE ***"
    assert answer(line, state="NODE_FAIL").suspects == ()
    assert answer(f"{line}\nsrun: error: Node failure on a2\n", state="NODE_FAIL").suspect_nodes == ("a2",)


def test_the_kernel_outranks_the_program() -> None:
    found = answer(f"[rank0]: {KEY}\n", {"a2": XID79})
    assert (found.reason, found.suspect_nodes, found.suspects[0].trust) == ("gpu_fell_off_bus", ("a2",), Trust.ROOT)
    assert [(beaten.reason, beaten.by) for beaten in found.beaten] == [("python_exception", "kernel_hardware")]


def test_cleanup_by_the_driver_is_nothing() -> None:
    found = answer(f"[rank0]: {KEY}\n", {"a2": XID45})
    assert (found.reason, found.suspects) == ("python_exception", ())


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("kern  :err   : 1970-01-12T13:46:30,000000+00:00 ", True),
        ("kern  :err   : 1970-01-12T20:46:30,000000+07:00 ", True),
        ("kern  :err   : 1970-01-11T13:46:30,000000+00:00 ", False),
        ("[Mon Jan 12 20:46:30 1970] ", True),
        ("[Sat Jan 10 13:46:30 1970] ", False),
        ("[  12.000000] ", True),
        ("[  12.000000] boot\n[90000.000000] ", True),
    ],
)
def test_kernel_lines_count_only_near_the_end(line: str, counts: bool) -> None:
    found = answer(f"[rank0]: {KEY}\n", {"a2": line + XID79}, start_time=900_000.0, end_time=1_000_000.0)
    assert (found.reason == "gpu_fell_off_bus") is counts


def test_a_kernel_line_after_which_the_node_went_on_for_hours_is_of_an_earlier_time() -> None:
    log = f"[  100.0] {XID79}\n[90000.0] usb 1-1: new device\n"
    assert answer(f"[rank0]: {KEY}\n", {"a2": log}).reason == "python_exception"
    assert answer("", {"a2": log}, state="TIMEOUT").reason == "gpu_fell_off_bus"


def test_a_failed_node_that_nobody_names_is_named_by_its_kernel() -> None:
    assert answer("", {"a2": XID79}, state="NODE_FAIL").suspect_nodes == ("a2",)


def test_an_error_of_one_rank_outranks_lost_peers_and_timeouts() -> None:
    log = f"[rank0]: {LOST}\n{WATCHDOG.format(1)}\n[rank3]: {KEY}\n[rank2]: {LOST}\n"
    found = answer(log)
    assert (found.reason, found.root_rank, advised(found)) == ("python_exception", 3, Verdict.STOP)


def test_a_specific_message_outranks_a_bare_exception() -> None:
    assert (
        answer(f"[rank0]: {KEY}\n[rank1]: RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n").reason
        == "cuda_oom"
    )


def test_only_consequences_are_a_weak_network_error() -> None:
    found = answer(f"[rank0]: {LOST}\n")
    assert (found.reason, found.root_rank, found.suspects, advised(found)) == (
        "nccl_network_error",
        None,
        (),
        Verdict.REQUEUE,
    )


def test_all_ranks_that_time_out_accuse_nobody() -> None:
    found = answer("\n".join(WATCHDOG.format(rank) for rank in range(4)))
    assert (found.reason, found.root_rank, found.suspects) == ("nccl_timeout", None, ())


def test_the_one_rank_that_does_not_wait_is_behind() -> None:
    found = answer("\n".join(WATCHDOG.format(rank) for rank in (0, 1, 3)))
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("nccl_timeout", 2, ("a2",))


def test_too_few_waiting_ranks_prove_nothing() -> None:
    assert answer(WATCHDOG.format(0)).suspects == ()


def test_a_device_error_names_its_node_on_the_users_word() -> None:
    found = answer("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert (found.root_rank, found.suspect_nodes, found.suspects[0].trust) == (3, ("a2",), Trust.USER)


def test_launchers_ranks_are_not_counted_out_over_nodes() -> None:
    found = answer("[rank10]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", ntasks_per_node=1)
    assert (found.reason, found.root_rank, found.suspects) == ("gpu_ecc_uncorrectable", 10, ())


def test_a_table_of_torchrun_beats_arithmetic() -> None:
    log = (
        "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "  host      : a1.cluster\n  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n"
    )
    assert answer(log).suspect_nodes == ("a1",)


def test_what_all_nodes_say_alike_is_no_nodes_fault() -> None:
    log = "".join(f"[rank{rank}]: RuntimeError: No CUDA GPUs are available\n" for rank in range(4))
    found = answer(log)
    assert (found.reason, found.suspects, advised(found)) == ("no_cuda_device", (), Verdict.STOP)


def test_the_same_on_one_node_is_that_nodes_fault() -> None:
    log = "".join(f"[rank{rank}]: RuntimeError: No CUDA GPUs are available\n" for rank in (2, 3)) + f"[rank0]: {LOST}\n"
    found = answer(log)
    assert (found.reason, found.category, found.suspect_nodes) == ("gpu_missing", Category.HARDWARE, ("a2",))
    assert advised(found) is Verdict.REQUEUE_EXCLUDE


def test_the_first_rank_alone_proves_nothing() -> None:
    found = answer(f"[rank0]: ModuleNotFoundError: No module named 'wandb'\n[rank2]: {LOST}\n")
    assert (found.reason, found.suspects, advised(found)) == ("import_error", (), Verdict.STOP)


def test_one_client_of_a_file_system_is_accused_only_if_all_kernels_were_heard() -> None:
    kernel = {"a2": "LustreError: 167-0: s: This client was evicted by s; in progress operations will fail."}
    assert answer("", kernel).suspect_nodes == ("a2",)
    gap = Gap(source=Source.KERNEL_LOG, what="a1", why="EACCES")
    assert answer("", kernel, gaps=(gap,)).suspects == ()


def test_nodes_outside_the_job_are_never_named() -> None:
    assert answer("srun: error: Node failure on z9\n", {"z9": XID79}, state="NODE_FAIL").suspects == ()


def test_the_peer_that_all_others_name_is_accused_and_not_who_complains() -> None:
    line = "{0}:1:2 [0] NCCL WARN NET/IB : Got completion from peer {1}<1> with status=12 opcode=0"
    log = "\n".join([line.format("a1", "a3"), line.format("a2", "a3"), line.format("a3", "a1")])
    assert answer(log, nodes=("a1", "a2", "a3")).suspect_nodes == ("a3",)
    assert answer(line.format("a1", "a3"), nodes=("a1", "a2", "a3")).suspects == ()


def test_a_time_limit_that_ended_a_silence_was_a_hang() -> None:
    end = "slurmstepd: error: *** JOB 1 ON a1 CANCELLED AT 2026-01-02T00:00:00 DUE TO TIME LIMIT ***\n"
    assert answer("[2026-01-01 10:00:00] step 1\n" + end, state="TIMEOUT").reason == "hang"
    assert answer("[2026-01-01 23:59:00] step 1\n" + end, state="TIMEOUT").reason == "time_limit"
    assert answer("", state="TIMEOUT").reason == "time_limit"


@pytest.mark.parametrize(
    ("code", "signal", "reason"),
    [
        (126, 0, "permission_denied"),
        (127, 0, "command_not_found"),
        (0, 125, "host_oom"),
        (137, 0, "killed_unknown"),
        (139, 0, "segfault"),
        (143, 0, "unknown"),
        (17, 0, "unknown"),
        (1, 0, "unknown"),
    ],
)
def test_exit_codes_speak_where_nothing_else_does(code: int, signal: int, reason: str) -> None:
    assert answer(exit_code=code, signal=signal).reason == reason


def test_the_table_of_reasons_is_consistent() -> None:
    for code, row in REASONS.items():
        assert row.code == code
        assert row.sentence.endswith(".")
        assert {row.one_node, row.otherwise} <= {*REASONS, ""}
        assert (row.max_requeues > 0) is row.action.restarts


def test_an_accused_node_is_worth_restarts_without_it() -> None:
    found = answer("", {"a2": XID79})
    assert (requeues(found), advised(found)) == (HARDWARE_TRIES, Verdict.REQUEUE_EXCLUDE)
    stopped = found.model_copy(update={"reason": "import_error"})
    assert requeues(stopped) == TRANSIENT_TRIES


def test_host_lists_that_never_end_cost_nothing() -> None:
    lines = [f"srun: error: n[{n}-{n + 9000}]: tasks 0-99999999{n % 10}: Killed" for n in range(500)]
    start = time.perf_counter()
    found = answer("\n".join(lines))
    assert time.perf_counter() - start < 3.0
    assert (found.reason, found.suspects) == ("killed_unknown", ())


LINES = [row.example for row in SIGNATURES] + ["[rank3]: " + row.example for row in SIGNATURES]
STATES = [
    "",
    "FAILED",
    "TIMEOUT",
    "CANCELLED by 0",
    "NODE_FAIL",
    "COMPLETED",
    "OUT_OF_MEMORY",
    "CANCELLED by ",
    "  ",
    "é",
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(LINES), max_size=12),
    st.lists(st.sampled_from(LINES), max_size=6),
    st.sampled_from(STATES),
    st.sampled_from([None, 1, 2]),
    st.integers(0, 3),
)
def test_any_mixture_is_answered_and_names_only_the_jobs_nodes(
    log: list[str], kernel: list[str], state: str, per_node: int | None, nodes: int
) -> None:
    named = tuple(f"a{index}" for index in range(nodes))
    found = answer("\n".join(log), {"a1": "\n".join(kernel)}, state=state, ntasks_per_node=per_node, nodes=named)
    assert found.reason in REASONS
    assert set(found.suspect_nodes) <= set(named)
    assert found.because
    if found.category in (Category.APPLICATION, Category.USER_OR_SCHEDULER, Category.HEALTHY):
        assert not found.suspects
