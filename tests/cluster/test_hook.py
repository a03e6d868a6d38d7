"""What the hook costs a job that ended well, and what it leaves."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from slurm_recovery.hooks.install import install_hooks, system_python
from slurm_recovery.hooks.spool import Spool
from tests.cluster.site import Site

RUNS = 20


def installed(folder: Path) -> Path:
    """A hook whose worker leaves a mark when it is started."""
    (folder / "state/spool").mkdir(parents=True)
    (folder / "state/holds").mkdir()
    started = folder / "started"
    settings = {
        "state": str(folder / "state"),
        "worker": ["/bin/sh", "-c", f"echo >> {started}"],
        "environment": {},
        "watchdog": 1.0,
        "hold_timeout": 60.0,
    }
    install_hooks(folder / "hooks", settings)
    return folder / "hooks/epilog_slurmctld"


def seconds(*command: str, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    return time.perf_counter() - began


def test_a_job_that_ended_well_costs_a_process_start_and_no_worker(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    ended_well = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_NAME": "fine"}
    bare, ours = [], []
    for _ in range(RUNS):
        bare.append(seconds(system_python(), "-I", "-S", "-c", "pass", environment={}))
        ours.append(seconds(str(hook), environment=ended_well))
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"hook / bare interpreter, median of {RUNS}: {ratio:.2f}")
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
