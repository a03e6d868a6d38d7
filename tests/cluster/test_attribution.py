"""Why and where, on real jobs: a long log, what a job leaves beside it, and a site's own attributor."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_recovery.records import Incident, Source
from tests.cluster.kinds import FIRST, closed, deeds, reason, restarts
from tests.cluster.site import SYSTEM_PYTHON, Site

DUMPS = Path(__file__).parents[1] / "unit/data/flight/sleeping"
ECC = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
TIMEOUT = (
    "[rank0]:[E604 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=8000) ran for 8001 milliseconds"
)
ANSWER = '{"reason": "hang", "suspect_nodes": ["n1"], "because": "It has hung there before.", "weight": 1}'


def suspects(incident: Incident) -> tuple[str, ...]:
    assert incident.attribution is not None
    return incident.attribution.suspect_nodes


def gaps(incident: Incident, source: Source) -> list[str]:
    assert incident.observation is not None
    return [gap.why for gap in incident.observation.gaps if gap.source is source]


def test_a_cause_far_from_the_end_of_a_long_log_is_found_and_kept_off(site: Site) -> None:
    """150 MB behind it: the end alone would show lost connections, and not from which node."""
    made = f"{SYSTEM_PYTHON} -c 'import os; os.write(1, b\"step of the training, and then another one\\n\" * 3500000)'"
    rank = f'if [ $SLURM_PROCID = 1 ]; then echo "{ECC}"; exit 1; fi'
    script = f"if {FIRST}; then srun --label sh -c '{rank}'; {made}; exit 1; fi"
    job = site.cluster.sbatch("-N2", "-n2", "-w", "n[1-2]", script=script)
    incident = closed(site, job)
    assert (reason(incident), suspects(incident)) == ("gpu_ecc_uncorrectable", ("n2",))
    assert gaps(incident, Source.JOB_LOG) == []


def test_dumps_of_the_flight_recorder_name_the_rank_that_did_not_come(site: Site) -> None:
    folder = site.cluster.work / "dumps"
    folder.mkdir()
    script = f"if {FIRST}; then cat > /dev/null; cp {DUMPS}/* {folder}/; echo '{TIMEOUT}'; exit 1; fi"
    options = ("-N2", "-n4", "--ntasks-per-node=2", "-w", "n[3-4]", f"--output={folder}/%j.out")
    incident = closed(site, site.cluster.sbatch(*options, script=script))
    assert incident.attribution is not None
    assert (reason(incident), incident.attribution.root_rank) == ("nccl_timeout", 2)
    assert any(one.source is Source.FLIGHT_RECORDER for one in incident.attribution.evidence)


@pytest.fixture
def attributor(site: Site) -> Path:
    """The path of the site's attributor, for a test to write; without weight it would only be heard last."""
    path = site.cluster.folder / "attributor"
    settings = {"Attributor": str(path), "AttributorTimeout": "2", "AttributorWeight": "0.9", "Backoff": "0"}
    site.configure(settings)
    return path


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_a_sites_attributor_is_heard_where_nothing_is_known(site: Site, attributor: Path) -> None:
    program(attributor, f"cat > {attributor}.asked; echo '{ANSWER}'")
    job = site.cluster.sbatch("-N2", "-w", "n[1-2]", script=f"if {FIRST}; then exit 1; fi")
    incident = closed(site, job)
    assert (reason(incident), suspects(incident)) == ("hang", ("n1",))
    assert restarts(site, job) == [1]
    assert f'"job_id":{job}' in Path(f"{attributor}.asked").read_text()
    assert incident.attribution is not None
    assert next(one.weight for one in incident.attribution.evidence) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sleep 60", "no answer within 2 s (AttributorTimeout)"),
        ("echo nonsense", "answer not used: "),
        ("exit 3", "exit code 3"),
        ("echo '{\"reason\": \"hang\", \"suspect_nodes\": [\"n9\"]}'", "answer not used: "),
    ],
    ids=["slow", "nonsense", "failing", "foreign node"],
)
def test_whatever_else_the_attributor_does_changes_nothing(site: Site, attributor: Path, body: str, why: str) -> None:
    program(attributor, body)
    job = site.cluster.sbatch(script=f"if {FIRST}; then exit 1; fi")
    incident = closed(site, job)
    assert (reason(incident), suspects(incident), deeds(incident)[0]) == ("unknown", (), "requeue")
    (gap,) = gaps(incident, Source.ATTRIBUTOR)
    assert why in gap
    site.cluster.wait(job, "COMPLETED")


def test_a_slow_attributor_keeps_a_burst_waiting_once(site: Site, attributor: Path) -> None:
    program(attributor, "sleep 60")
    jobs = [site.cluster.sbatch(script=f"if {FIRST}; then exit 1; fi") for _ in range(8)]
    for job in jobs:
        site.cluster.wait_for(lambda job=job: site.incidents(job), what="its incident")
    began = time.monotonic()
    for job in jobs:
        site.cluster.wait(job, "COMPLETED")
    assert time.monotonic() - began < 60, "eight times the time-out, and more"
    told = [gaps(closed(site, job), Source.ATTRIBUTOR) for job in jobs]
    assert sum(gap.startswith("no answer") for (gap,) in told) < len(jobs)
