"""What is written down of one log: each piece of evidence once, with the number of lines like it.

Owns the step from a line to evidence: the first signature that matches, its place, what is kept when there is
too much. Which lines it is given is scan.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from slurm_recovery.detect.frame import Frame, any_time, frame
from slurm_recovery.detect.lines import Line, same
from slurm_recovery.detect.placement import Placement, placements
from slurm_recovery.detect.sample import kind_of
from slurm_recovery.detect.signature import Signature
from slurm_recovery.detect.srun_words import task_end
from slurm_recovery.detect.table import Entry, TorchrunTable
from slurm_recovery.records import Evidence, Role, Source, Trust

LONGEST_EXCERPT = 500
# How many different pieces of evidence are kept of one role: half of them the first seen, half the last.
# Of conditional ones many more: who lags shows only where the counters of all ranks are compared.
KEPT = {Role.ROOT: 160, Role.CONDITIONAL: 4096, Role.SECONDARY: 512, Role.NOISE: 512}
CLOCK = "clock"  # the signature id of the last dated line that the program printed
CLOCK_LINES = 4  # such a line counts only this near to the program's last line
TABLE = "torchrun_table"
PLACEMENT = "placement"  # a line that says where ranks run, and nothing else
MOST_PLACEMENTS = 2048
VOICE = "voice"  # one of the tasks, ranks or hosts that printed anything at all: it ran
_SLURM = (b"srun:", b"slurmstepd:")

# One of these is in whatever says, in a job's own words, where something runs.
_PLACE_WORDS = re.compile(rb"(?i)host|node|rank|procid|\d\.\d{1,3}\.\d{1,3}\.\d")

_Key = tuple[str, object, object, object]


class Notes:
    """What is written down of one log: each piece of evidence once, with the number of lines like it."""

    def __init__(self, source: Source, path: str, node: str | None, trust: Trust) -> None:
        self.source = source
        self._path, self._node, self._trust = path, node, trust
        self._table = TorchrunTable()
        self._found: dict[_Key, tuple[int, Evidence]] = {}
        self._counts: dict[_Key, int] = {}
        self._key_of_kind: dict[bytes, _Key] = {}

    def line(self, line: Line, rows: Sequence[Signature]) -> bool:
        """Writes down what the line tells; whether that is anything but noise."""
        text = line.text.decode("utf-8", errors="replace")
        head = frame(text)
        if hit := _first(rows, head.text):
            self._key_of_kind[kind_of(line.text)] = self._hit(hit, head, line, text)
            return hit.row.role is not Role.NOISE
        return self.source is Source.JOB_LOG and self._placement(head, line, text)

    def _hit(self, hit: _Hit, head: Frame, line: Line, text: str) -> _Key:
        row, groups, begin = hit
        rank = _int(groups.get("rank"))
        rank = head.rank if head.rank is not None else rank
        node = groups.get("node") or self._node or head.node
        local_rank = _int(groups.get("local_rank"))
        place = rank if rank is not None else ("task", head.task, head.local_rank)
        # Each of srun's lines speaks of other tasks; of a cause each wording tells something.
        if srun := task_end(text):
            wording: object = srun
        else:
            wording = same(head.text[:80].encode()) if row.role is Role.ROOT else b""
        found = self._place(
            row.id,
            line,
            _telling_part(text, len(text) - len(head.text) + begin),
            reason=row.reason,
            role=row.role,
            node=node,
            rank=rank,
            local_rank=local_rank if local_rank is not None else head.local_rank,
            time=head.time if head.time is not None else any_time(text),
        )
        # What is no cause marks a place in the log, such as where an attempt begins: the last of them counts.
        return self._keep((row.id, place, node, wording), line, found, last=row.role is Role.NOISE)

    def _placement(self, head: Frame, line: Line, text: str) -> bool:
        """Notes where ranks run, if this line says it."""
        if entry := self._table.take(head.text, (head.task, head.node)):
            self._entry(entry, line, text)
            return True
        if said := placements(head):
            self._stated(said, head, line, text)
        return bool(said)

    def _stated(self, said: tuple[Placement, ...], head: Frame, line: Line, text: str) -> None:
        place = (head.node, head.task, head.local_rank)
        found = self._place(PLACEMENT, line, text, rank=head.rank, node=head.node, local_rank=head.local_rank)
        self._keep((PLACEMENT, place, said, head.rank), line, found)

    def preamble(self, lines: Iterable[Line]) -> None:
        """Notes what the log's first lines say of places in a job's own words, which no literal finds."""
        for line in lines:
            if not _PLACE_WORDS.search(line.text):
                continue
            text = line.text.decode("utf-8", errors="replace")
            if said := placements(head := frame(text)):
                self._stated(said, head, line, text)

    def _entry(self, entry: Entry, line: Line, text: str) -> None:
        """One rank's entry in a failure table of torchrun: a place, whatever prefix its lines have."""
        found = self._place(
            TABLE,
            line,
            text,
            reason=entry.reason,
            role=entry.role if entry.reason else Role.NOISE,
            node=entry.node,
            rank=entry.rank,
            local_rank=entry.local_rank,
        )
        self._keep((TABLE, entry.rank, entry.node, entry.reason), line, found)

    def voices(self, lines: Iterable[Line]) -> None:
        """Notes who printed anything."""
        for line in lines:
            text = line.text.decode("utf-8", errors="replace")
            head = frame(text)
            found = self._place(VOICE, line, text, rank=head.rank, node=head.node)
            self._keep((VOICE, head.rank, head.node, head.task), line, found)

    def clock(self, lines: Sequence[Line]) -> None:
        """Notes when a job's program last printed a date, if that was nearly the last it printed.

        In a kernel log: the last line that tells a time of any kind.
        """
        kernel = self.source is Source.KERNEL_LOG
        own = lines if kernel else [line for line in lines[-200:] if not line.text.lstrip().startswith(_SLURM)]
        for line in reversed(own[-CLOCK_LINES:]):
            text = line.text.decode("utf-8", errors="replace")
            when = frame(text).time if kernel else any_time(text)
            if when is not None or (kernel and frame(text).uptime is not None):
                self._keep((CLOCK, None, None, None), line, self._place(CLOCK, line, text, time=when))
                return

    def more(self, left_out: Mapping[bytes, int]) -> None:
        """Counts lines that were not looked at, because many before and after them were like them."""
        for kind, count in left_out.items():
            if (key := self._key_of_kind.get(kind)) is not None:
                self._counts[key] += count

    def _place(self, signature: str, line: Line, text: str, **known: Any) -> Evidence:
        """Evidence of a place or time; a cause only if `known` gives it a reason and a role."""
        values = {"reason": "", "role": Role.NOISE, "node": self._node, **known}
        return Evidence(
            source=self.source,
            trust=self._trust,
            signature=signature,
            line=_excerpt(text),
            place=f"{self._path}{line.place}",
            **values,
        )

    def _keep(self, key: _Key, line: Line, evidence: Evidence, *, last: bool = False) -> _Key:
        self._counts[key] = self._counts.get(key, 0) + 1
        if last or key not in self._found:
            self._found[key] = (line.offset, evidence)
        return key

    def evidence(self) -> tuple[Evidence, ...]:
        ordered = sorted(self._found.items(), key=lambda item: item[1][0])
        counted = [
            found.model_copy(update={"count": self._counts[key]}) if self._counts[key] > 1 else found
            for key, (_, found) in ordered
        ]
        return tuple(_bounded(counted))


class _Hit(NamedTuple):
    """The row that matched a text, its groups, and where in the text the match begins."""

    row: Signature
    groups: dict[str, str | None]
    begin: int


def _first(rows: Iterable[Signature], text: str) -> _Hit | None:
    """The first row that matches the text."""
    for row in rows:
        if match := _compiled(row.pattern).search(text):
            return _Hit(row, match.groupdict(), match.start())
    return None


def _telling_part(text: str, begin: int) -> str:
    """The line itself; of a long one its prefix, and what stands where the match begins."""
    return text if begin < LONGEST_EXCERPT - 200 else f"{text[:100]} ... {text[begin - 20 :]}"


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _excerpt(text: str) -> str:
    """At most LONGEST_EXCERPT printable characters of a line."""
    text = text[:LONGEST_EXCERPT]
    shown = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return shown.strip()


def _bounded(found: Sequence[Evidence]) -> list[Evidence]:
    """At most KEPT of each role, and MOST_PLACEMENTS: the first and the last of them, in their order."""
    of_kind: dict[Role | None, list[int]] = {}
    for index, evidence in enumerate(found):
        of_kind.setdefault(None if evidence.signature == PLACEMENT else evidence.role, []).append(index)
    dropped: set[int] = set()
    for kind, indexes in of_kind.items():
        most = MOST_PLACEMENTS if kind is None else KEPT[kind]
        if len(indexes) > most:
            dropped.update(indexes[most // 2 : len(indexes) - most // 2])
    return [evidence for index, evidence in enumerate(found) if index not in dropped]
