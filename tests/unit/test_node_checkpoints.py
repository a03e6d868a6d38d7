"""The collector and a job's checkpoints: looked at as its user at its end, told to its nodes at its start. As root."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from slurm_recovery.resume import FOLDER, Resume, decode, write_resume
from tests.nvml.build import build
from tests.unit.test_node_collector import NOBODY, Node, job, why
from tests.unit.test_node_reports import hanging

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

RULES = '[["ours","ckpt-{step}","DONE"]]'
ENDED_WELL = {"JOB_EXIT_CODE": "0", "JOB_EXIT_CODE2": "0:0", "JOB_DERIVED_EC": "0"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Node:
    return Node(tmp_path, library, options={"--checkpoint-formats": RULES, "--run-dir": f"{tmp_path}/run/%n"})


@pytest.fixture
def work(open_folder: Path) -> Path:
    os.chown(open_folder, NOBODY, NOBODY)
    return open_folder


def save(work: Path, name: str, complete: bool = True) -> Path:
    path = work / "ckpt" / name
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"x")
    if complete:
        (path / "DONE").touch()
    return path


def named(work: Path, **more: str) -> dict[str, str]:
    return job(work, JOB_COMMENT=f"recovery=act,checkpoint={work}/ckpt") | more


# --- at its end


def test_a_failed_jobs_report_holds_its_checkpoints(node: Node, work: Path) -> None:
    before, newest = save(work, "ckpt-100"), save(work, "ckpt-200")
    broken = save(work, "ckpt-300", complete=False)
    node.run("epilog", **named(work))
    report = node.report()
    assert not why(report, "checkpoint")
    assert report.checkpoints is not None
    assert report.checkpoints.folder == f"{work}/ckpt"
    assert report.checkpoints.newest is not None
    assert (report.checkpoints.newest.path, report.checkpoints.newest.step) == (str(newest), 200)
    assert report.checkpoints.newest.time == pytest.approx(time.time(), abs=30)
    assert [one.path for one in report.checkpoints.earlier] == [str(before)]
    assert [one.path for one in report.checkpoints.passed] == [str(broken)]
    assert len(report.gpus) == 2


def test_the_plugins_word_leads_to_the_folder_too(node: Node, work: Path) -> None:
    newest = save(work, "ckpt-200")
    node.environment["SPANK_RECOVERY_CHECKPOINT"] = f"{work}/ckpt"
    node.run("epilog", **job(work, JOB_COMMENT="recovery=act,checkpoint=/elsewhere"))
    report = node.report()
    assert report.checkpoints is not None
    assert report.checkpoints.newest is not None
    assert report.checkpoints.newest.path == str(newest)


def test_only_the_batch_node_looks_and_only_where_a_folder_is_known(node: Node, work: Path) -> None:
    save(work, "ckpt-200")
    node.run("epilog", **named(work, NODELIST="n[2-3]"))
    node.run("epilog", **job(work))
    for report in node.reports():
        assert report.checkpoints is None
        assert not why(report, "checkpoint")


@pytest.mark.parametrize(
    ("usual", "otherwise", "looks"), [("no", "", False), ("no", "a,train", True), ("yes", "train", False)]
)
def test_what_the_site_does_not_let_a_job_name_is_not_looked_at(
    node: Node, work: Path, usual: str, otherwise: str, looks: bool
) -> None:
    save(work, "ckpt-200")
    node.options |= {"--checkpoint": usual, "--checkpoint-otherwise": otherwise}
    node.run("epilog", **named(work, JOB_PARTITION="train"))
    assert (node.report().checkpoints is not None) is looks


def test_a_folder_that_was_never_made_is_an_answer(node: Node, work: Path) -> None:
    node.run("epilog", **named(work))
    report = node.report()
    assert report.checkpoints is not None
    assert (report.checkpoints.newest, report.checkpoints.earlier) == (None, ())
    assert not why(report, "checkpoint")


def test_a_folder_that_the_user_cannot_read_is_a_gap(node: Node, work: Path) -> None:
    save(work, "ckpt-200")
    (work / "ckpt").chmod(0o700)  # root's
    node.run("epilog", **named(work))
    assert "denied" in why(node.report(), "checkpoint")
    assert node.report().checkpoints is None or node.report().checkpoints.newest is None


def test_a_folder_that_hangs_is_a_gap_and_the_rest_is_told(node: Node, work: Path) -> None:
    (work / "ckpt").mkdir()
    with hanging(work / "ckpt"):
        began = time.monotonic()
        node.run("epilog", timeout=3, **named(work))
        assert time.monotonic() - began < 4
    report = node.report()
    assert why(report, "checkpoint") == "no answer in time"
    assert len(report.gpus) == 2


def test_a_name_that_is_no_utf8_breaks_no_report(node: Node, work: Path) -> None:
    node.run("epilog", **job(work, JOB_COMMENT=f"recovery=act,checkpoint={work}/caf\udce9"))
    report = node.report()
    assert report.checkpoints is not None
    assert report.checkpoints.folder == f"{work}/caf\\udce9"


def test_a_restart_that_ended_well_tells_its_checkpoints_and_nothing_else(node: Node, work: Path) -> None:
    newest = save(work, "ckpt-200")
    node.kernel("a line")
    node.run("epilog", **named(work, **ENDED_WELL))
    report = node.report()
    assert report.checkpoints is not None
    assert report.checkpoints.newest is not None
    assert report.checkpoints.newest.path == str(newest)
    assert (report.exit_code, report.gpus, report.kernel, report.logs, report.gaps) == ("0:0", (), "", (), ())
    assert report.kernel_since == pytest.approx(report.time)


def test_a_restart_that_ended_well_leaves_nothing_where_it_saved_nothing_of_note(node: Node, work: Path) -> None:
    node.run("epilog", **job(work, **ENDED_WELL))
    node.run("epilog", **named(work, **ENDED_WELL, NODELIST="n2,n1"))
    assert node.reports() == []


# --- at its start


def told(node: Node) -> Resume | None:
    path = node.folder / "run/n1/7"
    if not path.exists():
        return None
    status = path.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (NOBODY, 0o400)
    return decode(path.read_bytes().splitlines()[0])


@pytest.fixture
def written(node: Node) -> Resume:
    """What the controller wrote for the third attempt; `job` has two restarts."""
    (node.evidence / FOLDER).mkdir(mode=0o700)
    resume = Resume(7, 3, "node_fail", ("n9",), "/ours", "/ours/9", 9, ("/ours/10",))
    write_resume(node.evidence, resume)
    return resume


def test_a_restart_is_told_what_the_controller_wrote(node: Node, work: Path, written: Resume) -> None:
    assert node.run("start", **named(work)) == ""
    assert told(node) == written
    assert node.reports() == [], "a start leaves no report"


def test_what_was_written_for_another_attempt_is_not_told(node: Node, work: Path, written: Resume) -> None:
    node.run("start", **named(work, JOB_RESTART_COUNT="3"))
    assert told(node) == Resume(7, 4, folder=f"{work}/ckpt", refused=written.refused)


def test_without_a_word_of_the_controllers_the_attempt_and_the_folder_are_known(node: Node, work: Path) -> None:
    node.run("start", **named(work))
    assert told(node) == Resume(7, 3, folder=f"{work}/ckpt")
    node.run("start", **job(work))
    assert told(node) == Resume(7, 3)


def test_a_first_attempt_is_told_of_its_folder_or_of_nothing(node: Node, work: Path, written: Resume) -> None:
    node.run("start", **named(work, JOB_RESTART_COUNT="0"))
    assert told(node) == Resume(7, 1, folder=f"{work}/ckpt")
    node.run("start", **job(work, JOB_RESTART_COUNT="0", JOB_COMMENT="recovery=act"))
    assert told(node) is None, "what was there is of an attempt that left it"


def test_a_forged_word_is_not_told_and_said_in_one_line(node: Node, work: Path, written: Resume) -> None:
    os.chown(node.evidence / FOLDER / "7", NOBODY, -1)
    said = node.run("start", **named(work))
    assert said.count("\n") == 1
    assert "only SlurmUser can write" in said
    assert told(node) == Resume(7, 3, folder=f"{work}/ckpt")


def test_an_evidence_dir_that_hangs_leaves_the_attempt(node: Node, work: Path) -> None:
    with hanging(node.evidence):
        began = time.monotonic()
        said = node.run("start", timeout=2, **named(work))
        assert time.monotonic() - began < 3
    assert "no answer in time" in said
    assert told(node) == Resume(7, 3, folder=f"{work}/ckpt")


def test_a_run_dir_of_somebody_elses_is_refused_and_the_job_starts(node: Node, work: Path) -> None:
    run_dir = node.folder / "run/n1"
    run_dir.mkdir(parents=True)
    os.chown(run_dir, NOBODY, -1)
    assert "can be written by others than root" in node.run("start", **named(work))
    assert told(node) is None


def test_the_gate_tells_a_restart_too(node: Node, work: Path, written: Resume) -> None:
    node.run("gate", **named(work))
    assert told(node) == written
