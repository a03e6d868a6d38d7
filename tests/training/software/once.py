"""One attempt of a job: `python -m tests.training.software.once NAME FOLDER SAVE CHANGE PART`, a Plan's numbers.

Goes on from SLURM_RECOVERY_CHECKPOINT. The first attempt is killed as planned, and this process then kills itself. The
last one also trains without any disturbance, beside FOLDER, for its loss.
"""

import importlib
import os
import random
import signal
import sys
from pathlib import Path

from tests.training.software.run import Run
from tests.training.software.stops import Outcome, Plan, run


def main(name: str, place: str, save: str, change: str, part: str) -> int:
    module = importlib.import_module(f"tests.training.software.{name}")
    start = os.environ.get("SLURM_RECOVERY_CHECKPOINT", "")
    print(f"attempt {os.environ.get('SLURM_RECOVERY_ATTEMPT', '')} begins from {start!r}", flush=True)
    random.seed(save + change)

    def attempt(folder: Path, start: str, plan: Plan | None) -> Outcome:
        folder.mkdir(exist_ok=True)
        return run(lambda mark: module.train(Run(folder, start, mark)), folder, Path("/dev/stderr"), plan)

    first = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    outcome = attempt(Path(place), start, Plan(int(save), int(change), float(part)) if first else None)
    for word, value in outcome.marks:
        print(word, value, flush=True)
    if outcome.killed:
        print(f"killed {'within' if outcome.inside else 'after'} a write, at {outcome.at}", flush=True)
        getattr(module, "close", lambda: None)()
        os.kill(os.getpid(), signal.SIGKILL)
    undisturbed = attempt(Path(f"{place}.undisturbed"), "", None)
    print("undisturbed", *undisturbed.marks[-1], flush=True)
    return outcome.code or undisturbed.code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
