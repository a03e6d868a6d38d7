"""The loop: observe, detect, attribute, decide, record intent, act, read Slurm again, record outcome.

One `turn` takes up every event in the spool and carries every open incident one step on, as far as what
Slurm shows now allows; nothing in it waits. A worker is turns until nothing is left to do soon, a sweep the
same; whichever runs holds the spool's lock. An incident's stage is written before the deed that it stands
for, and every step first looks whether its deed is done: so a turn may be cut off anywhere, and the next one
goes on from there. One question to Slurm serves all incidents of a turn.

Knows the ports, not the adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import structlog

from slurm_recovery.act import Actor, Clock, comment_of
from slurm_recovery.attribute.engine import attribute
from slurm_recovery.config.settings import Config, Mode
from slurm_recovery.decide.exclusions import Choice, Exclusion, choose, live
from slurm_recovery.decide.history import Ledger, ledger
from slurm_recovery.decide.rules import Case, decide, effective_mode
from slurm_recovery.hooks.spool import Event, Hold, Spool
from slurm_recovery.observe import Observer, attempt_of, hosts, same_attempt
from slurm_recovery.records import Attempt, Attribution, Decision, Incident, Observation, Result, Stage, Verdict
from slurm_recovery.slurm.errors import SlurmError, SlurmUnavailable
from slurm_recovery.slurm.port import Job, Node, Slurm
from slurm_recovery.store.store import Store

log = structlog.get_logger(__name__)

# slurmd refuses a credential made in the second in which it revoked the last one: the restarted job would
# fail at once, "Job credential revoked". slurm_cred.c, slurm_cred_revoke.
CREDENTIAL_SECONDS = 1.2
NODE_DOWN_MEMORY = 900.0  # seconds for which a strigger event speaks for its nodes
CLOCK_SLACK = 2.0  # Slurm rounds times down to seconds, and of two hooks that it starts at once either may be first
GIVE_UP = 3600.0  # seconds after which an event that always fails is set aside
SLURMCTLD_GRACE = 120.0  # an event and an incident of one attempt lie closer together than this


@dataclass
class Turn:
    """What one turn sees of Slurm: asked once, when it is first needed."""

    slurm: Slurm
    ids: frozenset[int]
    downs: Sequence[tuple[str, float]]  # nodes that strigger told of, and when
    unripe: list[Event] = field(default_factory=list)  # events whose job must end COMPLETING first

    @cached_property
    def jobs(self) -> Mapping[int, Job]:
        return self.slurm.jobs(self.ids)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        return self.slurm.nodes()

    def components(self, job: Job) -> list[Job]:
        """The other components of a het job."""
        if job.het_job_id is None:
            return []
        return [other for other in self.jobs.values() if other.het_job_id == job.het_job_id and other != job]

    def completing(self, job: Job) -> bool:
        return job.completing or any(other.completing for other in self.components(job))

    def gone_down(self, attempt: Attempt) -> frozenset[str]:
        """Nodes that went down when the attempt ended or later; one that did so before had nothing to do with it."""
        begin = (attempt.end_time or 0.0) - CLOCK_SLACK
        return frozenset(name for name, when in self.downs if when >= begin)

    def all_up(self, attempt: Attempt) -> bool:
        gone = self.gone_down(attempt)
        return not any(
            name in gone or name not in self.nodes or self.nodes[name].unusable for name in attempt.nodes
        )


@dataclass
class Recovery:
    """The loop over one cluster's spool and store."""

    config: Config
    cluster: str
    slurm: Slurm
    store: Store
    spool: Spool
    observer: Observer
    now: Clock
    _actor: Actor = field(init=False)
    _steps: Mapping[Stage, Callable[[Incident, Job, Turn], Incident]] = field(init=False)

    def __post_init__(self) -> None:
        self._actor = Actor(self.slurm, self.store, self.spool, self.now)
        self._steps = {
            Stage.DETECTED: self._judge,
            Stage.HELD: self._judge_again,
            Stage.DECIDED: self._requeue,
            Stage.REQUEUED: self._release,
            Stage.RELEASED: self._follow,
        }

    def turn(self) -> float | None:
        """One step for everything. Seconds until the next turn is worth it; None: sweep may do the rest."""
        events = self.spool.events()
        incidents = self.store.open_incidents(self.cluster)
        ids = {self._job_id(event) for event in events} | {incident.attempt.job_id for incident in incidents}
        turn = Turn(self.slurm, frozenset(ids - {0}), self._downs(events))
        for event in events:
            if not self._guarded(event.path.name, self._take, event, turn) and self._given_up(event.time):
                self.spool.set_aside(event)
        for incident in self.store.open_incidents(self.cluster):
            self._guarded(incident.attempt.label, self._advance, incident, turn)
        self._forgotten_holds(turn)
        return self._next_turn(turn)

    # -- events ----------------------------------------------------------------------------------

    def _job_id(self, event: Event) -> int:
        return event.number("SLURM_HET_JOB_ID") or event.job_id

    def _downs(self, events: Iterable[Event]) -> list[tuple[str, float]]:
        told = [event for event in events if event.kind == "node_down"]
        return [(name, event.time) for event in told for argument in event.arguments for name in hosts(argument)]

    def _take(self, event: Event, turn: Turn) -> None:
        """Make an incident of an event, drop it, or keep it for later."""
        if event.kind == "node_down":
            self._keep_for(event, NODE_DOWN_MEMORY)
            return
        job = turn.jobs.get(self._job_id(event))
        if not event.failed and not self._worth_it(event, job, turn):
            return
        attempt = attempt_of(event, job, turn.components(job) if job else (), self.cluster)
        incident = self._known(attempt, event)
        if incident is None:
            incident = Incident(attempt=attempt).at("ended", _moment(event.time, attempt.end_time))
            told = f"EpilogSlurmctld was told ExitCode={attempt.exit_code}:{attempt.signal}"
            incident = self._actor.note(incident.at("detected", self.now()), "detected", told)
        elif incident.stage in (Stage.DETECTED, Stage.HELD):
            incident = self._joined(incident, event)
        if event.waited_for and event.failed and job is not None and incident.stage is Stage.DETECTED:
            self._gate(incident, job, turn)
        self.spool.done(event)

    def _joined(self, incident: Incident, event: Event) -> Incident:
        """A het job's hook runs once a component, and each knows its own nodes: the leader's come first."""
        known, told = incident.attempt.nodes, hosts(event.variables.get("SLURM_JOB_NODELIST", ""))
        nodes = (*told, *known) if event.job_id == incident.attempt.job_id else (*known, *told)
        attempt = incident.attempt.model_copy(update={"nodes": tuple(dict.fromkeys(nodes))})
        return incident if set(told) <= set(known) else self._actor.note(
            incident.model_copy(update={"attempt": attempt}), "component", event.path.name
        )

    def _keep_for(self, event: Event, seconds: float) -> None:
        if self.now() - event.time > seconds:
            self.spool.done(event)
        else:
            self.spool.defer(event)

    def _worth_it(self, event: Event, job: Job | None, turn: Turn) -> bool:
        """Whether an event with exit code 0:0 tells of a failure; settles those that do not."""
        if job is not None and turn.completing(job):
            self.spool.defer(event)
            turn.unripe.append(event)
            return False
        if job is not None and same_attempt(event, job):
            if any(part.state not in ("COMPLETED", "CANCELLED") for part in (job, *turn.components(job))):
                return True
        elif job is not None and job.pending:
            told = attempt_of(event, job, (), self.cluster)
            if job.launch_failed or not turn.all_up(told):
                return True
        self.spool.done(event)
        return False

    def _known(self, attempt: Attempt, event: Event) -> Incident | None:
        """The attempt's incident, where a hook told of it before: slurmctld runs hooks again after a restart."""
        if attempt.start_time is not None:
            return self.store.find(attempt)
        same_count = (
            other
            for other in self.store.of_job(self.cluster, attempt.label)
            if other.attempt.restart_count == attempt.restart_count
            and abs((other.attempt.end_time or 0) - event.time) < SLURMCTLD_GRACE
        )
        return next(same_count, None)

    # -- the gate --------------------------------------------------------------------------------

    def _gate(self, incident: Incident, job: Job, turn: Turn) -> None:
        """While COMPLETING: hold the job in the queue where other jobs depend on it, unless it shall stop.

        A requeue now keeps the dependents waiting; one after the job's end would break their chain.
        """
        attempt = incident.attempt
        if not (job.completing and turn.all_up(attempt) and self.slurm.dependents(job)):
            return
        definite = attempt.model_copy(update={"state": "FAILED"})
        _, _, decision = self._decision(definite, turn, requeued=None)
        if decision.act and decision.verdict.restarts:
            incident = self._actor.note(incident, "gate", f"other jobs depend on it; {decision.because}")
            self._actor.requeue(incident, job, Stage.HELD)

    # -- the stages ------------------------------------------------------------------------------

    def _advance(self, incident: Incident, turn: Turn) -> None:
        job = turn.jobs.get(incident.attempt.job_id)
        if job is None:
            if incident.attempt.job_id in turn.ids:
                self._actor.close(incident, Stage.ABANDONED, "slurmctld no longer knows the job (MinJobAge)")
        elif incident.stage is not Stage.DETECTED and job.state == "CANCELLED":
            self._actor.close(incident, Stage.LEFT, "cancelled meanwhile")
        else:
            self._steps[incident.stage](incident, job, turn)

    def _judge(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """DETECTED: wait for the end of COMPLETING, then attribute and decide."""
        attempt = incident.attempt
        if turn.completing(job) or _under_way(attempt, job):
            return incident
        if _is(attempt, job):
            attempt = _ended(attempt, [job, *turn.components(job)])
            return self._decide(incident, attempt, job, turn, requeued=None)
        return self._decide(incident, attempt, job, turn, requeued=job)

    def _judge_again(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """HELD: the job is back in the queue by our hand; now all evidence is in."""
        attempt = incident.attempt
        if job.completing:
            return self._overdue(incident, job, turn)
        if _is(attempt, job):  # the hold never reached Slurm
            return self._judge(incident.model_copy(update={"stage": Stage.DETECTED}), job, turn)
        attempt = attempt.model_copy(update={"state": attempt.state or "FAILED"})
        return self._decide(incident, attempt, job, turn, requeued=None)

    def _requeue(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """DECIDED to restart: put the job into the queue, unless it is there."""
        if not _is(incident.attempt, job):
            incident = incident.model_copy(update={"stage": Stage.REQUEUED}).at("held", self.now())
            return self._release(self._actor.note(incident, "requeue", "in the queue already"), job, turn)
        if job.completing:
            return incident
        incident, result = self._actor.requeue(incident, job, Stage.REQUEUED)
        if result is Result.REFUSED:
            return self._actor.close(incident, Stage.ABANDONED, incident.outcomes[-1].detail)
        return incident

    def _release(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """REQUEUED: once PENDING, set the exclusions and let it start."""
        if _is(incident.attempt, job) and job.ended:  # the requeue never reached Slurm
            return self._requeue(incident, job, turn)
        if not job.pending:
            return self._overdue(incident, job, turn) if job.completing else self._follow(incident, job, turn)
        if self.now() < (incident.attempt.end_time or 0) + CREDENTIAL_SECONDS:
            return incident
        if job.held and not job.launch_failed and not self._actor.holds(job):
            return self._actor.close(incident, Stage.LEFT, f"held by someone else: {job.reason}")
        decision = incident.decision
        assert decision is not None
        choice = self._choice(incident, job, turn)
        ours = [entry.node for entry in choice.ours]
        others = [(part, (*self._users(incident, part), *ours)) for part in turn.components(job)]
        incident, result = self._actor.prepare(incident, job, choice, comment_of(incident, decision), others)
        if result is Result.FAILED and not self._held_too_long(incident):
            return incident
        fresh = self.slurm.jobs([job.job_id]).get(job.job_id, job)
        incident, _ = self._actor.release(incident, fresh)
        return incident

    def _follow(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """RELEASED: until it runs; where our exclusions make it impossible, give way."""
        if not job.pending:
            return self._actor.close(incident.at("running", _moment(self.now(), job.start_time)), Stage.RUNNING, "")
        if any(part.reason == "BadConstraints" for part in (job, *turn.components(job))):
            return self._give_way(incident, job, turn)
        if job.launch_failed or job.restart_count > incident.attempt.restart_count + 1:
            return self._actor.close(incident, Stage.RUNNING, "started again, and is back in the queue since")
        if job.held and "released" not in incident.times and not self._held_too_long(incident):
            return self._actor.release(incident, job)[0]
        if job.held and not job.priority:
            return self._actor.close(incident, Stage.LEFT, f"held by someone else: {job.reason}")
        return incident

    def _give_way(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        ours = [entry for entry in self._exclusions(incident) if entry.node in job.excluded_nodes]
        ours = [entry for entry in ours if entry.node not in self._users(incident, job)]
        if not ours:
            return self._actor.close(incident, Stage.LEFT, "BadConstraints, and none of our exclusions is left")
        dropped = ours[-1]
        others = [(part, [n for n in part.excluded_nodes if n != dropped.node]) for part in turn.components(job)]
        return self._actor.give_way(incident, job, dropped, others)

    # -- deciding --------------------------------------------------------------------------------

    def _decide(
        self, incident: Incident, attempt: Attempt, job: Job, turn: Turn, *, requeued: Job | None
    ) -> Incident:
        """Record the observation and the decision; then act on it where the mode says so."""
        observation, attribution, decision = self._decision(attempt, turn, requeued=requeued)
        incident = incident.model_copy(
            update={
                "attempt": attempt,
                "observation": observation,
                "attribution": attribution,
                "decision": decision,
                "stage": Stage.DECIDED if decision.act and decision.verdict.restarts else incident.stage,
            }
        ).at("decided", self.now())
        incident = self._actor.note(incident, "decided", f"{decision.verdict.value}: {decision.because}")
        log.info("decided", job=attempt.label, reason=attribution.reason, verdict=decision.verdict.value)
        if incident.stage is Stage.DECIDED:
            return self._requeue(incident, job, turn)
        if decision.verdict is Verdict.STOP and decision.act:
            return self._actor.end(incident, job, decision, comment_of(incident, decision))
        if incident.stage is Stage.HELD:  # the mode or the rules changed meanwhile: let the job go on
            return self._let_go(incident, job, turn)
        return self._actor.close(incident, Stage.LEFT, "" if decision.act else "advice only")

    def _decision(
        self, attempt: Attempt, turn: Turn, *, requeued: Job | None
    ) -> tuple[Observation, Attribution, Decision]:
        earlier = self.store.history(attempt)
        mode = effective_mode(self.config.policy(attempt.partition), attempt.comment)
        observation = Observation(attempt=attempt)
        if mode is not Mode.OFF:
            observation = self.observer.observe(attempt, turn.nodes, turn.gone_down(attempt), earlier)
        attribution = attribute(observation)
        case = Case(
            attempt=attempt,
            attribution=attribution,
            config=self.config,
            ledger=self._ledger(attempt, earlier),
            mode=mode,
            requeued_by_slurm=requeued is not None,
            still_pending=requeued is not None and requeued.pending,
            held_by_other=requeued is not None and requeued.held and not requeued.launch_failed,
        )
        return observation, attribution, decide(case)

    def _ledger(self, attempt: Attempt, earlier: list[Incident]) -> Ledger:
        policy = self.config.policy(attempt.partition)
        hour = self.store.requeues_since(self.cluster, self.now() - 3600)
        return ledger(attempt, earlier, fast_failure=policy.fast_failure, cluster_hour=hour)

    def _exclusions(self, incident: Incident) -> tuple[Exclusion, ...]:
        policy = self.config.policy(incident.attempt.partition)
        chain = [incident, *self.store.history(incident.attempt)]
        return live(chain, self.now(), policy.exclusion_time)

    def _users(self, incident: Incident, job: Job) -> tuple[str, ...]:
        """The job's own --exclude: what is on its list now and was not put there by us."""
        chain = [incident, *self.store.history(incident.attempt)]
        before_us = set(chain[-1].attempt.excluded_nodes)
        acted = [one.decision for one in chain if one.decision and one.decision.act]
        by_us = {node for decision in acted for node in decision.exclude} - before_us
        return tuple(node for node in job.excluded_nodes if node not in by_us)

    def _choice(self, incident: Incident, job: Job, turn: Turn) -> Choice:
        parts = [job, *turn.components(job)]
        return choose(self._users(incident, job), self._exclusions(incident), parts, turn.nodes)

    # -- ends of waiting -------------------------------------------------------------------------

    def _held_too_long(self, incident: Incident) -> bool:
        return self.now() - incident.times.get("held", self.now()) > self.config.settings.hold_timeout

    def _overdue(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """Nobody's job waits for us: past HoldTimeout it is released as it is."""
        return self._let_go(incident, job, turn) if self._held_too_long(incident) and job.pending else incident

    def _let_go(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        incident, _ = self._actor.release(self._actor.note(incident, "let_go", "released as it is"), job)
        return incident

    def _forgotten_holds(self, turn: Turn) -> None:
        """Holds whose incident is gone from the store, or does not get on: release them too."""
        known = {incident.attempt.label for incident in self.store.open_incidents(self.cluster)}
        patience = self.config.settings.hold_timeout
        overdue = {
            label: hold
            for label, hold in self.spool.holds().items()
            if self.now() - hold.since > (2 * patience if label in known else patience)
        }
        release_holds(self.slurm, self.spool, overdue)

    def _next_turn(self, turn: Turn) -> float | None:
        """Soon after a change, ever later while nothing changes."""
        soon = [self._patience(incident) for incident in self.store.open_incidents(self.cluster)]
        soon += [_pause(self.now() - event.time) for event in turn.unripe if self._young(event)]
        return min((wait for wait in soon if wait is not None), default=None)

    def _young(self, event: Event) -> bool:
        """Whether its job may end COMPLETING soon; one that does not is left to sweep."""
        return self.now() - event.time < self.config.settings.hold_timeout

    def _patience(self, incident: Incident) -> float | None:
        """Seconds until the incident deserves another look; None: leave it to sweep."""
        age = self.now() - max(incident.times.values(), default=self.now())
        if incident.stage is Stage.RELEASED and age > self.config.settings.follow_time:
            return None
        return _pause(age)

    def _guarded(self, what: str, step: Callable[..., object], *arguments: object) -> bool:
        """One bad incident must not keep the others from their turn; a silent Slurm ends the turn. True: it went."""
        try:
            step(*arguments)
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            log.warning("refused", what=what, error=str(error))
            return False
        except (ValueError, LookupError, AttributeError, TypeError, AssertionError):
            log.exception("step failed", what=what)
            return False
        return True

    def _given_up(self, since: float) -> bool:
        return self.now() - since > GIVE_UP


def release_holds(slurm: Slurm, spool: Spool, overdue: Mapping[str, Hold]) -> None:
    """Release jobs by their marks alone, for where no record of them can be read."""
    for label, hold in overdue.items():
        job = slurm.jobs([hold.job_id]).get(hold.job_id)
        if job is not None and job.completing:
            continue  # it will be held once it is over
        if job is not None and job.held and job.label == label:
            log.warning("released a job by its mark alone", job=label)
            slurm.release(job)
        spool.clear_hold(label)


def _pause(age: float) -> float:
    return min(max(0.05, age / 5), 2.0)


def _moment(seen: float, told: float | None) -> float:
    """Slurm tells times in whole seconds, rounded down: what we saw within that second is nearer the truth."""
    return seen if told is None else min(seen, told + 1)


def _is(attempt: Attempt, job: Job) -> bool:
    """Whether Slurm still shows this very attempt, completing or ended."""
    return (
        (job.completing or job.ended)
        and job.start_time == attempt.start_time
        and job.restart_count == attempt.restart_count
    )


def _under_way(attempt: Attempt, job: Job) -> bool:
    """Whether a slurmctld that was killed has forgotten the attempt's end, and has yet to find it out again."""
    run = (job.start_time, job.restart_count)
    return not job.pending and not job.ended and run == (attempt.start_time, attempt.restart_count)


def _ended(attempt: Attempt, parts: list[Job]) -> Attempt:
    """The attempt with the state that is certain now that COMPLETING is over."""
    worst = next((part for part in parts if part.state != "COMPLETED"), parts[0])
    return attempt.model_copy(
        update={
            "state": worst.state,
            "reason": worst.reason,
            "exit_code": worst.exit_code,
            "signal": worst.signal,
            "derived_exit_code": worst.derived_exit_code,
            "end_time": worst.end_time or attempt.end_time,
        }
    )
