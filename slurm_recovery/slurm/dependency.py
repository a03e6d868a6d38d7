"""Reads squeue's Dependency field: does it name a given job, and what becomes of it when that job fails? Pure.

sbatch(1), `--dependency`. The text is Slurm's own, of numbers that a user chose: it may be long, never a surprise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from slurm_recovery.slurm.port import Job

# Terms that a job's failure fulfils. `after` is fulfilled by its start and so says nothing of its end.
_BY_FAILURE = frozenset(("afterany", "afternotok", "singleton"))
# afterok:12(unfulfilled), afterany:120_*(unfulfilled), afternotok:120_3(failed), after:12+5(unfulfilled), or
# singleton(unfulfilled)
_KIND = re.compile(r"[a-z]+")
_TARGET = re.compile(r"(\d+)(?:_(\d+|\*))?(?:\+\d+)?")


class Term(NamedTuple):
    """One condition; `targets` are (job, array task, `*` or "")."""

    kind: str
    targets: tuple[tuple[str, str], ...]
    failed: bool = False


def terms(dependency: str) -> Iterator[Term]:
    """The conditions, in order. A term that is not understood is left out."""
    for text in re.split(r"[,?]", dependency):
        if kind := _KIND.match(text):
            yield Term(kind[0], tuple(_TARGET.findall(text)), "(failed)" in text)


def names_job(dependency: str, job: Job) -> bool:
    """Whether one of the after* terms waits for this job, for its array, or for its het job's leader."""
    return any(_names(term, job) for term in terms(dependency))


def waits_for_an_end(dependency: str, job: Job) -> bool:
    """Whether the job that depends so starts when `job` fails, as far as `job` is concerned.

    `singleton` counts: whoever asks has compared user and name. With an `afterok` of the same job beside it, it would
    never start, unless any one condition is enough (`?`).
    """
    told = [term for term in terms(dependency) if term.kind != "after"]
    here = [term.kind in _BY_FAILURE for term in told if term.kind == "singleton" or _names(term, job)]
    if "?" in dependency:
        return any(here)
    return bool(here) and all(here) and not any(term.failed for term in told)


def _names(term: Term, job: Job) -> bool:
    return term.kind.startswith("after") and any(_is(job, number, task) for number, task in term.targets)


def _is(job: Job, number: str, task: str) -> bool:
    if job.array_job_id is None:
        return number in (str(job.job_id), str(job.het_job_id))
    if number == str(job.array_job_id):
        return task in ("", "*", str(job.array_task_id))
    return number == str(job.job_id)
