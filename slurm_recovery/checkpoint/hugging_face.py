"""Hugging Face Trainer: `checkpoint-500` with weights, optimizer, scheduler, states, `trainer_state.json` last.

transformers/trainer.py, _save_checkpoint. With save_only_model neither optimizer nor scheduler nor random states are
written. DeepSpeed and FSDP write the model and the optimizer their own way, in folders inside.
"""

from __future__ import annotations

import os
import re

from slurm_recovery.checkpoint import dcp, deepspeed, names, weights
from slurm_recovery.checkpoint.look import Broken, Entry, Look
from slurm_recovery.checkpoint.pickled import whole

STATE = "trainer_state.json"
FOLDER = re.compile(r"checkpoint-(\d{1,18})")
WEIGHTS = (
    "model.safetensors pytorch_model.bin adapter_model.safetensors adapter_model.bin pytorch_model_fsdp.bin "
    "model.safetensors.index.json pytorch_model.bin.index.json"
).split()
RNG = re.compile(r"rng_state_(\d{1,6})\.pth")
ONE_RNG = "rng_state.pth"
# accelerate/utils/fsdp_utils.py: a PyTorch distributed checkpoint each.
FSDP = re.compile(r"(pytorch_model_fsdp|optimizer)_\d{1,6}")


def is_part(name: str, is_folder: bool) -> bool:
    return name == STATE and not is_folder


def step_of(name: str) -> int | None:
    found = FOLDER.fullmatch(name)
    return int(found[1]) if found else None


def check(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    if STATE not in entries:
        raise Broken(f"no {STATE}")
    told = look.json(os.path.join(path, STATE))
    step = whole(told.get("global_step")) if isinstance(told, dict) else None
    if step is None:
        raise Broken(f"{STATE} names no global_step")
    tags = [name for name, entry in entries.items() if entry.is_folder and deepspeed.step_of(name) is not None]
    shards = [name for name, entry in entries.items() if entry.is_folder and FSDP.fullmatch(name)]
    if not tags and not any(name.startswith("pytorch") for name in shards) and not set(WEIGHTS) & set(entries):
        raise Broken("no weights")
    for name in sorted(entries):
        if weights.is_index(name, entries[name].is_folder):
            weights.check_index(look, path, name, entries)
        if names.is_unfinished(name):
            raise Broken(f"{name} has its temporary name still")
    weights.check_files(look, path, entries)
    _check_inside(look, path, tags, shards)
    _check_states(entries, has_deepspeed=bool(tags), has_optimizer=any(name.startswith("optimizer") for name in shards))
    return step


def _check_inside(look: Look, path: str, tags: list[str], shards: list[str]) -> None:
    for name in [*tags, *shards]:
        inside = os.path.join(path, name)
        try:
            (deepspeed if name in tags else dcp).check(look, inside, look.folder(inside))
        except Broken as why:
            raise Broken(f"{name}: {why}") from why


def _check_states(entries: dict[str, Entry], *, has_deepspeed: bool, has_optimizer: bool) -> None:
    """All of optimizer, scheduler and random states, or none of them."""
    ranks = {int(found[1]) for found in map(RNG.fullmatch, entries) if found}
    weights.contiguous(ranks, "rng_state_{}.pth")
    there = {
        "optimizer.pt": has_deepspeed or has_optimizer or bool({"optimizer.pt", "optimizer.bin"} & set(entries)),
        "scheduler.pt": has_deepspeed or "scheduler.pt" in entries,  # DeepSpeed saves its own scheduler itself
        ONE_RNG: bool(ranks) or ONE_RNG in entries,
    }
    if any(there.values()) and not all(there.values()):
        raise Broken("no " + next(name for name, is_there in there.items() if not is_there))
