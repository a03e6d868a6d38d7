"""Orbax's CheckpointManager with a JAX model on the CPU. It writes in the background, and keeps three."""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from tests.training.software.run import Run, loop

State = dict[str, dict[str, jax.Array]]


def loss_of(weights: dict[str, jax.Array], step: int) -> jax.Array:
    inputs = jax.random.normal(jax.random.key(1000 + step), (16, 32))
    hidden = jnp.tanh(inputs @ weights["first"])
    return jnp.mean((hidden @ weights["second"] - jnp.sin(inputs[:, :8] * 2)) ** 2)


@jax.jit
def update(state: State, step: int) -> State:
    slopes = jax.grad(loss_of)(state["weights"], step)
    momentum = jax.tree.map(lambda old, slope: 0.9 * old + slope, state["momentum"], slopes)
    return {"weights": jax.tree.map(lambda w, m: w - 0.1 * m, state["weights"], momentum), "momentum": momentum}


def first_state() -> State:
    one, two = jax.random.split(jax.random.key(1))
    weights = {"first": jax.random.normal(one, (32, 512)) / 6, "second": jax.random.normal(two, (512, 8)) / 23}
    return {"weights": weights, "momentum": jax.tree.map(jnp.zeros_like, weights)}


def train(run: Run) -> None:
    state = first_state()
    manager = ocp.CheckpointManager(run.folder, options=ocp.CheckpointManagerOptions(max_to_keep=3))

    def load(path: str) -> int:
        nonlocal state
        step = int(Path(path).name)
        state = manager.restore(step, args=ocp.args.StandardRestore(state))
        return step

    def advance(step: int) -> None:
        nonlocal state
        state = update(state, step)

    def save(step: int) -> None:
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()

    loop(run, load, advance, save)
    manager.close()
    run.mark("loss", float(loss_of(state["weights"], 0)).hex())
