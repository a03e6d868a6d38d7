"""A small mpi4py job that fails where it is told to: mpi_train.py KIND RANK [STEP]."""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD


def load(shard: int) -> np.ndarray:
    return np.zeros((4, 3))


def main() -> None:
    kind, chosen = sys.argv[1], int(sys.argv[2])
    when = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}", flush=True)
    weights = np.ones(3)
    for step in range(1, 21):
        time.sleep(0.1)
        if world.rank == chosen and step == when:
            if kind == "exception":
                weights = load(step) @ np.ones(4)
            elif kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        total = world.allreduce(weights.sum())
        if world.rank == 0:
            print(f"step {step} norm {total:.4f}", flush=True)


main()
