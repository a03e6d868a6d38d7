"""Slurm's host lists (`gpu[01-04,7],login`) to names and back, by ClusterShell, with a bound.

A host list may reach us through a user's text: nothing here raises but HostlistError, and nothing
expands beyond MAX_HOSTS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

MAX_HOSTS = 65536  # slurm.h MAX_SLURM_NODES
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SHAPE = re.compile(r"[A-Za-z0-9._,\[\]-]+")
_RANGE = re.compile(r"(\d+)-(\d+)")


class HostlistError(ValueError):
    """Not a host list."""


def _size(text: str) -> int:
    """An upper bound of how many names the text stands for, without expanding it."""
    size = 1
    for low, high in _RANGE.findall(text):
        if len(low) > 9 or len(high) > 9:
            return MAX_HOSTS + 1
        size *= max(1, int(high) - int(low) + 1)
    return size


def expand(text: str) -> tuple[str, ...]:
    """Names in the order of the list; empty for ``, `(null)`, `None` and `N/A`."""
    text = text.strip()
    if text in ("", "(null)", "None", "None assigned", "N/A"):
        return ()
    if len(text) > 1_000_000 or not _SHAPE.fullmatch(text):
        raise HostlistError(f"not a host list: {text[:60]!r}")
    if _size(text) > MAX_HOSTS and sum(_size(part) for part in text.split(",")) > MAX_HOSTS:
        raise HostlistError(f"more than {MAX_HOSTS} hosts: {text[:60]!r}")
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise HostlistError(f"not a host list: {text[:60]!r}") from error


def fold(names: Iterable[str]) -> str:
    """The names as one host list, sorted, without doubles."""
    unique = sorted(set(names))
    if bad := [name for name in unique if not re.fullmatch(_NAME, name)]:
        raise HostlistError(f"not a host name: {bad[0][:60]!r}")
    return str(NodeSet.fromlist(unique, resolver=RESOLVER_NOGROUP)) if unique else ""
