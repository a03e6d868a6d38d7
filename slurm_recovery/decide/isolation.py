"""Which nodes with a fault are drained: rows, tried in order; the first that applies gives the verdict.

Pure: no I/O, no clock, no logging; it drains nothing itself. To add a rule is to add a row to ROWS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from slurm_recovery.attribute.reasons import REASONS, Cure
from slurm_recovery.decide.common_cause import ONE_SWITCH, Sightings, alerts, is_common, says_common, says_rack
from slurm_recovery.decide.node_history import (
    DAY,
    ENGAGED,
    HOUR,
    NOT_THERE,
    REBOOT_WORDS,
    REPEATED_XIDS,
    WORD_TIME,
    Fault,
    FaultSource,
    Suspicion,
    Verdict,
    What,
    World,
    acts,
    age,
    clock,
    cure,
    deeds,
    fault_event,
    history,
    is_ours,
    needs,
    plain,
    reason_text,
    same_boot,
    shows,
    since_return,
    verdict_event,
    words,
)
from slurm_recovery.records import NodeAction, NodeEvent
from slurm_recovery.slurm.port import Node

__all__ = [
    "Fault",
    "FaultSource",
    "Suspicion",
    "Verdict",
    "What",
    "World",
    "fault_event",
    "isolate",
    "reason_text",
    "verdict_event",
]

XID_REASON, XID_TIME, XID_JOBS, XID_USERS = "gpu_internal_error", 7 * DAY, 3, 2
SUSPECT_JOBS, SUSPECT_USERS = 3, 2
FAILING = frozenset("FAIL FAILING".split())  # an administrator's word that a drain would take away (22.05, 26.05)


class Past:
    """The history, read once for all faults."""

    def __init__(self, events: Iterable[NodeEvent], now: float) -> None:
        self._of = history(events)
        self._now = now
        drains = (event for found in self._of.values() for event in deeds(found, NodeAction.DRAIN))
        self.drains = sum(now - event.time <= HOUR for event in drains)
        self._gpus: dict[str, set[tuple[str, str]]] = {}  # of each job, those with Xid 13 or 31
        for node, found in self._of.items():
            for event in found:
                if event.action is NodeAction.XID:
                    self._gpus.setdefault(_number(event.job), set()).add((node, _gpu(event)))

    def of(self, node: str) -> Sequence[NodeEvent]:
        """A node's events, newest first."""
        return self._of.get(node, ())

    def seen_by(self, fault: Fault) -> tuple[int, int]:
        """(jobs, users) that had Xid 13 or 31 on this GPU and no other, in XID_TIME, since the node last came back.

        A program that fails by itself does so on any GPU; tasks of one array run one program.
        """
        here = {
            (_number(event.job), event.user)
            for event in since_return(self.of(fault.node))
            if event.action is NodeAction.XID and _gpu(event) == fault.pci != "" and self._now - event.time <= XID_TIME
        }
        alone = {(job, user) for job, user in here if job and user and len(self._gpus[job]) == 1}
        return len({job for job, _ in alone}), len({user for _, user in alone})


def _number(job: str) -> str:
    return job.partition("_")[0]


def _gpu(event: NodeEvent) -> str:
    return event.detail.partition(" ")[0]


class Case(NamedTuple):
    """One fault, and all that its verdict may depend on."""

    fault: Fault
    world: World
    past: Past
    common: tuple[str, ...]  # nodes with the same new fault
    rack: tuple[str, ...]  # nodes of the same leaf switch with a new fault of the network
    drains: tuple[str, ...]  # what this call drains already

    @property
    def shown(self) -> Node:
        return self.world.nodes[self.fault.node]

    @property
    def events(self) -> Sequence[NodeEvent]:
        return self.past.of(self.fault.node)


class Row(NamedTuple):
    """`applies` looks at the case; `says` gives the sentence, with its numbers."""

    basis: str
    what: What
    applies: Callable[[Case], bool]
    says: Callable[[Case], str]


# -- ground ---------------------------------------------------------------------------------------------------------


def _repeated(case: Case) -> bool:
    return case.fault.xid in REPEATED_XIDS


def _says_xid(case: Case) -> str:
    jobs, users = case.past.seen_by(case.fault)
    return (
        f"Xid {case.fault.xid} on this GPU {plain(case.fault.pci)} and no other in {jobs} jobs of {users} users within "
        f"7 days (a fault of the GPU from {XID_JOBS} jobs of {XID_USERS} users on)"
    )


def _borne_out(case: Case) -> bool:
    found = case.fault.suspicion or Suspicion(0, 0, 0)
    least = case.world.config.settings.suspicion_drain
    return found.value >= least and found.jobs >= SUSPECT_JOBS and found.users >= SUSPECT_USERS


def _says_suspicion(case: Case) -> str:
    found = case.fault.suspicion or Suspicion(0, 0, 0)
    return (
        f"suspicion {found.value:.2f} (SuspicionDrain {case.world.config.settings.suspicion_drain:g}) by {found.jobs} "
        f"failed jobs of {found.users} users (a drain needs {SUSPECT_JOBS} jobs of {SUSPECT_USERS} users)"
    )


# -- an administrator's word ----------------------------------------------------------------------------------------


def _foreign(case: Case) -> bool:
    """Whether the node has a drain or a reason that is not ours.

    24.11 leaves the reason on a node that serves again; 22.05 and 26.05 take it away.
    """
    node, now = case.shown, case.world.now
    if node.state & FAILING:
        return True
    if is_ours(node.reason) or not node.reason:
        return node.drained and not node.reason
    if node.drained or node.down:
        return True
    recent = node.reason_time is None or now - node.reason_time <= WORD_TIME
    return recent and node.reason not in REBOOT_WORDS


def _settled(case: Case) -> NodeEvent | None:
    """What put an end to the fault since it was seen: an administrator's word, or our own resume."""
    ends = [*words(case.events), *deeds(case.events, NodeAction.RESUME)]
    return max((event for event in ends if event.time >= case.fault.time), key=age, default=None)


def _says_settled(case: Case) -> str:
    event = _settled(case)
    when = f" at {clock(event.time)}" if event else ""
    how = "resumed" if event and event.action is NodeAction.RESUME else "released by an administrator"
    return f"the node was {how}{when}, after this fault of {clock(case.fault.time)}"


def _rebooted(case: Case) -> bool:
    boots = (event for event in case.events if event.action is NodeAction.BOOT and event.time >= case.fault.time)
    other = any(not same_boot(event.boot_id, case.fault.boot_id) for event in boots)
    return other and needs(case.fault.reason, suspected=case.fault.suspected) is Cure.REBOOT


def _overruled(case: Case) -> NodeEvent | None:
    """An administrator's word within the last day against this reason, in this boot."""
    recent = (event for event in words(case.events) if case.world.now - event.time <= WORD_TIME)
    return next((event for event in recent if _is_against(event, case)), None)


def _is_against(word: NodeEvent, case: Case) -> bool:
    """An overruling names its reason; a release is about all that was known of the node by then."""
    if word.action is NodeAction.OVERRULED:
        return _same_fault(word, case.fault)
    known = (event for event in case.events if event.action in (NodeAction.FAULT, NodeAction.DRAIN))
    return any(event.time <= word.time and _same_fault(event, case.fault) for event in known)


def _same_fault(event: NodeEvent, fault: Fault) -> bool:
    return event.reason == fault.reason and same_boot(event.boot_id, fault.boot_id)


def _says_overruled(case: Case) -> str:
    event = _overruled(case)
    by = f" ({plain(event.user)})" if event and event.user else ""
    when = f" at {clock(event.time)}" if event else ""
    return f"an administrator{by} has overruled the same fault, {plain(case.fault.reason)}{when}"


# -- brakes ---------------------------------------------------------------------------------------------------------


def _hour(case: Case) -> int:
    """Drains by us within an hour, and those of this call."""
    return case.past.drains + len(case.drains)


def _most_hour(case: Case) -> int:
    return case.world.config.settings.max_drains_per_hour


class Share(NamedTuple):
    partition: str
    drained: int
    most: int
    nodes: int


def _full(case: Case) -> Share | None:
    """The first of the node's partitions of which no more may be drained by us."""
    percent = case.world.config.settings.max_drained_share
    for name in sorted(case.shown.partitions):
        nodes = [node for node in case.world.nodes.values() if name in node.partitions]
        ours = sum(node.name in case.drains or (node.drained and is_ours(node.reason)) for node in nodes)
        most = max(1, len(nodes) * percent // 100)
        if ours >= most:
            return Share(name, ours, most, len(nodes))
    return None


def _says_full(case: Case) -> str:
    share = _full(case) or Share("", 0, 0, 0)
    return (
        f"{share.drained} of {share.nodes} nodes of partition {plain(share.partition)} are drained by us, and "
        f"{share.most} may be (MaxDrainedShare {case.world.config.settings.max_drained_share})"
    )


def _says_drain(case: Case) -> str:
    return f"{_ground(case)}; drain {_hour(case) + 1} of {_most_hour(case)} within an hour"


def _ground(case: Case) -> str:
    fault = case.fault
    if fault.suspected:
        return _says_suspicion(case)
    if _repeated(case):
        return _says_xid(case)
    own = "kernel log" if fault.source is FaultSource.KERNEL else "NVML"
    return f"{REASONS[fault.reason].sentence} The node's own {own}: {plain(fault.line)!r}"


# -- the rows -------------------------------------------------------------------------------------------------------

ROWS: Sequence[Row] = (
    Row("xid_of_a_program", What.NOTHING, lambda c: _repeated(c) and c.fault.reason != XID_REASON, _says_xid),
    Row(
        "no_cure",
        What.NOTHING,
        lambda c: not c.fault.suspected and cure(c.fault.reason) is None,
        lambda c: f"{plain(c.fault.reason)} is no ground for a drain",
    ),
    Row("suspicion_low", What.NOTHING, lambda c: c.fault.suspected and not _borne_out(c), _says_suspicion),
    Row(
        "unknown_node",
        What.NOTHING,
        lambda c: c.fault.node not in c.world.nodes,
        lambda c: f"not among the {len(c.world.nodes)} nodes that Slurm shows",
    ),
    Row(
        "foreign_reason",
        What.REFUSE,
        _foreign,
        lambda c: f"Slurm shows {shows(c.shown)}: an administrator's word stands",
    ),
    Row(
        "drained_by_us",
        What.NOTHING,
        lambda c: c.shown.drained,
        lambda c: f"drained by us already: {plain(c.shown.reason)!r}",
    ),
    Row(
        "engaged",
        What.REFUSE,
        lambda c: bool(c.shown.state & ENGAGED),
        lambda c: f"Slurm shows {'+'.join(sorted(c.shown.state & ENGAGED))}: somebody is at work there",
    ),
    Row(
        "not_there",
        What.REFUSE,
        lambda c: bool(c.shown.state & NOT_THERE),
        lambda c: f"Slurm shows {'+'.join(sorted(c.shown.state & NOT_THERE))}: what failed is not there now",
    ),
    Row(
        "stronger_fault",
        What.NOTHING,
        lambda c: c.fault.node in c.drains,
        lambda c: "the node is drained for a stronger reason",
    ),
    Row("settled", What.NOTHING, lambda c: _settled(c) is not None, _says_settled),
    Row(
        "rebooted",
        What.NOTHING,
        _rebooted,
        lambda c: f"the node has been rebooted since this fault of {clock(c.fault.time)}",
    ),
    Row("overruled", What.REFUSE, lambda c: _overruled(c) is not None, _says_overruled),
    Row(
        "common_cause",
        What.REFUSE,
        lambda c: is_common(c.common, c.world),
        lambda c: says_common(c.fault, c.common, c.world),
    ),
    Row(
        "one_switch",
        What.REFUSE,
        lambda c: len(c.rack) >= ONE_SWITCH,
        lambda c: says_rack(c.fault, c.rack, c.world),
    ),
    Row(
        "not_acting",
        What.ADVISE,
        lambda c: not acts(c.world.config, c.shown),
        lambda c: f"{_says_drain(c)}; not done: not every partition of the node says Mode=act and Drain=yes",
    ),
    Row(
        "drains_per_hour",
        What.REFUSE,
        lambda c: _hour(c) >= _most_hour(c),
        lambda c: f"{_hour(c)} of {_most_hour(c)} drains used within an hour (MaxDrainsPerHour)",
    ),
    Row("drained_share", What.REFUSE, lambda c: _full(c) is not None, _says_full),
    Row("drain", What.DRAIN, lambda c: True, _says_drain),
)

_RANK = (What.DRAIN, What.ADVISE, What.REFUSE, What.NOTHING)


def isolate(faults: Iterable[Fault], world: World) -> tuple[Verdict, ...]:
    """A verdict for each node that has a fault, by its name, and then the alerts."""
    timed = [fault._replace(time=_time(fault, world.now)) for fault in faults]
    xids = (fault_event(fault, "") for fault in timed if fault.xid in REPEATED_XIDS)
    past = Past([*world.events, *xids], world.now)
    known = sorted({_risen(fault, past) for fault in timed}, key=_strength)
    sightings = Sightings(known, world)
    verdicts: dict[str, Verdict] = {}
    drains: tuple[str, ...] = ()
    for fault in known:
        verdict = _verdict(Case(fault, world, past, sightings.common(fault), sightings.rack(fault), drains))
        if verdict.what is What.DRAIN:
            drains += (fault.node,)
        former = verdicts.get(fault.node)
        if former is None or _RANK.index(verdict.what) < _RANK.index(former.what):
            verdicts[fault.node] = verdict
    braked = [node for node in sorted(verdicts) if verdicts[node].basis == "drains_per_hour"]
    return (*(verdicts[node] for node in sorted(verdicts)), *alerts(known, sightings, braked))


def _verdict(case: Case) -> Verdict:
    row = next(row for row in ROWS if row.applies(case))
    text = reason_text(case.fault) if row.what is What.DRAIN else ""
    return Verdict(case.fault.node, row.what, row.basis, row.says(case), case.fault.reason, text, case.fault)


def _time(fault: Fault, now: float) -> float:
    """The fault's time; a node whose clock is ahead saw it now."""
    return min(fault.time, now) if math.isfinite(fault.time) else now


def _risen(fault: Fault, past: Past) -> Fault:
    """Xid 13 or 31 as what it is when one GPU has it again and again."""
    if fault.xid in REPEATED_XIDS:
        jobs, users = past.seen_by(fault)
        if jobs >= XID_JOBS and users >= XID_USERS:
            return fault._replace(reason=XID_REASON)
    return fault


_PLACES = {code: place for place, code in enumerate(REASONS)}


def _strength(fault: Fault) -> tuple[object, ...]:
    """Own evidence before suspicion, what only a reboot cures first; then the earliest. A total order."""
    return (
        fault.suspected,
        cure(fault.reason) is not Cure.REBOOT,
        _PLACES.get(fault.reason, len(_PLACES)),
        fault.time,
        fault[:3],
        fault[4:-1],
        str(fault.suspicion),
    )
