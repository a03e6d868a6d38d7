"""Which rank failed first, as far as lines and srun's words about tasks tell.

Owns the choice of one rank among those that reported. Where half of the job reported the same, no rank was
first; where tasks are launchers, srun's task numbers are no ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_recovery.attribute.view import View, category
from slurm_recovery.records import Category, Evidence, Role, Source

# How srun says that a task ended by itself, the most telling first.
_ENDS = (("Segmentation", "Bus error"), ("Exited with exit code",), ("Aborted",))


def root_rank(view: View, first: Evidence, same: Sequence[Evidence]) -> int | None:
    """The rank that began; nobody where half of the job reported the same."""
    places, world = view.places, view.places.world
    voices = {(places.rank(found), found.local_rank, places.node(found)) for found in same}
    voices = {voice for voice in voices if voice[:2] != (None, None)}
    shared = category(first.reason) is Category.SOFTWARE_ENV
    everybody = shared and world is not None and _all_ended(view, world) and not (voices and _peers_lost(view))
    if everybody or (world is not None and len(voices) > 1 and 2 * len(voices) >= world):
        return None
    also = view.having(role=Role.CONDITIONAL, reasons=(first.reason,))
    told_rank = next((rank for found in (first, *same, *also) if (rank := places.rank(found)) is not None), None)
    if told_rank is not None or category(first.reason) is Category.SOFTWARE_ENV:
        return told_rank
    rank = only_end(view)
    return rank if rank is not None else told_first(view)


def told_first(view: View) -> int | None:
    """The rank that mpirun names as the first that failed: Open MPI in words, Intel's Hydra by its signal.

    Hydra lists all processes, and those that it ended itself died of signals 9 and 15.
    """
    named = {found.rank for found in view.having(signatures=("mpi_first_exit",)) if found.rank is not None}
    if len(named) == 1:
        return named.pop()
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


def killed_on(view: View, node: str | None) -> int | None:
    """The one task of a node that srun saw killed, where tasks are ranks."""
    known = view.places.known
    ends = (end for end in view.places.ends if end.how in ("Killed", "Out Of Memory"))
    killed = [end for end in ends if node is not None and node in map(known, end.hosts)]
    return killed[0].only if view.places.tasks_are_ranks and len(killed) == 1 else None


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
        return 0 if len(view.attempt.nodes) == 1 and view.attempt.ntasks_per_node == 1 else None
    for how in _ENDS:
        ends = [end for end in view.places.ends if end.how.startswith(how)]
        if ends:
            return ends[0].only if len(ends) == 1 else None
    return None
