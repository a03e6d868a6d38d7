"""Which rank failed first, as far as lines and srun's words about tasks tell.

Owns the choice of one rank among those that reported. Where half of the job reported the same, no rank was
first; where tasks are launchers, srun's task numbers are no ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_recovery.attribute.reading import OF_ANYTHING
from slurm_recovery.attribute.view import View, category
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.notes import TABLE
from slurm_recovery.records import Category, Evidence, Role, Source

MANY = 3  # ranks that have one cause in common
AHEAD = 30.0  # seconds by which a root is ahead of those that follow
WORDS = 120  # characters of a message that are compared
_NO_DIGITS = str.maketrans("", "", "0123456789")
# Launchers that start several processes from one task: lines of theirs that name one of them.
_FIRST_EXIT = ("launcher_first_exit", "launcher_crash", "launcher_killed")
_OF_LAUNCHERS = (*_FIRST_EXIT, TABLE, "spawn_process", "torchrun_closing", "workers_restarted", "child_failed")
# How srun says that a task ended by itself, the most telling first.
_ENDS = (("Segmentation", "Bus error"), ("Exited with exit code",), ("Aborted",))


def root_rank(view: View, first: Evidence, same: Sequence[Evidence]) -> int | None:
    """The rank that began; nobody where half of the job reported the same."""
    places, world = view.places, view.places.world
    voices = {(places.rank(found), found.local_rank, places.node(found)) for found in same}
    voices = {voice for voice in voices if voice[:2] != (None, None)}
    shared = category(first.reason) is Category.SOFTWARE_ENV
    everybody = shared and world is not None and _all_ended(view, world) and not (voices and _peers_lost(view))
    half = world is not None and len(voices) > 1 and 2 * len(voices) >= world
    if everybody or half or many_alike(view, first, same):
        return None
    also = view.having(role=Role.CONDITIONAL, reasons=(first.reason,))
    told_rank = next((rank for found in (first, *same, *also) if (rank := places.rank(found)) is not None), None)
    if told_rank is not None or category(first.reason) is Category.SOFTWARE_ENV:
        return told_rank
    rank = only_end(view)
    return rank if rank is not None else told_first(view)


def many_alike(view: View, first: Evidence, same: Sequence[Evidence]) -> bool:
    """Whether many ranks, and some on each node, said the very same, none of them long before the others.

    Who only lost a peer says something else than who was lost, so that these have one cause in common.
    """
    words = _words(first)
    alike = [found for found in same if _words(found) == words]
    ranks = {view.rank(found) for found in alike} - {None}
    nodes = {view.node(found) for found in alike}
    if len(ranks) < MANY or not (len(nodes - {None}) == len(view.attempt.nodes) > 1 or nodes == {None}):
        return False
    times = sorted(found.time for found in alike if found.time is not None)
    return len(times) < len(alike) or times[1] - times[0] < AHEAD


def followers(view: View, lines: Sequence[Evidence]) -> frozenset[int]:
    """id() of bare exceptions of anything that many ranks have in common, where one rank alone says something else.

    Libraries raise them in all that wait for a rank that is gone.
    """
    groups: dict[str, set[int]] = {}
    for found in lines:
        if found.signature == "python_exception" and (rank := view.rank(found)) is not None:
            groups.setdefault(_words(found), set()).add(rank)
    if not any(len(ranks) == 1 for ranks in groups.values()):
        return frozenset()
    many = {words for words, ranks in groups.items() if len(ranks) >= MANY}
    return frozenset(
        id(found) for found in lines if _words(found) in many and OF_ANYTHING.match(frame(found.line).text)
    )


def _words(found: Evidence) -> str:
    return frame(found.line).text[:WORDS].translate(_NO_DIGITS)


def told_first(view: View) -> int | None:
    """The rank that a launcher names as the first that failed: Open MPI in words, Intel's Hydra by its signal.

    Those of MosaicML and Paddle end the others with signals of their own, which they say in other words.

    Hydra lists all processes, and those that it ended itself died of signals 9 and 15.
    """
    named = {found.rank for found in view.having(signatures=("mpi_first_exit",)) if found.rank is not None}
    if len(named) == 1:
        return named.pop()
    first = next(iter(view.having(signatures=_FIRST_EXIT)), None)
    if first is not None:
        return first.rank
    place: Evidence | None = None
    for found in view.having(signatures=("hydra_place", "hydra_signal")):
        if found.signature == "hydra_signal" and place is not None:
            return place.rank
        place = found if found.signature == "hydra_place" else place
    return None


def first_rank_on(view: View, node: str | None) -> int | None:
    """The first rank of a node that reported more than a lost peer or a timeout."""
    for found in view.having(source=Source.JOB_LOG):
        telling = found.role in (Role.ROOT, Role.CONDITIONAL) and category(found.reason) is not Category.INTERCONNECT
        rank = view.places.rank(found) if telling and found.reason else None
        if rank is not None and view.places.node(found) == node:
            return rank
    return only_end(view) if node is not None and len(view.attempt.nodes) == 1 else None


def first_end_on(view: View, node: str | None) -> int | None:
    """The task that srun saw end by itself before all others, where it is a rank and ran on that node."""
    ended = tuple(how for hows in _ENDS for how in hows)
    first = next((end for end in view.places.ends if end.how.startswith(ended)), None)
    if node is None or first is None or not view.places.tasks_are_ranks:
        return None
    return first.only if {view.places.known(host) for host in first.hosts} == {node} else None


def killed_on(view: View, node: str | None) -> int | None:
    """The one task of a node that srun saw killed, where tasks are ranks."""
    known = view.places.known
    ends = (end for end in view.places.ends if end.how in ("Killed", "Out Of Memory"))
    killed = [end for end in ends if node is not None and node in map(known, end.hosts)]
    return killed[0].only if view.places.tasks_are_ranks and len(killed) == 1 else None


def _one_process(view: View) -> bool:
    """Whether the job's only task is its only rank: srun's task may be a launcher of many."""
    if len(view.attempt.nodes) != 1 or view.attempt.ntasks_per_node != 1 or view.places.world not in (None, 1):
        return False
    return not any(
        found.signature in _OF_LAUNCHERS or found.rank or found.local_rank or frame(found.line).relayed
        for found in view.having(source=Source.JOB_LOG)
    )


def _peers_lost(view: View) -> bool:
    """Whether others waited for somebody, so that not all had the same end."""
    return any(category(found.reason) is Category.INTERCONNECT for found in view.having(source=Source.JOB_LOG))


def _all_ended(view: View, world: int) -> bool:
    return sum(end.count for end in view.places.ends if end.how.startswith("Exited")) >= world


def only_end(view: View) -> int | None:
    """The one task that ended by itself, where tasks are ranks; 0 where there is only one rank.

    A crash tells more than an error, and an error more than an abort, which most often follows a lost peer.
    """
    if not view.places.tasks_are_ranks:
        return 0 if _one_process(view) else None
    for how in _ENDS:
        ends = [end for end in view.places.ends if end.how.startswith(how)]
        if ends:
            return ends[0].only if len(ends) == 1 else None
    return None
