"""Which evidence of a job's log belongs to an earlier attempt that wrote into the same file.

Owns the boundary: words about an end (of the job, of a step, of torchrun's workers) behind which something
begins anew. What stands before it is history: it may explain that end, not this one. Owns also which lines only
quote Slurm or an error: srun itself prints without a prefix. Decides no cause. Evidence is in the order of its
lines, and counts lines that are alike at the first of them, so a line that was seen more than once may have been
seen after the boundary too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.srun_words import hosts, task_end
from slurm_recovery.records import Attempt, Evidence, Role, Source

BEGIN = "attempt_begins"
RESTART = "workers_restarted"
# req.c: "*** JOB 881 ON a01 CANCELLED AT 2026-05-05T05:59:01 DUE TO JOB REQUEUE ***". Said of a step, these
# three end the job all the same; a time limit or a cancellation may be a step's own.
_JOB_ENDS = ("slurm_requeued", "slurm_preempted", "slurm_node_failure")
_STEP_ENDS = ("slurm_cancelled", "slurm_time_limit", "slurm_step_cancelled", "srun_terminating", "task_end")
_OF_JOB = re.compile(r"\*\*\* JOB (\d{1,12})")
_NAMED_JOB = re.compile(r"(?:\*\*\* (?:JOB|STEP) |StepId=)(\d{1,12})\b")
_NAMING = ("task_end", "slurm_oom", "srun_node_failure", "task_launch_failed", "stepd_terminated")
_TASK_ENDS = ("task_end", "slurm_oom", "segfault", "other_crash", "bus_error")  # signatures of srun's words about tasks
_NO_PORT = "port_in_use"
# What ranks may meet before they meet each other, or for want of it.
_AT_THE_START = (_NO_PORT, "python_exception", "import_error", "bad_arguments", "unknown", "mpi_abort", "segfault")
MOST_TASKS = 131072  # named in all: the lines are the user's
# A requeued job waits two minutes (slurm.conf, bf/DEFAULT_REQUEUE); a killed one ends within KillWait, 30 s.
_ANOTHER_END = 60.0


def split(evidence: Sequence[Evidence], attempt: Attempt) -> tuple[tuple[Evidence, ...], tuple[Evidence, ...]]:
    """The evidence of this attempt, and that of earlier ones in the same file."""
    log = [index for index, found in enumerate(evidence) if found.source is Source.JOB_LOG]
    boundary = _boundary(evidence, log, attempt)
    if boundary is None:
        return tuple(evidence), ()
    path = _path(evidence[boundary])
    before = {index for index in log if index <= boundary and _path(evidence[index]) == path}
    if not any(_is_cause(evidence[index]) for index in log if index > boundary):
        before = {index for index in before if evidence[index].count == 1}
    return (
        tuple(found for index, found in enumerate(evidence) if index not in before),
        tuple(evidence[index] for index in sorted(before)),
    )


def _boundary(evidence: Sequence[Evidence], log: Sequence[int], attempt: Attempt) -> int | None:
    """The last index of an earlier attempt: the last end after which something begins; None if there is none."""
    begin = max((index for index in log if evidence[index].signature == BEGIN), default=-1)
    cause = max((index for index in log if _is_cause(evidence[index])), default=-1)
    nodes = frozenset(node.split(".")[0] for node in attempt.nodes)
    step = _last_of_a_step(evidence, log, attempt)
    for index in reversed(log):
        found = evidence[index]
        if index == step:
            return index
        if _ends_job(found, attempt.job_id) and (begin > index or _ends_again(evidence, log, index)):
            return index
        if found.signature in _STEP_ENDS and begin > index and cause > begin:
            return index
        if found.signature in _TASK_ENDS and _never_began(evidence, log, index):
            return index
        if (found.signature == RESTART or _of_others(found, nodes)) and cause > index:
            return index
    return None


def _ends_job(found: Evidence, job_id: int) -> bool:
    if found.signature in _JOB_ENDS or (found.signature in _STEP_ENDS and _OF_JOB.search(found.line)):
        return True
    named = _NAMED_JOB.search(found.line)
    return bool(job_id and named and int(named[1]) != job_id)


def _of_others(found: Evidence, nodes: frozenset[str]) -> bool:
    """Whether srun speaks of nodes none of which this attempt has."""
    if not nodes or found.signature not in _NAMING:
        return False
    named = hosts(found.node) if found.node else _hosts(found.line)
    return bool(named) and not any(host.split(".")[0] in nodes for host in named)


def _hosts(line: str) -> tuple[str, ...]:
    end = task_end(line)
    return end.hosts if end else ()


def _last_of_a_step(evidence: Sequence[Evidence], log: Sequence[int], attempt: Attempt) -> int | None:
    """The end of a step all of whose tasks had ended, where one of them ended again: a task ends once in a step.

    Not of a heterogeneous job, whose components count their tasks from 0 each, nor where steps have one task, for
    such are run side by side.
    """
    total = len(attempt.nodes) * (attempt.ntasks_per_node or 0)
    if not 2 <= total <= MOST_TASKS or attempt.het_job_id is not None:
        return None
    ended: set[int] = set()
    last = boundary = None
    room = MOST_TASKS
    for index in log:
        end = task_end(evidence[index].line) if evidence[index].signature in _TASK_ENDS and room > 0 else None
        if end is None or end.count > min(total, room):
            continue
        room -= end.count
        tasks = {task for span in end.tasks for task in span}
        if len(ended) >= total and tasks & ended:
            boundary, ended = last, set()
        ended |= tasks
        last = index
    return boundary


def _never_began(evidence: Sequence[Evidence], log: Sequence[int], index: int) -> bool:
    """Whether a step that had got no port ended here, and ranks got further after that: they are of another one.

    Without the port no rank meets another, so that none goes on to an error of its devices, files or memory.
    """
    before = {evidence[other].reason for other in log if other < index and _is_cause(evidence[other])}
    if before != {_NO_PORT}:
        return False
    later = [evidence[other] for other in log if other > index and _is_cause(evidence[other])]
    return any(found.reason not in _AT_THE_START for found in later)


def _ends_again(evidence: Sequence[Evidence], log: Sequence[int], index: int) -> bool:
    """Whether the job ended once more, well after this end."""
    time = evidence[index].time
    later = (evidence[other] for other in log if other > index and evidence[other].signature in _JOB_ENDS)
    return time is not None and any(one.time is not None and one.time - time > _ANOTHER_END for one in later)


# srun labels the output of tasks, slurmstepd's among it, but never its own words. A tool may put a time before both.
_TIME = r"(?:\[?[\d:T.,+ -]{8,40}\]? )?"
_SPEAKS = re.compile(rf"{_TIME}(?:srun|(?: {{0,7}}\d{{1,7}}: )?slurmstepd(?:-\S{{1,80}})?): ")
_SLURM = ("srun: ", "slurmstepd: ")
# One record of a program that logs JSON, or a Python dictionary: text that it was given, more often than its own.
_RECORD = ('{"', "{'", '["')


def by_slurm_itself(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The evidence without words of Slurm that someone else repeats: they end nothing, and are no cause."""
    return tuple(found for found in evidence if not _repeats_slurm(found))


def spoken(evidence: Sequence[Evidence], attempt: Attempt) -> tuple[Evidence, ...]:
    """The evidence without words of Slurm about a node of another job.

    Causes that stand inside a record count only where no cause stands by itself.
    """
    nodes = frozenset(node.split(".")[0] for node in attempt.nodes)
    heard = [found for found in evidence if not _of_others(found, nodes)]
    log = [found for found in heard if found.source is Source.JOB_LOG and _is_cause(found)]
    quoted = {id(found) for found in log if _in_record(found)}
    if len(quoted) == len(log):
        return tuple(heard)
    return tuple(found for found in heard if id(found) not in quoted)


def _in_record(found: Evidence) -> bool:
    head = frame(found.line)
    return head.record or head.text.lstrip().startswith(_RECORD)


def _repeats_slurm(found: Evidence) -> bool:
    if found.source is not Source.JOB_LOG or not any(word in found.line for word in _SLURM):
        return False
    return _SPEAKS.match(found.line) is None


def _is_cause(found: Evidence) -> bool:
    return found.role is Role.ROOT


def _path(found: Evidence) -> str:
    return found.place.rpartition(":")[0]
