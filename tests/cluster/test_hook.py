"""What the hook costs a job that ended well, and what it leaves."""

from __future__ import annotations

import os
import signal
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


def at_work(hook: int) -> int:
    """The pid of the hook's child, once it has let go of the hook's output."""
    children = Path(f"/proc/{hook}/task/{hook}/children")
    until = time.monotonic() + 5
    while time.monotonic() < until:
        for child in children.read_text().split():
            if os.readlink(f"/proc/{child}/fd/1") == "/dev/null":
                return int(child)
    raise AssertionError("the hook started no child")


def test_a_child_that_hangs_keeps_no_job_longer_than_the_watchdog(tmp_path: Path) -> None:
    """As on a file system that no longer answers, where nothing ends the child."""
    hook = installed(tmp_path)
    failed = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "1:0"}
    began = time.monotonic()
    with subprocess.Popen([str(hook)], env=failed, stdout=subprocess.PIPE) as running:
        child = at_work(running.pid)
        os.kill(child, signal.SIGSTOP)
        try:
            assert running.stdout is not None
            assert running.stdout.read() == b""  # slurmctld waits for the end of this, too
            assert running.wait(3) == 0
        finally:
            os.kill(child, signal.SIGKILL)
    assert time.monotonic() - began < 4


def test_the_worker_starts_with_no_signal_blocked(tmp_path: Path) -> None:
    """slurmctld blocks SIGALRM, by which the kernel ends a worker that lives too long."""
    hook = installed(tmp_path, worker=["/bin/sh", "-c", f"exec grep SigBlk /proc/self/status > {tmp_path}/started"])
    failed = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "1:0"}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    try:
        subprocess.run([str(hook)], env=failed, check=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert int((tmp_path / "started").read_text().split()[1], 16) == 0


def test_an_overdue_hold_starts_a_worker_even_after_a_good_job(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    mark = tmp_path / "state/holds/12"
    mark.touch()
    os.utime(mark, (time.time() - 3600, time.time() - 3600))
    ended_well = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "0:0"}
    assert subprocess.run([str(hook)], env=ended_well, check=False).returncode == 0
    deadline = time.monotonic() + 30
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
