"""A log's bytes to evidence.

Owns the walk over one log: which lines matter, which signature speaks for each, how often it was seen, and
what is kept when there is too much. Reads no file and knows no job. Log text is hostile: any bytes give an
answer, in time linear in their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from slurm_recovery.detect.frame import Frame, any_time, frame
from slurm_recovery.detect.lines import Line, Prefilter, same, split
from slurm_recovery.detect.signature import Signature
from slurm_recovery.detect.table import Entry, TorchrunTable
from slurm_recovery.records import Evidence, Role, Source, Trust

LONGEST_EXCERPT = 500
# How many different pieces of evidence are kept of one role: half of them the first seen, half the last.
KEPT = {Role.ROOT: 160, Role.CONDITIONAL: 160, Role.SECONDARY: 80, Role.NOISE: 40}
CLOCK = "clock"  # the signature id of the last dated line that the program printed
CLOCK_LINES = 4  # such a line counts only this near to the program's last line
TABLE = "torchrun_table"
VOICE = "voice"  # one of the tasks, ranks or hosts that printed anything at all: it ran
MOST_VOICES = 16
_VOICE = re.compile(rb" {0,7}\d{1,7}: |\[rank\d{1,7}\]|[A-Za-z][\w.-]{0,60}:\d{1,10}:\d{1,10} \[")
MOST_TABLE_LINES = 4000
_SLURM = (b"srun:", b"slurmstepd:")
_TABLE_KEYS = (b"  host  ", b"  rank  ", b"  exitcode")

_Key = tuple[str, object, object, object]


def scan(
    data: bytes,
    *,
    signatures: Sequence[Signature],
    source: Source,
    path: str,
    node: str | None = None,
    trust: Trust | None = None,
) -> tuple[Evidence, ...]:
    """What a log says, in the order of its lines.

    `node` is the host that the whole log belongs to, if it belongs to one. Trust is root for kernel logs and
    user for everything that the job's owner could have written, unless given.
    """
    lines = split(data)
    walk = _Walk(source, path, node, trust or (Trust.ROOT if source is Source.KERNEL_LOG else Trust.USER))
    rows = tuple(row for row in signatures if row.log in (None, source))
    for line, candidates in _prefilter(rows).candidates(lines):
        walk.line(line, candidates)
    if source is Source.JOB_LOG and b"(local_rank:" in data:
        walk.table(lines)
    if source is Source.JOB_LOG:
        walk.voices(lines)
    walk.clock(lines)
    return walk.evidence()


@lru_cache(maxsize=8)
def _prefilter(signatures: tuple[Signature, ...]) -> Prefilter:
    return Prefilter(signatures)


class _Walk:
    """One pass over one log."""

    def __init__(self, source: Source, path: str, node: str | None, trust: Trust) -> None:
        self._source, self._path, self._node, self._trust = source, path, node, trust
        self._table = TorchrunTable()
        self._found: dict[_Key, tuple[int, Evidence]] = {}
        self._counts: dict[_Key, int] = {}

    def line(self, line: Line, rows: Sequence[Signature]) -> None:
        text = line[1].decode("utf-8", errors="replace")
        head = frame(text)
        if hit := _first(rows, head.text):
            self._hit(*hit, head, line[0], text)

    def table(self, lines: Sequence[Line]) -> None:
        """Takes the places from torchrun's failure tables, whatever prefix their lines have."""
        entries = [line for line in lines if any(key in line[1] for key in _TABLE_KEYS)]
        for number, data in entries[-MOST_TABLE_LINES:]:
            text = data.decode("utf-8", errors="replace")
            if entry := self._table.take(frame(text).text):
                self._entry(entry, number, text)

    def _hit(self, row: Signature, groups: dict[str, str | None], head: Frame, number: int, text: str) -> None:
        rank = _int(groups.get("rank"))
        rank = head.rank if head.rank is not None else rank
        node = groups.get("node") or self._node or head.node
        local_rank = _int(groups.get("local_rank"))
        place = rank if rank is not None else ("task", head.task, head.local_rank)
        wording = same(head.text[:80].encode()) if row.role is Role.ROOT else b""
        found = self._place(
            row.id,
            number,
            text,
            reason=row.reason,
            role=row.role,
            node=node,
            rank=rank,
            local_rank=local_rank if local_rank is not None else head.local_rank,
            time=head.time if head.time is not None else any_time(text),
        )
        self._keep((row.id, place, node, wording), number, found)

    def _entry(self, entry: Entry, number: int, text: str) -> None:
        found = self._place(
            TABLE,
            number,
            text,
            reason=entry.reason,
            role=entry.role if entry.reason else Role.NOISE,
            node=entry.node,
            rank=entry.rank,
            local_rank=entry.local_rank,
        )
        self._keep((TABLE, entry.rank, entry.node, entry.reason), number, found)

    def _place(self, signature: str, number: int, text: str, **known: Any) -> Evidence:
        """Evidence of a place or time; a cause only if `known` gives it a reason and a role."""
        values = {"reason": "", "role": Role.NOISE, "node": self._node, **known}
        return Evidence(
            source=self._source,
            trust=self._trust,
            signature=signature,
            line=_excerpt(text),
            place=f"{self._path}:{number}",
            **values,
        )

    def voices(self, lines: Sequence[Line]) -> None:
        """Notes who printed anything: the first and the last few of those that can be told apart."""
        heard: dict[bytes, Line] = {}
        for line in lines:
            if (match := _VOICE.match(line[1])) and match[0] not in heard:
                heard[match[0]] = line
        chosen = list(heard.values())
        if len(chosen) > MOST_VOICES:
            chosen = chosen[: MOST_VOICES // 2] + chosen[-(MOST_VOICES // 2) :]
        for number, data in chosen:
            text = data.decode("utf-8", errors="replace")
            head = frame(text)
            found = self._place(VOICE, number, text, rank=head.rank, node=head.node)
            self._keep((VOICE, head.rank, head.node, head.task), number, found)

    def clock(self, lines: Sequence[Line]) -> None:
        """Notes when a job's program last printed a date, if that was nearly the last it printed.

        In a kernel log: the last line that tells a time of any kind.
        """
        kernel = self._source is Source.KERNEL_LOG
        own = lines if kernel else [line for line in lines[-200:] if not line[1].lstrip().startswith(_SLURM)]
        for number, data in reversed(own[-CLOCK_LINES:]):
            text = data.decode("utf-8", errors="replace")
            when = frame(text).time if kernel else any_time(text)
            if when is not None or (kernel and frame(text).uptime is not None):
                self._keep((CLOCK, None, None, None), number, self._place(CLOCK, number, text, time=when))
                return

    def _keep(self, key: _Key, number: int, evidence: Evidence) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1
        self._found.setdefault(key, (number, evidence))

    def evidence(self) -> tuple[Evidence, ...]:
        ordered = sorted(self._found.items(), key=lambda item: item[1][0])
        counted = [
            found.model_copy(update={"count": self._counts[key]}) if self._counts[key] > 1 else found
            for key, (_, found) in ordered
        ]
        return tuple(_bounded(counted))


def _first(rows: Iterable[Signature], text: str) -> tuple[Signature, dict[str, str | None]] | None:
    """The first row that matches the text, with its groups."""
    for row in rows:
        if match := _compiled(row.pattern).search(text):
            return row, match.groupdict()
    return None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _excerpt(text: str) -> str:
    """At most LONGEST_EXCERPT printable characters of a line."""
    return "".join(char if char.isprintable() else " " for char in text[:LONGEST_EXCERPT]).strip()


def _bounded(found: Sequence[Evidence]) -> list[Evidence]:
    """At most KEPT of each role, the first and the last of them, in their order."""
    dropped: set[int] = set()
    for role, most in KEPT.items():
        indexes = [index for index, evidence in enumerate(found) if evidence.role is role]
        if len(indexes) > most:
            dropped.update(indexes[most // 2 : len(indexes) - most // 2])
    return [evidence for index, evidence in enumerate(found) if index not in dropped]
