"""Whole files of weights and states, alone or in a folder: torch, safetensors, and indexes of shards."""

from __future__ import annotations

import os
from collections.abc import Collection

from slurm_recovery.checkpoint import names, safetensors_file, torch_file
from slurm_recovery.checkpoint.look import Broken, Entry, Look, printable

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def check_file(look: Look, path: str) -> None:
    """Raises Broken if a file of weights or states is not whole."""
    if path.endswith(".safetensors"):
        safetensors_file.check(look, path)
    else:
        torch_file.check(look, path)


def check_files(look: Look, path: str, entries: dict[str, Entry]) -> set[str]:
    """All of the folder's files whose kind is known. Returns their names."""
    wanted = {name for name, entry in entries.items() if name.endswith(names.FILES) and not entry.is_folder}
    for name in sorted(wanted):
        if not names.is_unfinished(name):
            check_file(look, os.path.join(path, name))
    return wanted


def check_index(look: Look, path: str, index: str, entries: Collection[str]) -> None:
    """An index and every shard that it names (transformers, modeling_utils.py: weight_map)."""
    told = look.json(os.path.join(path, index))
    weights = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise Broken(f"{index} names no shards")
    for shard in sorted({shard if isinstance(shard, str) else "" for shard in weights.values()}):
        if not shard or "/" in shard or shard in (".", "..") or "\0" in shard:
            raise Broken(f"{index} names a shard outside of its folder: {printable(shard)}")
        if shard not in entries:
            raise Broken(f"no {printable(shard)}, which {index} names")
        check_file(look, os.path.join(path, shard))


def is_index(name: str, is_folder: bool) -> bool:
    return name in INDEXES and not is_folder


def check_sharded(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    """A folder of shards with their index."""
    for index in INDEXES:
        if index in entries:
            check_index(look, path, index, entries)
    return None


def check_plain(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    """A script's own folder: every file is whole, none has its temporary name still."""
    for name in sorted(entries):
        if names.is_unfinished(name):
            raise Broken(f"{printable(name)} has its temporary name still")
    if not check_files(look, path, entries):
        raise Broken("no file of a checkpoint in it" if entries else "the folder is empty")
    return None


def contiguous(ranks: Collection[int], name: str) -> None:
    """Raises Broken for the first rank that is missing; `name` has {} where the rank is."""
    for rank, there in enumerate(sorted(ranks)):
        if rank != there:
            raise Broken(f"no {name.format(rank)}")
