"""What a log's beginning and end tell beside their words: who spoke at all, and when the last word came.

Owns the few hundred kilobytes at either end of a log that are read line by line. Knows no signature.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from slurm_recovery.detect.lines import LONGEST_LINE, Block, Line, cleaned

MARGIN = 256 << 10  # bytes: at least so much of either end
MOST_VOICES = 16
PREAMBLE = 1000  # lines at the very beginning, where jobs say what runs where
_VOICE = re.compile(
    rb" {0,7}\d{1,7}: |\[rank\d{1,7}\]|[A-Za-z][\w.-]{0,60}:\d{1,10}:\d{1,10} \[|\d{1,3}(?:\.\d{1,3}){3}: \["
)


class Margins:
    """Takes a log's blocks in order and keeps no more than its ends."""

    def __init__(self) -> None:
        self._heard: dict[bytes, Line] = {}
        self.preamble: list[Line] = []
        self._read = 0
        self._last: deque[tuple[Block, int]] = deque()

    def take(self, block: Block, number: int) -> None:
        """`number`: of the block's first line, from 1; 0 where lines are not counted."""
        size = block.end - block.begin
        self._last.append((block, number))
        while sum(last.end - last.begin for last, _ in self._last) - _size(self._last[0]) > MARGIN:
            self._last.popleft()
        if self._read < MARGIN:
            begun = list(lines(block, number))
            self._listen(begun)
            self.preamble += begun[: PREAMBLE - len(self.preamble)]
        self._read += size

    def _listen(self, spoken: Iterable[Line]) -> None:
        for line in spoken:
            if match := _VOICE.match(line.text):
                self._heard.setdefault(match[0], line)

    def voices(self, last: Iterable[Line]) -> list[Line]:
        """A line of each who printed anything: the first and the last few of those that can be told apart.

        `last`: the lines at the log's end.
        """
        if self._read > MARGIN:
            self._listen(last)
        heard = sorted(self._heard.values(), key=lambda line: line.offset)
        return heard if len(heard) <= MOST_VOICES else heard[: MOST_VOICES // 2] + heard[-(MOST_VOICES // 2) :]

    def last_lines(self) -> list[Line]:
        """The lines at the log's end."""
        return [line for block, number in self._last for line in lines(block, number)]


def _size(last: tuple[Block, int]) -> int:
    return last[0].end - last[0].begin


def lines(block: Block, number: int) -> Iterator[Line]:
    """All lines of a block that hold anything, a carriage return ending one, too. `number`: of the first, or 0."""
    raw = block.data[block.begin : block.end].split(b"\n")
    clean = cleaned(block).data.split(b"\n")
    offset = block.offset + block.begin
    for index, (before, text) in enumerate(zip(raw, clean, strict=True)):
        for part in text.split(b"\r"):
            if part:
                yield Line(part[:LONGEST_LINE], number + index if number else 0, offset)
        offset += len(before) + 1
