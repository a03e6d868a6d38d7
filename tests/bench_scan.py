"""How fast a log is explained: a huge one against ripgrep on the same literals, and one of an ordinary size.

The log is interleaved output of many ranks, in the formats of the corpus, with three failures in it. Both
programs are timed as whole processes, in turn, on the same file in the page cache.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_recovery.config.signature_files import load_signatures
from tests.score import CORPUS

HUGE = 2 << 30  # bytes
ORDINARY = 5 << 20
RUNS = 5
CHUNK = 16 << 20
RANKS = 64
# Whole outputs of jobs that trained well: among their lines the failures stand.
WELL = ("healthy-ib-port-flap-recovered", "healthy-deepspeed-overflow-skips", "healthy-traceback-handled")
# By a network that stuttered, by what the job left behind, and at the end by the GPU that ended it.
FAILURES = (
    "tcpstore-reset-cascade-rank0-cuda-oom",
    "python-indexerror-then-nccl-timeouts",
    "cascade-64-root-ecc-printed-late",
)
STEP = (
    "%*d: [2026-06-%02d %02d:%02d:%02d,%03d] [INFO] [logging.py:96] iteration %8d/ 500000 | consumed samples: %12d | "
    "elapsed time per iteration (ms): %.1f | learning rate: %.3E | global batch size: 1024 | lm loss: %.6E | "
    "loss scale: 1.0 | grad norm: %.3f | number of skipped iterations: 0 | number of nan iterations: 0 |"
)


def ordinary_lines(size: int, made: random.Random) -> bytes:
    """About `size` bytes of what ranks print while all is well."""
    known = [line for case in WELL for line in (CORPUS / case / "job.log").read_bytes().split(b"\n") if line]
    lines: list[bytes] = []
    length, step = 0, 0
    while length < size:
        step += 1
        rank, second = made.randrange(RANKS), step // RANKS
        at = (1 + second // 86400 % 28, second // 3600 % 24, second // 60 % 60, second % 60, step % 1000)
        figures = (step // RANKS, step * 16, *(made.random() * most for most in (9000, 1e-4, 9, 1)))
        line = (STEP % (2, rank, *at, *figures)).encode() if step % 500 else b"%2d: %s" % (rank, made.choice(known))
        lines.append(line)
        length += len(line) + 1
    return b"\n".join(lines) + b"\n"


def write_log(path: Path, size: int) -> None:
    """A log of `size` bytes; the failures stand after a tenth, after half and at the end of it."""
    made = random.Random(2026)
    chunk = ordinary_lines(min(CHUNK, size), made)
    failures = [(CORPUS / name / "job.log").read_bytes().rstrip(b"\n") + b"\n" for name in FAILURES]
    places = [size // 10, size // 2, size - len(failures[-1])]
    with path.open("wb") as log:
        for place, failure in zip(places, failures, strict=True):
            while (left := place - log.tell()) > 0:
                log.write(chunk if left >= len(chunk) else chunk[: chunk.rfind(b"\n", 0, left) + 1] or b"\n" * left)
            log.write(failure)


@dataclass(frozen=True)
class Run:
    """A whole process: wall seconds, and the most memory that it held at once (bytes)."""

    seconds: float
    memory: int
    output: str


def run(*command: str) -> Run:
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if child.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: exit {child.returncode}: {text[:500]}")
    return Run(seconds, usage.ru_maxrss << 10, text)


def explain(log: Path) -> Run:
    return run(str(Path(sys.executable).with_name("srecover")), "explain", str(log))


def report(runs: int = RUNS) -> Iterator[str]:
    """The figures, a line each."""
    ripgrep = shutil.which("rg")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        log, literals = Path(folder, "train.log"), Path(folder, "literals")
        write_log(log, ORDINARY)
        explain(log)
        small = statistics.median(explain(log).seconds for _ in range(runs))
        yield f"explain, log of {ORDINARY >> 20} MB: {small:.2f} s (median of {runs})"
        if ripgrep is None:
            yield "explain, huge log: not measured, for ripgrep is not installed (apt-get install ripgrep)"
            return
        words = sorted({literal for row in load_signatures() for literal in row.literals})
        literals.write_text("".join(word + "\n" for word in words))
        write_log(log, HUGE)
        ours, theirs = [], []
        for _ in range(runs):
            theirs.append(run(ripgrep, "-c", "-F", "-f", str(literals), str(log)).seconds)
            ours.append(explain(log))
        middle, yardstick = statistics.median(one.seconds for one in ours), statistics.median(theirs)
        yield (
            f"explain, log of {HUGE >> 20} MB: {middle:.2f} s, rg -c -F -f of the same {len(words)} literals "
            f"{yardstick:.2f} s, ratio {middle / yardstick:.2f} (medians of {runs}); "
            f"memory {max(one.memory for one in ours) >> 20} MB"
        )
        yield "  " + ours[-1].output.splitlines()[0][:200]


if __name__ == "__main__":
    for line in report():
        print(line, flush=True)
