"""Megatron-LM's distributed layout: common.pt, PyTorch's distributed checkpoint, metadata.json, then the tracker.

By `save` of megatron/core/dist_checkpointing/serialization.py (common.pt is what its releases up to 0.15 write first)
and `save_checkpoint` of megatron/training/checkpointing.py.
"""

import json
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from tests.training.software.megatron import TRACKER
from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop


def train(run: Run) -> None:
    net = Net()

    def save(step: int) -> None:
        folder = run.folder / f"iter_{step:07}"
        folder.mkdir(exist_ok=True)
        torch.save({"iteration": step, "chance": torch.get_rng_state()}, folder / "common.pt")
        writer = dcp.FileSystemWriter(folder, single_file_per_rank=True, thread_count=2)
        dcp.save(net.flat(step), storage_writer=writer, no_dist=True)
        config = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
        with (folder / "metadata.json").open("w") as file:
            json.dump(config, file)
        with (run.folder / TRACKER).open("w") as tracker:
            tracker.write(str(step))

    def load(path: str) -> int:
        common = torch.load(Path(path) / "common.pt", weights_only=True)
        net.advance(0)  # makes the moments that are to be filled
        tensors = {name: torch.empty_like(tensor) for name, tensor in net.flat(0).items()}
        dcp.load(tensors, checkpoint_id=path, no_dist=True)
        assert common["iteration"] == int(tensors["step"])
        return net.take_flat(tensors)

    loop(run, load, net.advance, save)
    run.mark("loss", loss_of(net.model).hex())
