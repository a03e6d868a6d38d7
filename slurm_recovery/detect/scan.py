"""A log to evidence, in one pass and in constant memory, from its first line to its last.

Owns the walk over one log: which of its lines are looked at. Reads no file and knows no job. Log text is
hostile: any bytes give an answer, in time linear in their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from slurm_recovery.detect.lines import LONGEST_LINE, NUMBERED, Block, Line, around, blocks, pieces, same
from slurm_recovery.detect.literals import Hits, Searcher, searcher
from slurm_recovery.detect.margins import Margins
from slurm_recovery.detect.notes import Notes
from slurm_recovery.detect.placement import LITERALS
from slurm_recovery.detect.sample import Sample
from slurm_recovery.detect.signature import Signature
from slurm_recovery.records import Evidence, Source, Trust

# What tells places without being a signature: lines of torchrun's failure tables, and where ranks say that they run.
_PLACES = (b"  host  ", b"  rank  ", b"  exitcode", *(literal.encode() for literal in LITERALS))

Each = Callable[[Callable[[Block], Hits], Iterable[Block]], Iterable[Hits]]


def scan(
    log: bytes | Iterable[bytes],
    *,
    signatures: Sequence[Signature],
    source: Source,
    path: str,
    node: str | None = None,
    trust: Trust | None = None,
    offset: int = 0,
    each: Each = map,
) -> tuple[Evidence, ...]:
    """What a log says, in the order of its lines.

    `log`: its bytes, or pieces of them in order, the first of which lies `offset` bytes into the file. `node` is
    the host that the whole log belongs to, if it belongs to one. Trust is root for kernel logs and user for
    everything that the job's owner could have written, unless given. `each` applies the search to the blocks and
    answers in order: `map`, or what searches several blocks at once, where that is faster.
    """
    rows = _rows(tuple(row for row in signatures if row.log in (None, source)))
    notes = Notes(source, path, node, trust or (Trust.ROOT if source is Source.KERNEL_LOG else Trust.USER))
    walk = _Walk(rows, notes, numbered=offset == 0)
    several = each if rows.searcher.parallel else map
    for hits in several(rows.searcher.search, blocks(pieces(log) if isinstance(log, bytes) else log, offset)):
        walk.take(hits)
    walk.end()
    return notes.evidence()


class _Rows:
    """The signatures, and which of them to try on a line."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._rows = [(row, tuple(literal.encode() for literal in row.literals)) for row in signatures]
        self._literals = tuple(dict.fromkeys(literal for _, many in self._rows for literal in many))
        self._kinds = [(same(literal), number) for number, (_, many) in enumerate(self._rows) for literal in many]
        self.searcher: Searcher = searcher([*self._literals, *_PLACES])
        self._of_kind = lru_cache(maxsize=4096)(self._possible)

    def _possible(self, kind: bytes) -> tuple[tuple[Signature, tuple[bytes, ...]], ...]:
        """The rows that may speak for lines that differ only in their digits."""
        return tuple(self._rows[number] for number in sorted({number for text, number in self._kinds if text in kind}))

    def of(self, line: bytes) -> tuple[Signature, ...]:
        """The rows of which a literal is in the line, in the order in which they are tried."""
        found = []
        for row, many in self._of_kind(same(line)):
            for literal in many:
                if literal in line:
                    found.append(row)
                    break
        return tuple(found)

    def position(self, line: bytes) -> int:
        """Where the first literal stands in the line; 0 where there is none."""
        return min((found for literal in self._literals if (found := line.find(literal)) >= 0), default=0)


@lru_cache(maxsize=8)
def _rows(signatures: tuple[Signature, ...]) -> _Rows:
    return _Rows(signatures)


class _Walk:
    """One pass over one log: from blocks to the lines that are looked at."""

    def __init__(self, rows: _Rows, notes: Notes, *, numbered: bool) -> None:
        self._rows, self._notes = rows, notes
        self._numbered = numbered
        self._number = 1  # of the next block's first line, while lines are counted
        self._sample = Sample()
        self._margins = Margins()

    def take(self, hits: Hits) -> None:
        """The next block, and where in it to look."""
        block = hits.block
        counted = self._numbered and hits.raw.offset < NUMBERED
        number = self._number if counted else 0
        for line in _lines_at(hits, number):
            self._offer(line)
        self._margins.take(hits.raw, number)
        if counted:
            self._number += block.data.count(b"\n", block.begin, block.end)

    def _offer(self, line: Line) -> None:
        if b"\r" in line.text or len(line.text) > LONGEST_LINE:
            for text in line.text.split(b"\r"):
                part = around(text, self._rows.position(text)) if len(text) > LONGEST_LINE else text
                self._take_part(line._replace(text=part))
        else:
            self._take_part(line)

    def _take_part(self, line: Line) -> None:
        rows = self._rows.of(line.text)
        if (rows or any(key in line.text for key in _PLACES)) and self._sample.early(line):
            self._look(line, rows)

    def _look(self, line: Line, rows: Sequence[Signature]) -> None:
        if self._notes.line(line, rows):
            self._sample.told(line)

    def end(self) -> None:
        """What can only be done when the whole log has been seen."""
        for line in self._sample.late():
            self._look(line, self._rows.of(line.text))
        self._notes.more(self._sample.left_out)
        last = self._margins.last_lines()
        if self._notes.source is Source.JOB_LOG:
            self._notes.voices(self._margins.voices(last))
            self._notes.preamble(self._margins.preamble)
        self._notes.clock(last)


def _lines_at(hits: Hits, number: int) -> Iterator[Line]:
    """The lines at the positions. `number`: of the block's first line, 0 where lines are not counted."""
    text, begin, end, _ = hits.block
    clean = hits.block is hits.raw
    counted, raw, stop = begin, hits.raw.begin, begin - 1
    for position in hits.positions:
        if position <= stop:
            continue
        start = text.rfind(b"\n", begin, position) + 1 or begin
        stop = text.find(b"\n", position, end)
        stop = end if stop < 0 else stop
        ends = text.count(b"\n", counted, start) if number or not clean else 0
        counted, number = start, number + ends if number else 0
        raw = start if clean else _after_ends(hits.raw.data, raw, ends)
        yield Line(text[start:stop], number, hits.raw.offset + raw)


def _after_ends(data: bytes, position: int, ends: int) -> int:
    """Where the line begins that is `ends` line ends behind the position."""
    for _ in range(ends):
        position = data.find(b"\n", position) + 1
    return position
