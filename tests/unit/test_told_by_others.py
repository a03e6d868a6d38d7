"""What flight recorders and attributors tell, in its place among all rows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_recovery.attribute.answer import read_answer
from slurm_recovery.attribute.engine import attribute
from slurm_recovery.config.settings import Settings
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.flight_compare import compare
from slurm_recovery.detect.flight_recorder import read_dump
from slurm_recovery.evidence.node_reports import Reports
from slurm_recovery.observe import Observer
from slurm_recovery.records import Attribution, Evidence, Observation, Source, Trust
from tests.unit.test_attribute_rows import KEY, LOST, WATCHDOG, XID79, observe

FLIGHT = Path(__file__).parent / "data/flight"
LATE_GUESS = {"reason": "gpu_ecc_uncorrectable", "suspect_nodes": ["a1"], "because": "It looks like memory."}


def dumps(name: str) -> tuple[Evidence, ...]:
    found = [read_dump(path.read_bytes(), int(path.name[-1]), str(path)) for path in sorted((FLIGHT / name).iterdir())]
    return compare(found, world=4)


def answer(*given: Any, also: tuple[Evidence, ...] = (), weight: float | None = None, **named: Any) -> Attribution:
    """The attribution with dumps beside the log, or with an attributor of this weight that guesses LATE_GUESS."""
    seen = observe(*given, **named)
    said = () if weight is None else _said(seen, LATE_GUESS, weight)
    return attribute(seen.model_copy(update={"evidence": (*seen.evidence, *also, *said)}))


def _said(seen: Observation, guess: dict[str, Any], weight: float) -> tuple[Evidence, ...]:
    data = json.dumps(guess).encode()
    return read_answer(data, seen.attempt, name="site", weight=weight, trust=Trust.USER)


TIMEOUTS = "\n".join(WATCHDOG.format(rank) for rank in (0, 1, 3))


def test_a_dump_that_is_behind_names_rank_and_node_of_a_timeout() -> None:
    found = answer(TIMEOUTS, also=dumps("sleeping"))
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("nccl_timeout", 2, ("a2",))
    assert "did not reach ALLREDUCE #6 that 3 others waited in" in found.because


def test_a_mismatch_in_the_dumps_explains_the_timeouts() -> None:
    found = answer(TIMEOUTS, also=dumps("mismatch"))
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("collective_mismatch", 1, ())


@pytest.mark.parametrize("name", ["sleeping", "mismatch", "killed"])
def test_an_error_that_names_itself_outranks_every_dump(name: str) -> None:
    assert answer(f"1: {KEY}", also=dumps(name)).reason == "python_exception"
    assert answer("", {"a1": XID79}, also=dumps(name)).reason == "gpu_fell_off_bus"
    assert answer("", also=dumps(name), state="TIMEOUT", exit_code=0).reason != "nccl_timeout"


def test_a_rank_without_a_dump_is_named_where_nothing_else_is() -> None:
    found = answer(LOST, also=dumps("killed"))
    assert (found.reason, found.root_rank, found.suspect_nodes) == ("nccl_timeout", 3, ())


@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0])
def test_no_weight_outranks_what_is_proven(weight: float) -> None:
    for given, reason in (
        ({"log": f"1: {KEY}"}, "python_exception"),
        ({"kernel": {"a2": XID79}}, "gpu_fell_off_bus"),
        ({"down": ("a2",)}, "node_fail"),
        ({"log": TIMEOUTS, "also": dumps("sleeping")}, "nccl_timeout"),
        ({"exit_code": 127}, "command_not_found" if weight < 0.5 else "gpu_ecc_uncorrectable"),
    ):
        assert answer(**given, weight=weight).reason == reason


def test_from_half_on_it_outranks_what_is_conditional() -> None:
    everyone = f"{TIMEOUTS}\n{WATCHDOG.format(2)}"
    heavy = answer(everyone, weight=0.5)
    assert (heavy.reason, heavy.suspect_nodes) == ("gpu_ecc_uncorrectable", ("a1",))
    assert "nccl_timeout" in {beaten.reason for beaten in heavy.beaten}
    light = answer(everyone, weight=0.3)
    assert light.reason == "nccl_timeout"
    assert "gpu_ecc_uncorrectable" in {beaten.reason for beaten in light.beaten}


def test_any_weight_outranks_unknown() -> None:
    assert answer("", weight=0.1).reason == "gpu_ecc_uncorrectable"
    assert answer("", weight=0.1, exit_code=0, signal=9).reason == "gpu_ecc_uncorrectable"
    assert answer("", weight=0.0).reason == "unknown"


def test_words_of_slurm_in_its_answer_are_not_slurms() -> None:
    """A quoted line of srun, a table, a node's name: without its reason its text changes no answer."""
    lines = [
        "srun: error: a1: task 1: Killed",
        "slurmstepd: error: *** STEP 1.0 ON a1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***",
        "srun: error: Node failure on a1",
        "a1:4242:4242 [0] NCCL INFO comm 0x1 rank 3 nranks 4",
        "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.",
    ]
    guess = {"reason": "unknown", "because": " ".join(lines), "evidence": lines}
    for given in ((TIMEOUTS,), (f"1: {KEY}",), ("",), ("srun: error: a2: task 3: Exited with exit code 1",)):
        seen = observe(*given)
        told = seen.model_copy(update={"evidence": (*seen.evidence, *_said(seen, guess, 1.0))})
        assert attribute(told) == attribute(seen)


def test_the_observer_reads_the_dumps_beside_the_log(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(TIMEOUTS + "\n")
    for path in (FLIGHT / "sleeping").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    observer = Observer(Settings(), load_signatures())
    attempt = observe(user_id=os.getuid(), work_dir=str(tmp_path), stdout=str(tmp_path / "job.log")).attempt
    seen = observer.observe(attempt, {}, frozenset(), (), Reports())
    assert [one.rank for one in seen.evidence if one.source is Source.FLIGHT_RECORDER] == [2]
    assert attribute(seen).suspect_nodes == ("a2",)
    for state in ("", "COMPLETED"):
        early = observer.observe(attempt.model_copy(update={"state": state}), {}, frozenset(), (), Reports())
        assert not [one for one in early.evidence if one.source is Source.FLIGHT_RECORDER]
