"""Reads the failure table that torchrun prints, and turns each of its entries into a place.

Owns that one format (PyTorch torch/distributed/elastic/multiprocessing/errors/__init__.py). The table says
which host a rank ran on, which beats any arithmetic. What it calls the root cause is only what one agent
noticed first, so an entry is never a cause by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_recovery.records import Role

_ENTRY = re.compile(r"^\s{1,8}(?P<key>host|rank|exitcode)\s{1,6}: (?P<value>.{1,200})$")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,4})\)")

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
    """Takes a log's lines one by one and answers at the last line of each entry."""

    def __init__(self) -> None:
        self._host = ""
        self._ranks: tuple[int, int] | None = None

    def take(self, line: str) -> Entry | None:
        match = _ENTRY.match(line)
        if match is None:
            return None
        key, value = match["key"], match["value"].strip()
        if key == "host":
            self._host, self._ranks = value.split()[0] if value else "", None
        elif key == "rank":
            found = _RANK.match(value)
            self._ranks = (int(found[1]), int(found[2])) if found else None
        elif self._host and self._ranks:
            code = value.split()[0] if value else ""
            return Entry(self._host, *self._ranks, reason=SIGNALLED.get(code, ""))
        return None
