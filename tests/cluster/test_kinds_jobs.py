"""Kinds of jobs: arrays, het jobs, jobs that are not ours to restart, and people who act meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_recovery.records import Stage
from tests.cluster.kinds import EPILOG, FAIL_ONCE, FIRST, SLOW, basis, closed, deeds, give_nodes, reason, restarts
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import SYSTEM_PYTHON, TRAINER, Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with PrivateCluster(nodes=5, conf={"Epilog": "{folder}/epilog"}) as cluster:
        give_nodes(cluster, "Epilog", EPILOG)
        site = Site(cluster, {"Backoff": "0"})
        site.install()
        yield site


def test_of_an_array_only_the_tasks_that_failed_are_requeued(site: Site) -> None:
    cluster = site.cluster
    # The last task keeps the array's own job id: `scontrol requeue` of that id would take the whole array.
    script = f'case $SLURM_ARRAY_TASK_ID in 2|3) {FAIL_ONCE} ;; esac; sleep 1'
    array = cluster.sbatch("--array=0-3", "--hold", script=script)
    on_task = cluster.sbatch(f"--dependency=afterok:{array}_2", script="true")
    each = cluster.sbatch("--array=0-3", f"--dependency=aftercorr:{array}", script="true")
    on_all = cluster.sbatch(f"--dependency=afterok:{array}", script="true")
    cluster.run("scontrol", "release", str(array))
    for job in (on_task, *(f"{array}_{task}" for task in range(4)), *(f"{each}_{task}" for task in range(4))):
        cluster.wait(job, "COMPLETED")
    assert restarts(site, *(f"{array}_{task}" for task in range(4))) == [0, 0, 1, 1]
    assert [len(site.incidents(f"{array}_{task}")) for task in range(4)] == [0, 0, 1, 1]
    # Slurm keeps the first exit code for the array as a whole: what waits for all of it is lost even so.
    assert cluster.show(on_all)["Reason"] == "DependencyNeverSatisfied"
    cluster.run("scancel", str(on_all))


def test_an_array_with_tasks_that_wait_for_their_turn(site: Site) -> None:
    cluster = site.cluster
    array = cluster.sbatch("--array=0-2%1", script=f"[ $SLURM_ARRAY_TASK_ID != 0 ] || {FAIL_ONCE}")
    for task in range(3):
        cluster.wait(f"{array}_{task}", "COMPLETED")
    assert restarts(site, *(f"{array}_{task}" for task in range(3))) == [1, 0, 0]
    assert closed(site, f"{array}_0").stage is Stage.RUNNING


def test_a_het_job_is_restarted_as_one(site: Site) -> None:
    cluster = site.cluster
    job = cluster.sbatch("--nodes=1", ":", "--nodes=2", script=f"{FAIL_ONCE}; srun --het-group=0,1 true")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    cluster.wait(successor, "COMPLETED")
    assert [record["State"] for record in cluster.records(job)] == ["COMPLETED", "COMPLETED"]
    assert [record["RestartCnt"] for record in cluster.records(job)] == ["1", "1"]
    (incident,) = site.incidents(job)
    assert closed(site, job).stage is Stage.RUNNING
    assert deeds(incident).count("requeue") == 1


def test_a_het_job_leaves_out_the_bad_node_of_its_second_component(site: Site) -> None:
    cluster = site.cluster
    says = "$0:812:864 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : local catastrophic error"
    task = f"sh -c '[ $SLURMD_NODENAME != $0 ] || {{ echo \"{says}\"; exit 1; }}' $SLURM_JOB_NODELIST_HET_GROUP_1"
    script = f"{FIRST} || exit 0\nsrun --het-group=0,1 --label {task}"
    job = cluster.sbatch("-N2", "-n2", "--exclude=n5", ":", "-N1", "-n1", "--exclude=n1", script=script)
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    cluster.wait(successor, "COMPLETED")
    (incident,) = site.incidents(job)
    assert set(incident.attempt.nodes) == {"n1", "n2", "n3"}
    assert (reason(incident), basis(incident)) == ("nic_failure", "exclude")
    records = cluster.records(job)
    assert [record["RestartCnt"] for record in records] == ["1", "1"]
    assert [record["ExcNodes"] for record in records] == ["n[3,5]", "n[1,3]"]  # each keeps its own


def test_interactive_jobs_and_no_requeue_are_left_alone_and_said_to_be(site: Site) -> None:
    cluster = site.cluster
    never = cluster.sbatch("--no-requeue", script="exit 1")
    cluster.run("srun", "--job-name=by-srun", "false", check=False)
    cluster.run("salloc", "--job-name=by-salloc", "srun", "sh", "-c", "exit 3", check=False)
    jobs = {record["Name"]: int(record["JobID"]) for record in cluster.records()}
    by_srun = closed(site, jobs["by-srun"])
    assert (by_srun.stage, basis(by_srun)) == (Stage.LEFT, "interactive")
    by_salloc = closed(site, jobs["by-salloc"])
    assert (by_salloc.stage, basis(by_salloc)) == (Stage.LEFT, "interactive")
    assert (closed(site, never).stage, basis(closed(site, never))) == (Stage.LEFT, "no_requeue")
    assert restarts(site, never, jobs["by-srun"], jobs["by-salloc"]) == [0, 0, 0]


def test_a_requeue_by_the_user_is_his_own(site: Site) -> None:
    cluster = site.cluster
    running = cluster.sbatch(script=f"{FIRST} && sleep 60; true")
    failed = cluster.sbatch("--nodes=1", script=f"{SLOW}; {FAIL_ONCE}")
    cluster.wait(running, "RUNNING")
    cluster.run("scontrol", "requeue", str(running))
    cluster.wait(failed, "COMPLETING")
    site.wait_stage(failed, Stage.DETECTED)
    cluster.run("scontrol", "requeue", str(failed))
    (cluster.work / f"go-{failed}").touch()
    incident = closed(site, failed)
    assert (incident.stage, basis(incident), deeds(incident)) == (Stage.LEFT, "already_requeued", [])
    cluster.wait(running, "PENDING")
    site.sweep()
    assert site.incidents(running) == []
    assert restarts(site, running, failed) == [1, 1]
    assert cluster.show(running)["State"] == "PENDING"
    cluster.run("scancel", str(running), str(failed))


@pytest.mark.parametrize("trainer", ["", "--fail-node n2"], ids=["no suspect", "a suspect"])
def test_a_hold_by_an_administrator_stays(site: Site, trainer: str) -> None:
    cluster = site.cluster
    script = f"srun --label {SYSTEM_PYTHON} {TRAINER} {cluster.work}/held --seconds=0.05 {trainer}" if trainer else ""
    options = ("--nodes=2", "--ntasks-per-node=1", "--nodelist=n[1-2]")
    job = cluster.sbatch(*options, script=f"{SLOW}\n{script}\nexit 1")
    cluster.wait(job, "COMPLETING")
    site.wait_stage(job, Stage.DETECTED)
    cluster.run("scontrol", "requeuehold", str(job))
    (cluster.work / f"go-{job}").touch()
    incident = closed(site, job)
    assert incident.stage is Stage.LEFT
    site.sweep()
    record = cluster.show(job)
    assert (record["State"], record["PriorityLong"], record["RestartCnt"]) == ("PENDING", "0", "1")
    assert "release" not in deeds(incident)
    cluster.run("scancel", str(job))


def test_a_user_releases_the_job_that_we_hold(site: Site) -> None:
    cluster = site.cluster
    job = cluster.sbatch(script=f"{SLOW}; {FAIL_ONCE}")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    site.wait_stage(job, Stage.HELD)
    # The stage is on record before the deed: until then Slurm says that the job has finished.
    released = ("scontrol", "release", str(job))
    cluster.wait_for(lambda: cluster.run(*released, check=False).returncode == 0, what="a hold to release")
    (cluster.work / f"go-{job}").touch()
    cluster.wait(successor, "COMPLETED")
    assert closed(site, job).stage is Stage.RUNNING
    assert restarts(site, job) == [1]
