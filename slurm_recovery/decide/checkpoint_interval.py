"""How often a job should save: what Young's and Daly's formulas say, and what an interval costs. Pure.

J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (3), 2006.

All times are seconds. `write` is Young's T_s and Daly's delta: how long the job stands still to write a checkpoint.
`mtbf` is the job's M, its mean time between failures; `restart` is Daly's R, the time from a failure until the job
computes again, without what it computes once more. `work` is Daly's tau, the time that the job computes between the
end of one checkpoint and the beginning of the next: from one checkpoint's end to the next one's it is work + write.
Failures are taken to come at random at a constant rate (exponentially distributed), at any time, also while the job
writes or restarts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

LEAST_FAILURES = 10  # of which a rate is made


class Rate(NamedTuple):
    """Failures of a partition's nodes, and how many hours of nodes they were seen in."""

    failures: int = 0
    node_hours: float = 0.0

    def mtbf(self, nodes: int) -> float | None:
        """The mean time between failures of a job on so many nodes; None where too few failures are known.

        Every node fails alike, and one is enough to end the job.
        """
        if self.failures < LEAST_FAILURES or self.node_hours <= 0 or nodes < 1:
            return None
        return 3600.0 * self.node_hours / self.failures / nodes


def young(write: float, mtbf: float) -> float:
    """Young's equation (for T_s << T_f): work = sqrt(2 write mtbf)."""
    return math.sqrt(2 * write * mtbf)


def daly(write: float, mtbf: float) -> float:
    """Daly's higher order estimate of `work`, and mtbf itself where write >= 2 mtbf."""
    if write >= 2 * mtbf:
        return mtbf
    ratio = write / (2 * mtbf)
    return math.sqrt(2 * write * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write


def lost_share(work: float, write: float, mtbf: float, restart: float = 0.0) -> float:
    """The share of its time that a job does not get on in: it writes, restarts, or computes once more what was lost.

    By Daly's complete model T seconds of work take
    mtbf e^(restart / mtbf) (e^((work + write) / mtbf) - 1) T / work seconds in the mean.
    """
    if work <= 0 or mtbf <= 0:
        return 1.0
    try:
        stretched = math.exp(restart / mtbf) * math.expm1((work + write) / mtbf) * mtbf / work
    except OverflowError:
        return 1.0
    return 1.0 - 1.0 / stretched if stretched > 1 else 0.0


class Saves(NamedTuple):
    """How a job has saved: seconds from one checkpoint to the next, and for writing one; medians."""

    checkpoints: int
    interval: float
    write: float | None  # None where nobody knows when a checkpoint was begun

    @property
    def work(self) -> float:
        return max(self.interval - (self.write or 0.0), 0.0)


def saves(times: Sequence[Sequence[tuple[float, float | None]]]) -> Saves | None:
    """Of the checkpoints of each of a job's attempts, as (written, begun); None where no attempt has two.

    The time between two that a failure lies between is none of the job's choice, so attempts are looked at apart.
    """
    gaps, writes = [], []
    for attempt in times:
        ends = sorted(end for end, _ in attempt)
        gaps += [later - end for end, later in pairwise(ends) if later > end]
        writes += [end - begun for end, begun in attempt if begun is not None and end >= begun]
    if not gaps:
        return None
    checkpoints = sum(len(attempt) for attempt in times)
    return Saves(checkpoints, quantile(gaps, 0.5), quantile(writes, 0.5) if writes else None)


class Advice(NamedTuple):
    """What the formulas say of a job. Intervals are from one checkpoint's end to the next one's, as `Saves` has them.

    `lost` is the share of time lost as the job saves now, `could` with Daly's interval.
    """

    young: float
    daly: float
    lost: float
    could: float


def advise(seen: Saves, mtbf: float, restart: float) -> Advice | None:
    """None where the write time is not known: the formulas need it."""
    if not seen.write:
        return None
    best = daly(seen.write, mtbf)
    return Advice(
        young=young(seen.write, mtbf) + seen.write,
        daly=best + seen.write,
        lost=lost_share(seen.work, seen.write, mtbf, restart),
        could=lost_share(best, seen.write, mtbf, restart),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed, between two of them where it falls there."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
