"""What the store promises, on SQLite and on MariaDB alike."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_recovery.records import Incident, Observation, Stage, Verdict
from slurm_recovery.store import store as store_module
from slurm_recovery.store.errors import StoreConflict
from slurm_recovery.store.store import Store
from tests.store.builders import a_release, a_step, an_attempt, an_incident, judged
from tests.store.conftest import Clock

HOSTILE = "a\0b \udc80\ud83d 😀 ё 'x\" \\u0000 %s :name \r\n\x1b[31m; DROP TABLE incident; --"


def ids(incidents: list[Incident]) -> list[int]:
    return [incident.id for incident in incidents]


def test_a_saved_incident_is_found_as_it_was(store: Store) -> None:
    new = judged(an_incident(note="why").at("detected", 1.5), "nccl_timeout", Verdict.REQUEUE_EXCLUDE)
    saved = store.save(new)
    assert saved == new.model_copy(update={"id": saved.id})
    assert saved.id > 0
    assert store.get(saved.id) == store.find(saved.attempt) == saved


def test_what_is_not_there_is_none(store: Store) -> None:
    assert store.get(1) is None
    assert store.find(an_attempt()) is None
    assert store.of_job("mars", "7") == store.list() == store.open_incidents("mars") == store.steps(1) == []
    assert store.history(an_attempt(restarts=3)) == []
    assert store.purge(1e10) == store.restarts_since("mars", 0) == 0


def test_saving_again_replaces_the_record_and_appends_to_the_audit(store: Store) -> None:
    first = store.save(an_incident(), a_step(1, detail="seen"))
    then = store.save(first.model_copy(update={"stage": Stage.REQUEUED}), a_step(2, "intent", "requeue"), a_release(3))
    assert then.id == first.id
    assert store.get(first.id) == then
    assert store.steps(first.id) == [a_step(1, detail="seen"), a_step(2, "intent", "requeue"), a_release(3)]


def test_steps_keep_the_order_of_writing_whatever_their_times(store: Store) -> None:
    saved = store.save(an_incident(), a_step(9), a_step(2))
    store.save(saved, a_step(5))
    assert [step.time for step in store.steps(saved.id)] == [9, 2, 5]


def test_one_attempt_has_one_incident(store: Store) -> None:
    saved = store.save(an_incident(note="first"))
    with pytest.raises(StoreConflict, match="find"):
        store.save(an_incident(note="second"), a_step())
    assert store.list() == [saved]
    assert store.steps(saved.id) == []


def test_one_attempt_without_a_start_has_one_incident(store: Store) -> None:
    store.save(an_incident(start=None))
    with pytest.raises(StoreConflict):
        store.save(an_incident(start=None))


def test_an_id_that_is_not_there_cannot_be_updated(store: Store) -> None:
    with pytest.raises(StoreConflict, match="incident 99 is not there"):
        store.save(an_incident().model_copy(update={"id": 99}), a_step())
    assert store.steps(99) == []


def test_saving_the_same_record_twice_is_no_conflict(store: Store) -> None:
    saved = store.save(an_incident())
    assert store.save(saved) == saved


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (an_attempt(start=1000.9), True),
        (an_attempt(state="FAILED", name="other"), True),
        (an_attempt(start=999.9), False),
        (an_attempt(start=None), False),
        (an_attempt(restarts=1), False),
        (an_attempt(8), False),
        (an_attempt(cluster="Mars"), False),
    ],
)
def test_an_attempt_is_cluster_job_restarts_and_whole_second_of_its_start(store: Store, other, same) -> None:
    store.save(an_incident())
    assert (store.find(other) is not None) == same


def test_no_start_equals_no_start(store: Store) -> None:
    saved = store.save(an_incident(start=None))
    assert store.find(an_attempt(start=None)) == saved
    assert store.find(an_attempt(start=0)) is None


def test_of_job_goes_by_label_newest_first(store: Store, clock: Clock) -> None:
    task = {"array_job_id": 120, "array_task_id": 3}
    old = store.save(an_incident(125, **task))
    clock.now += 1
    new = store.save(an_incident(125, restarts=1, start=2000, **task))
    store.save(an_incident(120))
    store.save(an_incident(125, cluster="venus", **task))
    assert store.of_job("mars", "120_3") == [new, old]
    assert store.of_job("mars", "125") == []


def test_open_incidents_are_those_with_something_left_to_do_oldest_first(store: Store, clock: Clock) -> None:
    for job, stage in enumerate(Stage, 1):
        store.save(an_incident(job, stage=stage))
        clock.now -= 1
    store.save(an_incident(99, cluster="venus"))
    found = store.open_incidents("mars")
    assert {one.stage for one in found} == {stage for stage in Stage if stage.open}
    assert ids(found) == sorted(ids(found), reverse=True)


def test_list_filters_and_limits(store: Store, clock: Clock) -> None:
    one = store.save(judged(an_incident(1), "ecc", Verdict.REQUEUE_EXCLUDE))
    clock.now += 10
    two = store.save(judged(an_incident(2, user="bob", stage=Stage.STOPPED), "oom", Verdict.STOP))
    clock.now += 10
    three = store.save(an_incident(3, partition="debug", cluster="venus"))
    assert store.list() == [three, two, one]
    assert store.list("mars") == [two, one]
    assert store.list(limit=1) == [three]
    assert store.list(user="bob") == [two]
    assert store.list(user="Bob") == []
    assert store.list(partition="debug") == [three]
    assert store.list(since=clock.now - 10) == [three, two]
    assert store.list(stages=[Stage.STOPPED, Stage.LEFT]) == [two]
    assert store.list(stages=[]) == []
    assert store.list(reason="ecc") == [one]
    assert store.list("mars", verdict=Verdict.STOP, user="bob") == [two]


def test_each_gives_what_list_finds(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PAGE", 2)
    saved = []
    for number in range(1, 6):
        clock.now += 10
        saved.append(store.save(an_incident(number, user="ada" if number % 2 else "bob")))
    store.save(an_incident(9, cluster="venus"))
    assert list(store.each("mars")) == saved
    assert len(list(store.each())) == 6
    assert list(store.each("mars", user="ada", since=clock.now - 20)) == saved[2::2]
    assert list(store.each(partition="test")) == []


def test_without_step_are_those_whose_audit_has_none_of_the_actions(store: Store, clock: Clock) -> None:
    begun = clock.now
    store.save(an_incident(1, stage=Stage.RUNNING), a_step(action="productive"))
    bare = store.save(an_incident(2, stage=Stage.RUNNING))
    other = store.save(an_incident(3, stage=Stage.RUNNING), a_step(action="release"), a_step(action="exclude"))
    store.save(an_incident(4, stage=Stage.LEFT))
    store.save(an_incident(5, stage=Stage.RUNNING, cluster="venus"))
    told = ("productive", "not_productive")
    assert list(store.without_step("mars", Stage.RUNNING, told, begun)) == [bare.id, other.id]
    assert list(store.without_step("mars", Stage.RUNNING, told, begun + 1)) == []
    store.save(bare, a_step(action="not_productive"))
    assert list(store.without_step("mars", Stage.RUNNING, told, begun)) == [other.id]


def test_restarts_of_one_user(store: Store) -> None:
    for number, user in enumerate(("ada", "bob", "ada"), 1):
        attempt = an_attempt(number).model_copy(update={"user": user})
        store.save(an_incident(number).model_copy(update={"attempt": attempt}), a_release(100))
    assert store.restarts_since("mars", 0) == 3
    assert store.restarts_since("mars", 0, user="ada") == 2


def test_only_releases_that_are_done_count(store: Store) -> None:
    store.save(an_incident(1), a_release(100), a_release(200), a_release(200.5, "failed"))
    store.save(an_incident(2), a_step(300, "intent", "requeue"), a_step(300, "outcome", "hold", result="done"))
    store.save(an_incident(3, cluster="venus"), a_release(300))
    assert store.restarts_since("mars", 0) == 2
    assert store.restarts_since("mars", 200) == 1
    assert store.restarts_since("mars", 201) == 0


def test_purge_takes_old_closed_incidents_with_their_steps(store: Store, clock: Clock) -> None:
    closed = store.save(an_incident(1, stage=Stage.LEFT), a_step())
    still_open = store.save(an_incident(2), a_step())
    clock.now += 100
    recent = store.save(an_incident(3, stage=Stage.LEFT), a_step())
    assert store.purge(clock.now) == 1
    assert store.list() == [recent, still_open]
    assert [len(store.steps(one.id)) for one in (closed, still_open, recent)] == [0, 1, 1]


def test_the_number_of_a_purged_incident_is_not_given_again(store: Store, clock: Clock) -> None:
    gone = store.save(an_incident(1, stage=Stage.LEFT))
    store.purge(clock.now + 1)
    assert store.save(an_incident(2)).id > gone.id


def attempts(store: Store, *starts_and_restarts: tuple[float | None, int], **more: str) -> list[Incident]:
    return [store.save(an_incident(start=start, restarts=count, **more)) for start, count in starts_and_restarts]


def test_history_is_the_earlier_attempts_of_the_job_newest_first(store: Store) -> None:
    first, second, _this, _later = attempts(store, (100, 0), (200, 1), (300, 2), (400, 3))
    store.save(an_incident(8, start=150, restarts=1))
    store.save(an_incident(cluster="venus", start=150, restarts=1))
    assert store.history(an_attempt(start=300, restarts=2)) == [second, first]


def test_history_of_a_first_attempt_is_empty_though_the_id_was_used_before(store: Store) -> None:
    attempts(store, (100, 0), (200, 1))
    assert store.history(an_attempt(start=9000, restarts=0)) == []


def test_history_ends_at_the_first_attempt_of_the_present_job(store: Store) -> None:
    *_others, first = attempts(store, (100, 0), (200, 1), (9000, 0))
    assert store.history(an_attempt(start=9100, restarts=3)) == [first]


def test_history_ends_where_the_restart_count_would_fall(store: Store) -> None:
    *_others, second = attempts(store, (100, 4), (9000, 1))
    assert store.history(an_attempt(start=9100, restarts=2)) == [second]


def test_history_ends_after_as_many_attempts_as_there_were_restarts(store: Store) -> None:
    *_others, first, second = attempts(store, (100, 1), (9000, 1), (9100, 2))
    assert store.history(an_attempt(start=9200, restarts=2)) == [second, first]


def test_history_has_gaps_where_attempts_left_no_incident(store: Store) -> None:
    first, fourth = attempts(store, (100, 0), (400, 3))
    assert store.history(an_attempt(start=900, restarts=8)) == [fourth, first]


def test_history_takes_a_count_raised_before_the_epilog_ran(store: Store) -> None:
    first, second = attempts(store, (100, 1), (200, 2))
    assert store.history(an_attempt(start=300, restarts=2)) == [second, first]


def test_history_ends_at_another_users_job(store: Store) -> None:
    attempts(store, (100, 1), user="bob")
    mine = attempts(store, (9000, 2))
    assert store.history(an_attempt(start=9100, restarts=5)) == mine


def test_history_without_a_start_time(store: Store, clock: Clock) -> None:
    clock.now = 150
    first = store.save(an_incident(start=100, restarts=0))
    clock.now = 250
    never_started = store.save(an_incident(start=None, restarts=1))
    clock.now = 350
    third = store.save(an_incident(start=300, restarts=2))
    this = an_attempt(start=None, restarts=3)
    store.save(Incident(attempt=this))
    assert store.history(this) == [third, never_started, first]
    assert store.history(third.attempt) == [never_started, first]


def test_hostile_text_comes_back_as_it_was(store: Store) -> None:
    attempt = an_attempt(name=HOSTILE, comment=HOSTILE, user=HOSTILE, partition=HOSTILE, cluster=HOSTILE)
    incident = Incident(attempt=attempt, observation=Observation(attempt=attempt, log_tail=HOSTILE * 1000))
    saved = store.save(incident, a_step(detail=HOSTILE, action=HOSTILE, result=HOSTILE))
    assert store.find(attempt) == saved
    assert store.list(HOSTILE, user=HOSTILE, partition=HOSTILE) == [saved]
    assert store.open_incidents(HOSTILE) == [saved]
    (step,) = store.steps(saved.id)
    assert step.detail.startswith("ab \\udc80\\ud83d 😀 ё")


def test_text_longer_than_its_column_still_finds_its_incident(store: Store) -> None:
    saved = store.save(an_incident(user="u" * 1000, partition="😀" * 1000, cluster="c" * 1000))
    assert store.list(user="u" * 1000, partition="😀" * 1000) == [saved]
    assert store.find(saved.attempt) == saved


def test_a_record_of_megabytes(store: Store) -> None:
    attempt = an_attempt()
    saved = store.save(Incident(attempt=attempt, observation=Observation(attempt=attempt, log_tail="ё\n" * 500_000)))
    assert store.get(saved.id) == saved


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(), max_size=40), when=st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_time(store: Store, text: str, when: float) -> None:
    found = store.find(an_attempt(cluster=text, user=text))
    new = an_incident(cluster=text, user=text, note=text).at(text, when)
    saved = store.save(new.model_copy(update={"id": found.id if found else 0}), a_step(1, detail=text, action=text))
    assert store.get(saved.id) == saved
    assert store.steps(saved.id)
