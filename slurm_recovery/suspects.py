"""What the ledger of attempts says about nodes that no evidence names, and what it is told.

Owns which runs are recorded and what a restart avoids for suspicion. The model is attribute/suspicion.py's, the use of
spare nodes decide/spare_nodes.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_recovery.act import Clock
from slurm_recovery.attribute.suspicion import HALF_LIVES, Suspicion, counts, suspicions
from slurm_recovery.config.settings import Config
from slurm_recovery.decide.exclusions import can_start_on
from slurm_recovery.decide.spare_nodes import Avoided, avoid
from slurm_recovery.drill.mark import is_drill
from slurm_recovery.records import Attempt, Attribution, NodeAction, Result, Run, Trust
from slurm_recovery.slurm.port import Job, Node
from slurm_recovery.store.store import Store

# What ended before one of these is no more the node's.
FORGIVING = (NodeAction.RELEASE, NodeAction.OVERRULED, NodeAction.RESUME)


@dataclass(frozen=True)
class Suspects:
    """The ledger of one cluster's store, under its settings."""

    config: Config
    cluster: str
    store: Store
    now: Clock

    def record(self, attempt: Attempt, attribution: Attribution) -> None:
        """A failed attempt, judged. A drill's says nothing of nodes, unless they tell of a fault themselves."""
        blamed = tuple(one.node for one in attribution.suspects if one.trust is Trust.ROOT)
        if is_drill(attempt) and not blamed:
            return
        self.store.ledger.save_run(_run(attempt, self.now(), good=False, reason=attribution.reason, blamed=blamed))

    def record_good(self, attempt: Attempt, watched: Collection[str]) -> None:
        """An attempt that ended well, where it ran on a node that anything is held against."""
        if not set(attempt.nodes).isdisjoint(watched):
            self.store.ledger.save_run(_run(attempt, self.now(), good=True))

    def runs(self) -> list[Run]:
        since = self.now() - HALF_LIVES * self.config.settings.suspicion_half_life
        return self.store.ledger.runs(self.cluster, since)

    def suspicions(self, runs: Iterable[Run], whose: str = "") -> tuple[Suspicion, ...]:
        """All suspected nodes, the most suspected first; as that user's jobs see them, or as all do."""
        return suspected(self.store, self.cluster, runs, self.now(), self.config.settings.suspicion_half_life, whose)

    def avoided(
        self,
        attempt: Attempt,
        attributions: Sequence[Attribution],
        job: Job,
        nodes: Mapping[str, Node],
        users: Collection[str],
    ) -> tuple[Avoided, ...]:
        """What the restart shall avoid.

        `attributions`: of this attempt, then of the job's earlier ones; `users`: the nodes of the job's own --exclude.
        """
        threshold = self.config.settings.suspicion_exclude
        if threshold >= 1:
            return ()
        found = self.suspicions(self.runs(), attempt.user)
        named = {*users, *(node for one in attributions for node in one.suspect_nodes)}
        spares = [node.name for node in nodes.values() if can_start_on(node, job) and node.name not in named]
        return avoid(found, attempt.nodes, spares, threshold, _unexplained(attributions), attempt.job_id)


def suspected(
    store: Store, cluster: str, runs: Iterable[Run], now: float, half_life: float, whose: str = ""
) -> tuple[Suspicion, ...]:
    """The posterior over a store's runs, with what was forgiven since, and the nodes' boots."""
    since = forgiven(store, cluster)
    boots = {node: event.time for node, event in store.ledger.latest(cluster, [NodeAction.BOOT]).items() if node}
    return suspicions(runs, now, half_life, since=since, boots=boots, whose=whose)


def forgiven(store: Store, cluster: str) -> dict[str, float]:
    """{node: when what was held against it ended}: by an administrator's word, or by a resume that was done."""
    since: dict[str, float] = {}
    for action in FORGIVING:
        for node, event in store.ledger.latest(cluster, [action]).items():
            if node and (action is not NodeAction.RESUME or event.result in (Result.DONE, Result.ALREADY)):
                since[node] = max(event.time, since.get(node, 0.0))
    return since


def watched(runs: Iterable[Run]) -> frozenset[str]:
    """Nodes that at least one failed attempt speaks against."""
    return frozenset(node for run in runs if not run.good and counts(run) for node in (run.blamed or run.nodes))


def _unexplained(attributions: Sequence[Attribution]) -> int:
    """How many of the job's last failures in a row name no node and may yet be a node's."""
    number = 0
    for one in attributions:
        if one.suspects or not _may_be_a_nodes(one):
            break
        number += 1
    return number


def _may_be_a_nodes(attribution: Attribution) -> bool:
    return counts(Run(cluster="", job_id=0, label="", end_time=0.0, reason=attribution.reason))


def _run(attempt: Attempt, now: float, *, good: bool, reason: str = "", blamed: tuple[str, ...] = ()) -> Run:
    return Run(
        cluster=attempt.cluster,
        job_id=attempt.job_id,
        label=attempt.label,
        restart_count=attempt.restart_count,
        start_time=attempt.start_time,
        end_time=now if attempt.end_time is None else attempt.end_time,
        user=attempt.user,
        partition=attempt.partition,
        nodes=attempt.nodes,
        good=good,
        reason=reason,
        blamed=blamed,
    )
