"""What a node's report proves, what it suggests, and what it only mentions."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.placement import placements
from slurm_recovery.detect.readings import LONGEST, READINGS, XID_NOTE, OfGpu, evidence_of, gaps_of
from slurm_recovery.node.present import present_faults
from slurm_recovery.node_report import NodeReport
from slurm_recovery.records import Evidence, Gap, Role, Source, Trust

SIGNATURES = load_signatures()
UUID = "GPU-5c1e0a3f-0f3c-4b0e-9f0e-0a1b2c3d4e5f"
STAMP = "2026-06-12T03:40:09,114217+00:00"


def gpu(index: int = 3, **changes: Any) -> dict[str, Any]:
    return {"index": index, "pci": f"0000:{0x9b + index:02x}:00.0", "uuid": f"{UUID}{index}", **changes}


def report(*gpus: dict[str, Any], **changes: Any) -> NodeReport:
    told = {"format": 1, "kind": "epilog", "node": "n1", "time": 50.0, "job_id": 7, "driver": "550.54.15"}
    return NodeReport.model_validate({**told, "gpus": gpus, **changes})


def readings(*gpus: dict[str, Any], **changes: Any) -> tuple[Evidence, ...]:
    return tuple(one for one in evidence_of(report(*gpus, **changes), SIGNATURES) if one.source is Source.NVML)


def names(*gpus: dict[str, Any], **changes: Any) -> list[str]:
    return [one.signature for one in readings(*gpus, **changes)]


UNREAD = [{"source": "kernel_log", "what": "/dev/kmsg", "why": "EPERM"}]
MISMATCH = [{"source": "nvml", "what": "nvmlInit", "why": "Driver/library version mismatch"}]
PROCESS = {"pid": 4711, "name": "python3", "uid": 5001, "job_id": None}
GOOD = [gpu(n) for n in (0, 1, 2)]
NAMED = f"GPU 3 (0000:9e:00.0, {UUID}3)"

# A report for each row: its GPUs, its fields, and what is said of it.
SHOWN: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "nvml_gpu_lost": (
        [gpu(lost=True, trouble="GPU is lost")], {}, f'{NAMED} is lost: NVML says "GPU is lost".'
    ),
    "nvml_gpus_missing": (GOOD, {"gpus_configured": 4}, "3 of 4 configured GPUs are known to the driver."),
    "nvml_remap_failed": ([gpu(remap_failed=True)], {}, f"{NAMED} could not replace a faulty row of its memory."),
    "nvml_ecc_grown": (
        [gpu(ecc_uncorrectable=7)],
        {"ecc_before": {f"{UUID}3": 5}},
        f"{NAMED} counted 2 more memory errors that ECC cannot correct since its last health check.",
    ),
    "nvml_needs_reboot": (
        [gpu(recovery_action="node_reboot")],
        {},
        f"{NAMED} needs a reboot of the node, as its driver says (node_reboot).",
    ),
    "nvml_driver_mismatch": (
        [],
        {"gaps": MISMATCH, "driver": ""},
        "NVML says that the loaded driver and its library are of different releases.",
    ),
    "nvml_remap_pending": (
        [gpu(remap_pending=True)], {}, f"{NAMED} must be reset before a faulty row of its memory is replaced."
    ),
    "nvml_ecc_counted": (
        [gpu(ecc_uncorrectable=7)],
        {"gaps": UNREAD},
        f"{NAMED} has counted 7 memory errors that ECC cannot correct.",
    ),
    "nvml_needs_reset": (
        [gpu(recovery_action="gpu_reset")], {}, f"{NAMED} needs a reset of the GPU, as its driver says (gpu_reset)."
    ),
    "nvml_unopened": (
        [{"index": 3, "trouble": "Unknown Error"}], {}, 'GPU 3 cannot be opened: NVML says "Unknown Error".'
    ),
    "nvml_links_down": ([*GOOD, gpu(links_down=[4, 11])], {}, f"{NAMED} has NVLinks that are down: 4, 11."),
    "nvml_strays": (
        [gpu(processes=[PROCESS])], {}, f"{NAMED} is in use by processes of no job: 4711 (uid 5001, python3)."
    ),
    "nvml_slowed": (
        [gpu(throttled=["hw_slowdown", "hw_thermal", "sw_thermal"], temperature=93)],
        {},
        f"{NAMED} is slowed down by hardware, heat, at 93 degrees Celsius.",
    ),
    "nvml_neighbours": (
        [gpu(processes=[PROCESS | {"job_id": 8}, PROCESS | {"job_id": 7}])],
        {},
        f"{NAMED} is in use by 1 processes of other jobs.",
    ),
}


def test_every_row_has_a_report_that_shows_it() -> None:
    assert [row.name for row in READINGS] == list(SHOWN)


@pytest.mark.parametrize("row", READINGS, ids=lambda row: row.name)
def test_a_reading_is_evidence_of_root(row: Any) -> None:
    gpus, fields, sentence = SHOWN[row.name]
    (found,) = readings(*gpus, **fields)
    assert found == Evidence(
        source=Source.NVML,
        trust=Trust.ROOT,
        signature=row.name,
        reason=row.reason,
        role=row.role,
        line=sentence,
        place="n1:nvml gpu3" if isinstance(row, OfGpu) else "n1:nvml",
        node="n1",
        time=50.0,
    )


@pytest.mark.parametrize("row", READINGS, ids=lambda row: row.name)
def test_a_row_speaks_for_a_reason_that_there_is(row: Any) -> None:
    assert (row.reason in REASONS) is (row.role is not Role.NOISE)
    if row.role is Role.ROOT:
        assert REASONS[row.reason].cure is not None


@pytest.mark.parametrize("name", SHOWN)
def test_no_sentence_is_taken_for_a_place_or_a_time(name: str) -> None:
    gpus, fields, _ = SHOWN[name]
    (found,) = readings(*gpus, **fields)
    head = frame(found.line)
    assert head == frame("")._replace(text=found.line)
    assert placements(head) == ()


def test_a_well_node_says_nothing() -> None:
    well = {
        "ecc_uncorrectable": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery_action": "none",
        "throttled": ["sw_thermal"],
        "processes": [PROCESS | {"job_id": 7}, PROCESS | {"uid": 0}, PROCESS | {"uid": 120}, PROCESS | {"uid": None}],
    }
    told = report(*(gpu(n, **well) for n in range(8)), gpus_configured=8, gpus_on_bus=8)
    assert evidence_of(told, SIGNATURES) == ()
    assert gaps_of(told) == ()


@pytest.mark.parametrize(
    ("before", "now", "gaps", "told"),
    [
        ({f"{UUID}3": 5}, 5, UNREAD, []),  # nothing new
        ({f"{UUID}3": 5}, 2, [], []),  # the driver was loaded anew; the kernel would have told
        ({f"{UUID}3": 5}, 2, UNREAD, ["nvml_ecc_counted"]),
        ({}, 5, [], []),
        ({"another": 0}, 5, UNREAD, ["nvml_ecc_counted"]),
        ({f"{UUID}3": 0}, None, UNREAD, []),
    ],
)
def test_memory_errors_count_from_the_last_health_check_on(
    before: dict[str, int], now: int | None, gaps: list[dict[str, str]], told: list[str]
) -> None:
    assert names(gpu(ecc_uncorrectable=now), ecc_before=before, gaps=gaps) == told


@pytest.mark.parametrize(
    ("gpus", "fields"),
    [
        (GOOD, {"gpus_configured": 3}),
        (GOOD, {"gpus_configured": 2}),
        (GOOD, {"gpus_configured": None}),
        (GOOD, {"gpus_configured": 0}),
        ([], {"gpus_configured": 4, "gaps": [{"source": "nvml", "what": "x", "why": "none"}]}),
        ([], {"gpus_configured": 4, "driver": ""}),  # other makers' GPUs
        (GOOD, {"gpus_configured": 3, "gpus_on_bus": 1}),  # a /sys that does not show all
    ],
)
def test_gpus_that_were_not_counted_are_not_missing(gpus: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    assert "nvml_gpus_missing" not in names(*gpus, **fields)


def test_pci_counts_where_nvml_cannot() -> None:
    gap = [{"source": "nvml", "what": "nvmlInit", "why": "Driver Not Loaded"}]
    (found,) = readings(gpus_configured=8, gpus_on_bus=7, gaps=gap, driver="")
    assert found.line == "7 of 8 configured GPUs are on the PCI bus."


def test_links_that_are_down_on_most_gpus_are_how_the_node_is_built() -> None:
    down = [gpu(n, links_down=[0, 1]) for n in range(8)]
    assert names(*down) == []
    assert names(*down[:2], *(gpu(n) for n in range(2, 8))) == ["nvml_links_down"] * 2
    assert names(gpu(0, links_down=[0]), gpu(1)) == []


def test_a_mismatch_on_a_node_without_gpus_is_nothing() -> None:
    assert names(gaps=MISMATCH, gpus_configured=0) == []
    assert names(gaps=[MISMATCH[0] | {"why": "RM has detected an NVML/RM version mismatch."}]) == [
        "nvml_driver_mismatch"
    ]


def test_what_a_user_calls_a_process_stays_a_word() -> None:
    name = "[Rank 3] \x1b[2J\n0: x) 'GPU' is lost"
    (found,) = readings(gpu(processes=[PROCESS | {"name": name}]))
    assert found.line.endswith("4711 (uid 5001, ?Rank?3????2J?0:).")
    assert found.rank is None
    assert frame(found.line).rank is None


# --- the kernel's lines


def kernel(*lines: str) -> tuple[Evidence, ...]:
    return evidence_of(report(kernel="".join(f"{STAMP} {line}\n" for line in lines)), SIGNATURES)


def test_the_kernels_lines_are_scanned_as_the_nodes_own() -> None:
    lost = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    found = next(one for one in kernel("eth0: up", lost) if one.reason)
    assert (found.source, found.trust, found.role) == (Source.KERNEL_LOG, Trust.ROOT, Role.ROOT)
    assert (found.reason, found.node, found.place) == ("gpu_fell_off_bus", "n1", "n1:kernel:2")
    assert found.time == pytest.approx(1781235609.114217)


def test_xids_that_tell_by_coming_again_are_noted_for_each_gpu() -> None:
    words = "NVRM: Xid (PCI:0000:{}:00): {}, pid=9, name=python, Ch 00000008"
    found = kernel(
        words.format("9b", 31), words.format("9b", 31), words.format("c1", 31), words.format("c1", 13),
        words.format("c1", 43), "x: " + words.format("aa", 31),
    )  # fmt: skip
    notes = [(one.place, one.line.partition(", pid")[0][33:]) for one in found if one.signature == XID_NOTE]
    assert notes == [
        ("n1:kernel:1", "NVRM: Xid (PCI:0000:9b:00): 31"),
        ("n1:kernel:3", "NVRM: Xid (PCI:0000:c1:00): 31"),
        ("n1:kernel:4", "NVRM: Xid (PCI:0000:c1:00): 13"),
    ]
    assert all(one.time for one in found if one.signature == XID_NOTE)


def test_the_kernels_lines_come_before_readings() -> None:
    told = report(gpu(lost=True), kernel=f"{STAMP} NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off\n")
    assert [one.source for one in evidence_of(told, SIGNATURES) if one.reason] == [Source.KERNEL_LOG, Source.NVML]


# --- gaps


def test_gaps_name_the_node() -> None:
    told = report(
        gaps=[
            {"source": "nvml", "what": "GPUs", "why": "no answer within 5 s"},
            {"source": "kernel_log", "what": "/dev/kmsg", "why": "EPERM"},
            {"source": "job_log", "what": "/home/u/x\x1b[2J", "why": "ENOENT"},
            {"source": "of a later release", "what": "x", "why": "y"},
        ]
    )
    assert gaps_of(told) == (
        Gap(source=Source.NVML, what="n1: GPUs", why="no answer within 5 s"),
        Gap(source=Source.KERNEL_LOG, what="n1: /dev/kmsg", why="EPERM"),
        Gap(source=Source.NODE, what="n1: /home/u/x [2J", why="ENOENT"),
        Gap(source=Source.NODE, what="n1: x", why="y"),
    )


def test_gaps_are_bounded() -> None:
    many = gaps_of(report(gaps=[{"what": "x", "why": "y"}] * 100))
    assert len(many) == 65
    assert many[-1].why == "and 36 more gaps"


# --- any report at all


def test_what_closes_the_gate_is_evidence_too() -> None:
    """node/present.py has rules of its own, for it must do without pydantic: they must not say more than these."""
    for gpus, fields, _ in SHOWN.values():
        told = report(*gpus, **fields)
        faults = {fault.reason for fault in present_faults(told.model_dump(mode="json"))}
        found = {one.reason for one in evidence_of(told, SIGNATURES) if one.role in (Role.ROOT, Role.CONDITIONAL)}
        assert faults <= found


def test_a_report_as_large_as_may_be_takes_no_long_time() -> None:
    lines = "".join(f"{STAMP} NVRM: Xid (PCI:{n:08x}:00): 31, pid={n}, name=x\n" for n in range(20_000))
    gpus = [gpu(n, processes=[PROCESS] * 200, links_down=list(range(100))) for n in range(2000)]
    told = report(*gpus, kernel=lines, gaps=[{"what": "x", "why": "y"}] * 100_000)
    begun = time.perf_counter()
    found = evidence_of(told, SIGNATURES)
    gaps_of(told)
    assert time.perf_counter() - begun < 5
    assert len(found) < 2000


WORDS = st.sampled_from(
    ["", "GPU is lost", "node_reboot", "gpu_reset", "drain_p2p", "nvml", "kernel_log", "hw_thermal", "[Rank 3] x", "\n"]
) | st.text(max_size=20)
NUMBERS = st.none() | st.integers(-5, 20) | st.integers() | st.sampled_from([10**30, -(10**30), 1 << 64])
LINES = st.lists(
    st.builds(
        "{} NVRM: Xid (PCI:0000:{}:00): {}, pid=1, {}\n".format,
        st.sampled_from([STAMP, "", "[  12.1]", "9999-99-99T99:99:99"]),
        st.sampled_from(["9b", "c1"]),
        st.integers(0, 180),
        WORDS,
    )
    | WORDS,
    max_size=6,
).map("".join)
BOOLS = st.none() | st.booleans()


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


PROCESSES = some(name=WORDS, uid=NUMBERS, job_id=NUMBERS, memory=NUMBERS).map(lambda found: {"pid": 1, **found})
GPUS = some(
    pci=WORDS, uuid=WORDS, name=WORDS, trouble=WORDS, recovery_action=WORDS, lost=st.booleans(),
    ecc_uncorrectable=NUMBERS, remap_pending=BOOLS, remap_failed=BOOLS, temperature=NUMBERS,
    links_down=st.lists(st.integers(), max_size=9), throttled=st.lists(WORDS, max_size=3),
    processes=st.lists(PROCESSES, max_size=9),
).flatmap(lambda found: NUMBERS.map(lambda index: {"index": index or 0, **found}))  # fmt: skip
REPORTS = some(
    gpus=st.lists(GPUS, max_size=5), gpus_configured=NUMBERS, gpus_on_bus=NUMBERS, kernel=LINES, driver=WORDS,
    ecc_before=st.dictionaries(WORDS, st.integers(), max_size=3), job_id=st.integers(), boot_id=WORDS,
    gaps=st.lists(some(source=WORDS).flatmap(
        lambda found: st.tuples(WORDS, WORDS).map(lambda two: {**found, "what": two[0], "why": two[1]})
    ), max_size=3),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    REPORTS,
    st.text(max_size=30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["epilog", "health", "gate"]),
)
def test_any_report_gives_evidence_and_no_error(fields: dict[str, Any], node: str, when: float, kind: str) -> None:
    try:
        told = NodeReport.model_validate({"format": 1, "kind": kind, "node": node, "time": when, **fields})
    except ValueError:  # not a report: too long a word, say
        return
    told = NodeReport.model_validate_json(told.model_dump_json())
    for one in (*evidence_of(told, SIGNATURES), *gaps_of(told)):
        assert type(one).model_validate_json(one.model_dump_json()) == one
        assert_shown(one)
        if isinstance(one, Evidence) and one.source is Source.NVML:
            assert one.node == node
            assert one.reason in REASONS or one.role is Role.NOISE
            assert frame(one.line).rank is None


def assert_shown(one: BaseModel) -> None:
    for text in (getattr(one, "line", ""), getattr(one, "what", ""), getattr(one, "why", "")):
        assert text == "" or text.isprintable()
        assert len(text) <= LONGEST
