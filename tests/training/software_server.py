"""The tests' end of software/serve.py: one training software, imported once, run and killed many times."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from tests.training.software.stops import Outcome, Plan

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-training/bin/python"
PATIENCE = 300.0  # seconds for one answer: stops.MOST_SECONDS ends a child long before


class SoftwareServer:
    """Folders and logs lie below `place`."""

    def __init__(self, name: str, place: Path) -> None:
        if not PYTHON.exists():
            raise RuntimeError(f"{PYTHON}: not there: make .venv-training/installed")
        self.place = place
        self.number = 0
        command = [PYTHON, "-m", "tests.training.software.serve", name]
        self.errors = (place / "server.log").open("wb")
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def __enter__(self) -> Self:
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=PATIENCE)
        self.errors.close()

    def attempt(self, folder: Path, start: str = "", plan: Plan | None = None) -> Outcome:
        """One run of the training, from the checkpoint `start` on, in `folder`."""
        assert self.process.stdin is not None
        folder.mkdir(exist_ok=True)
        self.number += 1
        request = {
            "folder": str(folder), "log": str(self.log), "start": start, "seed": self.number,
            "plan": plan._asdict() if plan else None,
        }  # fmt: skip
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        outcome = Outcome(**self._answer())
        outcome.marks = [(word, value) for word, value in outcome.marks]
        return outcome

    @property
    def log(self) -> Path:
        """What the newest attempt wrote."""
        return self.place / f"attempt-{self.number}.log"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert line, (self.place / "server.log").read_text()[-3000:]
        return json.loads(line)
