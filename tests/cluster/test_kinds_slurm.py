"""Kinds of ends that Slurm itself brings about: time limit, memory, preemption; and its own quick requeue."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Iterator

import pytest

from slurm_recovery.records import Stage
from tests.cluster.kinds import FIRST, basis, closed, reason, restarts
from tests.cluster.private_cluster import ClusterError, PrivateCluster
from tests.cluster.site import SYSTEM_PYTHON, Site

GROUPS = {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup"}
# Where a machine has no control groups, the accounting plug-in ends a job that uses too much memory.
NO_GROUPS = {
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "task=1",
    "JobAcctGatherParams": "OverMemoryKill",
}
CONF = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "DefMemPerNode": "50"}
PARTITIONS = (
    "PartitionName=main Nodes=ALL",
    "PartitionName=cancelled Nodes=ALL PreemptMode=CANCEL",
    "PartitionName=high Nodes=ALL PriorityTier=10",
    "PartitionName=last Nodes=ALL PriorityTier=10",
)
EATER = f"{SYSTEM_PYTHON} -c 'import time; x = bytes([1]) * (300 << 20); time.sleep(20)'"
STAY = f"{FIRST} && sleep 90; true"  # the first attempt runs until it is ended, the next ends at once


def boot() -> PrivateCluster:
    prefix = "".join(random.choices(string.ascii_lowercase, k=8))  # the groups bear it on the whole host
    try:
        return PrivateCluster(
            nodes=5, conf=CONF | GROUPS, partitions=PARTITIONS, prefix=prefix, cgroup_conf="ConstrainRAMSpace=yes\n"
        ).start()
    except ClusterError:
        return PrivateCluster(nodes=5, conf=CONF | NO_GROUPS, partitions=PARTITIONS).start()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    cluster = boot()
    try:
        if cluster.version >= (25, 11):
            cluster.append_conf("SlurmctldParameters=enable_expedited_requeue")
        site = Site(cluster, {"Backoff": "0"}, "Reason=time_limit Action=requeue\nPartitionName=last MaxRequeues=0\n")
        site.install()
        yield site
    finally:
        cluster.stop()


@pytest.fixture(scope="module", autouse=True)
def limited(site: Site) -> list[int]:
    """Two jobs that reach their time limit: slurmctld looks for such ones every 30 s, so they begin first."""
    jobs = [site.cluster.sbatch(f"--partition={partition}", script=STAY) for partition in ("high", "last")]
    for job in jobs:
        site.cluster.wait(job, "RUNNING")
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 1))
        site.cluster.run("scontrol", "update", f"JobId={job}", f"EndTime={end}")
    return jobs


@pytest.mark.parametrize("step", ["", "srun "], ids=["batch", "step"])
def test_out_of_memory(site: Site, step: str) -> None:
    cluster = site.cluster
    job = cluster.sbatch("--output=eater-%j", script=step + EATER)
    incident = closed(site, job)
    record = cluster.show(job)
    assert (reason(incident), incident.stage) == ("host_oom", Stage.STOPPED)
    if GROUPS["ProctrackType"] not in cluster.slurm_conf.read_text():
        assert "exceeded memory limit" in (cluster.work / f"eater-{job}").read_text()
    elif step:
        assert (record["State"], record["ExitCode"], record["DerivedEC"]) == ("FAILED", "1:0", "0:125")
    else:
        assert (record["State"], record["ExitCode"]) == ("OUT_OF_MEMORY", "0:125")


def test_preemption(site: Site) -> None:
    """What Slurm requeues is Slurm's; what it cancels for others comes back by us, and may use the same nodes."""
    cluster = site.cluster
    by_slurm = cluster.sbatch("--nodes=2", "--exclusive", script=STAY)
    by_us = cluster.sbatch("--nodes=1", "--exclusive", "--partition=cancelled", script=STAY)
    for job in (by_slurm, by_us):
        cluster.wait(job, "RUNNING")
    urgent = cluster.sbatch("--nodes=4", "--exclusive", "--partition=high", script="sleep 1")
    cluster.wait(by_us, "PREEMPTED")
    cluster.wait(urgent, "RUNNING")
    site.sweep()
    incident = closed(site, by_us)
    assert (reason(incident), basis(incident), incident.stage) == ("preempted", "restart", Stage.RUNNING)
    cluster.wait(by_us, "COMPLETED")
    assert cluster.show(by_us)["ExcNodes"] == ""
    assert site.incidents(by_slurm) == []
    assert (cluster.show(by_slurm)["State"], restarts(site, by_slurm)) == ("PENDING", [1])
    cluster.run("scancel", str(by_slurm))


def test_an_expedited_requeue_is_left_to_slurm(site: Site) -> None:
    cluster = site.cluster
    if cluster.version < (25, 11):
        with pytest.raises(ClusterError, match="requeue"):
            cluster.sbatch("--requeue=expedite", script="exit 1")
        return
    job = cluster.sbatch("--requeue=expedite", script="exit 1")
    incident = closed(site, job)
    assert (basis(incident), incident.stage) == ("expedited", Stage.LEFT)


def test_time_limit(site: Site, limited: list[int]) -> None:
    cluster = site.cluster
    again, last = limited
    cluster.wait(last, "TIMEOUT")
    cluster.wait(again, "TIMEOUT")
    site.sweep()
    cluster.wait(again, "COMPLETED")
    assert (reason(closed(site, again)), basis(closed(site, again))) == ("time_limit", "restart")
    assert (reason(closed(site, last)), basis(closed(site, last))) == ("time_limit", "budget_job")
    assert restarts(site, again, last) == [1, 0]
