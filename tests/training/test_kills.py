"""Real training software, killed while it writes a checkpoint, goes on from the newest complete one, each time.

What is held after each kill, with F the greatest step whose save had returned: `find` names step F, or the step that
was being written then if all of it is there; the software loads what was named and says that it is of that step; at
the end its loss is the same, to the last bit, as that of a run that nobody disturbed. What `find` keeps in reserve is
complete too. Without any complete checkpoint it names none.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_recovery.checkpoint.found import Saved
from slurm_recovery.checkpoint.search import find
from tests.training.formats import FORMATS, Format
from tests.training.software.run import EVERY, STEPS
from tests.training.software.stops import Outcome, Plan
from tests.training.software_server import SoftwareServer

IN_A_ROW = 7  # kills of one training before it may end
BY_CLOCK = 0.2  # of the kills: after a time instead of before a call
INSIDE = 0.8  # so many of the kills must come within a checkpoint's write


@dataclass
class Count:
    kills: int = 0
    inside: int = 0
    torn: int = 0
    newer: int = 0  # the step that was being written was complete
    calls: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        self.kills += 1
        self.inside += outcome.inside
        self.torn += outcome.inside and outcome.torn
        self.calls.add(outcome.at)


@pytest.mark.parametrize("software", FORMATS, ids=str)
def test_killed_while_it_saves_it_goes_on_from_the_newest_complete_step(
    software: Format, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(software.module + os.environ.get("SEED", ""))
    count = Count()
    with SoftwareServer(software.module, tmp_path) as server:
        whole = server.attempt(tmp_path / "undisturbed")
        assert steps(whole, "saved") == list(range(EVERY, STEPS + 1, EVERY)), server.log.read_text()[-3000:]
        assert newest_of(tmp_path / "undisturbed", software).step == STEPS
        on_disk = sum(path.stat().st_size for path in (tmp_path / "undisturbed").rglob("*") if path.is_file())
        assert whole.seen_bytes >= on_disk > 0  # no write goes past the filter
        for number in itertools.count():
            training = Training(server, software, tmp_path / f"training-{number}", whole, chance, count)
            training.run()
            if count.kills >= software.kills:
                break
    share = count.inside / count.kills
    text = f"{count.kills} kills, {count.inside} within a write, {count.torn} of these in the middle of one call,"
    record_property("kills", f"{software}: {text} {count.newer} with the write complete, at {len(count.calls)} calls")
    assert share >= INSIDE


@dataclass
class Training:
    """One training, killed and started again until it ends."""

    server: SoftwareServer
    software: Format
    folder: Path
    whole: Outcome
    chance: random.Random
    count: Count
    finished: set[int] = field(default_factory=set)  # steps whose save returned, or that were loaded

    def run(self) -> None:
        newest: Saved | None = None
        for turn in itertools.count():
            begin = newest.step if newest and newest.step else 0
            stop = turn < IN_A_ROW and self.count.kills < self.software.kills and begin < STEPS
            plan = self.plan(begin) if stop else None
            outcome = self.server.attempt(self.folder, newest.path if newest else "", plan)
            self.check_start(outcome, newest)
            if plan is None:
                break
            assert outcome.killed, self.said(plan, outcome)
            self.count.add(outcome)
            newest = self.look(plan, outcome)
        assert outcome.code == 0, self.said(None, outcome)
        assert outcome.marks[-1] == self.whole.marks[-1]  # the loss
        # Hugging Face's Trainer takes a step more where it begins from the last.
        assert newest_of(self.folder, self.software).step in (STEPS, *steps(outcome, "saved")[-1:])

    def plan(self, begin: int) -> Plan:
        """A kill in one of the next two saves."""
        left = (STEPS - begin) // EVERY
        save = self.chance.randint(1, min(2, left))
        like = begin // EVERY + save - 1  # late saves also delete old checkpoints
        if self.chance.random() < BY_CLOCK:
            return Plan(save, delay=self.chance.uniform(0, 0.9) * self.whole.seconds[like])
        part = self.chance.choice((0.0, self.chance.uniform(0.2, 1)))
        return Plan(save, self.chance.randint(1, self.whole.changes[like]), part)

    def check_start(self, outcome: Outcome, newest: Saved | None) -> None:
        if newest is None:
            assert not steps(outcome, "loaded"), self.said(None, outcome)
        else:
            assert steps(outcome, "loaded") == [newest.step], (newest, self.said(None, outcome))
            self.finished.add(newest.step or 0)
        self.finished.update(steps(outcome, "saved"))

    def look(self, plan: Plan, outcome: Outcome) -> Saved | None:
        found = find(str(self.folder), self.software.rules)
        said = f"{found}\n{self.said(plan, outcome)}"
        assert not found.gaps, said
        assert {saved.step for saved in found.earlier} <= self.finished, said
        if found.newest is None:
            assert not self.finished, said
        elif found.newest.step != max(self.finished, default=0):
            assert found.newest.step == steps(outcome, "saving")[-1] > max(self.finished, default=0), said
            self.count.newer += 1
        return found.newest

    def said(self, plan: Plan | None, outcome: Outcome) -> str:
        files = sorted((str(path.relative_to(self.folder)), path.stat().st_size) for path in self.folder.rglob("*"))
        return f"{plan}\n{outcome}\nfinished: {self.finished}\n{files}\n{self.server.log.read_text()[-2000:]}"


def newest_of(folder: Path, software: Format) -> Saved:
    found = find(str(folder), software.rules)
    assert found.newest is not None, found
    return found.newest


def steps(outcome: Outcome, word: str) -> list[int]:
    return [int(value) for said, value in outcome.marks if said == word]
