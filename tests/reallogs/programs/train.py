"""A small data-parallel training job with PyTorch and gloo, one process a rank, that fails where it is told to.

    train.py [--fail KIND] [--rank R] [--step S] [--timeout SECONDS] ...

It is started by torchrun, or by srun with one task a rank (RANK and the like are then taken from Slurm's variables).
"""

import argparse
import ctypes
import os
import pickle
import shutil
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Samples(Dataset):
    """Noise, and one record that is not as the others or that kills whoever reads it."""

    def __init__(self, fail: str, size: int = 4096) -> None:
        self.fail, self.size = fail, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        record = {"input": torch.randn(32), "label": torch.tensor(index % 10)}
        if self.fail == "bad-record" and index % 97 == 96:
            del record["label"]
        if self.fail == "kill-loader" and index % 97 == 96:
            os.kill(os.getpid(), signal.SIGKILL)
        return record["input"], record["label"]


def from_slurm() -> None:
    os.environ.setdefault("RANK", os.environ["SLURM_PROCID"])
    os.environ.setdefault("WORLD_SIZE", os.environ["SLURM_NTASKS"])
    os.environ.setdefault("LOCAL_RANK", os.environ["SLURM_LOCALID"])


def say(text: str) -> None:
    if int(os.environ["RANK"]) == 0:
        print(text, flush=True)


def fail(kind: str, model: nn.Module, step: int) -> None:
    """What befalls the chosen rank at the chosen step."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "segv":
        ctypes.string_at(0)
    elif kind == "exception":
        scale = {"lr": 1e-3}
        print(scale["warmup_steps"])
    elif kind == "exit":
        sys.exit(3)
    elif kind == "sleep":
        time.sleep(600)
    elif kind == "shape":
        dist.all_reduce(torch.ones(7))
    elif kind == "kind":
        dist.barrier()
    elif kind == "memory":
        hoard = []
        while True:
            hoard.append(torch.ones(16 << 20))
    elif kind == "nan":
        raise FloatingPointError(f"loss is nan at step {step}")


def average_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def save(path: Path, model: nn.Module, step: int) -> None:
    fresh = path.with_suffix(".tmp")
    torch.save({"step": step, "model": model.state_dict(), "pad": torch.zeros(1 << 18)}, fresh)
    fresh.replace(path)
    say(f"saved {path}")


def load(path: Path, trust: bool) -> dict:
    if path.suffix == ".pkl":
        with path.open("rb") as stream:
            return pickle.load(stream)
    return torch.load(path, weights_only=not trust)


def handled(step: int) -> None:
    """An error that the program lives with, and says so as many do."""
    import logging
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    except OSError:
        logging.exception("metrics push failed at step %d, will retry", step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", default="")
    parser.add_argument("--rank", type=int, default=-1, help="the rank that fails")
    parser.add_argument("--step", type=int, default=5, help="the step at which it fails")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that a step lasts")
    parser.add_argument("--timeout", type=float, default=60, help="of collectives, in seconds")
    parser.add_argument("--monitor", action="store_true", help="a monitored_barrier before each step")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--by-hand", action="store_true", help="average gradients without DistributedDataParallel")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--save", type=Path, help="where checkpoints go")
    parser.add_argument("--load", type=Path, help="the checkpoint to resume from")
    parser.add_argument("--trust", action="store_true", help="unpickle whatever the checkpoint holds")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--spool", type=Path, help="where each rank keeps a copy of its data")
    parser.add_argument("--stage", type=Path, help="a file of data to be copied there")
    parser.add_argument("--attention", choices=["plain", "flash"], default="plain")
    parser.add_argument("--noisy", action="store_true", help="print what frightens and harms nobody")
    parser.add_argument("--stamp", action="store_true", help="print the time of each step")
    parser.add_argument("--keep-group", action="store_true", help="leave without destroy_process_group")
    options = parser.parse_args()
    from_slurm()
    if options.attention == "flash":
        import flash_attn  # noqa: F401
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} on {socket.gethostname()}", flush=True)
    model: nn.Module = nn.Sequential(nn.Linear(32, options.width), nn.ReLU(), nn.Linear(options.width, 10))
    if not options.by_hand:
        model = DistributedDataParallel(model)
    first = 0
    if options.load:
        state = load(options.load, options.trust)
        model.load_state_dict(state["model"])
        first = state["step"]
        say(f"resumed from {options.load} at step {first}")
    if options.stage:
        shutil.copy(options.stage, options.spool / f"{rank:05d}-{options.stage.name}")
    elif options.spool:
        torch.save(torch.zeros(4 << 20), options.spool / f"shard-{rank:05d}.pt")
    data = Samples(options.fail if options.rank in (-1, rank) else "")
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), num_workers=options.workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, labels) in enumerate(loader, first + 1):
        time.sleep(options.pause)
        if options.fail and step == options.step and rank == options.rank:
            fail(options.fail, model, step)
        if options.monitor:
            dist.monitored_barrier(timeout=timedelta(seconds=options.timeout), wait_all_ranks=True)
        if options.noisy and step % 7 == 0:
            handled(step)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if options.by_hand:
            average_gradients(model)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ") if options.stamp else ""
        say(f"{stamp}step {step}/{options.steps} loss {total.item() / dist.get_world_size():.4f}")
        if options.save and rank == 0 and step % options.every == 0:
            save(options.save, model, step)
        if step >= options.steps:
            break
    say("training finished")
    if not options.keep_group:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
