"""The port over pyslurm, for a process that asks often: a call costs a millisecond instead of two processes.

The only file that imports pyslurm, and not before a PySlurm is made: the import reads SLURM_CONF, once for the life
of the process, and ends the process where that file is of no use (select.py looks first).

pyslurm is used where it tells all; the rest is handed to the commands adapter:
- jobs that have ended or are completing: pyslurm halves exit codes from 128 on (139 reads as 11) and shows no nodes
  while COMPLETING;
- het jobs, and ids that are an array's: pyslurm loads the first of their several records;
- deeds on array tasks and het jobs: a bare id may mean all of them, and a task's own id, none (cancel does nothing);
- log names in which a `%` or a backslash is left after pyslurm's expansion, text that is not UTF-8, and a pyslurm
  without Job.excluded_nodes;
- dependencies: pyslurm 22.5.3 does not know `singleton`, nor whether all or any conditions count;
- clearing a value, State=SpecialExit, slurm.conf, `--requeue=expedite`, the number of nodes that a requeued job asks
  for: pyslurm has no word for them.
A comment that is the word `None` reads as none. An RPC takes as long as Slurm lets it (10 to 20 s without slurmctld).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from slurm_recovery.hostlist import expand
from slurm_recovery.records import Size
from slurm_recovery.slurm.commands import Commands, given_reason, node_state, one_node
from slurm_recovery.slurm.errors import UnknownJob, from_text
from slurm_recovery.slurm.port import ENDED, Job, Node, Queued, job_record

_FEW = 20  # up to so many jobs are loaded one by one, more of them in one answer with all
_LOG_LIMIT = 1023  # pyslurm expands log names into 1024 bytes


class PySlurm:
    """Slurm by its library; `commands` does what the library cannot. Raises ImportError without pyslurm."""

    def __init__(self, commands: Commands) -> None:
        import pyslurm

        self._pyslurm = pyslurm
        self._commands = commands

    # -- questions -------------------------------------------------------------------------------

    def config(self) -> Mapping[str, str]:
        return self._commands.config()

    def jobs(self, ids: Collection[int]) -> Mapping[int, Job]:
        told = {record.id: _job(record) for record in self._records(ids)}
        found = {number: job for number, job in told.items() if job is not None}
        untold = [number for number, job in told.items() if job is None]
        expedited = self._commands.expedited(found)
        return {
            **{number: job.model_copy(update={"expedited": number in expedited}) for number, job in found.items()},
            **self._commands.jobs(untold),
        }

    def queue(self) -> Sequence[Queued]:
        return self._commands.queue()

    def request(self, job: Job) -> Size | None:
        return self._commands.request(job)

    def nodes(self) -> Mapping[str, Node]:
        with self._translated("pyslurm Nodes.load"):
            records = list(self._pyslurm.Nodes.load().values())
        return {record.name: _node(record) for record in records}

    # -- deeds -----------------------------------------------------------------------------------

    def requeue_hold(self, job: Job, *, special_exit: bool = False) -> None:
        if special_exit or not _alone(job):
            self._commands.requeue_hold(job, special_exit=special_exit)
        else:
            with self._translated(f"pyslurm requeue {job.job_id}"):
                self._handle(job).requeue(hold=True)

    def update(
        self,
        job: Job,
        *,
        excluded: Sequence[str] | None = None,
        start_in: float | None = None,
        admin_comment: str | None = None,
        size: Size | None = None,
    ) -> None:
        changes: dict[str, object] = {}
        if excluded is not None:
            changes["excluded_nodes"] = list(excluded)
        if start_in is not None:
            changes["begin_time"] = "now" + (f"+{round(start_in)}" if start_in >= 1 else "")
        if admin_comment is not None:
            changes["admin_comment"] = admin_comment
        # pyslurm takes an empty value for "leave it".
        if size is not None or not _alone(job) or not all(changes.values()):
            self._commands.update(job, excluded=excluded, start_in=start_in, admin_comment=admin_comment, size=size)
        elif changes:
            with self._translated(f"pyslurm modify {job.job_id}"):
                self._handle(job).modify(self._pyslurm.JobSubmitDescription(**changes))

    def release(self, job: Job) -> None:
        if _alone(job):
            with self._translated(f"pyslurm release {job.job_id}"):
                self._handle(job).release()
        else:
            self._commands.release(job)

    def cancel(self, job: Job) -> None:
        if _alone(job):
            with self._translated(f"pyslurm cancel {job.job_id}"):
                self._handle(job).cancel()
        else:
            self._commands.cancel(job)

    def drain(self, node: str, reason: str) -> None:
        self._modify_node(one_node(node), state="DRAIN", reason=given_reason(node, reason))

    def resume(self, node: str) -> None:
        self._modify_node(one_node(node), state="UNDRAIN")

    # -- pyslurm ---------------------------------------------------------------------------------

    def _records(self, ids: Collection[int]) -> Iterator[Any]:
        """pyslurm's records of these jobs; not those of a het job's further components."""
        if len(ids) > _FEW:
            with self._translated("pyslurm Jobs.load"):
                wanted = frozenset(ids)
                yield from (record for record in self._pyslurm.Jobs.load().values() if record.id in wanted)
            return
        for number in ids:
            with contextlib.suppress(UnknownJob), self._translated(f"pyslurm Job.load {number}"):
                yield self._pyslurm.Job.load(number)

    def _handle(self, job: Job) -> Any:
        return self._pyslurm.Job(job.job_id)

    def _modify_node(self, name: str, **changes: str) -> None:
        with self._translated(f"pyslurm modify {name}"):
            self._pyslurm.Node(name).modify(self._pyslurm.Node(**changes))

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """The one place where pyslurm's errors become ours."""
        try:
            yield
        except self._pyslurm.PyslurmError as error:
            raise from_text(what, str(error)) from error


def _alone(job: Job) -> bool:
    """Whether the bare id means this record and no other, in every deed."""
    return job.het_job_id is None and job.array_job_id is None


def _job(record: Any) -> Job | None:
    """The job, or None where pyslurm does not tell all of it."""
    if record.heterogeneous_id or record.array_id == record.id or not hasattr(record, "excluded_nodes"):
        return None
    if record.state in ENDED or record.state == "COMPLETING":
        return None
    try:
        job = job_record(_values(record))
    except UnicodeDecodeError:
        return None
    return job if _readable(job) else None


def _readable(job: Job) -> bool:
    """Whether the texts came through: pyslurm takes a name `None` for none, and cuts and expands log names."""
    logs = job.stdout + job.stderr
    return bool(job.name) and len(logs.encode()) < _LOG_LIMIT and "%" not in logs and "\\" not in logs


def _values(record: Any) -> dict[str, object]:
    task = record.array_task_id
    return {
        "job_id": record.id,
        "array_job_id": record.array_id,
        "array_task_id": task or 0 if record.array_id else None,  # task 0 reads as None
        "state": record.state,
        "reason": _given(record.state_reason),
        "restart_count": record.requeue_count,
        "submit_time": record.submit_time,
        "start_time": record.start_time,
        "requeue": record.is_requeueable,
        "batch": record.is_batch_job,
        "user_id": record.user_id,
        "user": record.user_name or "",
        "partition": record.partition or "",
        "nodes": expand(record.allocated_nodes or ""),
        "excluded_nodes": expand(record.excluded_nodes or ""),
        "required_nodes": expand(record.required_nodes or ""),
        "num_nodes": record.num_nodes or 0,
        "num_tasks": record.ntasks or 0,
        "ntasks_per_node": record.ntasks_per_node or 0,
        "features": ",".join(record.constraints),
        "priority": record.priority or 0,
        "work_dir": record.working_directory or "",
        "stdout": record.standard_output or "",
        "stderr": record.standard_error or "",
        "comment": record.comment or "",
        "admin_comment": record.admin_comment or "",
        "name": record.name or "",
    }


def _given(reason: str | None) -> str:
    return "" if reason in (None, "None") else str(reason)


def _node(record: Any) -> Node:
    return Node(
        name=record.name,
        state=node_state(record.state),
        reason=record.reason or "",
        reason_user=(record.reason_user or "") if record.reason else "",
        reason_time=(record.reason_time or None) if record.reason else None,
        partitions=frozenset(record.partitions or ()),
        features=frozenset(record.available_features or ()),
    )
