"""Small records for tests of the store."""

from __future__ import annotations

from typing import Any

from slurm_recovery.records import Attempt, Attribution, Category, Decision, Incident, Stage, Verdict
from slurm_recovery.store.step import Step


def an_attempt(job_id: int = 7, *, start: float | None = 1000.0, restarts: int = 0, **more: Any) -> Attempt:
    given = {"cluster": "mars", "user": "ada", "partition": "train", **more}
    return Attempt(job_id=job_id, start_time=start, restart_count=restarts, **given)


def an_incident(job_id: int = 7, *, stage: Stage = Stage.DETECTED, note: str = "", **attempt: Any) -> Incident:
    return Incident(attempt=an_attempt(job_id, **attempt), stage=stage, note=note)


def judged(incident: Incident, reason: str, verdict: Verdict) -> Incident:
    return incident.model_copy(
        update={
            "attribution": Attribution(category=Category.INTERCONNECT, reason=reason),
            "decision": Decision(verdict=verdict, basis="a_rule", because="2 of 3 restarts used"),
        }
    )


def a_step(time: float = 1.0, kind: str = "note", action: str = "look", detail: str = "", result: str = "") -> Step:
    return Step.model_validate({"time": time, "kind": kind, "action": action, "detail": detail, "result": result})


def a_release(time: float, result: str = "done") -> Step:
    return a_step(time, "outcome", "release", result=result)
