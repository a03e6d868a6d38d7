"""Megatron-LM: `iter_0001200` or `release`, and `latest_checkpointed_iteration.txt` beside it, written last.

megatron/training/checkpointing.py: get_checkpoint_name, save_checkpoint (all ranks write, then a barrier, then rank 0
writes the tracker file). Its distributed formats, megatron/core/dist_checkpointing: shards and `.metadata` as PyTorch's
distributed checkpoints, then `metadata.json`; what is not sharded in `common.pt` or, since 2026, in a shard of its own.
"""

from __future__ import annotations

import os
import re

from slurm_recovery.checkpoint import dcp, torch_file
from slurm_recovery.checkpoint.look import Broken, Entry, Look, printable

TRACKER = "latest_checkpointed_iteration.txt"
FOLDER = re.compile(r"iter_(\d{7,18})|release")
RANK = re.compile(r"mp_rank_(\d{2,6})(?:_(\d{3,6}))?(?:_(\d{3,6}))?")
STATES = ("model_optim_rng.pt", "distrib_optim.pt")


def is_part(name: str, is_folder: bool) -> bool:
    return bool(RANK.fullmatch(name)) if is_folder else name == "common.pt"


def step_of(name: str) -> int | None:
    """A release is iteration 0 (read_metadata)."""
    found = FOLDER.fullmatch(name)
    return int(found[1] or 0) if found else None


def check(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    step = step_of(os.path.basename(path))
    if step is not None:
        _check_tracker(look, path, step)
    if any(entry.is_folder and RANK.fullmatch(name) for name, entry in entries.items()):
        _check_ranks(look, path, entries)
    else:
        _check_distributed(look, path, entries)
    return step


def _check_tracker(look: Look, path: str, step: int) -> None:
    """Its barrier vouches for every rank's files: names alone cannot tell that the last rank's is missing."""
    tracker = look.word(os.path.join(os.path.dirname(path), TRACKER))
    is_release = os.path.basename(path) == "release"
    if tracker == "release":
        if not is_release:
            raise Broken(f"{TRACKER} says release, and it is written last")
    elif not tracker:
        # It is emptied, then written: a writer that died in between was done with all but, perhaps, the last one.
        if look.is_last(path):
            raise Broken(f"{TRACKER} is empty, and it is written last")
    elif not re.fullmatch(r"\d{1,18}", tracker):
        raise Broken(f"{TRACKER} holds no iteration")
    elif int(tracker) < step:
        raise Broken(f"{TRACKER} says {int(tracker)}, and it is written last")


def _check_ranks(look: Look, path: str, entries: dict[str, Entry]) -> None:
    """One folder for each tensor, pipeline and expert rank: no gap in the grid, and the files of each whole."""
    found = {name: RANK.fullmatch(name) for name in entries}
    grid = {tuple(int(rank) for rank in one.groups() if rank): name for name, one in found.items() if one}
    depths = {len(place) for place in grid}
    sizes = [{place[axis] for place in grid} for axis in range(min(depths))]
    cells = 1
    for size in sizes:
        cells *= max(size) + 1
    if len(depths) > 1 or len(grid) != cells:
        raise Broken(f"{len(grid)} of {cells} folders mp_rank_*")
    has_optimizer = [look.is_there(os.path.join(path, name, STATES[1])) for name in grid.values()]
    for name, optimizer in zip(grid.values(), has_optimizer, strict=True):
        try:
            torch_file.check(look, os.path.join(path, name, STATES[0]))
            if optimizer:
                torch_file.check(look, os.path.join(path, name, STATES[1]))
        except Broken as why:
            raise Broken(f"{name}: {why}") from why
    if any(has_optimizer) and not all(has_optimizer):
        raise Broken(f"{has_optimizer.count(False)} of {len(grid)} ranks have no {STATES[1]}")


def _check_distributed(look: Look, path: str, entries: dict[str, Entry]) -> None:
    backend = _backend(look, path, entries)
    if "common.pt" in entries:
        torch_file.check(look, os.path.join(path, "common.pt"))
    if backend == "zarr":
        _check_zarr(look, path, entries)
        return
    keys = dcp.check(look, path, entries)
    has_common = any(key.startswith("common_state") for key in keys)
    if not backend and ("common.pt" in entries or has_common):
        raise Broken("no metadata.json")
    if backend and "common.pt" not in entries and not has_common:
        raise Broken("no common.pt")


def _backend(look: Look, path: str, entries: dict[str, Entry]) -> str:
    """`--ckpt-format torch_dcp` writes no metadata.json; then it is PyTorch's format alone."""
    if "metadata.json" not in entries:
        if not any(dcp.is_part(name, entry.is_folder) for name, entry in entries.items()):
            raise Broken("no mp_rank_* and no metadata.json")
        return ""
    told = look.json(os.path.join(path, "metadata.json"))
    backend = told.get("sharded_backend") if isinstance(told, dict) else None
    if not isinstance(backend, str) or not backend:
        raise Broken("metadata.json names no sharded_backend")
    return backend


def _check_zarr(look: Look, path: str, entries: dict[str, Entry]) -> None:
    """A folder for each tensor. A chunk that is not there is all fill value: the format's own rule."""
    if "common.pt" not in entries:
        raise Broken("no common.pt")
    tensors = [entry for entry in entries.values() if entry.is_folder]
    if not tensors:
        raise Broken("no tensors")
    for tensor in tensors:
        try:
            told = look.json(os.path.join(path, tensor.name, ".zarray"))
        except Broken as why:
            raise Broken(f"{printable(tensor.name)}: {why}") from why
        if not isinstance(told, dict) or not isinstance(told.get("shape"), list):
            raise Broken(f"{printable(tensor.name)}: .zarray names no shape")
        for name, chunk in look.folder(tensor.path).items():
            if chunk.is_file and not name.startswith(".") and not look.size(chunk.path):
                raise Broken(f"{printable(tensor.name)}: chunk {printable(name)} is empty")
