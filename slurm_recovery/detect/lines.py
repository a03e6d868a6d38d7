"""Cuts a log into blocks and blocks into lines, in constant memory.

Owns bytes: where lines end, what a seam between two pieces is, colours and control characters, monster lines,
and how a line's place in the log is said. Knows no signature and no reason, and reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PIECE = 2 << 20  # what readers hand over at once, and the longest line that is held together
LONGEST_LINE = 8192  # of a longer line only its two ends and the surroundings of one literal are looked at
NUMBERED = 32 << 20  # up to here a place is a line's number, beyond it the byte at which the line begins
# ECMA-48 control sequences and operating system commands, as terminals understand them; none spans two lines
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,30}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)|[@-_])")
_CONTROL = bytes(code for code in range(32) if code not in b"\t\n\r") + b"\x7f"
_TELLTALES = (b"\x1b", b"\b", b"\0")  # without any of these, no word is cut in two by what a terminal does not show
_DIGITS = b"0123456789"


class Block(NamedTuple):
    """The whole lines `data[begin:end]`; `offset` is the place of data[0] in the log."""

    data: bytes
    begin: int
    end: int
    offset: int


class Line(NamedTuple):
    """A line's text without its end, and where it begins in the log: its number from 1, and its byte from 0."""

    text: bytes
    number: int
    offset: int

    @property
    def place(self) -> str:
        """`:12`, the line's number; deep inside a huge log `:+81788928`, its byte (less +81788928P)."""
        return f":{self.number}" if self.number else f":+{self.offset}"


def pieces(data: bytes) -> Iterator[bytes]:
    """What is in memory already, as readers hand it over."""
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def blocks(read: Iterable[bytes], offset: int = 0) -> Iterator[Block]:
    """The log as blocks of whole lines, in order and without a gap; `offset` is where the first piece begins.

    A piece is not copied: the line that lies across two of them becomes a small block between theirs. A line
    longer than PIECE is cut.
    """
    seam, began = b"", offset
    for piece in read:
        first = piece.find(b"\n") + 1
        if not first:
            seam += piece
            if len(seam) >= PIECE:
                yield Block(seam, 0, len(seam), began)
                seam, began = b"", began + len(seam)
            continue
        if seam:
            line = seam + piece[:first]
            yield Block(line, 0, len(line), began)
        here = began + len(seam)
        last = piece.rfind(b"\n") + 1
        begin = first if seam else 0
        if last > begin:
            yield Block(piece, begin, last, here)
        seam, began = piece[last:], here + last
    if seam:
        yield Block(seam, 0, len(seam), began)


def is_clean(data: bytes) -> bool:
    """Whether the words are whole as they stand: no colours, no overstriking, no NUL."""
    return not any(sign in data for sign in _TELLTALES)


def cleaned(block: Block) -> Block:
    """The block's lines without colours and control characters. Line ends stay, so lines keep their numbers."""
    data = _ANSI.sub(b"", block.data[block.begin : block.end]).translate(None, _CONTROL)
    return Block(data, 0, len(data), block.offset + block.begin)


def same(line: bytes) -> bytes:
    """The line without its digits: progress lines become alike."""
    return line.translate(None, _DIGITS)


def around(line: bytes, position: int) -> bytes:
    """A monster line's head, the surroundings of `position`, and its tail; any other line as it is."""
    if len(line) <= LONGEST_LINE:
        return line
    part = LONGEST_LINE // 4
    begin, end = max(part, position - part), min(len(line) - part, position + part)
    return b" ... ".join(piece for piece in (line[:part], line[begin:end], line[-part:]) if piece)
