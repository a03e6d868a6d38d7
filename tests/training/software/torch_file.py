"""torch.save into one file a step."""

import torch

from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop


def train(run: Run) -> None:
    net = Net()
    loop(
        run,
        lambda path: net.take(torch.load(path, weights_only=True)),
        net.advance,
        lambda step: torch.save(net.state(step), run.folder / f"checkpoint_{step}.pt"),
    )
    run.mark("loss", loss_of(net.model).hex())
