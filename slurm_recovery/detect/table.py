"""Reads the failure table that torchrun prints, and turns each of its entries into a place.

Owns that one format (PyTorch torch/distributed/elastic/multiprocessing/errors/__init__.py). The table says
which host a rank ran on, which beats any arithmetic. What it calls the root cause is only what one agent
noticed first, so an entry is never a cause by itself.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass

from slurm_recovery.records import Role

_ENTRY = re.compile(r"^\s{1,8}(?P<key>host|rank|exitcode)\s{1,6}: (?P<value>.{1,200})$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,4})\)")

MOST_PRINTERS = 4096
MIXED_LINES = 1024  # after two entries were found mixed up: lines of tables after which a cut entry is forgotten
SIGNALLED = {"-9": "killed_unknown", "-11": "segfault", "-7": "unknown"}


@dataclass(frozen=True)
class Entry:
    """One failed process of the table."""

    node: str
    rank: int
    local_rank: int
    reason: str  # what its exit code says by itself; "" where that is nothing
    role: Role = Role.CONDITIONAL


class TorchrunTable:
    """Takes a log's lines one by one and answers at the last line of each entry.

    Agents of several nodes may print at the same time. `who` tells them apart where a line's prefix does; where it
    does not, entries whose lines are mixed up are left out, for they would pair one's host with another's rank.
    """

    def __init__(self) -> None:
        self._open: dict[Hashable, _Entries] = {}

    def take(self, line: str, who: Hashable = None) -> Entry | None:
        match = _ENTRY.match(line)
        if match is None:
            return None
        if who not in self._open and len(self._open) == MOST_PRINTERS:
            del self._open[next(iter(self._open))]
        return self._open.setdefault(who, _Entries()).take(match["key"], match["value"].strip())


class _Entries:
    """The entries of one printer, or of several that cannot be told apart."""

    def __init__(self) -> None:
        self._host = ""
        self._ranks: tuple[int, int] | None = None
        self._begun = 0  # entries whose host was read and whose exit code was not
        self._mixed = 0  # lines still to be passed over, at most

    def take(self, key: str, value: str) -> Entry | None:
        if self._mixed:
            self._mixed -= 1
            self._begun = self._begun if self._mixed else 0
        if key == "exitcode":
            return self._code_line(value)
        if key == "host":
            self._host_line(value)
        else:
            found = _RANK.match(value)
            self._ranks = (int(found[1]), int(found[2])) if found and self._ranks is None else None
        return None

    def _host_line(self, value: str) -> None:
        if self._begun and not self._mixed:
            self._mixed = MIXED_LINES
        self._begun += 1
        self._host, self._ranks = value.split()[0] if value and not self._mixed else "", None

    def _code_line(self, value: str) -> Entry | None:
        self._begun = max(0, self._begun - 1)
        self._mixed = self._mixed if self._begun else 0
        host, ranks = self._host, self._ranks
        self._host, self._ranks = "", None
        if not host or ranks is None:
            return None
        code = value.split()[0] if value else ""
        return Entry(host, *ranks, reason=SIGNALLED.get(code, ""))
