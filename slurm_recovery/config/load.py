"""Reads recovery.conf into a Config. A wrong key or value is one ConfigError with file, line and hint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.confile import ConfigError, Pair, read_lines
from slurm_recovery.config.settings import CheckpointFormat, Config, Policy, ReasonPolicy, Section, Settings, keys
from slurm_recovery.hostlist import HostlistError, expand

S = TypeVar("S", bound=Section)



def load(path: Path) -> Config:
    """The whole file; keys in any case, a later line beats an earlier one."""
    general: list[Pair] = []
    partitions: dict[str, list[Pair]] = {}
    reasons: dict[str, list[Pair]] = {}
    formats: dict[str, list[Pair]] = {}
    for first, *rest in read_lines(path):
        match first.key.lower():
            case "partitionname":
                for name in _names(first):
                    partitions.setdefault(name, []).extend(rest)
            case "reason":
                reasons.setdefault(_known_reason(first), []).extend(rest)
            case "checkpointformat":
                formats.setdefault(_format_name(first), []).extend(rest)
            case _:
                general += [first, *rest]
    origins: dict[str, str] = {}
    settings = _build(Settings, general, "", {}, origins)
    inherited = settings.model_dump(include=set(Policy.model_fields))
    return Config(
        settings=settings,
        partitions={
            name: _build(Policy, pairs, f"PartitionName={name} ", inherited, origins)
            for name, pairs in partitions.items()
        },
        reasons={
            code: _build(ReasonPolicy, pairs, f"Reason={code} ", {}, origins) for code, pairs in reasons.items()
        },
        checkpoint_formats={
            name: _format(pairs, f"CheckpointFormat={name} ", origins) for name, pairs in formats.items()
        },
        origins=origins,
    )


def _format_name(pair: Pair) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,31}", pair.value):
        raise ConfigError(pair.origin, f"CheckpointFormat={pair.value}", "at most 32 letters, digits, _ and -")
    return pair.value


def _format(pairs: list[Pair], prefix: str, origins: dict[str, str]) -> CheckpointFormat:
    found = _build(CheckpointFormat, pairs, prefix, {}, origins)
    if not found.pattern:
        where = pairs[0].origin if pairs else "recovery.conf"
        raise ConfigError(where, f"{prefix.strip()}: no Pattern", "as Pattern=ckpt-{step} Marker=DONE")
    return found


def _names(pair: Pair) -> tuple[str, ...]:
    try:
        return expand(pair.value)
    except HostlistError as error:
        raise ConfigError(pair.origin, f"PartitionName={pair.value}", str(error)) from error


def _known_reason(pair: Pair) -> str:
    code = pair.value.lower()
    if code not in REASONS:
        raise ConfigError(pair.origin, f"unknown Reason={pair.value}", _nearest(code, REASONS))
    return code


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else "see recovery.conf(5)"


def _build(
    section: type[S], pairs: Iterable[Pair], prefix: str, base: Mapping[str, object], origins: dict[str, str]
) -> S:
    names = keys(section)
    values: dict[str, object] = dict(base)
    where: dict[str, Pair] = {}
    for pair in pairs:
        name = names.get(pair.key.lower())
        if name is None:
            aliases = {key: section.model_fields[field].alias or field for key, field in names.items()}
            close = difflib.get_close_matches(pair.key.lower(), list(names), n=1)
            hint = f"did you mean {aliases[close[0]]}?" if close else "see recovery.conf(5)"
            raise ConfigError(pair.origin, f"unknown key {pair.key}", hint)
        values[name], where[name] = pair.value, pair
        origins[prefix + (section.model_fields[name].alias or name)] = pair.origin
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise _refused(section, error, where) from error


def _refused(section: type[Section], error: ValidationError, where: Mapping[str, Pair]) -> ConfigError:
    first = error.errors()[0]
    key = str(first["loc"][0])
    name = keys(section).get(key.lower(), key)
    pair = where.get(name)
    said = first["msg"].removeprefix("Value error, ")
    hint = section.model_fields[name].description or ""
    if pair is None:
        return ConfigError("recovery.conf", f"{key}: {said}", hint)
    return ConfigError(pair.origin, f"{pair.key}={pair.value}: {said}", hint)
