"""How a node stands, by its history: what we did to it last, since when, for which fault, and what it waits for. Pure.

Owns the words that `srecover nodes` prints. What is done to a node is decide/isolation.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from slurm_recovery.attribute.reasons import Cure
from slurm_recovery.decide.node_history import INTENT, SUSPECTED, age, needs, same_boot
from slurm_recovery.records import NodeAction, NodeEvent, Result

Latest = Mapping[NodeAction, NodeEvent]  # a node's newest event of each action

TELLING = tuple(action for action in NodeAction if action is not NodeAction.ALERT)
FAULTS = (NodeAction.FAULT, NodeAction.DRAIN, NodeAction.REFUSED)  # an Xid of a program's own is none
SO = (Result.DONE, Result.ALREADY)


class State(StrEnum):
    """What we did about a node."""

    DRAINED = "drained"
    BEGUN = "drain begun"  # intended, and nothing says how it ended
    RESUMED = "resumed"
    OVERRULED = "overruled"
    RELEASED = "released"
    WATCHED = "watched"  # it told of a fault and is not drained for it, or restarts avoid it for its suspicion
    NONE = "-"


class Standing(NamedTuple):
    """`event` is the one that made the state so; `fault` a reason code, or ""."""

    state: State
    event: NodeEvent | None = None
    fault: str = ""
    waits_for: str = ""


def standing(latest: Latest) -> Standing:
    """How the node of these events stands."""
    state, event = _state(latest)
    return Standing(state, event, _fault(latest), _waits_for(latest) if state is State.DRAINED else "")


def _state(latest: Latest) -> tuple[State, NodeEvent | None]:
    drain = latest.get(NodeAction.DRAIN)
    if drain and drain.result in (*SO, INTENT) and not _ended(latest, drain):
        return (State.BEGUN if drain.result == INTENT else State.DRAINED), drain
    told = [(state, latest[action]) for action, state in OTHERWISE.items() if _counts(latest, action)]
    return max(told, key=lambda one: age(one[1]), default=(State.NONE, None))


OTHERWISE = {
    NodeAction.RESUME: State.RESUMED,
    NodeAction.OVERRULED: State.OVERRULED,
    NodeAction.RELEASE: State.RELEASED,
    NodeAction.REFUSED: State.WATCHED,
    NodeAction.FAULT: State.WATCHED,
}
# From a release on nobody notes any more that an administrator has ended the drain: it may stand, or not.
ENDS = (NodeAction.RESUME, NodeAction.OVERRULED, NodeAction.RELEASE)


def _counts(latest: Latest, action: NodeAction) -> bool:
    return action in latest and (action is not NodeAction.RESUME or latest[action].result in SO)


def _ended(latest: Latest, drain: NodeEvent) -> bool:
    return any(age(latest[one]) > age(drain) for one in ENDS if _counts(latest, one))


def _fault(latest: Latest) -> str:
    told = [latest[action] for action in FAULTS if action in latest and latest[action].reason]
    return max(told, key=age).reason if told else ""


def _waits_for(latest: Latest) -> str:
    """What must still be seen before we resume the node, as far as its history tells: see way_back.GATES."""
    drain = latest[NodeAction.DRAIN]
    begin = drain
    if needs(drain.reason, suspected=drain.detail.startswith(SUSPECTED)) is Cure.REBOOT:
        boot = latest.get(NodeAction.BOOT)
        if boot is None or same_boot(boot.boot_id, drain.boot_id):
            return "a reboot"
        begin = max(drain, boot, key=age)
    clean = latest.get(NodeAction.CLEAN)
    return "a clean health check" if clean is None or age(clean) < age(begin) else "the next sweep"
