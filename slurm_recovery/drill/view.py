"""What a drill sees at one moment: its job in Slurm, its job on our record, its event in the spool, its log.

Owns how these are read, and how often. Judges nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slurm_recovery.cli.sweep import LAST_SWEEP
from slurm_recovery.config.settings import Config
from slurm_recovery.drill.drills import Drill
from slurm_recovery.drill.expected import expected
from slurm_recovery.drill.job import EARLIER, Said, said
from slurm_recovery.records import Attempt, Decision, Incident, Verdict
from slurm_recovery.slurm.errors import SlurmUnavailable
from slurm_recovery.slurm.port import Job, Slurm

WORKER_LOG = "worker.log"
CLOCKS = 10.0  # seconds by which this host's clock may be before slurmctld's
LOG_END = 4096  # bytes of its end
MOST_SAID = 300  # characters of a line of it


class Incidents(Protocol):
    """What a drill asks of the store."""

    def of_job(self, cluster: str, label: str) -> list[Incident]: ...


@dataclass
class View:
    """One drill's job. `look` reads anew what changes. `read_log`: the job's log, read as its user."""

    drill: Drill
    config: Config
    cluster: str
    partition: str
    slurm: Slurm
    store: Incidents
    read_log: Callable[[], str]
    job_id: int
    folder: Path
    wanted: Verdict | None = None  # what the operator expects, whatever the policy says
    job: Job | None = None
    incident: Incident | None = None  # of the first run
    event: str = ""  # the last name that its event was seen under
    unavailable: str = ""
    submitted: float = field(default_factory=time.time)
    _log_begin: int = field(init=False)

    def __post_init__(self) -> None:
        self._log_begin = _size(self.state_dir / WORKER_LOG)

    @property
    def state_dir(self) -> Path:
        return self.config.settings.state_dir

    def look(self) -> None:
        """The record first: Slurm then shows at least what it says was done."""
        self.event = self._event() or self.event
        ours = (one for one in self.store.of_job(self.cluster, str(self.job_id)) if one.attempt.restart_count == 0)
        self.incident = next((one for one in ours if self._is_new(one)), None)
        try:
            self.job = self.slurm.jobs([self.job_id]).get(self.job_id)
            self.unavailable = ""
        except SlurmUnavailable as error:
            self.unavailable = str(error)

    def _is_new(self, incident: Incident) -> bool:
        """Slurm gives ids again. (Its own SubmitTime becomes the requeue's.)"""
        return (incident.attempt.start_time or self.submitted) >= self.submitted - CLOCKS

    @property
    def said(self) -> Said:
        return said(self.read_log())

    @property
    def earlier_checkpoint(self) -> str:
        """The one to which a restart must go back."""
        return str(self.folder / EARLIER)

    @property
    def expected(self) -> Decision:
        """What the policy says, of the reason that was found where that is a right one."""
        attempt = self.incident.attempt if self.incident else Attempt(cluster=self.cluster, job_id=self.job_id)
        found = self.incident.attribution.reason if self.incident and self.incident.attribution else ""
        reason = found if found in self.drill.reasons else self.drill.reasons[0]
        suspect = self.said.failed_on if self.drill.names_node else ""
        return expected(self.config, attempt.model_copy(update={"partition": self.partition}), reason, suspect)

    @property
    def event_left(self) -> str:
        """The name under which its event lies in the spool; "" where it does not."""
        return self._event()

    def _event(self) -> str:
        part = f"-job_end-{self.job_id}-"
        try:
            names = os.listdir(self.state_dir / "spool")
        except OSError:
            return ""
        return next((name for name in sorted(names) if part in name and not name.endswith(".tmp")), "")

    @property
    def spool_changed(self) -> float:
        """When anything was last written into, or taken from, the spool."""
        return _changed(self.state_dir / "spool")

    @property
    def last_sweep(self) -> float:
        return _changed(self.state_dir / LAST_SWEEP)

    @property
    def worker_said(self) -> str:
        """The last line of worker.log since the drill began that tells of an error."""
        path = self.state_dir / WORKER_LOG
        size = _size(path)
        begin = self._log_begin if self._log_begin <= size else 0  # it was begun anew
        try:
            with path.open("rb") as file:
                file.seek(max(begin, size - LOG_END))
                lines = file.read(LOG_END).decode(errors="replace").splitlines()
        except OSError:
            return ""
        bad = [line for line in lines if line.strip() and "level=info" not in line]
        return bad[-1][:MOST_SAID] if bad else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
