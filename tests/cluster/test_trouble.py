"""The store, the settings or slurmctld fail: no job waits for us, and a sweep afterwards puts everything right."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from slurm_recovery.records import Stage
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site

# Fails in its first attempt, succeeds in any other.
FAILS_ONCE = 'sleep 0.3; test "${SLURM_RESTART_COUNT:-0}" != 0'
WATCHDOG = 6.0
Trouble = Callable[[Site], AbstractContextManager[None]]
ENDS = (Stage.LEFT, Stage.STOPPED, Stage.ABANDONED)


@pytest.fixture(scope="module")
def site(cluster: PrivateCluster) -> Iterator[Site]:
    """Its database lies on a small file system of its own, so that it can be filled or write-protected."""
    disk = cluster.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        settings = {"Backoff": "0", "WatchdogTimeout": f"{WATCHDOG:g}", "StoreUrl": f"sqlite:///{disk}/recovery.db"}
        site = Site(cluster, settings, store_url=settings["StoreUrl"])
        site.install()
        yield site
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def locked(site: Site) -> Iterator[None]:
    connection = sqlite3.connect(site.cluster.folder / "disk/recovery.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield
    connection.close()


@contextmanager
def read_only(site: Site) -> Iterator[None]:
    disk = str(site.cluster.folder / "disk")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@contextmanager
def full(site: Site) -> Iterator[None]:
    ballast = site.cluster.folder / "disk/ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    yield
    ballast.unlink()


@contextmanager
def broken_settings(site: Site) -> Iterator[None]:
    good = site.conf.read_text()
    site.conf.write_text(good + "Mod=act\n")
    yield
    site.conf.write_text(good)


@contextmanager
def corrupt(site: Site) -> Iterator[None]:
    database = site.cluster.folder / "disk/recovery.db"
    good = database.read_bytes()
    database.write_bytes(b"no database" * 100)
    yield
    database.write_bytes(good)


@pytest.mark.parametrize("trouble", [locked, read_only, full, broken_settings, corrupt])
def test_the_job_ends_as_usual_and_a_sweep_restarts_it(site: Site, trouble: Trouble) -> None:
    cluster = site.cluster
    with trouble(site):
        job = cluster.sbatch("--output=/dev/null", script=FAILS_ONCE)
        options = (f"--dependency=afterany:{job}", "--job-name=next", "--output=/dev/null")
        successor = cluster.sbatch(*options, script="true")
        cluster.wait(job, "COMPLETING")
        began = time.monotonic()
        cluster.wait(job, "FAILED", timeout=WATCHDOG + 10)
        assert time.monotonic() - began < WATCHDOG + 4
        cluster.wait_for(lambda: site.worker_is_gone(job), what="the worker's end")
        assert cluster.show(job)["RestartCnt"] == "0"
    cluster.wait(successor, "COMPLETED")
    cluster.wait_for(site.swept, what="nothing left to do")
    record = cluster.wait(job, "COMPLETED")
    assert record["RestartCnt"] == "1"
    cluster.wait_for(site.swept, what="an empty spool")


def test_a_missing_spool_is_made_again(site: Site) -> None:
    shutil.rmtree(site.state / "spool")
    job = site.cluster.sbatch("--output=/dev/null", script=FAILS_ONCE)
    assert site.cluster.wait(job, "COMPLETED")["RestartCnt"] == "1"


def test_a_spool_that_cannot_be_written_harms_no_job(site: Site) -> None:
    spool = site.state / "spool"
    spool.rename(site.state / "away")
    spool.write_text("a file, not a folder")
    job = site.cluster.sbatch("--output=/dev/null", script=FAILS_ONCE)
    site.cluster.wait(job, "FAILED")
    spool.unlink()
    (site.state / "away").rename(spool)
    site.sweep()
    assert site.cluster.show(job)["State"] == "FAILED"


def test_the_package_gone_harms_no_job(site: Site) -> None:
    module = site.hooks / "slurm_recovery_hook.py"
    hidden = module.rename(site.hooks / "hidden")
    shutil.move(site.hooks / "__pycache__", site.hooks / "hidden_cache")
    try:
        job = site.cluster.sbatch("--output=/dev/null", script=FAILS_ONCE)
        site.cluster.wait(job, "FAILED")
    finally:
        hidden.rename(module)
        shutil.move(site.hooks / "hidden_cache", site.hooks / "__pycache__")


def test_slurmctld_stopped_and_started_in_the_middle(site: Site) -> None:
    cluster = site.cluster
    job = cluster.sbatch("--output=/dev/null", script=FAILS_ONCE)
    successor = cluster.sbatch(f"--dependency=afterok:{job}", "--output=/dev/null", script="true")
    # A slurmctld that stops kills its hooks, and 26.05 does not run them again: what nobody wrote down by then is lost.
    cluster.wait_for(lambda: site.incidents(job), what="the incident")
    cluster.stop_slurmctld()
    cluster.start_slurmctld()
    cluster.wait_for(site.swept, what="nothing left to do")
    assert cluster.wait(job, "COMPLETED")["RestartCnt"] == "1"
    # The chain may be lost with the hook that held the job's end.
    cluster.run("scancel", str(successor))
    assert len([one for one in site.incidents(job) if one.decision and one.decision.verdict.restarts]) == 1


def test_the_store_gone_for_good_releases_what_we_hold(site: Site) -> None:
    """A hold whose record is lost is released by its mark, once HoldTimeout is over."""
    cluster = site.cluster
    job = cluster.sbatch("--output=/dev/null", "--comment=recovery=off", script=FAILS_ONCE)
    cluster.wait(job, "FAILED")
    site.wait_stage(job, *ENDS)
    cluster.run("scontrol", "requeuehold", str(job))
    mark = site.state / "holds" / str(job)
    mark.touch()
    site.sweep()
    assert "held" in cluster.show(job)["Reason"], "released before HoldTimeout"
    os.utime(mark, (time.time() - 3600, time.time() - 3600))
    site.sweep()
    assert "held" not in cluster.show(job)["Reason"]
    assert not mark.exists()
    cluster.run("scancel", str(job))
