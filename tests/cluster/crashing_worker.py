"""A worker that ends itself with SIGKILL before or after a chosen call of one of its ports, or is late with it.

`StateDir/crash` says where, e.g. `after store.save 3`: after the third call of save; `late slurm.queue 1` waits before
the first call of queue. While that file is there every worker does so. Otherwise this is the worker that the hooks
start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_recovery.hooks.spool import Spool
from slurm_recovery.slurm.select import open_slurm
from slurm_recovery.store.store import Store
from slurm_recovery.worker import Ports, main

LATE = 2.0  # seconds


class Deadly:
    """A port that passes every call on, and dies at the chosen one."""

    def __init__(self, port: Any, name: str, where: list[str]) -> None:
        self._port, self._name, self._calls = port, name, 0
        self._when, self._call, self._number = where[0], where[1], int(where[2])

    def __enter__(self) -> Deadly:
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._port, attribute)
        if f"{self._name}.{attribute}" != self._call:
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            deadly = self._calls == self._number
            if deadly and self._when == "late":
                time.sleep(LATE)
            if deadly and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = value(*arguments, **named)
            if deadly and self._when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def deadly_ports(state: Path) -> Ports:
    try:
        where = (state / "crash").read_text().split()
    except FileNotFoundError:
        return Ports()

    def wrap(make: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
        return lambda argument: Deadly(make(argument), name, where)

    return Ports(slurm=wrap(open_slurm, "slurm"), store=wrap(Store.open, "store"), spool=wrap(Spool, "spool"))


if __name__ == "__main__":
    sys.exit(main(ports=deadly_ports(Path(sys.argv[sys.argv.index("--state") + 1]))))
