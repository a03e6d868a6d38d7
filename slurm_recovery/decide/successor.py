"""Chains that users build themselves: which queued jobs are there to go on where a failed one ended. Pure.

A user who knows that his job may fail queues it several times, `--dependency=singleton` or `afterany:JOB` or
`afternotok:JOB`, under one name. Where such a successor waits, the restart is there already, and a requeue of the
failed job would be a second one. Jobs of other users and of other names are no successors, whatever they wait for: a
job that cleans up is not a restart. Nor is a task of the same array, which bears the same name by nature.

A successor that waits no longer shows no dependency. That may be so before anybody can have looked: `singleton` lets go
when the job has ended, while it is COMPLETING, within a second where sched_interval=1 (22.05, 26.05), else within the
half minute of Slurm's main scheduler. What is left of it is its EligibleTime: of a job that depended on nothing, the
time of its submission. It counts where it lies between the job's end and the time at which the end was seen first:
whoever waited longer showed the dependency then. A job let go of a hold in just that second is taken for one as well;
one that was queued within the job's last second, and let go in it, is not.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_recovery.slurm.dependency import names_job, waits_for_an_end
from slurm_recovery.slurm.port import WAITING, Job, Queued

MOST = 8  # successors of one job that are looked at, the first that were queued
SETTLED = 120.0  # seconds after the job's end within which slurmctld looks at who waited for it, seen or not


def successors(job: Job, queue: Iterable[Queued], seen: float) -> tuple[int, ...]:
    """The ids of the job's successors, in the order in which they were queued.

    `seen`: when the job's end was seen first. Whoever waited for it then shows, now or in an earlier answer.
    """
    found = {
        one.job_id
        for one in queue
        if (one.user_id, one.name) == (job.user_id, job.name)
        and not _same_job(one, job)
        and (_waits(one, job) or _waited(one, job, seen))
    }
    return tuple(sorted(found)[:MOST])


def dependents(job: Job, queue: Iterable[Queued]) -> tuple[int, ...]:
    """The ids of all jobs that wait for this one by its number."""
    return tuple(sorted({one.job_id for one in queue if one.state in WAITING and names_job(one.dependency, job)}))


def _waits(one: Queued, job: Job) -> bool:
    return one.state in WAITING and waits_for_an_end(one.dependency, job)


def _waited(one: Queued, job: Job, seen: float) -> bool:
    """Whether it was let go by the job's end: queued after the job and before its end, free to start only since."""
    if one.restart_count or one.dependency or one.state == "CANCELLED" or one.job_id < (job.array_job_id or job.job_id):
        return False
    if one.submit_time is None or one.eligible_time is None or job.end_time is None:
        return False
    if one.submit_time > job.end_time or one.eligible_time <= one.submit_time:
        return False
    return job.end_time <= one.eligible_time <= min(seen, job.end_time + SETTLED)


def _same_job(one: Queued, job: Job) -> bool:
    return one.job_id == job.job_id or (job.array_job_id is not None and one.array_job_id == job.array_job_id)
