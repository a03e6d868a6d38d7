"""What becomes of a job in the end: stopped inside its end or later, kept, given way to, or slowed down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_recovery.records import Incident, Stage
from tests.cluster.kinds import EPILOG, SLOW, basis, closed, deeds, give_nodes, reason, restarts
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import SYSTEM_PYTHON, TRAINER, Site

# The node's Epilog, which the job waits for, adds to the job's log.
LATE = EPILOG.replace("&& exit 0\n", "&& exec sh -c 'cat $0/late-$1 >>$0/job-$1' $work $SLURM_JOB_ID\n")
NO_MODULE = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n"
LINES = """\
PartitionName=kept StopAction=hold
PartitionName=slow Backoff=2
Reason=unknown MaxRequeues=3
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    partitions = [f"PartitionName={name} Nodes=ALL" for name in ("main", "kept", "slow")]
    features = {"n2": "Feature=red", "n3": "Feature=blue", "n4": "Feature=green"}
    conf = {"DefMemPerNode": "50", "Epilog": "{folder}/epilog"}
    with PrivateCluster(conf=conf, partitions=partitions, node_conf=features) as cluster:
        give_nodes(cluster, "Epilog", LATE)
        site = Site(cluster, {"Backoff": "0"}, LINES)
        site.install()
        yield site


@pytest.fixture(scope="module", autouse=True)
def failing(site: Site) -> int:
    """A job that fails at once each time: it needs a while, so it begins first."""
    return site.cluster.sbatch("--partition=slow", "--job-name=slow", script="exit 1")


def test_a_stop_inside_the_end_leaves_the_job_as_it_ended(site: Site) -> None:
    cluster = site.cluster
    job = cluster.sbatch("--hold", script=f"printf '%s' \"{NO_MODULE}\"; exit 1")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    kept = cluster.sbatch("--partition=kept", script=f"printf '%s' \"{NO_MODULE}\"; exit 1")
    cluster.run("scontrol", "release", str(job))
    incident = closed(site, job)
    assert (incident.stage, deeds(incident)) == (Stage.STOPPED, [])
    assert (cluster.show(job)["State"], restarts(site, job)) == ("FAILED", [0])
    cluster.wait_for(lambda: cluster.show(successor)["Reason"] == "DependencyNeverSatisfied", what="a broken chain")
    cluster.run("scancel", str(successor))
    assert (closed(site, kept).stage, cluster.show(kept)["State"]) == (Stage.STOPPED, "SPECIAL_EXIT")
    cluster.run("scancel", str(kept))


def held_and_stopped(site: Site, *options: str) -> tuple[int, Incident]:
    """A job held inside its end, of which the rest of the evidence then says that it must stop."""
    cluster = site.cluster
    job = cluster.sbatch(*options, "--output=job-%j", script=f"{SLOW}; exit 1")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", script="true")
    site.wait_stage(job, Stage.HELD)
    (cluster.work / f"late-{job}").write_text(NO_MODULE)
    (cluster.work / f"go-{job}").touch()
    incident = closed(site, job)
    assert incident.stage is Stage.STOPPED
    cluster.run("scancel", str(successor))
    return job, incident


def test_a_held_job_that_must_stop_is_cancelled_with_the_reason(site: Site) -> None:
    job, incident = held_and_stopped(site)
    record = site.cluster.show(job)
    assert record["State"] == "CANCELLED"
    assert "import_error" in record["AdminComment"]
    assert deeds(incident) == ["requeue", "comment", "cancel"]


def test_a_held_job_that_must_stop_stays_held_where_the_site_wants_it(site: Site) -> None:
    job, incident = held_and_stopped(site, "--partition=kept")
    record = site.cluster.show(job)
    assert (record["State"], record["PriorityLong"]) == ("PENDING", "0")
    assert "import_error" in record["AdminComment"]
    assert deeds(incident) == ["requeue", "comment"]
    site.cluster.run("scancel", str(job))


def train(site: Site, name: str, *options: str, bad: str = "n2") -> int:
    trainer = f"{SYSTEM_PYTHON} {TRAINER} {site.cluster.work}/{name} --seconds=0.05 --fail-node {bad}"
    return site.cluster.sbatch("--ntasks-per-node=1", *options, script=f"srun --label {trainer}")


def test_an_exclusion_that_slurm_finds_impossible_gives_way(site: Site) -> None:
    """Of a constraint with alternatives only Slurm itself is the judge."""
    job = train(site, "constraint", "--nodes=2", "--constraint=red|blue")
    incident = closed(site, job)
    assert incident.stage is Stage.RUNNING
    assert "give_way" in deeds(incident)
    gave = next(outcome for outcome in incident.outcomes if outcome.action == "give_way")
    assert "n2 no longer excluded: Slurm shows Reason=BadConstraints" in gave.detail
    record = site.cluster.wait(job, "COMPLETED")
    assert (record["ExcNodes"], record["NodeList"], record["RestartCnt"]) == ("", "n[2-3]", "1")


def test_a_node_that_the_job_asks_for_is_not_excluded(site: Site) -> None:
    job = train(site, "nodelist", "--nodes=2", "--nodelist=n2")
    incident = closed(site, job)
    assert incident.stage is Stage.RUNNING
    started = next(outcome for outcome in incident.outcomes if outcome.action == "start")
    assert "left out: n2 (the job asks for it by --nodelist)" in started.detail
    assert site.cluster.wait(job, "COMPLETED")["ExcNodes"] == ""


def test_delays_grow_with_each_failure_in_a_row(site: Site, failing: int) -> None:
    def ended() -> bool:
        found = site.incidents(failing)
        if found and found[0].stage is Stage.RELEASED:
            site.sweep()
        return bool(found) and found[0].stage is Stage.STOPPED

    site.cluster.wait_for(ended, what="the last failure")
    *_, first = attempts = site.incidents(failing)
    delays = [one.decision.delay for one in reversed(attempts) if one.decision]
    assert delays == [2, 4, 8, 0]
    assert basis(attempts[0]) == "budget_job"
    assert reason(first) == "unknown"
    waits = [one.times["running"] - one.times["ended"] for one in reversed(attempts[1:])]
    assert all(wait >= delay - 1 for wait, delay in zip(waits, delays, strict=False))
    assert restarts(site, failing) == [3]
