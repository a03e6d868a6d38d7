"""The deeds: each is recorded before it is done, done only where it is not so already, and read back after.

Owns how a deed is carried out; which one, and when, is recover.py's. A deed that Slurm refuses is an
outcome; only SlurmUnavailable leaves, for the same step to be tried again on the next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from slurm_recovery.decide.exclusions import Choice, Exclusion
from slurm_recovery.hooks.spool import Spool
from slurm_recovery.job_options import NAMES
from slurm_recovery.records import Decision, Fewer, Incident, Outcome, Result, Size, Stage, Verdict
from slurm_recovery.slurm.errors import AlreadyPending, SlurmError, SlurmUnavailable
from slurm_recovery.slurm.port import Job, Slurm
from slurm_recovery.store.step import Step
from slurm_recovery.store.store import Store

log = structlog.get_logger(__name__)

Clock = Callable[[], float]
Components: TypeAlias = Sequence[tuple[Job, Sequence[str]]]  # a het job's others, and what each shall exclude


@dataclass(frozen=True)
class Actor:
    """Carries out deeds on one cluster."""

    slurm: Slurm
    store: Store
    spool: Spool
    now: Clock

    def requeue(self, incident: Incident, job: Job, stage: Stage) -> tuple[Incident, Result]:
        """Put the job back into the queue, held. `stage`: the one that the incident enters with the intent.

        Not where somebody has done something to the job since the turn began: reading a log takes its time.
        """
        if self._moved(job):
            return incident, Result.ALREADY
        entered = incident.model_copy(update={"stage": stage}).at("held", self.now())
        self.spool.mark_hold(job.label, job.job_id)
        incident, result = self._do(entered, job, "requeue", "held", lambda: self.slurm.requeue_hold(job))
        if result is Result.REFUSED:
            self.spool.clear_hold(job.label)
        return incident, result

    def _moved(self, job: Job) -> bool:
        """Whether Slurm shows another state, attempt or end of the job by now."""
        fresh = self.slurm.jobs([job.job_id]).get(job.job_id)
        return fresh is None or _standing(fresh) != _standing(job)

    def holds(self, job: Job) -> bool:
        """Whether it is we who hold the job."""
        return job.label in self.spool.holds()

    def prepare(
        self,
        incident: Incident,
        job: Job,
        choice: Choice,
        components: Components = (),
        size: Size | None = None,
    ) -> tuple[Incident, Result]:
        """Exclusions, an immediate start, the number of nodes, and the word to the user, in one update; read back.

        `components`: a het job's others. What is done to the leader Slurm does to all of them, so those that
        shall exclude something else are told so afterwards.
        """
        decision = incident.decision
        assert decision is not None
        incident = incident.model_copy(update={"excluded": tuple(entry.node for entry in choice.ours)})
        start = f"now+{round(decision.delay)}" if decision.delay else "now"
        told = f"ExcNodeList={','.join(choice.nodes) or '(none)'} StartTime={start}"
        told += f" NumNodes={size.nodes}" if size else ""
        if choice.left_out:
            told += "; left out: " + ", ".join(f"{node} ({why})" for node, why in choice.left_out)
        comment = comment_of(incident, decision)
        already = set(job.excluded_nodes) == set(choice.nodes) and not components

        def deed() -> None:
            self.slurm.update(
                job,
                excluded=None if already else choice.nodes,
                start_in=decision.delay,
                admin_comment=comment,
                size=size,
            )
            self._exclude(components, choice.nodes)

        def holds(seen: Job) -> str:
            missing = set(choice.nodes) ^ set(seen.excluded_nodes)
            return f"ExcNodeList differs by {','.join(sorted(missing))}" if missing else ""

        return self._do(incident, job, "exclude" if choice.ours else "start", told, deed, check=holds)

    def release(self, incident: Incident, job: Job) -> tuple[Incident, Result]:
        """Let the held job start."""
        entered = incident.model_copy(update={"stage": Stage.RELEASED})

        def deed() -> None:
            if job.held or job.state == "SPECIAL_EXIT":
                self.slurm.release(job)

        incident, result = self._do(
            entered, job, "release", "", deed, check=lambda seen: "still held" if seen.held else ""
        )
        if result in (Result.DONE, Result.ALREADY):
            incident = self._save(incident.at("released", self.now()))
            self.spool.clear_hold(job.label)
        return incident, result

    def give_way(self, incident: Incident, job: Job, dropped: Exclusion, components: Components = ()) -> Incident:
        """Take one of our exclusions back: with it the job cannot start at all."""
        detail = f"{dropped.node} no longer excluded: Slurm shows Reason=BadConstraints"
        keep = [node for node in job.excluded_nodes if node != dropped.node]
        ours = tuple(node for node in incident.excluded if node != dropped.node)
        incident = incident.model_copy(update={"excluded": ours})

        def deed() -> None:
            self.slurm.update(job, excluded=keep, start_in=0.0)
            self._exclude(components, keep)

        incident, _ = self._do(incident, job, "give_way", detail, deed)
        return incident

    def shrink(
        self, incident: Incident, job: Job, request: Size, fewer: Fewer, before: Fewer | None
    ) -> tuple[Incident, Result]:
        """Ask for fewer nodes, with as many tasks on each. A job that has started meanwhile Slurm refuses: it is then
        as it was `before`."""
        decision = incident.decision
        assert decision is not None
        given = fewer.given
        times = {**incident.times, "fewer": self.now()}
        entered = incident.model_copy(update={"fewer": fewer, "times": times})
        detail = f"{request.nodes} -> {given.nodes} nodes, {request.tasks} -> {given.tasks} tasks: {job.reason}"
        comment = f"{comment_of(entered, decision)}, on {given.nodes} nodes instead of {fewer.wanted.nodes}"

        def asks(seen: Job) -> str:
            found = self.slurm.request(seen)
            number = found.nodes if found else 0
            return "" if number == given.nodes else f"asks for {number or 'an unknown number of'} nodes"

        incident, result = self._do(
            entered,
            job,
            "fewer_nodes",
            detail,
            lambda: self.slurm.update(job, size=given, admin_comment=comment),
            check=asks,
        )
        if result is not Result.DONE:
            incident = self._save(incident.model_copy(update={"fewer": before}))
        return incident, result

    def bequeath(self, incident: Incident, heir: Job, choice: Choice, judged: Incident) -> Incident:
        """Put exclusions on a job that its user has queued to go on where the incident's failed, and tell him."""
        attribution = judged.attribution
        reason = attribution.reason if attribution else "unknown"
        label, more = incident.attempt.label, [node for node in choice.nodes if node not in heir.excluded_nodes]
        comment = f"slurm_recovery: job {label} failed of {reason}: this one goes on without {','.join(more)[:100]}"
        told = f"ExcNodeList={','.join(choice.nodes)}"
        if choice.left_out:
            told += "; left out: " + ", ".join(f"{node} ({why})" for node, why in choice.left_out)

        def lacks(seen: Job) -> str:
            missing = set(choice.nodes) - set(seen.excluded_nodes)
            return f"ExcNodeList lacks {','.join(sorted(missing))}" if missing else ""

        def deed() -> None:
            self.slurm.update(heir, excluded=choice.nodes, admin_comment=comment)

        return self._do(incident, heir, f"exclude on {heir.label}", told, deed, check=lacks)[0]

    def _exclude(self, components: Components, leaders: Sequence[str]) -> None:
        for component, nodes in components:
            if set(nodes) != set(leaders):
                self.slurm.update(component, excluded=nodes)

    def end(self, incident: Incident, job: Job, decision: Decision, comment: str) -> Incident:
        """The last word is stop: StopAction says what becomes of the job. A job that ended stays as it is.

        Slurm takes an AdminComment only from a job that has not ended, and makes SPECIAL_EXIT only of one that
        is not pending: a job that we hold already stays held. One that we do not hold (Slurm does, for a failed
        launch; or its user has released it) is not ours to cancel.
        """
        hold = decision.stop_action == "hold"
        if self._moved(job):
            return self.close(incident, Stage.STOPPED, "somebody else has taken it up meanwhile")
        if job.ended and hold:
            incident, _ = self._do(
                incident, job, "special_exit", decision.because, lambda: self.slurm.requeue_hold(job, special_exit=True)
            )
        if job.ended and not hold:
            return self.close(incident, Stage.STOPPED, "left as it ended")
        incident, _ = self._do(incident, job, "comment", comment, lambda: self.slurm.update(job, admin_comment=comment))
        if job.held and self.holds(job) and not hold:
            incident, _ = self._do(incident, job, "cancel", decision.because, lambda: self.slurm.cancel(job))
            return self.close(incident, Stage.STOPPED, "")
        held = job.ended or job.held
        return self.close(incident, Stage.STOPPED, "held for someone to look" if held else f"left {job.state}")

    def close(self, incident: Incident, stage: Stage, note: str) -> Incident:
        """No more steps will be taken."""
        closed = incident.model_copy(update={"stage": stage, "note": note or incident.note}).at("closed", self.now())
        step = Step(time=self.now(), kind="note", action=stage.value, detail=note)
        closed = self.store.save(closed, step)
        self.spool.clear_hold(closed.attempt.label)
        return closed

    def note(self, incident: Incident, action: str, detail: str) -> Incident:
        """Keep the record as it is now, and a line about it."""
        log.info(action, job=incident.attempt.label, detail=detail)
        return self._save(incident, Step(time=self.now(), kind="note", action=action, detail=detail))

    def _save(self, incident: Incident, *steps: Step) -> Incident:
        return self.store.save(incident, *steps)

    def _do(
        self,
        incident: Incident,
        job: Job,
        action: str,
        detail: str,
        deed: Callable[[], None],
        check: Callable[[Job], str] = lambda seen: "",
    ) -> tuple[Incident, Result]:
        """Intent, deed, a fresh read, outcome. `check` says what is wrong with what Slurm shows, if anything."""
        incident = self._save(incident, Step(time=self.now(), kind="intent", action=action, detail=detail))
        log.info(action, job=job.label, detail=detail)
        said = ""
        try:
            deed()
            result = Result.DONE
        except SlurmUnavailable:
            raise
        except AlreadyPending as error:
            result, said = Result.ALREADY, str(error)
        except SlurmError as error:
            result, said = Result.REFUSED, str(error)
        seen = self.slurm.jobs([job.job_id]).get(job.job_id)
        if result is Result.DONE and seen is not None and (wrong := check(seen)):
            result, said = Result.FAILED, wrong
        outcome = Outcome(action=action, result=result, detail=said or detail, seen=shown(seen))
        step = Step(time=self.now(), kind="outcome", action=action, detail=outcome.seen, result=result.value)
        log.info(action, job=job.label, result=result.value, seen=outcome.seen)
        saved = self._save(incident.model_copy(update={"outcomes": (*incident.outcomes, outcome)}), step)
        return saved, result


def _standing(job: Job) -> tuple[object, ...]:
    """What must not have changed between a look at the job and a deed. (While COMPLETING after a requeue, Slurm's
    StartTime ticks: only the restart count tells.)"""
    return job.state, job.restart_count, job.held, None if job.completing or job.pending else job.start_time


def shown(job: Job | None) -> str:
    """A job's state in Slurm's words, for the record."""
    if job is None:
        return "not known to slurmctld"
    words: Mapping[str, str] = {
        "Reason": job.reason,
        "Restarts": str(job.restart_count),
        "ExcNodeList": ",".join(job.excluded_nodes),
    }
    return " ".join([job.state, *(f"{key}={value}" for key, value in words.items() if value)])


def comment_of(incident: Incident, decision: Decision) -> str:
    """AdminComment: one short line for the job's owner. Nothing in it is text that a user wrote."""
    attribution = incident.attribution
    reason = attribution.reason if attribution else "unknown"
    where = ""
    if attribution and attribution.suspects:
        where = f" on {','.join(attribution.suspect_nodes)[:100]}"
    if attribution and attribution.root_rank is not None:
        where += f" (rank {attribution.root_rank})"
    if decision.verdict is Verdict.STOP:
        return f"slurm_recovery: {reason}{where}: not restarted: {decision.because[:120]}{_untaken(decision)}"
    warning = f"; {decision.warning}" if decision.warning else ""
    without = f" without {','.join(incident.excluded)[:100]}" if incident.excluded else ""
    return f"slurm_recovery: {reason}{where}: restarted{without}{warning}{_untaken(decision)}"


def _untaken(decision: Decision) -> str:
    """The options that were not taken, by those names that are not the user's own words."""
    said = (sentence.replace(":", "=").partition("=")[0] for sentence in decision.untaken)
    names = dict.fromkeys(name if name in (*NAMES, "recovery") else "an unknown one" for name in said)
    return f"; recovery options not taken: {', '.join(names)}" if names else ""
