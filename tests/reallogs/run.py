"""One case, and its run on the cluster: from submission to the record that Slurm keeps of it.

Owns: what a row of cases.py may say, and how it is run. Must not: judge what a job printed.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.reallogs.hosts import Hosts

FOLDER = Path("/srv/run")
HEADER = """#!/bin/bash
export OMP_NUM_THREADS=1 MASTER_PORT=29500
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
"""
FAULT = re.compile(r"segfault|general protection|traps:")
PLACE = re.compile(r"(?:rank|process) (\d+) of \d+ on (gn\d)")

Expect = Mapping[str, object]
Step = Callable[["Run"], None]


@dataclass(frozen=True)
class Case:
    """A job, what befalls it, and how an SRE would judge it.

    In `expect`, "@3" is the node on which rank 3 said that it runs. `before` prepares the nodes, `during` happens while
    the job runs, `after` repairs. `faulty` is the node whose kernel tells of a crashed process.
    """

    name: str
    script: str
    expect: Expect
    why: str
    software: Sequence[str] = ()
    nodes: int = 2
    tasks: int = 2
    options: Sequence[str] = ()
    before: Step | None = None
    during: Step | None = None
    after: Step | None = None
    faulty: str = ""
    timeout: float = 150

    def command(self) -> str:
        """The lines that start something."""
        text = self.script.replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines() if re.search(r"\b(srun|mpirun)\b", line)]
        return re.sub(r"\s+", " ", "; ".join(lines)) or text.strip().splitlines()[-1]


@dataclass
class Run:
    cluster: Hosts
    case: Case
    job: int = 0
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        self.log = FOLDER / f"{self.case.name}.log"

    def finish(self) -> dict[str, str]:
        """Run the job to its end and give Slurm's record of it."""
        self.log.unlink(missing_ok=True)
        try:
            if self.case.before:
                self.case.before(self)
            self._submit()
            if self.case.during:
                self.case.during(self)
            return self.cluster.wait(self.job, timeout=self.case.timeout)
        finally:
            if self.job:
                self.cluster.run("scancel", "--full", str(self.job), check=False)
                self.cluster.wait(self.job, timeout=60)
            if self.case.after:
                self.case.after(self)
            self._settle()

    def until(self, text: str, timeout: float = 60) -> None:
        """Wait until the job has printed `text`."""
        self.cluster.wait_for(lambda: text in self.text(), timeout, f"{self.case.name} to print {text!r}")

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def place(self, rank: int) -> str:
        """The node where this rank said that it runs."""
        places: dict[int, str] = {int(number): node for number, node in PLACE.findall(self.text())}
        if rank not in places:
            raise ClusterError(f"{self.case.name}: rank {rank} did not say where it runs")
        return places[rank]

    def expected(self) -> object:
        return self._resolved(self.case.expect)

    def kernel_lines(self, since: float) -> dict[str, list[str]]:
        """What the kernel has said since that uptime, by node. All share one kernel; control groups tell them apart."""
        said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines(keepends=True)
        lines = [line for line in said if _uptime(line) >= since]
        found = {node: _memory_lines(lines, f"slurm_{node}/uid_0/job_{self.job}/") for node in self.cluster.nodes}
        if self.case.faulty:
            found[str(self._resolved(self.case.faulty))] = [line for line in lines if FAULT.search(line)]
        return {node: lines for node, lines in found.items() if lines}

    def _submit(self) -> None:
        options = (f"--nodes={self.case.nodes}", f"--ntasks-per-node={self.case.tasks}", f"--output={self.log}")
        more = (f"--job-name={self.case.name}", f"--chdir={FOLDER}", *self.case.options)
        self.job = self.cluster.sbatch(*options, *more, script=HEADER + self.case.script)

    def _resolved(self, value: object) -> object:
        if isinstance(value, Mapping):
            return {key: self._resolved(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._resolved(item) for item in value]
        if isinstance(value, str) and value.startswith("@"):
            return self.place(int(value[1:]))
        return value

    def _settle(self) -> None:
        def idle() -> bool:
            return all(self.cluster.node(node)["StateComplete"] == "idle" for node in self.cluster.nodes)

        self.cluster.wait_for(idle, 60, "all nodes to be idle again")
        time.sleep(0.5)


def _uptime(line: str) -> float:
    found = re.match(r"\[\s*(\d+\.\d+)\]", line)
    return float(found[1]) if found else 0.0


def _memory_lines(lines: Sequence[str], group: str) -> list[str]:
    """The reports of the memory killer that name this control group."""
    kept: list[str] = []
    report: list[str] = []
    for line in lines:
        if "invoked oom-killer" in line:
            report = []
        report.append(line)
        if "Killed process" in line:
            kept += report if any(group in each for each in report) else []
            report = []
    return kept
