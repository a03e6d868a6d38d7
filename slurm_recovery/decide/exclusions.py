"""Which nodes a restart shall avoid: union, live, feasible. Pure.

The user's own `--exclude` always stays. Ours are added strongest first, and left out from the weakest on
where the job could not start any more (Slurm accepts such a list, and the job then waits for ever).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_recovery.records import Incident, Trust
from slurm_recovery.slurm.port import Job, Node


class Exclusion(NamedTuple):
    """A node that one of a job's incidents named."""

    node: str
    since: float
    trust: Trust


class Choice(NamedTuple):
    """ExcNodeList as it shall be, and what was left out for which reason."""

    nodes: tuple[str, ...]
    ours: tuple[Exclusion, ...]  # strongest first
    left_out: tuple[tuple[str, str], ...]  # (node, why)


def live(
    incidents: Sequence[Incident], now: float, exclusion_time: float, released: Mapping[str, float] = {}
) -> tuple[Exclusion, ...]:
    """The exclusions of a job's incidents, newest first, that have not expired: root trust first, then the newest.

    `released`: when people gave a node free; what was held against it before counts no longer. What only suspicion
    keeps the job off comes last, and only as the newest incident has it.
    """
    newest: dict[str, Exclusion] = {}
    for incident in incidents:
        if incident.decision is None or incident.attribution is None:
            continue
        since = incident.times.get("decided", incident.attempt.end_time or now)
        trusts = {suspect.node: suspect.trust for suspect in incident.attribution.suspects}
        for node in incident.decision.exclude:
            entry = Exclusion(node, since, trusts.get(node, Trust.USER))
            stands = now - since < exclusion_time and since > released.get(node, 0.0)
            if stands and (node not in newest or newest[node].since < since):
                newest[node] = entry
    proven = sorted(newest.values(), key=lambda e: (e.trust is not Trust.ROOT, -e.since))
    last = next((one.decision.avoid for one in incidents if one.decision), ())
    return (*proven, *(Exclusion(node, now, Trust.USER) for node in last if node not in newest))


def choose(
    users: Sequence[str], ours: Sequence[Exclusion], parts: Sequence[Job], nodes: Mapping[str, Node]
) -> Choice:
    """Union of the user's exclusions and as many of ours, strongest first, as leave the job able to start.

    `parts`: the job alone, or all components of a het job, each of which must be able to start.
    """
    required = {node for part in parts for node in part.required_nodes}
    kept: list[Exclusion] = []
    left_out: list[tuple[str, str]] = []
    for exclusion in ours:
        if exclusion.node in users:
            kept.append(exclusion)
        elif exclusion.node not in nodes:
            left_out.append((exclusion.node, "no longer in slurm.conf"))
        elif exclusion.node in required:
            left_out.append((exclusion.node, "the job asks for it by --nodelist"))
        elif not all(_enough({*users, *(e.node for e in kept), exclusion.node}, part, nodes) for part in parts):
            left_out.append((exclusion.node, "too few other nodes for this job"))
        else:
            kept.append(exclusion)
    known = [node for node in users if node in nodes]
    return Choice(tuple(dict.fromkeys([*known, *(e.node for e in kept)])), tuple(kept), tuple(left_out))


def _enough(excluded: set[str], job: Job, nodes: Mapping[str, Node]) -> bool:
    """Whether the job's partition holds nodes enough besides: up, and with the features that it asks for.

    Features are only compared where the request is a plain conjunction (`a&b`); of anything richer Slurm
    itself is the judge, by Reason=BadConstraints after the release.
    """
    usable = sum(1 for node in nodes.values() if node.name not in excluded and not node.away and suits(node, job))
    return usable >= max(job.num_nodes, 1)


def can_start_on(node: Node, job: Job) -> bool:
    """Whether the node is idle, and of the job's partition and features."""
    return "IDLE" in node.state and not node.away and suits(node, job)


def suits(node: Node, job: Job) -> bool:
    """Whether the node is of the job's partition, and has the features that it asks for."""
    wanted = set(filter(None, job.features.split("&"))) if not set("|[](),*") & set(job.features) else set()
    return bool(node.partitions & set(job.partition.split(","))) and wanted <= node.features
