"""Which nodes are at fault by their own word, whatever the attempt ended of.

Owns what is proof enough to take a node out of service: a cause by itself, told by the node's kernel or by NVML, for
which attribute/reasons.py knows a cure. A job's log, an attributor and a flight recorder have no say here: the job's
owner can write them. Decides nothing: brakes and drains are in decide/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from slurm_recovery.attribute.kernel_rows import hardware_lines, hardware_states
from slurm_recovery.attribute.reasons import REASONS, Cure
from slurm_recovery.attribute.view import View, view
from slurm_recovery.attribute.window import OF_NODES, before_the_start, of_this_attempt
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.xid import Needs, needs
from slurm_recovery.records import Evidence, Observation, Role, Source, Trust

# A fault that was contained: the program that met it is gone, and the GPU serves the next one. NVML tells where the
# driver still wants a reset.
_PASSING = (Needs.NONE, Needs.RESTART_APP)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{7,20})\): (13|31),")


class NodeFault(NamedTuple):
    """A fault of a node. `time` is the kernel's, or when NVML was asked; None where the line tells none."""

    node: str
    reason: str
    line: str
    place: str
    time: float | None
    source: Source


class XidOfGpu(NamedTuple):
    """An Xid that speaks against a GPU only when it comes again, in other jobs: 13, 31."""

    node: str
    pci: str  # as the kernel prints it, in lower case: 0000:9b:00
    xid: int
    time: float | None


def node_faults(observation: Observation) -> tuple[NodeFault, ...]:
    """Each node's faults, one of each reason, by the kernel's earliest line or else by NVML.

    A fault that only a reboot ends, and of which the same boot told in the hours before the attempt, is still there.
    """
    looked_at = view(observation)
    proof = [*_lasting(observation), *hardware_lines(looked_at), *hardware_states(looked_at)]
    found: dict[tuple[str, str], NodeFault] = {}
    for one in proof:
        node = _node(looked_at, one)
        if node is not None and _proves(one):
            found.setdefault((node, one.reason), NodeFault(node, one.reason, one.line, one.place, one.time, one.source))
    return tuple(found[key] for key in sorted(found))


def _lasting(observation: Observation) -> Iterable[Evidence]:
    return [found for found in before_the_start(observation) if _cure(found) is Cure.REBOOT]


def _cure(found: Evidence) -> Cure | None:
    return REASONS[found.reason].cure if found.reason in REASONS else None


def _proves(found: Evidence) -> bool:
    if found.source is Source.KERNEL_LOG and "Xid" in found.line and needs(found.line) in _PASSING:
        return False
    by_itself = found.trust is Trust.ROOT and found.role is Role.ROOT and found.source in OF_NODES
    return by_itself and _cure(found) is not None


def _node(looked_at: View, found: Evidence) -> str | None:
    """The job's node that the evidence was read on: by the report's own name, not by what the line says."""
    return looked_at.places.known(found.node)


def xids(observation: Observation) -> tuple[XidOfGpu, ...]:
    """The first 13 and the first 31 of each GPU within the attempt's window."""
    nodes = frozenset(observation.attempt.nodes)
    found: dict[tuple[str, str, int], XidOfGpu] = {}
    for one in of_this_attempt(observation):
        if one.source is not Source.KERNEL_LOG or one.trust is not Trust.ROOT or one.node not in nodes:
            continue
        if match := _XID.match(frame(one.line).text):
            key = (one.node, match[1].lower(), int(match[2]))
            found.setdefault(key, XidOfGpu(*key, one.time))
    return tuple(found[key] for key in sorted(found))
