"""Chains that users build themselves: the successor is the restart, and is kept off the bad node before it starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_recovery.records import Incident, Stage, Verdict
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site
from tests.cluster.test_crashes import crashing_site

CLOSED = (Stage.RUNNING, Stage.LEFT, Stage.STOPPED, Stage.ABANDONED)
HOSTILE = "x ExcNodeList=n4 Dependency=singleton\n|<0123456789abcdef>"
# Where the successor runs is what counts: it writes its nodes down.
SUCCESSOR = "srun hostname >/dev/null; echo $SLURM_JOB_NODELIST"


@pytest.fixture(scope="module")
def observing() -> Iterator[Site]:
    with PrivateCluster(nodes=3) as cluster:
        site = Site(cluster, {"Backoff": "0", "Mode": "observe"})
        site.install()
        yield site


def failing(site: Site, name: str, *options: str) -> int:
    """A training job whose node n2 fails after some two seconds: who waited, Slurm tells by whole ones."""
    return site.train(*options, trainer="--fail-node n2 --fail-step 8", name=name, nodes=2)


def queue(site: Site, dependency: str, name: str, *options: str, user: str | None = None) -> int:
    given = (f"--dependency={dependency}", f"--job-name={name}", "--output=/dev/null", *options)
    return site.cluster.sbatch("--nodes=2", *given, script=SUCCESSOR, user=user)


def closed(site: Site, job: int) -> Incident:
    incident = site.wait_stage(job, *CLOSED)
    assert incident.decision is not None
    return incident


@pytest.mark.parametrize("dependency", ["singleton", "afterany", "afternotok"])
@pytest.mark.parametrize("requeue", ["--requeue", "--no-requeue"])
def test_the_successor_goes_on_without_the_bad_node(site: Site, dependency: str, requeue: str) -> None:
    cluster = site.cluster
    name = f"{dependency}{requeue}"
    job = failing(site, name, requeue, "--exclude=n4")
    successor = queue(site, dependency if dependency == "singleton" else f"{dependency}:{job}", name, "--exclude=n4")
    if dependency == "singleton":  # it waits no longer once the job has ended, COMPLETING or not: that may be too soon
        cluster.wait(job, "RUNNING")
        cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
        closed(site, job)
        cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    cluster.wait(successor, "COMPLETED")
    shown = cluster.show(successor)
    assert (shown["ExcNodes"], shown["NodeList"]) == ("n[2,4]", "n[1,3]")
    assert f"job {job} failed of gpu_ecc_uncorrectable: this one goes on without n2" in shown["AdminComment"]
    incident = closed(site, job)
    assert incident.decision is not None
    assert (incident.decision.verdict, incident.decision.basis) == (Verdict.NONE, "successor")
    assert (incident.stage, incident.successors, incident.decision.exclude) == (Stage.LEFT, (successor,), ("n2",))
    assert f"job {successor}" in incident.decision.because
    assert incident.note == f"job {successor} is kept off n2"
    assert [(one.action, one.result.value) for one in incident.outcomes] == [(f"exclude on {successor}", "done")]
    with site.store() as store:
        steps = [step for step in store.steps(incident.id) if step.action == f"exclude on {successor}"]
    assert [step.kind for step in steps] == ["intent", "outcome"]
    assert (cluster.show(job)["State"], cluster.show(job)["RestartCnt"]) == ("FAILED", "0")


def test_a_successor_that_starts_at_once_is_one_all_the_same(site: Site) -> None:
    """A `singleton` may start while the job's hook still runs: no exclusion is in time then, but nothing runs twice."""
    cluster = site.cluster
    job = failing(site, "instant")
    successor = queue(site, "singleton", "instant")
    cluster.wait(successor, "COMPLETED")
    incident = closed(site, job)
    assert incident.decision is not None
    assert (incident.decision.basis, incident.stage) == ("successor", Stage.LEFT)
    assert incident.note in (f"job {successor} is kept off n2", f"job {successor} had started already")
    assert (cluster.show(job)["State"], cluster.show(job)["RestartCnt"]) == ("FAILED", "0")


def test_jobs_of_one_name_that_wait_for_nodes_only_are_no_successors(site: Site) -> None:
    cluster = site.cluster
    job = site.train(trainer="--fail-node n2 --fail-step 3", name="many", nodes=3)
    others = [cluster.sbatch("--nodes=3", "--job-name=many", "--output=/dev/null", script="sleep 1") for _ in range(2)]
    cluster.wait(job, "COMPLETED")
    assert (cluster.show(job)["ExcNodes"], cluster.show(job)["RestartCnt"]) == ("n2", "1")
    for other in others:
        cluster.wait(other, "COMPLETED")


def test_what_is_no_successor_is_left_alone_and_the_job_restarts(site: Site) -> None:
    cluster = site.cluster
    job = failing(site, "alone")
    others = [queue(site, f"afterany:{job}", "cleanup"), queue(site, f"afterany:{job}", "alone", user="nobody")]
    others.append(queue(site, "singleton", "other"))
    waits = queue(site, f"afterok:{job}", "alone")
    cluster.wait(job, "COMPLETED")
    cluster.wait(waits, "COMPLETED")
    assert (cluster.show(job)["ExcNodes"], cluster.show(job)["RestartCnt"]) == ("n2", "1")
    for other in (*others, waits):
        cluster.wait(other, "COMPLETED")
        assert (cluster.show(other)["ExcNodes"], cluster.show(other)["AdminComment"]) == ("", "")


def test_where_a_successor_and_an_afterok_job_wait_the_successor_wins(site: Site) -> None:
    cluster = site.cluster
    job = failing(site, "both")
    evaluation = queue(site, f"afterok:{job}", "evaluation")
    successor = queue(site, "singleton", "both")
    cluster.wait(successor, "COMPLETED")
    assert closed(site, job).successors == (successor,)
    assert cluster.show(job)["State"] == "FAILED"
    cluster.wait_for(
        lambda: cluster.show(evaluation)["Reason"] == "DependencyNeverSatisfied", what="the afterok job to be told"
    )
    cluster.run("scancel", str(evaluation))


def test_a_name_that_forges_fields_is_compared_and_no_more(site: Site) -> None:
    cluster = site.cluster
    job = site.cluster.sbatch(
        "--nodes=2", f"--job-name={HOSTILE}", "--output=/dev/null",
        script="sleep 2; echo 'n2: [rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1",
    )  # fmt: skip
    bystander = queue(site, "singleton", HOSTILE.replace("n4", "n3"))
    successor = queue(site, "singleton", HOSTILE)
    cluster.wait(successor, "COMPLETED")
    cluster.wait(bystander, "COMPLETED")
    incident = closed(site, job)
    assert incident.successors == (successor,)
    assert cluster.show(bystander)["AdminComment"] == ""


def test_a_job_that_shall_stop_leaves_its_successor_to_its_user(site: Site) -> None:
    cluster = site.cluster
    script = "sleep 2; echo 'Traceback (most recent call last):'; echo 'ModuleNotFoundError: No module named x'; exit 1"
    job = cluster.sbatch("--nodes=2", "--job-name=wrong", script=script)
    successor = queue(site, "singleton", "wrong")
    cluster.wait(successor, "COMPLETED")
    incident = closed(site, job)
    assert incident.decision is not None
    assert (incident.decision.verdict, incident.stage) == (Verdict.STOP, Stage.STOPPED)
    assert (incident.successors, cluster.show(successor)["ExcNodes"]) == ((successor,), "")


def test_a_successor_that_was_cancelled_is_none(site: Site) -> None:
    cluster = site.cluster
    job = failing(site, "gone")
    successor = queue(site, f"afterany:{job}", "gone")
    cluster.run("scancel", str(successor))
    cluster.wait(job, "COMPLETED")
    assert cluster.show(job)["RestartCnt"] == "1"


def test_all_tasks_of_an_array_that_goes_on_are_kept_off(site: Site) -> None:
    cluster = site.cluster
    job = failing(site, "rounds")
    successor = queue(site, f"afterany:{job}", "rounds", "--array=0-1")
    for task in (0, 1):
        cluster.wait(f"{successor}_{task}", "COMPLETED")
        assert cluster.show(f"{successor}_{task}")["ExcNodes"] == "n2"


def test_observe_records_it_and_touches_nothing(observing: Site) -> None:
    cluster = observing.cluster
    job = failing(observing, "seen")
    successor = queue(observing, f"afternotok:{job}", "seen")
    cluster.wait(successor, "COMPLETED")
    observing.sweep()
    incident = closed(observing, job)
    assert incident.decision is not None
    assert (incident.decision.basis, incident.decision.exclude) == ("successor", ("n2",))
    assert (incident.outcomes, cluster.show(successor)["ExcNodes"]) == ((), "")


@pytest.fixture(scope="module")
def crashing() -> Iterator[Site]:
    with PrivateCluster(nodes=3) as cluster:
        yield crashing_site(cluster)


def test_one_that_is_let_go_while_slurm_is_asked_is_one_all_the_same(crashing: Site) -> None:
    """After the failure was detected, and before the queue was seen: no answer shows that it waited."""
    cluster = crashing.cluster
    (crashing.state / "crash").write_text("late slurm.queue 1")
    job = failing(crashing, "late")
    successor = queue(crashing, "singleton", "late")
    cluster.wait(successor, "COMPLETED")
    (crashing.state / "crash").unlink()
    incident = closed(crashing, job)
    assert (incident.decision and incident.decision.basis, incident.successors) == ("successor", (successor,))
    assert (cluster.show(job)["State"], cluster.show(job)["RestartCnt"]) == ("FAILED", "0")


CRASHES = ("before store.save 1", "before slurm.update 1", "after slurm.update 1", "after store.save 3")


@pytest.mark.parametrize("crash", CRASHES)
def test_a_worker_that_is_killed_starts_nothing_twice(crashing: Site, crash: str) -> None:
    cluster = crashing.cluster
    name = crash.replace(" ", "-")
    (crashing.state / "crash").write_text(crash)
    job = failing(crashing, name)
    successor = queue(crashing, f"afterany:{job}", name)
    cluster.wait_for(lambda: cluster.show(job)["State"] not in ("PENDING", "RUNNING"), what="the failure")
    cluster.wait_for(lambda: crashing.worker_is_gone(job), what="the worker's death")
    (crashing.state / "crash").unlink()
    cluster.wait(successor, "COMPLETED")
    cluster.wait_for(crashing.swept, what="an empty spool")
    incident = closed(crashing, job)
    assert (incident.decision and incident.decision.basis, incident.successors) == ("successor", (successor,))
    assert (cluster.show(job)["State"], cluster.show(job)["RestartCnt"]) == ("FAILED", "0")
    kept_off = cluster.show(successor)["ExcNodes"] == "n2"
    assert incident.note == f"job {successor} " + ("is kept off n2" if kept_off else "had started already")
    assert kept_off or crash != "after slurm.update 1"  # before that, nobody may have been in time
