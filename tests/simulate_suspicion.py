"""How many restarts it takes to get a job off its bad nodes: `python -m tests.simulate_suspicion` prints the table.

The real attribute/suspicion.py and decide/spare_nodes.py, on simulated attempts:

- A cluster of N nodes. A job takes 3/4 of them; the others are its partition's idle spare nodes. The job goes on in
  slices of its time limit, and ends with its GOOD_ENDth good attempt, or after MOST_ATTEMPTS.
- One or two nodes are bad, drawn among those of the first attempt. An attempt fails by each bad node in it with the
  probability f, and by other causes with 2 %.
- As Slurm does, the job gets its former nodes again where they are not excluded, and else the first free ones of an
  order that is fixed. After a good attempt its exclusions stay.
- "busy": beside each attempt, every node that it does not use has, with the probability 1/2, run a job of one node, of
  one of three other users, which failed or not by the same rules. They have ended when the job starts again.

The ways to choose the nodes to exclude after a failed attempt, never more than the job could start without:

- suspicion: `avoid(suspicions(...))`, anew for each restart, with recovery.conf's defaults. No log names a node.
- random: one node more of the failed attempt, any. Where there would be too many, the oldest exclusion goes.
- last named: only the node that the log names. It is a victim: any node of the attempt, each as likely.
- all named: every node that a log named, as for "random"; but one failure in four by a bad node names that very node.
- nothing: no node is excluded.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from statistics import mean
from typing import NamedTuple

from slurm_recovery.attribute.suspicion import suspicions
from slurm_recovery.config.settings import Settings
from slurm_recovery.decide.spare_nodes import avoid
from slurm_recovery.records import Run

OTHER_CAUSES = 0.02
GOOD_END = 10
MOST_ATTEMPTS = 60
NAMED_RIGHTLY = 0.25
SLICE = 3600.0
SEEDS = 200
SIZES, BAD, FAILS = (8, 64, 512), (1, 2), (1.0, 0.5, 0.2)


class Cluster(NamedTuple):
    """One draw: the nodes in Slurm's order, which are bad, and how bad."""

    nodes: tuple[str, ...]
    wanted: int
    bad: frozenset[str]
    fails: float
    busy: bool
    seed: int

    @classmethod
    def draw(cls, size: int, bad: int, fails: float, busy: bool, seed: int) -> Cluster:
        chance = random.Random(f"{size} {bad} {fails} {busy} {seed}")
        nodes = tuple(f"n{index}" for index in range(size))
        wanted = size * 3 // 4
        return cls(nodes, wanted, frozenset(chance.sample(nodes[:wanted], bad)), fails, busy, seed)

    def placed(self, before: Iterable[str], excluded: Iterable[str]) -> tuple[str, ...]:
        """The nodes of the job's next attempt."""
        out = set(excluded)
        order = dict.fromkeys((*before, *self.nodes))
        return tuple(node for node in order if node not in out)[: self.wanted]

    def cause(self, nodes: Iterable[str], chance: random.Random) -> str | None:
        """What made an attempt on these nodes fail: a bad node, "" for something else; None: it ended well."""
        culprits = [node for node in nodes if node in self.bad and chance.random() < self.fails]
        if culprits:
            return culprits[0]
        return "" if chance.random() < OTHER_CAUSES else None


class Attempt(NamedTuple):
    nodes: tuple[str, ...]
    good: bool
    excluded: tuple[str, ...]
    named: str  # by the log of a failed one


class Result(NamedTuple):
    """One job's life."""

    to_first_good: int  # restarts before the first good attempt
    restarts: int
    to_clean: int | None  # restarts until its nodes were free of bad ones and stayed so; None: they never were
    healthy_excluded: int  # at its end


Choose = Callable[[Cluster, list[Attempt], list[Run], random.Random], tuple[str, ...]]


def by_suspicion(cluster: Cluster, attempts: list[Attempt], runs: list[Run], chance: random.Random) -> tuple[str, ...]:
    settings = Settings()
    last = attempts[-1].nodes
    spares = set(cluster.nodes) - set(last)
    seen = suspicions(runs, runs[-1].end_time + 60, settings.suspicion_half_life, whose="owner")
    unexplained = sum(not attempt.good for attempt in attempts)
    found = avoid(seen, last, spares, settings.suspicion_exclude, unexplained, job_id=cluster.seed)
    return tuple(one.node for one in found)[: len(cluster.nodes) - cluster.wanted]


def by_chance(cluster: Cluster, attempts: list[Attempt], runs: list[Run], chance: random.Random) -> tuple[str, ...]:
    return _and(cluster, attempts[-1].excluded, chance.choice(attempts[-1].nodes))


def by_last_named(cluster: Cluster, attempts: list[Attempt], runs: list[Run], chance: random.Random) -> tuple[str, ...]:
    return (chance.choice(attempts[-1].nodes),)


def by_all_named(cluster: Cluster, attempts: list[Attempt], runs: list[Run], chance: random.Random) -> tuple[str, ...]:
    return _and(cluster, attempts[-1].excluded, attempts[-1].named)


def by_nothing(cluster: Cluster, attempts: list[Attempt], runs: list[Run], chance: random.Random) -> tuple[str, ...]:
    return ()


def _and(cluster: Cluster, excluded: tuple[str, ...], node: str) -> tuple[str, ...]:
    return (*excluded, node)[-(len(cluster.nodes) - cluster.wanted) :]


WAYS: dict[str, Choose] = {
    "suspicion": by_suspicion,
    "random": by_chance,
    "last named": by_last_named,
    "all named": by_all_named,
    "nothing": by_nothing,
}


def live(cluster: Cluster, choose: Choose) -> Result:
    """One job from its start to its end."""
    chance = random.Random(f"live {cluster.seed}")
    attempts: list[Attempt] = []
    runs: list[Run] = []
    nodes, excluded = cluster.placed((), ()), tuple[str, ...]()
    while len(attempts) < MOST_ATTEMPTS and sum(attempt.good for attempt in attempts) < GOOD_END:
        cause = cluster.cause(nodes, chance)
        rightly = bool(cause) and chance.random() < NAMED_RIGHTLY
        named = cause if cause and rightly else chance.choice(nodes)
        attempts.append(Attempt(nodes, cause is None, excluded, named))
        end = SLICE * len(attempts)
        if cluster.busy:
            runs += _of_others(cluster, set(nodes), end, len(runs), chance)
        runs.append(_run("owner", 1, len(attempts), nodes, end, cause is None))
        if cause is not None:
            excluded = choose(cluster, attempts, runs, chance)
        nodes = cluster.placed(nodes, excluded)
    return _result(cluster, attempts)


def _of_others(cluster: Cluster, taken: set[str], end: float, count: int, chance: random.Random) -> Iterator[Run]:
    for index, node in enumerate(cluster.nodes):
        if node not in taken and chance.random() < 0.5:
            good = cluster.cause([node], chance) is None
            yield _run(f"user{chance.randrange(3)}", 1000 + count + index, 0, (node,), end, good)


def _run(user: str, job: int, restart: int, nodes: tuple[str, ...], end: float, good: bool) -> Run:
    return Run(
        cluster="simulated",
        job_id=job,
        label=str(job),
        restart_count=restart,
        start_time=end - SLICE,
        end_time=end,
        user=user,
        nodes=nodes,
        good=good,
        reason="" if good else "nccl_timeout",
    )


def _result(cluster: Cluster, attempts: list[Attempt]) -> Result:
    until = 1 + max(index for index, attempt in enumerate(attempts) if cluster.bad & set(attempt.nodes))
    return Result(
        to_first_good=next((index for index, attempt in enumerate(attempts) if attempt.good), len(attempts)),
        restarts=sum(not attempt.good for attempt in attempts),
        to_clean=sum(not attempt.good for attempt in attempts[:until]) if until < len(attempts) else None,
        healthy_excluded=len(set(attempts[-1].excluded) - cluster.bad),
    )


def results(size: int, bad: int, fails: float, busy: bool, way: str, seeds: int) -> list[Result]:
    return [live(Cluster.draw(size, bad, fails, busy, seed), WAYS[way]) for seed in range(seeds)]


def cell(found: list[Result]) -> str:
    first = mean(one.to_first_good for one in found)
    every = mean(one.restarts for one in found)
    clean = sum(one.to_clean is not None for one in found) / len(found)
    return f"{first:.1f} / {every:.1f} / {clean:.0%} / {mean(one.healthy_excluded for one in found):.1f}"


def table(seeds: int, sizes: Iterable[int] = SIZES) -> Iterator[str]:
    yield "| " + " | ".join(("nodes", "bad", "f", "spare nodes", *WAYS)) + " |"
    yield "|---" * (4 + len(WAYS)) + "|"
    for size, bad, fails, busy in product(sizes, BAD, FAILS, (False, True)):
        cells = (cell(results(size, bad, fails, busy, way, seeds)) for way in WAYS)
        yield "| " + " | ".join((str(size), str(bad), str(fails), "busy" if busy else "idle", *cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    for line in table(arguments.seeds, arguments.sizes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
