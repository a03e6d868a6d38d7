"""PyTorch's distributed checkpoint of a model that FSDP has split over two processes with gloo."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop

RANKS = 2


def train(run: Run) -> None:
    store = tempfile.NamedTemporaryFile(prefix="store", delete=False).name  # noqa: SIM115
    others = [other for rank in range(1, RANKS) if (other := _fork(run, store, rank))]
    _rank(run, store, 0)
    for other in others:
        if os.waitpid(other, 0)[1]:
            raise RuntimeError("the other rank failed")
    os.unlink(store)


def _fork(run: Run, store: str, rank: int) -> int:
    if other := os.fork():
        return other
    try:
        _rank(run._replace(mark=lambda word, value: None), store, rank)
        os._exit(0)
    finally:
        os._exit(1)


def _rank(run: Run, store: str, rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=dist.FileStore(store, RANKS))
    net = Net()
    mesh = init_device_mesh("cpu", (RANKS,))
    layers = [layer for layer in net.model.children() if isinstance(layer, nn.Linear)]
    for part in (*layers, net.model):
        fully_shard(part, mesh=mesh)
    net.renew_optimizer()

    def state(step: int) -> dict[str, object]:
        model, optimizer = get_state_dict(net.model, net.optimizer)
        return {"model": model, "optimizer": optimizer, "chance": net.state(0)["chance"], "step": step}

    def load(path: str) -> int:
        found = state(0)
        dcp.load(found, checkpoint_id=path)
        set_state_dict(
            net.model, net.optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
        )  # fmt: skip
        torch.set_rng_state(found["chance"])
        return int(found["step"])

    loop(run, load, net.advance, lambda step: dcp.save(state(step), checkpoint_id=run.folder / f"step-{step:06}"))
    run.mark("loss", loss_of(net.model).hex())
    dist.destroy_process_group()
