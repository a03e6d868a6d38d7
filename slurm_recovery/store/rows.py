"""Records to rows and back. Pure: no connection, no clock.

An incident's JSON, and a run's lists of nodes, are ASCII with escapes, so that NUL and lone surrogates (bytes of a
log that are no UTF-8) pass through any database and come back as they were. Searchable columns, the audit and nodes'
histories hold text for people: without NUL, surrogates spelt out as `\\udc80`, cut to the column's length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import floor
from typing import Any

from slurm_recovery.records import Attempt, Incident, NodeEvent, Run
from slurm_recovery.store.schema import LENGTHS, NO_START
from slurm_recovery.store.step import Step


def clean(text: str, length: int | None = None) -> str:
    """Text that any database takes."""
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")[:length]


def column(name: str, text: str) -> str:
    return clean(text, LENGTHS[name])


def identity(attempt: Attempt | Run) -> dict[str, Any]:
    """The four columns that tell one attempt from all others."""
    return {
        "cluster": column("cluster", attempt.cluster),
        "job_id": attempt.job_id,
        "restart_count": attempt.restart_count,
        "start_time": NO_START if attempt.start_time is None else floor(attempt.start_time),
    }


def incident_row(incident: Incident) -> dict[str, Any]:
    searched = {
        "label": incident.attempt.label,
        "stage": incident.stage.value,
        "user": incident.attempt.user,
        "partition": incident.attempt.partition,
        "reason": incident.attribution.reason if incident.attribution else "",
        "verdict": incident.decision.verdict.value if incident.decision else "",
    }
    return {
        **identity(incident.attempt),
        **{name: column(name, text) for name, text in searched.items()},
        "record": json.dumps(incident.model_dump(exclude={"id"})),
    }


def incident_of(key: int, record: str) -> Incident:
    """Raises ValueError where the JSON is not an incident."""
    content = json.loads(record)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return Incident.model_validate({**content, "id": key})


def step_row(incident_id: int, step: Step) -> dict[str, Any]:
    return {
        "incident_id": incident_id,
        "time": step.time,
        "kind": step.kind,
        "action": clean(step.action, 64),
        "result": clean(step.result, 32),
        "detail": clean(step.detail),
    }


def run_row(run: Run) -> dict[str, Any]:
    searched = {"label": run.label, "user": run.user, "partition": run.partition, "reason": run.reason}
    return {
        **identity(run),
        **{name: column(name, text) for name, text in searched.items()},
        "end_time": run.end_time,
        "good": run.good,
        "nodes": json.dumps(run.nodes),
        "blamed": json.dumps(run.blamed),
    }


def run_of(row: Mapping[str, Any]) -> Run:
    """Raises ValueError where the row is not a run."""
    start = row["start_time"]
    lists = {name: _names(row[name]) for name in ("nodes", "blamed")}
    return Run.model_validate({**row, **lists, "start_time": None if start == NO_START else start})


def _names(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, list):
        raise ValueError("not a JSON list")
    return tuple(found)


def event_row(event: NodeEvent) -> dict[str, Any]:
    searched = ("cluster", "node", "action", "result", "reason", "user", "boot_id")
    return {
        **{name: column(name, getattr(event, name)) for name in searched},
        "job": column("label", event.job),
        "time": event.time,
        "incident_id": event.incident_id,
        "detail": clean(event.detail),
    }
