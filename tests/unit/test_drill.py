"""The drill's rows: what each step takes for right, wrong, and not yet; its job's script; what the policy expects."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_recovery.checkpoint.search import find
from slurm_recovery.config.settings import Config, Mode, Policy, ReasonPolicy, Settings, StopAction
from slurm_recovery.drill.drills import DRILLS
from slurm_recovery.drill.errors import DrillError
from slurm_recovery.drill.expected import expected
from slurm_recovery.drill.job import SCRIPT, said
from slurm_recovery.drill.mark import JOB_NAME
from slurm_recovery.drill.place import Place
from slurm_recovery.drill.rehearsal import Limits
from slurm_recovery.drill.steps import STEPS, SWEEP_STEPS, Seen, Wait, steps_of
from slurm_recovery.drill.view import View
from slurm_recovery.records import (
    Attempt,
    Attribution,
    Category,
    Incident,
    Observation,
    Outcome,
    Result,
    Stage,
    Suspect,
    Trust,
    Verdict,
)
from slurm_recovery.slurm.errors import SlurmUnavailable
from slurm_recovery.slurm.port import Job, Node
from slurm_recovery.store.store import Store
from slurm_recovery.suspects import Suspects
from tests.unit.cli_site import HOSTILE, Site, run

START = 1_800_000_000.0
ATTEMPT = Attempt(cluster="c", job_id=7, partition="p", nodes=("n1", "n2"), start_time=START, exit_code=1)
LOG = """\
0: slurm_recovery drill: run 0 rank 0 on n1
1: slurm_recovery drill: run 0 rank 1 on n2
"""
AGAIN = """\
slurm_recovery drill: told checkpoint=/d/checkpoints/checkpoint-10
0: slurm_recovery drill: run 1 rank 0 on n1
1: slurm_recovery drill: run 1 rank 1 on n3
"""


class FakeSlurm:
    """Answers with one job, or not at all."""

    def __init__(self, job: Job | None, nodes: Mapping[str, Node]) -> None:
        self.job, self._nodes = job, nodes

    def jobs(self, ids: object) -> dict[int, Job]:
        if self.job is None:
            raise SlurmUnavailable("no answer within 10 s")
        return {7: self.job}

    def nodes(self) -> Mapping[str, Node]:
        return self._nodes


def config(folder: Path = Path("/nowhere"), reasons: Mapping[str, Verdict] = {}, **settings: object) -> Config:
    values = {"mode": Mode.ACT, "state_dir": folder, **settings}
    actions = {reason: ReasonPolicy(action=action) for reason, action in reasons.items()}
    return Config(settings=Settings.model_validate(values), reasons=actions)


def a_job(state: str = "COMPLETED", **more: object) -> Job:
    given = {"job_id": 7, "partition": "p", "num_nodes": 2, "restart_count": 1, "nodes": ("n1", "n3"), "state": state}
    told = "slurm_recovery: gpu_ecc_uncorrectable on n2 (rank 1): restarted without n2"
    return Job.model_validate(given | {"excluded_nodes": ("n2",), "admin_comment": told, "start_time": START} | more)


def an_incident(reason: str = "gpu_ecc_uncorrectable", suspect: str = "n2", **more: object) -> Incident:
    """One that was carried through, under `config()`."""
    suspects = (Suspect(node=suspect, trust=Trust.USER, because=""),) if suspect else ()
    given: dict[str, object] = {
        "id": 3,
        "attempt": ATTEMPT,
        "stage": Stage.RUNNING,
        "observation": Observation(attempt=ATTEMPT),
        "attribution": Attribution(category=Category.HARDWARE, reason=reason, suspects=suspects),
        "decision": expected(config(), ATTEMPT, reason, suspect),
        "outcomes": (
            Outcome(action="requeue", result=Result.DONE, seen="PENDING"),
            Outcome(action="exclude", result=Result.DONE, detail="ExcNodeList=n2"),
        ),
        "excluded": ("n2",),
        "times": {"ended": START, "held": START, "released": START},
    }
    return Incident.model_validate(given | more)


NODES = {f"n{number}": Node(name=f"n{number}", partitions=frozenset({"p"})) for number in (1, 2, 3)}


def a_view(
    *incidents: Incident,
    drill: str = "ecc",
    job: Job | None = None,
    log: str = LOG + AGAIN,
    policy: Config | None = None,
    nodes: Mapping[str, Node] = NODES,
    **more: Any,
) -> View:
    store = SimpleNamespace(of_job=lambda cluster, label: list(incidents) if label == "7" else [])
    slurm: Any = FakeSlurm(job, nodes)
    given = {"submitted": START, **more}
    seen = View(
        DRILLS[drill], policy or config(), "c", "p", slurm, store, lambda: log, 7, Path("/d/checkpoints"), **given
    )
    seen.look()
    return seen


def look(step: str, view: View) -> Seen:
    return next(one for one in steps_of(view) if one.name == step).look(view)


# -- a drill that goes well ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_each_step_is_content_with_a_recovery_as_it_should_be(step: Any) -> None:
    view = a_view(an_incident(), job=a_job())
    if step.applies(view):
        assert step.look(view).passed, step.look(view)
    else:
        assert step.name in ("reports", "left alone", "told where")


def test_every_step_tells_where_to_look() -> None:
    assert all(step.hint for step in (*STEPS, *SWEEP_STEPS))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_no_step_passes_or_fails_while_slurm_does_not_answer_and_nothing_is_on_record(step: Any) -> None:
    assert step.look(a_view(log="")).passed is None


def test_a_node_named_a_restart_elsewhere_and_the_checkpoint_told() -> None:
    view = a_view(an_incident(), job=a_job())
    assert look("node named", view) == Seen(True, "n2")
    assert look("runs again", view).detail.startswith("on n1,n3")
    assert look("told where", view) == Seen(True, "/d/checkpoints/checkpoint-10")


# -- one that does not ----------------------------------------------------------------------------------


WRONG = {
    "failed": ({"job": a_job("COMPLETED", restart_count=0)}, (), "should have failed"),
    "cause": ({}, (an_incident("unknown", ""),), "unknown, not gpu_ecc_uncorrectable"),
    "node named": ({}, (an_incident(suspect="n1"),), "n1 named, not n2"),
    "held": (
        {},
        (an_incident(outcomes=(Outcome(action="requeue", result=Result.REFUSED, detail="disabled"),)),),
        "requeue refused: disabled",
    ),
    "released": ({}, (an_incident(times={}, stage=Stage.ABANDONED, note="forgotten"),), "abandoned (forgotten)"),
    "excluded": ({"job": a_job(excluded_nodes=())}, (an_incident(),), "n2 not in ExcNodeList"),
    "runs again": ({"job": a_job(nodes=("n1", "n2"))}, (an_incident(),), "on n2, which was excluded"),
    "finished": ({"job": a_job("FAILED", exit_code=3)}, (an_incident(),), "ExitCode=3:0"),
    "comment": ({"job": a_job(admin_comment="")}, (an_incident(),), "AdminComment=(null)"),
    "recorded": ({}, (an_incident(stage=Stage.LEFT, note="held by someone"),), "held by someone"),
    "told where": ({"log": LOG + AGAIN.replace("-10", "-20"), "drill": "corrupt"}, (an_incident(),), "checkpoint-20"),
}


@pytest.mark.parametrize("step", WRONG)
def test_a_step_that_went_wrong_says_what_was_seen(step: str) -> None:
    given, incidents, told = WRONG[step]
    seen = look(step, a_view(*incidents, **{"job": a_job(), **given}))
    assert seen.passed is False
    assert told in seen.detail


def test_an_exclusion_that_was_given_up_is_right_only_where_no_node_is_spare() -> None:
    dropped = an_incident(excluded=(), outcomes=(Outcome(action="start", result=Result.DONE, detail="left out: n2"),))
    job = a_job(excluded_nodes=())
    two = {name: node for name, node in NODES.items() if name != "n3"}
    assert look("excluded", a_view(dropped, job=job)).passed is False
    assert look("excluded", a_view(dropped, job=job, nodes=two)).passed
    drained = NODES | {"n3": NODES["n3"].model_copy(update={"state": frozenset({"DRAIN", "IDLE"})})}
    assert look("excluded", a_view(dropped, job=job, nodes=drained)).passed


def test_an_event_that_nobody_takes_up_is_told_from_one_that_was_never_written(tmp_path: Path) -> None:
    view = a_view(job=a_job("FAILED", restart_count=0), policy=config(tmp_path))
    assert "EpilogSlurmctld has not called our hook" in look("taken up", view).detail
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool/180-job_end-7-99.event").touch()
    view.look()
    assert "no worker has taken it up" in look("taken up", view).detail
    (tmp_path / "spool/180-job_end-7-99.event").rename(tmp_path / "spool/180-job_end-7-99.later")
    view.look()
    assert "put it off" in look("taken up", view).detail


def test_what_the_worker_complained_of_since_is_told(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("level=error event=of-another-day\n")
    view = a_view(policy=config(tmp_path))
    assert view.worker_said == ""
    with log.open("a") as file:
        file.write("level=info event=decided\nlevel=error event=new\nlevel=info event=x\n")
    assert view.worker_said == "level=error event=new"
    log.write_text("level=error event=rotated\n")
    assert view.worker_said == "level=error event=rotated"


def test_an_older_job_of_the_same_id_is_not_ours() -> None:
    old = ATTEMPT.model_copy(update={"start_time": START - 3600})
    assert a_view(an_incident(attempt=old)).incident is None
    again = ATTEMPT.model_copy(update={"restart_count": 1})
    assert a_view(an_incident(attempt=again)).incident is None


def test_the_record_is_read_before_slurm_so_that_what_it_says_was_done_is_seen_there() -> None:
    view, order = a_view(an_incident(), job=a_job()), []
    view.store = SimpleNamespace(of_job=lambda cluster, label: order.append("record") or [])
    slurm: Any = SimpleNamespace(jobs=lambda ids: order.append("slurm") or {})
    view.slurm = slurm
    view.look()
    assert order == ["record", "slurm"]


def test_a_sweep_is_one_after_the_jobs_end_that_left_nothing(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    event = tmp_path / "spool/180-job_end-7-99.event"
    event.touch()
    job = a_job("COMPLETED", restart_count=0, end_time=START + 10)
    view = a_view(job=job, drill="sweep", policy=config(tmp_path))
    assert look("event left", view) == Seen(True, event.name)
    assert look("swept", view) == Seen(None, "no sweep ever")
    last = tmp_path / "last_sweep"
    last.touch()
    os.utime(last, (START, START))
    assert look("swept", view) == Seen(None, "no sweep since the job's end")
    os.utime(last, (START + 11, START + 11))
    assert "still there" in look("swept", view).detail
    event.unlink()
    assert look("swept", view).passed
    assert look("untouched", view).passed
    assert a_view(an_incident(), job=job, drill="sweep").incident
    assert look("untouched", a_view(an_incident(), job=job, drill="sweep")).passed is False


# -- the policy -----------------------------------------------------------------------------------------


def decided(policy: Config, **more: Any) -> Seen:
    """The step where the worker decided as this policy says."""
    incident = an_incident(decision=expected(policy, ATTEMPT, "gpu_ecc_uncorrectable", "n2"))
    return look("decided", a_view(incident, policy=policy, job=a_job(), **more))


def test_the_policy_says_what_is_right() -> None:
    assert expected(config(), ATTEMPT, "gpu_ecc_uncorrectable", "n2").exclude == ("n2",)
    assert expected(config(mode=Mode.OFF), ATTEMPT, "gpu_ecc_uncorrectable", "n2").basis == "mode_off"
    assert not expected(config(mode=Mode.OBSERVE), ATTEMPT, "killed_unknown").act
    assert expected(config(), ATTEMPT, "python_exception").verdict is Verdict.STOP
    assert expected(config(), ATTEMPT, "checkpoint_corrupt").basis == "earlier_checkpoint"
    assert expected(config(max_requeues=0), ATTEMPT, "killed_unknown").verdict is Verdict.STOP
    assert expected(config(backoff=9), ATTEMPT, "killed_unknown").delay == 9
    assert expected(config(backoff=9), ATTEMPT, "gpu_ecc_uncorrectable", "n2").delay == 0
    mine = Config(settings=Settings(mode=Mode.ACT), partitions={"p": Policy(mode=Mode.OFF)})
    assert expected(mine, ATTEMPT, "killed_unknown").basis == "mode_off"


def test_a_job_that_may_not_be_requeued_is_not_what_the_policy_wants() -> None:
    attempt = ATTEMPT.model_copy(update={"requeue": False})
    assert expected(config(), attempt, "killed_unknown").verdict is Verdict.REQUEUE


def test_advice_is_right_under_observe_and_is_said_to_be_advice() -> None:
    seen = decided(config(mode=Mode.OBSERVE))
    assert seen.passed
    assert "advice only: Mode=observe" in seen.detail
    assert decided(config(mode=Mode.OFF)).passed


def test_what_the_operator_expects_must_be_done() -> None:
    wanted = {"wanted": Verdict.REQUEUE_EXCLUDE}
    assert decided(config(), **wanted).passed
    assert decided(config(mode=Mode.OBSERVE), **wanted).passed is False
    none = config(reasons={"gpu_ecc_uncorrectable": Verdict.NONE})
    assert decided(none).passed
    seen = decided(none, **wanted)
    assert seen.passed is False
    assert "requeue_exclude was expected" in seen.detail


def test_another_verdict_and_other_settings_are_told() -> None:
    stop = expected(config(max_requeues=0), ATTEMPT, "gpu_ecc_uncorrectable", "n2")
    other = look("decided", a_view(an_incident(decision=stop), job=a_job()))
    assert other.passed is False
    assert "other settings" in other.detail
    same = stop.model_copy(update={"policy": config().digest})
    seen = look("decided", a_view(an_incident(decision=same), job=a_job()))
    assert seen.passed is False
    assert "the policy says requeue_exclude" in seen.detail


@pytest.mark.parametrize(
    ("state", "restarts", "action", "passed"),
    [
        ("FAILED", 0, StopAction.LEAVE, True),
        ("SPECIAL_EXIT", 1, StopAction.HOLD, True),
        ("SPECIAL_EXIT", 1, StopAction.LEAVE, False),
        ("RUNNING", 1, StopAction.LEAVE, False),
    ],
)
def test_a_job_that_is_not_restarted_stays_as_it_is(
    state: str, restarts: int, action: StopAction, passed: bool
) -> None:
    policy = config(stop_action=action)
    stop = expected(policy, ATTEMPT, "python_exception")
    incident = an_incident("python_exception", "", stage=Stage.STOPPED, decision=stop, times={}, outcomes=())
    view = a_view(incident, drill="stop", policy=policy, job=a_job(state, restart_count=restarts))
    assert look("left alone", view).passed is passed
    applied = [step.name for step in STEPS if step.applies(view)]
    assert applied == ["started", "failed", "taken up", "cause", "decided", "left alone"]


def test_back_off_prolongs_the_wait_for_the_restart_alone() -> None:
    limits = Limits(300, 30, 150)
    assert limits.of(Wait.RESTART, 60) == 360
    assert limits.of(Wait.RECOVERY, 60) == 30
    assert limits.of(Wait.SWEEP, 0) == 150


def test_a_drill_needs_what_it_rehearses() -> None:
    shared = config(evidence_dir="/e")
    assert DRILLS["evidence"].missing(config(), {}, "p") == "EvidenceDir is not set"
    assert DRILLS["evidence"].missing(shared, {}, "p") == ""
    assert "TaskProlog" in DRILLS["corrupt"].missing(shared, {}, "p")
    assert DRILLS["corrupt"].missing(shared, {"taskprolog": "/x"}, "p") == ""
    assert "JobOptions" in DRILLS["corrupt"].missing(config(job_options=("mode",)), {"taskprolog": "/x"}, "p")
    assert not any(DRILLS[name].missing(config(), {}, "p") for name in ("ecc", "killed", "hang", "stop", "sweep"))


# -- the job, its folder, its name -----------------------------------------------------------------------


def test_the_script_is_one_that_sh_understands() -> None:
    assert subprocess.run(["/bin/sh", "-n"], input=SCRIPT.encode(), capture_output=True, check=True).stderr == b""
    assert all(f"\n{drill.job})" in SCRIPT for drill in DRILLS.values() if drill.job != "well")


def test_the_log_is_read_without_believing_more_than_its_form() -> None:
    told = said(LOG + AGAIN)
    assert told.nodes == {0: {0: "n1", 1: "n2"}, 1: {0: "n1", 1: "n3"}}
    assert told.failed_on == "n2"
    assert told.of_run(1) == ("n1", "n3")
    empty = said(HOSTILE + "slurm_recovery drill: run x rank 1 on n1\n" + "slurm_recovery drill: run " * 9999)
    assert (empty.nodes, empty.checkpoint, empty.failed_on) == ({}, None, "")


def test_the_place_holds_two_whole_checkpoints_and_is_taken_away(tmp_path: Path) -> None:
    place = Place.make(os.getuid(), tmp_path)
    found = find(str(place.checkpoints()))
    assert found.newest
    assert (found.newest.step, [one.step for one in found.earlier], found.passed) == (20, [10], ())
    assert place.script.read_text() == SCRIPT
    assert place.read_log("ecc") == ""
    place.log("ecc").write_text(LOG)
    assert place.read_log("ecc") == LOG
    place.log("killed").symlink_to("/etc/passwd")
    with pytest.raises(DrillError, match="ELOOP"):
        place.read_log("killed")
    place.remove()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match=r"nowhere: ENOENT: No such file or directory; hint: --dir"):
        Place.make(os.getuid(), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "trust", "runs"),
    [(JOB_NAME, Trust.USER, 0), ("train", Trust.USER, 1), (JOB_NAME, Trust.ROOT, 1)],
)
def test_a_drill_counts_against_no_node_that_does_not_tell_of_a_fault_itself(
    tmp_path: Path, name: str, trust: Trust, runs: int
) -> None:
    with Store.open(f"sqlite:///{tmp_path}/recovery.db") as store:
        suspects = Suspects(config(), "c", store, lambda: START)
        attribution = an_incident().attribution
        assert attribution
        suspect = Suspect(node="n2", trust=trust, because="")
        suspects.record(
            ATTEMPT.model_copy(update={"name": name}), attribution.model_copy(update={"suspects": (suspect,)})
        )
        assert len(store.ledger.runs("c", 0.0)) == runs


# -- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-s", "fire"], "no drill 'fire'; there are ecc, killed,"),
        (["--expect", "ecc=reboot"], "the verdict is one of requeue_exclude, requeue, stop, none"),
        (["--expect", "fire=stop"], "no drill 'fire'"),
        (["-N", "1"], "Invalid value for '--nodes'"),
    ],
)
def test_a_wrong_command_line_is_told(words: list[str], told: str) -> None:
    answer = run("drill", "-p", "train", *words)
    assert answer.status == 2
    assert told in " ".join(answer.err.replace("│", "").split())


def test_settings_that_do_not_parse_keep_the_drill_from_being_held(tmp_path: Path) -> None:
    site = Site(tmp_path, "MaxRequeue=3\n")
    answer = site.run("drill", "-p", "train")
    assert answer.status == 2
    assert answer.err.startswith(f"srecover: error: {site.conf}:2: ")
