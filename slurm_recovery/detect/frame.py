"""Who printed a line: the prefixes that launchers, c10d and NCCL put before it, and what srun says of tasks.

Owns prefixes, timestamps and Slurm's host and task ranges. Knows no reason and no job: whether a task is a
rank is decided in attribute/ranks.py. Log text is hostile: every function is bounded and none raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from slurm_recovery.hostlist import HostlistError, expand

MOST_HOSTS = 16384


@dataclass(frozen=True)
class Frame:
    """What a line's prefixes say. `task` is srun's label: a rank only where every rank is a task of its own."""

    text: str  # the line without the prefixes that were understood
    task: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    time: float | None = None
    uptime: float | None = None  # seconds since the node's boot, where the kernel printed only that
    zoned: bool = False  # the time came with its offset; otherwise it was taken as UTC


_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,120}[A-Za-z0-9])?"
_N = r"\d{1,7}"

# Each row is one prefix; they may follow one another, so they are tried again after each success.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[rank: ?(?P<rank>{_N})\] ?",  # Lightning
        rf"\[rank(?P<rank>{_N})\]:? ?",  # torch: c10d log prefix and excepthook
        rf"\[default(?P<local_rank>{_N})\]: ?",  # torchrun --tee, --redirects
        rf"\[{_N},(?P<rank>{_N})\]<std(?:out|err|diag)>: ?",  # Open MPI --tag-output
        rf"\[{_N},{_N}\]\[(?P<node>{_HOST}):{_N}\] ?",
        rf"(?P<node>{_HOST}):{_N}:{_N} \[(?P<local_rank>{_N})\] ?",  # NCCL: host:pid:tid [device]
        rf"\[(?P<node>{_HOST}):{_N}(?::{_N}){{1,3}}\] {{1,4}}",  # UCX: [host:pid:thread:tid]
        rf"\((?:[\w.:-]{{1,120}} )?pid={_N}(?:, ip=[\d.]{{7,15}})?\) ?",  # Ray
        rf"(?P<node>{_HOST}): (?=\[(?:rank|default|\d{{1,7}},))",  # pdsh, clush before another prefix
    )
)
MOST_PREFIXES = 6
_LABEL = re.compile(rf" {{0,7}}(?P<task>{_N}):(?: |$)")  # srun --label, right-aligned to the widest task
# c10d: "[Rank 3]", "[PG ID 0 PG GUID 0(default_pg) Rank 3]"; in any other group the number is not the global rank
_INNER_RANK = re.compile(rf"\[(?:PG (?:ID )?0 [^\]]{{0,200}})?Rank (?P<rank>{_N})\]")

_STAMP = re.compile(
    r"\[?(?:kern {1,2}:\w{1,8} {0,3}: )?\[?"
    r"(?P<date>\d{4}-\d\d-\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?:? {0,3}(?:\| )?"
)
# dmesg -T: "[Thu Jun  4 10:22:30 2026]"; journalctl -k without a year carries no full date and is left alone
_CTIME = re.compile(r"\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<ctime>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_UPTIME = re.compile(r"(?:kern {1,2}:\w{1,8} {0,3}: )?\[ {0,8}(?P<uptime>\d{1,12}\.\d{1,9})\] ?")


def frame(line: str) -> Frame:
    """The line's prefixes, outermost first; of two that name the same thing the inner one counts."""
    found: dict[str, str] = {}
    stamp = _Stamp()
    if label := _LABEL.match(line):
        found["task"], line = label["task"], line[label.end() :]
    for _ in range(MOST_PREFIXES):
        if (read := _leading_time(line)) is not None:
            length, told = read
            stamp = stamp if stamp.told else told
        else:
            match = next((hit for prefix in _PREFIXES if (hit := prefix.match(line))), None)
            if match is None:
                break
            length = match.end()
            found.update({key: value for key, value in match.groupdict().items() if value is not None})
        line = line[length:]
    inner = _INNER_RANK.search(line, 0, 400)
    if inner and "rank" not in found:
        found["rank"] = inner["rank"]
    return Frame(
        text=line,
        task=_number(found.get("task")),
        rank=_number(found.get("rank")),
        local_rank=_number(found.get("local_rank")),
        node=found.get("node"),
        time=stamp.time,
        uptime=stamp.uptime,
        zoned=stamp.zoned,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


@dataclass(frozen=True)
class _Stamp:
    time: float | None = None
    zoned: bool = False
    uptime: float | None = None

    @property
    def told(self) -> bool:
        return self.time is not None or self.uptime is not None


def _leading_time(line: str) -> tuple[int, _Stamp] | None:
    """A time at the line's very start: how many characters it takes, and what it says."""
    if match := _STAMP.match(line):
        return match.end(), _Stamp(*_iso(match["date"], match["clock"], match["part"], match["zone"]))
    if match := _CTIME.match(line):
        return match.end(), _Stamp(_ctime(match["ctime"]))
    if match := _UPTIME.match(line):
        return match.end(), _Stamp(uptime=float(match["uptime"]))
    return None


def _iso(date: str, clock: str, part: str | None, zone: str | None) -> tuple[float | None, bool]:
    try:
        when = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=_zone(zone))
    except ValueError:
        return None, False
    return when.timestamp() + float(f"0.{part or 0}"), zone is not None


def _zone(text: str | None) -> timezone:
    if text in (None, "Z"):
        return UTC
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


def _ctime(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


_ANY_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d)")


def any_time(line: str) -> float | None:
    """The first full date and time anywhere in a line, taken as UTC; None if there is none."""
    match = _ANY_DATE.search(line, 0, 2000)
    return _iso(match[1], match[2], None, None)[0] if match else None


def hosts(text: str) -> tuple[str, ...]:
    """The hosts of a Slurm host list, at most MOST_HOSTS; () where it is none or names more."""
    try:
        return expand(text, MOST_HOSTS) if len(text) <= 4000 else ()
    except HostlistError:
        return ()


def tasks(text: str) -> tuple[range, ...]:
    """The spans of a Slurm task list (`8-10,12-15`), not expanded; () where it is none."""
    spans = []
    for part in text[:4000].split(","):
        first, dash, last = part.partition("-")
        if not _TASK.fullmatch(first) or (dash and not _TASK.fullmatch(last)):
            return ()
        spans.append(range(int(first), int(last if dash else first) + 1))
    return tuple(span for span in spans if span)


_TASK = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class TaskEnd:
    """What one `srun: error:` line says: these tasks on these hosts ended so."""

    hosts: tuple[str, ...]
    tasks: tuple[range, ...]
    how: str  # "Exited with exit code 1", "Killed", "Aborted (core dumped)", "Out Of Memory"

    @property
    def count(self) -> int:
        """How many tasks it speaks of."""
        return sum(map(len, self.tasks))

    @property
    def first(self) -> int:
        return min(span.start for span in self.tasks)

    @property
    def only(self) -> int | None:
        """The task, if it speaks of one alone."""
        return self.first if self.count == 1 else None


# slurm src/srun/libsrun/launch.c: "%s: %s %s: %s"
_TASK_END = re.compile(r"srun: error: (?P<hosts>\S{1,4000}): tasks? (?P<tasks>[\d,-]{1,4000}): (?P<how>.{1,80})")


def task_end(line: str) -> TaskEnd | None:
    """The line's end of tasks, where srun reports one."""
    match = _TASK_END.search(line, 0, 8400)
    if not match:
        return None
    named, numbers = hosts(match["hosts"]), tasks(match["tasks"])
    return TaskEnd(named, numbers, match["how"].strip()) if named and numbers else None
