"""Orbax's CheckpointManager with a JAX model on the CPU. It writes in the background, and keeps three."""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from tests.training.software.run import Run, loop

State = dict[str, dict[str, jax.Array]]


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(1000 + step).standard_normal((16, 32), dtype=np.float32)
    return inputs, np.sin(inputs[:, :8] * 2)


def loss_of(weights: dict[str, jax.Array], inputs: jax.Array, wanted: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(inputs @ weights["first"]) @ weights["second"] - wanted) ** 2)


@jax.jit
def update(state: State, inputs: jax.Array, wanted: jax.Array) -> tuple[State, jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(state["weights"], inputs, wanted)
    momentum = jax.tree.map(lambda old, slope: 0.9 * old + slope, state["momentum"], slopes)
    weights = jax.tree.map(lambda weight, by: weight - 0.1 * by, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum}, loss


def first_state() -> State:
    chance = np.random.default_rng(1)
    weights = {
        name: jnp.asarray(chance.standard_normal(shape, dtype=np.float32) / shape[0] ** 0.5)
        for name, shape in (("first", (32, 512)), ("second", (512, 8)))
    }
    momentum = {name: jnp.asarray(np.zeros(weight.shape, weight.dtype)) for name, weight in weights.items()}
    return {"weights": weights, "momentum": momentum}


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
        state, _ = update(state, *batch(step))

    def save(step: int) -> None:
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()

    loop(run, load, advance, save)
    manager.close()
    run.mark("loss", float(update(state, *batch(0))[1]).hex())
