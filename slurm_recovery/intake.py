"""Takes events in: makes an incident of one that tells of a failure, drops or keeps the others.

Owns the question whether an event is a failure, and whether it is known already. What becomes of the
incident is recover.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_recovery.act import Actor, Clock
from slurm_recovery.hooks.spool import Event, Spool
from slurm_recovery.observe import attempt_of, hosts, same_attempt
from slurm_recovery.records import Attempt, Incident, Observation, Stage
from slurm_recovery.slurm.port import Job
from slurm_recovery.store.store import Store
from slurm_recovery.suspects import Suspects, watched
from slurm_recovery.turn import Turn, job_of

NODE_DOWN_MEMORY = 900.0  # seconds for which a strigger event speaks for its nodes
SLURMCTLD_GRACE = 120.0  # an event and an incident of one attempt lie closer together than this


@dataclass(frozen=True)
class Intake:
    """Events of one cluster's spool, into its store."""

    cluster: str
    store: Store
    spool: Spool
    actor: Actor
    suspects: Suspects
    now: Clock

    def take(self, event: Event, turn: Turn) -> Incident | None:
        """The event's incident, new or known; None where it tells of no failure, or of none yet."""
        if event.kind == "node_down":
            self._keep_for(event, NODE_DOWN_MEMORY)
            return None
        job = turn.jobs.get(job_of(event))
        if not event.failed and not self._worth_it(event, job, turn):
            return None
        attempt = attempt_of(event, job, turn.components(job) if job else (), self.cluster)
        incident = self._known(attempt, event)
        if incident is None:
            return self._new(attempt, event, turn)
        return self._joined(incident, event) if incident.stage in (Stage.DETECTED, Stage.HELD) else incident

    def _new(self, attempt: Attempt, event: Event, turn: Turn) -> Incident:
        seen = Observation(attempt=attempt, down_nodes=tuple(sorted(turn.down(attempt))))
        turn.look_at_queue()  # before the time of detection: whoever is let go after it shows now that it waited
        incident = Incident(attempt=attempt, observation=seen)
        incident = incident.at("ended", moment(event.time, attempt.end_time)).at("detected", self.now())
        told = f"EpilogSlurmctld was told ExitCode={attempt.exit_code}:{attempt.signal}"
        return self.actor.note(incident, "detected", told)

    def _joined(self, incident: Incident, event: Event) -> Incident:
        """A het job's hook runs once a component, and each knows its own nodes: the leader's come first."""
        known, told = incident.attempt.nodes, hosts(event.variables.get("SLURM_JOB_NODELIST", ""))
        if set(told) <= set(known):
            return incident
        nodes = (*told, *known) if event.job_id == incident.attempt.job_id else (*known, *told)
        attempt = incident.attempt.model_copy(update={"nodes": tuple(dict.fromkeys(nodes))})
        return self.actor.note(incident.model_copy(update={"attempt": attempt}), "component", event.path.name)

    def _keep_for(self, event: Event, seconds: float) -> None:
        if self.now() - event.time > seconds:
            self.spool.done(event)
        else:
            self.spool.defer(event)

    def _worth_it(self, event: Event, job: Job | None, turn: Turn) -> bool:
        """Whether an event with exit code 0:0 tells of a failure; settles those that do not."""
        told = attempt_of(event, None, (), self.cluster)
        if job is not None and turn.completing(job):
            if turn.down(told):  # now: it may be up again when COMPLETING is over
                return True
            self.spool.defer(event)
            turn.unripe.append(event)
            return False
        if job is not None and same_attempt(event, job):
            parts = (job, *turn.components(job))
            if any(part.state not in ("COMPLETED", "CANCELLED") for part in parts):
                return True
            attempt = attempt_of(event, job, parts[1:], self.cluster)
            if event.job_id == job.job_id:  # a het job's hook runs once a component
                self._expose(attempt)
            if all(part.state == "COMPLETED" for part in parts):
                self._ended_well(attempt, turn)
        elif job is not None and job.pending and (job.launch_failed or turn.down(told)):
            return True
        self.spool.done(event)
        return False

    def _expose(self, attempt: Attempt) -> None:
        """How long its nodes were at work without a failure. A hook that slurmctld runs again counts twice."""
        if attempt.start_time is not None and attempt.end_time is not None and attempt.nodes:
            seconds = max(0.0, attempt.end_time - attempt.start_time) * len(attempt.nodes)
            self.store.ledger.expose(self.cluster, attempt.partition, attempt.end_time, seconds)

    def _ended_well(self, attempt: Attempt, turn: Turn) -> None:
        """A restarted job's good end is always kept: productive.py asks for it."""
        if attempt.restart_count:
            self.suspects.record_good(attempt, attempt.nodes)
            return
        if turn.watched is None:
            turn.watched = watched(self.suspects.runs())
        self.suspects.record_good(attempt, turn.watched)

    def _known(self, attempt: Attempt, event: Event) -> Incident | None:
        """The attempt's incident, where a hook told of it before: slurmctld runs hooks again after a restart."""
        if (found := self.store.find(attempt)) is not None or attempt.start_time is not None:
            return found
        same_count = (
            other
            for other in self.store.of_job(self.cluster, attempt.label)
            if other.attempt.restart_count == attempt.restart_count
            and abs((other.attempt.end_time or 0) - event.time) < SLURMCTLD_GRACE
        )
        return next(same_count, None)


def moment(seen: float, told: float | None) -> float:
    """Slurm tells times in whole seconds, rounded down: what we saw within that second is nearer the truth."""
    return seen if told is None else min(seen, told + 1)
