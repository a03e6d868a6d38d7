"""An observation made ready for the rows: only what belongs to this attempt, with its ranks and nodes.

Owns the windows in which evidence counts (window.py, history.py) and the record `Finding` that a row answers
with. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from slurm_recovery.attribute.history import by_slurm_itself, split, spoken
from slurm_recovery.attribute.ranks import Places, places
from slurm_recovery.attribute.reading import read
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.window import OF_NODES, doubtful, last_time, of_this_attempt
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.srun_words import TaskEnd, hosts
from slurm_recovery.records import Attempt, Category, Evidence, Observation, Role, Source, Suspect, Trust

MINUTE = 60.0
HOUR = 3600.0
MOST_RIVALS = 4
MOST_NAMED = 64  # hosts of one line that are looked up


@dataclass(frozen=True)
class Rival:
    """An explanation that a row weighed and did not take."""

    reason: str
    why: str
    evidence: Evidence


@dataclass(frozen=True)
class Finding:
    """One row's answer: a cause, the evidence for it with the root's line first, and where it began."""

    reason: str
    because: str
    evidence: tuple[Evidence, ...] = ()
    rank: int | None = None
    suspects: tuple[Suspect, ...] = ()
    category: Category | None = None  # where it is not the reason's own
    rivals: tuple[Rival, ...] = ()


@dataclass(frozen=True)
class View:
    """What the rows look at."""

    attempt: Attempt
    observation: Observation
    evidence: tuple[Evidence, ...]
    places: Places
    earlier: tuple[Evidence, ...] = ()  # of former attempts in the same file
    doubted: frozenset[int] = frozenset()  # id() of kernel lines that may be of another time or job
    _ranks: dict[int, int | None] = field(default_factory=dict, compare=False, repr=False)
    _nodes: dict[int, str | None] = field(default_factory=dict, compare=False, repr=False)

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

    def rank(self, found: Evidence) -> int | None:
        """The global rank that the evidence comes from."""
        if id(found) not in self._ranks:
            self._ranks[id(found)] = self.places.rank(found)
        return self._ranks[id(found)]

    def node(self, found: Evidence) -> str | None:
        """The job's node that the evidence comes from; None where that is not certain enough to name one."""
        if id(found) not in self._nodes:
            self._nodes[id(found)] = self.places.node(found)
        return self._nodes[id(found)]

    @property
    def ended(self) -> float | None:
        """When the attempt ended by its own log, in the log's zone; None if no line tells."""
        return last_time(self.evidence)

    def unread(self, source: Source) -> bool:
        """Whether evidence of this kind could not be had: then silence says nothing."""
        return any(gap.source is source for gap in self.observation.gaps)


Row = Callable[[View], Finding | None]


def category(reason: str) -> Category | None:
    return REASONS[reason].category if reason in REASONS else None


def view(observation: Observation) -> View:
    """The observation without the evidence that lies outside its attempt's window."""
    attempt = observation.attempt
    lines = read(_by_file(_ours(of_this_attempt(observation))), attempt)
    within, earlier = split(by_slurm_itself(lines), attempt)
    known = spoken(within, attempt)
    where = places(attempt, known)
    evidence = tuple(found for found in known if _of_the_job(found, where))
    return View(attempt, observation, evidence, where, earlier, doubtful(evidence))


def _by_file(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The job's logs before the nodes', each in its own order: in which order they were read says nothing."""
    return sorted(evidence, key=lambda found: (found.source is Source.KERNEL_LOG, found.place.rpartition(":")[0]))


def _ours(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """All but what an attributor said: attributed.py alone hears that, and it may quote anything."""
    return tuple(found for found in evidence if found.source is not Source.ATTRIBUTOR)


def _of_the_job(found: Evidence, where: Places) -> bool:
    """What a node that the job did not have says of itself says nothing of it."""
    foreign = found.source in OF_NODES and found.node is not None and where.known(found.node) is None
    return not (foreign and where.nodes)


def in_order(lines: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The earliest first. Output order is no time order (buffers, many writers): times count where all have one."""
    times = [found.time for found in lines]
    if any(time is None for time in times):
        return tuple(lines)
    return tuple(sorted(lines, key=lambda found: found.time or 0.0))


def with_first(first: Evidence, same: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The same lines, the given one first."""
    return (first, *(found for found in same if found is not first))


def others(first: Evidence, lines: Sequence[Evidence], why: Callable[[Evidence], str]) -> tuple[Rival, ...]:
    """The first line of each other reason, and why it is not the cause."""
    found_others = {found.reason: found for found in reversed(lines) if found.reason != first.reason}
    return tuple(Rival(found.reason, why(found), found) for found in list(found_others.values())[:MOST_RIVALS])


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

    Nobody where the job's owner's words name every node of several, or where half of the nodes see one fault of
    what they share, a network or a file system: what many have in common is no node's fault.
    """
    best: dict[str, Evidence] = {}
    for found in evidence:
        for node in _named(view, found):
            if _contradicted(view, found, node):
                continue
            if node not in best or _more_trusted(found, best[node]):
                best[node] = found
    if len(best) > 1 and _shared(view, best, reason):
        return ()
    return tuple(suspect(view, best[node], node, reason) for node in sorted(best))


# A kernel that hangs, or a process that cannot be ended, on most nodes alike waits for a file system of theirs.
_BY_WHAT_IS_SHARED = ("node_hang", "kill_task_failed")


def _shared(view: View, best: dict[str, Evidence], reason: str) -> bool:
    of_all = category(reason) in (Category.INTERCONNECT, Category.STORAGE) or reason in _BY_WHAT_IS_SHARED
    if of_all and 2 * len(best) > len(view.attempt.nodes):
        return True
    everywhere = len(best) == len(view.attempt.nodes)
    return everywhere and all(found.trust is Trust.USER for found in best.values())


def _contradicted(view: View, found: Evidence, node: str) -> bool:
    """Whether only the job's owner's words and a count lead to the node, and srun saw tasks fail on others alone."""
    head = frame(found.line)
    if found.trust is not Trust.USER or found.node is not None or head.node is not None or head.relayed:
        return False
    failed = {view.places.known(host) for end in view.places.ends if _by_itself(end) for host in end.hosts}
    ended = {view.places.known(host) for end in view.places.ends for host in end.hosts}
    return bool(failed) and None not in failed and node not in ended


def _by_itself(end: TaskEnd) -> bool:
    return end.how.startswith(("Exited", "Segmentation", "Bus error", "Aborted"))


def _named(view: View, found: Evidence) -> tuple[str, ...]:
    """The job's nodes that a line is about: srun writes several as one host list."""
    node = view.node(found)
    if node is not None:
        return (node,)
    if found.node is None or "[" not in found.node:
        return ()
    known = (view.places.known(host) for host in hosts(found.node)[:MOST_NAMED])
    return tuple(node for node in known if node is not None)


def _more_trusted(found: Evidence, than: Evidence) -> bool:
    return found.trust is Trust.ROOT and than.trust is Trust.USER
