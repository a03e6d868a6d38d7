"""Imports one trainer once, and runs it in a child for each line that is read: `python -m ... serve NAME`.

A request and its answer are one line of JSON each: `start`, `folder`, `log`, `seed` and `plan`, a Plan's fields or
null; the Outcome's fields.
"""

import importlib
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path

from tests.training.software.run import Run
from tests.training.software.stops import Mark, Plan, run


def main(name: str) -> None:
    train = importlib.import_module(f"tests.training.software.{name}").train
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        plan = Plan(**request["plan"]) if request["plan"] else None
        random.seed(request["seed"])

        def work(mark: Mark, at: Path = folder, start: str = request["start"]) -> None:
            train(Run(at, start, mark))

        outcome = run(work, folder, Path(request["log"]), plan)
        print(json.dumps(asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
