"""DeepSpeed: a folder of a tag, `global_step1200`, and `latest` beside it with the tag, written last.

deepspeed/runtime/engine.py: _get_ckpt_name, _get_rank_zero_ckpt_name, save_checkpoint. One file of model states for
each model parallel rank (ZeRO 3: for each rank), one of optimizer states for each rank where ZeRO shards them. How
many there must be is in the model states: dp_world_size, mp_world_size, ds_config.
"""

from __future__ import annotations

import os
import re

from slurm_recovery.checkpoint import torch_file
from slurm_recovery.checkpoint.look import Broken, Entry, Look, printable
from slurm_recovery.checkpoint.pickled import Dict, whole
from slurm_recovery.checkpoint.weights import check_files

FOLDER = re.compile(r"global_step(\d{1,18})")
MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{2,6})_model_states\.pt")
OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{2,6})_?optim_states\.pt")
LATEST = "latest"
MOST_STEPS = 2_000_000  # of a pickle of model states: some 40,000 tensors


def is_part(name: str, is_folder: bool) -> bool:
    return not is_folder and name.endswith(("_model_states.pt", "optim_states.pt"))


def step_of(name: str) -> int | None:
    found = FOLDER.fullmatch(name)
    return int(found[1]) if found else None


def check(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    tag = os.path.basename(path)
    _check_latest(look, path, tag)
    return check_states(look, path, entries)


def _check_latest(look: Look, path: str, tag: str) -> None:
    latest = look.word(os.path.join(os.path.dirname(path), LATEST))
    if not latest and look.is_last(path):  # it is emptied, then written: older ones are not in doubt
        raise Broken("latest is empty, and it is written last")
    if not latest:
        return
    step, done = step_of(tag), step_of(latest)
    if done is None and ("/" in latest or not look.is_there(os.path.join(os.path.dirname(path), latest))):
        raise Broken(f"latest names no folder: {printable(latest)}")
    if step is not None and done is not None and done < step:
        raise Broken(f"latest says {printable(latest)}, and it is written last")


def check_states(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    """Every rank's files are there and whole. Returns the step."""
    is_sharded = any(found and found[1] for found in map(MODEL.fullmatch, entries))  # ZeRO 3
    model = _ranks(MODEL, entries)
    optimizer = _ranks(OPTIMIZER, entries)
    if not model:
        raise Broken("no mp_rank_00_model_states.pt")
    check_files(look, path, entries)
    first = next(name for name in sorted(entries) if MODEL.fullmatch(name))
    told = torch_file.top(look, os.path.join(path, first), MOST_STEPS)
    tensors, data = whole(told.get("mp_world_size")), whole(told.get("dp_world_size"))
    has_layers = any(name.startswith("layer_") for name in entries)  # pipelines count their ranks otherwise
    _check_grid(model, "model_states", None if has_layers else tensors, data if is_sharded else 1)
    if optimizer or _stage(told):
        _check_grid(optimizer, "optim_states", None if has_layers else tensors, data)
    step = whole(told.get("global_steps"))
    return step if step is not None else step_of(os.path.basename(path))


def _ranks(expression: re.Pattern[str], entries: dict[str, Entry]) -> set[tuple[int, int]]:
    found = map(expression.fullmatch, entries)
    return {(int(one[1] or 0), int(one[2])) for one in found if one}


def _check_grid(there: set[tuple[int, int]], what: str, tensors: int | None, data: int | None) -> None:
    """A file for each pair of a data and a model parallel rank, as many as are told, or as the greatest rank says."""
    most = 1 << 20
    tensors = min(tensors or max((rank for _, rank in there), default=0) + 1, most)
    data = min(data or max((rank for rank, _ in there), default=0) + 1, most)
    wanted = tensors * data
    if len(there) < wanted:
        raise Broken(f"{len(there)} of {wanted} files *_{what}.pt")


def _stage(told: dict[str, object]) -> int:
    """The ZeRO stage; from 1 on, optimizer states are in files of their own."""
    config = told.get("ds_config")
    zero = config.texts.get("zero_optimization") if type(config) is Dict else None
    return whole(zero.texts.get("stage")) or 0 if type(zero) is Dict else 0
