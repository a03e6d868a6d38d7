"""Holds drills: submits a job of our own, walks its steps with their deadlines, and takes away what is left of it.

Owns the waiting and the cleaning up. Touches no job but those that it has submitted itself, and no node.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_recovery.cli.owner import Account
from slurm_recovery.config.settings import Config
from slurm_recovery.drill.drills import Drill
from slurm_recovery.drill.errors import DrillError
from slurm_recovery.drill.mark import JOB_NAME
from slurm_recovery.drill.place import Place
from slurm_recovery.drill.steps import Seen, Step, Wait, steps_of
from slurm_recovery.drill.view import Incidents, View
from slurm_recovery.records import Verdict
from slurm_recovery.slurm.commands import Commands
from slurm_recovery.slurm.errors import SlurmError
from slurm_recovery.slurm.port import Job

RUN = 60.0  # seconds in which the job must have failed, or ended well, once it runs
FIRST_PAUSE, LAST_PAUSE = 0.2, 2.0  # seconds between two looks
ENDS = 10.0  # seconds given to a job that we cancel


class Limits(NamedTuple):
    """Seconds: for the partition's queue, for each step of a recovery, for the sweep."""

    queue: float
    within: float
    sweep: float

    def of(self, wait: Wait, delay: float) -> float:
        """`delay`: the back-off that the policy gives the restart."""
        return {
            Wait.QUEUE: self.queue,
            Wait.RUN: RUN + self.within,
            Wait.RECOVERY: self.within,
            Wait.RESTART: max(self.queue, self.within) + delay,
            Wait.SWEEP: max(self.sweep, self.within),
        }[wait]


class Row(NamedTuple):
    """One line of the table. `result`: pass, fail or skip; `seconds` since the drill's job was submitted."""

    drill: str
    step: str
    result: str
    seconds: float
    detail: str = ""
    hint: str = ""
    job_id: int | None = None


@dataclass
class Rehearsal:
    """Drills in one partition, as one user."""

    config: Config
    cluster: str
    partition: str
    slurm_conf: Mapping[str, str]
    slurm: Commands
    store: Incidents
    place: Place
    user: Account
    nodes: int
    limits: Limits
    options: Sequence[str] = ()  # more of sbatch's
    wanted: Mapping[str, Verdict] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _jobs: list[int] = field(default_factory=list)

    def hold(self, drill: Drill) -> Iterator[Row]:
        """The rows of one drill; its first failure is the last."""
        if lacking := drill.missing(self.config, self.slurm_conf, self.partition):
            yield Row(drill.name, "possible", "skip", 0.0, lacking)
            return
        begin = self.clock()
        try:
            job_id = self._submit(drill)
        except SlurmError as error:
            yield Row(drill.name, "submitted", "fail", self.clock() - begin, str(error), "--uid, --sbatch, --dir")
            return
        said = f"job {job_id} as {self.user.name}"
        yield Row(drill.name, "submitted", "pass", self.clock() - begin, said, job_id=job_id)
        view = self._view(drill, job_id)
        for step in steps_of(view):
            if not step.applies(view):
                continue
            seen = self._wait(step, view)
            row = Row(drill.name, step.name, "pass", self.clock() - begin, seen.detail, "", job_id)
            if not seen.passed:
                said = f"; worker.log: {view.worker_said}" if view.worker_said else ""
                yield row._replace(
                    result="fail", detail=seen.detail + said, hint=step.hint.replace("JOB", str(job_id))
                )
                return
            yield row

    def clean(self) -> None:
        """Cancel what is left of our jobs."""
        for job_id in self._jobs:
            with contextlib.suppress(SlurmError):
                self._cancel(job_id)

    def _cancel(self, job_id: int) -> None:
        job = self.slurm.jobs([job_id]).get(job_id)
        if job is None or job.ended:
            return
        self.slurm.cancel(job)
        until = self.clock() + ENDS
        while self.clock() < until and not _is_over(self.slurm.jobs([job_id]).get(job_id)):
            self.sleep(FIRST_PAUSE)

    def _submit(self, drill: Drill) -> int:
        """Its script's argument says how it shall fail. Its name is what keeps its failure off the nodes' records."""
        comment = []
        if drill.resumes:
            comment = [f"--comment=recovery=act,checkpoint={self.place.checkpoints()}"]
        said = self.slurm.run_as(
            "sbatch",
            "--parsable",
            f"--job-name={JOB_NAME}",
            f"--partition={self.partition}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            "--mem=100M",
            "--time=10",
            "--open-mode=append",
            f"--chdir={self.place.folder}",
            f"--output={self.place.log(drill.name)}",
            *comment,
            *self.options,
            str(self.place.script),
            drill.job,
            cwd="/",
            **self.user.process(),
        )
        number = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
        if not number.isdigit():
            raise DrillError(f"sbatch does not say the job's id: {said.strip()[:200]!r}")
        self._jobs.append(int(number))
        return int(number)

    def _view(self, drill: Drill, job_id: int) -> View:
        return View(
            drill=drill,
            config=self.config,
            cluster=self.cluster,
            partition=self.partition,
            slurm=self.slurm,
            store=self.store,
            read_log=lambda: self.place.read_log(drill.name),
            job_id=job_id,
            folder=self.place.folder / "checkpoints",
            wanted=self.wanted.get(drill.name),
        )

    def _wait(self, step: Step, view: View) -> Seen:
        """Look until the step is answered or its time is over."""
        begin = self.clock()
        delay = view.incident.decision.delay if view.incident and view.incident.decision else 0.0
        limit = self.limits.of(step.wait, delay)
        while True:
            view.look()
            seen = step.look(view)
            waited = self.clock() - begin
            if seen.passed is not None:
                return seen
            if waited >= limit:
                return Seen(False, f"not within {limit:g} s" + (f": {seen.detail}" if seen.detail else ""))
            self.sleep(min(FIRST_PAUSE + waited / 20, LAST_PAUSE))


def _is_over(job: Job | None) -> bool:
    return job is None or job.ended
