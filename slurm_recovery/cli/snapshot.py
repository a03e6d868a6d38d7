"""The end of an attempt's log as it was kept on record, for people. The file itself is not touched."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_recovery.cli.times import shown
from slurm_recovery.records import Incident, Observation

_LINE_END = re.compile(r"\r\n|\n|\r")  # a progress bar ends its lines with \r


def log_line(observation: Observation, command: str) -> str:
    """One line for `show`: path, how much is on record, and the command that prints it; "" where there is no log."""
    if not observation.log_path:
        return ""
    if not observation.log_tail:
        return f"Log: {observation.log_path}, nothing in it on record"
    return f"Log: {observation.log_path}, {_how_much(observation)} on record: {command}"


def log_lines(incident: Incident, observation: Observation) -> Iterator[str]:
    """A head line, and the log's. As a rule the last of them is where the failure is told."""
    when = shown(incident.times.get("decided", incident.attempt.end_time))
    yield f"{observation.log_path}: {_how_much(observation)}; a snapshot of {when}, the file may have changed since"
    yield from (line.expandtabs() for line in _LINE_END.split(observation.log_tail.rstrip("\r\n")))


def _how_much(observation: Observation) -> str:
    """`last 12K`, or `all 812 bytes`."""
    kept = len(observation.log_tail.encode("utf-8", "surrogatepass"))
    return f"{'all' if kept >= observation.log_end else 'last'} {size(kept)}"


def size(count: int) -> str:
    """`812 bytes`, `12K`, `3M`."""
    for power, letter in ((2, "M"), (1, "K")):
        if count >= 1024**power:
            return f"{round(count / 1024**power)}{letter}"
    return f"{count} bytes"
