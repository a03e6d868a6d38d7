"""Writes manual pages: the few macros of man(7) that ours need, and the escaping of their text.

Knows nothing of what the pages say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """A term and what it means; `text` may hold paragraphs, apart by an empty line."""

    term: str
    text: str
    plain: str = ""  # stands behind the term, not in bold


def escaped(text: str) -> str:
    """Text that troff prints as it is: no line of it is a request, no hyphen becomes another sign."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("~", "\\(ti").replace("^", "\\(ha").replace('"', "\\(dq")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.splitlines())


class Page:
    """One manual page in the making."""

    def __init__(self, name: str, section: int, release: str, title: str) -> None:
        self._lines = [
            '.\\" Made from the code by "srecover manual"; a change here is lost.',
            f'.TH {name.upper()} {section} "" "{release}" "{title}"',
        ]

    def ragged(self) -> None:
        """Lines are not stretched to the margin: for text with words that nothing may divide."""
        self._lines.append(".ad l")

    def section(self, title: str) -> None:
        self._lines.append(f".SH {title.upper()}")

    def subsection(self, title: str) -> None:
        self._lines.append(f'.SS "{escaped(title)}"')

    def text(self, text: str) -> None:
        """Paragraphs, apart by an empty line."""
        for paragraph in _paragraphs(text):
            self._lines += [".PP", escaped(paragraph)]

    def items(self, items: Iterable[Item]) -> None:
        for item in items:
            plain = f" {escaped(item.plain)}" if item.plain else ""
            self._lines += [".TP", f"\\fB{escaped(item.term)}\\fR{plain}"]
            first, *rest = _paragraphs(item.text) or [""]
            self._lines.append(escaped(first) if first else "\\&")
            for paragraph in rest:
                self._lines += [".IP", escaped(paragraph)]

    def verbatim(self, lines: Iterable[str]) -> None:
        self._lines += [".PP", ".RS 4", ".nf", *(escaped(line) or "\\&" for line in lines), ".fi", ".RE"]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    """Each paragraph on one line."""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
