"""Times as Slurm's commands read and write them, in the local time zone. squeue(1), sacct(1) --starttime."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_RELATIVE = re.compile(r"now(?:([+-])(\d{1,9})([a-z]*))?")
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?)?")
UNKNOWN = "Unknown"
FORMS = "write 2026-11-29, 2026-11-29T12:00[:00], 12:00, today, yesterday or now-2hours"


def moment(text: str, now: float) -> float:
    """Seconds since the epoch. Raises ValueError, with the forms that are understood."""
    word = text.strip()
    midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        if match := _RELATIVE.fullmatch(word.lower()):
            return now + _offset(*match.groups())
        if word.lower() in ("today", "midnight"):
            return midnight.timestamp()
        if word.lower() == "yesterday":
            return (midnight - timedelta(days=1)).timestamp()
        if _CLOCK.fullmatch(word):
            hours, minutes, seconds = [*map(int, word.split(":")), 0][:3]
            return midnight.replace(hour=hours, minute=minutes, second=seconds).timestamp()
        if _DATE.fullmatch(word):
            return datetime.fromisoformat(word).timestamp()
    except (ValueError, OverflowError, KeyError):
        pass
    raise ValueError(f"not a time: {text!r}; {FORMS}")


def _offset(sign: str | None, count: str | None, unit: str | None) -> float:
    if sign is None or count is None:
        return 0.0
    names = [name for name in _UNITS if name.startswith((unit or "second").removesuffix("s"))]
    if len(names) != 1:
        raise ValueError(unit)
    return int(sign + count) * _UNITS[names[0]]


def shown(when: float | None) -> str:
    """`2026-11-29T12:00:00`, or `Unknown`, as squeue has it."""
    if when is None:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(when).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def short(when: float | None) -> str:
    """The same without year and seconds: `11-29T12:00`."""
    return shown(when)[5:16] if shown(when) != UNKNOWN else UNKNOWN


def duration(seconds: float) -> str:
    """`34:56`, `2:03:04`, `1-02:03:04`, as squeue's TIME."""
    minutes, secs = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"
