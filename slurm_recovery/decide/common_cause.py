"""Whether several nodes' faults have one cause that is not theirs, and when people are told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.decide.node_history import HOUR, Fault, Verdict, What, World, cure, listed, plain
from slurm_recovery.records import Category, NodeAction, NodeEvent

ONE_SWITCH = 2  # so many nodes of one leaf switch with a fault of the network are the switch's
_SEEN = (NodeAction.FAULT, NodeAction.DRAIN, NodeAction.REFUSED)


class Sightings:
    """When each reason was first seen on each node's boot, of the faults at hand and of the history."""

    def __init__(self, faults: Iterable[Fault], world: World) -> None:
        self.world = world
        self._first: dict[str, dict[tuple[str, str], float]] = {}
        self._found: dict[tuple[float, tuple[str, ...]], tuple[str, ...]] = {}  # what _near has found already
        for fault in faults:
            self._note(fault.reason, fault.node, fault.boot_id, fault.time)
        for event in world.events:
            if event.action in _SEEN and event.node:
                self._note(event.reason, event.node, event.boot_id, min(event.time, world.now))

    def _note(self, reason: str, node: str, boot: str, time: float) -> None:
        first = self._first.setdefault(reason, {})
        first[node, boot] = min(time, first.get((node, boot), time))

    def first(self, fault: Fault) -> float:
        return self._first[fault.reason][fault.node, fault.boot_id]

    def common(self, fault: Fault) -> tuple[str, ...]:
        """Nodes on which this reason was first seen within CommonCauseTime of this fault."""
        return self._near(fault, (fault.reason,))

    def rack(self, fault: Fault) -> tuple[str, ...]:
        """Those of this node's leaf switch with any reason of the network; () where this fault is none."""
        switches, reasons = self.world.switches, tuple(filter(_of_network, self._first))
        switch = switches.get(fault.node)
        if switch is None or fault.reason not in reasons:
            return ()
        return tuple(node for node in self._near(fault, reasons) if switches.get(node) == switch)

    def _near(self, fault: Fault, reasons: tuple[str, ...]) -> tuple[str, ...]:
        span, first = self.world.config.settings.common_cause_time, self.first(fault)
        if (first, reasons) not in self._found:
            sightings = (pair for reason in reasons for pair in self._first[reason].items())
            near = {node for (node, _), time in sightings if abs(time - first) <= span}
            self._found[first, reasons] = tuple(sorted(near))
        return self._found[first, reasons]


def _of_network(reason: str) -> bool:
    return reason in REASONS and REASONS[reason].category is Category.INTERCONNECT


def is_common(common: Sequence[str], world: World) -> bool:
    return len(common) >= world.config.settings.common_cause_nodes


def says_common(fault: Fault, common: Sequence[str], world: World) -> str:
    settings = world.config.settings
    return (
        f"{len(common)} nodes have {fault.reason} within {settings.common_cause_time:g} s (CommonCauseNodes "
        f"{settings.common_cause_nodes}), {listed(common)}{_one_switch(common, world.switches)}: a common cause, not "
        "theirs"
    )


def says_rack(fault: Fault, rack: Sequence[str], world: World) -> str:
    return (
        f"{len(rack)} nodes of switch {plain(world.switches[fault.node])}, {listed(rack)}, have faults of the network "
        f"within {world.config.settings.common_cause_time:g} s: the switch's, not theirs"
    )


def _one_switch(nodes: Sequence[str], switches: Mapping[str, str]) -> str:
    found = {switches.get(node, "") for node in nodes}
    return f", all of switch {plain(found.pop())}" if len(found) == 1 and "" not in found else ""


def alerts(faults: Sequence[Fault], sightings: Sightings, braked: Sequence[str]) -> tuple[Verdict, ...]:
    """What people are told: each reason once, and not again while it is the same.

    `braked` are nodes that MaxDrainsPerHour kept from being drained; of those people are told once an hour.
    """
    world = sightings.world
    told = [event for event in world.events if event.action is NodeAction.ALERT]
    found: dict[str, Verdict] = {}
    for fault in faults:
        alert = _alert(fault, sightings)
        since = sightings.first(fault) - world.config.settings.common_cause_time
        if alert and not _told(told, fault.reason, since):
            found.setdefault(fault.reason, alert)
    if braked and not _told(told, "", world.now - HOUR):
        most = world.config.settings.max_drains_per_hour
        because = f"{len(braked)} nodes beyond MaxDrainsPerHour {most} have faults that drain: {listed(braked)}"
        found[""] = Verdict("", What.ALERT, "drains_per_hour", because, nodes=tuple(braked))
    return tuple(found[reason] for reason in sorted(found))


def _told(events: Iterable[NodeEvent], reason: str, since: float) -> bool:
    return any(event.reason == reason and event.time >= since for event in events)


def _alert(fault: Fault, sightings: Sightings) -> Verdict | None:
    world, common, rack = sightings.world, sightings.common(fault), sightings.rack(fault)
    drains = cure(fault.reason) is not None or fault.suspected
    if drains and is_common(common, world):
        because = says_common(fault, common, world)
        return Verdict("", What.ALERT, "common_cause", because, fault.reason, nodes=common)
    if len(rack) >= ONE_SWITCH:
        return Verdict("", What.ALERT, "one_switch", says_rack(fault, rack, world), fault.reason, nodes=rack)
    return None
