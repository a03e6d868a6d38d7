"""Which nodes are bad, given what was counted for and against each: none, one, or two of those that fell together.

Owns the inference; what counts, for how much, and for how long is suspicion.py's.

The model is a Bayesian network of noisy ORs (Pearl, Probabilistic Reasoning in Intelligent Systems, 1988), searched as
fault localisation does it: few faults at once (Kandula, Katabi, Vasseur: Shrink, 2005; Bahl et al.: Sherlock, 2007).
That attempts on different sets of nodes single a bad one out is group testing (Dorfman, 1943), with tests that err.

A node is bad with probability BASE_RATE, odds rho = BASE_RATE / (1 - BASE_RATE). An attempt on the nodes S fails with

    1 - (1 - q) * product over the bad i of S of (1 - f_i)

where q stands for all other causes, and f_i, how often the bad node i fails an attempt, is unknown: each of FAILS is as
likely. An attempt of weight w counts with its likelihood to the power of w. So, against the hypothesis that no node is
bad, the hypothesis "i alone" has the odds rho * r(i), and "i and j" rho^2 * r(i, j):

    r(i)    = mean over f      of  c(f)^n_i * b(f)^m_i * (1 - f)^g_i
    r(i, j) = mean over f, f'  of  (as r(i) for f) * (as r(j) for f') * (c(f, f') / (c(f) * c(f')))^n_ij
    c(f)    = (q + (1 - q) * f) / q                                       a failed attempt
    c(f,f') = (q + (1 - q) * (1 - (1 - f) * (1 - f'))) / q                a failed attempt with both in it
    b(f)    = (e + (1 - e) * f) / e,  e = FALSE_BLAME                     a failed attempt for which i itself was named

n_i, m_i, g_i: weight of the failed attempts with i in them, of those that named it, of the good ones; n_ij: of the
failed ones with both. Only failed attempts tie nodes together, so the posterior falls into independent groups: nodes
that no failed attempt ties together, directly or through others. In each group the hypotheses none, one and two are
weighed; over the whole cluster any number of nodes may be bad. A node whose own record speaks for it (r < 1) joins no
group.

Bounds: nodes with the same record are counted as one with a multiplicity, which is exact; pairs are formed among the
MOST_IN_PAIRS strongest such classes of a group, and MOST_PAIRS in all, the strongest groups first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf, isqrt, log
from typing import NamedTuple

BASE_RATE = 0.005  # assumed: of 200 nodes that show no fault of their own, one spoils jobs
FAILS = (0.98, 0.5, 0.2, 0.05)  # not 1: a bad node, too, lets an attempt through now and then
FALSE_BLAME = 0.005  # share of attempts in which a healthy node's kernel, or Slurm, speaks against it
MOST_IN_PAIRS = 48
MOST_PAIRS = 20_000

_LOG_RHO = log(BASE_RATE / (1 - BASE_RATE))
_LOG_GOOD = tuple(log(1 - f) for f in FAILS)
_LOG_BLAMED = tuple(log((FALSE_BLAME + (1 - FALSE_BLAME) * f) / FALSE_BLAME) for f in FAILS)


class Failure(NamedTuple):
    """A failed attempt that counts against all its nodes. `most`: what all of its user's together count on one node."""

    end: float
    weight: float
    user: str
    most: float


class Alike(NamedTuple):
    """Nodes with the same record: `failed` are indices of failures, in order; the others are weights, as above."""

    nodes: tuple[str, ...]
    failed: tuple[int, ...]
    against: float  # n
    blamed: float  # m
    good: float  # g


class Group(NamedTuple):
    """Nodes tied together by failed attempts, and the probabilities of all hypotheses about them. They sum to 1."""

    classes: tuple[Alike, ...]
    none: float
    one: tuple[float, ...]  # for each class: that a certain node of it, and no other one of the group, is bad
    two: Mapping[tuple[int, int], float]  # for two classes, or one twice: that two certain nodes of them are bad

    @property
    def total(self) -> float:
        sizes = [len(alike.nodes) for alike in self.classes]
        singles = sum(size * p for size, p in zip(sizes, self.one, strict=True))
        pairs = sum(
            (sizes[i] * (sizes[i] - 1) // 2 if i == j else sizes[i] * sizes[j]) * p for (i, j), p in self.two.items()
        )
        return self.none + singles + pairs

    @property
    def posterior(self) -> list[float]:
        """For each class: that a certain node of it is bad."""
        sizes = [len(alike.nodes) for alike in self.classes]
        bad = list(self.one)
        for (i, j), p in self.two.items():
            bad[i] += p * (sizes[j] - 1 if i == j else sizes[j])
            if i != j:
                bad[j] += p * sizes[i]
        return [min(p, 1.0) for p in bad]


class Odds(NamedTuple):
    """The tables of one q."""

    failed: tuple[float, ...]  # log c(f)
    both: tuple[tuple[float, ...], ...]  # log(c(f, f') / (c(f) * c(f')))

    @classmethod
    def of(cls, q: float) -> Odds:
        failed = tuple(log((q + (1 - q) * f) / q) for f in FAILS)
        both = tuple(
            tuple(log((q + (1 - q) * (1 - (1 - f) * (1 - g))) / q) - failed[a] - failed[b] for b, g in enumerate(FAILS))
            for a, f in enumerate(FAILS)
        )
        return cls(failed, both)

    def of_node(self, alike: Alike) -> tuple[float, ...]:
        """log of what is averaged in r(i), for each f."""
        return tuple(
            alike.against * failed + alike.blamed * blamed + alike.good * good
            for failed, blamed, good in zip(self.failed, _LOG_BLAMED, _LOG_GOOD, strict=True)
        )

    def of_pair(self, one: Sequence[float], other: Sequence[float], shared: float) -> float:
        """log r(i, j)."""
        rows = zip(one, self.both, strict=True)
        return _log_mean([a + b + shared * both for a, row in rows for b, both in zip(other, row, strict=True)])


def groups(classes: Iterable[Alike], failures: Sequence[Failure], q: float) -> list[Group]:
    """All nodes' hypotheses. The order of `classes` does not matter."""
    odds = Odds.of(q)
    table = {alike: odds.of_node(alike) for alike in classes}
    single = {alike: _log_mean(row) for alike, row in table.items()}
    tied = [alike for alike, value in single.items() if value > 0 and alike.failed]
    alone = [alike for alike, value in single.items() if value <= 0 or not alike.failed]
    result = [_alone(alike._replace(nodes=(node,)), single[alike]) for alike in alone for node in alike.nodes]
    left = MOST_PAIRS
    for members in sorted(_tied_together(tied), key=lambda found: _strength(found, single)):
        strongest = sorted(members, key=lambda alike: (-single[alike] - log(len(alike.nodes)), alike.nodes))
        width = min(MOST_IN_PAIRS, len(strongest), (isqrt(8 * left + 1) - 1) // 2)
        left -= width * (width + 1) // 2
        result.append(_weigh(strongest, width, table, single, failures, odds))
    return result


def _alone(alike: Alike, single: float) -> Group:
    value = _LOG_RHO + single
    bad = 1 / (1 + exp(-value)) if value > -700 else 0.0
    return Group((alike,), 1 - bad, (bad,), {})


def _tied_together(classes: Sequence[Alike]) -> list[list[Alike]]:
    """Classes that share a failure, directly or through others: union-find over the failures."""
    root: dict[int, int] = {}

    def find(index: int) -> int:
        while root.setdefault(index, index) != index:
            root[index] = index = root[root[index]]
        return index

    for alike in classes:
        first = find(alike.failed[0])
        for index in alike.failed[1:]:
            root[find(index)] = first
    found: dict[int, list[Alike]] = defaultdict(list)
    for alike in classes:
        found[find(alike.failed[0])].append(alike)
    return list(found.values())


def _strength(members: Sequence[Alike], single: Mapping[Alike, float]) -> tuple[float, tuple[str, ...]]:
    return min((-single[alike], alike.nodes) for alike in members)


def _weigh(
    classes: Sequence[Alike],
    width: int,
    table: Mapping[Alike, tuple[float, ...]],
    single: Mapping[Alike, float],
    failures: Sequence[Failure],
    odds: Odds,
) -> Group:
    """One group: the odds of every hypothesis, then divided by their sum. The first `width` classes form pairs."""
    ones = [_LOG_RHO + single[alike] for alike in classes]
    sets = [frozenset(alike.failed) for alike in classes[:width]]
    twos: dict[tuple[int, int], float] = {}
    for i, one in enumerate(classes[:width]):
        for j in range(i, width):
            other = classes[j]
            if i == j and len(one.nodes) == 1:
                continue
            shared = one.against if i == j else _shared(one, other, sets[i] & sets[j], failures)
            twos[i, j] = 2 * _LOG_RHO + odds.of_pair(table[one], table[other], shared)
    top = max(0.0, *ones, *twos.values())
    none, one_each = exp(-top), tuple(exp(value - top) for value in ones)
    two_each = {pair: exp(value - top) for pair, value in twos.items()}
    total = Group(tuple(classes), none, one_each, two_each).total
    return Group(
        tuple(classes),
        none / total,
        tuple(value / total for value in one_each),
        {pair: value / total for pair, value in two_each.items()},
    )


def _shared(one: Alike, other: Alike, indices: frozenset[int], failures: Sequence[Failure]) -> float:
    """n_ij: never more than either of the two counts itself."""
    return min(one.against, other.against, counted(sorted(indices), failures)) if indices else 0.0


def counted(
    indices: Iterable[int], failures: Sequence[Failure], boot: float = -inf, spent: Mapping[str, float] | None = None
) -> float:
    """n: the weight of failures on one node, no user's beyond his `most`.

    What ended before the node's last boot counts half. `spent`: what of each user's part is used up already.
    """
    by_user: dict[str, float] = {}
    most: dict[str, float] = {}
    for index in indices:
        end, weight, user, limit = failures[index]
        by_user[user] = by_user.get(user, 0.0) + (weight if end > boot else weight / 2)
        most[user] = limit
    if spent:
        most = {user: max(limit - spent.get(user, 0.0), 0.0) for user, limit in most.items()}
    return sum(min(by_user[user], most[user]) for user in sorted(by_user))


def _log_mean(values: Sequence[float]) -> float:
    """log of the mean of exp of each."""
    top = max(values)
    return top + log(sum(exp(value - top) for value in values) / len(values))
