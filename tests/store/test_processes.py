"""Two processes write at once; one is killed while it writes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_attempt, an_incident

WRITER = """
import sys
from slurm_recovery.store.store import Store
from tests.store.builders import a_release, an_incident
url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Store.open(url) as store:
    for job in range(first, first + count):
        saved = store.save(an_incident(job))
        store.save(saved.model_copy(update={"note": "done"}), a_release(job))
"""

# Each save writes its number into the record and into the audit, with a bulky record: a torn save would show.
ENDLESS = """
import sys
from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_attempt
with Store.open(sys.argv[1]) as store:
    saved = store.find(an_attempt())
    print("ready", flush=True)
    number = int(saved.note)
    while True:
        number += 1
        store.save(saved.model_copy(update={"note": str(number), "times": {"x" * 100_000: 1.0}}), a_step(number))
"""

# Stops for ever after the given statement of a save, so that it can be killed exactly there.
STUCK = """
import sys, time
from sqlalchemy import event
from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_attempt
def stop(connection, cursor, statement, *_):
    if statement.startswith(sys.argv[2]):
        print("stopped", flush=True)
        time.sleep(600)
with Store.open(sys.argv[1]) as store:
    saved = store.find(an_attempt())
    event.listen(store._database.engine, "after_cursor_execute", stop)
    store.save(saved.model_copy(update={"note": "new"}), a_step(detail="new"))
"""


def process(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    assert child.stdout
    child.stdout.close()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    return child.stdout.readline().strip()


def test_processes_write_at_once(store: Store, url: str) -> None:
    children = [process(WRITER, url, first, 60) for first in (1000, 2000, 3000)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    found = store.list(limit=1000)
    assert len(found) == 180
    assert {one.note for one in found} == {"done"}
    assert store.restarts_since("mars", 0) == 180


def test_of_two_that_record_the_same_attempt_one_wins(store: Store, url: str) -> None:
    children = [process(WRITER, url, 1000, 60) for _ in range(2)]
    codes = sorted(child.wait(120) for child in children)
    assert codes in ([0, 1], [1, 1])
    found = store.list(limit=1000)
    assert len({one.attempt.job_id for one in found}) == len(found)


@pytest.mark.parametrize("statement", ["UPDATE incident", "INSERT INTO step"])
def test_killed_between_two_statements_leaves_the_old_record(store: Store, url: str, statement: str) -> None:
    old = store.save(an_incident(note="old"), a_step(detail="old"))
    child = process(STUCK, url, statement)
    assert first_line(child) == "stopped"
    kill(child)
    assert store.get(old.id) == old
    assert [step.detail for step in store.steps(old.id)] == ["old"]
    store.save(old, a_step(detail="and writable at once"))


def test_killed_at_any_moment_leaves_the_old_or_the_new(store: Store, url: str) -> None:
    saved = store.save(an_incident(note="0"), a_step(0))
    dice = random.Random(4)
    for _ in range(6):
        child = process(ENDLESS, url)
        assert first_line(child) == "ready"
        time.sleep(dice.uniform(0.005, 0.1))
        kill(child)
        found = store.find(an_attempt())
        assert found
        times = [step.time for step in store.steps(saved.id)]
        assert times == list(range(int(found.note) + 1))
    assert int(found.note) > 0
