"""The table of formats. A new one is a row here, and its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from slurm_recovery.checkpoint import (
    accelerate,
    dcp,
    deepspeed,
    hugging_face,
    lightning,
    megatron,
    names,
    orbax,
    weights,
)
from slurm_recovery.checkpoint.look import Entry, Look


class Format(NamedTuple):
    """A kind of checkpoint that is a folder.

    `is_part`: whether a name (and whether it is a folder's) tells that the folder around it is of this format.
    `step_of`: the step, where the folder's own name is of this format and of no other. `check` raises Broken if it is
    not complete, and returns the step where the checkpoint itself tells one.
    """

    name: str
    is_part: Callable[[str, bool], bool]
    step_of: Callable[[str], int | None]
    check: Callable[[Look, str, dict[str, Entry]], int | None]


def _no_step(_: str) -> int | None:
    return None


def _check_dcp(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    dcp.check(look, path, entries)
    return None


def _lightning_step(name: str) -> int | None:
    return names.step_of(name) if name.endswith(".ckpt") else None


# The first row that fits: those whose parts other formats have too come first.
FOLDERS = (
    Format("megatron", megatron.is_part, megatron.step_of, megatron.check),
    Format("lightning", lightning.is_part, _lightning_step, lightning.check),
    Format("huggingface", hugging_face.is_part, hugging_face.step_of, hugging_face.check),
    Format("accelerate", accelerate.is_part, _no_step, accelerate.check),
    Format("deepspeed", deepspeed.is_part, deepspeed.step_of, deepspeed.check),
    Format("orbax", orbax.is_part, _no_step, orbax.check),
    Format("dcp", dcp.is_part, _no_step, _check_dcp),
    Format("safetensors", weights.is_index, _no_step, weights.check_sharded),
)
PLAIN = Format("torch", lambda name, is_folder: not is_folder and names.is_file(name), _no_step, weights.check_plain)


def of_folder(path: str, entries: dict[str, Entry]) -> Format | None:
    """The format of a folder: by what it holds, or else by its name."""
    by_parts = next(filter(lambda row: _has_part(row, entries), FOLDERS), None)
    by_name = next((row for row in FOLDERS if row.step_of(os.path.basename(path)) is not None), None)
    if by_name and (by_name.name in BY_NAME or (by_name.name == "huggingface" and _is_trainers(by_parts, entries))):
        return by_name
    has_files = _has_part(PLAIN, entries)
    return by_parts or (by_name if by_name and by_name.name == "deepspeed" else PLAIN if has_files else by_name)


# Their folders' names are of no other's, whatever is in them so far.
BY_NAME = ("megatron", "lightning")


def _is_trainers(by_parts: Format | None, entries: dict[str, Entry]) -> bool:
    """Whether `checkpoint-500`, which may be a script's own, is of the Trainer, as far as it has been written."""
    return bool(set(hugging_face.WEIGHTS) & set(entries)) if by_parts is None else by_parts.name == "safetensors"


def _has_part(row: Format, entries: dict[str, Entry]) -> bool:
    return any(row.is_part(one.name, one.is_folder) for one in entries.values())


def format_of_file(look: Look, path: str) -> tuple[str, int | None]:
    """The format of a whole file, and the step that it or its name tells."""
    name = os.path.basename(path)
    step = names.step_of(name)
    if name.endswith(".safetensors"):
        return "safetensors", step
    if not name.endswith(".ckpt"):
        return "torch", step
    told = lightning.file_step(look, path)
    return ("lightning", told) if told is not None else ("torch", step)
