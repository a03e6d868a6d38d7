"""Slurm's host lists (`gpu[01-04,7],login`) to names and back. Pure.

A host list may reach us through a user's text, so reading one costs no more than its length and the hosts
that are asked for at most: a general library takes digits beside a bracket, or a minus after one, for part
of a range, and a single line of a log for a billion hosts. Writing one is left to ClusterShell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

MAX_HOSTS = 65536  # slurm.h MAX_SLURM_NODES
MAX_LENGTH = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9,-]+\])+")
_PART = re.compile(r"\[([0-9,-]+)\]|([^\[\]]+)")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_ITEMS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # parted by commas outside of brackets
_EMPTY = ("", "(null)", "None", "None assigned", "N/A")


class HostlistError(ValueError):
    """Not a host list, or one of too many hosts."""


def expand(text: str, most: int = MAX_HOSTS) -> tuple[str, ...]:
    """Names in the order of the list, without doubles; empty for ``, `(null)`, `None` and `N/A`.

    Raises HostlistError where the text is no host list, or names more than `most` hosts.
    """
    text = text.strip()
    if text in _EMPTY:
        return ()
    if len(text) > MAX_LENGTH:
        raise HostlistError("longer than a host list can be")
    items = _ITEMS.findall(text)
    if ",".join(items) != text:
        raise HostlistError(f"not a host list: {text[:60]!r}")
    names: dict[str, None] = {}
    room = most
    for item in items:
        for name in _names(item, room):
            names[name] = None
            room -= 1
    return tuple(names)


def _names(item: str, most: int) -> Iterator[str]:
    """The names of one item such as `gpu[01-04,7]-ib`."""
    if not _ITEM.fullmatch(item):
        raise HostlistError(f"not a host list: {item[:60]!r}")
    if item.count(",") > most:
        raise HostlistError(f"too many hosts: {item[:60]!r}")
    parts = [_spans(ranges) if ranges else [plain] for ranges, plain in _PART.findall(item)]
    count = 1
    for part in parts:
        count *= sum(len(span) if isinstance(span, Span) else 1 for span in part)
        if count > most:
            raise HostlistError(f"too many hosts: {item[:60]!r}")
    texts = [[word for span in part for word in (span if isinstance(span, Span) else [span])] for part in parts]
    return ("".join(words) for words in product(*texts))


class Span:
    """`01-04`: numbers as they are written, at least as wide as the first."""

    def __init__(self, low: str, high: str) -> None:
        self._numbers = range(int(low), int(high or low) + 1)
        self._width = len(low)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self._width}}" for number in self._numbers)


def _spans(ranges: str) -> list[Span]:
    matches = [_SPAN.fullmatch(one) for one in ranges.split(",")]
    spans = [Span(match[1], match[2]) for match in matches if match]
    if len(spans) != len(matches) or not all(map(len, spans)):
        raise HostlistError(f"not a range of hosts: [{ranges[:60]}]")
    return spans


def fold(names: Iterable[str]) -> str:
    """The names as one host list, sorted, without doubles."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    unique = sorted(set(names))
    if bad := [name for name in unique if not _NAME.fullmatch(name)]:
        raise HostlistError(f"not a host name: {bad[0][:60]!r}")
    return str(NodeSet.fromlist(unique, resolver=RESOLVER_NOGROUP)) if unique else ""
