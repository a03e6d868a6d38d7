"""The port: the few questions and deeds that slurm_recovery needs of Slurm, and the records they use.

Knows no adapter. Every method may raise SlurmError; SlurmUnavailable means "ask again later".
Times are seconds since the epoch. All text fields may hold whatever a user chose to write.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from slurm_recovery.records import Record, Size

# slurm.h job_states and squeue(1) "JOB STATE CODES".
ENDED = frozenset(
    "COMPLETED FAILED TIMEOUT CANCELLED NODE_FAIL BOOT_FAIL DEADLINE OUT_OF_MEMORY PREEMPTED".split()
)
WAITING = frozenset("PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT EXPEDITING".split())
# sinfo(1) "NODE STATE CODES": a node that shows one of these cannot take part in a job's orderly end.
UNUSABLE = frozenset("DOWN FAIL FAILING NOT_RESPONDING POWERED_DOWN POWERING_DOWN UNKNOWN ERROR".split())
AWAY = UNUSABLE | frozenset("DRAIN DRAINED DRAINING MAINT RESERVED FUTURE INVAL".split())
DRAINED = frozenset("DRAIN DRAINED DRAINING".split())
ALLOCATED = frozenset("ALLOCATED MIXED COMPLETING".split())
# slurm.h job_state_reason, as squeue prints it since 20.11 and before.
LAUNCH_FAILED = ("launch failed requeued held", "launch_failed_requeued_held")


class Job(Record):
    """A job, array task or het component as slurmctld shows it now.

    Times and exit codes are those of the run that `state` tells of: a pending job has none (Slurm shows its former
    exit code and an expected start), a running one no end. `derived_exit_code` is `CODE:SIGNAL`. `stdout` and `stderr`
    are file name patterns of sbatch(1), or, without any `%`, the names themselves: evidence.paths gives the same path
    for both; "" is none, for `stderr` also "as stdout". The waiting tasks of an array have no record of their own yet:
    the first of them stands for all, under the array's id.
    """

    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    state: str = ""
    reason: str = ""
    restart_count: int = 0
    submit_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    exit_code: int = 0
    signal: int = 0
    derived_exit_code: str = ""
    requeue: bool = True
    batch: bool = True
    expedited: bool = False
    user_id: int = -1
    user: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    num_nodes: int = 0
    num_tasks: int = 0
    ntasks_per_node: int = 0  # as it was asked for; 0 where it was not
    features: str = ""
    priority: int = 0
    work_dir: str = ""
    stdout: str = ""
    stderr: str = ""
    comment: str = ""
    admin_comment: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """How Slurm's commands address exactly this record: `120_3` for an array task, else the job id.

        A bare id that equals the array's would mean the whole array.
        """
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.job_id)

    @property
    def pending(self) -> bool:
        return self.state in WAITING

    @property
    def completing(self) -> bool:
        return self.state == "COMPLETING"

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def held(self) -> bool:
        """Not to start before somebody releases it."""
        return self.state in ("SPECIAL_EXIT", "REQUEUE_HOLD") or (
            self.pending and self.reason.lower().startswith(("job requeued in held", "jobheld", *LAUNCH_FAILED))
        )

    @property
    def held_by_people(self) -> bool:
        """Held by `scontrol hold` or `uhold`; what a requeuehold leaves has another Reason."""
        return self.pending and self.reason.lower().startswith("jobheld")

    @property
    def launch_failed(self) -> bool:
        """Put back and held by Slurm itself, because a prolog or the launch failed."""
        return self.pending and self.reason.lower().startswith(LAUNCH_FAILED)


def job_record(values: Mapping[str, Any]) -> Job:
    """A Job of what an adapter has read, without what belongs to another run than the one that `state` tells of."""
    job = Job.model_validate(values)
    changes: dict[str, object] = {"stdout": _log(job.stdout, job), "stderr": _log(job.stderr, job)}
    if changes["stderr"] == changes["stdout"]:
        changes["stderr"] = ""
    if job.pending:
        changes["start_time"] = None
    if not (job.ended or job.completing):
        changes |= {"end_time": None, "exit_code": 0, "signal": 0, "derived_exit_code": "0:0"}
    return job.model_copy(update=changes)


def _log(shown: str, job: Job) -> str:
    """A log's pattern. Slurm 22.05 shows the default as `slurm-JOBID.out`, which is wrong for array tasks."""
    if not shown or not job.batch:
        return ""
    path = os.path.join(job.work_dir, shown)
    if path != os.path.join(job.work_dir, f"slurm-{job.job_id}.out"):
        return path
    return os.path.join(job.work_dir, "slurm-%j.out" if job.array_job_id is None else "slurm-%A_%a.out")


REASON_LENGTH = 200
_REASON = re.compile(r"[^A-Za-z0-9 ._:,/+()@-]")


def drain_reason(text: str) -> str:
    """A text as `drain` writes it into a node's Reason: one line of characters that no program gives a meaning.

    Quotes are not among them, for scontrol takes them off, nor is `=`, by which `scontrol show node` parts its fields.
    """
    return _REASON.sub("?", " ".join(text.split()))[:REASON_LENGTH].rstrip()


class Node(Record):
    """A node as slurmctld shows it; `state` holds Slurm's words, e.g. {"IDLE", "DRAIN"}.

    A node of which a part is allocated is MIXED or ALLOCATED: pyslurm does not tell them apart. `reason_user` is who
    gave the reason; Slurm itself does so as SlurmUser.
    """

    name: str
    state: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_time: float | None = None
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()

    @property
    def unusable(self) -> bool:
        """Down or not responding: no orderly end of a job is to be had there."""
        return bool(self.state & UNUSABLE)

    @property
    def down(self) -> bool:
        """Down for sure. One that is only not responding may have been resumed a moment ago and not pinged since."""
        return bool(self.state & (UNUSABLE - {"NOT_RESPONDING", "UNKNOWN"}))

    @property
    def drained(self) -> bool:
        """Starts no further job; one that runs there goes on."""
        return bool(self.state & DRAINED)

    @property
    def idle(self) -> bool:
        """No job is on it, whether it is drained or not."""
        return "IDLE" in self.state and not self.alloc

    @property
    def alloc(self) -> bool:
        """A job is on it, or still ending there."""
        return bool(self.state & ALLOCATED)

    @property
    def away(self) -> bool:
        """Not able to start a job now or soon: down, drained or reserved for maintenance."""
        return bool(self.state & AWAY)


class Queued(Record):
    """A job as far as it may have to do with another: whose it is, and what it waits, or waited, for.

    `array_job_id` is its own id where it is no array. `dependency`: as squeue prints it; "" once it is fulfilled.
    `eligible_time`: since when it may start; None while a dependency or a hold forbids it.
    """

    job_id: int
    array_job_id: int | None = None
    user_id: int = -1
    name: str = ""
    state: str = ""
    dependency: str = ""
    submit_time: float | None = None
    eligible_time: float | None = None
    restart_count: int = 0


class Slurm(Protocol):
    """What an adapter must be able to do. A deed on the leader of a het job is done to all its components."""

    def config(self) -> Mapping[str, str]:
        """slurm.conf as slurmctld has it, keys in lower case."""

    def jobs(self, ids: Collection[int]) -> Mapping[int, Job]:
        """These jobs by their own ids, a het job's components with its leader; forgotten ones are left out."""

    def queue(self) -> Sequence[Queued]:
        """All jobs that slurmctld knows, by one question however many there are."""

    def request(self, job: Job) -> Size | None:
        """What a pending job asks for at least; None where fewer nodes cannot be asked for, or slurmctld forgot it.

        Unlike `Job.num_nodes`, which of a requeued job tells how many it had, it is what Slurm will look for: of
        `-N 2-4` it is 2. None also: a het job, one that asks for GPUs as a whole (`--gpus`), which Slurm does not let
        anybody change, and a squeue without JSON. An expensive question (22.05 answers with all jobs): ask it rarely.
        """

    def nodes(self) -> Mapping[str, Node]:
        """All nodes, by one question however many there are."""

    def requeue_hold(self, job: Job, *, special_exit: bool = False) -> None:
        """Put an ended or completing job back into the queue, held (or in state SPECIAL_EXIT).

        Raises AlreadyPending, RequeueDisabled (--no-requeue; not a batch job), UnknownJob.
        """

    def update(
        self,
        job: Job,
        *,
        excluded: Sequence[str] | None = None,
        start_in: float | None = None,
        admin_comment: str | None = None,
        size: Size | None = None,
    ) -> None:
        """Set ExcNodeList (replaced as a whole; empty clears it), StartTime (seconds from now), AdminComment, and how
        many nodes (no more and no less), tasks and CPUs it asks for.

        All or nothing: UnknownNode leaves everything as it was. With a size, a job that runs is refused (NumNodes by
        itself would take nodes away from it, 22.05).
        """

    def release(self, job: Job) -> None:
        """Release a held job."""

    def cancel(self, job: Job) -> None:
        """Cancel a job; nothing where it has ended or is forgotten."""

    def drain(self, node: str, reason: str) -> None:
        """Let the node start no further job; what runs there goes on. The reason is written as `drain_reason` has it.

        Slurm keeps no former reason, and takes away FAIL: whoever calls has read the node just before. Raises
        UnknownNode, also for anything that is not the name of one node.
        """

    def resume(self, node: str) -> None:
        """End the node's drain, and nothing else: one that is DOWN stays DOWN. Raises UnknownNode as `drain`.

        Slurm clears the reason of a node that is not DOWN (24.11 does not), and takes away FAIL. Until the node has
        answered its next ping it shows NOT_RESPONDING too.
        """
