"""Chooses which of a log's many lines are looked at closely, in constant memory.

Of lines that differ only in their digits, and of all lines, the first and the last are taken: a cascade's
beginning and its end. What is left out in the middle is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from slurm_recovery.detect.lines import Line, same

MOST_ALIKE = 4096  # lines of one kind: half the first, half the last
FEW_ALIKE = 256  # the same, where none of those looked at told anything
MOST_LINES = 16384  # and of all
LATE_KINDS = 16  # of so many kinds the last lines are kept apart; the rest shares one place
KIND_LENGTH = 200


def kind_of(line: bytes) -> bytes:
    return same(line[:KIND_LENGTH])


class Sample:
    """Takes lines in order: `early` says whether one is to be looked at now, `late` gives the rest at the end."""

    def __init__(self) -> None:
        self._looked = 0
        self._seen: Counter[bytes] = Counter()
        self._late: dict[bytes, deque[Line]] = {}
        self._others: deque[Line] = deque(maxlen=MOST_LINES // 4)
        self._telling: set[bytes] = set()
        self.left_out: Counter[bytes] = Counter()

    def early(self, line: Line) -> bool:
        kind = kind_of(line.text)
        if self._looked < MOST_LINES // 2 and self._seen[kind] < self._most(kind) // 2:
            self._looked += 1
            self._seen[kind] += 1
            return True
        self._put_off(kind, line)
        return False

    def told(self, line: Line) -> None:
        """To be called for a line that told something: those like it are worth a longer look."""
        self._telling.add(kind_of(line.text))

    def _most(self, kind: bytes) -> int:
        return MOST_ALIKE if kind in self._telling else FEW_ALIKE

    def _put_off(self, kind: bytes, line: Line) -> None:
        waiting = self._late.get(kind)
        if waiting is None:
            if len(self._late) >= LATE_KINDS:
                self._others.append(line)
                return
            waiting = self._late[kind] = deque(maxlen=MOST_ALIKE // 2)
        if len(waiting) == waiting.maxlen:
            self.left_out[kind] += 1
        waiting.append(line)

    def late(self) -> Iterator[Line]:
        """The last lines of each kind, in their order."""
        lasts = [list(lines)[-(self._most(kind) // 2) :] for kind, lines in self._late.items()]
        waiting = [line for lines in (*lasts, self._others) for line in lines]
        waiting.sort(key=lambda line: line.offset)
        yield from waiting[-MOST_LINES:]
