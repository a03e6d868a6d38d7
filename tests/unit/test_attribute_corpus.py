"""Kept failures: each folder of tests/corpus is a case with its expected answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.evidence.case import CaseError, read_case
from slurm_recovery.records import Category, Source
from tests.score import CORPUS, LEAST, answer, cases, score

CORPORA = (CORPUS, CORPUS / "real")
CASES = [folder for corpus in CORPORA for folder in cases(corpus)]
# What is known to be answered wrongly, as `python -m tests.score` prints it: no miss comes or goes unseen.
MISSES = (CORPUS / "misses.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    one = answer(folder)
    assert list(one.misses) == [miss for miss in MISSES if miss.startswith(f"{folder.name}: ")]
    assert not one.names_a_healthy_node
    assert one.found.because
    assert set(one.found.suspect_nodes) <= set(one.nodes)
    assert all(beaten.why for beaten in one.found.beaten)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
def test_so_many_are_right(corpus: Path) -> None:
    found = score(corpus)
    assert {field: share for field in LEAST if (share := found.share(field)) < LEAST[field]} == {}
    assert (found.healthy_named, found.wrongly_stopped) == ([], [])


def test_there_are_cases() -> None:
    assert [len(cases(corpus)) >= least for corpus, least in zip(CORPORA, (119, 30), strict=True)] == [True, True]


def test_misses_on_record_are_of_cases_that_are_there() -> None:
    assert {miss.partition(": ")[0] for miss in MISSES} <= {folder.name for folder in CASES}


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
