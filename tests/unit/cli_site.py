"""A small site for tests of srecover: a recovery.conf, and a store with incidents made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from slurm_recovery.cli.main import app
from slurm_recovery.records import (
    Attempt,
    Attribution,
    Beaten,
    Category,
    Decision,
    Evidence,
    Gap,
    Incident,
    Observation,
    Outcome,
    Result,
    Role,
    Source,
    Stage,
    Suspect,
    Trust,
    Verdict,
)
from slurm_recovery.store.step import Step
from slurm_recovery.store.store import Store

END = 1_800_000_000.0

# Whatever a terminal would obey: colours, title, C1, direction overrides, line ends, and a forged line of ours.
HOSTILE = "x\x1b[31m\x1b]0;pwned\x07\x9b2J\u202eevil\u2066\r\nDecision: stop\t\0\x7f"


class Site:
    """A folder with a recovery.conf and a store."""

    def __init__(self, folder: Path, conf: str = "") -> None:
        self.conf = folder / "recovery.conf"
        self.conf.write_text(f"StateDir={folder}\n{conf}")
        self.url = f"sqlite:///{folder}/recovery.db"

    @contextmanager
    def store(self, clock: float = END) -> Iterator[Store]:
        with Store.open(self.url, clock=lambda: clock) as store:
            yield store

    def run(self, *words: str, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None) -> Answer:
        return run("--conf", str(self.conf), *words, stdin=stdin, env=env)


class Answer:
    """What a command said."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run(*words: str, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None) -> Answer:
    """`srecover WORDS` in this process. An error that is not ours is raised."""
    given = {"SRECOVER_CONF": "", "SLURM_CONF": "", **(env or {})}
    result = CliRunner().invoke(app, list(words), input=stdin, env=given, prog_name="srecover")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def an_attempt(job_id: int = 120, **more: object) -> Attempt:
    given: dict[str, object] = {
        "cluster": "mars",
        "user": "ada",
        "user_id": 1001,
        "partition": "train",
        "name": "llm",
        "nodes": ("n1", "n2", "n3"),
        "start_time": END - 2096,
        "end_time": END,
        "state": "FAILED",
        "reason": "NonZeroExitCode",
        "exit_code": 1,
    }
    return Attempt.model_validate({"job_id": job_id, **given, **more})


def recovered(job_id: int = 120, *, line: str = "RuntimeError: CUDA error", **attempt: object) -> Incident:
    """A job whose GPU failed on n3, and that runs again without it."""
    evidence = Evidence(
        source=Source.JOB_LOG,
        trust=Trust.USER,
        signature="cuda_ecc",
        reason="gpu_ecc_uncorrectable",
        role=Role.ROOT,
        line=line,
        place="/home/ada/llm.out:812",
        node="n3",
        rank=2,
        count=4,
    )
    observed = an_attempt(job_id, **attempt)
    return Incident(
        attempt=observed,
        stage=Stage.RUNNING,
        observation=Observation(
            attempt=observed,
            evidence=(evidence,),
            gaps=(Gap(source=Source.JOB_LOG, what="/home/ada/llm.err", why="EACCES: Permission denied"),),
            log_path="/home/ada/llm.out",
            log_tail=f"step 1\n{line}\n",
            log_end=70_000,
        ),
        attribution=Attribution(
            category=Category.HARDWARE,
            reason="gpu_ecc_uncorrectable",
            root_rank=2,
            suspects=(Suspect(node="n3", trust=Trust.USER, because="its rank 2 failed first"),),
            because="Rank 2 on n3 met memory errors.",
            evidence=(evidence,),
            beaten=(Beaten(reason="nccl_network_error", by="device_error"),),
        ),
        decision=Decision(
            verdict=Verdict.REQUEUE_EXCLUDE,
            basis="exclude",
            because="restart 1 of 3 without n3",
            exclude=("n3",),
            act=True,
            policy="0123456789ab",
        ),
        excluded=("n3",),
        outcomes=(
            Outcome(action="requeue", result=Result.DONE, detail="held", seen="PENDING Reason=JobHeldUser Restarts=1"),
        ),
        times={
            "ended": END,
            "detected": END + 0.12,
            "held": END + 0.31,
            "decided": END + 0.3,
            "released": END + 2.1,
            "running": END + 2,
            "closed": END + 2.4,
        },
    )


STEPS = (
    Step(time=END + 0.12, kind="note", action="detected", detail="120.json"),
    Step(time=END + 0.3, kind="note", action="decided", detail="requeue_exclude: restart 1 of 3 without n3"),
    Step(time=END + 0.31, kind="intent", action="requeue", detail="held"),
    Step(time=END + 0.35, kind="outcome", action="requeue", detail="PENDING Restarts=1", result="done"),
    Step(time=END + 2.05, kind="intent", action="release"),
    Step(time=END + 2.1, kind="outcome", action="release", detail="PENDING", result="done"),
    Step(time=END + 2.4, kind="note", action="running"),
)
