"""Which nodes are drained, and which may serve again: every row on both sides, and what must hold for any input."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.reasons import REASONS, Cure
from slurm_recovery.config.settings import Config, Policy, Settings
from slurm_recovery.decide.isolation import (
    ROWS,
    Fault,
    FaultSource,
    Suspicion,
    Verdict,
    What,
    World,
    fault_event,
    isolate,
    reason_text,
    verdict_event,
)
from slurm_recovery.decide.node_history import HOUR, INTENT, deeds, history
from slurm_recovery.decide.way_back import GATES, Back, Health, Way, back_event, ways_back
from slurm_recovery.records import NodeAction, NodeEvent, Result
from slurm_recovery.slurm.port import Node, drain_reason

NOW = 1_795_982_928.0
DAY = 86400.0
OFF_BUS = "gpu_fell_off_bus"
OURS = f"slurm_recovery: {OFF_BUS} incident 42"
BOOT, OTHER_BOOT = "boot-a", "boot-b"

A = NodeAction


def config(**keys: Any) -> Config:
    partitions = keys.pop("partitions", {})
    base = {"mode": "act", "max_drains_per_hour": 4, "max_drained_share": 100}
    return Config(
        settings=Settings.model_validate(base | keys),
        partitions={name: Policy.model_validate({"mode": "act"} | policy) for name, policy in partitions.items()},
    )


def node(
    name: str, state: str = "IDLE", reason: str = "", user: str = "", at: float | None = None, **more: Any
) -> Node:
    fields = {"partitions": frozenset({"train"})} | more
    return Node(name=name, state=frozenset(state.split()), reason=reason, reason_user=user, reason_time=at, **fields)


def world(*nodes: Node, events: Iterable[NodeEvent] = (), now: float = NOW, **more: Any) -> World:
    shown = {one.name: one for one in nodes} or {f"n{number}": node(f"n{number}") for number in range(1, 21)}
    return World(shown, list(events), more.pop("config", config()), now, more.pop("switches", {}))


def fault(name: str = "n1", reason: str = OFF_BUS, ago: float = 5.0, **more: Any) -> Fault:
    fields: dict[str, Any] = {"source": FaultSource.KERNEL, "incident_id": 42, "boot_id": BOOT, "line": "NVRM: Xid 79"}
    return Fault(name, reason, time=NOW - ago, **(fields | more))


def event(action: NodeAction, name: str = "n1", ago: float = 60.0, **more: Any) -> NodeEvent:
    fields: dict[str, Any] = {"reason": OFF_BUS, "boot_id": BOOT, "incident_id": 42}
    return NodeEvent(cluster="c", node=name, time=NOW - ago, action=action, **(fields | more))


def drained(name: str = "n1", ago: float = 60.0, result: str = "done", **more: Any) -> NodeEvent:
    return event(A.DRAIN, name, ago, result=result, **({"detail": OURS} | more))


def only(verdicts: tuple[Verdict, ...]) -> Verdict:
    (verdict,) = verdicts
    return verdict


def of(verdicts: tuple[Verdict, ...], name: str) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.node == name)


def told(verdicts: tuple[Verdict, ...]) -> list[tuple[str, str]]:
    return [(verdict.basis, verdict.reason) for verdict in verdicts if verdict.what is What.ALERT]


# -- a drain, and what it says ----------------------------------------------------------------------------------------


def test_a_node_whose_kernel_tells_of_a_fault_is_drained() -> None:
    verdict = only(isolate([fault()], world()))
    assert (verdict.node, verdict.what, verdict.basis) == ("n1", What.DRAIN, "drain")
    assert verdict.text == OURS
    assert "drain 1 of 4 within an hour" in verdict.because
    assert "NVRM: Xid 79" in verdict.because


def test_a_fault_that_a_health_check_found_names_its_time() -> None:
    verdict = only(isolate([fault(incident_id=0, source=FaultSource.NVML, ago=0)], world()))
    assert verdict.text == f"slurm_recovery: {OFF_BUS} health check 2026-11-29T20:08:48Z"
    assert "NVML" in verdict.because


@pytest.mark.parametrize("reason", sorted(REASONS))
@pytest.mark.parametrize("source", FaultSource)
def test_every_reason_text_reaches_slurm_as_it_is(reason: str, source: FaultSource) -> None:
    for number in (0, 42, 10**9):
        text = reason_text(fault(reason=reason, source=source, incident_id=number))
        assert drain_reason(text) == text
        assert text.startswith("slurm_recovery: ")
        assert reason in text


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_exactly_the_reasons_with_a_cure_drain(reason: str) -> None:
    verdict = only(isolate([fault(reason=reason)], world()))
    assert (verdict.what is What.DRAIN) == (REASONS[reason].cure is not None)
    assert verdict.basis == ("drain" if REASONS[reason].cure else "no_cure")


def test_an_unknown_reason_or_node_is_nothing() -> None:
    assert only(isolate([fault(reason="\x1b[31mmade up")], world())).basis == "no_cure"
    assert only(isolate([fault("n77")], world())).basis == "unknown_node"
    assert only(isolate([fault()], World({}, [], config(), NOW))).what is What.NOTHING
    assert isolate([], world()) == ()


# -- an administrator's word ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        node("n1", "IDLE DRAIN", "bob: swapping the PSU", "bob", NOW - 9 * DAY),
        node("n1", "ALLOCATED DRAIN", "Prolog error", "slurm"),
        node("n1", "IDLE DRAIN", ""),
        node("n1", "DOWN", "no power", "bob"),
        node("n1", "DOWN", "Not responding"),
        node("n1", "IDLE FAIL", "fails soon"),
        node("n1", "IDLE FAIL", OURS),
        node("n1", "IDLE", "a note", "bob", NOW - DAY / 2),
        node("n1", "IDLE", "a note of no time", "bob", None),
        node("n1", "IDLE DRAIN", "not slurm_recovery: x"),
    ],
)
def test_a_word_that_is_not_ours_stands(shown: Node) -> None:
    verdict = only(isolate([fault()], world(shown)))
    assert (verdict.what, verdict.basis, verdict.text) == (What.REFUSE, "foreign_reason", "")


@pytest.mark.parametrize(
    "shown",
    [
        node("n1", "IDLE", "bob: done", "bob", NOW - 2 * DAY),  # 24.11 leaves it on a node that serves again
        node("n1", "IDLE", "Not responding", "slurm", NOW - 60),
        node("n1", "IDLE", OURS, "slurm", NOW - 60),
        node("n1", "DOWN"),
        node("n1", "MIXED PLANNED"),
        node("n1", "IDLE RESERVED"),
    ],
)
def test_what_is_left_behind_is_no_word(shown: Node) -> None:
    assert only(isolate([fault()], world(shown))).what is What.DRAIN


def test_a_hostile_reason_cannot_break_the_sentence() -> None:
    verdict = only(isolate([fault()], world(node("n1", "IDLE DRAIN", "x\n\x1b[31m" * 5000, "b\x07b"))))
    assert verdict.because.isprintable()
    assert len(verdict.because) < 400


def test_a_node_that_we_drained_is_left_so() -> None:
    for text in (OURS, f"{OURS} : Not responding", "slurm_recovery: gpu_missing health check"):
        assert only(isolate([fault()], world(node("n1", "IDLE DRAIN", text)))).basis == "drained_by_us"


@pytest.mark.parametrize(
    ("state", "basis"),
    [
        ("MAINT", "engaged"),
        ("IDLE REBOOT_REQUESTED", "engaged"),
        ("IDLE REBOOT_ISSUED", "engaged"),
        ("ALLOCATED POWERING_UP", "not_there"),
        ("IDLE CLOUD POWERED_DOWN", "not_there"),
        ("IDLE CLOUD", "drain"),
    ],
)
def test_a_node_that_somebody_works_on_or_that_is_away_is_left_alone(state: str, basis: str) -> None:
    assert only(isolate([fault()], world(node("n1", state)))).basis == basis


@pytest.mark.parametrize(
    ("past", "basis"),
    [
        (event(A.OVERRULED, ago=1), "settled"),
        (event(A.RELEASE, ago=1, reason="", boot_id=""), "settled"),
        (event(A.RESUME, ago=1, result="done"), "settled"),
        (event(A.RESUME, ago=1, result="intent"), "settled"),
        (event(A.RESUME, ago=1, result="failed"), "drain"),
        (event(A.RESUME, ago=9, result="done"), "drain"),
        (event(A.OVERRULED, ago=9), "overruled"),
        (event(A.OVERRULED, ago=DAY - 9), "overruled"),
        (event(A.OVERRULED, ago=DAY + 9), "drain"),
        (event(A.OVERRULED, ago=9, boot_id=OTHER_BOOT), "drain"),
        (event(A.OVERRULED, ago=9, boot_id=""), "overruled"),
        (event(A.OVERRULED, ago=9, reason="gpu_missing"), "drain"),
        (event(A.OVERRULED, "n2", ago=1), "drain"),
        (event(A.RELEASE, ago=9, reason="", boot_id=""), "drain"),
        (event(A.BOOT, ago=1, boot_id=OTHER_BOOT), "rebooted"),
        (event(A.BOOT, ago=1, boot_id=BOOT), "drain"),
        (event(A.BOOT, ago=9, boot_id=OTHER_BOOT), "drain"),
    ],
)
def test_what_was_said_and_done_since(past: NodeEvent, basis: str) -> None:
    assert only(isolate([fault(ago=5)], world(events=[past]))).basis == basis


def test_a_reboot_is_no_end_of_what_a_reboot_does_not_end() -> None:
    past = [event(A.BOOT, ago=1, boot_id=OTHER_BOOT)]
    assert REASONS["gpu_missing"].cure is Cure.CHECK
    assert only(isolate([fault(reason="gpu_missing")], world(events=past))).what is What.DRAIN


def test_a_release_is_about_what_was_known_then() -> None:
    release = event(A.RELEASE, ago=9, reason="", boot_id="", user="bob")
    assert only(isolate([fault()], world(events=[release, event(A.FAULT, ago=99)]))).basis == "overruled"
    assert (
        only(isolate([fault()], world(events=[release, event(A.FAULT, ago=99, boot_id=OTHER_BOOT)]))).basis == "drain"
    )
    assert only(isolate([fault()], world(events=[release, event(A.FAULT, ago=6)]))).basis == "drain"
    assert "bob" in only(isolate([fault()], world(events=[release, drained(ago=99)]))).because


# -- common causes ----------------------------------------------------------------------------------------------------


def test_one_reason_on_several_nodes_at_once_drains_none_and_is_told_once() -> None:
    faults = [fault(f"n{number}") for number in (1, 2, 3)]
    verdicts = isolate(faults, world())
    assert {verdict.what for verdict in verdicts[:3]} == {What.REFUSE}
    assert {verdict.basis for verdict in verdicts} == {"common_cause"}
    assert told(verdicts) == [("common_cause", OFF_BUS)]
    assert verdicts[-1].nodes == ("n1", "n2", "n3")
    again = world(events=[event(A.ALERT, "", ago=1, boot_id="", incident_id=0)])
    assert told(isolate(faults, again)) == []
    assert told(isolate(faults, world(events=[event(A.ALERT, "", ago=1, reason="pcie_error")]))) != []


def test_fewer_nodes_or_other_reasons_are_no_common_cause() -> None:
    two = isolate([fault("n1"), fault("n2")], world())
    assert [verdict.what for verdict in two] == [What.DRAIN, What.DRAIN]
    mixed = isolate([fault("n1"), fault("n2", "pcie_error"), fault("n3", "node_hang")], world())
    assert [verdict.what for verdict in mixed] == [What.DRAIN] * 3
    same_node = isolate([fault(line=str(number)) for number in range(5)], world())
    assert [verdict.what for verdict in same_node] == [What.DRAIN]


def test_the_history_counts_for_a_common_cause_while_it_is_near() -> None:
    def past(ago: float, **more: Any) -> World:
        return world(events=[event(A.FAULT, "n2", ago, **more), event(A.FAULT, "n3", ago, **more)])

    assert of(isolate([fault()], past(300)), "n1").basis == "common_cause"
    assert of(isolate([fault()], past(700)), "n1").basis == "drain"
    assert of(isolate([fault()], past(300, reason="pcie_error")), "n1").basis == "drain"
    drains = world(events=[drained("n2", 300), drained("n3", 300)])
    assert of(isolate([fault()], drains), "n1").basis == "common_cause"


def test_old_faults_that_are_told_again_are_no_new_common_cause() -> None:
    long_since = [event(A.FAULT, name, ago) for name, ago in (("n1", 9000), ("n2", 5000))]
    again = [fault("n1"), fault("n2"), fault("n3")]
    verdicts = isolate(again, world(events=long_since))
    assert [verdict.what for verdict in verdicts] == [What.DRAIN] * 3
    other_boot = [one.model_copy(update={"boot_id": OTHER_BOOT}) for one in long_since]
    assert told(isolate(again, world(events=other_boot))) == [("common_cause", OFF_BUS)]


def test_a_common_cause_that_is_seen_again_is_not_told_again() -> None:
    names = ("n1", "n2", "n3")
    past = [*(event(A.FAULT, name, 5000) for name in names), event(A.ALERT, "", 4990)]
    verdicts = isolate([fault(name) for name in names], world(events=past))
    assert {verdict.basis for verdict in verdicts} == {"common_cause"}
    assert told(verdicts) == []


def test_a_common_cause_that_is_looked_at_late_is_still_one() -> None:
    verdicts = isolate([fault(name, ago=7200) for name in ("n1", "n2", "n3")], world())
    assert told(verdicts) == [("common_cause", OFF_BUS)]


def test_a_common_cause_names_the_switch_that_all_share() -> None:
    faults = [fault(name) for name in ("n1", "n2", "n3")]
    shared = isolate(faults, world(switches=dict.fromkeys(("n1", "n2", "n3"), "leaf7")))
    assert "all of switch leaf7" in shared[-1].because
    assert "switch" not in isolate(faults, world(switches={"n1": "leaf7"}))[-1].because


def test_two_nodes_of_one_switch_with_faults_of_the_network_are_the_switchs() -> None:
    switches = {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2"}
    pair = [fault("n1", "nic_failure"), fault("n2", "ib_link_error")]
    verdicts = isolate(pair, world(switches=switches))
    assert (of(verdicts, "n1").what, of(verdicts, "n1").basis) == (What.REFUSE, "one_switch")
    assert of(verdicts, "n2").what is What.NOTHING
    assert {basis for basis, _ in told(verdicts)} == {"one_switch"}
    apart = isolate([fault("n1", "nic_failure"), fault("n3", "nic_failure")], world(switches=switches))
    assert [verdict.what for verdict in apart] == [What.DRAIN, What.DRAIN]
    not_network = isolate([fault("n1"), fault("n2")], world(switches=switches))
    assert [verdict.what for verdict in not_network] == [What.DRAIN, What.DRAIN]
    long_ago = world(switches=switches, events=[event(A.FAULT, "n2", 700, reason="nic_failure")])
    assert only(isolate([fault("n1", "nic_failure")], long_ago)).what is What.DRAIN


# -- modes and brakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "partitions", "what"),
    [
        ({}, {"train"}, What.DRAIN),
        ({"mode": "observe"}, {"train"}, What.ADVISE),
        ({"mode": "off"}, {"train"}, What.ADVISE),
        ({"drain": "no"}, {"train"}, What.ADVISE),
        ({"mode": "observe", "partitions": {"train": {}}}, {"train"}, What.DRAIN),
        ({"mode": "observe", "partitions": {"train": {}}}, {"train", "all"}, What.ADVISE),
        ({"partitions": {"all": {"mode": "observe"}}}, {"train", "all"}, What.ADVISE),
        ({"partitions": {"all": {"drain": "no"}}}, {"train", "all"}, What.ADVISE),
        ({"mode": "observe"}, set(), What.ADVISE),
        ({}, set(), What.DRAIN),
    ],
)
def test_the_least_mode_of_a_nodes_partitions_counts(keys: dict[str, Any], partitions: set[str], what: What) -> None:
    shown = node("n1", partitions=frozenset(partitions))
    verdict = only(isolate([fault()], world(shown, config=config(**keys))))
    assert (verdict.what, bool(verdict.text)) == (what, what is What.DRAIN)


def test_no_more_drains_than_an_hour_may_have() -> None:
    reasons = ("gpu_fell_off_bus", "pcie_error", "node_hang", "nic_failure", "gpu_missing", "host_memory_error")
    faults = [fault(f"n{number}", reason) for number, reason in enumerate(reasons, 1)]
    verdicts = isolate(faults, world())
    assert sum(verdict.what is What.DRAIN for verdict in verdicts) == 4
    refused = {verdict.fault.reason for verdict in verdicts if verdict.fault and verdict.what is What.REFUSE}
    assert refused == {"node_hang", "gpu_missing"}, "the strongest come first"
    assert told(verdicts) == [("drains_per_hour", "")]
    assert "4 of 4 drains used" in of(verdicts, "n3").because


@pytest.mark.parametrize(
    ("past", "counts"),
    [
        ([drained("n9", 3599)], 1),
        ([drained("n9", 3601)], 0),
        ([drained("n9", 60, "intent")], 1),
        ([drained("n9", 60, "already so")], 1),
        ([drained("n9", 60, "failed")], 0),
        ([drained("n9", 60, "refused")], 0),
        ([drained("n9", 60, "intent"), drained("n9", 59, "done")], 1),
        ([drained("n9", 60, "intent"), drained("n9", 60, "done")], 1),
        ([drained("n9", 60, "intent"), drained("n9", 59, "refused")], 0),
        ([drained("n9", 60, "intent"), drained("n9", 59, "done"), drained("n9", 30, "intent")], 2),
        ([drained("n8", 60), drained("n9", 60)], 2),
    ],
)
def test_which_drains_an_hour_counts(past: list[NodeEvent], counts: int) -> None:
    past = [one.model_copy(update={"reason": "driver_mismatch"}) for one in past]
    for most in range(4):
        verdict = of(isolate([fault()], world(events=past, config=config(max_drains_per_hour=most))), "n1")
        assert (verdict.basis == "drains_per_hour") == (most <= counts), (most, counts)


def test_the_brake_of_the_hour_is_told_once_an_hour() -> None:
    none = config(max_drains_per_hour=0)
    assert told(isolate([fault()], world(config=none))) == [("drains_per_hour", "")]
    for ago, alerts in ((3599, 0), (3601, 1)):
        past = [event(A.ALERT, "", ago, reason="")]
        assert len(told(isolate([fault()], world(config=none, events=past)))) == alerts


def test_only_a_share_of_a_partition_is_drained_by_us() -> None:
    def shown(ours: int, total: int, **more: Any) -> list[Node]:
        state = [node(f"d{number}", "IDLE DRAIN", OURS, **more) for number in range(ours)]
        return [node("n1"), *state, *(node(f"i{number}") for number in range(total - ours - 1))]

    tenth = config(max_drained_share=10)
    for ours, total, basis in ((0, 20, "drain"), (1, 20, "drain"), (2, 20, "drained_share"), (1, 5, "drained_share")):
        assert only(isolate([fault()], world(*shown(ours, total), config=tenth))).basis == basis
    assert only(isolate([fault()], world(*shown(0, 3), config=config(max_drained_share=0)))).basis == "drain"
    elsewhere = shown(2, 20, partitions=frozenset({"other"}))
    assert only(isolate([fault()], world(*elsewhere, config=tenth))).basis == "drain"
    admins = [node("n1"), *(node(f"d{number}", "IDLE DRAIN", "bob") for number in range(19))]
    assert only(isolate([fault()], world(*admins, config=tenth))).basis == "drain"


def test_the_share_counts_what_the_same_call_drains() -> None:
    faults = [fault("n1"), fault("n2", "pcie_error"), fault("n3", "node_hang")]
    verdicts = isolate(faults, world(config=config(max_drained_share=10)))
    assert sorted(verdict.what for verdict in verdicts) == [What.DRAIN, What.DRAIN, What.REFUSE]


def test_every_partition_of_the_node_has_its_share() -> None:
    both, small = frozenset({"train", "small"}), frozenset({"small"})
    nodes = [node(f"n{number}") for number in range(2, 40)]
    nodes += [node("n1", partitions=both), node("d", "IDLE DRAIN", OURS, partitions=small), node("s", partitions=small)]
    verdict = only(isolate([fault()], world(*nodes, config=config(max_drained_share=10))))
    assert "1 of 3 nodes of partition small" in verdict.because


def test_two_faults_of_one_node_are_one_drain_of_the_stronger_reason() -> None:
    pair = [fault(reason="gpu_missing", ago=9), fault(reason="pcie_error", ago=1)]
    verdict = only(isolate(pair, world()))
    assert (verdict.what, verdict.reason) == (What.DRAIN, "pcie_error")
    two = isolate([*pair, fault("n2", "stale_gpu_process")], world(config=config(max_drains_per_hour=2)))
    assert [verdict.what for verdict in two] == [What.DRAIN, What.DRAIN], "and one of the hour's"
    overruled = world(events=[event(A.OVERRULED, ago=20, reason="pcie_error")])
    assert only(isolate(pair, overruled)).reason == "gpu_missing", "what was overruled hides no other fault"


# -- suspicion, and Xids that come again ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suspicion", "what"),
    [
        (Suspicion(0.95, 3, 2), What.DRAIN),
        (Suspicion(0.94, 9, 9), What.NOTHING),
        (Suspicion(0.99, 2, 2), What.NOTHING),
        (Suspicion(0.99, 9, 1), What.NOTHING),
        (Suspicion(math.nan, 9, 9), What.NOTHING),
        (None, What.NOTHING),
    ],
)
def test_suspicion_drains_only_by_several_jobs_of_several_users(suspicion: Suspicion | None, what: What) -> None:
    one = fault(reason="nccl_timeout", source=FaultSource.SUSPICION, suspicion=suspicion)
    verdict = only(isolate([one], world()))
    assert verdict.what is what
    assert verdict.text == ("slurm_recovery: suspected nccl_timeout incident 42" if what is What.DRAIN else "")
    if suspicion and what is What.DRAIN:
        assert "suspicion 0.95 (SuspicionDrain 0.95) by 3 failed jobs of 2 users" in verdict.because


PCI = "0000:3b:00"


def xid(job: str, user: str, ago: float = 100.0, pci: str = PCI, name: str = "n1", number: int = 31) -> Fault:
    return fault(name, "illegal_memory_access", ago, xid=number, pci=pci, job=job, user=user, line="MMU Fault")


def past_xids(*faults: Fault) -> list[NodeEvent]:
    return [fault_event(one, "c") for one in faults]


LAST = xid("3", "carol", 1, number=13)


@pytest.mark.parametrize(
    ("past", "what"),
    [
        ([xid("1", "alice"), xid("2", "alice")], What.DRAIN),
        ([xid("1", "carol"), xid("2", "carol")], What.NOTHING),
        ([xid("1", "alice")], What.NOTHING),
        ([xid("1", "alice"), xid("1", "alice", 50)], What.NOTHING),
        ([xid("5_1", "alice"), xid("5_2", "alice", 50)], What.NOTHING),
        ([xid("1", "alice"), xid("2", "alice", pci="0000:4c:00")], What.NOTHING),
        ([xid("1", "alice"), xid("2", "alice", name="n2")], What.NOTHING),
        ([xid("1", "alice", 8 * DAY), xid("2", "alice")], What.NOTHING),
        ([xid("1", "alice", 6 * DAY), xid("2", "alice")], What.DRAIN),
        ([xid("1", "alice"), xid("2", "alice"), xid("2", "alice", name="n2")], What.NOTHING),
        ([xid("1", ""), xid("2", "")], What.NOTHING),
        ([xid("", "alice"), xid("2", "alice")], What.NOTHING),
        ([], What.NOTHING),
    ],
)
def test_xids_of_programs_drain_where_one_gpu_has_them_in_jobs_of_several_users(past: list[Fault], what: What) -> None:
    verdict = only(isolate([LAST], world(events=past_xids(*past))))
    assert verdict.what is what
    assert verdict.basis == ("drain" if what is What.DRAIN else "xid_of_a_program")
    if what is What.DRAIN:
        assert verdict.text == "slurm_recovery: gpu_internal_error incident 42"
        assert "in 3 jobs of 2 users within 7 days" in verdict.because
    together = [one for one in isolate([LAST, *past], world()) if one.node == "n1"]
    assert only(tuple(together)).what is what, "it is the same whether the history or this call tells it"


@pytest.mark.parametrize("action", [A.RELEASE, A.OVERRULED, A.RESUME])
def test_xids_before_a_node_came_back_count_no_longer(action: NodeAction) -> None:
    past = past_xids(xid("1", "alice"), xid("2", "alice"))
    assert only(isolate([LAST], world(events=[*past, event(action, ago=50, reason="")]))).basis == "xid_of_a_program"
    assert only(isolate([LAST], world(events=[*past, event(action, ago=150, reason="")]))).what is What.DRAIN


def test_an_xid_without_its_gpu_is_nothing() -> None:
    past = past_xids(xid("1", "alice", pci=""), xid("2", "bob", pci=""))
    assert only(isolate([LAST._replace(pci="")], world(events=past))).what is What.NOTHING


# -- what is written down ---------------------------------------------------------------------------------------------


def test_what_is_written_down_is_read_again() -> None:
    verdict = only(isolate([fault()], world()))
    intent = verdict_event(verdict, "c", NOW, INTENT)
    assert intent == drained(ago=0, result=INTENT, detail=OURS)
    assert verdict_event(only(isolate([fault("n77")], world())), "c", NOW) is None
    refused = verdict_event(only(isolate([fault()], world(node("n1", "IDLE DRAIN", "bob")))), "c", NOW)
    assert refused is not None
    assert (refused.action, refused.result, "bob" in refused.detail) == (A.REFUSED, "", True)
    alert = verdict_event(isolate([fault(name) for name in ("n1", "n2", "n3")], world())[-1], "c", NOW)
    assert alert is not None
    assert (alert.action, alert.node, alert.reason, "n1,n2,n3" in alert.detail) == (A.ALERT, "", OFF_BUS, True)
    assert fault_event(fault(line="a\nb" * 1000), "c").detail.isprintable()
    assert fault_event(LAST, "c").detail == f"{PCI} Xid 13: MMU Fault"


# -- the way back -----------------------------------------------------------------------------------------------------


def back(*events: NodeEvent, shown: Node | None = None, health: Health | None = None, **more: Any) -> Back | None:
    known = {"n1": health} if health else {}
    found = ways_back(world(shown or node("n1", "IDLE DRAIN", OURS), events=events, **more), known)
    assert len(found) <= 1
    return found[0] if found else None


CLEAN = Health(NOW - 10, OTHER_BOOT, True)
DRAINED = drained(ago=3600)
CHECKED = drained(ago=3600, reason="gpu_missing", detail="slurm_recovery: gpu_missing incident 42")
CHECKED_NODE = node("n1", "IDLE DRAIN", CHECKED.detail)


def test_a_node_comes_back_after_its_reboot_and_a_clean_check() -> None:
    found = back(DRAINED, health=CLEAN)
    assert found is not None
    assert (found.way, found.basis, found.drain) == (Way.RESUME, "clean", DRAINED)
    assert "rebooted since" in found.because
    written = back_event(found, "c", NOW, "done")
    assert written is not None
    assert (written.action, written.reason, written.boot_id, written.result) == (A.RESUME, OFF_BUS, BOOT, "done")


def test_what_needs_no_reboot_waits_only_for_a_clean_check() -> None:
    for boot in (BOOT, OTHER_BOOT, ""):
        found = back(CHECKED, shown=CHECKED_NODE, health=CLEAN._replace(boot_id=boot))
        assert found is not None
        assert found.way is Way.RESUME


@pytest.mark.parametrize(
    ("events", "shown", "health", "basis"),
    [
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), None, "reboot"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(boot_id=BOOT), "reboot"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(boot_id=""), "reboot"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(time=NOW - 3601), "reboot"),
        ([drained(ago=3600, boot_id="")], node("n1", "IDLE DRAIN", OURS), CLEAN, "reboot"),
        ([CHECKED], CHECKED_NODE, None, "no_check"),
        ([CHECKED], CHECKED_NODE, CLEAN._replace(time=NOW - 3600), "no_check"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(time=NOW - 901), "old_check"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(time=NOW + 61), "clock"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(clean=False), "not_clean"),
        ([DRAINED], node("n1", "IDLE DRAIN", OURS), CLEAN._replace(faults=("pcie_error",)), "not_clean"),
        ([DRAINED], node("n1", "DOWN DRAIN", OURS), CLEAN, "down"),
        ([DRAINED], node("n1", "IDLE DRAIN NOT_RESPONDING", OURS), CLEAN, "no_answer"),
        ([DRAINED], node("n1", "UNKNOWN DRAIN", OURS), CLEAN, "no_answer"),
        ([DRAINED], node("n1", "IDLE DRAIN POWERED_DOWN", OURS), CLEAN, "no_answer"),
        ([DRAINED], node("n1", "IDLE DRAIN REBOOT_ISSUED", OURS), CLEAN, "engaged"),
        ([DRAINED], node("n1", "IDLE DRAIN", f"{OURS} : Low RealMemory"), CLEAN, "slurms_word"),
        ([DRAINED], node("n1", "IDLE DRAIN", f"{OURS} : Not responding : x"), CLEAN, "slurms_word"),
        ([], node("n1", "IDLE DRAIN", OURS), CLEAN, "not_known"),
        ([drained(ago=3600, result="failed")], node("n1", "IDLE DRAIN", OURS), CLEAN, "not_known"),
        ([DRAINED, event(A.OVERRULED, ago=60)], node("n1", "IDLE DRAIN", OURS), CLEAN, "not_known"),
        (
            [DRAINED, *(event(A.RESUME, ago=(5 - n) * DAY, result="done") for n in (0, 1))],
            node("n1", "IDLE DRAIN", OURS),
            CLEAN,
            "again",
        ),
    ],
)
def test_what_a_drained_node_waits_for(events: list[NodeEvent], shown: Node, health: Health | None, basis: str) -> None:
    found = back(*events, shown=shown, health=health)
    assert found is not None
    assert (found.way, found.basis) == (Way.WAIT, basis)
    assert found.waits_for
    assert found.because
    assert back_event(found, "c", NOW) is None


@pytest.mark.parametrize(
    ("shown", "health"),
    [
        (node("n1", "IDLE DRAIN", f"{OURS} : Not responding"), CLEAN),
        (node("n1", "IDLE DRAIN", f"{OURS} : reboot issued : reboot complete"), CLEAN),
        (node("n1", "MIXED DRAIN", OURS), CLEAN),
        (node("n1", "IDLE DRAIN", OURS), CLEAN._replace(time=NOW - 899)),
        (node("n1", "IDLE DRAIN", OURS), CLEAN._replace(time=NOW + 59)),
    ],
)
def test_what_does_not_hinder_a_way_back(shown: Node, health: Health) -> None:
    found = back(DRAINED, event(A.RESUME, ago=4 * DAY, result="done"), shown=shown, health=health)
    assert found is not None
    assert found.way is Way.RESUME


def test_a_suspected_node_waits_for_a_reboot() -> None:
    text = "slurm_recovery: suspected stale_gpu_process incident 42"
    past = drained(ago=3600, reason="stale_gpu_process", detail=text)
    shown = node("n1", "IDLE DRAIN", text)
    waits = back(past, shown=shown, health=CLEAN._replace(boot_id=BOOT))
    serves = back(past, shown=shown, health=CLEAN)
    assert waits is not None
    assert serves is not None
    assert (waits.waits_for, serves.way) == ("a reboot", Way.RESUME)


def test_what_we_may_not_do_is_only_said() -> None:
    for keys in ({"mode": "observe"}, {"drain": "no"}, {"partitions": {"train": {"mode": "off"}}}):
        found = back(DRAINED, health=CLEAN, config=config(**keys))
        assert found is not None
        assert (found.way, found.basis) == (Way.WAIT, "not_acting")


@pytest.mark.parametrize(
    "shown",
    [
        node("n1", "IDLE"),
        node("n1", "MIXED NOT_RESPONDING"),
        node("n1", "IDLE", OURS),  # 24.11
        node("n1", "IDLE DRAIN", "bob: mine now", "bob"),
        node("n1", "DOWN", OURS),
        node("n1", "IDLE DRAIN", f"{OURS}, bob looks", "bob"),
        node("n1", "IDLE DRAIN", f"bob: {OURS}", "bob"),
        node("n1", "IDLE DRAIN", OURS[:-1]),
        node("n1", "IDLE DRAIN", f"{OURS}0"),
    ],
)
def test_a_drain_that_is_no_longer_ours_is_learned_from(shown: Node) -> None:
    found = back(DRAINED, shown=shown, health=CLEAN)
    assert found is not None
    assert found.way is Way.OVERRULED
    written = back_event(found, "c", NOW)
    assert written is not None
    assert (written.action, written.reason, written.boot_id) == (A.OVERRULED, OFF_BUS, BOOT)
    if not shown.reason:
        later = world(shown, events=[DRAINED, written.model_copy(update={"time": NOW - 9})])
        assert only(isolate([fault()], later)).basis == "overruled"


@pytest.mark.parametrize(
    "events",
    [
        [DRAINED, event(A.RESUME, ago=60, result="done")],
        [DRAINED, event(A.RESUME, ago=60, result="intent")],
        [DRAINED, event(A.RELEASE, ago=60)],
        [DRAINED, event(A.OVERRULED, ago=60)],
        [drained(ago=60, result="intent")],
        [drained(ago=60, result="refused")],
        [drained(ago=0)],
        [],
    ],
)
def test_what_we_ended_ourselves_or_never_did_is_nobodys_word(events: list[NodeEvent]) -> None:
    assert back(*events, shown=node("n1", "IDLE"), health=CLEAN) is None
    assert back(*events, shown=node("n1", "IDLE DRAIN", "bob"), health=CLEAN) is None


def test_an_intent_that_slurm_shows_was_done() -> None:
    found = back(drained(ago=3600, result="intent"), health=CLEAN)
    assert found is not None
    assert found.way is Way.RESUME


def test_a_resume_that_failed_is_tried_again() -> None:
    found = back(DRAINED, event(A.RESUME, ago=60, result="failed"), health=CLEAN)
    assert found is not None
    assert found.way is Way.RESUME


def test_a_silent_slurm_changes_nothing() -> None:
    assert ways_back(World({}, [DRAINED], config(), NOW), {"n1": CLEAN}) == ()
    assert ways_back(world(node("n2"), events=[DRAINED]), {"n1": CLEAN}) == ()


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.basis for row in ROWS}) == len(ROWS)
    assert len({gate.basis for gate in GATES}) == len(GATES)


# -- whatever comes ---------------------------------------------------------------------------------------------------

NAMES = [f"n{number}" for number in range(1, 7)]
TIMES = st.floats(NOW - HOUR, NOW) | st.sampled_from([NOW + HOUR, 0.0, math.nan, math.inf, -math.inf])
CODES = st.sampled_from([OFF_BUS, OFF_BUS, "pcie_error", "gpu_missing", "nic_failure", "ib_link_error", "?"])
BOOTS = st.sampled_from(["", BOOT, OTHER_BOOT])
TEXTS = st.sampled_from(["", OURS, f"{OURS} : Not responding", "bob", "slurm_recovery:", "Not responding"])
STATES = st.sampled_from(
    ["IDLE", "IDLE", "ALLOCATED", "DOWN", "IDLE DRAIN", "DOWN DRAIN", "IDLE FAIL", "IDLE NOT_RESPONDING", "MAINT", ""]
)

faults = st.builds(
    Fault,
    node=st.sampled_from([*NAMES, "gone"]),
    reason=CODES,
    source=st.sampled_from([FaultSource.KERNEL, FaultSource.NVML, FaultSource.SUSPICION]),
    time=TIMES,
    line=st.text(max_size=20),
    job=st.sampled_from(["", "1", "2_1", "2_2", "3"]),
    user=st.sampled_from(["", "alice", "bob"]),
    incident_id=st.sampled_from([0, 1, 42]),
    boot_id=BOOTS,
    xid=st.sampled_from([0, 0, 0, 0, 0, 31]),
    pci=st.sampled_from(["", PCI]),
    suspicion=st.none() | st.builds(Suspicion, st.floats(0.9, 1), st.integers(2, 5), st.integers(1, 3)),
)
any_event = st.builds(
    NodeEvent,
    cluster=st.just("c"),
    node=st.sampled_from(["", *NAMES]),
    time=st.floats(NOW - 3 * HOUR, NOW + HOUR),
    action=st.sampled_from(NodeAction),
    result=st.sampled_from(["", INTENT, *Result]),
    reason=CODES,
    user=st.sampled_from(["", "alice"]),
    job=st.sampled_from(["", "1", "2"]),
    incident_id=st.sampled_from([0, 42]),
    boot_id=BOOTS,
    detail=TEXTS | st.just(f"{PCI} Xid 31: x"),
)
any_drain = st.builds(
    drained, st.sampled_from(NAMES), st.floats(1, HOUR), st.sampled_from(["done", INTENT]), reason=CODES, boot_id=BOOTS
)
events = any_event | any_drain
nodes = st.builds(
    lambda shown: {name: node(name, state, text, at=at) for name, (state, text, at) in shown.items()},
    st.fixed_dictionaries(
        {}, optional={name: st.tuples(STATES, TEXTS, st.none() | st.floats(NOW - 3 * DAY, NOW)) for name in NAMES}
    ),
)
our_nodes = st.builds(
    lambda shown: {name: node(name, f"{state} DRAIN", text) for name, (state, text) in shown.items()},
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.sampled_from(["IDLE", "IDLE", "MIXED", "DOWN"]), st.just(OURS) | TEXTS),
        min_size=1,
    ),
)
configs = st.builds(
    lambda hour, share, mode: config(max_drains_per_hour=hour, max_drained_share=share, mode=mode),
    st.integers(0, 6),
    st.sampled_from([0, 30, 100]),
    st.sampled_from(["act", "act", "act", "observe"]),
)


def worlds(shown: st.SearchStrategy[dict[str, Node]]) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        nodes=shown,
        events=st.lists(events, max_size=8),
        config=configs,
        now=st.just(NOW),
        switches=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["s1", "s2"])),
    )


def _with_drains(around: World, drains: Mapping[str, NodeEvent]) -> World:
    return around._replace(events=[*around.events, *drains.values()])


# Mostly nodes that we drained, so that some of them may come back.
our_worlds = st.builds(
    _with_drains,
    worlds(our_nodes),
    st.fixed_dictionaries(
        {
            name: st.builds(
                drained, st.just(name), st.floats(HOUR, 2 * HOUR), st.sampled_from(["done", "done", INTENT]),
                reason=CODES, boot_id=st.just(BOOT) | BOOTS,
            )
            for name in NAMES
        }
    ),
)  # fmt: skip
healths = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        Health, st.floats(NOW - 800, NOW) | TIMES, st.just(OTHER_BOOT) | BOOTS, st.sampled_from([True, True, False]),
        st.sampled_from([(), (), ("pcie_error",)]),
    ),
    min_size=4,
)  # fmt: skip


@given(st.lists(faults, max_size=8), worlds(nodes), st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None)
def test_verdicts_are_total_and_in_bounds(given_faults: list[Fault], around: World, chance: random.Random) -> None:
    verdicts = isolate(given_faults, around)
    of_nodes = [verdict for verdict in verdicts if verdict.what is not What.ALERT]
    assert [verdict.node for verdict in of_nodes] == sorted({fault.node for fault in given_faults})
    drains = [verdict for verdict in verdicts if verdict.what is What.DRAIN]
    before = _within_an_hour(around.events)
    assert not drains or before + len(drains) <= around.config.settings.max_drains_per_hour
    for verdict in drains:
        shown = around.nodes[verdict.node]
        assert not shown.drained
        assert "FAIL" not in shown.state
        assert not (shown.reason == "bob" and (shown.down or shown.reason_time is None))
        assert verdict.text.startswith("slurm_recovery: ")
        assert drain_reason(verdict.text) == verdict.text
    assert all(verdict.because.isprintable() and len(verdict.because) < 1000 for verdict in verdicts)
    shuffled = [list(given_faults), list(around.events)]
    for each in shuffled:
        chance.shuffle(each)
    assert _told_by(isolate(shuffled[0], around._replace(events=shuffled[1]))) == _told_by(verdicts)  # type: ignore[arg-type]


def _told_by(verdicts: tuple[Verdict, ...]) -> list[tuple[object, ...]]:
    return [(*verdict[:6], verdict.nodes) for verdict in verdicts]


def _within_an_hour(past: Iterable[NodeEvent]) -> int:
    drains = (one for each in history(past).values() for one in deeds(each, A.DRAIN))
    return sum(NOW - one.time <= HOUR for one in drains)


@given(our_worlds, healths, st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None)
def test_only_what_is_ours_is_resumed(around: World, health: Mapping[str, Health], chance: random.Random) -> None:
    found = ways_back(around, health)
    assert [one.node for one in found] == sorted({one.node for one in found})
    for one in found:
        shown = around.nodes[one.node]
        assert one.because.isprintable()
        if one.way is not Way.RESUME:
            continue
        assert one.drain is not None
        assert shown.drained
        assert not shown.down
        assert shown.reason.startswith("slurm_recovery:")
        assert shown.reason.partition(" : ")[0] == one.drain.detail
        check = health[one.node]
        assert check.clean
        assert not check.faults
        assert one.drain.time < check.time
        assert NOW - check.time <= around.config.settings.health_age
        assert around.config.settings.mode == "act"
        if one.drain.reason != "gpu_missing":
            assert check.boot_id != one.drain.boot_id
    mixed = list(around.events)
    chance.shuffle(mixed)
    assert [one[:5] for one in ways_back(around._replace(events=mixed), health)] == [one[:5] for one in found]


@given(st.lists(st.tuples(st.lists(faults, max_size=4), st.floats(0, 2000), st.booleans()), max_size=12), configs)
@settings(max_examples=150, deadline=None)
def test_no_sequence_drains_more_than_an_hour_may_have(
    calls: list[tuple[list[Fault], float, bool]], policy: Config
) -> None:
    """Call after call, each drain done as the loop does it; some of them die between the deed and its result."""
    shown = {name: node(name) for name in NAMES}
    past: list[NodeEvent] = []
    times: list[float] = []
    now = NOW
    for found, later, dies in calls:
        now += later
        at_hand = [one._replace(time=now if not math.isfinite(one.time) else one.time - NOW + now) for one in found]
        for verdict in isolate(at_hand, World(shown, past, policy, now)):
            written = verdict_event(verdict, "c", now, INTENT if verdict.what is What.DRAIN else "")
            past += [written.model_copy(update={"id": len(past) + 1})] if written else []
            if verdict.what is not What.DRAIN:
                continue
            assert not shown[verdict.node].drained
            shown[verdict.node] = node(verdict.node, "IDLE DRAIN", verdict.text)
            times.append(now)
            if not dies and written:
                past.append(written.model_copy(update={"id": len(past) + 1, "result": Result.DONE.value}))
            if dies:  # and an administrator brings it back at once
                shown[verdict.node] = node(verdict.node)
        within = [when for when in times if now - when <= HOUR]
        assert len(within) <= policy.settings.max_drains_per_hour
