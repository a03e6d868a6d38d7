"""A program's own kind of checkpoint, for a CheckpointFormat= line: state-4/ with two files, then DONE."""

from pathlib import Path

import torch

from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop


def train(run: Run) -> None:
    net = Net()

    def save(step: int) -> None:
        folder = run.folder / f"state-{step}"
        folder.mkdir(exist_ok=True)
        state = net.state(step)
        torch.save(state.pop("optimizer"), folder / "optimizer.bin")
        torch.save(state, folder / "rest.bin")
        (folder / "DONE").touch()

    def load(path: str) -> int:
        state = torch.load(Path(path) / "rest.bin", weights_only=True)
        state["optimizer"] = torch.load(Path(path) / "optimizer.bin", weights_only=True)
        return net.take(state)

    loop(run, load, net.advance, save)
    run.mark("loss", loss_of(net.model).hex())
