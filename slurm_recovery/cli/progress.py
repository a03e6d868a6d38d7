"""How far an attempt got, its checkpoints, and the options of its owner that were not taken: lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_recovery.cli.times import shown
from slurm_recovery.decide.progress import Gain, Gained, begin_from, gains
from slurm_recovery.records import Checkpoint, Incident, Progress

MOST_TOLD = 8  # lines of a kind


def progress_lines(history: Sequence[Incident], indent: str) -> Iterator[str]:
    """Of the first incident of a job's history; nothing where nothing is known of it."""
    incident = history[0]
    progress = incident.observation.progress if incident.observation else None
    if progress is not None:
        yield f"Progress: {_how_far(progress, gains(history)[0])}"
        yield from (f"{indent}passed over {one.path}: {one.why}" for one in progress.passed[:MOST_TOLD])
    begin = begin_from(history)
    yield from (f"{indent}not to be begun from, it could not be loaded: {path}" for path in begin.refused[:MOST_TOLD])


def untaken_lines(incident: Incident, indent: str) -> Iterator[str]:
    """What the job's owner asked for, and did not get."""
    if incident.decision is not None:
        yield from (f"{indent}option not taken: {one}" for one in incident.decision.untaken)


def _how_far(progress: Progress, gain: Gain) -> str:
    """`step 1200, 200 more than before; newest checkpoint /ckpt/step1200 (dcp, written 2026-11-29T12:00:00)`."""
    reached = "no step known" if progress.step is None else f"step {progress.step}"
    return reached + _gained(gain) + (f"; {_newest(progress.newest)}" if progress.folder else "; by its log")


def _gained(gain: Gain) -> str:
    if gain.gained is Gained.NOTHING:
        return ", no more than before"
    if gain.gained is Gained.UNKNOWN:
        return ""
    return ", more than before" if gain.steps is None else f", {gain.steps} more than before"


def _newest(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "no complete checkpoint"
    return f"newest checkpoint {checkpoint.path} ({checkpoint.format}, written {shown(checkpoint.time)})"
