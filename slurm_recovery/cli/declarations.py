"""The settings of recovery.conf as rows for people: key, kind of value, range, default, sentence.

Read from the declarations of config/settings.py, for the manual. Knows no page.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from slurm_recovery.config import values
from slurm_recovery.config.sample import defaults
from slurm_recovery.config.settings import CheckpointFormat, ReasonPolicy, Section, Settings
from slurm_recovery.config.values import slurm_size, slurm_time

# How a value is written, by the function that reads it.
WRITTEN = {
    values.seconds: "time",
    values.size: "size",
    values.numbers: "number[,number...]",
    values.job_options: "option[,option...]",
}
SHOWN = {values.seconds: slurm_time, values.size: slurm_size}


class Declared(NamedTuple):
    """One key. `range` is empty where anything of its kind goes, `default` where there is none."""

    key: str
    kind: str
    range: str
    default: str
    sentence: str


def declared(section: type[Section]) -> tuple[Declared, ...]:
    """The keys of a section in the order of their declaration."""
    known = defaults() if issubclass(section, Settings) else {}
    return tuple(
        Declared(
            key=field.alias or name,
            kind=_kind(field),
            range=_range(field),
            default=known.get(field.alias or name, ""),
            sentence=field.description or "",
        )
        for name, field in section.model_fields.items()
    )


def every_key() -> tuple[Declared, ...]:
    return (*declared(Settings), *declared(ReasonPolicy), *declared(CheckpointFormat))


def _kind(field: FieldInfo) -> str:
    reader = _reader(field)
    if reader in WRITTEN:
        return WRITTEN[reader]
    kinds = _types(field.annotation)
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(member.value for member in kind)
    if int in kinds:
        return "number"
    return "path" if Path in kinds else "text"


def _reader(field: FieldInfo) -> Any:
    return next((mark.func for mark in field.metadata if isinstance(mark, BeforeValidator)), None)


def _types(annotation: Any) -> tuple[Any, ...]:
    """The types of `X`, `X | None` and `Annotated[X | None, ...]`."""
    inner = getattr(annotation, "__args__", None)
    return inner if inner and not isinstance(annotation, type) else (annotation,)


def _range(field: FieldInfo) -> str:
    show = SHOWN.get(_reader(field), lambda bound: str(bound))
    low = next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None)
    high = next((mark.le for mark in field.metadata if hasattr(mark, "le")), None)
    if low is not None and high is not None:
        return f"{show(low)} to {show(high)}"
    return f"{show(low)} or more" if low is not None else ""
