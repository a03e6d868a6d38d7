"""What srun says of tasks: which of them ended how, and on which hosts.

Owns Slurm's host and task ranges within a line. A task is a number of the step, and whether it is a rank is
decided in attribute/ranks.py. Log text is hostile: every function is bounded and none raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_recovery.hostlist import HostlistError, expand

MOST_HOSTS = 16384
_TASK = re.compile(r"[0-9]{1,9}")
# slurm src/srun/launch.c: error("%s: %s %s: %s"); the hosts are "Unknown" in steps of more than 100000 tasks
_TASK_END = re.compile(r"srun: error: (?P<hosts>\S{1,4000}): tasks? (?P<tasks>[\d,-]{1,4000}): (?P<how>.{1,80})")


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


def task_end(line: str) -> TaskEnd | None:
    """The line's end of tasks, where srun reports one."""
    match = _TASK_END.search(line, 0, 8400)
    if not match:
        return None
    named, numbers = hosts(match["hosts"]), tasks(match["tasks"])
    return TaskEnd(named, numbers, match["how"].strip()) if named and numbers else None
