"""A small Lightning job on CPUs (DDP, gloo) that fails where it is told to: lightning_train.py KIND RANK [STEP]."""

import os
import signal
import socket
import sys
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KIND, RANK = sys.argv[1], int(sys.argv[2])
STEP = int(sys.argv[3]) if len(sys.argv) > 3 else 5


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 10)

    def on_train_start(self) -> None:
        print(f"rank {self.global_rank} of {self.trainer.world_size} on {socket.gethostname()}", flush=True)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(0.1)
        inputs, labels = batch
        if self.global_rank == RANK and index == STEP:
            if KIND == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            inputs = inputs[:, :16]
        return nn.functional.cross_entropy(self.layer(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    data = TensorDataset(torch.randn(1024, 32), torch.randint(10, (1024,)))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["SLURM_NTASKS_PER_NODE"]), num_nodes=int(os.environ["SLURM_NNODES"]),
        strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False, default_root_dir="/srv/run",
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=8))
