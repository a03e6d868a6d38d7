"""How an incident stands, in words for people: its stage, its mode, what became of its decision. Pure.

Owns the difference between what was decided and what was done. The stored values stay as records.py has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_recovery.records import Decision, Incident, Observation, Result, Source, Stage, Verdict
from slurm_recovery.store.step import Step

RESTARTED = "restarted"  # Stage.RUNNING: the job ran again, and may have ended since
STAGES = {**{stage.value: stage for stage in Stage}, RESTARTED: Stage.RUNNING}  # what people may write
MOST_GAPS = 3

_LEFT_OUT = "left out: "  # act.py, Actor.prepare


def stage_word(stage: str) -> str:
    return RESTARTED if stage == Stage.RUNNING else stage


def mode(incident: Incident) -> str:
    """The mode that the decision was made in."""
    if incident.decision is None:
        return ""
    if incident.decision.basis == "mode_off":
        return "off"
    return "act" if incident.decision.act else "observe"


def started(incident: Incident) -> bool:
    """Whether we have let the job start again."""
    return incident.stage is Stage.RUNNING or "released" in incident.times


def excluded(incident: Incident) -> tuple[str, ...]:
    """The nodes that the restarted job is kept off; where the decision is advice only, those that it names."""
    decision = incident.decision
    if decision is None:
        return ()
    return incident.excluded if decision.act else (*decision.exclude, *decision.avoid)


def done(incident: Incident) -> str:
    """What became of the decision."""
    decision = incident.decision
    if decision is None:
        return ""
    if decision.basis == "mode_off":
        return "recovery is off for this job"
    if decision.verdict is Verdict.NONE:
        return incident.note if decision.basis == "successor" and incident.note else "left alone"
    if not decision.act:
        return "advice only, Mode=observe"
    if decision.verdict is Verdict.STOP:
        return "under way" if incident.stage.open else incident.note or _cancelled(incident)
    if not started(incident):
        return "under way" if incident.stage.open else "not carried out"
    missing = [f"{node} not excluded" for node in decision.exclude if node not in incident.excluded]
    before = [f"{node} excluded as before" for node in _others(incident, decision)]
    return "; ".join(["carried out", *missing, *before])


def _others(incident: Incident, decision: Decision) -> list[str]:
    """Excluded by an earlier decision, where this one names no node by evidence."""
    return [] if decision.exclude else [node for node in incident.excluded if node not in decision.avoid]


def _cancelled(incident: Incident) -> str:
    """A stop without a note: the job was held by us, and has been cancelled (act.py, Actor.end)."""
    result = next((one.result for one in reversed(incident.outcomes) if one.action == "cancel"), Result.DONE)
    return "cancelled" if result in (Result.DONE, Result.ALREADY) else f"cancel {result.value}"


def not_excluded(incident: Incident, steps: Sequence[Step]) -> Iterator[str]:
    """Why nodes are not excluded all the same: left out at first, or given way later."""
    told = [step.detail for step in steps if step.kind == "intent" and step.action in ("exclude", "start")]
    told += [outcome.detail for outcome in incident.outcomes if outcome.action in ("exclude", "start")]
    left_out = [detail.partition(_LEFT_OUT)[2] for detail in told if _LEFT_OUT in detail]
    if left_out:
        yield _LEFT_OUT + left_out[-1]
    yield from dict.fromkeys(outcome.detail for outcome in incident.outcomes if outcome.action == "give_way")


def reason(incident: Incident) -> str:
    """The reason, and whether it is unknown because a log could not be read."""
    if incident.attribution is None:
        return ""
    found = incident.attribution.reason
    if found == "unknown" and incident.observation and _log_missing(incident.observation):
        return f"{found} (no log)" if not incident.observation.log_path else f"{found} (log gap)"
    return found


def _log_missing(observation: Observation) -> bool:
    return any(gap.source is Source.JOB_LOG for gap in observation.gaps)


def unread(incident: Incident) -> Iterator[str]:
    """Where the cause is unknown: what could not be read. At most MOST_GAPS lines."""
    if incident.observation is None or incident.attribution is None or incident.attribution.reason != "unknown":
        return
    for gap in incident.observation.gaps[:MOST_GAPS]:
        what = "its log" if gap.source is Source.JOB_LOG else f"its {gap.source.value.replace('_', ' ')}"
        yield f"{what} could not be read: {gap.what}: {gap.why}"
