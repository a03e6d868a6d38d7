"""Fewer nodes: a restart that cannot have the wanted number asks for fewer, as its owner allows, and says so."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from slurm_recovery.records import Incident, Size, Stage
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import SYSTEM_PYTHON, TRAINER, Site

# Fails in its first attempt, or in its first two, and goes on as long as it may.
SCRIPT = """
srun sh -c 'echo $SLURM_NTASKS' > tasks.$SLURM_JOB_NAME.${SLURM_RESTART_COUNT:-0}
[ -e hold.$SLURM_JOB_NAME ] && while [ ! -e fail.$SLURM_JOB_NAME.${SLURM_RESTART_COUNT:-0} ]; do sleep 0.1; done
[ -e fail.$SLURM_JOB_NAME.${SLURM_RESTART_COUNT:-0} ] && exit 1
exit 0
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with PrivateCluster(nodes=4) as cluster:
        settings = {"Backoff": "0", "ShrinkAfter": "2", "FollowTime": "30"}
        site = NodeSite(cluster, settings, "Reason=unknown MaxRequeues=9\n")
        site.install()
        yield site


@pytest.fixture(autouse=True)
def all_up(site: Site) -> Iterator[None]:
    yield
    site.cluster.run("scancel", "--user=root")
    for name in site.cluster.nodes:
        if "drain" in site.cluster.node(name)["StateLong"]:
            site.cluster.run("scontrol", "update", f"NodeName={name}", "State=UNDRAIN")
    site.cluster.wait_for(
        lambda: all(site.cluster.node(name)["StateLong"] == "idle" for name in site.cluster.nodes), what="idle nodes"
    )


def drain(site: Site, *nodes: str) -> None:
    site.cluster.run("scontrol", "update", f"NodeName={','.join(nodes)}", "State=DRAIN", "Reason=test")


def start(site: Site, name: str, *options: str) -> int:
    (site.cluster.work / f"hold.{name}").touch()
    job = site.cluster.sbatch("--requeue", f"--job-name={name}", "--output=/dev/null", *options, script=SCRIPT)
    site.cluster.wait(job, "RUNNING")
    return job


def fail(site: Site, name: str, attempt: int) -> None:
    (site.cluster.work / f"fail.{name}.{attempt}").touch()


def running(site: Site, job: int, attempt: int) -> dict[str, str]:
    def found() -> dict[str, str] | None:
        shown = site.cluster.show(job)
        return shown if (shown["State"], shown["RestartCnt"]) == ("RUNNING", str(attempt)) else None

    return site.cluster.wait_for(found, what=f"attempt {attempt} of {job}")


def restarted(site: Site, job: int, number: int) -> Incident:
    """The incident of the job's attempt `number`, once the next one runs."""

    def found() -> Incident | None:
        incidents = [one for one in site.incidents(job) if one.attempt.restart_count == number]
        return incidents[0] if incidents and incidents[0].stage is Stage.RUNNING else None

    return site.cluster.wait_for(found, what=f"an incident of attempt {number} of {job}")


def nodes_of(shown: dict[str, str]) -> int:
    return int(shown["NumNodes"])


def tasks_of(site: Site, job: int) -> int:
    return int(site.cluster.run("squeue", "--noheader", f"--jobs={job}", "--Format=NumTasks").stdout)


def srun_started(site: Site, name: str, attempt: int) -> int:
    """As how many tasks the job's own srun has started, which is told nothing but what is in its environment."""
    path = site.cluster.work / f"tasks.{name}.{attempt}"

    def found() -> list[str]:
        lines = path.read_text().split() if path.exists() else []
        return lines if lines and len(lines) >= int(lines[0]) else []

    return len(site.cluster.wait_for(found, what=f"{path.name} to be written"))


ALLOWED = "--comment=recovery=act,min-nodes=2"


@pytest.mark.parametrize(
    ("options", "wanted", "given"),
    [
        (["--ntasks-per-node=2"], Size(nodes=4, tasks=8, cpus=8), Size(nodes=3, tasks=6, cpus=6)),
        (["--ntasks=32"], Size(nodes=4, tasks=32, cpus=32), Size(nodes=3, tasks=24, cpus=24)),
    ],
)
def test_a_restart_asks_for_fewer_and_later_again_for_what_it_wanted(
    site: Site, options: list[str], wanted: Size, given: Size
) -> None:
    cluster = site.cluster
    name = f"again{wanted.tasks}"
    job = start(site, name, "--nodes=4", *options, ALLOWED)
    drain(site, "n4")
    fail(site, name, 0)
    shown = running(site, job, 1)
    assert (shown["NumNodes"], tasks_of(site, job), srun_started(site, name, 1)) == ("3", given.tasks, given.tasks)
    assert "on 3 nodes instead of 4" in shown["AdminComment"]
    incident = restarted(site, job, 0)
    assert incident.fewer is not None
    assert (incident.fewer.wanted, incident.fewer.given) == (wanted, given)
    with site.store() as store:
        told = [step for step in store.steps(incident.id) if step.action == "fewer_nodes"]
    assert [step.kind for step in told] == ["intent", "outcome"]
    assert told[0].detail.startswith(f"4 -> 3 nodes, {wanted.tasks} -> {given.tasks} tasks: ")
    assert incident.times["fewer"] - incident.times["released"] >= 2

    fail(site, name, 1)  # the node is down still: no second wait
    assert nodes_of(running(site, job, 2)) == 3
    assert srun_started(site, name, 2) == given.tasks
    incident = restarted(site, job, 1)
    assert incident.fewer is not None
    assert incident.times["running"] - incident.times["ended"] < 6

    cluster.run("scontrol", "update", "NodeName=n4", "State=UNDRAIN")
    fail(site, name, 2)
    shown = running(site, job, 3)
    assert (shown["NumNodes"], tasks_of(site, job), srun_started(site, name, 3)) == ("4", wanted.tasks, wanted.tasks)
    assert restarted(site, job, 2).fewer is None
    cluster.run("scancel", str(job))


def test_steps_are_kept_to_and_so_is_the_least(site: Site) -> None:
    job = start(site, "steps", "--nodes=4", "--ntasks-per-node=1", "--comment=recovery=act,min-nodes=2:2")
    drain(site, "n4")
    fail(site, "steps", 0)
    assert nodes_of(running(site, job, 1)) == 2
    site.cluster.run("scancel", str(job))


def test_nothing_is_asked_for_that_its_owner_does_not_allow(site: Site) -> None:
    cluster = site.cluster
    allowed = start(site, "least", "--nodes=4", "--ntasks-per-node=1", "--comment=recovery=act,min-nodes=4")
    drain(site, "n3", "n4")
    fail(site, "least", 0)
    cluster.wait_for(lambda: cluster.show(allowed)["RestartCnt"] == "1", what="a restart")
    time.sleep(5)
    site.sweep(timeout=5)
    shown = cluster.show(allowed)
    assert (shown["State"], nodes_of(shown)) == ("PENDING", 4)
    assert all(one.action != "fewer_nodes" for one in site.incidents(allowed)[0].outcomes)
    cluster.run("scancel", str(allowed))


def test_a_request_from_to_is_slurms_own(site: Site) -> None:
    """Slurm starts it with what there is; and an exclusion that leaves enough nodes stands."""
    cluster = site.cluster
    script = f"srun --label {SYSTEM_PYTHON} {TRAINER} {cluster.work}/range --fail-node n2 --steps 40"
    job = cluster.sbatch("--nodes=2-4", "--exclusive", "--job-name=range", "--output=range-%j.log", script=script)
    assert nodes_of(cluster.wait(job, "RUNNING")) == 4
    shown = running(site, job, 1)
    incident = restarted(site, job, 0)
    assert (nodes_of(shown), shown["ExcNodes"], incident.fewer) == (3, "n2", None)
    assert all(one.action != "fewer_nodes" for one in incident.outcomes)
    cluster.run("scancel", str(job))


def test_where_exclusions_make_the_number_impossible_fewer_nodes_go_before_giving_way(site: Site) -> None:
    cluster = site.cluster
    job = site.train(ALLOWED, trainer="--fail-node n2", name="proven", nodes=4)
    shown = running(site, job, 1)
    assert (nodes_of(shown), shown["ExcNodes"]) == (3, "n2")
    incident = restarted(site, job, 0)
    assert (incident.excluded, incident.fewer and incident.fewer.given.nodes) == (("n2",), 3)
    assert incident.times["fewer"] - incident.times["ended"] < 5
    cluster.wait(job, "COMPLETED")


def test_idle_nodes_are_taken_where_others_are_busy_and_a_turn_is_waited_for(site: Site) -> None:
    cluster = site.cluster
    job = start(site, "busy", "--nodes=4", "--ntasks-per-node=1", "--exclusive", ALLOWED)
    other = cluster.sbatch("--nodes=1", "--exclusive", "--nice=-100", "--output=/dev/null", script="sleep 60")
    fail(site, "busy", 0)
    cluster.wait(other, "RUNNING")
    assert nodes_of(running(site, job, 1)) == 3
    cluster.run("scancel", str(job), str(other))
