"""How the commands print: tables as squeue prints them, and JSON. All text for people leaves through `say`.

A log, a job's name or a path is text that a user chose: whatever a terminal would obey in it (control
characters, escape sequences, direction overrides) is spelt out, so that it can only be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import typer


def harmless(text: str) -> str:
    """The text with every character spelt out that is not printable: `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelt(char) for char in text)


def _spelt(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(text: str = "") -> None:
    """One line on standard output."""
    typer.echo(harmless(text))


def say_json(value: Any) -> None:
    """One JSON document on one line, ASCII only."""
    typer.echo(json.dumps(value))


class Column(NamedTuple):
    """`width` 0: as wide as its text; only for the last one. Longer text is cut, as squeue cuts it."""

    head: str
    width: int
    right: bool = False


def lines(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, header: bool = True) -> Iterator[str]:
    """A table's lines, harmless."""
    if header:
        yield _line(columns, [column.head for column in columns])
    for row in rows:
        yield _line(columns, [harmless(str(cell)) for cell in row])


def say_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, header: bool = True) -> None:
    for line in lines(columns, rows, header=header):
        say(line)


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> tuple[Column, ...]:
    """The same columns, each wide enough for its head and its rows, but no wider than its `width`, if it has one.

    For output that nobody parses.
    """
    cells = [[column.head for column in columns], *([harmless(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return tuple(
        column._replace(width=min(width, column.width or width)) for column, width in zip(columns, widths, strict=True)
    )


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    return " ".join(_cell(column, cell) for column, cell in zip(columns, cells, strict=True)).rstrip()


def _cell(column: Column, text: str) -> str:
    if not column.width:
        return text
    return text[: column.width].rjust(column.width) if column.right else text[: column.width].ljust(column.width)
