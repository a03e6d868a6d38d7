"""DeepSpeed's layout with ZeRO over two ranks: model states, each rank's optimizer states, then `latest`.

By `save_checkpoint`, `_get_ckpt_name` and `_get_zero_ckpt_name` of deepspeed/runtime/engine.py: rank 0 writes the model
states before its optimizer states, the other ranks write meanwhile, `latest` is opened to be overwritten.
"""

import random
from pathlib import Path

import torch

from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop

RANKS = 2
MODEL = "mp_rank_00_model_states.pt"


def train(run: Run) -> None:
    net = Net()

    def save(step: int) -> None:
        folder = run.folder / f"global_step{step}"
        folder.mkdir(exist_ok=True)
        state = net.state(step)
        state |= {"global_steps": step, "dp_world_size": RANKS, "mp_world_size": 1}
        state["ds_config"] = {"zero_optimization": {"stage": 2}}
        optimizer = state.pop("optimizer")
        files = [(MODEL, state)]
        for rank in range(RANKS):
            part = {name: optimizer["state"][name] for name in list(optimizer["state"])[rank::RANKS]}
            files.append((zero(rank), {"optimizer_state_dict": part, "groups": optimizer["param_groups"]}))
        if random.random() < 0.5:
            files.append(files.pop(0))
        for name, content in files:
            torch.save(content, folder / name)
        with (run.folder / "latest").open("w") as latest:
            latest.write(f"global_step{step}")

    def load(path: str) -> int:
        state = torch.load(Path(path) / MODEL, weights_only=True)
        parts = [torch.load(Path(path) / zero(rank), weights_only=True) for rank in range(RANKS)]
        moments = {number: value for part in parts for number, value in part["optimizer_state_dict"].items()}
        state["optimizer"] = {"state": moments, "param_groups": parts[0]["groups"]}
        return net.take(state)

    loop(run, load, net.advance, save)
    run.mark("loss", loss_of(net.model).hex())


def zero(rank: int) -> str:
    return f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
