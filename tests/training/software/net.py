"""A small network with AdamW and dropout: weights, moments and the generator's state must all come back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 8))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(16, 32, generator=chance)
    return inputs, torch.sin(inputs[:, :8] * 2)


def loss_of(model: nn.Module) -> float:
    """On the batch that no step is trained on."""
    model.eval()
    inputs, wanted = batch(0)
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(inputs), wanted))


class Net:
    """Model, optimizer and chance."""

    def __init__(self) -> None:
        self.model = network()
        self.renew_optimizer()

    def renew_optimizer(self) -> None:
        """Where the model's parameters are others now."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def advance(self, step: int) -> None:
        inputs, wanted = batch(step)
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(inputs), wanted).backward()
        self.optimizer.step()

    def state(self, step: int) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "chance": torch.get_rng_state(),
            "step": step,
        }

    def take(self, state: dict[str, Any]) -> int:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["chance"])
        return int(state["step"])

    def flat(self, step: int) -> dict[str, torch.Tensor]:
        """The same as tensors with names."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in moments.items()}
        return tensors | {"chance": torch.get_rng_state(), "step": torch.tensor(step)}

    def take_flat(self, tensors: dict[str, torch.Tensor]) -> int:
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, number, moment = name.split(".")
                optimizer["state"].setdefault(int(number), {})[moment] = tensor
        model = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
        state = {"model": model, "optimizer": optimizer, "chance": tensors["chance"], "step": int(tensors["step"])}
        return self.take(state)
