"""Chains that users build themselves: which queued jobs are there to go on where a failed one ended. Pure.

A user who knows that his job may fail queues it several times, `--dependency=singleton` or `afterany:JOB` or
`afternotok:JOB`, under one name. Where such a successor waits, the restart is there already, and a requeue of the
failed job would be a second one. Jobs of other users and of other names are no successors, whatever they wait for: a
job that cleans up is not a restart. Nor is a task of the same array, which bears the same name by nature.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_recovery.slurm.dependency import names_job, waits_for_an_end
from slurm_recovery.slurm.port import Job, Waiting

MOST = 8  # successors of one job that are looked at, the first that were queued


def successors(job: Job, waiting: Iterable[Waiting]) -> tuple[int, ...]:
    """The ids of the job's successors, in the order in which they were queued."""
    found = {
        one.job_id
        for one in waiting
        if (one.user_id, one.name) == (job.user_id, job.name)
        and not _same_job(one, job)
        and waits_for_an_end(one.dependency, job)
    }
    return tuple(sorted(found)[:MOST])


def dependents(job: Job, waiting: Iterable[Waiting]) -> tuple[int, ...]:
    """The ids of all jobs that wait for this one by its number."""
    return tuple(sorted({one.job_id for one in waiting if names_job(one.dependency, job)}))


def _same_job(one: Waiting, job: Job) -> bool:
    return one.job_id == job.job_id or (job.array_job_id is not None and one.array_job_id == job.array_job_id)
