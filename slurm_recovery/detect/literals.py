"""Searches blocks for the literals of all signatures at once.

Two searchers with one answer: Hyperscan's (gigabytes a second), and one of Python's own for machines on which
it is not installed. What they answer is only where to look: whether a line holds a literal is asked again, of
the line, by whoever looks. So both lead to the same evidence.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from slurm_recovery.detect.lines import Block, cleaned, is_clean, same

try:
    import hyperscan
except ImportError:
    hyperscan = None  # type: ignore[assignment]

# What training logs are full of. Hyperscan hashes eight bytes of a literal (src/fdr), and looks closely wherever the
# pairs of letters in them occur; so of each literal the eight bytes are searched whose pairs are rarest here.
ORDINARY = b"""
 0: [2026-06-04 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[3e-05], mom=[(0.9, 0.95)]
12: 2026-06-04 10:00:01 | INFO | train | epoch 001: 10 / 4096 loss=7.981, ppl=252.6, wps=11987, ups=0.37, num_updates=10
 [2026-06-04 10:00:02] iteration 10/ 500000 | consumed samples: 10240 | elapsed time per iteration (ms): 5692.0 |
 learning rate: 8.023E-05 | global batch size: 1024 | lm loss: 6.310682E-01 | loss scale: 1.0 | grad norm: 0.118 |
 number of skipped iterations: 0 | number of nan iterations: 0 | validation loss | throughput per GPU (TFLOP/s) |
{'loss': 2.1034, 'grad_norm': 1.25, 'learning_rate': 1.98e-05, 'epoch': 0.01, 'tokens_per_second': 81234.5}
 37%|####      | 3712/10000 [1:02:03<1:45:12,  1.01s/it, loss=2.31, memory allocated=61.2 GiB, max reserved=70.1 GiB]
a01:4007:4218 [1] NCCL INFO Channel 00/08 : 0[0] -> 1[1] via P2P/CUMEM, comm 0x55d nranks 64 - Init COMPLETE
[rank3]: saving checkpoint at step 1000 to /data/checkpoints/run/global_step1000, done in 12.3 s; resuming training
"""
WINDOW = 8
MOST_KINDS = 50_000  # of lines known to hold nothing, as many kinds are remembered
KIND_LENGTH = 1000  # and only of lines up to this length


class Hits(NamedTuple):
    """A block, cleaned if need be, and a byte of each of its lines that may hold a literal, in order."""

    block: Block
    positions: Sequence[int]
    raw: Block  # the same lines as they stand in the log


class Searcher(Protocol):
    """Finds the lines that may hold a literal: all that do, and few that do not."""

    @property
    def parallel(self) -> bool:
        """Whether several threads search faster than one."""

    def search(self, block: Block) -> Hits: ...


def searcher(literals: Sequence[bytes]) -> Searcher:
    """The fastest searcher that this machine has."""
    return PlainSearcher(literals) if hyperscan is None else HyperscanSearcher(literals)


class HyperscanSearcher:
    """All literals in one pass over the bytes. May be used by several threads at once."""

    parallel = True

    def __init__(self, literals: Sequence[bytes]) -> None:
        parts = sorted({_rare_part(literal) for literal in literals})
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[re.escape(part) for part in parts], ids=list(range(len(parts))), flags=[0] * len(parts)
        )

    def search(self, block: Block) -> Hits:
        found = block if is_clean(block.data) else cleaned(block)
        return Hits(found, self._positions(found), block)

    def _positions(self, block: Block) -> list[int]:
        """One position in each line with a literal."""
        data, begin, end, _ = block
        positions: list[int] = []
        line_end = begin

        def on_match(_number: int, _start: int, to: int, _flags: int, _context: object) -> None:
            nonlocal line_end
            if line_end < to <= end:
                positions.append(to - 1)
                line_end = data.find(b"\n", to, end)
                line_end = end if line_end < 0 else line_end

        # Scratch space serves one search at a time: each has its own, so that several may run at once.
        self._database.scan(data, match_event_handler=on_match, scratch=hyperscan.Scratch(self._database))
        return positions


def _costs() -> dict[tuple[int, int], float]:
    """How common each pair of letters is, as the logarithm of its count; a pair that is not there has none."""
    return {pair: math.log(1 + 9 * count) for pair, count in Counter(pairwise(ORDINARY)).items()}


_COST = _costs()


def _rare_part(literal: bytes) -> bytes:
    """The WINDOW bytes of the literal that are least like an ordinary line."""
    if len(literal) <= WINDOW:
        return literal
    costs = [_COST.get(pair, 0.0) for pair in pairwise(literal)]
    sums = [sum(costs[start : start + WINDOW - 1]) for start in range(len(literal) - WINDOW + 1)]
    start = sums.index(min(sums))
    return literal[start : start + WINDOW]


class PlainSearcher:
    """Each kind of line is searched once: logs of training repeat themselves but for their digits."""

    parallel = False

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = sorted({same(literal) for literal in literals})
        self._dull: set[bytes] = set()

    def search(self, block: Block) -> Hits:
        found = block if is_clean(block.data) else cleaned(block)
        text = found.data[found.begin : found.end]
        kinds = same(text).split(b"\n")
        fresh = [kind for kind in dict.fromkeys(kinds) if kind not in self._dull]
        telling = {fresh[number] for number in self._lines_with_literals(fresh)}
        self._remember(kind for kind in fresh if kind not in telling)
        starts = _starts(text.split(b"\n")) if telling else []
        positions = [found.begin + starts[number] for number, kind in enumerate(kinds) if kind in telling]
        return Hits(found, positions, block)

    def _remember(self, dull: Iterator[bytes]) -> None:
        if len(self._dull) > MOST_KINDS:
            self._dull.clear()
        self._dull.update(kind for kind in dull if len(kind) <= KIND_LENGTH)

    def _lines_with_literals(self, lines: Sequence[bytes]) -> set[int]:
        text, starts = b"\n".join(lines), _starts(lines)
        return {number for literal in self._literals for number in _where(text, literal, starts)}


def _starts(lines: Sequence[bytes]) -> list[int]:
    return list(accumulate((len(line) + 1 for line in lines[:-1]), initial=0))


def _where(text: bytes, literal: bytes, starts: Sequence[int]) -> Iterator[int]:
    """The numbers of the lines that hold the literal, each once."""
    position = text.find(literal)
    while position >= 0:
        number = bisect_right(starts, position) - 1
        yield number
        if number + 1 >= len(starts):
            return
        position = text.find(literal, starts[number + 1])
