"""A small Accelerate job on CPUs that fails where it is told to: accelerate_train.py KIND RANK [STEP]."""

import os
import signal
import socket
import sys
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    kind, chosen = sys.argv[1], int(sys.argv[2])
    when = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    print(f"rank {rank} of {accelerator.num_processes} on {socket.gethostname()}", flush=True)
    data = TensorDataset(torch.randn(1024, 32), torch.randint(10, (1024,)))
    model = nn.Linear(32, 10)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data, batch_size=8)
    )
    for step, (inputs, labels) in enumerate(loader, 1):
        time.sleep(0.1)
        if rank == chosen and step == when:
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            labels = labels + 10
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
