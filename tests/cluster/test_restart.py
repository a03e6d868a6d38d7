"""A failed job comes back: both paths of the gate, exclusions, budgets, and what is left alone."""

from __future__ import annotations

from slurm_recovery.records import Stage, Verdict
from tests.cluster.site import Site

DONE = (Stage.RUNNING, Stage.LEFT, Stage.STOPPED, Stage.ABANDONED)


def test_a_training_job_resumes_without_the_bad_node_and_its_successor_runs(site: Site) -> None:
    cluster = site.cluster
    job = site.train(trainer="--fail-node n2", name="chained")
    successor = cluster.sbatch(f"--dependency=afterok:{job}", "--output=/dev/null", script="true")
    cluster.wait(job, "COMPLETED")
    cluster.wait(successor, "COMPLETED")
    incident = site.wait_stage(job, *DONE)
    assert incident.stage is Stage.RUNNING
    assert incident.attribution is not None
    assert incident.attribution.reason == "gpu_ecc_uncorrectable"
    assert incident.attribution.suspect_nodes == ("n2",)
    assert incident.attribution.root_rank == 1
    record = cluster.show(job)
    assert record["ExcNodes"] == "n2"
    assert record["RestartCnt"] == "1"
    assert "gpu_ecc_uncorrectable on n2" in record["AdminComment"]
    log = (cluster.work / f"chained-{job}.log").read_text()
    assert "resuming from checkpoint step 3" in log
    assert "training complete" in log


def test_without_dependents_the_job_runs_again_within_seconds(site: Site) -> None:
    cluster = site.cluster
    job = site.train(trainer="--fail-node n3", name="alone")
    incident = site.wait_stage(job, *DONE)
    assert incident.stage is Stage.RUNNING
    assert incident.times["running"] - incident.times["ended"] <= 5
    cluster.wait(job, "COMPLETED")
    assert cluster.show(job)["ExcNodes"] == "n3"


def test_an_application_error_stops_and_says_so(site: Site) -> None:
    script = "echo 'Traceback (most recent call last):'; echo 'ModuleNotFoundError: No module named x' ; exit 1"
    job = site.cluster.sbatch("--nodes=2", script=script)
    incident = site.wait_stage(job, *DONE)
    assert incident.stage is Stage.STOPPED
    assert incident.decision is not None
    assert incident.decision.verdict is Verdict.STOP
    assert site.cluster.show(job)["State"] == "FAILED"


def test_unknown_failure_restarts_once_and_then_stops(site: Site) -> None:
    job = site.cluster.sbatch(script="exit 1")
    site.cluster.wait_for(
        lambda: len(site.incidents(job)) == 2 and site.incidents(job)[0].stage is Stage.STOPPED,
        what="a second incident that stops",
    )
    newest, first = site.incidents(job)
    assert first.decision is not None
    assert newest.decision is not None
    assert first.decision.verdict is Verdict.REQUEUE
    assert newest.decision.basis == "budget_reason"
    assert site.cluster.show(job)["RestartCnt"] == "1"


def test_no_requeue_is_left_alone_and_said_to_be(site: Site) -> None:
    job = site.cluster.sbatch("--no-requeue", script="exit 1")
    incident = site.wait_stage(job, *DONE)
    assert incident.decision is not None
    assert (incident.stage, incident.decision.basis) == (Stage.LEFT, "no_requeue")
    assert site.cluster.show(job)["State"] == "FAILED"


def test_a_cancelled_job_is_not_revived(site: Site) -> None:
    job = site.cluster.sbatch(script="trap 'exit 9' TERM; sleep 60 & wait")
    site.cluster.wait(job, "RUNNING")
    site.cluster.run("scancel", str(job))
    site.cluster.wait(job, "CANCELLED")
    site.sweep()
    assert site.cluster.show(job)["State"] == "CANCELLED"
    assert not any(incident.decision and incident.decision.verdict.restarts for incident in site.incidents(job))


def test_the_users_own_exclusion_stays(site: Site) -> None:
    cluster = site.cluster
    job = site.train("--exclude=n4", trainer="--fail-node n1", name="union", nodes=2)
    site.wait_stage(job, *DONE)
    cluster.wait(job, "COMPLETED")
    assert cluster.show(job)["ExcNodes"] == "n[1,4]"


def test_an_exclusion_that_leaves_too_few_nodes_is_left_out(site: Site) -> None:
    job = site.train(trainer="--fail-node n2", name="all", nodes=4)
    incident = site.wait_stage(job, *DONE)
    assert incident.stage is Stage.RUNNING
    assert any("left out: n2 (too few other nodes" in step.detail for step in site.store().steps(incident.id))
    site.cluster.wait(job, "COMPLETED")
