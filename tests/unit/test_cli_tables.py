"""How srecover prints: tables, times, and text that somebody else chose."""

from __future__ import annotations

import unicodedata
from datetime import datetime

import pytest

from slurm_recovery.cli.tables import Column, fitted, harmless, lines
from slurm_recovery.cli.times import duration, moment, short, shown
from tests.unit.cli_site import HOSTILE

NOW = datetime(2026, 11, 29, 12, 30, 15).timestamp()


def test_nothing_that_a_terminal_obeys_is_left_of_any_character() -> None:
    every = "".join(map(chr, range(0x110000)))
    left = {unicodedata.category(char) for char in harmless(every)}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_hostile_text_is_spelt_out_and_can_be_read() -> None:
    assert harmless("\x1b[31m\u202e\r\n\U000e0001") == "\\x1b[31m\\u202e\\x0d\\x0a\\U000e0001"


@pytest.mark.parametrize("text", ["plain", "Prüfung 検査", "a  b"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert harmless(text) == text


def test_a_table_is_aligned_and_cut_as_squeue_cuts() -> None:
    columns = (Column("JOBID", 6, right=True), Column("USER", 4), Column("NODES", 0))
    assert list(lines(columns, [(12, "somebody", "n[1-3]"), ("120_3", "ada", "")])) == [
        " JOBID USER NODES",
        "    12 some n[1-3]",
        " 120_3 ada",
    ]


def test_no_header_on_demand() -> None:
    assert list(lines((Column("A", 1),), [("b",)], header=False)) == ["b"]


def test_a_row_is_one_line_whatever_is_in_it() -> None:
    columns = fitted((Column("A", 0), Column("B", 0)), [(HOSTILE, "b")])
    printed = list(lines(columns, [(HOSTILE, "b")]))
    assert len(printed) == 2
    assert all(line.isprintable() for line in printed)


def test_a_fitted_column_is_as_wide_as_its_text_and_no_wider_than_it_may_be() -> None:
    columns = fitted((Column("A", 0), Column("USER", 8), Column("B", 8)), [("long text", "somebody else", "b")])
    assert [column.width for column in columns] == [9, 8, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29", "2026-11-29T00:00:00"),
        ("2026-11-29T12:00", "2026-11-29T12:00:00"),
        ("2026-11-29T12:00:07", "2026-11-29T12:00:07"),
        ("11:20", "2026-11-29T11:20:00"),
        ("today", "2026-11-29T00:00:00"),
        ("yesterday", "2026-11-28T00:00:00"),
        ("now", "2026-11-29T12:30:15"),
        ("now-1hour", "2026-11-29T11:30:15"),
        ("now-90", "2026-11-29T12:28:45"),
        ("now-2days", "2026-11-27T12:30:15"),
        ("now-30min", "2026-11-29T12:00:15"),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, expected: str) -> None:
    assert shown(moment(text, NOW)) == expected


@pytest.mark.parametrize("text", ["", "soon", "now-", "now-1fortnight", "2026-13-01", "25:00"])
def test_what_is_no_time_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="write 2026"):
        shown(moment(text, NOW))


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "0:07"), (2096, "34:56"), (7384, "2:03:04"), (93784, "1-02:03:04"), (-1, "0:00")]
)
def test_durations_are_written_as_slurm_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("when", [None, float("inf"), 1e30])
def test_a_time_that_is_none_is_unknown(when: float | None) -> None:
    assert shown(when) == short(when) == "Unknown"


def test_a_short_time_has_neither_year_nor_seconds() -> None:
    assert short(NOW) == "11-29T12:30"
