"""What a node's own word is worth: as the cause of an attempt, and as a ground to take the node out of service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.node_faults import node_faults, xids
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.readings import evidence_of
from slurm_recovery.detect.scan import scan
from slurm_recovery.node_report import NodeReport
from slurm_recovery.records import Attempt, Attribution, Evidence, Observation, Role, Source, Trust

SIGNATURES = load_signatures()
START, END = 1_781_235_000.0, 1_781_238_600.0  # an hour
NODES = ("n1", "n2", "n3", "n4")

XID = "NVRM: Xid (PCI:0000:9b:00): {}, pid=9, name=python, {}"
LOST = XID.format(79, "GPU has fallen off the bus.")
ECC = XID.format(48, "DBE (double bit error) ECC Error")
AER = "pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error received: 0000:97:01.0"
UE = "EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)"
DISK = "blk_update_request: critical medium error, dev nvme0n1, sector 1048576 op 0x0:(READ)"
NIC = "mlx5_core 0000:a1:00.0: mlx5_health_try_recover:335:(pid 88): handling bad device here"
FAULT31 = XID.format(31, "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 faulted @ 0x7fd7_30092000")
OOM = "Memory cgroup out of memory: Killed process 811 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
EXCEPTION = "Traceback (most recent call last):\nKeyError: 'pixel_values'\n"
CUDA_ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE)\n"

GPU_LOST = {"index": 3, "lost": True, "trouble": "GPU is lost"}
REMAP_FAILED = {"index": 3, "uuid": "GPU-3", "remap_failed": True}
REMAP_PENDING = {"index": 3, "uuid": "GPU-3", "remap_pending": True}
REBOOT = {"index": 3, "uuid": "GPU-3", "recovery_action": "node_reboot"}
MISSING = {"gpus": [{"index": n, "uuid": f"GPU-{n}"} for n in range(7)], "gpus_configured": 8}
MISMATCH = {"gaps": [{"source": "nvml", "what": "nvmlInit", "why": "Driver/library version mismatch"}]}


def line(text: str, when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC).isoformat(timespec='microseconds').replace('.', ',')} {text}\n"


def node(name: str, *lines: tuple[str, float], gpu: dict[str, Any] | None = None, **more: Any) -> NodeReport:
    told = {"format": 1, "kind": "epilog", "node": name, "time": END + 1, "job_id": 7, "driver": "550", "boot_id": "b"}
    text = "".join(line(*one) for one in lines)
    return NodeReport.model_validate({**told, "kernel": text, "gpus": [gpu] if gpu else [], **more})


def observe(*reports: NodeReport, log: str = "", **fields: Any) -> Observation:
    values = {"cluster": "c", "job_id": 7, "nodes": NODES, "state": "FAILED", "exit_code": 1, "ntasks_per_node": 1}
    attempt = Attempt.model_validate({**values, "start_time": START, "end_time": END, **fields})
    found = scan(log.encode(), signatures=SIGNATURES, source=Source.JOB_LOG, path="job.log")
    for report in reports:
        found += evidence_of(report, SIGNATURES)
    return Observation(attempt=attempt, evidence=found, boots={report.node: report.boot_id for report in reports})


def answer(*reports: NodeReport, **more: Any) -> Attribution:
    return attribute(observe(*reports, **more))


def faults(*reports: NodeReport, **more: Any) -> list[tuple[str, str, Source]]:
    return [(found.node, found.reason, found.source) for found in node_faults(observe(*reports, **more))]


# --- the cause of the attempt


def test_the_kernel_comes_before_nvml_which_bears_it_out() -> None:
    told = answer(node("n3", (LOST, END - 60), gpu=GPU_LOST), log=EXCEPTION)
    assert told.reason == "gpu_fell_off_bus"
    assert told.suspect_nodes == ("n3",)
    assert [found.source for found in told.evidence] == [Source.KERNEL_LOG, Source.NVML]
    assert told.evidence[0].line in told.because


def test_a_state_is_beaten_by_the_kernels_line_of_another_fault() -> None:
    told = answer(node("n3", (AER, END - 60), gpu=GPU_LOST))
    assert told.reason == "pcie_error"
    (beaten,) = [one for one in told.beaten if one.reason == "gpu_fell_off_bus"]
    assert "fault of bus" in beaten.why
    told = answer(node("n3", (LOST, END - 60), gpu=REBOOT))
    assert (told.reason, told.suspect_nodes) == ("gpu_fell_off_bus", ("n3",))
    assert [one.why for one in told.beaten if one.reason == "gpu_internal_error"] == [
        "it is a state that was found after the end, n3:kernel:1 is the stronger word"
    ]


@pytest.mark.parametrize(
    ("report", "reason"),
    [(node("n3", gpu=GPU_LOST), "gpu_fell_off_bus"), (node("n3", **MISSING), "gpu_missing")],
    ids=["lost", "missing"],
)
def test_a_gpu_that_is_not_there_explains_what_the_program_printed(report: NodeReport, reason: str) -> None:
    told = answer(report, log=EXCEPTION)
    assert (told.reason, told.suspect_nodes) == (reason, ("n3",))
    assert told.suspects[0].trust is Trust.ROOT
    assert "python_exception" in [one.reason for one in told.beaten]


OLDER = {
    "remap failed": node("n3", gpu=REMAP_FAILED),
    "to be rebooted": node("n3", gpu=REBOOT),
    "another driver": node("n3", **MISMATCH),
    "more errors": node("n3", gpu={"index": 3, "uuid": "GPU-3", "ecc_uncorrectable": 4}, ecc_before={"GPU-3": 1}),
}


@pytest.mark.parametrize("report", OLDER.values(), ids=OLDER)
def test_a_state_that_may_be_older_does_not_excuse_the_program(report: NodeReport) -> None:
    assert answer(report, log=EXCEPTION).reason == "python_exception"


@pytest.mark.parametrize("report", OLDER.values(), ids=OLDER)
def test_such_a_state_is_the_cause_where_ranks_only_waited(report: NodeReport) -> None:
    told = answer(report, log=WATCHDOG)
    (state,) = [one for one in evidence_of(report, SIGNATURES) if one.role is Role.ROOT]
    assert (told.reason, told.suspect_nodes) == (state.reason, ("n3",))
    assert told.suspects[0].trust is Trust.ROOT


def test_a_state_that_the_program_felt_is_borne_out() -> None:
    told = answer(node("n3", gpu=REMAP_FAILED), log=CUDA_ECC)
    assert (told.reason, told.suspect_nodes) == ("gpu_ecc_uncorrectable", ("n3",))
    assert told.suspects[0].trust is Trust.ROOT
    elsewhere = answer(node("n3", gpu=REMAP_FAILED), log=f"n1: {CUDA_ECC}")
    assert elsewhere.reason == "gpu_ecc_uncorrectable"
    assert elsewhere.suspects[0].trust is Trust.USER
    assert elsewhere.suspect_nodes == ("n1",)


def test_a_pending_remap_is_a_cause_only_where_nothing_better_is_found() -> None:
    assert answer(node("n3", gpu=REMAP_PENDING), log=EXCEPTION).reason == "python_exception"
    told = answer(node("n3", gpu=REMAP_PENDING), log=WATCHDOG)
    assert (told.reason, told.suspect_nodes) == ("gpu_ecc_uncorrectable", ("n3",))


def test_a_pending_remap_bears_out_the_kernel_on_its_own_node_only() -> None:
    told = answer(node("n3", (ECC, END - 60), gpu=REMAP_PENDING), node("n4", gpu=REMAP_PENDING))
    assert told.suspect_nodes == ("n3",)
    assert [found.node for found in told.evidence if found.source is Source.NVML] == ["n3"]


@pytest.mark.parametrize("more", [MISSING, MISMATCH], ids=["missing", "mismatch"])
def test_what_all_nodes_show_alike_is_how_they_are_set_up(more: dict[str, Any]) -> None:
    reports = [node(name, **more) for name in NODES]
    assert answer(*reports, log=EXCEPTION).reason == "python_exception"
    assert answer(*reports, log=WATCHDOG).suspects == ()


def test_a_job_that_ran_until_its_limit_had_the_gpus_it_needed() -> None:
    assert answer(node("n3", **MISSING), state="TIMEOUT").reason == "time_limit"
    assert answer(node("n3", gpu=GPU_LOST), state="TIMEOUT").reason == "gpu_fell_off_bus"


def test_memory_that_ran_out_by_the_kernels_word_comes_before_a_state() -> None:
    assert answer(node("n3", (OOM, END - 5), **MISSING)).reason == "host_oom"


def test_a_reading_of_another_time_is_none_of_this_attempt() -> None:
    assert answer(node("n3", gpu=GPU_LOST, time=END + 3600), log=EXCEPTION).reason == "python_exception"
    assert answer(node("n3", gpu=GPU_LOST, time=START - 60), log=EXCEPTION).reason == "python_exception"
    assert faults(node("n3", gpu=GPU_LOST, time=END + 3600)) == []


def test_a_reading_of_a_foreign_node_accuses_nobody() -> None:
    told = observe(node("n9", (LOST, END - 60), gpu=GPU_LOST), log=EXCEPTION)
    assert attribute(told).suspects == ()
    assert attribute(told).reason == "python_exception"
    assert node_faults(told) == ()


# --- when a kernel's line counts


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 69])
def test_xids_of_programs_that_are_being_ended_count_for_nothing(number: int) -> None:
    after = observe(node("n3", (XID.format(number, "Ch 00000008"), END + 3)))
    assert attribute(after).reason == "unknown"
    assert xids(after) == ()
    during = observe(node("n3", (XID.format(number, "Ch 00000008"), END - 3)))
    assert len(xids(during)) == (number in (13, 31))


def test_hardware_that_fails_at_the_end_counts() -> None:
    told = observe(node("n3", (LOST, END + 30), (FAULT31, END + 31)))
    assert attribute(told).suspect_nodes == ("n3",)
    assert [found.reason for found in node_faults(told)] == ["gpu_fell_off_bus"]


def test_lines_of_before_the_start_are_no_cause_of_this_attempt() -> None:
    assert answer(node("n3", (LOST, START - 30)), log=EXCEPTION).reason == "python_exception"
    assert answer(node("n3", (LOST, START - 30))).suspects == ()
    assert answer(node("n3", (LOST, START + 30))).suspect_nodes == ("n3",)


# --- faults of nodes


def test_faults_are_told_by_node_and_reason_with_their_line() -> None:
    told = observe(node("n3", (UE, END - 90), (LOST, END - 60), (LOST, END - 50), gpu=GPU_LOST), node("n2", **MISSING))
    assert [(found.node, found.reason, found.source, found.time) for found in node_faults(told)] == [
        ("n2", "gpu_missing", Source.NVML, END + 1),
        ("n3", "gpu_fell_off_bus", Source.KERNEL_LOG, END - 60),
        ("n3", "host_memory_error", Source.KERNEL_LOG, END - 90),
    ]
    lost = node_faults(told)[1]
    assert lost.line.endswith(LOST)
    assert lost.place == "n3:kernel:2"


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED by 4", "COMPLETED", "OUT_OF_MEMORY", "FAILED", ""])
def test_a_fault_is_a_fault_whatever_the_attempt_ended_of(state: str) -> None:
    assert faults(node("n3", (LOST, END - 60)), log=EXCEPTION, state=state) == [
        ("n3", "gpu_fell_off_bus", Source.KERNEL_LOG)
    ]


@pytest.mark.parametrize("text", [NIC, DISK, UE, AER])
def test_faults_of_devices_other_than_gpus(text: str) -> None:
    ((_, reason, _),) = faults(node("n3", (text, END - 60)))
    assert REASONS[reason].cure is not None


def test_a_fault_that_only_a_reboot_ends_is_told_by_the_same_boot_before_the_start() -> None:
    assert faults(node("n3", (LOST, START - 600))) == [("n3", "gpu_fell_off_bus", Source.KERNEL_LOG)]
    assert faults(node("n3", (LOST, START - 10 * 3600))) == []  # whoever looked since may have mended it
    assert faults(node("n3", (DISK, START - 600))) == []  # a check tells whether it is over
    told = observe(node("n3", (LOST, START - 600)))
    assert node_faults(told.model_copy(update={"boots": {}})) == ()


@pytest.mark.parametrize("text", [FAULT31, XID.format(45, "Ch 00000003"), XID.format(63, "Row Remapper"), OOM])
def test_what_is_conditional_or_has_no_cure_is_no_fault_of_a_node(text: str) -> None:
    assert faults(node("n3", (text, END - 60))) == []


@pytest.mark.parametrize(
    "gpu",
    [
        REMAP_PENDING,
        {"index": 1, "recovery_action": "gpu_reset"},
        {"index": 1, "throttled": ["hw_thermal"]},
        {"index": 1, "processes": [{"pid": 5, "uid": 5001}]},
        {"index": 1, "trouble": "Unknown Error"},
    ],
)
def test_states_that_prove_nothing_are_no_fault_of_a_node(gpu: dict[str, Any]) -> None:
    assert faults(node("n3", gpu=gpu)) == []


def test_a_users_perfect_forgeries_are_no_fault_of_a_node() -> None:
    lines = "".join(f"{name}: {line(text, END - 60)}" for name in NODES for text in (LOST, ECC, AER, UE, DISK, NIC))
    assert faults(log=lines) == []


@pytest.mark.parametrize("source", [one for one in Source if one not in (Source.KERNEL_LOG, Source.NVML)])
def test_no_other_source_proves_anything(source: Source) -> None:
    made = Evidence(
        source=source, trust=Trust.ROOT, signature="xid_79", reason="gpu_fell_off_bus", role=Role.ROOT, line=LOST,
        node="n3", time=END,
    )  # fmt: skip
    attempt = observe().attempt
    assert node_faults(Observation(attempt=attempt, evidence=(made,))) == ()
    kernel = made.model_copy(update={"source": Source.KERNEL_LOG})
    assert len(node_faults(Observation(attempt=attempt, evidence=(kernel,)))) == 1
    by_user = kernel.model_copy(update={"trust": Trust.USER})
    assert node_faults(Observation(attempt=attempt, evidence=(by_user,))) == ()


# --- Xids that tell by coming again


def test_xids_are_told_for_each_gpu() -> None:
    other = FAULT31.replace("9b", "C1")
    thirteen = XID.format(13, "Graphics Exception: ESR 0x50df30=0x109")
    told = observe(node("n3", (FAULT31, END - 60), (FAULT31, END - 50), (other, END - 40), (thirteen, END - 30)))
    assert xids(told) == (
        ("n3", "0000:9b:00", 13, END - 30),
        ("n3", "0000:9b:00", 31, END - 60),
        ("n3", "0000:c1:00", 31, END - 40),
    )


def test_xids_in_a_users_log_are_none() -> None:
    assert xids(observe(log="n3: " + FAULT31 + "\n" + FAULT31)) == ()
