"""`srecover report`: what came of recovery by reason, and how often jobs should save."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_recovery.decide.checkpoint_interval import daly, lost_share, young
from slurm_recovery.records import (
    Attribution,
    Category,
    Checkpoint,
    Decision,
    Incident,
    Observation,
    Progress,
    Run,
    Stage,
    Verdict,
)
from tests.unit.cli_site import END, HOSTILE, Site, an_attempt

SINCE = "--since=2020-01-01"
DAY = 86400.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def an_incident(job_id: int, reason: str, stage: Stage, times: dict[str, float], **attempt: object) -> Incident:
    return Incident(
        attempt=an_attempt(job_id, **attempt),
        stage=stage,
        attribution=Attribution(category=Category.HARDWARE, reason=reason),
        decision=Decision(verdict=Verdict.REQUEUE, basis="a_rule", because="it may help", act=True),
        times={"ended": END, **{step: END + seconds for step, seconds in times.items()}},
    )


def fill(site: Site) -> None:
    """Ten restarts after ECC errors, of which eight were productive again; two stops, and one that nobody judged."""
    with site.store() as store:
        for number in range(1, 11):
            times = {"decided": number / 10, "running": 10.0 + number}
            times |= {"productive": 100.0 * number} if number <= 8 else {}
            store.save(an_incident(number, "gpu_ecc_uncorrectable", Stage.RUNNING, times))
        for number in (11, 12):
            store.save(an_incident(number, "cuda_oom", Stage.STOPPED, {"decided": 1.0}, user="bob", partition="long"))
        store.save(Incident(attempt=an_attempt(13, cluster="venus"), times={"ended": END}))


def test_by_reason_the_commonest_first(site: Site) -> None:
    fill(site)
    answer = site.run("report", SINCE)
    assert (answer.status, answer.err) == (0, "")
    head, ecc, oom, none, every = (line.split() for line in answer.lines)
    assert head[:5] == ["REASON", "INCIDENTS", "RESTARTED", "STOPPED", "PRODUCTIVE"]
    assert ecc[:5] == ["gpu_ecc_uncorrectable", "10", "10", "0", "8"]
    assert ecc[5:] == ["0.6s/0.9s/1.0s", "15.5s/19.1s/20.0s", "7:30/12:10/13:20"]
    assert oom == ["cuda_oom", "2", "0", "2", "0", "1.0s/1.0s/1.0s"]
    assert none == ["not", "judged", "1", "0", "0", "0"]
    assert every[:5] == ["all", "13", "10", "2", "8"]
    assert site.run("report", SINCE, "--noheader").lines == answer.lines[1:]


def test_the_same_as_data(site: Site) -> None:
    fill(site)
    ecc, *_, every = json.loads(site.run("report", SINCE, "--json").out)
    assert ecc == {
        "reason": "gpu_ecc_uncorrectable",
        "incidents": 10,
        "restarted": 10,
        "stopped": 0,
        "productive": 8,
        "seconds": {
            "decided": {"median": 0.55, "p90": 0.91, "max": 1.0},
            "running": {"median": 15.5, "p90": 19.1, "max": 20.0},
            "productive": {"median": 450.0, "p90": 730.0, "max": 800.0},
        },
    }
    assert every["incidents"] == 13


@pytest.mark.parametrize(
    ("options", "incidents"),
    [(("-u", "bob"), 2), (("-p", "long"), 2), (("-M", "venus"), 1), (("--since", "2100-01-01"), 0), (("-u", "x"), 0)],
)
def test_only_what_was_asked_for(site: Site, options: tuple[str, ...], incidents: int) -> None:
    fill(site)
    since = () if "--since" in options else (SINCE,)
    assert json.loads(site.run("report", *since, *options, "--json").out)[-1]["incidents"] == incidents


def test_drills_do_not_count(site: Site) -> None:
    fill(site)
    with site.store() as store:
        for number in range(20, 25):
            store.save(an_incident(number, "gpu_ecc_uncorrectable", Stage.RUNNING, {}, name="srecover-drill"))
    assert json.loads(site.run("report", SINCE, "--json").out)[-1]["incidents"] == 13


def test_a_time_that_is_none_is_refused(site: Site) -> None:
    answer = site.run("report", "--since", "soon")
    assert answer.status == 2
    assert "not a time" in answer.err


# -- how often to save ---------------------------------------------------------------------------


def saves(job_id: int, interval: float, write: float | None, **attempt: object) -> Incident:
    """An attempt of two days, at the end of which five checkpoints were seen, and one of an earlier attempt."""
    times = [END - 100 - interval * number for number in range(5)] + [END - 3 * DAY]
    found = [
        Checkpoint(path="/x", format="dcp", time=time, began=None if write is None else time - write) for time in times
    ]
    given = {"start_time": END - 2 * DAY, "end_time": END, "nodes": ("n1", "n2", "n3", "n4"), **attempt}
    one = an_attempt(job_id, **given)
    progress = Progress(folder="/ckpt", newest=found[0], earlier=tuple(found[1:]))
    return Incident(
        attempt=one,
        stage=Stage.RUNNING,
        observation=Observation(attempt=one, progress=progress),
        times={"ended": END, "running": END + 60},
    )


def known(site: Site, failures: int, node_hours: float, reason: str = "gpu_ecc_uncorrectable") -> None:
    """So many failures within so many hours of nodes, half of them in attempts that ended well."""
    with site.store() as store:
        store.ledger.expose("mars", "train", END - 10 * DAY, node_hours / 2 * 3600)
        for number in range(failures):
            seconds = node_hours / 2 * 3600 / failures / 2
            run = Run(
                cluster="mars",
                job_id=1000 + number,
                label="x",
                start_time=END - DAY - seconds,
                end_time=END - DAY,
                partition="train",
                nodes=("n1", "n2"),
                reason=reason,
            )
            store.ledger.save_run(run)


def test_what_the_formulas_say_of_a_job(site: Site) -> None:
    known(site, 20, 480.0)  # one failure in 24 hours of nodes: a job on 4 nodes has one in 6 hours
    with site.store() as store:
        store.save(saves(7, 4 * 3600.0, 300.0))
    (row,) = json.loads(site.run("report", "--checkpoints", SINCE, "--json").out)
    assert (row["job"], row["nodes"], row["checkpoints"]) == ("7", 4, 5)
    assert (row["interval"], row["write"]) == (4 * 3600.0, 300.0)
    assert (row["failures"], row["node_hours"]) == (20, 480.0)
    assert row["mtbf"] == pytest.approx(6 * 3600, abs=1)
    assert row["young"] == pytest.approx(young(300, 21600) + 300, abs=1)
    assert row["daly"] == pytest.approx(57 * 60 + 300, abs=30)  # Daly 2006, figure 4
    assert row["lost_hours_per_day"] == pytest.approx(24 * lost_share(4 * 3600 - 300, 300, 21600, 60), abs=0.01)
    could = lost_share(daly(300, 21600), 300, 21600, 60)
    assert row["lost_hours_per_day_with_daly"] == pytest.approx(24 * could, abs=0.01)
    head, line = (text.split() for text in site.run("report", "--checkpoints", SINCE).lines)
    assert head[-2:] == ["COULD", "NOTE"]
    assert line[:7] == ["7", "train", "ada", "4", "5", "4:00:00", "5:00"]
    assert line[-1] == f"{24 * could:.1f}h"


def test_with_nine_failures_nobody_knows(site: Site) -> None:
    known(site, 9, 480.0)
    with site.store() as store:
        store.save(saves(7, 3600.0, 300.0))
    answer = site.run("report", "--checkpoints", SINCE, "--noheader")
    assert "9 of 10 failures that are needed are on record" in answer.out
    assert "h" not in answer.lines[0].split()[7]


@pytest.mark.parametrize("reason", ["python_exception", "time_limit", "", "no such reason"])
def test_the_jobs_own_failures_do_not_count(site: Site, reason: str) -> None:
    known(site, 30, 480.0, reason)
    with site.store() as store:
        store.save(saves(7, 3600.0, 300.0))
    (row,) = json.loads(site.run("report", "--checkpoints", SINCE, "--json").out)
    assert (row["failures"], row["mtbf"], row["daly"]) == (0, None, None)
    assert "0 of 10" in row["note"]


def test_failures_from_before_good_ends_were_counted_do_not_count(site: Site) -> None:
    known(site, 20, 480.0)
    with site.store() as store:
        for number in range(50):
            ended = END - 30 * DAY
            store.ledger.save_run(
                Run(
                    cluster="mars",
                    job_id=number,
                    label="x",
                    start_time=ended - 60,
                    end_time=ended,
                    partition="train",
                    reason="gpu_missing",
                    nodes=("n1",),
                )
            )
        store.save(saves(7, 3600.0, 300.0))
    (row,) = json.loads(site.run("report", "--checkpoints", SINCE, "--json").out)
    assert row["failures"] == 20


def test_without_the_beginning_of_a_checkpoint_there_is_no_formula(site: Site) -> None:
    known(site, 20, 480.0)
    with site.store() as store:
        store.save(saves(7, 3600.0, None))
    (row,) = json.loads(site.run("report", "--checkpoints", SINCE, "--json").out)
    assert (row["write"], row["daly"]) == (None, None)
    assert row["note"] == "when its checkpoints are begun is not known"


def test_the_most_to_gain_first_and_hostile_names_harmless(site: Site) -> None:
    known(site, 20, 480.0)
    with site.store() as store:
        store.save(saves(7, 3600.0, 300.0))
        store.save(saves(8, 8 * 3600.0, 300.0, user=HOSTILE))
        store.save(saves(9, 3600.0, 300.0, partition="unseen"))
        store.save(an_incident(10, "nccl_timeout", Stage.RUNNING, {}))  # no checkpoint was seen
    answer = site.run("report", "--checkpoints", SINCE, "--noheader")
    assert [line.split()[0] for line in answer.lines] == ["8", "7", "9"]
    assert "\x1b" not in answer.out
    rows = json.loads(site.run("report", "--checkpoints", SINCE, "--json").out)
    assert [row["job"] for row in rows] == ["8", "7", "9"]


def test_nothing_on_record_is_no_error(site: Site) -> None:
    assert site.run("report", "--checkpoints", "--noheader").out == ""
    assert site.run("report", "--noheader").out.split() == ["all", "0", "0", "0", "0"]
