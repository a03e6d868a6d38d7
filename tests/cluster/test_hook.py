"""What the hook costs a job that ended well, and what it leaves."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from slurm_recovery.hooks.spool import Spool
from tests.bench import hook_cost, installed, seconds
from tests.cluster.site import Site

pytestmark = pytest.mark.timing

RUNS = 20


def test_a_job_that_ended_well_costs_a_process_start_and_no_worker(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    ratio = hook_cost(hook, RUNS)
    assert ratio <= 1.5
    assert not (tmp_path / "started").exists()
    assert len(Spool(tmp_path / "state").events()) == RUNS


@pytest.mark.parametrize("arguments", [[], ["n[1-2]"]])
def test_closed_descriptors_and_a_bare_environment(tmp_path: Path, arguments: list[str]) -> None:
    hook = installed(tmp_path).with_name("node_down" if arguments else "epilog_slurmctld")
    script = f"exec {hook} {' '.join(arguments)} 0<&- 1>&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", script], env={}, check=False).returncode == 0
    (event,) = Spool(tmp_path / "state").events()
    assert list(event.arguments) == arguments


def test_hostile_variables_arrive_as_they_are(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    hostile = "x\nSLURM_JOB_ID=9\n$(touch /tmp/x) \udcff ExcNodeList=n4"
    environment = {"SLURM_JOB_ID": "../../7", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_NAME": hostile}
    assert subprocess.run([str(hook)], env=environment, check=False).returncode == 0
    (event,) = Spool(tmp_path / "state").events()
    assert event.variables["SLURM_JOB_NAME"] == hostile
    assert event.job_id == 0
    assert "-job_end-0-" in event.path.name


def test_the_watchdog_lets_the_job_go_when_nothing_answers(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    failed = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "1:0"}
    taken = seconds(str(hook), environment=failed)
    assert 0.9 < taken < 3
    assert (tmp_path / "started").read_text().count("\n") == 1 or taken >= 1


def test_an_overdue_hold_starts_a_worker_even_after_a_good_job(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    mark = tmp_path / "state/holds/12"
    mark.touch()
    os.utime(mark, (time.time() - 3600, time.time() - 3600))
    ended_well = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "0:0"}
    assert subprocess.run([str(hook)], env=ended_well, check=False).returncode == 0
    deadline = time.monotonic() + 5
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "started").exists()


def test_no_worker_for_jobs_that_end_well_on_a_cluster(site: Site) -> None:
    jobs = [site.cluster.sbatch("--output=/dev/null", script="true") for _ in range(5)]
    for job in jobs:
        site.cluster.wait(job, "COMPLETED")
    assert not (site.state / "worker.log").exists()
    assert len(site.events()) == len(jobs)
    site.sweep()
    assert site.events() == []
