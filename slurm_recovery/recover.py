"""The loop: observe, detect, attribute, decide, record intent, act, read Slurm again, record outcome.

One `turn` takes up every event in the spool and carries every open incident one step on, as far as what
Slurm shows now allows; nothing in it waits. A worker is turns until nothing is left to do soon, a sweep the
same; whichever runs holds the spool's lock. An incident's stage is written before the deed that it stands
for, and every step first looks whether its deed is done: so a turn may be cut off anywhere, and the next one
goes on from there. One question to Slurm serves all incidents of a turn.

Knows the ports, not the adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from slurm_recovery.act import Actor, Clock, comment_of
from slurm_recovery.begin import said, tell_nodes
from slurm_recovery.config.settings import Config
from slurm_recovery.decide.exclusions import Choice, choose
from slurm_recovery.decide.rules import SUCCESSOR, options_of
from slurm_recovery.decide.shrink import fewer, grown, least_nodes, short_of_nodes
from slurm_recovery.holds import overdue, release_holds
from slurm_recovery.hooks.spool import Event, Spool
from slurm_recovery.intake import Intake, moment
from slurm_recovery.isolate import Isolation
from slurm_recovery.job_options import JobOptions
from slurm_recovery.judge import Judge
from slurm_recovery.observe import Observer
from slurm_recovery.productive import Productive
from slurm_recovery.records import Attempt, Fewer, Incident, Result, Size, Stage, Verdict
from slurm_recovery.slurm.errors import SlurmError, SlurmUnavailable
from slurm_recovery.slurm.port import Job, Slurm
from slurm_recovery.store.errors import StoreConflict, StoreCorrupt
from slurm_recovery.store.store import Store
from slurm_recovery.suspects import Suspects
from slurm_recovery.turn import Turn, downs, job_of

log = structlog.get_logger(__name__)

# slurmd refuses a credential made in the second in which it revoked the last one: the restarted job would
# fail at once, "Job credential revoked". slurm_cred.c, slurm_cred_revoke.
CREDENTIAL_SECONDS = 1.2
# slurmd 22.05 forgets the jobs that it had when one begins or ends, but at most once in two seconds, and starts no
# Prolog for one that it has not forgotten. Other jobs on the node may still be in the way. slurm_cred.c,
# _clear_expired_job_states.
PROLOG_SECONDS = 3.0
GIVE_UP = 3600.0  # seconds after which an event that always fails is set aside


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
    _intake: Intake = field(init=False)
    _judge: Judge = field(init=False)
    _suspects: Suspects = field(init=False)
    _isolation: Isolation = field(init=False)
    _asked: dict[int, float] = field(default_factory=dict, init=False)  # since when an incident's nodes are asked
    _steps: Mapping[Stage, Callable[[Incident, Job, Turn], Incident]] = field(init=False)

    def __post_init__(self) -> None:
        self._actor = Actor(self.slurm, self.store, self.spool, self.now)
        self._suspects = Suspects(self.config, self.cluster, self.store, self.now)
        self._isolation = Isolation(
            self.config, self.cluster, self.slurm, self.store, self.observer, self._suspects, self.now
        )
        self._intake = Intake(self.cluster, self.store, self.spool, self._actor, self._suspects, self.now)
        self._judge = Judge(self.config, self.cluster, self.store, self.observer, self._suspects, self.now)
        self._steps = {
            Stage.DETECTED: self._detected,
            Stage.HELD: self._held,
            Stage.DECIDED: self._requeue,
            Stage.REQUEUED: self._release,
            Stage.RELEASED: self._follow,
        }

    def turn(self) -> float | None:
        """One step for everything. Seconds until the next turn is worth it; None: sweep may do the rest."""
        events = self.spool.events()
        incidents = self.store.open_incidents(self.cluster)
        ids = {job_of(event) for event in events} | {incident.attempt.job_id for incident in incidents}
        turn = Turn(self.slurm, frozenset(ids - {0}), downs(events))
        for event in events:
            if self._guarded(event.path.name, self._take, event, turn):
                continue
            if self.now() - event.time > GIVE_UP:
                self.spool.set_aside(event)
            else:
                self.spool.defer(event)  # its hook must not wait for what fails
        for incident in self.store.open_incidents(self.cluster):
            self._guarded(incident.attempt.label, self._advance, incident, turn)
        still_open = self.store.open_incidents(self.cluster)
        labels = {incident.attempt.label for incident in still_open}
        release_holds(self.slurm, self.spool, overdue(self.spool, self.now(), self._hold_timeout, labels))
        return self._next_turn(still_open, turn)

    def watch(self) -> None:
        """The sweep's look at nodes (health reports, ways back of those that we drained) and at what restarts gave."""
        self._guarded("health checks", self._isolation.watch)
        productive = Productive(self.config, self.cluster, self.slurm, self.store, self.observer, self.now)
        self._guarded("productive again", productive.watch)

    def _guarded(self, what: str, step: Callable[..., object], *arguments: object) -> bool:
        """One bad incident must not keep the others from their turn; a silent Slurm ends the turn. True: it went."""
        try:
            step(*arguments)
        except SlurmUnavailable:
            raise
        except (SlurmError, StoreConflict, StoreCorrupt) as error:
            log.warning("refused", what=what, error=str(error))
            return False
        except (ValueError, LookupError, AttributeError, TypeError, AssertionError):
            log.exception("step failed", what=what)
            return False
        return True

    # -- events, and the gate --------------------------------------------------------------------

    def _take(self, event: Event, turn: Turn) -> None:
        incident = self._intake.take(event, turn)
        if incident is None:
            return
        job = turn.jobs.get(job_of(event))
        if job is not None and incident.stage is Stage.DETECTED:
            incident = self._noticed(incident, turn)
            if event.failed and job.completing:
                self._gate(incident, job, turn, may_hold=event.waited_for)
        self.spool.done(event)

    def _noticed(self, incident: Incident, turn: Turn) -> Incident:
        """Write down who is queued to go on from here: once let go, a successor does not show that it waited."""
        heirs = turn.successors(incident)
        if heirs == incident.successors:
            return incident
        told = f"queued by its user to go on from here: {', '.join(map(str, heirs))}"
        return self._actor.note(incident.model_copy(update={"successors": heirs}), SUCCESSOR, told)

    def _gate(self, incident: Incident, job: Job, turn: Turn, *, may_hold: bool) -> None:
        """While COMPLETING: what is to be done for jobs that wait for this one, before its end lets them go.

        Where its user has queued successors, the exclusions go to them: later they may have started. Else the job is
        held in the queue, unless it shall stop: a requeue now keeps the dependents waiting; one after the job's end
        would break their chain. Where both kinds wait, the successors win: with a requeue, the job would run twice.
        """
        attempt = incident.attempt
        if not incident.successors and not (may_hold and turn.all_up(attempt) and turn.dependents(job)):
            return
        definite = attempt.model_copy(update={"state": "FAILED"})
        reports = self._judge.reports(definite, turn)
        judgement = self._judge.judge(incident, definite, turn, requeued=None, reports=reports)
        decision = judgement.decision
        if decision.act and decision.basis == SUCCESSOR:
            self._bequeath(incident, incident.model_copy(update=judgement._asdict()), turn)
        elif decision.act and decision.verdict.restarts:
            incident = self._actor.note(incident, "gate", f"other jobs depend on it; {decision.because}")
            self._actor.requeue(incident, job, Stage.HELD)

    def _bequeath(self, incident: Incident, judged: Incident, turn: Turn) -> Incident:
        """Put the exclusions on those successors that have not started, as far as they are not there."""
        ours = self._judge.exclusions(judged)
        found = self.slurm.jobs(incident.successors)
        for heir in (found[number] for number in incident.successors if number in found):
            if heir.job_id == heir.array_job_id:  # none of its tasks has begun: all of them, by the array's id
                heir = heir.model_copy(update={"array_job_id": None, "array_task_id": None})
            choice = choose(heir.excluded_nodes, ours, [heir], turn.nodes)
            if heir.pending and not set(choice.nodes) <= set(heir.excluded_nodes):
                incident = self._actor.bequeath(incident, heir, choice, judged)
        return incident

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

    def _detected(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """DETECTED: wait for the end of COMPLETING, then attribute and decide."""
        attempt = incident.attempt
        if turn.completing(job) or _under_way(attempt, job):
            return incident
        if _is(attempt, job):
            ended = _ended(attempt, [job, *turn.components(job)])
            return self._decide(incident, ended, job, turn, requeued=None)
        return self._decide(incident, _requeued(attempt, job), job, turn, requeued=job)

    def _held(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """HELD: the job is back in the queue by our hand; now all evidence is in."""
        attempt = incident.attempt
        if job.completing:
            return incident
        if _is(attempt, job):  # the hold never reached Slurm
            return self._detected(incident.model_copy(update={"stage": Stage.DETECTED}), job, turn)
        attempt = attempt.model_copy(update={"state": attempt.state or "FAILED"})
        return self._decide(incident, attempt, job, turn, requeued=None)

    def _decide(
        self, incident: Incident, attempt: Attempt, job: Job, turn: Turn, *, requeued: Job | None
    ) -> Incident:
        """Record the observation and the decision; then act on it where the mode says so."""
        asked = self._asked.setdefault(incident.id, self.now())
        reports = self._judge.reports(attempt, turn)
        if reports.missing and self._may_still_come(asked):
            return incident
        judgement = self._judge.judge(incident, attempt, turn, requeued=requeued, reports=reports)
        decision = judgement.decision
        restarts = decision.act and decision.verdict.restarts
        stage = Stage.DECIDED if restarts else incident.stage
        if decision.basis == SUCCESSOR:
            incident = incident.model_copy(update={"successors": turn.successors(incident)})
        incident = incident.model_copy(update={"attempt": attempt, "stage": stage, **judgement._asdict()})
        incident = incident.at("decided", self.now())
        incident = self._actor.note(incident, "decided", f"{decision.verdict.value}: {decision.because}")
        self._suspects.record(attempt, judgement.attribution)
        self._isolation.consider(incident)
        if restarts:
            return self._requeue(incident, job, turn)
        if decision.verdict is Verdict.STOP and decision.act:
            return self._actor.end(incident, job, decision, comment_of(incident, decision))
        if decision.act and decision.basis == SUCCESSOR:
            incident = self._bequeath(incident, incident, turn)
            return self._actor.close(incident, Stage.LEFT, self._inherited(incident))
        if incident.stage is Stage.HELD:  # the mode or the rules changed meanwhile: let the job go on
            return self._actor.release(self._actor.note(incident, "let_go", "released as it is"), job)[0]
        advice = not decision.act and decision.verdict is not Verdict.NONE
        return self._actor.close(incident, Stage.LEFT, "advice only" if advice else "")

    def _inherited(self, incident: Incident) -> str:
        """What its successors are kept off, as Slurm shows it."""
        found = self.slurm.jobs(incident.successors)
        wanted = set(incident.decision.exclude) if incident.decision else set()
        told = []
        for number in incident.successors:
            off = sorted(wanted & set(found[number].excluded_nodes)) if number in found else []
            began = number in found and not found[number].pending and wanted
            what = f"is kept off {','.join(off)}" if off else "had started already" if began else "goes on"
            told.append(f"job {number} {what}")
        return "; ".join(told)

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
        if job.completing:
            return incident
        if not job.pending:
            return self._follow(incident, job, turn)
        if 0 < (incident.attempt.end_time or 0) + CREDENTIAL_SECONDS - self.now() <= CREDENTIAL_SECONDS:
            return incident
        if job.held_by_people or (job.held and not job.launch_failed and not self._actor.holds(job)):
            return self._actor.close(incident, Stage.LEFT, f"held by someone else: {job.reason}")
        job = self.slurm.jobs([job.job_id]).get(job.job_id, job)  # its owner may have changed it since
        others = [part for part in turn.components(job) if part.job_id != job.job_id]
        choice, request = self._choice(incident, job, others, turn)
        ours = [entry.node for entry in choice.ours]
        lists = [(other, (*self._judge.users(incident, other), *ours)) for other in others]
        if request is not None and self._before(incident, request) and self._prolog_left_out(incident):
            return incident
        incident, size = self._size(incident, request, job.model_copy(update={"excluded_nodes": choice.nodes}), turn)
        incident, result = self._actor.prepare(incident, job, choice, lists, size)
        if result is Result.FAILED and not self._held_too_long(incident):
            return incident
        incident = self._tell_nodes(incident)[0]
        fresh = self.slurm.jobs([job.job_id]).get(job.job_id, job)
        return self._actor.release(incident, fresh)[0]

    def _tell_nodes(self, incident: Incident) -> tuple[Incident, bool]:
        """What the coming attempt begins from, and whether it is told. Where not, the job starts all the same."""
        folder = self.config.settings.evidence_dir
        if folder is None:
            return incident, False
        resume = self._judge.resume(incident)
        if told := said(resume):
            incident = self._actor.note(incident, "begin", told)
        why = tell_nodes(folder, resume, self.config.settings.evidence_timeout)
        return (self._actor.note(incident, "not_told", f"{folder}/resume: {why}") if why else incident), not why

    def _follow(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        """RELEASED: until it runs; where it cannot, or not soon, with fewer nodes or exclusions."""
        if not job.pending:
            return self._actor.close(incident.at("running", moment(self.now(), job.start_time)), Stage.RUNNING, "")
        if any(part.reason == "BadConstraints" for part in (job, *turn.components(job))):
            return self._shrink(incident, job, turn) or self._give_way(incident, job, turn)
        if job.launch_failed or job.restart_count > incident.attempt.restart_count + 1:
            return self._actor.close(incident, Stage.RUNNING, "started again, and is back in the queue since")
        if job.held and "released" not in incident.times and not self._held_too_long(incident):
            return self._actor.release(incident, job)[0]
        if job.held and not job.priority:
            return self._actor.close(incident, Stage.LEFT, f"held by someone else: {job.reason}")
        if short_of_nodes(job) and self._waited_for_nodes(incident):
            return self._shrink(incident, job, turn) or incident
        return incident

    # -- fewer nodes -----------------------------------------------------------------------------

    def _choice(self, incident: Incident, job: Job, others: list[Job], turn: Turn) -> tuple[Choice, Size | None]:
        """ExcNodeList of the restart, and, where that matters, what the job asks for at least.

        An exclusion is not left out for too few other nodes where the job can do with fewer than it had: by its
        owner's word, or because it is one of `-N min-max`.
        """
        choice = self._judge.choice(incident, [job, *others], turn.nodes)
        options = self._options(incident)
        shrunk = any(one.fewer for one in self.store.history(incident.attempt))
        if others or not (options.min_nodes or choice.left_out or shrunk):
            return choice, None
        request = self.slurm.request(job)
        if request is not None:
            part = job.model_copy(update={"num_nodes": least_nodes(request.nodes, options)})
            choice = self._judge.choice(incident, [part], turn.nodes)
        return choice, request

    def _options(self, incident: Incident) -> JobOptions:
        return options_of(incident.attempt, self.config.policy(incident.attempt.partition))

    def _waited_for_nodes(self, incident: Incident) -> bool:
        """Whether ShrinkAfter is over: since it might start, or since it asked for fewer the last time."""
        delay = incident.decision.delay if incident.decision else 0.0
        since = max(incident.times.get("released", self.now()) + delay, incident.times.get("fewer", 0.0))
        patience = self.config.policy(incident.attempt.partition).shrink_after
        return not -delay <= self.now() - since < patience  # or the clock was set back

    def _prolog_left_out(self, incident: Incident) -> bool:
        """Whether a start now would be one that its nodes are told nothing of."""
        return 0 < (incident.attempt.end_time or 0) + PROLOG_SECONDS - self.now() <= PROLOG_SECONDS

    def _before(self, incident: Incident, request: Size) -> Fewer | None:
        """That the job asks for fewer nodes than it wanted, by our hand."""
        told = (one.fewer for one in (incident, *self.store.history(incident.attempt)) if one.fewer)
        last = next(told, None)
        return last if last is not None and last.given == request else None

    def _size(self, incident: Incident, request: Size | None, job: Job, turn: Turn) -> tuple[Incident, Size | None]:
        """What a restart asks for, where that changes: what its job wanted, once so many nodes are up again."""
        before = self._before(incident, request) if request else None
        if before is None or request is None:
            return incident, None
        if grown(before.wanted, job, turn.nodes):
            return incident.model_copy(update={"fewer": None}), before.wanted
        return incident.model_copy(update={"fewer": before}), None

    def _shrink(self, incident: Incident, job: Job, turn: Turn) -> Incident | None:
        """Ask for fewer nodes, where the job's owner allows it and it helps; None: not so.

        Not before the nodes are told of the fewer tasks: sbatch has left SLURM_NTASKS in the job's environment, and its
        srun would fail.
        """
        options = self._options(incident)
        if not options.min_nodes or turn.components(job):
            return None
        request = self.slurm.request(job)
        given = fewer(request, job, options, turn.nodes) if request else None
        if request is None or given is None:
            return None
        if self._prolog_left_out(incident):
            return incident
        before = self._before(incident, request)
        less = Fewer(wanted=before.wanted if before else request, given=given)
        told, done = self._tell_nodes(incident.model_copy(update={"fewer": less}))
        if not done:
            return None
        incident, result = self._actor.shrink(told, job, request, less, before)
        return incident if result is Result.DONE else self._tell_nodes(incident)[0]

    def _give_way(self, incident: Incident, job: Job, turn: Turn) -> Incident:
        users = self._judge.users(incident, job)
        ours = [one for one in self._judge.exclusions(incident) if one.node in job.excluded_nodes]
        ours = [one for one in ours if one.node not in users]
        if not ours:
            return self._actor.close(incident, Stage.LEFT, "BadConstraints, and none of our exclusions is left")
        dropped = ours[-1]
        lists = [(part, [n for n in part.excluded_nodes if n != dropped.node]) for part in turn.components(job)]
        return self._actor.give_way(incident, job, dropped, lists)

    # -- waiting ---------------------------------------------------------------------------------

    @property
    def _hold_timeout(self) -> float:
        return self.config.settings.hold_timeout

    def _may_still_come(self, asked: float) -> bool:
        """Whether a report that is missing may yet show: file systems tell other hosts of a new file with a delay.

        One that does not answer has used up the time by that.
        """
        return 0 <= self.now() - asked < self.config.settings.evidence_wait

    def _held_too_long(self, incident: Incident) -> bool:
        age = self.now() - incident.times.get("held", self.now())
        return age > self._hold_timeout or age < 0  # the clock was set back: wait no longer

    def _next_turn(self, incidents: list[Incident], turn: Turn) -> float | None:
        """Soon after a change, ever later while nothing changes."""
        soon = [self._patience(incident) for incident in incidents]
        # A job that does not end COMPLETING within HoldTimeout is left to sweep.
        ages = [self.now() - event.time for event in turn.unripe]
        soon += [_pause(age) for age in ages if age < self._hold_timeout]
        return min((wait for wait in soon if wait is not None), default=None)

    def _patience(self, incident: Incident) -> float | None:
        """Seconds until the incident deserves another look; None: leave it to sweep."""
        age = self.now() - max(incident.times.values(), default=self.now())
        if incident.stage is Stage.RELEASED and age > self.config.settings.follow_time:
            return None
        return _pause(age)


def _pause(age: float) -> float:
    return min(max(0.05, age / 5), 2.0)


def _is(attempt: Attempt, job: Job) -> bool:
    """Whether Slurm still shows this very attempt, completing or ended."""
    return (
        (job.completing or job.ended)
        and job.start_time == attempt.start_time
        and job.restart_count == attempt.restart_count
    )


def _requeued(attempt: Attempt, job: Job) -> Attempt:
    """The attempt, which somebody has put back into the queue, with the state that shows by whom.

    Slurm itself, for a node that failed, leaves the wait status 1 behind (from 23.02 on; before, nothing):
    job_mgr.c, kill_running_job_by_node_ptr. A user who requeues leaves none.
    """
    by_slurm = (attempt.exit_code, attempt.signal) == (0, 1) and job.pending and not job.launch_failed
    return attempt.model_copy(update={"state": "NODE_FAIL"}) if by_slurm else attempt


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
