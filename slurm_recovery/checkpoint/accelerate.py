"""Hugging Face Accelerate's save_state: weights, then optimizer, scheduler, sampler, and last the random states.

accelerate/checkpointing.py, save_accelerator_state: rank 0 writes all but `random_states_RANK.pkl`, each rank its own;
accelerator.py, save_state: before it the models, as torch's files, safetensors, or folders of FSDP and DeepSpeed.
"""

from __future__ import annotations

import os
import re

from slurm_recovery.checkpoint import dcp, deepspeed, hugging_face, names, weights
from slurm_recovery.checkpoint.look import Broken, Entry, Look

RANDOM = re.compile(r"random_states_(\d{1,6})\.pkl")
OPTIMIZER = "optimizer.bin"
MODEL = re.compile(r"(?:model|pytorch_model)(?:_\d{1,6})?\.(?:safetensors|bin)")


def is_part(name: str, is_folder: bool) -> bool:
    return not is_folder and (name == OPTIMIZER or bool(RANDOM.fullmatch(name)))


def check(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    ranks = {int(found[1]) for found in map(RANDOM.fullmatch, entries) if found}
    if not ranks:
        raise Broken("no random_states_0.pkl")
    weights.contiguous(ranks, "random_states_{}.pkl")
    folders = [name for name, entry in entries.items() if entry.is_folder]
    shards = [name for name in folders if hugging_face.FSDP.fullmatch(name)]
    has_deepspeed = deepspeed.LATEST in entries
    if has_deepspeed:
        tag = look.word(os.path.join(path, deepspeed.LATEST))
        if tag not in folders:
            raise Broken(f"no folder that {deepspeed.LATEST} names")
        deepspeed.check(look, os.path.join(path, tag), look.folder(os.path.join(path, tag)))
    for name in shards:
        dcp.check(look, os.path.join(path, name), look.folder(os.path.join(path, name)))
    indexes = [name for name in entries if weights.is_index(name, entries[name].is_folder)]
    for name in indexes:
        weights.check_index(look, path, name, entries)
    if not (has_deepspeed or shards or indexes or any(map(MODEL.fullmatch, entries))):
        raise Broken("no weights")
    if not (has_deepspeed or OPTIMIZER in entries or any(name.startswith("optimizer") for name in shards)):
        raise Broken(f"no {OPTIMIZER}")
    weights.check_files(look, path, entries)
    for name in entries:
        if RANDOM.fullmatch(name):
            weights.check_file(look, os.path.join(path, name))
    return names.step_of(os.path.basename(path))
