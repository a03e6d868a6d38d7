"""How srecover tells what was really done: the decision's parenthesis, exclusions, unread logs, the kept log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_recovery.cli.snapshot import size
from slurm_recovery.cli.standing import RESTARTED, STAGES, done, mode, stage_word
from slurm_recovery.cli.times import shown
from slurm_recovery.records import Category, Decision, Gap, Incident, Observation, Outcome, Result, Source, Stage
from slurm_recovery.store.step import Step
from tests.unit.cli_site import END, HOSTILE, Answer, Site, recovered

TOLD = "ExcNodeList=n3 StartTime=now; left out: t4 (too few other nodes for this job)"


def an_incident(decision: dict[str, object] | None = None, **more: object) -> Incident:
    """`recovered`, with another decision or another end."""
    whole = recovered()
    assert whole.decision is not None
    changed = Decision.model_validate({**whole.decision.model_dump(), **(decision or {})})
    return whole.model_copy(update={"decision": changed, **more})


def on_record(folder: Path, incident: Incident, *steps: Step) -> Site:
    site = Site(folder)
    with site.store() as store:
        store.save(incident, *steps)
    return site


def decision_of(answer: Answer) -> str:
    return next(line for line in answer.lines if line.startswith("Decision: "))


OPEN = {"times": {"ended": END}, "excluded": ()}
STOP = {"verdict": "stop", "exclude": ()}


@pytest.mark.parametrize(
    ("incident", "said", "in_mode"),
    [
        (an_incident(), "carried out", "act"),
        (an_incident(stage=Stage.RELEASED), "carried out", "act"),
        (an_incident(stage=Stage.REQUEUED, **OPEN), "under way", "act"),
        (an_incident(stage=Stage.ABANDONED, note="refused", **OPEN), "not carried out", "act"),
        (an_incident({"exclude": ("n3", "t4")}), "carried out; t4 not excluded", "act"),
        (an_incident({"verdict": "requeue", "exclude": ()}), "carried out; n3 excluded as before", "act"),
        (an_incident({"act": False}, stage=Stage.LEFT), "advice only, Mode=observe", "observe"),
        (an_incident({**STOP, "act": False}, stage=Stage.LEFT), "advice only, Mode=observe", "observe"),
        (an_incident({"verdict": "none", "exclude": ()}, stage=Stage.LEFT), "left alone", "act"),
        (an_incident({"verdict": "none", "act": False}, stage=Stage.LEFT), "left alone", "observe"),
        (
            an_incident({"verdict": "none", "basis": "mode_off", "act": False}, stage=Stage.LEFT),
            "recovery is off for this job",
            "off",
        ),
        (an_incident(STOP, stage=Stage.STOPPED, note="left as it ended"), "left as it ended", "act"),
        (an_incident(STOP, stage=Stage.STOPPED, note="held for someone to look"), "held for someone to look", "act"),
        (an_incident(STOP, stage=Stage.STOPPED), "cancelled", "act"),
        (
            an_incident(STOP, stage=Stage.STOPPED, outcomes=(Outcome(action="cancel", result=Result.REFUSED),)),
            "cancel refused",
            "act",
        ),
        (an_incident(STOP, stage=Stage.HELD), "under way", "act"),
    ],
)
def test_the_decision_says_what_became_of_it(incident: Incident, said: str, in_mode: str, tmp_path: Path) -> None:
    assert (done(incident), mode(incident)) == (said, in_mode)
    site = on_record(tmp_path, incident)
    assert decision_of(site.run("show", "120")).endswith(f" ({said})")
    assert f" {in_mode} " in site.run("list", "-lh").out


def test_an_incident_without_a_decision_has_nothing_done() -> None:
    assert done(Incident(attempt=recovered().attempt)) == ""


def test_the_stage_running_is_called_restarted_and_stays_running_for_programs(tmp_path: Path) -> None:
    assert [stage_word(stage) for stage in Stage if stage_word(stage) != stage] == [RESTARTED]
    assert set(STAGES) == {*Stage, RESTARTED}
    site = on_record(tmp_path, recovered())
    assert json.loads(site.run("list", "--json").out)[0]["stage"] == "running"


# -- exclusions ----------------------------------------------------------------------------------


def test_a_node_that_was_left_out_is_not_said_to_be_excluded(tmp_path: Path) -> None:
    exclude = Outcome(action="exclude", result=Result.DONE, detail=TOLD)
    site = on_record(tmp_path, an_incident({"exclude": ("n3", "t4")}, outcomes=(exclude,)))
    lines = site.run("show", "120").lines
    begin = lines.index("Decision: requeue_exclude n3 (carried out; t4 not excluded)")
    assert lines[begin + 1] == "   left out: t4 (too few other nodes for this job)"
    assert site.run("list", "-h").lines[0].split()[-1] == "n3"
    assert json.loads(site.run("list", "--json").out)[0]["excluded"] == ["n3"]


def test_what_was_left_out_is_told_by_the_intent_where_the_outcome_tells_an_error(tmp_path: Path) -> None:
    refused = Outcome(action="start", result=Result.REFUSED, detail="Invalid node name specified")
    intent = Step(time=END, kind="intent", action="start", detail=TOLD.replace("n3", "(none)"))
    answer = on_record(tmp_path, an_incident(excluded=(), outcomes=(refused,)), intent).run("show", "120")
    assert decision_of(answer) == "Decision: requeue_exclude (carried out; n3 not excluded)"
    assert "   left out: t4 (too few other nodes for this job)" in answer.lines


def test_a_node_that_gave_way_is_told(tmp_path: Path) -> None:
    why = "n3 no longer excluded: Slurm shows Reason=BadConstraints"
    gave = Outcome(action="give_way", result=Result.DONE, detail=why)
    site = on_record(tmp_path, an_incident(excluded=(), outcomes=(gave,)))
    assert f"   {why}" in site.run("show", "120").lines
    assert site.run("list", "-h").lines[0].split()[-1] == shown(END)[5:16]


def test_before_the_restart_nothing_is_excluded_yet(tmp_path: Path) -> None:
    site = on_record(tmp_path, an_incident(stage=Stage.DECIDED, **OPEN))
    assert decision_of(site.run("show", "120")) == "Decision: requeue_exclude n3 (under way)"
    assert json.loads(site.run("list", "--json").out)[0]["excluded"] == []


def test_advice_names_the_nodes_that_it_would_exclude(tmp_path: Path) -> None:
    site = on_record(tmp_path, an_incident({"act": False}, stage=Stage.LEFT, excluded=()))
    assert site.run("list", "-h").lines[0].split()[-1] == "n3"


# -- what could not be read ----------------------------------------------------------------------


def unknown(gaps: int, log_path: str = "", source: Source = Source.JOB_LOG) -> Incident:
    """An incident of which nothing is known, and `gaps` logs of which could not be read."""
    whole = recovered()
    assert whole.attribution is not None
    missing = tuple(Gap(source=source, what=f"/home/ada/{n}.out", why="EACCES: Permission denied") for n in range(gaps))
    return whole.model_copy(
        update={
            "attribution": whole.attribution.model_copy(
                update={"reason": "unknown", "category": Category.UNKNOWN, "suspects": (), "root_rank": None}
            ),
            "observation": Observation(attempt=whole.attempt, gaps=missing, log_path=log_path),
        }
    )


@pytest.mark.parametrize(("gaps", "told"), [(0, 0), (1, 1), (3, 3), (5, 3)])
def test_logs_that_could_not_be_read_stand_directly_under_an_unknown_cause(
    tmp_path: Path, gaps: int, told: int
) -> None:
    lines = on_record(tmp_path, unknown(gaps)).run("show", "120").lines
    begin = next(n for n, line in enumerate(lines) if line.startswith("Cause: unknown"))
    said = [f"   its log could not be read: /home/ada/{n}.out: EACCES: Permission denied" for n in range(told)]
    assert lines[begin + 1 : begin + 1 + told] == said
    assert sum("could not be read: " in line for line in lines) == told


def test_a_known_cause_is_not_put_in_doubt(tmp_path: Path) -> None:
    site = on_record(tmp_path, recovered())
    assert "could not be read: " not in site.run("show", "120").out
    assert "(" not in site.run("list").out


@pytest.mark.parametrize(
    ("incident", "reason"),
    [
        (unknown(0), "unknown"),
        (unknown(1), "unknown (no log)"),
        (unknown(1, log_path="/home/ada/1.err"), "unknown (log gap)"),
        (unknown(1, source=Source.KERNEL_LOG), "unknown"),
    ],
)
def test_list_marks_causes_that_are_unknown_for_want_of_a_log(tmp_path: Path, incident: Incident, reason: str) -> None:
    site = on_record(tmp_path, incident)
    assert f" {reason} requeue " in site.run("list", "-h", "-r", "unknown").out
    assert json.loads(site.run("list", "--json").out)[0]["reason"] == "unknown"


# -- the kept log --------------------------------------------------------------------------------


def with_log(tail: str, end: int = 70_000) -> Incident:
    whole = recovered()
    observation = Observation(attempt=whole.attempt, log_path="/home/ada/llm.out", log_tail=tail, log_end=end)
    return whole.model_copy(update={"observation": observation})


def test_show_log_prints_the_kept_end_with_its_path_and_that_it_is_a_snapshot(tmp_path: Path) -> None:
    site = on_record(tmp_path, with_log("step 1\r 10%\r 20%\r\n\nlast\tline\n\n"))
    head = f"/home/ada/llm.out: last 30 bytes; a snapshot of {shown(END + 0.3)}, the file may have changed since"
    expected = [head, "step 1", " 10%", " 20%", "", "last    line"]
    assert site.run("show", "120", "--log").lines == expected
    assert site.run("show", "-i", "1", "--log").lines == expected


def test_show_says_how_much_of_the_log_is_on_record_and_how_to_see_it(tmp_path: Path) -> None:
    site = on_record(tmp_path, with_log("x" * 12_288))
    assert "Log: /home/ada/llm.out, last 12K on record: srecover show 120 --log" in site.run("show", "120").lines
    older = "Log: /home/ada/llm.out, last 12K on record: srecover show --incident 1 --log"
    assert older in site.run("show", "120", "--all").lines


@pytest.mark.parametrize(("tail", "said"), [("x" * 300, "all 300 bytes on record"), ("", "nothing in it on record")])
def test_a_short_log_is_there_whole(tmp_path: Path, tail: str, said: str) -> None:
    assert f"Log: /home/ada/llm.out, {said}" in on_record(tmp_path, with_log(tail, len(tail))).run("show", "120").out


def test_no_line_of_a_log_is_obeyed_by_the_terminal(tmp_path: Path) -> None:
    answer = on_record(tmp_path, with_log(HOSTILE * 3)).run("show", "120", "--log")
    assert answer.status == 0
    assert all(line.isprintable() for line in answer.out.split("\n"))


@pytest.mark.parametrize("incident", [unknown(1), with_log(""), recovered().model_copy(update={"observation": None})])
def test_where_no_log_is_on_record_that_is_one_line(tmp_path: Path, incident: Incident) -> None:
    answer = on_record(tmp_path, incident).run("show", "120", "--log")
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert answer.err.startswith("srecover: error: no log of job 120 is on record")


def test_the_reason_why_there_is_no_log_is_told(tmp_path: Path) -> None:
    answer = on_record(tmp_path, unknown(1)).run("show", "120", "--log")
    assert answer.err.endswith("is on record (/home/ada/0.out: EACCES: Permission denied)\n")


@pytest.mark.parametrize("more", ["--all", "--json"])
def test_a_log_is_of_one_attempt_and_text(tmp_path: Path, more: str) -> None:
    assert on_record(tmp_path, recovered()).run("show", "120", "--log", more).status == 2


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1K"), (65_536, "64K"), (3 << 20, "3M")]
)
def test_sizes_are_short(count: int, text: str) -> None:
    assert size(count) == text
