"""Judges an attempt: evidence, attribution, decision, and the exclusions that a restart shall have.

Brings together what the pure parts need; changes nothing, neither in Slurm nor in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurm_recovery.act import Clock
from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.node_faults import node_faults
from slurm_recovery.config.settings import Config, Mode
from slurm_recovery.decide.exclusions import Choice, Exclusion, choose, live
from slurm_recovery.decide.history import Ledger, ledger
from slurm_recovery.decide.progress import begin_from, course
from slurm_recovery.decide.rules import Alike, Case, decide, effective_mode, options_of
from slurm_recovery.decide.spare_nodes import Avoided
from slurm_recovery.evidence.node_reports import Reports
from slurm_recovery.job_options import CHECKPOINT
from slurm_recovery.observe import Observer, without_checkpoints
from slurm_recovery.records import Attempt, Attribution, Decision, Incident, Observation
from slurm_recovery.resume import Resume
from slurm_recovery.slurm.port import Job, Node
from slurm_recovery.store.store import Store
from slurm_recovery.suspects import Suspects, forgiven
from slurm_recovery.turn import Turn


class Judgement(NamedTuple):
    """What was seen, what it means, and what shall be done."""

    observation: Observation
    attribution: Attribution
    decision: Decision


@dataclass(frozen=True)
class Judge:
    """Judges under one site's settings, with one store's history."""

    config: Config
    cluster: str
    store: Store
    observer: Observer
    suspects: Suspects
    now: Clock

    def reports(self, attempt: Attempt, turn: Turn) -> Reports:
        """What the attempt's nodes wrote down, so far."""
        mode = effective_mode(self.config.policy(attempt.partition), attempt)
        return Reports() if mode is Mode.OFF else self.observer.reports(attempt, turn.down(attempt))

    def judge(
        self, incident: Incident, attempt: Attempt, turn: Turn, *, requeued: Job | None, reports: Reports
    ) -> Judgement:
        """`requeued`: the job, where somebody else has put it back into the queue."""
        earlier = self.store.history(attempt)
        mode = effective_mode(self.config.policy(attempt.partition), attempt)
        observation = Observation(attempt=attempt)
        if mode is not Mode.OFF:
            observation = self._observed(incident, attempt, turn, earlier, reports)
        attribution = attribute(observation)
        judged = incident.model_copy(
            update={"attempt": attempt, "observation": observation, "attribution": attribution}
        )
        told = [attribution, *(one.attribution for one in earlier if one.attribution)]
        case = Case(
            attempt=attempt,
            attribution=attribution,
            config=self.config,
            ledger=self._ledger(attempt, earlier),
            mode=mode,
            requeued_by_slurm=requeued is not None,
            still_pending=requeued is not None and requeued.pending,
            held_by_other=requeued is not None and requeued.held and not requeued.launch_failed,
            alike=self._alike(attempt, attribution),
            faulty=tuple((fault.node, fault.reason) for fault in node_faults(observation)),
            avoid=self._avoided(incident, attempt, told, turn) if mode is not Mode.OFF else (),
            course=course([judged, *earlier]),
            successors=turn.successors(incident) if requeued is None and mode is not Mode.OFF else (),
        )
        return Judgement(observation, attribution, decide(case))

    def _observed(
        self, incident: Incident, attempt: Attempt, turn: Turn, earlier: Sequence[Incident], reports: Reports
    ) -> Observation:
        policy = self.config.policy(attempt.partition)
        seen = incident.observation.down_nodes if incident.observation else ()
        gone_down = turn.gone_down(attempt).union(seen)
        if CHECKPOINT not in policy.job_options:
            reports = without_checkpoints(reports)
        options = options_of(attempt, policy)
        return self.observer.observe(attempt, turn.nodes, gone_down, earlier, reports, options)

    def _avoided(
        self, incident: Incident, attempt: Attempt, told: Sequence[Attribution], turn: Turn
    ) -> tuple[Avoided, ...]:
        """What a restart would avoid for suspicion alone."""
        job = turn.jobs.get(attempt.job_id)
        if job is None:
            return ()
        return self.suspects.avoided(attempt, told, job, turn.nodes, self.users(incident, job))

    def _alike(self, attempt: Attempt, attribution: Attribution) -> Alike:
        """Who else failed for this reason lately."""
        since = self.now() - self.config.settings.common_cause_time
        others = self.store.list(self.cluster, since=since, reason=attribution.reason)
        mine = {(attempt.label, attempt.user)}
        found = mine | {(one.attempt.label, one.attempt.user) for one in others}
        return Alike(len({label for label, _ in found}), len({user for _, user in found}))

    def _ledger(self, attempt: Attempt, earlier: Sequence[Incident]) -> Ledger:
        policy = self.config.policy(attempt.partition)
        since = self.now() - 3600
        return ledger(
            attempt,
            earlier,
            fast_failure=policy.fast_failure,
            cluster_hour=self.store.restarts_since(self.cluster, since),
            user_hour=self.store.restarts_since(self.cluster, since, user=attempt.user),
        )

    def resume(self, incident: Incident) -> Resume:
        """What the restart is told, once its exclusions are set."""
        attempt, observation = incident.attempt, incident.observation
        options = options_of(attempt, self.config.policy(attempt.partition))
        seen = observation.progress.folder if observation and observation.progress else ""
        begin = begin_from(self._chain(incident))
        return Resume(
            job_id=attempt.job_id,
            attempt=attempt.restart_count + 2,  # the coming one, counted from 1
            reason=incident.attribution.reason if incident.attribution else "",
            excluded=incident.excluded,
            folder=options.checkpoint or seen,
            checkpoint=begin.checkpoint,
            step=begin.step,
            refused=begin.refused,
            tasks=incident.fewer.given.tasks if incident.fewer else 0,
        )

    def choice(self, incident: Incident, parts: Sequence[Job], nodes: Mapping[str, Node]) -> Choice:
        """ExcNodeList of the restart. `parts`: the job, and the other components of a het job."""
        return choose(self.users(incident, parts[0]), self.exclusions(incident), parts, nodes)

    def exclusions(self, incident: Incident) -> tuple[Exclusion, ...]:
        """What we want to keep the job off, strongest first."""
        policy = self.config.policy(incident.attempt.partition)
        return live(self._chain(incident), self.now(), policy.exclusion_time, forgiven(self.store, self.cluster))

    def users(self, incident: Incident, job: Job) -> tuple[str, ...]:
        """The job's own --exclude: what is on its list now and was not put there by us."""
        chain = self._chain(incident)
        before_us = set(chain[-1].attempt.excluded_nodes)
        acted = [one.decision for one in chain if one.decision and one.decision.act]
        by_us = {node for decision in acted for node in (*decision.exclude, *decision.avoid)} - before_us
        return tuple(node for node in job.excluded_nodes if node not in by_us)

    def _chain(self, incident: Incident) -> list[Incident]:
        """The job's incidents, this one first, then backwards."""
        return [incident, *self.store.history(incident.attempt)]
