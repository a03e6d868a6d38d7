"""What the rules of today say of an observation: the part that `explain` and `replay` share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_recovery.attribute.engine import attribute
from slurm_recovery.config.settings import Config, Mode
from slurm_recovery.decide.history import Ledger
from slurm_recovery.decide.progress import course
from slurm_recovery.decide.rules import Case, decide
from slurm_recovery.records import Attribution, Category, Decision, Incident, Observation


class Judgement(NamedTuple):
    """An observation and the answers to it."""

    observation: Observation
    attribution: Attribution
    decision: Decision


def judge(
    observation: Observation, config: Config, ledger: Ledger | None = None, earlier: Sequence[Incident] = ()
) -> Judgement:
    """The answers under Mode=act. Without a ledger, the attempt's restart count is all that is known of before."""
    attribution = attribute(observation)
    attempt = observation.attempt
    judged = Incident(attempt=attempt, observation=observation, attribution=attribution)
    case = Case(
        attempt=attempt,
        attribution=attribution,
        config=config,
        ledger=ledger or _assumed(attempt.restart_count, attribution),
        mode=Mode.ACT,
        course=course([judged, *earlier]),
    )
    return Judgement(observation, attribution, decide(case))


def _assumed(restarts: int, attribution: Attribution) -> Ledger:
    """Earlier restarts by us for the same reason; none where it is Slurm that requeues (preemption)."""
    if attribution.category is Category.USER_OR_SCHEDULER:
        return Ledger()
    return Ledger(reasons=(attribution.reason,) * restarts)


def answer(name: str, judgement: Judgement) -> dict[str, Any]:
    """The answer as data, in the fields that `srecover replay --json` promises."""
    _, attribution, decision = judgement
    return {
        "case": name,
        "category": attribution.category.value,
        "reason": attribution.reason,
        "action": decision.verdict.value,
        "suspect_nodes": list(attribution.suspect_nodes),
        "root_rank": attribution.root_rank,
        "because": f"{attribution.because} {decision.verdict.value}: {decision.because}".strip(),
        "evidence": [evidence.model_dump(mode="json") for evidence in attribution.evidence],
    }
