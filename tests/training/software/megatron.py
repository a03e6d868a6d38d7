"""Megatron-LM's own layout with torch.save: iter_0000004/mp_rank_0N/model_optim_rng.pt of each rank, then the tracker.

By `save_checkpoint` and `get_checkpoint_name` of megatron/training/checkpointing.py: the ranks write in no order, the
tracker is opened to be overwritten when all of them are done.
"""

import random
from pathlib import Path

import torch

from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop

TENSOR_PARALLEL = 2
TRACKER = "latest_checkpointed_iteration.txt"


def train(run: Run) -> None:
    net = Net()

    def save(step: int) -> None:
        tensors = net.flat(step)
        for rank in random.sample(range(TENSOR_PARALLEL), TENSOR_PARALLEL):
            path = shard(run.folder / f"iter_{step:07}", rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = {name: tensors[name] for name in sorted(tensors)[rank::TENSOR_PARALLEL]}
            torch.save({"iteration": step, "checkpoint_version": 3.0, "model": part}, path)
        with (run.folder / TRACKER).open("w") as tracker:
            tracker.write(str(step))

    def load(path: str) -> int:
        tensors = {}
        for rank in range(TENSOR_PARALLEL):
            tensors |= torch.load(shard(Path(path), rank), weights_only=True)["model"]
        return net.take_flat(tensors)

    loop(run, load, net.advance, save)
    run.mark("loss", loss_of(net.model).hex())


def shard(folder: Path, rank: int) -> Path:
    return folder / f"mp_rank_{rank:02}" / "model_optim_rng.pt"
