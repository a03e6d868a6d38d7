"""When a node that we drained may serve again: conditions, tried in order; the first that is not met is waited for.

Pure: it resumes nothing itself. A node is ours only while Slurm shows the very reason that we wrote. To add a condition
is to add a row to GATES. What Slurm does not show is unknown, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from slurm_recovery.attribute.reasons import Cure
from slurm_recovery.decide.node_history import (
    DAY,
    ENGAGED,
    INTENT,
    NOT_THERE,
    REBOOT_WORDS,
    SUSPECTED,
    World,
    acts,
    after,
    clock,
    deeds,
    history,
    is_ours,
    listed,
    needs,
    plain,
    same_boot,
    shows,
)
from slurm_recovery.records import NodeAction, NodeEvent
from slurm_recovery.slurm.port import Node

RETURNS, RETURNS_TIME = 2, 7 * DAY  # so often a node comes back by itself for one reason; then somebody must look
CLOCK_SKEW = 60.0
NO_ANSWER = frozenset({"UNKNOWN", "NOT_RESPONDING"}) | NOT_THERE


class Health(NamedTuple):
    """A node's last health check."""

    time: float
    boot_id: str
    clean: bool
    faults: tuple[str, ...] = ()  # reason codes


class Way(StrEnum):
    RESUME = "resume"
    WAIT = "wait"
    OVERRULED = "overruled"  # it is no longer ours: to be recorded, and learned from


class Back(NamedTuple):
    """What becomes of a node that we drained. `waits_for` is a few words for a table, `drain` our drain's event."""

    node: str
    way: Way
    basis: str
    because: str
    waits_for: str = ""
    drain: NodeEvent | None = None


class Stay(NamedTuple):
    """A drained node, and all that its way back may depend on."""

    node: Node
    drain: NodeEvent
    health: Health | None
    events: Sequence[NodeEvent]
    world: World

    @property
    def ours(self) -> bool:
        """Whether Slurm shows the drain, with the reason that we wrote: whole, and in front."""
        shown, written = self.node.reason, self.drain.detail
        return self.node.drained and is_ours(written) and (shown == written or shown.startswith(f"{written} : "))

    @property
    def added(self) -> tuple[str, ...]:
        """What Slurm added to it, but for what a reboot brings with it."""
        words = self.node.reason.removeprefix(self.drain.detail).split(" : ")
        return tuple(word for word in words if word and word not in REBOOT_WORDS)

    @property
    def fresh(self) -> Health | None:
        """The health check, where it is newer than the drain."""
        return self.health if self.health and self.health.time > self.drain.time else None

    @property
    def age(self) -> float:
        return self.world.now - self.fresh.time if self.fresh else math.inf

    @property
    def rebooted(self) -> bool:
        return self.fresh is not None and not same_boot(self.fresh.boot_id, self.drain.boot_id)

    @property
    def returns(self) -> int:
        """How often we resumed it within RETURNS_TIME after the same reason."""
        resumes = deeds(self.events, NodeAction.RESUME)
        return sum(one.reason == self.drain.reason and self.world.now - one.time <= RETURNS_TIME for one in resumes)


class Gate(NamedTuple):
    """A condition of the way back: `waits_for` while it is `shut`."""

    basis: str
    waits_for: str
    shut: Callable[[Stay], bool]
    says: Callable[[Stay], str]


def _wants_reboot(stay: Stay) -> bool:
    suspected = stay.drain.detail.startswith(SUSPECTED)
    return needs(stay.drain.reason, suspected=suspected) is Cure.REBOOT and not stay.rebooted


def _health_age(stay: Stay) -> float:
    return stay.world.config.settings.health_age


def _found(stay: Stay) -> str:
    return listed(stay.fresh.faults) if stay.fresh and stay.fresh.faults else "less than all that it looks at"


GATES: Sequence[Gate] = (
    Gate(
        "slurms_word",
        "an administrator",
        lambda s: bool(s.added),
        lambda s: f"Slurm has added {plain(' : '.join(s.added))!r} to our reason",
    ),
    Gate(
        "no_answer",
        "the node to answer",
        lambda s: bool(s.node.state & NO_ANSWER),
        lambda s: f"Slurm shows {'+'.join(sorted(s.node.state))}",
    ),
    Gate(
        "down",
        "an administrator: DOWN",
        lambda s: s.node.down,
        lambda s: f"Slurm shows {'+'.join(sorted(s.node.state))}, which only scontrol update State=RESUME ends",
    ),
    Gate(
        "engaged",
        "an administrator",
        lambda s: bool(s.node.state & ENGAGED),
        lambda s: f"Slurm shows {'+'.join(sorted(s.node.state & ENGAGED))}: somebody is at work there",
    ),
    Gate(
        "again",
        "an administrator: again",
        lambda s: s.returns >= RETURNS,
        lambda s: f"resumed {s.returns} times within 7 days after {s.drain.reason}, and drained for it again",
    ),
    Gate(
        "reboot",
        "a reboot",
        _wants_reboot,
        lambda s: f"{s.drain.reason} ends with a reboot, and no health check of another boot is there",
    ),
    Gate(
        "no_check",
        "a clean health check",
        lambda s: s.fresh is None,
        lambda s: f"no health check since the drain at {clock(s.drain.time)}",
    ),
    Gate(
        "clock",
        "the node's clock",
        lambda s: s.age < -CLOCK_SKEW,
        lambda s: f"the node's last health check lies {-s.age:.0f} s ahead: its clock is wrong",
    ),
    Gate(
        "old_check",
        "a clean health check",
        lambda s: not s.age <= _health_age(s),
        lambda s: f"the last health check is {s.age:.0f} s old, and {_health_age(s):g} s may be (HealthAge)",
    ),
    Gate(
        "not_clean",
        "a clean health check",
        lambda s: s.fresh is not None and (not s.fresh.clean or bool(s.fresh.faults)),
        lambda s: f"the last health check shows {_found(s)}",
    ),
    Gate(
        "not_acting",
        "Mode=act and Drain=yes",
        lambda s: not acts(s.world.config, s.node),
        lambda s: "its fault is over; not every partition of the node says Mode=act and Drain=yes",
    ),
)


def ways_back(world: World, health: Mapping[str, Health]) -> tuple[Back, ...]:
    """What becomes of each node that we have drained, by its name. A node that Slurm does not show is left out."""
    past = history(world.events)
    found = (_way_back(world.nodes[name], past.get(name, ()), health.get(name), world) for name in sorted(world.nodes))
    return tuple(back for back in found if back is not None)


def _way_back(node: Node, events: Sequence[NodeEvent], health: Health | None, world: World) -> Back | None:
    drain = next(iter(deeds(events, NodeAction.DRAIN)), None)
    if drain is None or after(drain, events, (NodeAction.OVERRULED,)):
        return _not_known(node)
    stay = Stay(node, drain, health, events, world)
    if not stay.ours:
        return _left_us(stay)
    gate = next((gate for gate in GATES if gate.shut(stay)), None)
    if gate:
        return Back(node.name, Way.WAIT, gate.basis, gate.says(stay), gate.waits_for, drain)
    rebooted = ", rebooted since" if stay.rebooted else ""
    because = f"drained by us at {clock(drain.time)} for {drain.reason}{rebooted}, and clean {stay.age:.0f} s ago"
    return Back(node.name, Way.RESUME, "clean", because, drain=drain)


def _left_us(stay: Stay) -> Back | None:
    """A drain of ours that was done, and that somebody else has ended or taken over."""
    unsure = stay.drain.result == INTENT or stay.drain.time >= stay.world.now
    if unsure or after(stay.drain, stay.events, (NodeAction.RESUME, NodeAction.RELEASE)):
        return None
    because = f"drained by us at {clock(stay.drain.time)} for {stay.drain.reason}; Slurm shows {shows(stay.node)}"
    return Back(stay.node.name, Way.OVERRULED, "overruled", because, drain=stay.drain)


def _not_known(node: Node) -> Back | None:
    """A drain under our name that the history does not know, or knows as overruled."""
    if not (node.drained and is_ours(node.reason)):
        return None
    because = f"the ledger knows no drain that stands with {shows(node)}"
    return Back(node.name, Way.WAIT, "not_known", because, "an administrator")


def back_event(back: Back, cluster: str, now: float, result: str = "", user: str = "") -> NodeEvent | None:
    """How a way back is written down; None while it waits. Reason, incident and boot are those of the drain."""
    if back.way is Way.WAIT or back.drain is None:
        return None
    return NodeEvent(
        cluster=cluster,
        node=back.node,
        time=now,
        action=NodeAction.RESUME if back.way is Way.RESUME else NodeAction.OVERRULED,
        result=result,
        reason=back.drain.reason,
        user=user,
        incident_id=back.drain.incident_id,
        boot_id=back.drain.boot_id,
        detail=back.because,
    )
