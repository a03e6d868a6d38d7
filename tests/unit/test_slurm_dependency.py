"""Does a Dependency field name a job? Strings as squeue prints them on Slurm 22.05 to 26.05."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery.slurm.dependency import names_job
from slurm_recovery.slurm.port import Job

PLAIN = Job(job_id=12)
TASK = Job(job_id=14, array_job_id=12, array_task_id=3)
LEADER = Job(job_id=12, het_job_id=12)
COMPONENT = Job(job_id=13, het_job_id=12)


@pytest.mark.parametrize(
    ("text", "job", "named"),
    [
        ("afterok:12(unfulfilled)", PLAIN, True),
        ("afterany:12(unfulfilled)", PLAIN, True),
        ("afternotok:12(failed)", PLAIN, True),
        ("aftercorr:12_*(unfulfilled)", TASK, True),
        ("after:12+5(unfulfilled)", PLAIN, True),
        ("after:11+12(unfulfilled)", PLAIN, False),
        ("afterburstbuffer:12(unfulfilled)", PLAIN, True),
        ("afterok:11(unfulfilled),afterany:12(unfulfilled)", PLAIN, True),
        ("afterok:11(unfulfilled)?afterok:12(unfulfilled)", PLAIN, True),
        ("afterok:11(unfulfilled):12(unfulfilled)", PLAIN, True),
        ("afterok:11:12", PLAIN, True),
        ("afterok:120(unfulfilled)", PLAIN, False),
        ("afterok:112(unfulfilled)", PLAIN, False),
        ("afterok:12_3(unfulfilled)", TASK, True),
        ("afterok:12_4(unfulfilled)", TASK, False),
        ("afterok:12_33(unfulfilled)", TASK, False),
        ("afterok:12_*(unfulfilled)", TASK, True),
        ("afterok:14(unfulfilled)", TASK, True),
        ("afterok:13(unfulfilled)", TASK, False),
        ("afterok:12(unfulfilled)", LEADER, True),
        ("afterok:12(unfulfilled)", COMPONENT, True),
        ("afterok:13(unfulfilled)", COMPONENT, True),
        ("singleton", PLAIN, False),
        ("singleton,afterok:12(unfulfilled)", PLAIN, True),
        ("(null)", PLAIN, False),
        ("", PLAIN, False),
    ],
)
def test_who_is_named(text: str, job: Job, named: bool) -> None:
    assert names_job(text, job) is named


@given(st.text(max_size=80) | st.text(alphabet="after:ok12_*+()?, ", max_size=80))
def test_no_text_is_an_error(text: str) -> None:
    assert names_job(text, PLAIN) in (True, False)


def test_a_very_long_field_takes_no_time() -> None:
    began = time.process_time()
    assert not names_job("afterok:" + ":".join(f"{number}_7(unfulfilled)" for number in range(100, 20000)), PLAIN)
    assert not names_job("afterok:" + "1" * 20000 + "(" * 20000, PLAIN)
    assert time.process_time() - began < 2
