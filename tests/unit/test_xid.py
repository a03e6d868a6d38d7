"""The table of Xids, and that the scanner judges every number, in every driver's form, as the table says."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.xid import (
    NVLINK5,
    XIDS,
    Kind,
    Needs,
    Xid,
    needs,
    nvlink5,
    read_xid,
    recovery_action,
    xid,
)
from slurm_recovery.records import Attempt, Attribution, Evidence, Observation, Role, Source, Trust

SIGNATURES = load_signatures()
CATALOGUED = range(1, 173)
NEWEST = 176  # of nverror.h
WHEN = 1795983072.123456  # 2026-11-29T20:11:12.123456Z


def kernel(text: str) -> tuple[Evidence, ...]:
    """What the scanner makes of kernel text, without the mark of its last time."""
    log = text.encode()
    found = scan(log, signatures=SIGNATURES, source=Source.KERNEL_LOG, path="dmesg.a01.log", node="a01")
    return tuple(one for one in found if one.signature != "clock")


def judged(text: str) -> tuple[str, Role]:
    (found,) = kernel(text)
    return found.reason, found.role


def attributed(*lines: str) -> Attribution:
    return attribute(
        Observation(
            attempt=Attempt(cluster="c", job_id=1, nodes=("a01", "a02"), state="FAILED", exit_code=1, end_time=WHEN),
            evidence=kernel("\n".join(f"2026-11-29T20:11:1{at},0+00:00 {line}" for at, line in enumerate(lines))),
        )
    )


# -- the table -----------------------------------------------------------------------------------------------


def test_every_number_of_the_catalogue_and_of_the_driver_has_a_row() -> None:
    assert list(XIDS) == list(range(1, NEWEST + 1))
    assert all(row.number == number and row.name.isupper() for number, row in XIDS.items())
    assert xid(0) is None
    assert xid(NEWEST + 1) is None
    assert "catalogue" in XIDS[CATALOGUED[-1]].source
    assert "nverror.h" in XIDS[NEWEST].source


def test_a_row_speaks_for_a_reason_or_is_no_cause() -> None:
    for row in XIDS.values():
        assert row.reason in REASONS if row.role in (Role.ROOT, Role.CONDITIONAL) else row.reason == "", row
        assert row.needs is Needs.NONE or row.reason, row


def test_a_kind_keeps_to_its_roles() -> None:
    roles: dict[Kind, set[Role]] = {}
    for row in XIDS.values():
        roles.setdefault(row.kind, set()).add(row.role)
    assert roles == {
        Kind.HARDWARE: {Role.ROOT, Role.CONDITIONAL},
        Kind.INTERCONNECT: {Role.ROOT, Role.CONDITIONAL},
        Kind.DRIVER: {Role.ROOT, Role.CONDITIONAL},
        Kind.APPLICATION: {Role.CONDITIONAL},
        Kind.AFTERMATH: {Role.SECONDARY},
        Kind.INFORMATIONAL: {Role.NOISE, Role.SECONDARY},
        Kind.UNUSED: {Role.NOISE},
    }


def test_what_is_a_programs_own_never_drains() -> None:
    for row in XIDS.values():
        if row.kind in (Kind.APPLICATION, Kind.AFTERMATH, Kind.INFORMATIONAL, Kind.UNUSED):
            assert not row.reason or REASONS[row.reason].cure is None, row


@pytest.mark.parametrize(
    ("number", "reason", "role", "needed"),
    [
        (13, "illegal_memory_access", "conditional", "restart_app"),
        (31, "illegal_memory_access", "conditional", "restart_app"),
        (43, "cuda_launch_failure", "conditional", "restart_app"),
        (45, "", "secondary", "none"),
        (48, "gpu_ecc_uncorrectable", "root", "reset"),
        (62, "gpu_internal_error", "root", "reset"),
        (63, "gpu_ecc_uncorrectable", "conditional", "none"),
        (64, "gpu_ecc_uncorrectable", "root", "reset"),
        (74, "gpu_nvlink_error", "root", "reset"),
        (79, "gpu_fell_off_bus", "root", "reboot"),
        (92, "", "noise", "none"),
        (94, "gpu_ecc_uncorrectable", "root", "restart_app"),
        (95, "gpu_ecc_uncorrectable", "root", "reset"),
        (109, "gpu_internal_error", "conditional", "reset"),
        (119, "gpu_gsp_timeout", "root", "reset"),
        (154, "", "secondary", "none"),
        (167, "pcie_error", "root", "reboot"),
    ],
)
def test_the_best_known(number: int, reason: str, role: str, needed: str) -> None:
    row = XIDS[number]
    assert (row.reason, row.role, row.needs) == (reason, role, needed)


# -- the scanner, by the table -------------------------------------------------------------------------------

# kernel_rc.c krcReportXid of several releases, and the clocks and hosts that dmesg, journalctl and syslog put before.
FORMS: dict[str, Callable[[int], str]] = {
    "bare": lambda n: f"NVRM: Xid (PCI:0000:9b:00): {n}, ",
    "process": lambda n: f"NVRM: Xid (PCI:0000:9b:00): {n}, pid=1234, name=python, Ch 0000000b",
    "nobody": lambda n: f"NVRM: Xid (PCI:0000:9b:00): {n}, pid='<unknown>', name=<unknown>, channel 0x0000000b",
    "old": lambda n: f"NVRM: Xid (0000:9b:00): {n}, Channel 00000001",
    "instance": lambda n: f"NVRM: Xid (PCI:0000:9b:00 GPU-I:05): {n}, pid=7194, name=python, channel 0x0000000b",
    "compute": lambda n: f"NVRM: Xid (PCI:0000:9b:00 GPU-I:05 GPU-CI:00): {n}, pid=7194, name=ray::Worker, Ch 0",
    "superchip": lambda n: f"NVRM: Xid (PCI:0018:01:00): {n}, pid=922932, name=acctg, intr 00040000 (0x040868e2 0x8)",
    "iso": lambda n: f"2026-11-29T20:11:12,123456+00:00 NVRM: Xid (PCI:0000:9b:00): {n}, pid=1234, name=python, Ch 1",
    "levels": lambda n: f"kern  :err   : 2026-11-29T21:11:12,123456+01:00 NVRM: Xid (PCI:0000:9b:00): {n}, Ch 1",
    "uptime": lambda n: f"[ 4711.100200] NVRM: Xid (PCI:0000:9b:00): {n}, pid=1234, name=python, Ch 1",
    "journal": lambda n: f"2026-11-29T20:11:12+0000 a01 kernel: NVRM: Xid (PCI:0000:9b:00): {n}, Ch 1",
    "syslog": lambda n: f"Nov 29 20:11:12 a01 kernel: [ 4711.100200] NVRM: Xid (PCI:0000:9b:00): {n}, Ch 1",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", XIDS.values(), ids=lambda row: str(row.number))
def test_the_scanner_judges_each_number_as_the_table_does(row: Xid, form: str) -> None:
    assert judged(FORMS[form](row.number)) == (row.reason, row.role)


@pytest.mark.parametrize("form", FORMS)
def test_a_line_is_read_in_every_form(form: str) -> None:
    read = read_xid(FORMS[form](79))
    assert read is not None
    assert (read.number, read.gpu) == (79, "0018:01:00" if form == "superchip" else "0000:9b:00")
    assert (read.pid, read.process) == {
        "process": (1234, "python"),
        "iso": (1234, "python"),
        "uptime": (1234, "python"),
        "instance": (7194, "python"),
        "compute": (7194, "ray::Worker"),
        "superchip": (922932, "acctg"),
    }.get(form, (None, ""))
    assert needs(FORMS[form](79)) is Needs.REBOOT


@pytest.mark.parametrize(("form", "when"), [("iso", WHEN), ("levels", WHEN), ("journal", WHEN // 1)])
def test_time_and_zone_are_read(form: str, when: float) -> None:
    (found,) = kernel(FORMS[form](79))
    assert (found.time, found.node, found.trust) == (pytest.approx(when, abs=1e-5), "a01", Trust.ROOT)


@pytest.mark.parametrize("number", [0, NEWEST + 1, 199, 250, 999, 1024, 99999])
def test_a_number_that_is_not_known_accuses_nobody(number: int) -> None:
    line = FORMS["process"](number)
    assert judged(line) == ("unknown", Role.CONDITIONAL)
    assert needs(line) is None
    assert attributed(line).suspects == ()


LEADS = """NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d
NVRM: GPU Board Serial Number: 1650124014249
NVRM: GPU4 RPC history (CPU -> GSP):
NVRM: Xid (invalid): some error
NVRM: Xid error: xyz
Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."""


def test_the_lines_around_one_are_nothing() -> None:
    assert kernel(LEADS) == ()
    assert [read_xid(line) for line in LEADS.splitlines()] == [None] * 6


@pytest.mark.parametrize("number", [13, 31, 43, 45])
@pytest.mark.parametrize("name", ["79", "Xid 79", "): 79, GPU has", "a, 79, GPU has"])
def test_a_process_cannot_name_itself_after_a_fault(number: int, name: str) -> None:
    line = f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=79, name={name}, Ch 0000004f"
    assert judged(line) == (XIDS[number].reason, XIDS[number].role)
    assert needs(line) is XIDS[number].needs


# -- 154, the driver's own verdict ---------------------------------------------------------------------------

VERDICTS = [
    ("0x0 (None)", "none", "", "noise", "none"),
    ("0x1 (GPU Reset Required)", "gpu_reset", "gpu_internal_error", "conditional", "reset"),
    ("0x2 (Node Reboot Required)", "node_reboot", "gpu_internal_error", "root", "reboot"),
    ("0x3 (Drain P2P)", "drain_p2p", "", "secondary", "none"),
    ("0x4 (Drain and Reset)", "drain_and_reset", "gpu_internal_error", "conditional", "reset"),
    ("0x5 (Recover IMEX Domain)", "recover_imex_domain", "", "secondary", "none"),
    ("0x9 (Unknown)", None, "", "secondary", "none"),
]


def verdict(to: str, who: str = "") -> str:
    return f"NVRM: Xid (PCI:0009:01:00): 154, {who}GPU recovery action changed from 0x4 (Drain and Reset) to {to}"


@pytest.mark.parametrize("who", ["", "pid=811, name=nvidia-smi, "])
@pytest.mark.parametrize(("to", "action", "reason", "role", "needed"), VERDICTS)
def test_154_says_what_is_needed(to: str, action: str | None, reason: str, role: str, needed: str, who: str) -> None:
    line = verdict(to, who)
    read = read_xid(line)
    assert read is not None
    assert recovery_action(read) == action
    assert judged(line) == (reason, role)
    assert needs(line) == needed


@pytest.mark.parametrize("to", ["0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"])
@pytest.mark.parametrize("number", [48, 79, 95, 119, 120, 74])
def test_154_is_no_cause_beside_the_xid_that_it_follows(number: int, to: str) -> None:
    found = attributed(FORMS["process"](number), FORMS["process"](45), verdict(to))
    assert (found.reason, found.suspect_nodes) == (XIDS[number].reason, ("a01",))


@pytest.mark.parametrize("number", [13, 31])
def test_a_reset_after_the_programs_own_fault_is_no_fault_of_the_node(number: int) -> None:
    found = attributed(FORMS["process"](number), verdict("0x1 (GPU Reset Required)"))
    assert (found.reason, found.suspects) == ("illegal_memory_access", ())


def test_a_reboot_that_is_asked_for_is_a_fault_by_itself() -> None:
    found = attributed(verdict("0x2 (Node Reboot Required)"))
    assert (found.reason, found.suspect_nodes) == ("gpu_internal_error", ("a01",))


# -- 45 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (79, "gpu_fell_off_bus"),
        (48, "gpu_ecc_uncorrectable"),
        (94, "gpu_ecc_uncorrectable"),
        (149, "gpu_nvlink_error"),
        (119, "gpu_gsp_timeout"),
        (62, "gpu_internal_error"),
        (31, "illegal_memory_access"),
    ],
)
def test_45_names_what_came_first(number: int, reason: str) -> None:
    line = f"{FORMS['process'](45)} caused by previous Xid {number}"
    read = read_xid(line)
    assert read is not None
    assert (read.number, read.caused_by) == (45, number)
    assert judged(line) == (reason, Role.CONDITIONAL)
    assert needs(line) is XIDS[number].needs
    assert attributed(line).reason == reason


@pytest.mark.parametrize("after", [1, 39, 43, 145, 9999])
def test_45_after_what_is_no_fault_of_a_node_is_only_that(after: int) -> None:
    assert judged(f"{FORMS['process'](45)} caused by previous Xid {after}") == ("", Role.SECONDARY)


def test_45_alone_is_against_nobody() -> None:
    found = attributed(*[FORMS["process"](45)] * 3)
    assert (found.reason, found.suspects) == ("unknown", ())


# -- NVLink 5 ------------------------------------------------------------------------------------------------


def link(number: int, unit: str, severity: str, *, xc: int = 0, info: int = 0, status: int = 0, who: str = "") -> str:
    return (
        f"NVRM: Xid (PCI:0008:01:00): {number}, {who}{unit} {severity} XC{xc} i0 Link 03 "
        f"(0x{info:08x} 0x{status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"
    )


# NVIDIA Xid catalogue, decoding of 144 to 150
LINKS = [
    (link(144, "SAW_MVB", "Fatal", status=2), "root", "reset"),
    (link(144, "SAW_MVB", "Nonfatal", status=8), "noise", "none"),
    (link(145, "RLW_SRC_TRACK", "Fatal", status=1), "root", "reset"),
    (link(145, "RLW_SRC_TRACK", "Nonfatal", xc=1, status=8), "secondary", "restart_app"),
    (link(145, "RLW_REMAP", "Nonfatal", status=0x10), "noise", "restart_app"),
    (link(145, "RLW_REMAP", "Nonfatal", status=0x100), "noise", "none"),
    (link(145, "RLW_RXPIPE", "Nonfatal", status=8), "noise", "none"),
    (link(146, "TLW_CTRL", "Fatal", status=4), "root", "reset"),
    (link(146, "TLW_RX/TLW_RX_PIPE0", "Nonfatal", status=1), "noise", "none"),
    (link(147, "TREX", "Nonfatal", status=1), "noise", "none"),
    (link(148, "NVLPW_CTRL/NVLPW", "Nonfatal", status=0x80000000), "noise", "none"),
    (link(149, "NETIR_BER_EVENT", "Nonfatal", status=1), "noise", "none"),
    (link(149, "NETIR_LINK_EVT ", "Fatal  ", info=0x004505C6), "root", "reset"),
    (link(149, "NETIR_LINK_EVT ", "Fatal  ", info=0x021425C6), "root", "reset"),
    (link(149, "NETIR_LINK_EVT ", "Fatal  ", info=0x026425C6), "conditional", "none"),
    (link(149, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "Fatal", info=0xFE800011), "conditional", "none"),
    (link(149, "NETIR_MFDE_EVENT", "Fatal", status=4), "root", "reset"),
    (link(149, "NETIR", "Fatal", info=0x026FE406), "root", "reset"),
    (link(150, "MSE_WATCHDOG", "Fatal"), "root", "reset"),
]


@pytest.mark.parametrize("who", ["", "pid=876767, name=ray::WorkerDict, ", "pid='<unknown>', name=<unknown>, "])
@pytest.mark.parametrize(("line", "role", "needed"), LINKS, ids=[line[27:75] for line, _, _ in LINKS])
def test_nvlink5_tells_how_bad_it_is(line: str, role: str, needed: str, who: str) -> None:
    head, comma, words = line.partition(", ")
    line = f"{head}{comma}{who}{words}"
    reason = "gpu_nvlink_error" if role in ("root", "conditional") else ""
    assert judged(line) == (reason, role)
    read = read_xid(line)
    assert read is not None
    decoded = nvlink5(read)
    assert decoded is not None
    assert decoded.link == 3
    assert decoded.fatal is ("Fatal" in words)
    assert (decoded.needs, needs(line)) == (needed, needed)


def test_a_link_of_none_alone_and_a_line_cut_short() -> None:
    whole = read_xid(link(149, "NETIR", "Fatal").replace("Link 03", "Link -1"))
    assert whole is not None
    assert (found := nvlink5(whole)) is not None
    assert found.link == -1
    line = "NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406"
    cut = read_xid(line)
    assert cut is not None
    assert nvlink5(cut) is None
    assert judged(line) == ("gpu_nvlink_error", Role.ROOT)


@pytest.mark.parametrize("number", NVLINK5)
def test_a_process_cannot_make_its_link_fatal(number: int) -> None:
    line = link(number, "RLW_RXPIPE", "Nonfatal", status=8, who="pid=9, name=a, MSE Fatal XC, ")
    assert judged(line)[1] is not Role.ROOT


# -- hostile text --------------------------------------------------------------------------------------------


@given(st.text(max_size=300))
def test_nothing_raises(text: str) -> None:
    for line in (text, f"NVRM: Xid (PCI:0000:9b:00): 149, {text}", f"NVRM: Xid ({text}): 154, {text}"):
        read = read_xid(line)
        needs(line)
        if read is not None:
            recovery_action(read)
            nvlink5(read)


@pytest.mark.parametrize(
    "bit",
    ["NVRM: Xid (", "NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=", "a, ", "caused by previous Xid 7", " (0x0", "9"],
)
def test_a_long_line_costs_little(bit: str) -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 154, " + bit * (1_000_000 // len(bit))
    begin = time.process_time()
    for _ in range(100):
        needs(line)
    assert time.process_time() - begin < 0.5  # below 100 microseconds each on one core of 2024
