"""On real daemons: when a restarted job got on again, as seen while it runs, after a good end, and after a bad one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from slurm_recovery.productive import AT_LATEST
from slurm_recovery.records import Incident, Stage
from slurm_recovery.store.step import Step
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    with PrivateCluster() as cluster:
        lines = "CheckpointFormat=trainer Pattern=step{step}.json\n"
        site = NodeSite(cluster, {"Backoff": "0", "StopAfterNoProgress": "0"}, lines)
        site.install()
        yield site


def settled(site: NodeSite, job: int) -> tuple[Incident, list[Step]]:
    """The job's first incident, and what its audit says of this."""
    first = site.incidents(job)[-1]
    with site.store() as store:
        steps = [step for step in store.steps(first.id) if step.action in ("productive", "not_productive")]
    return first, steps


def swept_until_settled(site: NodeSite, job: int) -> tuple[Incident, Step]:
    def found() -> tuple[Incident, Step] | None:
        site.sweep()
        incident, steps = settled(site, job)
        return (incident, steps[0]) if steps else None

    return site.cluster.wait_for(found, what=f"a word on what came of the restart of {job}")


def test_while_it_runs_by_its_next_step_line(site: NodeSite) -> None:
    job = site.train(trainer="--fail-node n2 --steps 400 --seconds 0.1", name="runs")
    site.wait_stage(job, Stage.RUNNING)
    incident, step = swept_until_settled(site, job)
    assert site.cluster.show(job)["State"] == "RUNNING"
    assert (step.action, step.result) == ("productive", AT_LATEST)  # its lines tell no time
    assert step.detail.startswith("step 4 in the log")  # it began from the checkpoint of step 3
    assert incident.times["running"] <= incident.times["productive"] <= step.time
    told = site.srecover("show", str(job)).stdout
    assert f"at the latest: {step.detail}" in told
    site.sweep()
    assert settled(site, job) == (incident, [step])
    site.cluster.run("scancel", str(job))


def test_after_a_good_end_by_the_checkpoint_that_its_node_saw(site: NodeSite) -> None:
    folder = site.cluster.work / "checkpoints-good"
    comment = f"--comment=recovery=act,checkpoint={folder}"
    job = site.train(comment, trainer="--fail-node n2 --fail-step 8 --seconds 0.4", name="good")
    site.cluster.wait(job, "COMPLETED")
    incident, step = swept_until_settled(site, job)
    assert (step.action, step.detail) == ("productive", "checkpoint of step 9")
    assert step.result == ""  # that of step 6 is there as well: none was written in between
    written = (folder / "step9.json").stat().st_mtime
    assert incident.times["productive"] == pytest.approx(written, abs=0.1)


def test_after_a_good_end_without_a_word(site: NodeSite) -> None:
    job = site.submit("--nodes=1", "--output=/dev/null", script='test "$SLURM_RESTART_COUNT"')
    site.go(job)
    site.cluster.wait(job, "COMPLETED")
    incident, step = swept_until_settled(site, job)
    assert (step.action, step.detail, step.result) == ("productive", "ended well", AT_LATEST)
    assert incident.times["running"] <= incident.times["productive"] <= step.time


def test_one_that_fails_again_at_once_was_not(site: NodeSite) -> None:
    job = site.submit("--nodes=1", script="exit 1")
    site.go(job)
    site.cluster.wait_for(
        lambda: len(site.incidents(job)) == 2 and not site.incidents(job)[0].stage.open, what="a second incident"
    )
    incident, step = swept_until_settled(site, job)
    assert step.action == "not_productive"
    assert "productive" not in incident.times


def test_by_the_time_that_its_line_tells(site: NodeSite) -> None:
    line = 'echo "$(date -u +%Y-%m-%dT%H:%M:%S) iter $((7 + SLURM_RESTART_COUNT)): loss 3.2"'
    job = site.submit("--nodes=1", script=f'sleep 2; {line}; test "$SLURM_RESTART_COUNT"')
    site.go(job)
    site.cluster.wait(job, "COMPLETED")
    incident, step = swept_until_settled(site, job)
    assert (step.action, step.detail, step.result) == ("productive", "step 8 in the log", "")
    assert incident.times["running"] < incident.times["productive"]
    assert incident.times["productive"].is_integer()
    observation = incident.observation
    assert observation is not None
    assert observation.progress is not None
    assert (observation.progress.log_step, observation.progress.first_log_step) == (7, 7)
    assert observation.progress.log_step_time is not None


def test_the_report_sums_all_of_it_up(site: NodeSite) -> None:
    *reasons, every = json.loads(site.srecover("report", "--json").stdout)
    assert every["incidents"] == sum(row["incidents"] for row in reasons) == 6
    assert (every["restarted"], every["productive"], every["stopped"]) == (5, 4, 1)
    assert every["seconds"]["running"]["max"] < 60
    with site.store() as store:
        served = store.ledger.exposures(0, site.cluster_name)
    (exposure,) = served.values()
    assert exposure.runs == 4  # three that ended well, and the one that was cancelled
    assert 0 < exposure.node_seconds < 3600
    table = site.srecover("report", "--checkpoints").stdout
    assert "of 10 failures that are needed are on record" in table
