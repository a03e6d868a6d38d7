"""Slurm's file name patterns. sbatch(1), "filename pattern"."""

from __future__ import annotations

import pytest

from slurm_recovery.evidence.paths import expand_pattern, log_paths
from slurm_recovery.records import Attempt

PLAIN = Attempt(cluster="c", job_id=12, user="ada", name="big run", work_dir="/home/ada", nodes=("n07.example", "n08"))
TASK = PLAIN.model_copy(update={"array_job_id": 10, "array_task_id": 3})


@pytest.mark.parametrize(
    ("pattern", "plain", "task"),
    [
        ("", "/home/ada/slurm-12.out", "/home/ada/slurm-10_3.out"),
        ("/home/ada/slurm-12.out", "/home/ada/slurm-12.out", "/home/ada/slurm-10_3.out"),
        ("slurm-%j.out", "/home/ada/slurm-12.out", "/home/ada/slurm-12.out"),
        ("/logs/%x-%j.out", "/logs/big run-12.out", "/logs/big run-12.out"),
        ("/logs/%A_%a.out", "/logs/12_4294967294.out", "/logs/10_3.out"),
        ("/logs/%u/%N.%5j.%4a", "/logs/ada/n07.00012.4294967294", "/logs/ada/n07.00012.0003"),
        ("%n%t%s%%%z", "/home/ada/00batch%%z", "/home/ada/00batch%%z"),
        ("/logs/\\%j.out", "/logs/%j.out", "/logs/%j.out"),
        ("/logs/%99999999999j", "/logs/%99999999999j", "/logs/%99999999999j"),
    ],
)
def test_patterns(pattern: str, plain: str, task: str) -> None:
    assert expand_pattern(pattern, PLAIN) == plain
    assert expand_pattern(pattern, TASK) == task


def test_standard_error_where_it_goes_elsewhere() -> None:
    assert log_paths(PLAIN.model_copy(update={"stdout": "a", "stderr": "a"})) == ("/home/ada/a",)
    assert log_paths(PLAIN.model_copy(update={"stdout": "a", "stderr": "b"})) == ("/home/ada/a", "/home/ada/b")
