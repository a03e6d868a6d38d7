"""Asks the site's attributor about an attempt, and adds what it says to the observation.

Owns when it is asked: once an attempt's end is certain and was no success, and not again for a while after it kept
us waiting in vain, for other jobs wait behind this one. Whatever goes wrong is a Gap; the rest of the observation
stays as it is. Reads only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slurm_recovery.attribute.answer import AnswerRefused, read_answer
from slurm_recovery.config.settings import Settings
from slurm_recovery.evidence.attributor import ask, name_of
from slurm_recovery.records import Gap, Observation, Source

# "": Slurm has not decided yet. Then somebody may be waiting for us.
UNASKED = ("", "COMPLETED", "CANCELLED", "PREEMPTED", "REQUEUED")


QUIET = 300.0  # seconds without a question after an answer that did not come


@dataclass
class Consultant:
    """Asks for one worker. `now` is a clock that only goes forward, in seconds."""

    settings: Settings
    now: Callable[[], float]
    _quiet_until: float = -math.inf

    def consult(self, observation: Observation) -> Observation:
        """The observation with the attributor's word, or with the reason why there is none."""
        settings, attempt = self.settings, observation.attempt
        if not settings.attributor or attempt.state in UNASKED:
            return observation
        name = name_of(settings.attributor)
        if self.now() < self._quiet_until:
            return _without(observation, name, f"not asked: it did not answer less than {QUIET:g} s ago")
        question = observation.model_dump_json().encode()
        answer = ask(settings.attributor, question, timeout=settings.attributor_timeout)
        if isinstance(answer, Gap):
            self._quiet_until = self.now() + QUIET
            return observation.model_copy(update={"gaps": (*observation.gaps, answer)})
        weight, trust = settings.attributor_weight, settings.attributor_trust
        try:
            said = read_answer(answer, attempt, name=name, weight=weight, trust=trust, place=name)
        except AnswerRefused as refused:
            return _without(observation, name, f"answer not used: {refused}")
        return observation.model_copy(update={"evidence": (*observation.evidence, *said)})


def _without(observation: Observation, name: str, why: str) -> Observation:
    gap = Gap(source=Source.ATTRIBUTOR, what=name, why=why)
    return observation.model_copy(update={"gaps": (*observation.gaps, gap)})
