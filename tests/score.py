"""How often the answers to labelled cases are right: `python -m tests.score FOLDER...` prints the figures.

A case's `expect` holds the expected answer, its `accept` other right ones. What counts most are two figures that
must be zero: healthy nodes named, and jobs stopped that should run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_recovery.cli.judge import judge
from slurm_recovery.config.settings import Config
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.evidence.case import read_case
from slurm_recovery.records import Attribution

CORPUS = Path(__file__).parent / "corpus"
FIELDS = {
    "category": "categories",
    "reason": "reasons",
    "action": "actions",
    "suspect_nodes": "suspect_nodes",
    "root_rank": "root_ranks",
}
# Shares of the answers that must be right, other right answers accepted.
LEAST = {"reason": 0.97, "action": 0.97, "suspect_nodes": 0.98, "root_rank": 0.92}


@dataclass(frozen=True)
class Answer:
    """One case: what was expected, and what was answered."""

    case: str
    expect: dict[str, Any]
    got: dict[str, Any]
    found: Attribution
    nodes: tuple[str, ...]

    def strictly(self, field: str) -> bool:
        return _same(self.got[field], self.expect[field])

    def right(self, field: str) -> bool:
        return any(_same(self.got[field], other) for other in self._accepted(field))

    def _accepted(self, field: str) -> list[Any]:
        return [self.expect[field], *self.expect.get("accept", {}).get(FIELDS[field], [])]

    @property
    def names_a_healthy_node(self) -> bool:
        suspects = {node for nodes in self._accepted("suspect_nodes") for node in nodes}
        return bool(set(self.got["suspect_nodes"]) - suspects)

    @property
    def stops_what_should_restart(self) -> bool:
        return self.got["action"] == "stop" and "stop" not in self._accepted("action")

    @property
    def misses(self) -> Iterator[str]:
        for field in FIELDS:
            if not self.right(field):
                yield f"{self.case}: {field} {self.got[field]!r}, expected {self.expect[field]!r}"


def _same(one: Any, other: Any) -> bool:
    return sorted(one) == sorted(other) if isinstance(other, list) and isinstance(one, list) else one == other


def cases(folder: Path) -> list[Path]:
    """The case folders directly inside a folder."""
    return sorted(path.parent for path in folder.glob("*/case.json"))


def answer(folder: Path) -> Answer:
    """What `srecover replay` answers."""
    expect = json.loads((folder / "case.json").read_text(encoding="utf-8"))["expect"]
    observation, found, decision = judge(read_case(folder, _SIGNATURES), _CONFIG)
    got = {
        "category": found.category.value,
        "reason": found.reason,
        "action": decision.verdict.value,
        "suspect_nodes": list(found.suspect_nodes),
        "root_rank": found.root_rank,
    }
    return Answer(folder.name, expect, got, found, observation.attempt.nodes)


_SIGNATURES = load_signatures()
_CONFIG = Config()


@dataclass(frozen=True)
class Score:
    """The answers to all cases of a folder."""

    answers: tuple[Answer, ...]

    def share(self, field: str, *, strict: bool = False) -> float:
        hits = sum(one.strictly(field) if strict else one.right(field) for one in self.answers)
        return hits / len(self.answers)

    @property
    def misses(self) -> list[str]:
        return [miss for one in self.answers for miss in one.misses]

    @property
    def healthy_named(self) -> list[str]:
        return [one.case for one in self.answers if one.names_a_healthy_node]

    @property
    def wrongly_stopped(self) -> list[str]:
        return [one.case for one in self.answers if one.stops_what_should_restart]

    def lines(self, name: str) -> Iterator[str]:
        yield f"{name}: {len(self.answers)} cases {'right':>22}{'strictly':>10}"
        for field in FIELDS:
            yield f"  {field:30}{self.share(field):>10.1%}{self.share(field, strict=True):>10.1%}"
        unsafe = (("healthy node named", self.healthy_named), ("stopped, should restart", self.wrongly_stopped))
        for what, names in unsafe:
            yield f"  {what:30}{len(names):>10}  {' '.join(names)}".rstrip()


def score(folder: Path) -> Score:
    return Score(tuple(map(answer, cases(folder))))


def main(folders: Iterable[str]) -> None:
    for folder in map(Path, folders):
        found = score(folder)
        for line in (*found.misses, *found.lines(folder.name)):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:] or [str(CORPUS), str(CORPUS / "real")])
