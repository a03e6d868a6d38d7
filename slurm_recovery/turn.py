"""What one turn of the loop sees of Slurm: asked once, when it is first needed, for all incidents together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slurm_recovery.decide.successor import dependents, successors
from slurm_recovery.hooks.spool import Event
from slurm_recovery.observe import hosts
from slurm_recovery.records import Attempt, Incident, Stage
from slurm_recovery.slurm.port import Job, Node, Queued, Slurm

CLOCK_SLACK = 2.0  # Slurm rounds times down to seconds, and of two hooks that it starts at once either may be first


@dataclass
class Turn:
    """The jobs of a turn, the nodes, and which of them strigger told of."""

    slurm: Slurm
    ids: frozenset[int]
    downs: Sequence[tuple[str, float]]  # (node, when it was told of)
    unripe: list[Event] = field(default_factory=list)  # events whose job must end COMPLETING first
    watched: frozenset[str] | None = None  # nodes that a failed attempt speaks against; None: nobody asked yet

    @cached_property
    def jobs(self) -> Mapping[int, Job]:
        return self.slurm.jobs(self.ids)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        return self.slurm.nodes()

    @cached_property
    def queue(self) -> Sequence[Queued]:
        return self.slurm.queue()

    def look_at_queue(self) -> None:
        """Ask for it now; what it tells is older than whatever follows."""
        _ = self.queue

    def dependents(self, job: Job) -> tuple[int, ...]:
        """Pending jobs that wait for this one."""
        return dependents(job, self.queue)

    def successors(self, incident: Incident) -> tuple[int, ...]:
        """Jobs that their user queued to go on where the incident's job failed, and has not cancelled since."""
        job = self.jobs.get(incident.attempt.job_id)
        if job is None or incident.stage is not Stage.DETECTED:
            return ()
        found = successors(job, self.queue, incident.times.get("detected", 0.0))
        seen = dict.fromkeys((*incident.successors, *found))
        cancelled = {one.job_id for one in self.queue if one.state == "CANCELLED"}
        return tuple(number for number in seen if number not in cancelled)

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
        told = {name for name, when in self.downs if when >= begin and name in self.nodes}
        # strigger tells up to 15 s late: of a node that is well again by now it may tell an older story.
        return frozenset(name for name in told if self.nodes[name].unusable)

    def down(self, attempt: Attempt) -> frozenset[str]:
        """Nodes of the attempt that are down."""
        gone = self.gone_down(attempt)
        return frozenset(
            name for name in attempt.nodes if name in gone or name not in self.nodes or self.nodes[name].down
        )

    def all_up(self, attempt: Attempt) -> bool:
        """Whether an orderly end is to be had of every node of the attempt."""
        return not self.down(attempt) and not any(self.nodes[name].unusable for name in attempt.nodes)


def downs(events: Iterable[Event]) -> list[tuple[str, float]]:
    """The nodes that strigger's events name, with the event's time."""
    told = [event for event in events if event.kind == "node_down"]
    return [(name, event.time) for event in told for argument in event.arguments for name in hosts(argument)]


def job_of(event: Event) -> int:
    """The job that an event is about; for a component of a het job its leader."""
    return event.number("SLURM_HET_JOB_ID") or event.job_id
