"""Kept failures: each folder of tests/corpus is a case with its expected answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.reasons import advised
from slurm_recovery.evidence.case import CaseError, read_case
from slurm_recovery.records import Category, Source

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "corpus").glob("*/case.json"))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    expected = json.loads((folder / "case.json").read_text())["expect"]
    observation = read_case(folder)
    found = attribute(observation)
    assert found.category in {expected["category"], *expected.get("accept", {}).get("categories", [])}
    assert found.reason in {expected["reason"], *expected.get("accept", {}).get("reasons", [])}
    assert sorted(found.suspect_nodes) == sorted(expected["suspect_nodes"])
    assert found.root_rank == expected["root_rank"]
    assert advised(found) == expected["action"]
    assert found.because
    assert set(found.suspect_nodes) <= set(observation.attempt.nodes)


def test_there_are_cases() -> None:
    assert len(CASES) >= 12


def test_a_case_without_logs_is_unknown_and_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text('{"job": {"state": "FAILED", "exit_code": 1, "nodes": ["a1"]}}')
    observation = read_case(tmp_path)
    assert [(gap.source, gap.what) for gap in observation.gaps] == [(Source.JOB_LOG, "job.log")]
    assert attribute(observation).category is Category.UNKNOWN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", 'no table "job"'),
        ('{"job": {"exit_code": "many"}}', "job.exit_code: "),
        ('{"job": {"colour": 1}}', "job.colour: Extra"),
    ],
    ids=["broken", "deep", "a-list", "no-number", "unknown-field"],
)
def test_a_broken_case_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "case.json").write_text(text)
    with pytest.raises(CaseError) as raised:
        read_case(tmp_path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_case_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="No such file"):
        read_case(tmp_path)
