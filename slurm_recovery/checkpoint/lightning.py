"""Lightning: `epoch=3-step=1200.ckpt`: a file of torch's, or a folder where the strategy shards.

Folders: lightning/fabric/strategies/fsdp.py (a PyTorch distributed checkpoint, then `meta.pt`) and
lightning/pytorch/strategies/deepspeed.py (DeepSpeed's own with the tag `checkpoint`, and its `latest`).
"""

from __future__ import annotations

import os

from slurm_recovery.checkpoint import dcp, deepspeed, names, torch_file
from slurm_recovery.checkpoint.look import Broken, Entry, Look

META, TAG = "meta.pt", "checkpoint"
HEAD = 64  # steps of the pickle: epoch, global_step and the version come first (dump_checkpoint)


def is_part(name: str, is_folder: bool) -> bool:
    return name == META and not is_folder


def check(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    if TAG in entries and entries[TAG].is_folder:
        latest = look.word(os.path.join(path, deepspeed.LATEST))
        if latest != TAG:
            raise Broken(f"{deepspeed.LATEST} does not say {TAG}")
        told = deepspeed.check_states(look, entries[TAG].path, look.folder(entries[TAG].path))
        step = names.step_of(os.path.basename(path))
        return told if step is None else step
    if META not in entries:
        raise Broken(f"no {META}")
    dcp.check(look, path, entries)
    torch_file.check(look, os.path.join(path, META))
    step = names.step_of(os.path.basename(path))
    return file_step(look, os.path.join(path, META)) if step is None else step


def file_step(look: Look, path: str) -> int | None:
    """global_step, from the beginning of the pickle alone."""
    step = torch_file.top(look, path, HEAD).get("global_step")
    return step if type(step) is int and 0 <= step < 1 << 63 else None
