"""Reads squeue's Dependency field: does it name a given job? sbatch(1), `--dependency`."""

from __future__ import annotations

import re

from slurm_recovery.slurm.port import Job

# afterok:12(unfulfilled), afterany:120_*(unfulfilled), afternotok:120_3(failed), after:12+5(unfulfilled)
_TERM = re.compile(r"after\w*:((?:\d+(?:_(?:\d+|\*))?(?:\+\d+)?(?:\(\w*\))?:?)+)")
_TARGET = re.compile(r"(\d+)(?:_(\d+|\*))?")


def names_job(dependency: str, job: Job) -> bool:
    """Whether one of the after* terms waits for this job, for its array, or for its het job's leader."""
    return any(
        _is(job, number, task)
        for term in _TERM.findall(dependency)
        for number, task in _TARGET.findall(re.sub(r"\+\d+|\(\w*\)", "", term))
    )


def _is(job: Job, number: str, task: str) -> bool:
    if job.array_job_id is None:
        return number in (str(job.job_id), str(job.het_job_id))
    if number == str(job.array_job_id):
        return task in ("", "*", str(job.array_task_id))
    return number == str(job.job_id)
