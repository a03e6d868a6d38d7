"""Whether a job gets further from attempt to attempt, and from which of its checkpoints the next one should begin.

Owns the comparing of attempts. Pure. A history is a job's incidents, the attempt in question first, then backwards.
What could not be seen counts neither as progress nor as none. All of it is the word of the job's owner: it can only
use up his own budget faster, or choose among his own checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from slurm_recovery.records import Checkpoint, Incident, Observation, Source

LOAD_FAILED = "checkpoint_corrupt"
MOST_REFUSED = 32  # checkpoints that one job is told not to begin from


class Gained(StrEnum):
    """What an attempt added to the best of those before it."""

    MORE = "more"
    NOTHING = "nothing"
    UNKNOWN = "unknown"  # nothing to compare, or it could not be seen


class Gain(NamedTuple):
    """`steps`: how many, where both sides tell their steps."""

    gained: Gained = Gained.UNKNOWN
    steps: int | None = None


class Begin(NamedTuple):
    """What the next attempt is told: `checkpoint` is "" where its own search has to find one."""

    checkpoint: str = ""
    step: int | None = None
    refused: tuple[str, ...] = ()


class Course(NamedTuple):
    """What a decision needs to know of all this. Only restarts of ours are counted."""

    in_a_row: int = 0  # restarts that gained nothing, up to this attempt
    in_all: int = 0
    step: int | None = None  # that the attempt reached
    retreat: Checkpoint | None = None  # where to begin after a checkpoint could not be loaded
    refused: int = 0  # checkpoints that could not be loaded
    at_fault: bool = False  # a checkpoint that cannot be loaded is why this attempt ended


class _Reached(NamedTuple):
    """`step` and `time` are both None where there is no checkpoint; `certain`: there is none newer."""

    folder: str
    step: int | None
    time: float | None
    certain: bool


def course(history: Sequence[Incident]) -> Course:
    """How the job got on, up to the end of the first attempt of the history."""
    if not history:
        return Course()
    gained = gains(history)
    in_a_row = in_all = 0
    unbroken = True
    for gain, before in zip(gained, history[1:], strict=False):
        unbroken = unbroken and gain.gained is not Gained.MORE
        if gain.gained is Gained.NOTHING and before.decision is not None and before.decision.verdict.restarts:
            in_all += 1
            in_a_row += unbroken
    blamed = _walk(history)
    reached = _reached(history[0].observation, blamed.bad)
    return Course(
        in_a_row=in_a_row,
        in_all=in_all,
        step=reached.step if reached else None,
        retreat=_first(_saved(history[0]), blamed.bad) if blamed.at_last else None,
        refused=len(blamed.bad),
        at_fault=blamed.at_last,
    )


def gains(history: Sequence[Incident]) -> tuple[Gain, ...]:
    """What each attempt of the history gained. Of a job's first one nothing is known."""
    bad = _walk(history).bad
    best: dict[str, _Reached] = {}
    found = []
    for incident in reversed(history):
        here = _reached(incident.observation, bad)
        before = best.get(here.folder) if here else None
        found.append(_gain(here, before))
        if here and (before is None or _better(here, before)):
            best[here.folder] = here
    return tuple(reversed(found))


def refused_checkpoints(history: Sequence[Incident]) -> tuple[str, ...]:
    """Paths that an attempt began from and could not load, the last one at the end.

    One that has been written anew since is not among them.
    """
    blamed = _walk(history)
    return tuple(path for path in blamed.bad if path not in blamed.anew)[-MOST_REFUSED:]


def begin_from(history: Sequence[Incident]) -> Begin:
    """What the attempt after the first of the history is told to begin from."""
    if not history:
        return Begin()
    bad = _walk(history).bad
    observation = history[0].observation
    begin = None if observation is None or _unseen(observation) else _first(_saved(history[0]), bad)
    paths = refused_checkpoints(history)
    return Begin(begin.path, begin.step, paths) if begin else Begin(refused=paths)


# -- how far an attempt came ---------------------------------------------------------------------------


def _reached(observation: Observation | None, bad: Mapping[str, float]) -> _Reached | None:
    progress = observation.progress if observation else None
    if observation is None or progress is None:
        return None
    if progress.folder:
        newest = _first(_complete(observation), bad)
        step, time = (newest.step, newest.time) if newest else (None, None)
        return _Reached(progress.folder, step, time, not _unseen(observation))
    if progress.log_step is None:
        return None
    unread = any(gap.source is Source.JOB_LOG for gap in observation.gaps)
    return _Reached("", progress.log_step, None, not unread)


def _gain(here: _Reached | None, best: _Reached | None) -> Gain:
    if here is None or best is None:
        return Gain()
    if not _beyond(here, best):
        return Gain(Gained.NOTHING) if here.certain else Gain()
    if not best.certain:  # it may have been further than was seen
        return Gain()
    if here.step is None or (best.step is None and best.time is not None):
        return Gain(Gained.MORE)
    return Gain(Gained.MORE, here.step - (best.step or 0))


def _better(here: _Reached, best: _Reached) -> bool:
    return _beyond(here, best) or (here.certain and not best.certain and not _beyond(best, here))


def _beyond(one: _Reached, other: _Reached) -> bool:
    """Whether it is further; by the time of writing where a checkpoint does not tell its step."""
    if one.step is not None and other.step is not None:
        return one.step > other.step
    if one.time is None or other.time is None:
        return one.time is not None and other.step is None
    return one.time > other.time


def _unseen(observation: Observation) -> bool:
    return any(gap.source is Source.CHECKPOINT for gap in observation.gaps)


# -- what cannot be loaded -----------------------------------------------------------------------------


class _Blamed(NamedTuple):
    """`bad` maps the path of what could not be loaded to when that had been written, the last at the end.

    `anew`: those of its paths where a newer one was seen since. `at_last`: a checkpoint is why the first attempt of the
    history ended.
    """

    bad: dict[str, float]
    anew: frozenset[str]
    at_last: bool = False


def _walk(history: Sequence[Incident]) -> _Blamed:
    """From the job's first attempt to the last."""
    bad: dict[str, float] = {}
    anew: set[str] = set()
    told: Checkpoint | None = None  # what the attempt was told to begin from
    at_last = False
    for incident in reversed(history):
        saved = _saved(incident)
        anew |= {one.path for one in saved if one.time > bad.get(one.path, float("inf"))}
        at_last = False
        if _load_failed(incident):
            blamed = _began_from(incident, told, _first(saved, bad))
            if blamed is not None:
                bad.pop(blamed.path, None)
                bad[blamed.path] = blamed.time
                anew.discard(blamed.path)
            at_last = blamed is not None or _took_a_broken_one(incident, told)
        told = _first(saved, bad)
    return _Blamed(bad, frozenset(anew), at_last)


def _load_failed(incident: Incident) -> bool:
    """A suspect means that one node cannot read what the others can: that is not the checkpoint's fault."""
    attribution = incident.attribution
    return attribution is not None and attribution.reason == LOAD_FAILED and not attribution.suspects


def _began_from(incident: Incident, told: Checkpoint | None, newest: Checkpoint | None) -> Checkpoint | None:
    """What the attempt failed to load; None where that is not known, or where it got on far enough to write another.

    `newest`: the newest complete one at its end, of those that were not refused before.
    """
    if told is not None and (newest is None or newest.time <= told.time):
        return told
    start = incident.attempt.start_time
    if newest is None or _took_a_broken_one(incident, told):
        return None
    return newest if start is None or newest.time < start else None


def _took_a_broken_one(incident: Incident, told: Checkpoint | None) -> bool:
    """Nobody told the job where to begin, and its folder's newest is not complete: that is what it took."""
    progress = incident.observation.progress if incident.observation else None
    return told is None and progress is not None and bool(progress.passed)


def _first(saved: Sequence[Checkpoint], bad: Mapping[str, float]) -> Checkpoint | None:
    return next((one for one in saved if one.time > bad.get(one.path, float("-inf"))), None)


def _saved(incident: Incident) -> tuple[Checkpoint, ...]:
    return _complete(incident.observation) if incident.observation else ()


def _complete(observation: Observation) -> tuple[Checkpoint, ...]:
    """The complete checkpoints that were seen, newest first."""
    progress = observation.progress
    return () if progress is None or progress.newest is None else (progress.newest, *progress.earlier)
