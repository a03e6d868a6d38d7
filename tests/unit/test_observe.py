"""What of a job's evidence goes on record: bounded in bytes, the causes first; its checkpoints and further logs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from slurm_recovery.config.settings import Settings
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.evidence.node_reports import Reports
from slurm_recovery.job_options import JobOptions
from slurm_recovery.node_report import NodeReport
from slurm_recovery.observe import EARLIER, NO_OPTIONS, Observer, snapshot, within, without_checkpoints
from slurm_recovery.records import Attempt, Checkpoint, Evidence, Incident, Observation, Role, Source, Trust


def evidence(role: Role, line: str, place: str = "log:1") -> Evidence:
    return Evidence(
        source=Source.JOB_LOG, trust=Trust.USER, signature="x", reason="unknown", role=role, line=line, place=place
    )


def test_causes_are_kept_before_consequences_and_in_their_order() -> None:
    many = [evidence(Role.SECONDARY, "s" * 400)] * 50 + [evidence(Role.ROOT, "first"), evidence(Role.ROOT, "second")]
    kept = within(many, 2000)
    assert [one.line for one in kept if one.role is Role.ROOT] == ["first", "second"]
    assert 2 < len(kept) < 10
    assert within(many[:3], 100_000) == tuple(many[:3])


def test_a_hostile_text_takes_no_more_room() -> None:
    hostile = [evidence(Role.ROOT, "\x01" * 500, "\U0001f600" * 200)] * 1000
    kept = within(hostile, 256 << 10)
    assert len(json.dumps([one.model_dump(mode="json") for one in kept])) < 512 << 10


def test_the_snapshot_is_bounded_as_it_is_stored() -> None:
    assert snapshot(b"x" * 100, 10) == "x" * 10
    assert snapshot(b"abc", 0) == ""
    assert "\0" not in snapshot(b"a\0b", 10)
    assert len(json.dumps(snapshot(b"\x01" * 100_000, 65536))) <= 2 * 65536 + 2
    assert len(json.dumps(snapshot("\U0001f600".encode() * 100_000, 65536))) <= 2 * 65536 + 12


# -- checkpoints, and further logs ---------------------------------------------------------------

OBSERVER = Observer(Settings(), load_signatures())


def attempt(folder: Path, **more: object) -> Attempt:
    given = {
        "cluster": "c",
        "job_id": 7,
        "state": "FAILED",
        "exit_code": 1,
        "start_time": 100.0,
        "end_time": 900.0,
        "user_id": os.getuid(),
        "nodes": ("n1", "n2"),
        "work_dir": str(folder),
        "stdout": "job.log",
    }
    (folder / "job.log").touch()
    return Attempt.model_validate(given | more)


def report(node: str, time: float, checkpoints: object = None, gaps: object = ()) -> NodeReport:
    told = {"format": 1, "kind": "epilog", "node": node, "time": time, "checkpoints": checkpoints, "gaps": gaps}
    return NodeReport.model_validate(told)


def saved(step: int) -> dict[str, object]:
    return {"path": f"/ckpt/{step}", "format": "dcp", "step": step, "began": step - 1.0, "time": float(step)}


def observed(
    one: Attempt, *reports: NodeReport, options: JobOptions = NO_OPTIONS, earlier: tuple[Incident, ...] = ()
) -> Observation:
    return OBSERVER.observe(one, {}, frozenset(), earlier, Reports(reports), options)


def test_the_newest_report_tells_of_the_checkpoints(tmp_path: Path) -> None:
    many = [saved(step) for step in range(800, 780, -1)]
    passed = [{"path": f"/ckpt/{step}", "why": "no .metadata"} for step in range(999, 979, -1)]
    now = {"folder": "/ckpt", "newest": saved(900), "earlier": many, "passed": passed}
    gap = {"source": "checkpoint", "what": "/ckpt", "why": "too many"}
    reports = (report("n1", 50.0, {"folder": "/ckpt"}), report("n1", 60.0, now, [gap]), report("n2", 70.0))
    seen = observed(attempt(tmp_path), *reports, options=JobOptions(checkpoint="/ckpt"))
    progress = seen.progress
    assert progress is not None
    assert progress.newest == Checkpoint(path="/ckpt/900", format="dcp", step=900, began=899.0, time=900.0)
    assert (len(progress.earlier), len(progress.passed)) == (EARLIER, EARLIER)
    assert progress.step == 900
    assert [one.why for one in seen.gaps if one.source is Source.CHECKPOINT] == ["too many"]


def test_a_folder_at_which_nobody_looked_is_a_gap_and_no_folder_is_none(tmp_path: Path) -> None:
    seen = observed(attempt(tmp_path), report("n1", 50.0), options=JobOptions(checkpoint="/ckpt"))
    assert seen.progress is None
    (gap,) = (one for one in seen.gaps if one.source is Source.CHECKPOINT)
    assert (gap.what, gap.why) == ("/ckpt", "not looked at: no word of it from n1")
    assert observed(attempt(tmp_path), report("n1", 50.0)).gaps == ()


def test_what_a_job_may_not_say_is_not_looked_at() -> None:
    reports = without_checkpoints(Reports((report("n1", 50.0, {"folder": "/ckpt"}),)))
    assert [one.checkpoints for one in reports.reports] == [None]


def test_a_further_log_is_read_and_what_earlier_attempts_left_in_it_is_not(tmp_path: Path) -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    full = "OSError: [Errno 28] No space left on device\n"
    options = JobOptions(log=f"{tmp_path}/train-%j.log")
    log = tmp_path / "train-7.log"
    log.write_text(ecc)
    first = observed(attempt(tmp_path), options=options)
    assert {one.reason for one in first.evidence} == {"gpu_ecc_uncorrectable"}
    assert [(one.path, one.end) for one in first.other_logs] == [(str(log), len(ecc))]
    assert not observed(attempt(tmp_path)).evidence
    with log.open("a") as file:
        file.write(full)
    again = observed(attempt(tmp_path), options=options, earlier=(Incident(attempt=first.attempt, observation=first),))
    assert {one.reason for one in again.evidence} == {"disk_full"}


def test_a_further_log_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    (tmp_path / "link.log").symlink_to(log)
    seen = observed(attempt(tmp_path), options=JobOptions(log=f"{tmp_path}/link.log"))
    assert not seen.evidence
    assert [one.what for one in seen.gaps] == [f"{tmp_path}/link.log"]
