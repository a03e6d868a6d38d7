"""An observation made ready for the rows: only what belongs to this attempt, with its ranks and nodes.

Owns the window in which evidence counts, and the record `Finding` that a row answers with. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slurm_recovery.attribute.ranks import Places, places
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Attempt, Category, Evidence, Observation, Role, Source, Suspect, Trust

MINUTE = 60.0
HOUR = 3600.0
AFTER_END = 15 * MINUTE
# A watchdog speaks 10 to 30 minutes after the fault, and may be set higher.
BEFORE_END = 2 * HOUR
# A time without its zone was taken as UTC: no zone is further away than this.
ZONE_SLACK = 14 * HOUR
# A job in these states may have stood still for long before it ended.
LONG_STATES = ("TIMEOUT", "DEADLINE", "NODE_FAIL")


@dataclass(frozen=True)
class Finding:
    """One row's answer: a cause, the evidence for it, and where it began."""

    reason: str
    because: str
    evidence: tuple[Evidence, ...] = ()
    rank: int | None = None
    suspects: tuple[Suspect, ...] = ()
    category: Category | None = None  # where it is not the reason's own


@dataclass(frozen=True)
class View:
    """What the rows look at."""

    attempt: Attempt
    observation: Observation
    evidence: tuple[Evidence, ...]
    places: Places

    def having(
        self,
        *,
        source: Source | None = None,
        role: Role | None = None,
        categories: Iterable[Category] = (),
        reasons: Iterable[str] = (),
        signatures: Iterable[str] = (),
    ) -> tuple[Evidence, ...]:
        """The evidence that fits everything given, in its order."""
        wanted, codes, ids = frozenset(categories), frozenset(reasons), frozenset(signatures)
        return tuple(
            found
            for found in self.evidence
            if (source is None or found.source is source)
            and (role is None or found.role is role)
            and (not wanted or category(found.reason) in wanted)
            and (not codes or found.reason in codes)
            and (not ids or found.signature in ids)
        )

    @property
    def ended(self) -> float | None:
        """When the attempt ended by its own log, in the log's zone; None if no line tells."""
        return _last(self.evidence)


Row = Callable[[View], Finding | None]


def category(reason: str) -> Category | None:
    return REASONS[reason].category if reason in REASONS else None


def view(observation: Observation) -> View:
    """The observation without the evidence that lies outside its attempt's window."""
    attempt = observation.attempt
    log_end = _last(observation.evidence)
    uptimes = _uptimes(observation.evidence)
    evidence = tuple(
        found
        for found in observation.evidence
        if _inside(found, attempt, log_end) and not _long_ago(found, attempt, uptimes)
    )
    return View(attempt, observation, evidence, places(attempt, evidence))


def _last(evidence: Iterable[Evidence]) -> float | None:
    times = [found.time for found in evidence if found.source is Source.JOB_LOG and found.time is not None]
    return max(times) if times else None


def _inside(evidence: Evidence, attempt: Attempt, log_end: float | None) -> bool:
    """Whether kernel evidence belongs to this attempt; a line without a full date is given the benefit."""
    if evidence.source is not Source.KERNEL_LOG or evidence.time is None:
        return True
    zoned = frame(evidence.line).zoned
    end, same_zone = (log_end, not zoned) if attempt.end_time is None else (attempt.end_time, zoned)
    if end is None:
        return True
    slack = 0.0 if same_zone else ZONE_SLACK
    return _begin(attempt, end) - slack <= evidence.time <= end + AFTER_END + slack


def _uptimes(evidence: Iterable[Evidence]) -> dict[str | None, float]:
    """The last time since boot that each node's kernel log tells."""
    read = [(found.node, frame(found.line).uptime) for found in evidence if found.source is Source.KERNEL_LOG]
    return {node: uptime for node, uptime in read if uptime is not None}


def _long_ago(evidence: Evidence, attempt: Attempt, uptimes: dict[str | None, float]) -> bool:
    """Whether the node's own kernel log went on for long after this line, so that it is of an earlier time."""
    if evidence.source is not Source.KERNEL_LOG or attempt.state in LONG_STATES or evidence.node not in uptimes:
        return False
    uptime = frame(evidence.line).uptime
    return uptime is not None and uptimes[evidence.node] - uptime > BEFORE_END


def _begin(attempt: Attempt, end: float) -> float:
    """From when on evidence counts: a job that ran into its limit may have hung since its start."""
    if attempt.state in LONG_STATES:
        return attempt.start_time if attempt.start_time is not None else end - 24 * HOUR
    return end - BEFORE_END


def quote(evidence: Evidence, places: Places) -> str:
    """`Rank 12 on a02: "line" (job.log:34)`, with what is known of it."""
    rank, node = places.rank(evidence), places.node(evidence)
    who = " on ".join(part for part in (f"Rank {rank}" if rank is not None else "", node or "") if part)
    line = evidence.line if len(evidence.line) <= 200 else evidence.line[:197] + "..."
    return f'{who + ": " if who else ""}"{line}"{f" ({evidence.place})" if evidence.place else ""}'


def told(view: View, reason: str, evidence: Evidence) -> str:
    """The reason's sentence, and the line that speaks for it."""
    return f"{REASONS[reason].sentence} {quote(evidence, view.places)}"


def suspect(view: View, evidence: Evidence, node: str, reason: str) -> Suspect:
    return Suspect(node=node, trust=evidence.trust, because=told(view, reason, evidence))


def suspects(view: View, evidence: Iterable[Evidence], reason: str) -> tuple[Suspect, ...]:
    """The nodes that the evidence names, each once, by its most trusted line.

    Nobody where the job's owner's words name every node of several: what all have in common is no node's fault.
    """
    best: dict[str, Evidence] = {}
    for found in evidence:
        node = view.places.node(found)
        if node is not None and (node not in best or _more_trusted(found, best[node])):
            best[node] = found
    everywhere = len(best) > 1 and len(best) == len(view.attempt.nodes)
    if everywhere and all(found.trust is Trust.USER for found in best.values()):
        return ()
    return tuple(suspect(view, best[node], node, reason) for node in sorted(best))


def _more_trusted(found: Evidence, than: Evidence) -> bool:
    return found.trust is Trust.ROOT and than.trust is Trust.USER
