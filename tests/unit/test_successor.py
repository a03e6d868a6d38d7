"""Which queued jobs go on where a failed one ended: by their user, name and dependency, and by when they were free."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from slurm_recovery.decide.successor import MOST, SETTLED, dependents
from slurm_recovery.decide.successor import successors as successors_seen
from slurm_recovery.slurm.port import Job, Queued

END = 1000.0
JOB = Job(job_id=12, user_id=7, name="train", state="COMPLETING", end_time=END)
TASK = Job(job_id=15, array_job_id=12, array_task_id=3, user_id=7, name="train", state="FAILED", end_time=END)


def successors(job: Job, queue: Iterable[Queued], seen: float = END + 1) -> tuple[int, ...]:
    return successors_seen(job, queue, seen)


def queued(dependency: str = "", **more: object) -> Queued:
    fields = {"job_id": 20, "user_id": 7, "name": "train", "state": "PENDING", "submit_time": 900.0} | more
    return Queued(dependency=dependency, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dependency", "follows"),
    [
        ("singleton(unfulfilled)", True),
        ("afterany:12(unfulfilled)", True),
        ("afternotok:12(unfulfilled)", True),
        ("afternotok:12(unfulfilled)?afterok:12(unfulfilled)", True),
        ("afterany:11(unfulfilled),afterany:12(unfulfilled)", True),
        ("singleton(unfulfilled),afterany:12(unfulfilled)", True),
        ("after:12+5(unfulfilled),singleton(unfulfilled)", True),
        ("afterok:12(unfulfilled)", False),
        ("afterok:12(unfulfilled),singleton(unfulfilled)", False),
        ("aftercorr:12(unfulfilled)", False),
        ("after:12(unfulfilled)", False),
        ("afterany:13(unfulfilled)", False),
        ("afterany:112(unfulfilled)", False),
        ("afterok:11(failed),singleton(unfulfilled)", False),
        ("afterok:11(failed)?singleton(unfulfilled)", True),
        ("", False),
        ("singleton" * 1000, False),
    ],
)
def test_what_waits_for_a_jobs_end(dependency: str, follows: bool) -> None:
    assert bool(successors(JOB, [queued(dependency)])) is follows


@pytest.mark.parametrize(
    ("one", "follows"),
    [
        (queued("singleton(unfulfilled)", user_id=8), False),
        (queued("singleton(unfulfilled)", name="train2"), False),
        (queued("singleton(unfulfilled)", name="train "), False),
        (queued("singleton(unfulfilled)", job_id=12), False),
        (queued("singleton(unfulfilled)", state="CANCELLED"), False),
        (queued(eligible_time=END, state="RUNNING"), True),
        (queued(eligible_time=END + 1, state="FAILED"), True),
        (queued(eligible_time=END + 3), False),  # nobody saw it wait, and it was not free when the end was seen
        (queued(eligible_time=END + 1, dependency="afterany:99(unfulfilled)"), False),
        (queued(eligible_time=END + 1, restart_count=1), False),
        (queued(eligible_time=END - 1, state="RUNNING"), False),
        (queued(eligible_time=900.0), False),  # it waits for nodes only
        (queued(eligible_time=END, submit_time=END), False),  # so does this one, submitted when the job ended
        (queued(eligible_time=END, submit_time=END - 1), True),
        (queued(eligible_time=END + 3, submit_time=END + 3), False),
        (queued(eligible_time=END + 1, state="CANCELLED"), False),
        (queued(eligible_time=END, job_id=11, state="COMPLETED"), False),  # it was queued before the job itself
        (queued(eligible_time=None), False),
    ],
)
def test_whose_it_is_and_since_when_it_may_start(one: Queued, follows: bool) -> None:
    assert successors(JOB, [one]) == ((one.job_id,) if follows else ())


@pytest.mark.parametrize(("after", "follows"), [(3, True), (SETTLED, True), (SETTLED + 1, False)])
def test_where_the_end_was_seen_late_whoever_was_let_go_meanwhile_counts(after: float, follows: bool) -> None:
    assert bool(successors(JOB, [queued(eligible_time=END + after)], END + 600)) is follows


def test_the_tasks_of_one_array_are_no_chain() -> None:
    own = queued("singleton(unfulfilled)", job_id=16, array_job_id=12)
    other = queued("singleton(unfulfilled)", job_id=30, array_job_id=30)
    assert successors(TASK, [own, other]) == (30,)
    assert successors(TASK, [queued("afterany:12_3(unfulfilled)")]) == (20,)
    assert successors(TASK, [queued("afterany:12_4(unfulfilled)")]) == ()
    # A task's own id is younger than what was queued after its array.
    assert successors(TASK, [queued(job_id=13, eligible_time=END)]) == (13,)


def test_the_first_of_many_in_the_order_in_which_they_were_queued() -> None:
    many = [queued("singleton(unfulfilled)", job_id=number) for number in (50, 20, 40, 20, *range(60, 9000))]
    found = successors(JOB, many)
    assert (found[:3], len(found)) == ((20, 40, 50), MOST)


def test_dependents_are_all_that_wait_whoever_they_are() -> None:
    waiting = [queued("afterok:12(unfulfilled)", job_id=31, user_id=9), queued("singleton(unfulfilled)", job_id=32)]
    ended = queued("afterok:12(failed)", job_id=33, state="CANCELLED")
    assert dependents(JOB, [*waiting, ended]) == (31,)
