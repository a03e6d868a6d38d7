"""Kinds of failure whose cause is a node: one that dies, one whose prolog fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_recovery.hostlist import expand
from slurm_recovery.records import Incident, Stage
from tests.cluster.kinds import FIRST, basis, closed, deeds, give_nodes, reason, restarts, steps
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site

PROLOG = "#!/bin/sh\n[ ! -e {work}/prolog-fails-$SLURMD_NODENAME ]\n"
STAY = f"{FIRST} && sleep 90; true"  # the first attempt runs until it is ended, the next ends at once
SLURMS_DELAY = 121.0  # seconds for which Slurm itself keeps a requeued job waiting


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Jobs begin on n2, then on n3: the cheapest nodes."""
    weights = {f"n{number}": f"Weight={number if number in (2, 3) else 10}" for number in range(1, 7)}
    conf = {"SlurmdTimeout": "6", "DefMemPerNode": "50", "ReturnToService": "1"}
    conf |= {"Prolog": "{folder}/prolog", "PrologFlags": "Alloc"}
    with PrivateCluster(nodes=6, conf=conf, node_conf=weights) as cluster:
        give_nodes(cluster, "Prolog", PROLOG)
        site = Site(cluster, {"Backoff": "0"})
        site.install()
        yield site


def ran_without(node: str, site: Site, job: int) -> Incident:
    incident = closed(site, job)
    site.cluster.wait(job, "COMPLETED")
    record = site.cluster.show(job)
    assert (incident.stage, basis(incident)) == (Stage.RUNNING, "exclude")
    assert (record["ExcNodes"], record["RestartCnt"]) == (node, "1")
    assert incident.times["running"] - incident.times["ended"] < 60 < SLURMS_DELAY
    return incident


def test_a_node_that_dies(site: Site) -> None:
    """Its jobs run elsewhere with nobody's help, by the trigger, but for the one with --no-requeue."""
    cluster = site.cluster
    job = cluster.sbatch("--nodes=2", script=STAY)
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    never = cluster.sbatch("--no-requeue", "--nodelist=n3", script="sleep 90")
    for each in (job, never):
        assert "n3" in expand(cluster.wait(each, "RUNNING")["NodeList"])
    cluster.kill_slurmd("n3")
    cluster.wait(successor, "COMPLETED")
    assert reason(ran_without("n3", site, job)) == "node_fail"
    left = closed(site, never)
    assert (left.stage, basis(left), cluster.show(never)["State"]) == (Stage.LEFT, "no_requeue", "NODE_FAIL")
    cluster.start_slurmd("n3")


def test_no_requeue_inside_the_end_of_a_job_whose_node_fails(site: Site) -> None:
    """It could corrupt slurmctld's state. So the chain is in danger, but the job is not."""
    cluster = site.cluster
    job = cluster.sbatch("--nodes=2", script=f"{FIRST} || exit 0\nuntil [ -e go ]; do sleep 0.05; done; exit 1")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    cluster.wait(job, "RUNNING")
    cluster.run("scontrol", "update", "NodeName=n3", "State=FAIL", "Reason=test")
    (cluster.work / "go").touch()
    incident = ran_without("n3", site, job)
    assert reason(incident) == "node_fail"
    assert "gate" not in steps(site, incident)
    cluster.run("scancel", str(successor))
    cluster.run("scontrol", "update", "NodeName=n3", "State=RESUME")


def test_a_sweep_finds_the_jobs_of_a_node_that_went_down(site: Site) -> None:
    cluster = site.cluster
    for trigger in cluster.run("strigger", "--get", "--noheader").stdout.splitlines():
        cluster.run("strigger", "--clear", f"--id={trigger.split()[0]}")
    job = cluster.sbatch("--nodes=2", "--exclude=n3", script=STAY)  # n3 was down a moment ago
    cluster.wait(job, "RUNNING")
    cluster.kill_slurmd("n2")
    cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")  # not to wait for SlurmdTimeout
    site.sweep()
    assert reason(ran_without("n[2-3]", site, job)) == "node_fail"
    cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    cluster.start_slurmd("n2")


def test_a_node_whose_prolog_fails_is_left_out(site: Site) -> None:
    cluster = site.cluster
    flag = cluster.work / "prolog-fails-n2"
    flag.touch()
    job = cluster.sbatch("--nodes=2", script="true")
    never = cluster.sbatch("--no-requeue", script="true")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    cluster.wait_for(lambda: "drain" in cluster.node("n2")["StateComplete"], what="n2 to be drained")
    drained = cluster.node("n2")
    cluster.wait(job, "PENDING")
    site.sweep()
    assert reason(ran_without("n2", site, job)) == "launch_failed"
    cluster.wait(successor, "COMPLETED")
    assert cluster.node("n2") == drained
    assert cluster.show(never)["State"] == "CANCELLED"  # by Slurm, and so it stays
    flag.unlink()
    cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")


def test_a_prolog_that_fails_everywhere_ends_by_the_budget(site: Site) -> None:
    cluster = site.cluster
    flags = [cluster.work / f"prolog-fails-{node}" for node in cluster.nodes]
    for flag in flags:
        flag.touch()
    job = cluster.sbatch("--nodes=1", script="true")

    def stopped() -> bool:
        site.sweep()
        return bool(site.incidents(job)) and site.incidents(job)[0].stage is Stage.STOPPED

    cluster.wait_for(stopped, what="the budget to end it")
    newest, *earlier = site.incidents(job)
    assert basis(newest).startswith("budget")
    assert len(earlier) == 3
    site.sweep()
    assert (cluster.show(job)["State"], restarts(site, job)) == ("PENDING", [4])
    assert "release" not in deeds(newest)
    cluster.run("scancel", str(job))
