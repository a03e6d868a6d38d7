"""What every trainer is given, and the loop that those without one of their own share. No checkpoint format here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.training.software.stops import Mark

STEPS, EVERY = 10, 2  # of a whole run; a checkpoint each second one


class Run(NamedTuple):
    """`start`: the checkpoint to begin from, as SLURM_RECOVERY_CHECKPOINT names it; "" for none.

    `mark` is told "loaded STEP", "saving STEP", "saved STEP" and, at the end, "loss NUMBER".
    """

    folder: Path
    start: str
    mark: Mark


def loop(
    run: Run, load: Callable[[str], int], advance: Callable[[int], None], save: Callable[[int], None]
) -> None:  # fmt: skip
    """`load` gives the step that the checkpoint says it is of."""
    begin = 0
    if run.start:
        begin = load(run.start)
        run.mark("loaded", begin)
    for step in range(begin + 1, STEPS + 1):
        advance(step)
        if step % EVERY == 0:
            run.mark("saving", step)
            save(step)
            run.mark("saved", step)
