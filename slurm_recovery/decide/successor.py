"""Chains that users build themselves: which queued jobs are there to go on where a failed one ended. Pure.

A user who knows that his job may fail queues it several times, `--dependency=singleton` or `afterany:JOB` or
`afternotok:JOB`, under one name. Where such a successor waits, the restart is there already, and a requeue of the
failed job would be a second one. Jobs of other users and of other names are no successors, whatever they wait for: a
job that cleans up is not a restart. Nor is a task of the same array, which bears the same name by nature.

A successor that waits no longer shows no dependency. That is soon so: `singleton` lets go when the job has ended, while
it is COMPLETING; with sched_interval=1 the successor has started within a second (22.05, 26.05), else within the half
minute of Slurm's main scheduler. What is left of it is its EligibleTime: that of a job which depended on nothing is the
time of its submission. A job that was restarted, by us or anybody, has another one, too: it is no successor.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_recovery.slurm.dependency import names_job, waits_for_an_end
from slurm_recovery.slurm.port import WAITING, Job, Queued

MOST = 8  # successors of one job that are looked at, the first that were queued
SETTLED = 120.0  # seconds after the job's end within which its epilogs end and slurmctld looks at who waited for it


def successors(job: Job, queue: Iterable[Queued]) -> tuple[int, ...]:
    """The ids of the job's successors, in the order in which they were queued."""
    found = {
        one.job_id
        for one in queue
        if (one.user_id, one.name) == (job.user_id, job.name)
        and not _same_job(one, job)
        and (_waits(one, job) or _waited(one, job))
    }
    return tuple(sorted(found)[:MOST])


def dependents(job: Job, queue: Iterable[Queued]) -> tuple[int, ...]:
    """The ids of all jobs that wait for this one by its number."""
    return tuple(sorted({one.job_id for one in queue if one.state in WAITING and names_job(one.dependency, job)}))


def _waits(one: Queued, job: Job) -> bool:
    return one.state in WAITING and waits_for_an_end(one.dependency, job)


def _waited(one: Queued, job: Job) -> bool:
    """Whether it was let go by the job's end: queued before, and free to start only since."""
    if one.restart_count or one.dependency:
        return False
    if one.submit_time is None or one.eligible_time is None or job.end_time is None:
        return False
    if one.state == "CANCELLED" or not one.submit_time <= job.end_time or one.eligible_time == one.submit_time:
        return False
    return 0 <= one.eligible_time - job.end_time <= SETTLED


def _same_job(one: Queued, job: Job) -> bool:
    return one.job_id == job.job_id or (job.array_job_id is not None and one.array_job_id == job.array_job_id)
