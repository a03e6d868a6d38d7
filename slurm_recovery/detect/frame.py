"""Who printed a line and when: what its prefixes say, all together.

Owns srun's label, the order of prefixes, and the rank that a library writes within its message. The prefixes' forms
are in prefixes.py, those of times in times.py. Knows no reason and no job: whether a task is a rank, and where a rank
ran, is decided in attribute/ranks.py. Log text is hostile: every function is bounded and none raises.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_recovery.detect.json_lines import json_line
from slurm_recovery.detect.prefixes import prefix
from slurm_recovery.detect.srun_words import MOST_HOSTS, TaskEnd, hosts, task_end, tasks
from slurm_recovery.detect.times import NOTHING, Yearless, any_time, inner_time, leading_time

__all__ = ["MOST_HOSTS", "Frame", "TaskEnd", "any_time", "frame", "hosts", "task_end", "tasks"]


class Frame(NamedTuple):
    """What a line's prefixes say.

    `task` is srun's label: a rank only where every rank is a task of its own; of a heterogeneous job's component
    (`component`) it counts from 0 in each; of a line that is `relayed` it is the launcher's that brought the line
    from elsewhere. `in_group` marks a rank that is a process group's, which may be smaller than the world.
    `local_rank` is a device's number where NCCL printed it. A line with `others` stands for as many more that Ray
    left out, of whatever node.
    """

    text: str  # the line without the prefixes that were understood
    task: int | None = None
    component: int | None = None
    rank: int | None = None
    in_group: bool = False
    local_rank: int | None = None
    node: str | None = None
    ip: str | None = None
    pid: int | None = None
    others: int = 0
    relayed: bool = False
    record: bool = False  # the line is one of a logger that writes JSON
    time: float | None = None
    zoned: bool = False  # the time came with its offset; otherwise it was taken as UTC
    uptime: float | None = None  # seconds since the node's boot, where the kernel printed only that
    yearless: Yearless | None = None  # a date without its year


MOST_PREFIXES = 8
# slurm src/common/write_labelled_message.c: `%*d: `, right-aligned to the widest task; `P%u %*d: ` in a component
_LABEL = re.compile(r"(?a) {0,7}(?:P(?P<component>\d{1,4}) {1,8})?(?P<task>\d{1,7}):(?: |$)")
_LABEL_FIRST = frozenset(" P0123456789")
# c10d `[Rank 3]`, `[PG ID 0 PG GUID 0(default_pg) Rank 7]` (ProcessGroupNCCL.cpp createLogPrefix; in any other group
# the number is not the global rank); DeepSpeed, Megatron `[Rank 3]`; accelerate src/accelerate/logging.py `[RANK 3]`
_DEFAULT_GROUP = r"PG (?:ID )?(?:0 [^\]]{0,200}|\d{1,6} PG GUID [^\]]{0,80}\(default_pg\) )"
_INNER = re.compile(rf"(?a)\[(?:(?P<world>{_DEFAULT_GROUP})?Rank|(?P<process>RANK)) (?P<rank>\d{{1,7}})\]")
_INNER_WITHIN = 400
# Ray python/ray/_private/ray_logging/__init__.py LogDeduplicator
_REPEATED = re.compile(r"(?a) \[repeated (\d{1,7})x across cluster\]")
_REPEATED_WITHIN = 600  # of the line's end


def frame(line: str) -> Frame:
    """The line's prefixes, outermost first; of two that name the same thing the inner one counts."""
    found: dict[str, str] = {}
    stamp, relayed = NOTHING, False
    if line[:1] in _LABEL_FIRST and (label := _LABEL.match(line)):
        _note(found, label)
        line = line[label.end() :]
    for _ in range(MOST_PREFIXES):
        if (known := prefix(line)) is not None:
            match, relays = known
            if relays:
                relayed = True
                found.pop("node", None)
            _note(found, match)
            line = line[match.end() :]
        elif (read := leading_time(line)) is not None:
            line = line[read[0] :]
            stamp = stamp if stamp.told else read[1]
        else:
            break
    record = json_line(line)
    if record is not None:
        found |= {name: value for name in ("rank", "node") if (value := getattr(record, name)) is not None}
        line = line[record.text :]
    stamp = stamp if stamp.told else inner_time(line)
    in_group = "rank" not in found and _inner_rank(found, line)
    number = {name: int(value) for name, value in found.items() if name not in ("node", "ip")}
    return Frame(
        text=line,
        in_group=in_group,
        node=found.get("node"),
        ip=found.get("ip"),
        others=_others(line),
        relayed=relayed,
        record=record is not None,
        time=stamp.time,
        zoned=stamp.zoned,
        uptime=stamp.uptime,
        yearless=stamp.yearless,
        **number,
    )


def _note(found: dict[str, str], match: re.Match[str]) -> None:
    for name in match.re.groupindex:
        if (value := match[name]) is not None:
            found[name] = value


def _inner_rank(found: dict[str, str], line: str) -> bool:
    """Takes the rank that stands within the line; whether it may be that of a smaller group."""
    inner = _INNER.search(line, 0, _INNER_WITHIN) if "[" in line else None
    if inner is None:
        return False
    found["rank"] = inner["rank"]
    return inner["world"] is None and inner["process"] is None


def _others(line: str) -> int:
    """How many more lines Ray left out for this one."""
    match = _REPEATED.search(line, max(0, len(line) - _REPEATED_WITHIN)) if "x across cluster]" in line else None
    return max(0, int(match[1]) - 1) if match else 0
