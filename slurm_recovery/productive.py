"""Productive again: when a restarted job has written its next checkpoint, or its next step line.

Part of the sweep. Owns the question which of a job's later attempts answers for an incident, and what counts as the
answer: a checkpoint begun after the restart, as the attempt's batch node saw it at its end; a line of the log with a
later step than the one to begin from; or that the job ended well. What was seen only later than it happened is marked
AT_LATEST. Each incident is settled once, by a line of its audit; it changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from slurm_recovery.act import Clock
from slurm_recovery.config.settings import Config
from slurm_recovery.decide.progress import begin_from
from slurm_recovery.decide.rules import options_of
from slurm_recovery.detect.steps import Span, placed
from slurm_recovery.job_options import CHECKPOINT
from slurm_recovery.observe import Observer, zones
from slurm_recovery.records import Attempt, Incident, Progress, Run, Stage
from slurm_recovery.slurm.port import Job, Slurm
from slurm_recovery.store.errors import StoreConflict, StoreCorrupt
from slurm_recovery.store.step import Step
from slurm_recovery.store.store import Store

log = structlog.get_logger(__name__)

PRODUCTIVE, NOT_PRODUCTIVE = "productive", "not_productive"  # actions of the audit
AT_LATEST = "at the latest"  # a step's result: it was so by then, perhaps before

MOST_AGE = 7 * 86400.0  # of an incident
MOST_LOOKS = 100  # incidents of one sweep; the next one begins with others
MOST_TIME = 10.0  # seconds of one sweep
LOG_BYTES = 2 << 20  # of each log: its beginning and its end
CLOCKS = 2.0  # seconds by which clocks may differ, and Slurm rounds
LATE = 600.0  # seconds after which an end that no hook told of is not waited for


class Sign(NamedTuple):
    """What shows that the job got on, and when."""

    when: float
    what: str
    at_latest: bool


@dataclass
class Productive:
    """The restarted jobs of one cluster."""

    config: Config
    cluster: str
    slurm: Slurm
    store: Store
    observer: Observer
    now: Clock

    def watch(self) -> None:
        """Every incident whose job runs again, and of which it is not known yet what came of it."""
        begun = self.now()
        actions = (PRODUCTIVE, NOT_PRODUCTIVE)
        keys = self.store.without_step(self.cluster, Stage.RUNNING, actions, begun - MOST_AGE)
        if not keys:
            return
        first = int(begun // 60) * MOST_LOOKS % len(keys)
        chosen = [*keys[first:], *keys[:first]][:MOST_LOOKS]
        incidents = [incident for key in chosen if (incident := self._readable(key)) is not None]
        jobs = self.slurm.jobs({incident.attempt.job_id for incident in incidents})
        for incident in incidents:
            if not 0 <= self.now() - begun < MOST_TIME:
                return
            try:
                self._look(incident, jobs)
            except (StoreConflict, StoreCorrupt) as error:  # the others are looked at all the same
                log.warning("not looked at", job=incident.attempt.label, error=str(error))

    def _readable(self, key: int) -> Incident | None:
        try:
            return self.store.get(key)
        except StoreCorrupt as error:
            log.warning("incident left out", error=str(error))
            return None

    def _look(self, incident: Incident, jobs: Mapping[int, Job]) -> None:
        running = incident.times.get("running")
        if running is None:
            self._settle(incident, None, "it is not known when the job started again")
            return
        history = [incident, *self.store.history(incident.attempt)]
        beyond = begin_from(history).step
        if (after := self._next(incident, running)) is not None:
            self._after_failure(incident, after, running, beyond)
        elif (run := self._ended_well(incident, running)) is not None:
            self._after_good_end(incident, run, history, beyond)
        else:
            self._under_way(incident, jobs.get(incident.attempt.job_id), running, history, beyond)

    # -- who answers -----------------------------------------------------------------------------

    def _next(self, incident: Incident, running: float) -> Incident | None:
        """The incident of the attempt that began then."""
        found = self.store.of_job(self.cluster, incident.attempt.label)
        later = [one for one in found if one.id != incident.id and _since(one.attempt, running)]
        return min(later, key=lambda one: one.attempt.start_time or 0.0, default=None)

    def _ended_well(self, incident: Incident, running: float) -> Run | None:
        runs = self.store.ledger.runs_of_job(self.cluster, incident.attempt.job_id, running - CLOCKS)
        return next((run for run in runs if run.good and (run.start_time or 0.0) >= running - CLOCKS), None)

    # -- what it says ----------------------------------------------------------------------------

    def _after_failure(self, incident: Incident, after: Incident, running: float, beyond: int | None) -> None:
        if after.decision is None and after.stage.open:
            return  # not judged yet
        end = after.attempt.end_time or self.now()
        progress = after.observation.progress if after.observation else None
        sign = _first(signs(progress, running, end, beyond)) if progress else None
        self._settle(incident, sign, "the next attempt failed without a new checkpoint or a later step")

    def _after_good_end(
        self, incident: Incident, run: Run, history: Sequence[Incident], beyond: int | None
    ) -> None:
        attempt = _attempt(incident, run.start_time or 0.0, run.restart_count, run.nodes, run.end_time)
        allowed = CHECKPOINT in self.config.policy(attempt.partition).job_options
        progress = self.observer.checkpoints(attempt) if allowed else None
        if progress is None and self.now() - run.end_time < self.config.settings.evidence_wait:
            return  # its report may still come
        found = [Sign(run.end_time, "ended well", True), *self._in_log(attempt, history, beyond)]
        if progress is not None:
            found += signs(progress, run.start_time or 0.0, run.end_time, beyond)
        self._settle(incident, _first(found), "")

    def _under_way(
        self, incident: Incident, job: Job | None, running: float, history: Sequence[Incident], beyond: int | None
    ) -> None:
        if job is not None and (job.pending or job.completing):
            return  # its end is being worked on, or it starts once more
        over = job is None or job.ended
        if over and job is not None and self.now() - (job.end_time or 0.0) < LATE and job.state != "CANCELLED":
            return
        restarts = incident.attempt.restart_count + 1 if job is None else job.restart_count
        nodes = incident.attempt.nodes if job is None else job.nodes
        attempt = _attempt(incident, running, restarts, nodes, job.end_time if job is not None and over else None)
        sign = _first(self._in_log(attempt, history, beyond))
        if sign is not None or over:
            self._settle(incident, sign, f"the job is {job.state if job else 'not known to slurmctld any more'}")

    def _in_log(self, attempt: Attempt, history: Sequence[Incident], beyond: int | None) -> Iterator[Sign]:
        """By its step lines; `attempt` without an end still runs."""
        options = options_of(attempt, self.config.policy(attempt.partition))
        wanted = -1 if beyond is None else beyond
        found, whole = self.observer.steps(attempt, history, options, wanted, LOG_BYTES)
        end = self.now() if attempt.end_time is None else attempt.end_time
        found = placed(found, Span(attempt.start_time or 0.0, end, zones(end)), CLOCKS)
        if found.beyond is not None:
            yield _logged(found.beyond.number, found.beyond.time, end, whole or found.beyond == found.first)

    # -- the record ------------------------------------------------------------------------------

    def _settle(self, incident: Incident, sign: Sign | None, otherwise: str) -> None:
        if sign is None:
            step = Step(time=self.now(), kind="note", action=NOT_PRODUCTIVE, detail=otherwise)
        else:
            # Slurm rounds the second of an end down.
            incident = incident.at("productive", max(sign.when, incident.times.get("running", sign.when)))
            result = AT_LATEST if sign.at_latest else ""
            step = Step(time=self.now(), kind="note", action=PRODUCTIVE, detail=sign.what, result=result)
        log.info(step.action, job=incident.attempt.label, detail=step.detail)
        self.store.save(incident, step)


def signs(progress: Progress, begin: float, end: float, beyond: int | None) -> Iterator[Sign]:
    """What was seen at the end of an attempt that ran from `begin` to `end`, and began from the step `beyond`.

    The job's owner writes all of it: times that lie outside count as the end.
    """
    saved = (*((progress.newest,) if progress.newest else ()), *progress.earlier)
    fresh = [one for one in saved if one.time > begin]
    if fresh:
        first = min(fresh, key=lambda one: one.time)
        known = len(fresh) < len(saved)  # else there may have been one before, deleted by the job or not listed
        step = "" if first.step is None else f" of step {first.step}"
        yield Sign(min(first.time, end), f"checkpoint{step}", not known or first.time > end)
    wanted = -1 if beyond is None else beyond
    if progress.first_log_step is not None and progress.first_log_step > wanted:
        yield _logged(progress.first_log_step, progress.first_log_step_time, end, True)
    elif progress.log_step is not None and progress.log_step > wanted:
        yield _logged(progress.log_step, progress.log_step_time, end, False)


def _logged(step: int, time: float | None, end: float, first: bool) -> Sign:
    return Sign(end if time is None else time, f"step {step} in the log", time is None or not first)


def _first(found: Iterable[Sign]) -> Sign | None:
    """The first, and of two in one second the one that says when."""
    return min(found, key=lambda sign: (sign.when, sign.at_latest), default=None)


def _since(attempt: Attempt, running: float) -> bool:
    return attempt.start_time is not None and attempt.start_time >= running - CLOCKS


def _attempt(
    incident: Incident, start: float, restarts: int, nodes: Sequence[str], end: float | None
) -> Attempt:
    """The same job's later attempt."""
    later = {"start_time": start, "restart_count": restarts, "end_time": end, "nodes": tuple(nodes), "state": ""}
    return incident.attempt.model_copy(update=later | {"exit_code": 0, "signal": 0, "derived_exit_code": ""})
