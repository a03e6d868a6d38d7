"""Who outranks whom, and when a node may be named."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.behind import CONDITIONAL
from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.reasons import HARDWARE_TRIES, REASONS, TRANSIENT_TRIES, advised, requeues
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.table import SIGNALLED
from slurm_recovery.records import (
    Attempt,
    Attribution,
    Beaten,
    Category,
    Gap,
    Observation,
    Role,
    Source,
    Trust,
    Verdict,
)

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


@pytest.mark.parametrize(
    ("why", "named"), [("No route to host", ("a3",)), ("Connection timed out", ("a3",)), ("Connection refused", ())]
)
def test_who_refuses_a_connection_is_there_and_is_not_accused(why: str, named: tuple[str, ...]) -> None:
    line = "{0}:1:2 [0] misc/socket.cc:441 NCCL WARN socketStartConnect: Connect to {1}<45153> failed : {2}"
    found = answer("\n".join(line.format(host, "a3", why) for host in ("a1", "a2")), nodes=("a1", "a2", "a3"))
    assert (found.reason, found.suspect_nodes) == ("nccl_network_error", named)


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


# -- what beat what ---------------------------------------------------------------------------------


def test_the_beaten_say_why_and_show_their_line() -> None:
    (beaten,) = answer(f"[rank0]: {LOST}\n[rank3]: {KEY}\n").beaten
    assert (beaten.reason, beaten.by, beaten.place) == ("nccl_network_error", "local_error", "job.log:1")
    assert "(job.log:2)" in beaten.why
    assert LOST in beaten.line


def test_within_a_row_too() -> None:
    found = answer(f"[rank0]: {KEY}\n[rank1]: RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n")
    assert found.reason == "cuda_oom"
    assert [(one.reason, one.place) for one in found.beaten] == [("python_exception", "job.log:1")]
    assert "job.log:2 names the error itself" in found.beaten[0].why


def test_a_record_from_before_the_why_is_still_read() -> None:
    assert Beaten.model_validate({"reason": "hang", "by": "killed"}).why == ""


# -- time -------------------------------------------------------------------------------------------


def test_embedded_times_beat_the_order_of_output() -> None:
    late = "2026-01-01 10:05:00 RuntimeError: CUDA error: uncorrectable ECC error encountered"
    early = "2026-01-01 10:00:00 RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
    found = answer(f"[rank1]: {late}\n[rank2]: {early}\n")
    assert (found.reason, found.root_rank) == ("gpu_nvlink_error", 2)
    assert [one.reason for one in found.beaten] == ["gpu_ecc_uncorrectable"]


def test_without_times_for_all_the_order_of_output_counts() -> None:
    first = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    second = "2026-01-01 10:00:00 RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
    assert answer(f"[rank1]: {first}\n[rank2]: {second}\n").reason == "gpu_ecc_uncorrectable"


def test_an_error_after_which_the_program_went_on_is_no_cause() -> None:
    log = "2026-01-01 10:00:00 ValueError: bad sample, skipped\n" + "2026-01-01 14:00:00 step 900 loss 2.0\n"
    found = answer(log)
    assert found.reason == "unknown"
    assert [(one.reason, "went on" in one.why) for one in found.beaten] == [("python_exception", True)]
    waited = "".join(WATCHDOG.format(rank) + "\n" for rank in range(4))
    assert answer(log.replace("\n", "\n" + waited, 1)).reason == "python_exception"


def test_an_error_after_the_last_date_before_a_silent_limit_is_the_cause() -> None:
    end = "slurmstepd: error: *** JOB 1 ON a1 CANCELLED AT 2026-01-02T00:00:00 DUE TO TIME LIMIT ***\n"
    found = answer(f"[2026-01-01 10:00:00] step 1\n[rank2]: {KEY}\n{end}", state="TIMEOUT")
    assert (found.reason, found.root_rank) == ("python_exception", 2)


def test_a_kernel_line_after_a_log_that_fell_silent_counts() -> None:
    kernel = {"a2": "[Mon Jan 12 14:00:00 1970] " + XID79}
    assert answer("[1970-01-12 09:00:00] step 1\n", kernel).reason == "gpu_fell_off_bus"


def test_an_undated_xid_of_a_process_that_is_not_the_jobs_is_weaker_than_the_programs_own_error() -> None:
    log = f"a2:4100:4200 [0] NCCL INFO [Service thread] Connection closed by localRank 1\n[rank3]: {KEY}\n"
    stranger, own = XID79.replace("pid=1,", "pid=77,"), XID79.replace("pid=1,", "pid=4100,")
    assert answer(log, {"a2": stranger}).reason == "python_exception"
    assert answer(log, {"a2": own}).reason == "gpu_fell_off_bus"
    assert answer(log.partition("\n")[0], {"a2": stranger}).suspect_nodes == ("a2",)


def test_the_process_that_the_kernel_names_tells_the_rank() -> None:
    log = "[rank2]:[E api.cpp:1] process 4100 got signal: 15\n[rank3]: RuntimeError: CUDA error: unknown error\n"
    assert answer(log, {"a2": XID79.replace("pid=1,", "pid=4100,")}).root_rank == 2


# -- several attempts in one file -------------------------------------------------------------------

REQUEUED = "slurmstepd: error: *** JOB 1 ON a1 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***\n"
ECC = "[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
RESUMED = "resuming from step 4000\n"


def test_what_stands_before_a_requeue_is_history() -> None:
    found = answer(f"{ECC}{REQUEUED}{RESUMED}[rank3]: {KEY}\n")
    assert (found.reason, found.root_rank, found.since) == ("python_exception", 3, "job.log:2")


def test_a_requeue_that_is_the_last_word_is_no_boundary() -> None:
    found = answer(f"{ECC}{REQUEUED}[rank1]: {LOST}\n", state="REQUEUED")
    assert (found.reason, found.since) == ("requeued", "")
    assert answer(f"{ECC}{REQUEUED}[rank1]: {LOST}\n").reason == "gpu_ecc_uncorrectable"


def test_an_earlier_attempt_explains_nothing_even_where_nothing_else_does() -> None:
    assert answer(f"{ECC}{REQUEUED}{RESUMED}").reason == "unknown"


def test_an_error_seen_again_may_be_of_this_attempt_too() -> None:
    assert answer(f"[rank3]: {KEY}\n{REQUEUED}{RESUMED}[rank3]: {KEY}\n").reason == "python_exception"


def test_workers_that_torchrun_restarted_left_history() -> None:
    restart = "[INFO] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    assert answer(f"{ECC}{restart}[rank3]: {KEY}\n").reason == "python_exception"
    assert answer(f"{ECC}{restart}[rank1]: {LOST}\n").reason == "gpu_ecc_uncorrectable"


def test_srun_that_speaks_of_other_nodes_is_of_an_earlier_attempt() -> None:
    earlier = f"{ECC}srun: error: z9: task 0: Exited with exit code 1\n"
    assert answer(f"{earlier}[rank3]: {KEY}\n").reason == "python_exception"


def test_another_jobs_words_are_history() -> None:
    words = "slurmstepd: error: *** STEP 77.0 ON a1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    assert answer(f"{words}{RESUMED}[rank3]: {KEY}\n", job_id=78).reason == "python_exception"


# -- what a job's own words prove -------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["3: ", "[rank3]: ", "echo ", "[1,3]<stderr>:"])
def test_srun_prints_without_a_prefix(prefix: str) -> None:
    found = answer(f"{prefix}srun: error: Node failure on a2\n[rank2]: {KEY}\n", state="")
    assert (found.reason, found.suspects) == ("python_exception", ())


def test_slurmstepd_may_stand_behind_a_label_and_a_time() -> None:
    word = "slurmstepd: error: *** STEP 1.0 ON a1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    for prefix in ("", "0: ", "[2026-01-01 00:00:00] ", "2026-01-01T00:00:00.123 "):
        assert answer(prefix + word, state="").reason == "time_limit", prefix


def test_words_about_the_job_that_its_state_contradicts_are_weak() -> None:
    word = "srun: error: Node failure on a2\n"
    assert answer(f"{word}[rank2]: {KEY}\n").reason == "python_exception"
    weak = answer(word)
    assert (weak.reason, weak.suspect_nodes, weak.suspects[0].trust) == ("node_fail", ("a2",), Trust.USER)
    assert answer(f"{word}[rank2]: {KEY}\n", state="").suspect_nodes == ("a2",)


def test_a_forged_kernel_line_is_the_users_word() -> None:
    found = answer(f"[rank3]: {XID79}\n[rank3]: GPU has fallen off the bus and is not responding to commands.\n")
    assert {one.trust for one in found.suspects} <= {Trust.USER}


def test_a_text_that_a_program_logs_as_data_is_weaker_than_an_error() -> None:
    data = '{"sample": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}\n'
    assert answer(f"{data}[rank3]: {KEY}\n").reason == "python_exception"
    assert answer(data).reason == "gpu_ecc_uncorrectable"


def test_a_kernel_log_of_a_node_that_the_job_did_not_have_says_nothing() -> None:
    assert answer("", {"z9": XID79}).reason == "unknown"


def test_srun_names_several_failed_nodes_in_one_list() -> None:
    found = answer("srun: error: Node failure on a[2-3]\n", state="NODE_FAIL", nodes=("a1", "a2", "a3"))
    assert found.suspect_nodes == ("a2", "a3")


# -- one node, few nodes, all nodes -----------------------------------------------------------------

EIGHT = tuple(f"a{number}" for number in range(1, 9))
NO_GPU = "[rank{0}]: RuntimeError: No CUDA GPUs are available\n"


def on(ranks: Iterable[int], line: str = NO_GPU) -> str:
    return "".join(line.format(rank) for rank in ranks)


def test_few_nodes_of_many_are_at_fault_and_half_of_them_are_not() -> None:
    others = on((0, 2, 8, 10), f"[rank{{0}}]: {LOST}\n")
    assert answer(on((4, 5, 6, 7)) + others, nodes=EIGHT).suspect_nodes == ("a3", "a4")
    half = answer(on(range(8)) + on((8, 10, 12, 14), f"[rank{{0}}]: {LOST}\n"), nodes=EIGHT)
    assert (half.suspects, advised(half)) == ((), Verdict.STOP)


def test_a_log_that_could_not_be_read_makes_no_node_guilty() -> None:
    log = on((2, 3)) + f"[rank0]: {LOST}\n"
    gap = Gap(source=Source.JOB_LOG, what="job.err", why="EACCES")
    assert answer(log).suspect_nodes == ("a2",)
    assert answer(log, gaps=(gap,)).suspects == ()
    waiting = "\n".join(WATCHDOG.format(rank) for rank in (0, 1, 3))
    assert answer(waiting, gaps=(gap,)).suspects == ()


def test_a_fault_of_what_most_nodes_share_is_no_nodes_fault() -> None:
    down = "mlx5_core 0000:9c:00.0 mlx5_4: Port: 1 Link DOWN"
    assert answer("", {"a2": down}, nodes=EIGHT).suspect_nodes == ("a2",)
    assert answer("", dict.fromkeys(EIGHT[:5], down), nodes=EIGHT).suspects == ()


def test_the_kernels_word_about_a_lost_file_system_beats_any_exception_but_not_a_specific_one() -> None:
    evicted = {"a2": "LustreError: 167-0: s: This client was evicted by s; in progress operations will fail."}
    assert answer(f"[rank3]: {KEY}\n", evicted).suspect_nodes == ("a2",)
    assert answer("[rank3]: RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n", evicted).reason == "cuda_oom"


def test_strangers_that_fill_the_memory_outrank_slurms_own_count() -> None:
    kernel = {"a2": "Out of memory: Killed process 811 (collector) total-vm:90212kB, anon-rss:81920kB"}
    found = answer("", kernel, state="OUT_OF_MEMORY", exit_code=0, signal=125)
    assert (found.reason, found.category, found.suspect_nodes) == ("host_oom", Category.NODE, ("a2",))


def test_memory_that_a_program_missed_is_its_ranks_error_and_no_word_of_slurm() -> None:
    found = answer("[rank1]: ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n")
    assert (found.reason, found.root_rank) == ("host_oom", 1)


def test_a_device_that_is_lost_keeps_processes_from_ending() -> None:
    when = "AT 2026-01-01T00:00:00 DUE TO JOB NOT ENDING WITH SIGNALS"
    word = f"slurmstepd: error: *** JOB 1 STEPD TERMINATED ON a2 {when} ***\n"
    assert answer(word).reason == "kill_task_failed"
    assert answer(word, {"a2": XID79}).reason == "gpu_fell_off_bus"
    assert answer(word, {"a1": XID79}).reason == "kill_task_failed"


# -- who waited for whom ----------------------------------------------------------------------------

STATUS = "[rank{0}]:[E] [PG ID {1} PG GUID {2} Rank {0}] PG status: last enqueued work: {3}, last completed work: {4}\n"
WORK = (
    "[rank{0}]: [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, "
    "NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600009 milliseconds before timing out.\n"
)


def test_the_rank_with_the_lower_counter_is_behind() -> None:
    log = "".join(STATUS.format(rank, 0, "0(default_pg)", 900 - (rank == 2), 880) for rank in range(4))
    found = answer(log)
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("nccl_timeout", 2, ("a2",))
    assert found.evidence[0].rank == 2


def test_counters_of_different_groups_are_not_compared() -> None:
    log = "".join(STATUS.format(rank, 1, f"{3 + rank // 2}(tp)", 900 + 50 * (rank // 2), 880) for rank in range(4))
    assert answer(log).suspects == ()


def test_the_rank_that_waits_in_an_earlier_collective_is_behind() -> None:
    log = "".join(WORK.format(rank, 5000 - (rank == 3), "ALLREDUCE", 64) for rank in range(4))
    assert answer(log).root_rank == 3


def test_the_first_collectives_are_of_many_groups() -> None:
    log = "".join(WORK.format(rank, 5 - (rank == 3), "ALLREDUCE", 64) for rank in range(4))
    assert answer(log).root_rank is None


@pytest.mark.parametrize(("kind", "size"), [("BROADCAST", 64), ("ALLREDUCE", 32)])
def test_one_rank_in_another_collective_of_the_same_number_is_a_mismatch(kind: str, size: int) -> None:
    log = "".join(WORK.format(rank, 5000, "ALLREDUCE", 64) for rank in (0, 2, 3)) + WORK.format(1, 5000, kind, size)
    found = answer(log)
    assert (found.reason, found.root_rank, advised(found)) == ("collective_mismatch", 1, Verdict.STOP)


def test_half_of_the_ranks_in_another_collective_may_be_another_group() -> None:
    log = "".join(WORK.format(rank, 5000, ("ALLREDUCE", "BROADCAST")[rank % 2], 64) for rank in range(4))
    assert answer(log).reason == "nccl_timeout"


def test_a_silent_rank_that_lost_a_peer_is_not_silent() -> None:
    waiting = "\n".join(WATCHDOG.format(rank) for rank in (0, 1, 3))
    assert answer(f"{waiting}\n[rank2]: {LOST}\n").suspects == ()


def test_the_stores_barrier_lacks_the_ranks_of_one_node() -> None:
    line = (
        "[rank{0}]: RuntimeError: Timed out initializing process group in store based barrier on rank: {0}, for key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=6, timeout=0:30:00)\n"
    )
    nodes = ("a1", "a2", "a3", "a4")
    found = answer(on((0, 1, 2, 3, 6, 7), line), nodes=nodes)
    assert (found.reason, found.suspect_nodes) == ("rendezvous_timeout", ("a3",))
    assert answer(on((0, 1, 2), line), nodes=nodes).suspects == ()


def test_the_tasks_that_jax_lists_and_not_the_one_that_prints_the_list() -> None:
    log = (
        "0: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
        "0: /job:jax_worker/replica:0/task:2\n0: The tasks have crashed.\n"
    )
    found = answer(log, nodes=("a1", "a2", "a3"), ntasks_per_node=1)
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("hang", 2, ("a3",))


def test_the_rank_that_horovod_waits_for() -> None:
    log = "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:3: [allreduce.embed.weight, allreduce.mlp.weight]\n"
    found = answer(log)
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("hang", 3, ("a2",))


def test_a_heartbeat_that_one_rank_misses_and_one_that_all_miss() -> None:
    line = "[WARNING] [RankMonitorServer:{0}] Did not get subsequent heartbeat. Waited 171.92 seconds.\n"
    found = answer(line.format(3))
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("hang", 3, ("a2",))
    assert answer(on(range(4), line)).suspects == ()


def test_who_lost_a_peer_had_met_before() -> None:
    lost = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.1.1]:3\n"
    late = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: gone\n"
    assert answer(lost + late).reason == "gloo_connection_error"
    assert answer(late + lost).reason == "rendezvous_timeout"


# -- the end of the work ----------------------------------------------------------------------------


def test_ranks_that_wait_after_the_work_was_done_need_no_restart() -> None:
    done = "final checkpoint /ck/step_5000 saved in 41 s\n"
    waiting = "\n".join(WATCHDOG.format(rank) for rank in range(4)) + "\n"
    found = answer(done + waiting)
    assert (found.reason, advised(found)) == ("teardown_hang", Verdict.STOP)
    assert answer(done, state="TIMEOUT").reason == "teardown_hang"
    assert answer(f"{done}{RESUMED}{waiting}").reason == "nccl_timeout"
    assert answer(f"{done}[rank2]: {KEY}\n{waiting}").reason == "python_exception"


def test_the_one_task_that_was_killed_began_it() -> None:
    log = f"srun: error: a2: task 3: Killed\n[rank0]: {LOST}\n"
    found = answer(log, exit_code=137)
    assert (found.reason, found.root_rank, found.suspects) == ("killed_unknown", 3, ())


def test_thousands_of_lines_are_attributed_at_once() -> None:
    names = tuple(f"n{number}" for number in range(512))
    log = "".join(WORK.format(rank, 5000 - (rank == 77), "ALLREDUCE", 64) for rank in range(4096))
    seen = observe(log, nodes=names, ntasks_per_node=8)
    start = time.process_time()
    found = attribute(seen)
    assert time.process_time() - start < 2.0  # 0.2 s alone on one core
    assert (found.root_rank, found.suspect_nodes) == (77, ("n9",))


def test_the_order_in_which_logs_were_read_changes_nothing() -> None:
    logs = [observe("", {node: text}).evidence for node, text in (("a1", XID79), ("a2", XID79.replace("79,", "48,")))]
    logs.append(observe(f"[rank3]: {KEY}\n").evidence)
    orders = [logs, logs[::-1], [logs[1], logs[2], logs[0]]]
    seen = [observe().model_copy(update={"evidence": tuple(sum(order, ()))}) for order in orders]
    assert len({attribute(one).model_dump_json() for one in seen}) == 1


# -- the table --------------------------------------------------------------------------------------


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
    start = time.process_time()
    found = answer("\n".join(lines), nodes=())
    assert time.process_time() - start < 3.0
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


# -- what is only felt ------------------------------------------------------------------------------

LABELLED = "{0}: " + LOST + "\n"


def ends(*words: str) -> str:
    return "".join(f"srun: error: {word}\n" for word in words)


def test_every_reason_with_a_conditional_signature_has_a_place_among_them() -> None:
    reasons = {row.reason for row in SIGNATURES if row.role is Role.CONDITIONAL} | set(SIGNALLED.values())
    assert reasons <= set(CONDITIONAL)
    assert len(set(CONDITIONAL)) == len(CONDITIONAL)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RuntimeError: NCCL communicator was aborted on rank 3.", "unknown"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousGracefulExitError: closed", "unknown"),
        ("OSError: [Errno 113] No route to host", "nccl_network_error"),
        ("asyncio.exceptions.TimeoutError", "hang"),
        ("ConnectionError: Connection lost", "unknown"),
        ("jax.errors.JaxRuntimeError: UNAVAILABLE: failed to connect to all addresses", "unknown"),
        ("jax.errors.JaxRuntimeError: INTERNAL: Failed to execute XLA Runtime executable", "unknown"),
        ("ray.train.base_trainer.TrainingFailedError: The Ray Train run failed.", "unknown"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 999: unknown error", "unknown"),
        (
            'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830',
            "unknown",
        ),
        ("aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", "external_service_unreachable"),
        ("urllib.error.HTTPError: HTTP Error 503: Service Unavailable", "external_service_unreachable"),
        ("OSError: [Errno 110] Connection timed out: '/lustre/a.bin'", "filesystem_io"),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
            "killed_unknown",
        ),
    ],
)
@pytest.mark.parametrize("prefix", ["[rank3]: ", "3: ", "[1,3]<stderr>:", "1: [default1]:", ""])
def test_an_exception_about_others_stops_nothing(prefix: str, line: str, reason: str) -> None:
    found = answer(prefix + line + "\n")
    assert (found.reason, found.suspects) == (reason, ())
    assert advised(found) is Verdict.REQUEUE


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("Killed", "killed_unknown"),
        ("Exited with exit code 137", "killed_unknown"),
        ("Segmentation fault", "segfault"),
        ("Exited with exit code 3", "unknown"),
        ("Bus error", "unknown"),
    ],
)
def test_who_ends_first_without_a_word_did_not_lose_a_peer(how: str, reason: str) -> None:
    lost = "".join(LABELLED.format(rank) for rank in (0, 1, 3))
    rest = ("a1: tasks 0-1: Exited with exit code 1", "a2: task 3: Exited with exit code 1")
    found = answer(lost + ends(f"a2: task 2: {how}", *rest))
    assert (found.reason, found.root_rank, found.suspects) == (reason, 2, ())


def test_who_lost_a_peer_itself_was_not_the_first_to_end() -> None:
    lost = "".join(LABELLED.format(rank) for rank in range(4))
    found = answer(lost + ends("a2: task 2: Exited with exit code 1", "a1: tasks 0-1: Exited with exit code 1"))
    assert (found.reason, found.root_rank) == ("nccl_network_error", None)


def test_whom_srun_killed_when_the_rest_had_ended_was_waited_for() -> None:
    waited = "".join(WATCHDOG.format(rank) + "\n" for rank in (0, 1, 3))
    killed = (
        "a1: tasks 0-1: Aborted\nsrun: error: a2: task 3: Aborted\nsrun: Terminating StepId=1.0",
        "a2: task 2: Killed",
    )
    assert answer(waited + ends(*killed)).reason == "nccl_timeout"


def test_the_one_killed_before_srun_killed_the_rest_was_first() -> None:
    rest = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n" + ends("a1: tasks 0-1: Killed")
    found = answer(ends("a2: task 3: Killed") + rest, exit_code=137)
    assert (found.reason, found.root_rank) == ("killed_unknown", 3)


def test_a_step_after_one_all_of_whose_tasks_had_ended_is_another_attempt() -> None:
    step = ends(*(f"a{1 + task // 2}: task {task}: Exited with exit code 1" for task in range(4)))
    found = answer(f"[rank1]: {KEY}\n{step}" + ends("a2: task 2: Killed"), exit_code=137)
    assert (found.reason, found.root_rank, found.since) == ("killed_unknown", 2, "job.log:5")


def test_steps_of_one_task_that_run_side_by_side_are_no_attempts() -> None:
    found = answer(
        f"{KEY}\n" + ends("a1: task 0: Exited with exit code 1", "a1: task 0: Killed"), nodes=("a1",), ntasks_per_node=1
    )
    assert found.reason == "python_exception"


BLOCK = (
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   RANK {0} PID 1 RUNNING AT {1}\n"
    "=   KILLED BY SIGNAL: {2}\n"
)


def test_hydras_signal_that_is_not_its_own_is_the_roots() -> None:
    blocks = BLOCK.format(0, "a1", "9 (Killed)") + BLOCK.format(3, "a2", "11 (Segmentation fault)")
    found = answer(blocks)
    assert (found.reason, found.root_rank, found.suspects) == ("segfault", 3, ())


def test_mpirun_names_the_first_that_failed() -> None:
    words = "mpirun detected that one or more processes exited with non-zero status\n\n  Process name: [[4,1],2]\n"
    assert (answer(words).reason, answer(words).root_rank) == ("unknown", 2)
    assert (answer(f"{KEY}\n{words}").reason, answer(f"{KEY}\n{words}").root_rank) == ("python_exception", 2)


def test_memory_that_a_program_misses_is_not_slurms_word() -> None:
    ray = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    assert answer(ray, {"a2": XID79}).reason == "gpu_fell_off_bus"
    slurm = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n"
    assert answer(slurm).reason == "host_oom"


FULL = "(raylet, ip=10.4.0.23) (raylet) file_system_monitor.cc:116: /tmp/ray/s is over 95% full, available space: 3 GB"


def test_a_disk_that_is_certainly_a_nodes_own_stops_nothing() -> None:
    found = answer(f"{FULL}\nray.exceptions.OutOfDiskError: Local disk is full\n")
    assert (found.reason, found.suspects, advised(found)) == ("local_disk_full", (), Verdict.REQUEUE)
    assert answer(f"1: Local node IP: 10.4.0.23\n{FULL}\n", ntasks_per_node=1).suspect_nodes == ("a2",)


def test_a_write_that_fails_on_one_node_while_others_go_on_is_that_nodes_disk() -> None:
    line = "{0}: RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 128 vs 22\n"
    one = "".join(line.format(rank) for rank in (2, 3)) + "".join(LABELLED.format(rank) for rank in (0, 1))
    assert (answer(one).reason, answer(one).suspect_nodes) == ("local_disk_full", ("a2",))
    assert answer("".join(map(line.format, range(4)))).reason == "disk_full"


def test_the_odd_collective_is_counted_by_what_each_rank_says_of_itself() -> None:
    line = (
        "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
        "CollectiveFingerPrint(SequenceNumber=20, OpType=ALLREDUCE, TensorShape=[{1}], TensorDtypes=Float), but Rank 0"
    )
    odd = "\n".join(line.format(rank, 7 if rank == 2 else 64) for rank in range(4))
    assert (answer(odd).reason, answer(odd).root_rank) == ("collective_mismatch", 2)
    assert answer("\n".join(line.format(rank, 7 if rank < 2 else 64) for rank in range(4))).root_rank is None


SHELL = "/var/spool/slurmd/job1/slurm_script: line 4: {0}: command not found\n"


def test_a_shell_goes_on_after_a_command_that_it_does_not_find() -> None:
    assert answer(SHELL.format("module") + f"[rank1]: {LOST}\n").reason == "nccl_network_error"
    assert answer(SHELL.format("module") + f"[rank1]: {KEY}\n").reason == "python_exception"
    assert answer(SHELL.format("torchrun"), exit_code=127).reason == "command_not_found"


def test_a_name_that_was_found_in_the_end_is_no_cause() -> None:
    name = (
        "[W socket.cpp:697] [c10d] The IPv4 network addresses of (head, 29500) cannot be retrieved (gai error: -3).\n"
    )
    assert answer(f"{name}[rank1]: {LOST}\n").reason == "nccl_network_error"
    assert answer(f"{name}[rank1]: RuntimeError: Socket Timeout\n").reason == "name_resolution_failed"
    assert answer(name.replace("IPv4", "IPv6"), exit_code=137).reason == "killed_unknown"


def test_kernels_that_hang_on_most_nodes_alike_accuse_no_node() -> None:
    hung = "INFO: task python:12 blocked for more than 120 seconds."
    assert answer("", {"a1": hung, "a2": hung}).suspects == ()
    assert answer("", {"a2": hung}, nodes=("a1", "a2", "a3")).suspect_nodes == ("a2",)


def test_a_kernel_line_that_the_program_outlived_by_hours_ended_nothing() -> None:
    lockup = {"a2": "[Thu Jan  1 12:00:00 2026] watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:464579]"}
    end = "slurmstepd: error: *** JOB 1 ON a1 CANCELLED AT 2026-01-01T20:00:05 DUE TO TIME LIMIT ***\n"
    assert answer(f"2026-01-01 20:00:00 step 9\n{end}", lockup, state="TIMEOUT").reason == "time_limit"
    assert answer(f"2026-01-01 12:00:01 step 9\n{end}", lockup, state="TIMEOUT").reason == "node_hang"


DOWN = {"a2": "mlx5_core 0000:9c:00.0 mlx5_4: Port: 1 Link DOWN"}


def test_a_link_that_is_down_outranks_an_exception_that_libraries_raise_for_anything() -> None:
    anything = "[rank0]: RuntimeError: training step failed\n"
    assert answer(anything, DOWN).suspect_nodes == ("a2",)
    assert answer(f"[rank0]: {KEY}\n", DOWN).reason == "python_exception"
    came_back = {"a2": DOWN["a2"] + "\nmlx5_core 0000:9c:00.0 mlx5_4: Port: 1 Link UP"}
    assert answer(anything, came_back).reason == "python_exception"


def test_a_node_without_its_driver_does_not_explain_a_kill() -> None:
    absent = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    assert answer(absent).reason == "no_cuda_device"
    assert answer(absent, exit_code=137).reason == "killed_unknown"
    assert answer(absent + WATCHDOG.format(0)).reason == "nccl_timeout"


def test_a_time_limit_that_ended_a_wait_for_a_lost_link_is_the_links() -> None:
    waited = "".join(WATCHDOG.format(rank) + "\n" for rank in range(4))
    assert answer(waited, DOWN, state="TIMEOUT").suspect_nodes == ("a2",)
    assert answer("", DOWN, state="TIMEOUT").reason == "time_limit"
    came_back = {"a2": DOWN["a2"] + "\nmlx5_core 0000:9c:00.0 mlx5_4: Port: 1 Link UP"}
    assert answer(waited, came_back, state="TIMEOUT").reason == "time_limit"


def test_an_abort_is_what_an_exception_led_to() -> None:
    abort = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"
    assert answer(f"[1,2]<stderr>:{KEY}\n{abort}").reason == "python_exception"
    assert answer(abort).reason == "mpi_abort"


@pytest.mark.parametrize("rank", range(1, 4))
def test_one_rank_that_sees_no_gpu_is_enough_on_any_node(rank: int) -> None:
    lost = "".join(f"[rank{other}]: {LOST}\n" for other in range(4) if other != rank)
    found = answer(f"[rank{rank}]: RuntimeError: No CUDA GPUs are available\n{lost}")
    assert (found.reason, found.suspect_nodes) == ("gpu_missing", (f"a{1 + rank // 2}",))


def test_one_rank_of_several_of_a_launcher_does_not_speak_for_its_node() -> None:
    world = "{0}:   global_ranks=[{1}, {2}]\n{0}:   global_world_sizes=[4, 4]\n"
    placed = world.format(0, 0, 1) + world.format(1, 2, 3)
    line = "1: [rank{0}]: OSError: [Errno 5] Input/output error: '/mnt/a'\n"
    lost = f"0: [rank0]: {LOST}\n"
    assert answer(placed + line.format(3) + lost, ntasks_per_node=1).suspects == ()
    assert answer(placed + line.format(2) + line.format(3) + lost, ntasks_per_node=1).suspect_nodes == ("a2",)


# Ranks: which of them began, and which cannot be.

EXITED = "srun: error: {0}: task {1}: Exited with exit code 1\n"
ECC = "[rank{0}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
FOUR = ("a1", "a2", "a3", "a4")


@pytest.mark.parametrize("rank", ["128", "99999999", "99999999999999999999"])
def test_a_line_of_a_rank_that_no_job_of_this_size_has_is_no_cause(rank: str) -> None:
    found = answer(ECC.format(rank) + f"[rank1]: {KEY}\n" + EXITED.format("a1", 1))
    assert (found.reason, found.root_rank, found.suspects) == ("python_exception", 1, ())
    assert answer(ECC.format(rank)).reason == "unknown"


def test_the_only_rank_beyond_the_tasks_is_none_where_the_tasks_that_failed_are_ranks() -> None:
    odd = ECC.format(9)
    assert answer(f"{odd}[rank1]: {KEY}\n" + EXITED.format("a1", 1)).reason == "python_exception"
    assert answer(f"{odd}[rank1]: {KEY}\n" + EXITED.format("a1", 0)).root_rank == 9
    assert answer(odd + EXITED.format("a1", 1)).root_rank == 9


def test_no_node_is_counted_out_where_srun_saw_tasks_fail_on_others_alone() -> None:
    assert answer(ECC.format(3) + EXITED.format("a1", 0)).suspects == ()
    assert answer(ECC.format(3) + EXITED.format("a1", 0) + EXITED.format("a2", 3)).suspect_nodes == ("a2",)


def test_the_very_same_on_many_ranks_of_all_nodes_began_on_none() -> None:
    same = "".join(f"[rank{rank}]: {KEY}\n" for rank in (5, 0, 12))
    assert answer(same, ntasks_per_node=8).root_rank is None
    assert answer(f"[rank5]: {KEY}\n" + f"[rank0]: {KEY}\n", ntasks_per_node=8).root_rank == 5
    late = "".join(f"2026-01-01 10:{minute}:00 [rank{rank}]: {KEY}\n" for minute, rank in ((10, 5), (20, 0), (21, 12)))
    assert answer(late, ntasks_per_node=8).root_rank == 5


def test_what_many_raise_for_anything_follows_from_what_one_alone_raised() -> None:
    many = "".join(f"[rank{rank}]: RuntimeError: a peer is gone\n" for rank in (3, 0, 1))
    assert answer(f"{many}[rank2]: {KEY}\n").root_rank == 2
    assert answer(many).root_rank is None


def test_a_single_task_is_a_rank_only_where_nothing_shows_several() -> None:
    single: dict[str, Any] = {"nodes": ("a1",), "ntasks_per_node": 1}
    assert answer(f"{KEY}\n" + EXITED.format("a1", 0), **single).root_rank == 0
    actor = f"(Actor pid=7, ip=10.0.0.3) {KEY}\n"
    assert answer(actor + EXITED.format("a1", 0), **single).root_rank is None
    spawned = f"-- Process 2 terminated with the following error:\n{KEY}\n"
    assert answer(spawned + EXITED.format("a1", 0), **single).root_rank == 2


def test_lines_in_a_launchers_block_are_those_of_its_rank() -> None:
    block = f"----------Begin global rank 11 STDERR----------\n{KEY}\n----------End global rank 11 STDERR----------\n"
    assert answer(block, ntasks_per_node=1).root_rank == 11
    assert answer(f"{block}{KEY}\n", ntasks_per_node=1).root_rank is None  # of the block, or not


def test_a_device_error_is_on_the_only_host_whose_launcher_failed_if_its_rank_can_be_there() -> None:
    def suspected(rank: int | None, *ends: str) -> tuple[str, ...]:
        line = ECC.format(rank) if rank is not None else ECC.partition(": ")[2]
        return answer(line + "".join(ends), nodes=FOUR, ntasks_per_node=1).suspect_nodes

    assert suspected(None, EXITED.format("a3", 2)) == ("a3",)
    assert suspected(None, EXITED.format("a3", 2), EXITED.format("a1", 0)) == ()
    assert suspected(17, EXITED.format("a3", 2)) == ("a3",)
    assert suspected(17, EXITED.format("a1", 0)) == ()
    assert suspected(17, EXITED.format("a3", 2), EXITED.format("a1", 0)) == ()


# What a line says further on.

OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 GiB. GPU 1 has a total capacity of "
    "79.11 GiB of which 12.70 GiB is free. {0}Of the allocated memory 8.10 GiB is allocated by PyTorch\n"
)
HOLDS = "Process {0} has 9.40 GiB memory in use. "
ITSELF = "Including non-PyTorch memory, this process has 9.40 GiB memory in use. "


@pytest.mark.parametrize(
    ("holders", "reason"),
    [
        (HOLDS.format(1), "cuda_oom"),
        (HOLDS.format(1) + ITSELF, "stale_gpu_process"),
        (HOLDS.format(1) + HOLDS.format(2), "stale_gpu_process"),
        ("".join(map(HOLDS.format, range(5))) + ITSELF, "cuda_oom"),
    ],
)
def test_one_number_among_the_holders_of_memory_is_the_program_itself_where_it_does_not_know(
    holders: str, reason: str
) -> None:
    assert answer(OOM.format(holders)).reason == reason


@pytest.mark.parametrize(
    ("why", "reason", "nodes"),
    [
        ("Unable to layout tasks on given cpus", "slurm_config_error", ()),
        ("Unable to satisfy cpu bind request", "slurm_config_error", ()),
        ("Permission denied", "launch_failed", ()),
        ("Communication connection failure", "launch_failed", ("a1",)),
        ("Job credential expired", "launch_failed", ("a1",)),
    ],
)
def test_a_launch_that_failed_is_against_a_node_only_for_what_is_the_nodes(
    why: str, reason: str, nodes: tuple[str, ...]
) -> None:
    found = answer(f"srun: error: Task launch for StepId=1.0 failed on node a1: {why}\n")
    assert (found.reason, found.suspect_nodes) == (reason, nodes)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ImportError: /home/u/a.so: cannot stat shared object: Stale file handle", "filesystem_io"),
        ("ImportError: /home/u/a.so: cannot read file data: Input/output error", "filesystem_io"),
        ("ImportError: /home/u/a.so: cannot open shared object file: No such file or directory", "import_error"),
        (
            'safetensors_rust.SafetensorError: Error: IoError(Os { code: 28, message: "No space left on device" })',
            "disk_full",
        ),
        ("MyError: [Errno 107] Transport endpoint is not connected: '/mnt/a/b'", "filesystem_io"),
    ],
)
def test_an_exception_whose_reason_is_the_operating_systems_is_of_that_reason(line: str, reason: str) -> None:
    assert answer(f"[rank1]: {line}\n").reason == reason


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("RuntimeError: accelerator reported: hardware error 7", Verdict.REQUEUE),
        ("RuntimeError: open(/dev/accel0): Operation not permitted", Verdict.REQUEUE),
        ("ValueError: no parser for 'hardware error 7'", Verdict.STOP),
        ("RuntimeError: shapes do not match", Verdict.STOP),
    ],
)
def test_an_exception_of_anything_that_speaks_of_devices_stops_no_job(line: str, action: Verdict) -> None:
    assert advised(answer(f"[rank1]: {line}\n")) is action


def test_a_program_at_a_place_that_all_share_is_missing_for_its_mount() -> None:
    def found(path: str, *others: int) -> Attribution:
        heard = "".join(f"{rank}: Using backend nccl\n" for rank in others)
        line = f"1: python3: can't open file '{path}': [Errno 2] No such file or directory\n"
        return answer(heard + line, nodes=FOUR, ntasks_per_node=1)

    assert (found("/work/u/a.py", 0, 2, 3).reason, found("/work/u/a.py", 0, 2, 3).suspect_nodes) == (
        "mount_missing",
        ("a2",),
    )
    assert found("/opt/u/a.py", 0, 2, 3).reason == "command_not_found"
    assert found("/work/u/a.py").suspects == ()


# Attempts and limits.


def test_ranks_that_got_beyond_their_meeting_are_not_of_the_step_that_had_no_port() -> None:
    taken = "[rank0]: RuntimeError: The server socket has failed to listen on any local network address: EADDRINUSE\n"
    full = "[rank3]: OSError: [Errno 28] No space left on device: '/mnt/a/b'\n"
    assert answer(taken + EXITED.format("a1", 0) + full).reason == "disk_full"
    assert answer(taken + full).reason == "port_in_use"
    assert answer(taken + EXITED.format("a1", 0) + f"[rank3]: {KEY}\n").reason == "port_in_use"


def test_an_error_of_a_rank_that_was_the_last_word_before_a_limit_outranks_it() -> None:
    limit = "slurmstepd: error: *** JOB 1 ON a1 CANCELLED AT 2026-01-09T20:00:05 DUE TO TIME LIMIT ***\n"
    error = f"[rank1]: {KEY}\n"
    assert answer(error + limit, state="TIMEOUT").reason == "python_exception"
    assert answer(error + "step 4 loss 2\n" * 40 + limit, state="TIMEOUT").reason == "time_limit"
    assert answer(f"{KEY}\n{limit}", state="TIMEOUT").reason == "time_limit"
    assert answer(limit + error, state="TIMEOUT").reason == "time_limit"


def test_ray_tells_of_a_lost_node_by_its_address() -> None:
    hosts = "==> a1 head 10.0.0.1\n==> a2 worker 10.0.0.2\n==> a3 worker 10.0.0.3\n"
    lost = (
        "(raylet) The node with node id: {0} and address: 10.0.0.{0} and node name: 10.0.0.{0} has been marked dead "
        "because the detector has missed too many heartbeats from it.\n"
    )
    three: dict[str, Any] = {"nodes": ("a1", "a2", "a3"), "ntasks_per_node": 1}
    assert answer(hosts + lost.format(2), **three).suspect_nodes == ("a2",)
    assert answer(hosts + lost.format(2) + lost.format(3), **three).suspects == ()
    assert answer(lost.format(2), **three).suspects == ()


def test_an_actor_without_an_address_is_on_the_drivers_own_node() -> None:
    line = "(Worker_TP1 pid=7) RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
    one: dict[str, Any] = {"ntasks_per_node": 1}
    assert answer(line + EXITED.format("a2", 1), **one).suspect_nodes == ("a2",)
    assert answer(line.replace("pid=7", "pid=7, ip=10.0.0.9") + EXITED.format("a2", 1), **one).suspects == ()
    assert answer(line + EXITED.format("a2", 1) + EXITED.format("a1", 0), **one).suspects == ()


def test_what_a_worker_caught_says_more_than_that_it_caught_something() -> None:
    caught = "[rank1]: RuntimeError: Caught OSError in DataLoader worker process 0.\n"
    assert answer(f"{caught}[rank1]: OSError: [Errno 116] Stale file handle: '/mnt/a/b'\n").reason == "filesystem_io"
    assert answer(caught).reason == "python_exception"


def test_a_device_error_of_many_ranks_on_all_nodes_began_on_none() -> None:
    assert answer("".join(map(ECC.format, range(4)))).root_rank is None
    assert answer("".join(map(ECC.format, (2, 3)))).root_rank == 2


def test_what_only_a_whole_node_raises_for_anything_does_not_stop_the_job() -> None:
    def action(text: str, *ranks: int) -> Verdict:
        return advised(answer("".join(f"[rank{rank}]: {text}\n" for rank in ranks)))

    assert action("RuntimeError: the engine could not start", 2, 3) is Verdict.REQUEUE
    assert action("RuntimeError: the engine could not start", 2) is Verdict.STOP
    assert action("RuntimeError: the engine could not start", 0, 1, 2, 3) is Verdict.STOP
    assert action("RuntimeError: shapes cannot be multiplied", 2, 3) is Verdict.STOP
    assert action(KEY, 2, 3) is Verdict.STOP


def test_an_error_after_which_dates_went_on_did_not_outlast_the_limit() -> None:
    error = f"2026-01-01 19:00:00 [rank1]: {KEY}\n"
    limit = "slurmstepd: error: *** JOB 1 ON a1 CANCELLED AT 2026-01-01T20:00:05 DUE TO TIME LIMIT ***\n"
    assert answer(error + limit, state="TIMEOUT").reason == "python_exception"
    assert answer(error + "2026-01-01 19:55:00 step 4\n" + limit, state="TIMEOUT").reason == "time_limit"


def test_the_only_silent_task_is_the_client_that_the_store_misses() -> None:
    store = "0: DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients joined.\n"
    heard = "0: Seed set\n1: Seed set\n3: Seed set\n"
    found = answer(heard + store, nodes=FOUR, ntasks_per_node=1)
    assert (found.reason, found.suspect_nodes, found.root_rank) == ("rendezvous_timeout", ("a3",), None)
    assert answer(heard + "2: Seed set\n" + store, nodes=FOUR, ntasks_per_node=1).suspects == ()
    assert answer("0: Seed set\n1: Seed set\n" + store, nodes=FOUR, ntasks_per_node=1).suspects == ()


def test_an_administrator_who_cancels_after_a_device_was_lost_did_it_for_that() -> None:
    assert answer("", {"a2": XID79}, state="CANCELLED by 0").suspect_nodes == ("a2",)
    assert answer("", {"a2": XID79}, state="CANCELLED").reason == "cancelled_by_user"
    assert answer("", state="CANCELLED by 0").reason == "cancelled_by_admin"


def test_who_would_not_be_believed_alone_tells_where_a_disk_is_full() -> None:
    hosts = "==> a1 head 10.4.0.21\n==> a2 worker 10.4.0.23\n"
    raised = "ray.exceptions.OutOfDiskError: Local disk is full\n"
    assert answer(f"{hosts}{FULL}\n{raised}").suspect_nodes == ("a2",)


def test_a_script_that_slurmstepd_cannot_execute_is_no_line_of_a_shell() -> None:
    line = "slurmstepd: error: execve(): /home/u/run.sh: Permission denied\n"
    ends = "".join(f"srun: error: a{task + 1}: task {task}: Exited with exit code 13\n" for task in range(2))
    assert answer(line + line + ends, exit_code=13, ntasks_per_node=1).reason == "permission_denied"


def test_a_connection_that_could_not_be_opened_accuses_its_address_whatever_the_error() -> None:
    hosts = "".join(f"{n}:1:1 [0] NCCL INFO Bootstrap : Using ib0:10.0.0.{i}<0>\n" for i, n in enumerate(FOUR, 1))
    warn = "{0}:1:2 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : {1}\n"
    aborted = "Software caused connection abort"
    both = warn.format("a1", aborted) + warn.format("a3", aborted)
    assert answer(hosts + both, nodes=FOUR, ntasks_per_node=1).suspect_nodes == ("a2",)
    assert answer(hosts + warn.format("a1", aborted), nodes=FOUR, ntasks_per_node=1).suspects == ()


def test_a_kernels_fault_is_felt_by_the_rank_that_ended_first_on_its_node() -> None:
    ends = "srun: error: {0}: task {1}: Exited with exit code 1\nsrun: error: a1: tasks 0-1: Exited with exit code 1\n"
    assert answer(ends.format("a2", 3), {"a2": XID79}).root_rank == 3
    assert answer(ends.format("a1", 1), {"a2": XID79}).root_rank is None
    assert answer(ends.format("a2", 3), {"a2": XID79}, ntasks_per_node=1).root_rank is None


def test_what_a_task_prints_in_slurms_words_ends_nothing() -> None:
    quoted = (
        "0: srun: error: a2: task 1: Out Of Memory\n"
        "0: slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n"
    )
    ends = "srun: error: a1: task 0: Exited with exit code 1\nsrun: error: a2: task 1: Terminated\n"
    found = answer(f"{quoted}0: {KEY}\n{ends}", ntasks_per_node=1)
    assert found.reason == "python_exception"
    assert answer(f"{quoted}0: {KEY}\n{ends}", ntasks_per_node=1, state="OUT_OF_MEMORY").reason == "host_oom"
    assert answer(quoted + ends, ntasks_per_node=1).reason == "host_oom"


def test_a_monitor_that_speaks_after_torchtitans_last_word_tells_of_a_teardown() -> None:
    done = "[rank0]:[titan] 2026-08-20 09:20:01,200 - root - INFO - Training completed\n"
    hung = (
        "[rank3]:[F820 09:28:33.1 ProcessGroupNCCL.cpp:1557] [Rank 3] Terminating the process after attempting to dump "
        "debug info, due to ProcessGroupNCCL watchdog hang.\n"
    )
    assert answer(done + hung).reason == "teardown_hang"
    assert answer(hung).reason == "hang"


def test_tasks_that_could_not_be_launched_tell_a_node_where_they_are_all_of_it() -> None:
    line = "srun: error: task {0} launch failed: {1}\n"
    lost = "Slurmd could not connect IO"
    found = answer(line.format(2, lost) + line.format(3, lost))
    assert (found.reason, found.suspect_nodes) == ("launch_failed", ("a2",))
    assert answer(line.format(2, lost)).suspects == ()
    assert answer(line.format(1, lost) + line.format(2, lost)).suspects == ()
    assert answer(line.format(2, "Memory required by task is not available")).reason == "slurm_config_error"


def test_a_terminal_that_went_away_shows_in_how_tasks_ended() -> None:
    forced = "srun: forcing job termination\n"
    assert answer(forced + "srun: error: a1: tasks 0-1: Hangup\n").reason == "sighup"
    assert answer(forced).reason == "cancelled_by_user"


RESET = "amdgpu 0000:9b:00.0: amdgpu: GPU reset end with ret = -5"
FAULT = "amdgpu 0000:9b:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:0 vmid:{0} pasid:{1})"


def test_a_gpu_that_its_driver_cannot_bring_back_is_the_nodes() -> None:
    found = answer("", {"a2": f"{FAULT.format(8, 32769)}\n{RESET}\n"})
    assert (found.reason, found.suspect_nodes) == ("gpu_internal_error", ("a2",))
    assert answer("", {"a2": FAULT.format(8, 32769)}).reason == "illegal_memory_access"
    assert answer("", {"a2": FAULT.format(0, 0)}).reason == "unknown"


def test_a_task_that_hangs_where_the_file_system_is_lost_waits_for_that() -> None:
    hung = "INFO: task python:44010 blocked for more than 122 seconds.\n"
    lost = (
        "Lustre: w-OST0003-osc-ff: Connection to w-OST0003 (at 10.9.0.12@o2ib) was lost; "
        "in progress operations using this service will wait\n"
    )
    assert answer("", {"a1": lost + hung, "a2": lost + hung}).reason == "filesystem_io"
    assert answer("", {"a1": lost, "a2": hung}).reason == "node_hang"


def test_the_desync_report_names_who_is_behind_where_they_are_few() -> None:
    line = "\t     [{0}] finished collective #182, but didn't join collective #183 (count from 1)\n"
    found = answer(line.format(3))
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("nccl_timeout", 3, ("a2",))
    assert answer(line.format("1, 2, 3")).suspects == ()
    assert answer(line.format(3) + line.format(2)).suspects == ()


def test_an_exception_in_a_loggers_line_counts_where_its_rank_ended() -> None:
    line = "2026-02-20 11:51:00 ERROR rank 3: ValueError: 512 is not 511\n"
    found = answer(line + "srun: error: a2: task 3: Exited with exit code 1\n")
    assert (found.reason, found.root_rank) == ("python_exception", 3)
    assert answer(line + "srun: error: a1: task 1: Exited with exit code 1\n").reason == "unknown"
    assert answer(line).reason == "unknown"


def test_xla_tells_of_a_thread_that_never_came() -> None:
    line = (
        "1: F0213 12:42:37.9 59040 rendezvous.cc:120] Termination timeout for `rendezvous of x` of 80 seconds exceeded."
    )
    assert answer(line).reason == "hang"


def test_a_traceback_in_a_json_record_counts_where_its_rank_ended() -> None:
    record = '{"level": "error", "rank": 3, "host": "a2", "exc": "Traceback:\\n  x\\nZeroDivisionError: by zero"}\n'
    end = "srun: error: a2: task 3: Exited with exit code 1\n"
    found = answer(record + end)
    assert (found.reason, found.root_rank) == ("python_exception", 3)
    assert answer(record).reason == "unknown"
    assert answer(record.replace("error", "warning", 1) + end).reason == "unknown"


def test_what_all_of_a_nodes_many_ranks_met_began_on_none_of_them() -> None:
    error = "[rank{0}]: RuntimeError: CUDA error: system not yet initialized\n"
    heard = "[rank0]: step 1\n"
    whole = answer(heard + "".join(error.format(rank) for rank in range(4, 8)), ntasks_per_node=4)
    assert (whole.suspect_nodes, whole.root_rank) == (("a2",), None)
    assert answer(heard + error.format(5) + error.format(6), ntasks_per_node=4).root_rank == 5


def test_a_containers_own_log_tells_why_it_did_not_start() -> None:
    begin = "3: slurmstepd: error: pyxis: container start failed with error code: 1\n"
    mount = "enroot-mount: failed to mount: /fsx/d at /raid/pyxis_1.0/fsx/d: No such file or directory"
    driver = "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"
    heard = "0: seed 1\n1: seed 1\n2: seed 1\n"
    for line, reason in ((mount, "mount_missing"), (driver, "driver_mismatch")):
        log = f"{heard}{begin}3: slurmstepd: error: pyxis:     {line}\n"
        found = answer(log, nodes=FOUR, ntasks_per_node=1)
        assert (found.reason, found.suspect_nodes) == (reason, ("a4",))
    assert answer(heard + begin, nodes=FOUR, ntasks_per_node=1).reason == "container_start_failed"
