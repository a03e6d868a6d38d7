"""How single values are written in recovery.conf: times as Slurm writes them, sizes, lists."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from slurm_recovery.job_options import NAMES

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)B?", re.IGNORECASE)


def seconds(value: object) -> object:
    """Seconds of `90`, `1:30` (minutes:seconds), `2:00:00`, `1-00:00:00` (days-hours...). sbatch(1), --time.

    A bare number means seconds, as for every time-out in slurm.conf(5).
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", value.strip())
    if not match:
        raise ValueError(f"not a time: {value!r}; write 90, 1:30, 2:00:00 or 1-00:00:00")
    parts = [int(part) for part in match[2].split(":")]
    if match[1] is not None:
        hours, minutes, secs = [*parts, 0, 0][:3]
        return ((int(match[1]) * 24 + hours) * 60 + minutes) * 60 + secs
    total = 0
    for part in parts:
        total = total * 60 + part
    return total


def slurm_time(value: float) -> str:
    """The way back: 90 → `90`, 86400 → `1-00:00:00`."""
    whole = int(value)
    if whole < 3600:
        return str(whole)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def size(value: object) -> object:
    """Bytes of `65536`, `64K`, `4M`, `1G`."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f"not a size: {value!r}; write 65536, 64K or 4M")
    return int(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")


def slurm_size(value: int) -> str:
    for power, letter in ((3, "G"), (2, "M"), (1, "K")):
        if value and value % 1024**power == 0:
            return f"{value // 1024**power}{letter}"
    return str(value)


def numbers(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"(\d+(,\d+)*)?", value):
        raise ValueError(f"not a list of numbers: {value!r}; write 93 or 93,94")
    return tuple(int(part) for part in value.split(",") if part)


def job_options(value: object) -> object:
    """`all`, `none`, or names of job options parted by commas."""
    if not isinstance(value, str):
        return value
    words = [word.lower() for word in value.split(",") if word]
    if words in (["all"], ["none"]):
        return NAMES if words == ["all"] else ()
    for word in words:
        if word not in NAMES:
            raise ValueError(f"not a job option: {word!r}; write all, none, or some of {','.join(NAMES)}")
    return tuple(name for name in NAMES if name in words)


def shown_job_options(names: tuple[str, ...]) -> str:
    return "all" if set(names) == set(NAMES) else ",".join(names) or "none"


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(seconds), PlainSerializer(slurm_time)]
Bytes = Annotated[int, BeforeValidator(size), PlainSerializer(slurm_size)]

Numbers = Annotated[tuple[int, ...], BeforeValidator(numbers), PlainSerializer(lambda row: ",".join(map(str, row)))]
JobOptionNames = Annotated[tuple[str, ...], BeforeValidator(job_options), PlainSerializer(shown_job_options)]
Word = BeforeValidator(lower)
