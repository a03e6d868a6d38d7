"""The rows in which the dumps of PyTorch's flight recorder have the word.

Owns what they prove. A dump is a rank's own count of what it asked for, so it is better evidence than what a
watchdog printed of it; it is still a time-out's, and below every error that names itself. A rank without a dump
may be dead, stuck, or have had no room to write: that names a rank and no node. Another job of the same user may
have left its dumps in the same folder at the same time, so they speak only where the job's own log tells of waiting,
or could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, told
from slurm_recovery.detect.flight_compare import ABSENT, BEHIND, MISMATCH, NOT_STARTED, STUCK, UNFINISHED
from slurm_recovery.records import Evidence, Gap, Source, Suspect, Trust

# What a log says of ranks that wait for others, or lost them.
_WAITING = ("nccl_timeout", "nccl_network_error", "gloo_connection_error", "rendezvous_timeout", "hang")


def may_speak(evidence: Iterable[Evidence], gaps: Iterable[Gap]) -> bool:
    """Whether the job's log tells of ranks that waited, or could not be read."""
    unread = any(gap.source is Source.JOB_LOG for gap in gaps)
    return unread or any(found.source is Source.JOB_LOG and found.reason in _WAITING for found in evidence)


def dump_behind(view: View) -> Finding | None:
    """Ranks that called something else than the others, or that the others waited for."""
    return _mismatch(view) or _behind(view)


def dump_absent(view: View) -> Finding | None:
    """Ranks that left no dump while the others waited with them; or all came, and it did not end."""
    lines = _lines(view, ABSENT, STUCK)
    if not lines:
        return None
    return Finding("nccl_timeout", told(view, "nccl_timeout", lines[0]), lines, rank=_only_rank(lines))


def _mismatch(view: View) -> Finding | None:
    lines = _lines(view, MISMATCH)
    if not lines:
        return None
    return Finding("collective_mismatch", told(view, "collective_mismatch", lines[0]), lines, rank=lines[0].rank)


def _behind(view: View) -> Finding | None:
    lines = _lines(view, BEHIND, UNFINISHED, NOT_STARTED)
    if not lines:
        return None
    nodes = {view.places.node(found) for found in lines}
    node = nodes.pop() if len(nodes) == 1 else None
    because = f"{REASONS['nccl_timeout'].sentence} {'; '.join(found.line for found in lines[:4])}."
    accused = (Suspect(node=node, trust=Trust.USER, because=because),) if node else ()
    return Finding("nccl_timeout", because, lines, rank=_only_rank(lines), suspects=accused)


def _lines(view: View, *signatures: str) -> tuple[Evidence, ...]:
    """By rank, whatever order the files were read in; none for a job that did not wait."""
    if not may_speak(view.evidence, view.observation.gaps):
        return ()
    lines = view.having(source=Source.FLIGHT_RECORDER, signatures=signatures)
    return tuple(sorted(lines, key=lambda found: (found.rank is None, found.rank or 0, found.line)))


def _only_rank(lines: tuple[Evidence, ...]) -> int | None:
    ranks = {found.rank for found in lines}
    return ranks.pop() if len(ranks) == 1 else None
