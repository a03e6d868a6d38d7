"""An incident's life in the order of time: the times of its record and the steps of its audit, merged. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_recovery.cli.standing import stage_word
from slurm_recovery.records import Incident
from slurm_recovery.store.step import Step

WORDS = {
    "ended": "the job ended",
    "detected": "noticed",
    "held": "requeue begun",
    "released": "may start",
    "running": "running again",
    "productive": "progress again",
}
# A time of the record, and the action of the audit that tells of the same moment, and more.
TOLD_BY = {
    "detected": "detected",
    "decided": "decided",
    "held": "requeue",
    "released": "release",
    "productive": "productive",
}
SLURMS = ("ended", "running")  # told by Slurm, which counts whole seconds


class Moment(NamedTuple):
    """`when` is seconds since the epoch; `kind` is a Step's, or `time` for one of the record's own times."""

    when: float
    kind: str
    what: str
    detail: str = ""
    result: str = ""

    @property
    def whole(self) -> bool:
        """Whether fractions of the second are not known."""
        return self.kind == "time" and self.what in SLURMS and self.when.is_integer()


def timeline(incident: Incident, steps: Sequence[Step]) -> tuple[Moment, ...]:
    """What happened, oldest first."""
    moments = [*(_of_step(incident, step) for step in steps), *_times(incident, steps)]
    released = incident.times.get("released", 0.0)
    return tuple(sorted(moments, key=lambda moment: _order(moment, released)))


def _times(incident: Incident, steps: Sequence[Step]) -> Iterator[Moment]:
    told = {step.action for step in steps}
    for name, when in incident.times.items():
        teller = incident.stage.value if name == "closed" else TOLD_BY.get(name)
        if teller not in told:
            yield Moment(when, "time", name, WORDS.get(name, ""))


def _of_step(incident: Incident, step: Step) -> Moment:
    if step.kind == "note" and step.action == incident.stage.value and not incident.stage.open:
        return Moment(step.time, "note", "closed", ": ".join(filter(None, [stage_word(step.action), step.detail])))
    # The sweep notes it when it has seen it, which may be long after it happened.
    when = incident.times.get("productive", step.time) if step.action == "productive" else step.time
    return Moment(when, step.kind, step.action, step.detail, step.result)


def _order(moment: Moment, released: float) -> float:
    """A job that was released in the very second in which Slurm says it started, started after that."""
    return released if moment.whole and moment.what == "running" and 0 <= released - moment.when < 1 else moment.when
