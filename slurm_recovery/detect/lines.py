"""Splits a log into lines and finds, in bounded time, the few that could matter.

Owns bytes: line ends, colours, control characters, monster lines, and the search for literals. Knows no
reason. Written so that another matcher can replace `Prefilter` without anyone else noticing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from slurm_recovery.detect.signature import Signature

LONGEST_LINE = 8192  # of a longer line only the first and last half of this are looked at
MOST_ALIKE = 2000  # of lines that differ only in digits, as many are looked at: half the first, half the last
MOST_LINES = 10000  # and of all lines that could matter
# ECMA-48 control sequences and operating system commands, as terminals understand them
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,30}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,300}(?:\x07|\x1b\\)|[@-_])")
_CONTROL = bytes(code for code in range(32) if code not in b"\t\n\r") + b"\x7f"
_DIGITS = b"0123456789"

Line = tuple[int, bytes]


def split(data: bytes) -> list[Line]:
    """The log's lines with their numbers. A carriage return ends a line too, but is not counted as one."""
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    data = data.translate(None, _CONTROL)
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line]
    if b"\r" in data:
        lines = [(number, part) for number, line in lines for part in line.split(b"\r") if part]
    return [line if len(line[1]) <= LONGEST_LINE else _ends(line) for line in lines]


def _ends(line: Line) -> Line:
    half = LONGEST_LINE // 2
    return line[0], line[1][:half] + b" ... " + line[1][-half:]


def same(line: bytes) -> bytes:
    """The line without its digits: progress lines become alike, and are then looked at once."""
    return line.translate(None, _DIGITS)


class Prefilter:
    """Which signatures a line could match, judged by their literals alone."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._signatures = tuple(signatures)
        self._by_literal: dict[bytes, list[int]] = {}
        for index, signature in enumerate(signatures):
            for literal in signature.literals:
                self._by_literal.setdefault(same(literal.encode()), []).append(index)

    def candidates(self, lines: Sequence[Line]) -> list[tuple[Line, tuple[Signature, ...]]]:
        """The lines that hold a literal, each with the signatures to try on it, in their order.

        At most MOST_ALIKE lines that differ only in digits, and MOST_LINES in all.
        """
        kinds = [same(text) for _, text in lines]
        rows = self._rows(list(dict.fromkeys(kinds)))
        places = [place for place, kind in enumerate(kinds) if kind in rows]
        return [(lines[place], rows[kinds[place]]) for place in _ends_of(_thinned(places, kinds), MOST_LINES)]

    def _rows(self, kinds: Sequence[bytes]) -> dict[bytes, tuple[Signature, ...]]:
        """For each kind of line that holds a literal: the signatures to try."""
        found: dict[int, set[int]] = {}
        text = b"\n".join(kinds)
        starts = _starts(kinds)
        for literal, indexes in self._by_literal.items():
            for number in _where(text, literal, starts):
                found.setdefault(number, set()).update(indexes)
        return {
            kinds[number]: tuple(self._signatures[index] for index in sorted(indexes))
            for number, indexes in found.items()
        }


def _thinned(places: Sequence[int], kinds: Sequence[bytes]) -> list[int]:
    """The places without those in the middle of more than MOST_ALIKE lines of one kind."""
    totals = Counter(kinds[place] for place in places)
    if not totals or max(totals.values()) <= MOST_ALIKE:
        return list(places)
    seen: Counter[bytes] = Counter()
    kept = []
    for place in places:
        kind = kinds[place]
        if seen[kind] < MOST_ALIKE // 2 or seen[kind] >= totals[kind] - MOST_ALIKE // 2:
            kept.append(place)
        seen[kind] += 1
    return kept


def _ends_of(places: list[int], most: int) -> list[int]:
    return places if len(places) <= most else places[: most // 2] + places[-(most // 2) :]


def _starts(kinds: Sequence[bytes]) -> list[int]:
    starts, position = [], 0
    for kind in kinds:
        starts.append(position)
        position += len(kind) + 1
    return starts


def _where(text: bytes, literal: bytes, starts: Sequence[int]) -> Iterator[int]:
    """The numbers of the lines that hold the literal, each once."""
    position = text.find(literal)
    while position >= 0:
        number = _line_of(position, starts)
        yield number
        if number + 1 >= len(starts):
            return
        position = text.find(literal, starts[number + 1])


def _line_of(position: int, starts: Sequence[int]) -> int:
    return bisect_right(starts, position) - 1
