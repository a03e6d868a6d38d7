"""Which nodes a restart shall avoid where no evidence names one. Pure.

Owns the use of spare nodes; how far a node is suspected is attribute/suspicion.py's, whether the job could still start
exclusions.py's. The answer replaces what an earlier restart of the job avoided for suspicion: it is not added to it.

- A node whose suspicion has reached `threshold` is avoided.
- Of the others, none after the job's first failure that no evidence explains: missing evidence makes nothing bolder.
- From the second such failure on, the restart gives as many of the most suspected nodes away as spare nodes wait idle,
  and at most half of the job's own. That costs nothing: the job starts as soon, and who is given away is free for
  others. So each restart tries another set, and the outcomes tell which node it is (group testing).
- Nodes alike suspected are picked by a hash of the job, its failures and the node: two jobs on the same nodes try
  different sets, and one job does not try the same sets in a circle.
- A spare node is not taken into the job for one that is less suspected.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log
from typing import NamedTuple

from slurm_recovery.attribute.suspicion import Suspicion

FROM_FAILURE = 2
# Suspicions that differ by less are taken as equal. Otherwise an attempt's age alone orders the nodes, the same blocks
# of them are tried in a circle, and of two bad nodes in two blocks one is always in (tests/simulate_suspicion.py).
ALIKE = 1.25


class Avoided(NamedTuple):
    """A node to avoid, and how far it is suspected."""

    node: str
    posterior: float


def avoid(
    suspicions: Sequence[Suspicion],
    attempt_nodes: Collection[str],
    spares: Collection[str],
    threshold: float,
    unexplained: int,
    job_id: int,
) -> tuple[Avoided, ...]:
    """Nodes for the restart to avoid, the most suspected first.

    `suspicions`: as the job's user sees them. `spares`: the nodes on which this job could start now, besides its own:
    idle, of its partition and features, excluded neither by its user nor for evidence, but also those that only its
    suspicion keeps it off. `unexplained`: how many of this job's failures no evidence explains, the last among them.
    """
    convicted = [Avoided(one.node, one.posterior) for one in suspicions if one.posterior >= threshold]
    if unexplained < FROM_FAILURE:
        return tuple(convicted)
    salt = f"{job_id}/{unexplained}"
    return (*convicted, *_given_away(suspicions, {one.node for one in convicted}, attempt_nodes, spares, salt))


def _given_away(
    suspicions: Sequence[Suspicion],
    convicted: Collection[str],
    attempt_nodes: Collection[str],
    spares: Collection[str],
    salt: str,
) -> list[Avoided]:
    """The most suspected of the job's own and the spare nodes, as many as leave the job enough of them."""
    own = set(attempt_nodes)
    pool = own.union(spares)
    room = len(pool.difference(convicted)) - len(own)
    own_left = (len(own) + 1) // 2 - len(own.intersection(convicted))
    given: list[Avoided] = []
    open_to = [one for one in suspicions if one.posterior > 0 and one.node in pool and one.node not in convicted]
    most = max((one.posterior for one in open_to), default=1.0)
    for one in sorted(open_to, key=lambda one: (_steps(most, one.posterior), _mixed(f"{salt}/{one.node}"))):
        if len(given) >= room:
            break
        if one.node in own:
            if own_left <= 0:
                continue
            own_left -= 1
        given.append(Avoided(one.node, one.posterior))
    return sorted(given, key=lambda one: (-one.posterior, one.node))


def _steps(most: float, posterior: float) -> int:
    """How many whole steps of ALIKE a node is less suspected than the most suspected one."""
    return int((log(most) - log(posterior)) / log(ALIKE))


def _mixed(text: str) -> int:
    """A hash that is the same in every process: FNV-1a of 64 bits, mixed as MurmurHash3 ends."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "replace"):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD % 2**64
    return value ^ value >> 33
