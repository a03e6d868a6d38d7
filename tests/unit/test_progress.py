"""Whether a job gets further, and from which checkpoint its next attempt begins."""

from __future__ import annotations

import pytest

from slurm_recovery.config.settings import Config, Mode, Settings
from slurm_recovery.decide.history import ledger
from slurm_recovery.decide.progress import (
    MOST_REFUSED,
    Begin,
    Course,
    Gain,
    Gained,
    begin_from,
    course,
    gains,
    refused_checkpoints,
)
from slurm_recovery.decide.rules import Case, decide
from slurm_recovery.records import (
    Attempt,
    Attribution,
    Category,
    Checkpoint,
    Decision,
    Gap,
    Incident,
    Observation,
    PassedOver,
    Progress,
    Source,
    Suspect,
    Trust,
    Verdict,
)

FOLDER = "/home/ada/ckpt"
UNSEEN = (Gap(source=Source.CHECKPOINT, what=FOLDER, why="EACCES"),)
LOG_CUT = (Gap(source=Source.JOB_LOG, what="/home/ada/llm.out", why="no answer"),)
CORRUPT = Attribution(category=Category.STORAGE, reason="checkpoint_corrupt")
ECC = Attribution(category=Category.HARDWARE, reason="gpu_ecc_uncorrectable")
RESTART = Decision(verdict=Verdict.REQUEUE, basis="restart", because="x", act=True)
LEFT = Decision(verdict=Verdict.NONE, basis="no_requeue", because="x")

LENGTH = 1000  # seconds of an attempt


def saved(step: int | None, time: float | None = None, path: str = "") -> Checkpoint:
    """Written at the second of its step, where no other time is given."""
    when = time if time is not None else step or 0
    return Checkpoint(path=path or f"{FOLDER}/{step}", format="dcp", step=step, time=when)


def has(*steps: int, passed: bool = False) -> Progress:
    """A folder with complete checkpoints of these steps, the newest first."""
    newest, *earlier = [*map(saved, steps), None]
    broken = (PassedOver(path=f"{FOLDER}/99999", why="half-written"),) if passed else ()
    return Progress(folder=FOLDER, newest=newest, earlier=tuple(one for one in earlier if one), passed=broken)


def at(step: int | None) -> Progress:
    """No folder; so far by the log."""
    return Progress(log_step=step)


def attempts(*seen: Progress | tuple[Progress | None, object] | None, act: Verdict = Verdict.REQUEUE) -> list[Incident]:
    """A job's attempts from the first to the last, as a history. With a progress: its gaps, or its attribution."""
    history: list[Incident] = []
    for number, one in enumerate(seen):
        progress, more = one if isinstance(one, tuple) else (one, None)
        gaps = more if isinstance(more, tuple) else ()
        attempt = Attempt(
            cluster="c",
            job_id=1,
            restart_count=number,
            state="FAILED",
            exit_code=1,
            start_time=number * LENGTH,
            end_time=number * LENGTH + 900,
        )
        incident = Incident(
            attempt=attempt,
            observation=Observation(attempt=attempt, progress=progress, gaps=gaps),
            attribution=more if isinstance(more, Attribution) else ECC,
            decision=RESTART.model_copy(update={"verdict": act}),
        )
        history.insert(0, incident)
    return history


MORE, NOTHING, UNKNOWN = Gained.MORE, Gained.NOTHING, Gained.UNKNOWN


@pytest.mark.parametrize(
    ("before", "now", "gain"),
    [
        (has(100), has(300), Gain(MORE, 200)),
        (has(100), has(100), Gain(NOTHING)),
        (has(300), has(100), Gain(NOTHING)),
        (has(), has(100), Gain(MORE, 100)),
        (has(), has(), Gain(NOTHING)),
        (has(100), has(), Gain(NOTHING)),
        (None, has(100), Gain(UNKNOWN)),
        (has(100), None, Gain(UNKNOWN)),
        (at(50), at(80), Gain(MORE, 30)),
        (at(50), at(50), Gain(NOTHING)),
        (at(50), at(None), Gain(UNKNOWN)),
        (at(None), at(50), Gain(UNKNOWN)),
        (has(100), at(500), Gain(UNKNOWN)),
        ((at(50), LOG_CUT), at(80), Gain(UNKNOWN)),
        (at(50), (at(40), LOG_CUT), Gain(UNKNOWN)),
        (has(100), (has(100), UNSEEN), Gain(UNKNOWN)),
        (has(100), (has(300), UNSEEN), Gain(MORE, 200)),
        ((has(100), UNSEEN), has(300), Gain(UNKNOWN)),
        ((has(300), UNSEEN), has(300), Gain(NOTHING)),
        (has(100), has(100).model_copy(update={"folder": "/elsewhere"}), Gain(UNKNOWN)),
    ],
)
def test_an_attempt_is_compared_with_the_best_before_it(
    before: Progress | None, now: Progress | None, gain: Gain
) -> None:
    assert gains(attempts(before, now)) == (gain, Gain(UNKNOWN))


def test_without_step_numbers_the_time_of_writing_tells() -> None:
    def last(time: float) -> Progress:
        return Progress(folder=FOLDER, newest=saved(None, time, f"{FOLDER}/last.pt"))

    assert gains(attempts(last(10), last(20), last(20)))[:2] == (Gain(NOTHING), Gain(MORE))
    assert gains(attempts(has(10), last(20)))[0] == Gain(MORE)
    assert gains(attempts(last(10), has(20)))[0] == Gain(MORE)


def test_the_best_is_that_of_all_attempts_before() -> None:
    assert gains(attempts(has(300), has(100), has(200)))[0] == Gain(NOTHING)
    assert gains(attempts(has(300), None, has(300)))[0] == Gain(NOTHING)
    assert gains(attempts(has(300), None, has(400)))[0] == Gain(MORE, 100)


def test_only_our_restarts_count_and_what_is_unknown_neither_counts_nor_breaks_the_row() -> None:
    same = has(100)
    assert course(attempts(same)).in_a_row == 0
    assert course(attempts(same, same, same))[:3] == (2, 2, 100)
    assert course(attempts(same, same, has(200), same, same))[:2] == (2, 3)
    assert course(attempts(same, same, None, same))[:2] == (2, 2)
    assert course(attempts(same, same, same, act=Verdict.NONE))[:2] == (0, 0)
    assert course(attempts(None, None, None, None)) == Course()
    assert course([]) == Course()


def verdict(history: list[Incident], **settings: object) -> Decision:
    """What is decided of the newest attempt."""
    incident = history[0]
    assert incident.attribution is not None
    counted = ledger(incident.attempt, history[1:], fast_failure=0)
    config = Config(settings=Settings.model_validate(settings))
    case = Case(incident.attempt, incident.attribution, config, counted, Mode.ACT, course=course(history))
    return decide(case)


def test_restarts_without_progress_stop_the_job_and_one_with_progress_in_between_does_not() -> None:
    same, many = has(100), {"max_requeues": 100, "stop_after_no_progress": 4}
    reasons = {"attribution": Attribution(category=Category.HARDWARE, reason="pcie_error")}

    def changed(*seen: Progress) -> list[Incident]:  # another cause each time, so that no cause's own budget ends first
        history = attempts(*seen)
        return [one.model_copy(update=reasons) if number % 2 else one for number, one in enumerate(history)]

    assert verdict(changed(same, same, same, same), **many).verdict is Verdict.REQUEUE
    stopped = verdict(changed(same, same, same, same, same), **many)
    assert (stopped.verdict, stopped.basis) == (Verdict.STOP, "no_progress")
    assert stopped.because == (
        "4 restarts in a row without a newer checkpoint or a later step (StopAfterNoProgress); last step 100"
    )
    assert verdict(changed(same, same, same, has(200), has(200)), **many).verdict is Verdict.REQUEUE
    assert verdict(changed(same, same, same, same, same), max_requeues=100, stop_after_no_progress=0).verdict.restarts


def test_a_restart_without_progress_counts_double_and_the_sentence_says_so() -> None:
    same = has(100)
    first = verdict(attempts(same, same))
    assert first.because.startswith("restart 2, counted as 3 of 3 (1 without progress counts double), ")
    stopped = verdict(attempts(same, same, same))
    assert (stopped.verdict, stopped.basis) == (Verdict.STOP, "budget_job")
    assert stopped.because == "2 restarts count as 4 of 3: 2 without progress count double"
    assert verdict(attempts(has(1), has(2), has(3))).because.startswith("restart 3 of 3, ")
    assert verdict(attempts(same, same, same), stop_after_no_progress=0).because.startswith("restart 3 of 3, ")


def test_the_owner_is_warned_while_the_job_may_still_go_on() -> None:
    same = has(100)
    assert verdict(attempts(same)).warning == ""
    assert verdict(attempts(same, same)).warning == (
        "no progress in the last restart: each counts double, and 3 in a row stop the job (StopAfterNoProgress)"
    )
    assert "in the last 2 restarts: " in verdict(attempts(same, same, same), max_requeues=9).warning
    assert verdict(attempts(same, same, has(200))).warning == ""
    assert verdict(attempts(same, same), stop_after_no_progress=0).warning == ""


def test_where_nothing_is_known_of_checkpoints_and_steps_nothing_changes() -> None:
    assert verdict(attempts(None, None, None)).because.startswith("restart 3 of 3, ")
    assert verdict(attempts(None, None, None, None)).because == "3 of 3 restarts used"


# -- checkpoints that cannot be loaded -----------------------------------------------------------------

BROKEN = (has(300, 200, 100), CORRUPT)


def path(step: int) -> str:
    return f"{FOLDER}/{step}"


def test_the_restart_begins_from_the_one_before_once_per_checkpoint() -> None:
    loose = {"max_requeues": 100, "stop_after_no_progress": 100}
    first = attempts(has(300, 200, 100))
    assert begin_from(first) == Begin(path(300), 300)
    once = attempts(has(300, 200, 100), BROKEN)
    assert begin_from(once) == Begin(path(200), 200, (path(300),))
    decision = verdict(once, **loose)
    assert (decision.verdict, decision.basis) == (Verdict.REQUEUE, "earlier_checkpoint")
    assert ", from an earlier checkpoint, of step 200: " in decision.because
    twice = attempts(has(300, 200, 100), BROKEN, BROKEN)
    assert begin_from(twice) == Begin(path(100), 100, (path(300), path(200)))
    assert verdict(twice, **loose).verdict is Verdict.REQUEUE
    thrice = attempts(has(300, 200, 100), BROKEN, BROKEN, BROKEN)
    assert begin_from(thrice) == Begin("", None, (path(300), path(200), path(100)))
    stopped = verdict(thrice, **loose)
    assert (stopped.verdict, stopped.basis) == (Verdict.STOP, "no_checkpoint_left")
    assert stopped.because == "no complete checkpoint is left to begin from: 3 could not be loaded"


def test_the_budgets_hold_for_it_too() -> None:
    assert verdict(attempts(has(300, 200), BROKEN, BROKEN)).basis == "budget_job"
    assert verdict(attempts(has(300, 200), BROKEN), max_requeues=0).basis == "budget_job"


def test_what_was_gained_after_a_retreat_counts_from_there() -> None:
    history = attempts(has(300, 200, 100), BROKEN, has(300, 250, 200, 100))
    assert gains(history)[:2] == (Gain(MORE, 50), Gain(NOTHING))
    assert begin_from(history) == Begin(path(250), 250, (path(300),))


def test_a_checkpoint_that_was_written_anew_is_no_longer_refused() -> None:
    again = Progress(folder=FOLDER, newest=saved(300, 2500), earlier=(saved(200),))
    history = attempts(has(300, 200), BROKEN, again)
    assert begin_from(history) == Begin(path(300), 300)
    assert refused_checkpoints(history) == ()
    assert gains(history)[0] == Gain(MORE, 100)


def test_the_first_attempt_began_from_what_had_been_written_before_it() -> None:
    start = {"start_time": 500}

    def first(progress: Progress) -> list[Incident]:
        (incident,) = attempts((progress, CORRUPT))
        return [incident.model_copy(update={"attempt": incident.attempt.model_copy(update=start)})]

    assert begin_from(first(has(300, 200))) == Begin(path(200), 200, (path(300),))
    assert begin_from(first(has(600, 200))) == Begin(path(600), 600)  # it wrote one: it had loaded what it began from
    assert verdict(first(has(600, 200))).basis == "reason_stops"
    assert verdict(first(has(300))).because.endswith("left to begin from: 1 could not be loaded")


def test_a_first_attempt_that_took_a_broken_one_is_led_to_the_complete_one() -> None:
    history = attempts((has(300, 200, passed=True), CORRUPT))
    assert begin_from(history) == Begin(path(300), 300)
    assert verdict(history).basis == "earlier_checkpoint"
    both = attempts((has(300, 200, passed=True), CORRUPT), (has(300, 200, passed=True), CORRUPT))
    assert begin_from(both) == Begin(path(200), 200, (path(300),))
    assert verdict(attempts((has(passed=True), CORRUPT))).because == "no complete checkpoint is left to begin from"


def test_an_attempt_that_wrote_on_had_loaded_its_checkpoint() -> None:
    history = attempts(has(300), (has(1500, 300), CORRUPT))
    assert refused_checkpoints(history) == ()
    assert verdict(history).basis == "reason_stops"


def test_where_no_folder_is_seen_it_stops_as_before() -> None:
    for seen in (None, at(100)):
        assert verdict(attempts((seen, CORRUPT))).basis == "reason_stops"
        assert begin_from(attempts((seen, CORRUPT))) == Begin()


def test_a_node_that_cannot_read_a_checkpoint_does_not_speak_against_it() -> None:
    one_node = CORRUPT.model_copy(update={"suspects": (Suspect(node="n1", trust=Trust.USER, because="x"),)})
    history = attempts(has(300, 200), (has(300, 200), one_node))
    assert refused_checkpoints(history) == ()
    assert begin_from(history) == Begin(path(300), 300)


def test_where_the_newest_may_not_be_the_newest_the_job_looks_itself() -> None:
    assert begin_from(attempts((has(300), UNSEEN))) == Begin()
    assert begin_from(attempts(has(300, 200), BROKEN, (has(300, 200), UNSEEN))) == Begin("", None, (path(300),))


def test_a_checkpoint_that_is_gone_or_passed_over_by_now_was_what_the_attempt_began_from() -> None:
    history = attempts(has(300, 200), (has(200, passed=True), CORRUPT))
    assert begin_from(history) == Begin(path(200), 200, (path(300),))
    gone = attempts(has(300), (has(), CORRUPT))
    assert verdict(gone).because == "no complete checkpoint is left to begin from: 1 could not be loaded"


def test_what_is_refused_is_bounded() -> None:
    steps = [*range(900, 0, -1)]
    broken = [(has(*steps), CORRUPT)] * (MOST_REFUSED + 20)
    assert len(refused_checkpoints(attempts(has(*steps), *broken))) == MOST_REFUSED
