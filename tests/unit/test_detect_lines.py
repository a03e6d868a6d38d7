"""Blocks, seams, places, and the two searchers that must lead to the same lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect import lines
from slurm_recovery.detect import scan as scanner
from slurm_recovery.detect.lines import LONGEST_LINE, NUMBERED, PIECE, Block, around, blocks, pieces
from slurm_recovery.detect.literals import HyperscanSearcher, PlainSearcher, Searcher
from slurm_recovery.detect.sample import MOST_ALIKE, MOST_LINES
from slurm_recovery.detect.scan import scan
from slurm_recovery.evidence.pieces import ahead, side_by_side
from slurm_recovery.records import Evidence, Source

SIGNATURES = load_signatures()
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ECC = b"RuntimeError: CUDA error: uncorrectable ECC error encountered"


def of(log: bytes | Iterator[bytes], **options: object) -> tuple[Evidence, ...]:
    return scan(log, signatures=SIGNATURES, source=Source.JOB_LOG, path="log", **options)  # type: ignore[arg-type]


def cut(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """The data in pieces of these sizes, again and again."""
    begin, turn = 0, 0
    while begin < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        yield data[begin : begin + size]
        begin, turn = begin + size, turn + 1


BITS = [b"\n", b"\r", b"a", b"rank 7", b"\x1b[1m", OOM, b"\xff", b"\0"]
TEXT = st.lists(st.sampled_from(BITS), max_size=60).map(b"".join)
EXAMPLES = [row.example.encode() for row in SIGNATURES]
LITERALS = [literal.encode() for row in SIGNATURES for literal in row.literals]
SIZES = st.lists(st.integers(1, 50), max_size=5)


@given(TEXT, SIZES)
def test_blocks_are_the_log_whole_lines_and_no_byte_twice(data: bytes, sizes: list[int]) -> None:
    found = list(blocks(cut(data, sizes), offset=11))
    assert b"".join(block.data[block.begin : block.end] for block in found) == data
    place = 11
    for block in found:
        assert block.offset + block.begin == place
        place += block.end - block.begin
    assert all(block.data[block.end - 1 : block.end] == b"\n" for block in found[:-1])


@given(TEXT, SIZES)
def test_evidence_does_not_depend_on_how_the_log_comes(data: bytes, sizes: list[int]) -> None:
    assert of(cut(data, sizes)) == of(data)


@pytest.fixture
def with_searcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type], None]]:
    """Makes the scanner use one searcher, whatever the machine has."""

    def use(kind: Callable[[Sequence[bytes]], Searcher]) -> None:
        scanner._rows.cache_clear()
        monkeypatch.setattr(scanner, "searcher", kind)

    yield use
    scanner._rows.cache_clear()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*EXAMPLES, b"\r", b"\x1b[", b"\0", b"9"]), max_size=40), TEXT)
def test_both_searchers_lead_to_the_same_lines(parts: list[bytes], text: bytes) -> None:
    told = []
    for kind in (HyperscanSearcher, PlainSearcher):
        found = map(kind(LITERALS).search, blocks([b"\n".join(parts) + b"\n" + text]))
        reached = {line for hits in found for line in lines_at(hits.block, hits.positions)}
        told.append({line for line in reached if any(literal in line for literal in LITERALS)})
    assert told[0] == told[1]


def lines_at(block: Block, positions: Sequence[int]) -> Iterator[bytes]:
    for position in positions:
        begin = block.data.rfind(b"\n", block.begin, position) + 1 or block.begin
        end = block.data.find(b"\n", position, block.end)
        yield block.data[begin : end if end >= 0 else block.end]


def test_without_hyperscan_the_evidence_is_the_same(with_searcher: Callable[[type], None]) -> None:
    log = b"\n".join(example for pair in zip(EXAMPLES, reversed(EXAMPLES), strict=True) for example in pair) * 3
    told = []
    for kind in (HyperscanSearcher, PlainSearcher):
        with_searcher(kind)
        told.append(of(log))
    assert told[0] == told[1]
    assert len(told[0]) > 100


def test_several_blocks_at_once_tell_the_same() -> None:
    log = (b"step 1\n" * 60_000 + b"[rank1]: " + OOM + b"\n") * 80
    assert len(log) > 12 * PIECE
    assert of(ahead(pieces(log)), each=side_by_side) == of(log)


def test_a_place_is_a_line_and_deep_inside_a_byte() -> None:
    filler = b"step of the training\n"
    count = NUMBERED // len(filler) + PIECE
    log = OOM + b"\n" + filler * count + ECC + b"\n"
    first, last = (found for found in of(log) if found.reason)
    assert first.place == "log:1"
    assert last.place == f"log:+{log.index(ECC)}"
    assert of(b"x\n" + ECC, offset=100)[0].place == "log:+102", "no line is known to be the first"


def test_deep_places_are_those_of_the_file_also_where_colours_were_taken_out() -> None:
    filler = b"\x1b[32mstep\x1b[0m of the training\n"
    log = filler * (NUMBERED // len(filler) + 3 * PIECE // len(filler)) + b"\x1b[31m" + ECC + b"\n"
    (found,) = (found for found in of(log) if found.reason)
    assert found.place == f"log:+{log.rindex(filler) + len(filler)}"


def test_of_a_monster_line_the_ends_and_the_surroundings_are_kept() -> None:
    line = b"begin" + b"x" * 100_000 + b"here" + b"y" * 100_000 + b"end"
    short = around(line, line.index(b"here"))
    assert len(short) <= LONGEST_LINE + 100
    assert (short[:5], short[-3:], short.count(b"here")) == (b"begin", b"end", 1)
    assert around(b"short", 3) == b"short"


def test_many_alike_are_counted_and_the_last_is_seen() -> None:
    lines = [b"[rank%d]: %s" % (n % 8, OOM) for n in range(3 * MOST_ALIKE)]
    found = [one for one in of(b"\n".join([*lines, b"[rank99]: " + OOM])) if one.reason]
    assert [one.rank for one in found] == [*range(8), 99]
    assert sum(one.count for one in found) == 3 * MOST_ALIKE + 1


def test_a_cause_behind_very_many_different_lines_is_seen() -> None:
    letters = [bytes([97 + n % 26, 97 + n // 26 % 26, 97 + n // 676]) for n in range(3 * MOST_LINES)]
    noise = b"".join(b"%sError: x\n" % (b"Q" + word) for word in letters)
    assert "gpu_ecc_uncorrectable" in [found.reason for found in of(noise + ECC + b"\n")]


GROWTH = """
import random, resource, sys
from tests.unit.test_detect_lines import of
made = random.Random(1)
letters = bytes.maketrans(b"0123456789", b"ghijklmnop")
def words(length):
    return made.randbytes(length).hex().encode().translate(letters)
def log(megabytes):
    for _ in range(megabytes):
        lines = [words(100) for _ in range(5000)]
        lines[::25] = [b"%sError: %s" % (words(6).title(), words(100)) for _ in lines[::25]]
        yield b"\\n".join(lines) + b"\\n"
of(log(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
of(log(100))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_log() -> None:
    """100 MB in which no two lines are alike and 20,000 matter, in a process of its own."""
    run = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, timeout=120)
    assert int(run.stdout) < 30 << 10  # KiB


def test_pieces_are_the_data() -> None:
    data = bytes(range(256)) * 9000
    assert b"".join(pieces(data)) == data
    assert [lines.is_clean(text) for text in (b"a\tb\r\n", b"a\x1b[1m")] == [True, False]
