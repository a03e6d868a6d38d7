"""What must hold for any bytes at all in the place of a job's log. Used by the unit tests and by the fuzzer."""

from __future__ import annotations

import time

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.config.settings import Config, Mode
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.decide.history import Ledger
from slurm_recovery.decide.rules import Case, decide
from slurm_recovery.detect.frame import any_time, frame
from slurm_recovery.detect.notes import KEPT, LONGEST_EXCERPT, MOST_PLACEMENTS
from slurm_recovery.detect.scan import scan
from slurm_recovery.evidence.pieces import Unpacked
from slurm_recovery.records import Attempt, Evidence, Observation, Source, Trust

SIGNATURES = load_signatures()
NODES = ("a01", "a02", "a03", "a04")
STATES = ("FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED by 0", "COMPLETED", "")
MOST_UNPACKED = 1 << 20
# Seconds for a judgement, and for each megabyte beside: many times what it takes, and far from what a runaway would.
SECONDS, SECONDS_A_MEGABYTE = 2.0, 20.0


def attempt(shape: int) -> Attempt:
    """One of a few kinds of job; `shape` is any number."""
    state = STATES[shape % len(STATES)]
    tasks = (None, 1, 2, 8)[shape // 8 % 4]
    code = (0, 1, 137, 139)[shape // 32 % 4]
    return Attempt(cluster="c", job_id=7, nodes=NODES, ntasks_per_node=tasks, state=state, exit_code=code)


def read(data: bytes, source: Source = Source.JOB_LOG, node: str | None = None) -> tuple[Evidence, ...]:
    text = Unpacked(iter([data]), MOST_UNPACKED)
    return scan(text, signatures=SIGNATURES, source=source, path="log", node=node)


def judge_log(data: bytes, shape: int = 0) -> None:
    """Judges a job with this log, and asserts what no log may break."""
    began = time.process_time()
    evidence = read(data)
    job = attempt(shape)
    found = attribute(Observation(attempt=job, evidence=evidence))
    decision = decide(Case(attempt=job, attribution=found, config=Config(), ledger=Ledger(), mode=Mode.ACT))
    took = time.process_time() - began
    assert took < SECONDS + SECONDS_A_MEGABYTE * len(data) / (1 << 20), f"{took:.1f} s for {len(data)} bytes"
    assert set(found.suspect_nodes) <= set(NODES), "a node outside the job"
    assert all(suspect.trust is Trust.USER for suspect in found.suspects), "a user's word believed as root's"
    assert set(decision.exclude) <= set(NODES)
    assert len(evidence) <= sum(KEPT.values()) + MOST_PLACEMENTS
    for one in evidence:
        assert one.trust is Trust.USER
        assert len(one.line) <= LONGEST_EXCERPT
        assert one.line.isprintable()
    assert found.because.isprintable()


def read_kernel_log(data: bytes) -> None:
    for one in read(data, Source.KERNEL_LOG, "a02"):
        assert len(one.line) <= LONGEST_EXCERPT


def read_lines(data: bytes) -> None:
    for line in data[:20000].decode("utf-8", errors="replace").splitlines():
        head = frame(line)
        assert line.endswith(head.text)
        any_time(line)
