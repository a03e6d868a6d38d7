"""What people do to a job between our look at it and our deed: they win."""

from __future__ import annotations

import time

import pytest

from slurm_recovery.act import Actor
from slurm_recovery.hooks.spool import Spool
from slurm_recovery.records import Attempt, Decision, Incident, Result, Stage, Verdict
from slurm_recovery.slurm.commands import Commands
from slurm_recovery.slurm.port import Job
from slurm_recovery.store.store import Store
from tests.cluster.private_cluster import PrivateCluster

STOP = Decision(verdict=Verdict.STOP, basis="test", because="test", act=True, stop_action="hold")


@pytest.fixture(scope="module")
def actor(cluster: PrivateCluster) -> Actor:
    """On a cluster where nothing else of ours is installed."""
    state = cluster.folder / "state-dir"
    (state / "spool").mkdir(parents=True)
    commands = Commands(slurm_conf=cluster.slurm_conf)
    return Actor(commands, Store.open(f"sqlite:///{state}/recovery.db"), Spool(state), time.time)


def failed(cluster: PrivateCluster, actor: Actor) -> tuple[Job, Incident]:
    """A job that failed, as we saw it then, and its incident."""
    number = cluster.sbatch("--output=/dev/null", script='[ "${SLURM_RESTART_COUNT:-0}" != 0 ] && sleep 60; exit 1')
    cluster.wait(number, "FAILED")
    job = actor.slurm.jobs([number])[number]
    attempt = Attempt(cluster="test", job_id=number, start_time=job.start_time)
    return job, actor.store.save(Incident(attempt=attempt))


def test_a_job_that_was_requeued_and_cancelled_meanwhile_is_not_revived(cluster: PrivateCluster, actor: Actor) -> None:
    job, incident = failed(cluster, actor)
    cluster.run("scontrol", "requeue", str(job.job_id))
    cluster.run("scancel", str(job.job_id))
    cluster.wait(job.job_id, "CANCELLED")
    assert actor.requeue(incident, job, Stage.REQUEUED)[1] is Result.ALREADY
    actor.end(incident, job, STOP, "comment")
    assert cluster.show(job.job_id)["State"] == "CANCELLED"
    assert actor.spool.holds() == {}


def test_a_job_that_its_owner_restarted_meanwhile_goes_on(cluster: PrivateCluster, actor: Actor) -> None:
    job, incident = failed(cluster, actor)
    cluster.run("scontrol", "requeue", str(job.job_id))
    cluster.run("scontrol", "update", f"JobId={job.job_id}", "StartTime=now+2")
    cluster.wait(job.job_id, "RUNNING")
    assert actor.requeue(incident, job, Stage.REQUEUED)[1] is Result.ALREADY
    actor.end(incident, job, STOP, "comment")
    record = cluster.show(job.job_id)
    assert (record["State"], record["RestartCnt"]) == ("RUNNING", "1")
    cluster.run("scancel", str(job.job_id))
