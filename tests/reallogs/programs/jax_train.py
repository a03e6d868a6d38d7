"""A small JAX job over several processes (CPU, coordination service), that fails where it is told to.

    jax_train.py [--fail KIND] [--process P] [--step S] [--heartbeat SECONDS] [--start SECONDS]
"""

import argparse
import os
import signal
import socket
import time

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def fail(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "exception":
        jnp.dot(jnp.ones((4, 3)), jnp.ones((4, 3)))
    elif kind == "nan":
        jax.config.update("jax_debug_nans", True)
        jnp.log(jnp.array(-1.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", default="")
    parser.add_argument("--process", type=int, default=-1)
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--heartbeat", type=int, default=10)
    parser.add_argument("--start", type=int, default=30)
    options = parser.parse_args()
    me = int(os.environ["SLURM_PROCID"])
    if options.fail == "absent" and me == options.process:
        time.sleep(600)
    jax.distributed.initialize(
        coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["SLURM_NTASKS"]), process_id=me,
        initialization_timeout=options.start, heartbeat_timeout_seconds=options.heartbeat, shutdown_timeout_seconds=15,
    )  # fmt: skip
    print(f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}", flush=True)
    weights = jnp.ones(8)
    for step in range(1, options.steps + 1):
        time.sleep(0.1)
        if me == options.process and step == options.step:
            fail(options.fail)
        loss = multihost_utils.process_allgather(weights * step).mean()
        if me == 0:
            print(f"step {step} loss {1 / float(loss):.4f}", flush=True)
    if me == 0:
        print("training finished", flush=True)


if __name__ == "__main__":
    main()
