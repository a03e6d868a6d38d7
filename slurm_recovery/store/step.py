"""One line of the audit. Owns the shape of a step; when one is written is recover.py's."""

from __future__ import annotations

from typing import Literal

from slurm_recovery.records import Record


class Step(Record):
    """What was about to be done (`intent`), how it ended (`outcome`), or something worth remembering (`note`).

    `time` is seconds since the epoch. `action` is the deed's name, `result` one of `records.Result` where the
    step is an outcome. NUL is dropped when a step is stored, and bytes that are no Unicode are spelt out.
    """

    time: float
    kind: Literal["intent", "outcome", "note"]
    action: str
    detail: str = ""
    result: str = ""
