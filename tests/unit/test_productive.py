"""When a restarted job got on again: by checkpoints, by its log, by its good end, and that each is settled once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_recovery.config.settings import Config, Settings
from slurm_recovery.evidence.joblog import mark_of
from slurm_recovery.observe import Observer
from slurm_recovery.productive import AT_LATEST, LATE, MOST_AGE, Productive, Sign, signs
from slurm_recovery.records import (
    Attempt,
    Checkpoint,
    Decision,
    Incident,
    Observation,
    Progress,
    Run,
    Stage,
    Verdict,
)
from slurm_recovery.slurm.port import Job
from slurm_recovery.store.step import Step
from slurm_recovery.store.store import Store

START = 1_780_567_200.0  # 2026-06-04T10:00:00Z
ENDED, AGAIN = START + 600, START + 660
NOW = START + 1200


def saved(step: int | None, when: float) -> Checkpoint:
    return Checkpoint(path=f"/ckpt/{step}", format="dcp", step=step, time=when)


# -- what was seen at an attempt's end -----------------------------------------------------------


def test_the_first_checkpoint_after_the_start() -> None:
    progress = Progress(
        folder="/ckpt", newest=saved(400, 130.0), earlier=(saved(300, 120.0), saved(200, 110.0), saved(100, 90.0))
    )
    assert list(signs(progress, 100.0, 150.0, 100)) == [Sign(110.0, "checkpoint of step 200", False)]


def test_where_no_older_one_is_left_it_is_at_the_latest() -> None:
    progress = Progress(folder="/ckpt", newest=saved(None, 130.0))
    assert list(signs(progress, 100.0, 150.0, None)) == [Sign(130.0, "checkpoint", True)]
    assert list(signs(progress, 130.0, 150.0, None)) == []
    assert list(signs(progress, 100.0, 120.0, None)) == [Sign(120.0, "checkpoint", True)]  # a time of the user's own


def test_the_first_later_step_of_the_log() -> None:
    told = {"first_log_step": 5, "first_log_step_time": 110.0, "log_step": 9, "log_step_time": 140.0}
    progress = Progress.model_validate(told)
    assert list(signs(progress, 100.0, 150.0, 4)) == [Sign(110.0, "step 5 in the log", False)]
    assert list(signs(progress, 100.0, 150.0, None)) == [Sign(110.0, "step 5 in the log", False)]
    assert list(signs(progress, 100.0, 150.0, 5)) == [Sign(140.0, "step 9 in the log", True)]
    assert list(signs(progress, 100.0, 150.0, 9)) == []
    untimed = progress.model_copy(update={"first_log_step_time": None})
    assert list(signs(untimed, 100.0, 150.0, 4)) == [Sign(150.0, "step 5 in the log", True)]


# -- the sweep -----------------------------------------------------------------------------------


class Queue:
    """What squeue shows."""

    def __init__(self) -> None:
        self.shown: dict[int, Job] = {}
        self.asked = 0

    def jobs(self, ids: object) -> dict[int, Job]:
        self.asked += 1
        return self.shown


class Site:
    """One job of this user, which failed, and runs again since AGAIN."""

    def __init__(self, folder: Path, store: Store, **settings: object) -> None:
        self.store, self.queue, self.now = store, Queue(), NOW
        config = Config(settings=Settings.model_validate({"state_dir": folder, **settings}))
        observer = Observer(config.settings, ())
        self.productive = Productive(config, "mars", self.queue, store, observer, lambda: self.now)  # type: ignore[arg-type]
        self.log = folder / "job.log"
        self.log.write_text("iter 1: loss 3\niter 2: loss 3\n")
        self.attempt = Attempt(
            cluster="mars",
            job_id=7,
            start_time=START,
            end_time=ENDED,
            user_id=os.getuid(),
            user="ada",
            nodes=("n1", "n2"),
            work_dir=str(folder),
            stdout=str(self.log),
            state="FAILED",
        )
        seen = Observation(
            attempt=self.attempt,
            log_path=str(self.log),
            progress=Progress(folder="/ckpt", newest=saved(2, START + 500)),
        )
        incident = Incident(
            attempt=self.attempt,
            stage=Stage.RUNNING,
            observation=seen,
            decision=Decision(verdict=Verdict.REQUEUE, basis="a_rule", because="it may help", act=True),
            times={"ended": ENDED, "running": AGAIN},
        )
        self.incident = store.save(incident)

    def running(self, **more: object) -> None:
        given = {"job_id": 7, "state": "RUNNING", "restart_count": 1, "start_time": AGAIN, "nodes": ("n1", "n3")}
        self.queue.shown = {7: Job.model_validate(given | more)}

    def fails_again(self, progress: Progress | None = None, stage: Stage = Stage.LEFT) -> None:
        attempt = self.attempt.model_copy(
            update={"restart_count": 1, "start_time": AGAIN, "end_time": AGAIN + 300}
        )
        seen = Observation(attempt=attempt, progress=progress)
        self.store.save(Incident(attempt=attempt, stage=stage, observation=seen))

    def ends_well(self, end: float = AGAIN + 300) -> None:
        run = Run(
            cluster="mars",
            job_id=7,
            label="7",
            restart_count=1,
            start_time=AGAIN,
            end_time=end,
            user="ada",
            nodes=("n1", "n3"),
            good=True,
        )
        self.store.ledger.save_run(run)

    def watch(self) -> tuple[float | None, Step | None]:
        """A sweep: when the job was productive again, and the line of the audit."""
        self.productive.watch()
        incident = self.store.get(self.incident.id)
        assert incident is not None
        steps = [one for one in self.store.steps(incident.id) if one.action in ("productive", "not_productive")]
        assert len(steps) <= 1
        return incident.times.get("productive"), steps[0] if steps else None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/recovery.db", clock=lambda: ENDED) as opened:
        yield opened


@pytest.fixture
def site(tmp_path: Path, store: Store) -> Site:
    return Site(tmp_path, store, evidence_wait=3)


def test_a_running_job_whose_log_has_a_later_step_with_its_time(site: Site) -> None:
    site.running()
    site.log.write_text("[2026-06-04 10:11:30] iter 2: loss 3\n[2026-06-04 10:12:00] iter 3: loss 3\n")
    when, step = site.watch()
    assert when == START + 720
    assert step == Step(time=NOW, kind="note", action="productive", detail="step 3 in the log", result="")
    asked = site.queue.asked
    assert site.watch() == (when, step)  # settled: Slurm is not even asked
    assert site.queue.asked == asked


def test_a_line_without_a_time_counts_when_a_sweep_sees_it(site: Site) -> None:
    site.running()
    site.log.write_text("iter 1: loss 3\niter 2: loss 3\n")
    assert site.watch() == (None, None)
    site.now += 60
    site.log.write_text("iter 2: loss 3\niter 3: loss 3\n")
    when, step = site.watch()
    assert (when, step and step.result) == (NOW + 60, AT_LATEST)


def test_only_what_was_added_to_an_appended_log_counts(site: Site) -> None:
    site.running()
    data = site.log.read_bytes() + b"iter 3: loss 3\n"
    site.log.write_bytes(data)
    status = site.log.stat()
    seen = site.incident.observation
    assert seen is not None
    ends = {"log_end": len(data), "log_inode": status.st_ino, "log_mark": mark_of(data)}
    site.store.save(site.incident.model_copy(update={"observation": seen.model_copy(update=ends)}))
    os.utime(site.log, (ENDED, ENDED))
    assert site.watch() == (None, None)
    with site.log.open("a") as log:
        log.write("iter 4: loss 3\n")
    assert site.watch()[0] == NOW


def test_one_that_failed_again_after_a_new_checkpoint(site: Site) -> None:
    site.fails_again(Progress(folder="/ckpt", newest=saved(9, AGAIN + 100), earlier=(saved(2, START + 500),)))
    when, step = site.watch()
    assert when == AGAIN + 100
    assert (step and step.detail, step and step.result) == ("checkpoint of step 9", "")


def test_one_that_failed_again_without_any(site: Site) -> None:
    site.fails_again(Progress(folder="/ckpt", newest=saved(2, START + 500)))
    when, step = site.watch()
    assert when is None
    assert (step and step.action) == "not_productive"


def test_one_that_is_not_judged_yet_is_waited_for(site: Site) -> None:
    site.fails_again(stage=Stage.DETECTED)
    assert site.watch() == (None, None)


def test_a_good_end_by_its_log(site: Site) -> None:
    site.ends_well()
    site.log.write_text("[2026-06-04 10:12:00] iter 3: loss 3\n[2026-06-04 10:13:00] iter 4: loss 3\n")
    assert site.watch()[0] == START + 720


def test_a_good_end_that_shows_nothing_else_counts_itself(site: Site) -> None:
    site.ends_well()
    site.log.unlink()
    when, step = site.watch()
    assert when == AGAIN + 300
    assert (step and step.detail, step and step.result) == ("ended well", AT_LATEST)


def test_of_two_in_one_second_the_one_that_says_when(site: Site) -> None:
    site.ends_well(START + 720)
    site.log.write_text("[2026-06-04 10:12:00] iter 3: loss 3\n")
    when, step = site.watch()
    assert when == START + 720
    assert (step and step.detail, step and step.result) == ("step 3 in the log", "")


def test_a_good_end_within_the_second_of_its_start(site: Site) -> None:
    times = {"ended": ENDED, "running": AGAIN + 0.8}
    site.store.save(site.incident.model_copy(update={"times": times}))
    site.ends_well(AGAIN)
    site.log.unlink()
    assert site.watch()[0] == AGAIN + 0.8


def test_a_good_ends_report_is_waited_for(site: Site) -> None:
    site.ends_well()
    site.now = AGAIN + 301
    assert site.watch() == (None, None)
    site.now += 3
    assert site.watch()[0] is not None


def test_one_that_waits_or_completes_is_looked_at_later(site: Site) -> None:
    for state in ("PENDING", "COMPLETING", "REQUEUE_HOLD"):
        site.running(state=state)
        assert site.watch() == (None, None)
    site.running(state="COMPLETED", end_time=NOW - 1)  # its event is on its way
    assert site.watch() == (None, None)


@pytest.mark.parametrize("shown", ["CANCELLED", "COMPLETED", None])
def test_an_end_that_nobody_told_of_settles_it(site: Site, shown: str | None) -> None:
    if shown:
        site.running(state=shown, end_time=NOW - LATE - 1)
    when, step = site.watch()
    assert when is None
    assert step is not None
    assert step.action == "not_productive"
    assert (shown or "not known to slurmctld") in step.detail


def test_a_cancelled_one_may_have_got_on_before(site: Site) -> None:
    site.running(state="CANCELLED", end_time=NOW - 1)
    site.log.write_text("[2026-06-04 10:12:00] iter 3: loss 3\n")
    assert site.watch()[0] == START + 720


def test_old_ones_are_left_alone(site: Site) -> None:
    site.running()
    site.log.write_text("iter 3: loss 3\n")
    site.now = ENDED + MOST_AGE + 1
    assert site.watch() == (None, None)


def test_a_record_that_cannot_be_read_keeps_no_other_from_its_turn(site: Site, tmp_path: Path) -> None:
    other = site.attempt.model_copy(update={"job_id": 6})
    broken = site.store.save(Incident(attempt=other, stage=Stage.RUNNING, times={"running": AGAIN}))
    with sqlite3.connect(tmp_path / "recovery.db") as database:
        database.execute("UPDATE incident SET record = '{' WHERE id = ?", (broken.id,))
    site.running()
    site.log.write_text("iter 3: loss 3\n")
    assert site.watch()[0] == NOW
