"""Faults and verdicts of nodes, and how they are written into a node's history and read again.

Owns the records that isolation.py, common_cause.py and way_back.py share. Pure. A deed leaves two events: "intent"
before it, its result after. One of which nobody knows whether it was done keeps its intent alone, and counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from slurm_recovery.attribute.reasons import REASONS, Cure
from slurm_recovery.config.settings import Config, Mode, YesNo
from slurm_recovery.records import NodeAction, NodeEvent, Result
from slurm_recovery.slurm.port import Node

PREFIX = "slurm_recovery:"  # what every Reason of ours begins with
SUSPECTED = f"{PREFIX} suspected "
INTENT = "intent"
HOUR, DAY = 3600.0, 86400.0

REPEATED_XIDS = (13, 31)  # a program's own doing, unless one GPU has them under several users' jobs
ENGAGED = frozenset("MAINT REBOOT REBOOT_REQUESTED REBOOT_ISSUED".split())  # somebody is at work there
# A drain of a node that is powered up ends the job that waits for it (node_mgr.c, update_node).
NOT_THERE = frozenset("POWERED_DOWN POWERING_DOWN POWER_DOWN POWERING_UP POWER_UP FUTURE INVAL INVALID_REG".split())
# What slurmctld adds behind a node's reason, parted by " : " (node_mgr.c, set_node_reason), when it is rebooted: 26.05
# adds `Not responding` after SlurmdTimeout, 22.05 nothing.
REBOOT_WORDS = frozenset({"Not responding", "reboot issued", "reboot complete", "Node unexpectedly rebooted"})
WORD_TIME = DAY  # how long an administrator's word stands after the node serves again

_FAILED = (Result.REFUSED, Result.FAILED)
_LATEST = 253402300799.0  # the year 9999


class FaultSource(StrEnum):
    """What tells of a fault: never a job's log."""

    KERNEL = "kernel"
    NVML = "nvml"
    SUSPICION = "suspicion"


class Suspicion(NamedTuple):
    """How sure the ledger of runs is, and of how many failed jobs and users."""

    value: float
    jobs: int
    users: int


class Fault(NamedTuple):
    """What was found against a node. `time` is the line's or the reading's; `incident_id` 0: by a health check.

    `xid` and `pci` are those of Xid 13 and 31, which count by GPU.
    """

    node: str
    reason: str
    source: FaultSource
    time: float
    line: str = ""
    job: str = ""
    user: str = ""
    partition: str = ""
    incident_id: int = 0
    boot_id: str = ""
    xid: int = 0
    pci: str = ""
    suspicion: Suspicion | None = None

    @property
    def suspected(self) -> bool:
        return self.source is FaultSource.SUSPICION


class World(NamedTuple):
    """What is known around the faults. `now` is when `nodes` was read from Slurm.

    `events` holds the last days, and each node's last DRAIN however old it is. `switches` is {node: leaf switch}.
    """

    nodes: Mapping[str, Node]
    events: Sequence[NodeEvent]
    config: Config
    now: float
    switches: Mapping[str, str] = {}


class What(StrEnum):
    DRAIN = "drain"
    ADVISE = "advise"  # it would be drained under Mode=act and Drain=yes
    REFUSE = "refuse"  # a brake or an administrator's word forbids it
    NOTHING = "nothing"
    ALERT = "alert"  # about several nodes: people are told


class Verdict(NamedTuple):
    """One node's verdict, or an alert about `nodes`, whose `node` is "". `text` is the Reason that a drain writes."""

    node: str
    what: What
    basis: str
    because: str
    reason: str = ""
    text: str = ""
    fault: Fault | None = None
    nodes: tuple[str, ...] = ()


# -- what a reason and a policy say ---------------------------------------------------------------------------------


def cure(reason: str) -> Cure | None:
    return REASONS[reason].cure if reason in REASONS else None


def needs(reason: str, *, suspected: bool) -> Cure:
    """What ends the fault. A suspected node's own checks have always been clean: only a reboot may change it."""
    return Cure.REBOOT if suspected else cure(reason) or Cure.REBOOT


def acts(config: Config, node: Node) -> bool:
    """Whether every partition of the node says Mode=act and Drain=yes."""
    policies = [config.policy(name) for name in node.partitions] or [config.settings]
    return all(policy.mode is Mode.ACT and policy.drain is YesNo.YES for policy in policies)


def is_ours(reason: str) -> bool:
    return reason.startswith(PREFIX)


def reason_text(fault: Fault) -> str:
    """The Reason that Slurm shows: `slurm_recovery: gpu_fell_off_bus incident 42`."""
    begin = SUSPECTED if fault.suspected else f"{PREFIX} "
    found = f"incident {fault.incident_id}" if fault.incident_id else f"health check {clock(fault.time)}"
    return f"{begin}{fault.reason if fault.reason in REASONS else 'unknown'} {found}"


# -- reading --------------------------------------------------------------------------------------------------------


def age(event: NodeEvent) -> tuple[object, ...]:
    """By which events are sorted. A result comes after its intent."""
    return (event.time, event.id, event.result != INTENT, event.action, event.result, event.reason, event.detail)


def history(events: Iterable[NodeEvent]) -> Mapping[str, Sequence[NodeEvent]]:
    """Each node's events, newest first."""
    found: dict[str, list[NodeEvent]] = {}
    for event in sorted(events, key=age, reverse=True):
        if event.node:
            found.setdefault(event.node, []).append(event)
    return found


def deeds(events: Iterable[NodeEvent], action: NodeAction) -> list[NodeEvent]:
    """Of one node's history the deeds that were done, or may have been: an intent without a result. Newest first."""
    results: Counter[tuple[str, int]] = Counter()
    found = []
    for event in events:
        if event.action is not action:
            continue
        key = (event.reason, event.incident_id)
        if event.result == INTENT and results[key]:
            results[key] -= 1
            continue
        if event.result != INTENT:
            results[key] += 1
        if event.result in (INTENT, Result.DONE, Result.ALREADY):
            found.append(event)
    return found


def after(event: NodeEvent, events: Sequence[NodeEvent], actions: Iterable[NodeAction]) -> bool:
    """Whether any of these actions came after the event; one that failed did not."""
    later = events[: events.index(event)]
    return any(one.action in actions and one.result not in _FAILED for one in later)


def since_return(events: Iterable[NodeEvent]) -> Iterator[NodeEvent]:
    """The events, newest first, since the node last came back, by us or by an administrator."""
    for event in events:
        if event.action in (NodeAction.RESUME, *WORDS) and event.result not in _FAILED:
            return
        yield event


WORDS = (NodeAction.RELEASE, NodeAction.OVERRULED)


def words(events: Iterable[NodeEvent]) -> Iterator[NodeEvent]:
    """What administrators said."""
    return (event for event in events if event.action in WORDS)


def same_boot(one: str, other: str) -> bool:
    """Whether both may be the same boot: a boot_id that is not known may be any."""
    return one == other or not one or not other


# -- writing --------------------------------------------------------------------------------------------------------


def fault_event(fault: Fault, cluster: str) -> NodeEvent:
    """How a fault is written down. Of Xid 13 and 31 `detail` begins with the GPU."""
    again = fault.xid in REPEATED_XIDS
    line = plain(fault.line, 400)
    return NodeEvent(
        cluster=cluster,
        node=fault.node,
        time=fault.time,
        action=NodeAction.XID if again else NodeAction.FAULT,
        reason=fault.reason,
        user=fault.user,
        job=fault.job,
        incident_id=fault.incident_id,
        boot_id=fault.boot_id,
        detail=f"{fault.pci} Xid {fault.xid}: {line}" if again else line,
    )


_ACTIONS = {
    What.DRAIN: NodeAction.DRAIN,
    What.ADVISE: NodeAction.ADVISED,
    What.REFUSE: NodeAction.REFUSED,
    What.ALERT: NodeAction.ALERT,
}


def verdict_event(verdict: Verdict, cluster: str, now: float, result: str = "") -> NodeEvent | None:
    """How a verdict is written down; None where there is nothing to write. A drain's `detail` is the Reason written."""
    if verdict.what not in _ACTIONS:
        return None
    fault = verdict.fault
    return NodeEvent(
        cluster=cluster,
        node=verdict.node,
        time=now,
        action=_ACTIONS[verdict.what],
        result=result,
        reason=verdict.reason,
        user=fault.user if fault else "",
        job=fault.job if fault else "",
        incident_id=fault.incident_id if fault else 0,
        boot_id=fault.boot_id if fault else "",
        detail=verdict.text or verdict.because,
    )


# -- words of sentences ---------------------------------------------------------------------------------------------


def clock(time: float) -> str:
    """UTC: `2026-11-29T20:11:12Z`."""
    seconds = min(max(time, 0.0), _LATEST) if math.isfinite(time) else 0.0
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(text: str, most: int = 120) -> str:
    """Text of nodes and people, cut, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most]).strip()


def listed(names: Sequence[str]) -> str:
    shown = ",".join(plain(name, 64) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def shows(node: Node) -> str:
    """What Slurm shows of a node, for a sentence."""
    by = f" of {plain(node.reason_user)}" if node.reason_user else ""
    return f"the reason {plain(node.reason)!r}{by}" if node.reason else "+".join(sorted(node.state)) or "no state"
