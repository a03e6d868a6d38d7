"""How far each node is suspected of spoiling the attempts that it serves, from the ledger of attempts.

Owns what counts for and against a node, and for how much; the inference is hypotheses.py's. What follows from a
suspicion is decided elsewhere: decide/spare_nodes.py, decide/isolation.py.

What counts:

- **A good attempt** exonerates all its nodes; one shorter than FULL_RUN in proportion to its length, for a node that
  breaks training lets `hostname` pass.
- **A failed attempt** whose reason is of a category in OF_NODES (hardware, interconnect, node, unknown: also a hang, a
  collective that timed out, processes killed by nobody) counts against all its nodes.
- **A failed attempt with `blamed` nodes** is explained: it counts against them (see FALSE_BLAME: much more) and against
  no other.
- Failures that are the job's, its user's, the software's or a shared file system's say nothing of nodes, neither for
  nor against: a node that breaks often looks like a job that broke. Neither does one that is not judged yet.

For how much:

- With age: an attempt that ended `half_life` ago counts half, and nothing beyond HALF_LIVES of them.
- `since`: what ended before (another instance id, an administrator's resume, `srecover release`) is no more this
  node's. It stays that of the node's former self, so that what it explained is not laid upon its neighbours now.
- `boots`: what ended before the node's last boot counts half. A reboot cures some faults and not others.
- Of one user: his failed attempts together count on one node as one (OF_ONE_USER), his good ones as
  GOOD_OF_ONE_USER. Whoever fails a hundred jobs on purpose, or for a fault of his own, does not get a node
  avoided by others: one user's word stays below 0.34 (see LEAST_OTHER_CAUSES); two or three independent ones raise it
  beyond half. For `whose` own jobs his own attempts count in full: there he harms nobody but himself.

q, the share of attempts that fail for other causes, is estimated from the runs. Only those count that had a node with
an earlier failure: of the others the good ones may be missing, for the ledger is of suspected nodes. Each job has its
share of failed attempts, so that one that fails ten times in a row is one job; each user the mean of his jobs, with the
weight of as many, but JOBS_OF_ONE_USER at most; the mean over the users is shrunk towards OTHER_CAUSES as if that had
been seen in SHRINK jobs besides. It is estimated twice: the second time a failure counts for it only as far as the
posterior of the first does not lay it upon a node (a step of expectation and maximisation). So bad nodes do not hide
behind the failures that they make, and in a day when everything fails a failure says little.

Cost: linear in the runs' nodes. The newest MOST_MEMBERSHIPS of them are looked at (an attempt of 500 nodes has 500); of
10,000 nodes and 5000 runs that is less than two seconds. The order of the runs does not matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import NamedTuple

from slurm_recovery.attribute.hypotheses import Alike, Failure, counted, groups
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.records import Category, Run

OF_NODES = frozenset({Category.HARDWARE, Category.INTERCONNECT, Category.NODE, Category.UNKNOWN})
OF_ONE_USER = 1.0
GOOD_OF_ONE_USER = 5.0
FULL_RUN = 600.0  # seconds
OTHER_CAUSES = 0.05
SHRINK = 50
JOBS_OF_ONE_USER = 10
WORTH_ASKING = 0.01  # a smaller posterior explains no failure
# BASE_RATE * mean of c(f) at this q is 0.1, and of b(f) 0.3: what one user can do to a node.
LEAST_OTHER_CAUSES, MOST_OTHER_CAUSES = 0.02, 0.95
HALF_LIVES = 8
MOST_MEMBERSHIPS = 500_000

_FORMER = "\0"  # behind a node's name: what it was before `since`


class Suspicion(NamedTuple):
    """A node that served at least one attempt that counts against it, and the numbers behind."""

    node: str
    posterior: float
    failed: int  # attempts that count against it
    good: int
    users: int  # of the failed attempts
    jobs: int
    last: float  # when the last of them ended
    blamed: int = 0  # of the failed attempts: those whose evidence named it

    @property
    def because(self) -> str:
        named = f", named in {self.blamed}" if self.blamed else ""
        return (
            f"{self.posterior:.0%}: in {self.failed} failed attempts ({self.jobs} jobs, {self.users} users{named}) "
            f"and {self.good} good ones"
        )


class _Counted(NamedTuple):
    run: Run
    weight: float
    nodes: frozenset[str]  # that it counts for or against: as they are now, or their former selves


def suspicions(
    runs: Iterable[Run],
    now: float,
    half_life: float,
    *,
    since: Mapping[str, float] | None = None,
    boots: Mapping[str, float] | None = None,
    whose: str = "",
) -> tuple[Suspicion, ...]:
    """All nodes that a counting failure touched, the most suspected first.

    `now`, `since` and `boots` ({node: when}) are seconds since the epoch, `half_life` seconds. `whose`: the user for
    whose jobs is asked; "" for all, as for a drain.
    """
    kept = _counted(runs, now, max(half_life, 1.0), since or {})
    failed = [one for one in kept if not one.run.good]
    touched = frozenset[str]().union(*(one.nodes for one in failed))
    good = [one._replace(nodes=one.nodes & touched) for one in kept if one.run.good]
    failures = [one for one in failed if not one.run.blamed]
    rows = [Failure(one.run.end_time, one.weight, one.run.user, _most(one.run, whose, OF_ONE_USER)) for one in failures]
    oldest = min((one.run.end_time for one in kept), default=inf)
    last_boots = {node: when for node, when in (boots or {}).items() if when >= oldest and node in touched}
    blamed = _of_users([one for one in failed if one.run.blamed], last_boots, whose, OF_ONE_USER)
    praised = _of_users(good, last_boots, whose, GOOD_OF_ONE_USER)
    classes = _classes(touched, failures, rows, last_boots, blamed, praised)
    posterior = _posterior(classes, rows, _other_causes(kept, {}))
    posterior = _posterior(classes, rows, _other_causes(kept, posterior))
    return _told(posterior, failed, good)


def counts(run: Run) -> bool:
    """Whether a run says anything of its nodes."""
    reason = REASONS.get(run.reason)
    return run.good or bool(run.blamed) or (reason is not None and reason.category in OF_NODES)


def _counted(runs: Iterable[Run], now: float, half_life: float, since: Mapping[str, float]) -> list[_Counted]:
    """Runs that count, the newest first, as many as MOST_MEMBERSHIPS allow."""
    usable = (run for run in runs if isfinite(run.end_time) and now - run.end_time <= HALF_LIVES * half_life)
    left = MOST_MEMBERSHIPS
    changes = sorted(since.items(), key=lambda change: change[1])
    changed: set[str] = set()  # since the run at hand ended: it grows, for the runs become older
    kept: list[_Counted] = []
    for run in sorted((run for run in usable if counts(run)), key=_newest_first):
        left -= len(run.nodes)
        if left < 0:
            break
        weight = 0.5 ** (max(now - run.end_time, 0.0) / half_life)
        if run.good and run.start_time is not None and isfinite(run.start_time):
            weight *= min(max(run.end_time - run.start_time, 0.0) / FULL_RUN, 1.0)
        while changes and changes[-1][1] >= run.end_time:
            changed.add(changes.pop()[0])
        nodes = frozenset(run.nodes)
        if run.blamed and not run.good:
            nodes &= frozenset(run.blamed)
        former = nodes & changed
        kept.append(_Counted(run, weight, (nodes - former).union(node + _FORMER for node in former)))
    return kept


def _newest_first(run: Run) -> tuple[float, int, int, str, str, tuple[str, ...]]:
    return -run.end_time, run.job_id, run.restart_count, run.label, run.user, run.nodes


def _most(run: Run, whose: str, limit: float) -> float:
    return inf if whose and run.user == whose else limit


def _posterior(classes: Sequence[Alike], rows: Sequence[Failure], q: float) -> dict[str, float]:
    return {
        node: value
        for group in groups(classes, rows, q)
        for alike, value in zip(group.classes, group.posterior, strict=True)
        for node in alike.nodes
    }


def _other_causes(kept: Sequence[_Counted], posterior: Mapping[str, float]) -> float:
    """q. `posterior`: as far as it is known already."""
    suspects = frozenset(node for node, value in posterior.items() if value >= WORTH_ASKING)
    of_job: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    failed_before: set[str] = set()
    for run, _, nodes in reversed(kept):
        chosen = not failed_before.isdisjoint(nodes)
        if not run.good:
            failed_before |= nodes
        if not chosen:
            continue
        if run.good:
            of_job[run.user, run.job_id, run.label].append(0.0)
        elif not run.blamed:
            explained = max((posterior[node] for node in nodes & suspects), default=0.0)
            of_job[run.user, run.job_id, run.label].append(1 - explained)
    of_user: dict[str, list[float]] = defaultdict(list)
    for (user, _, _), shares in sorted(of_job.items()):
        of_user[user].append(sum(shares) / len(shares))
    weights = {user: min(len(jobs), JOBS_OF_ONE_USER) for user, jobs in of_user.items()}
    failed = sum(weights[user] * sum(jobs) / len(jobs) for user, jobs in of_user.items())
    q = (SHRINK * OTHER_CAUSES + failed) / (SHRINK + sum(weights.values()))
    return min(max(q, LEAST_OTHER_CAUSES), MOST_OTHER_CAUSES)


def _of_users(
    counted_runs: Iterable[_Counted], boots: Mapping[str, float], whose: str, limit: float
) -> dict[str, dict[str, float]]:
    """{node: {user: weight of his runs on it}}, none beyond what one user counts."""
    by_user: dict[str, dict[str, float]] = defaultdict(dict)
    most: dict[str, float] = {}
    for run, weight, nodes in counted_runs:
        of_user = by_user[run.user]
        most[run.user] = _most(run, whose, limit)
        for node in nodes:
            of_user[node] = of_user.get(node, 0.0) + weight
        for node in nodes & boots.keys():
            if boots[node] >= run.end_time:
                of_user[node] -= weight / 2
    of_node: dict[str, dict[str, float]] = defaultdict(dict)
    for user, weights in by_user.items():
        for node, weight in weights.items():
            of_node[node][user] = min(weight, most[user])
    return of_node


def _classes(
    touched: Iterable[str],
    failures: Sequence[_Counted],
    rows: Sequence[Failure],
    boots: Mapping[str, float],
    blamed: Mapping[str, Mapping[str, float]],
    praised: Mapping[str, Mapping[str, float]],
) -> list[Alike]:
    """Nodes put together by their record."""
    indices: dict[str, list[int]] = {node: [] for node in touched}
    for index, one in enumerate(failures):
        for node in one.nodes:
            indices[node].append(index)
    nothing: Mapping[str, float] = {}
    same: dict[tuple[tuple[int, ...], float, float, tuple[tuple[str, float], ...]], list[str]] = defaultdict(list)
    for node, failed in indices.items():
        by_user = praised.get(node, nothing)
        good = sum(by_user[user] for user in sorted(by_user))
        spent = tuple(sorted(blamed.get(node, nothing).items()))
        same[tuple(failed), boots.get(node, -inf), round(good, 9), spent].append(node)
    return [
        Alike(
            tuple(sorted(nodes)),
            failed,
            counted(failed, rows, boot, dict(spent)),
            sum(weight for _, weight in spent),
            good,
        )
        for (failed, boot, good, spent), nodes in same.items()
    ]


def _told(
    posterior: Mapping[str, float], failed: Sequence[_Counted], good: Sequence[_Counted]
) -> tuple[Suspicion, ...]:
    """The posterior with the numbers behind it."""
    goods: Counter[str] = Counter()
    for one in good:
        goods.update(one.nodes)
    bads: Counter[str] = Counter()
    named: Counter[str] = Counter()
    users: dict[str, set[str]] = defaultdict(set)
    jobs: dict[str, set[str]] = defaultdict(set)
    last: dict[str, float] = {}
    for run, _, nodes in reversed(failed):
        bads.update(nodes)
        if run.blamed:
            named.update(nodes)
        last.update(dict.fromkeys(nodes, run.end_time))
        for node in nodes:
            users[node].add(run.user)
            jobs[node].add(run.label)
    told = [
        Suspicion(node, value, bads[node], goods[node], len(users[node]), len(jobs[node]), last[node], named[node])
        for node, value in posterior.items()
        if not node.endswith(_FORMER)
    ]
    return tuple(sorted(told, key=lambda one: (-one.posterior, one.node)))
