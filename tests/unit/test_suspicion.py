"""How far nodes are suspected, which of them a restart avoids, and how soon that finds a bad one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod
from statistics import mean

import pytest

from slurm_recovery.attribute import hypotheses, suspicion
from slurm_recovery.attribute.hypotheses import BASE_RATE, FAILS, Alike, Failure, groups
from slurm_recovery.attribute.suspicion import Suspicion, suspicions
from slurm_recovery.decide.spare_nodes import ALIKE, avoid
from slurm_recovery.records import Run
from tests.simulate_suspicion import Attempt, Cluster, by_suspicion, results

NOW = 1_000_000.0
HALF_LIFE = 3 * 86400.0
HOUR = 3600.0


def run(
    *nodes: str,
    good: bool = False,
    reason: str = "hang",
    blamed: Iterable[str] = (),
    user: str = "ann",
    job: int = 1,
    restart: int = 0,
    age: float = HOUR,
    length: float | None = HOUR,
) -> Run:
    end = NOW - age
    return Run(
        cluster="c",
        job_id=job,
        label=str(job),
        restart_count=restart,
        start_time=None if length is None else end - length,
        end_time=end,
        user=user,
        nodes=nodes,
        good=good,
        reason="" if good else reason,
        blamed=tuple(blamed),
    )


def posterior(runs: Iterable[Run], **more: object) -> dict[str, float]:
    return {one.node: one.posterior for one in suspicions(runs, NOW, HALF_LIFE, **more)}  # type: ignore[arg-type]


# The model


def likelihood(failed: bool, fails: Iterable[float], q: float) -> float:
    good = (1 - q) * prod(1 - f for f in fails)
    return 1 - good if failed else good


def enumerated(nodes: Sequence[str], runs: Sequence[tuple[set[str], bool]], q: float) -> dict[str, float]:
    """The posterior by the plain formulas: every hypothesis, every way in which its nodes may be bad."""
    weight: dict[tuple[str, ...], float] = {}
    for bad in [(), *combinations(nodes, 1), *combinations(nodes, 2)]:
        prior = BASE_RATE ** len(bad) * (1 - BASE_RATE) ** (len(nodes) - len(bad))
        ways = list(product(FAILS, repeat=len(bad)))
        weight[bad] = prior * mean(
            prod(likelihood(failed, (f for node, f in zip(bad, way, strict=True) if node in on), q)
                 for on, failed in runs)
            for way in ways
        )  # fmt: skip
    total = sum(weight.values())
    return {node: sum(value for bad, value in weight.items() if node in bad) / total for node in nodes}


def answered(nodes: Sequence[str], runs: Sequence[tuple[set[str], bool]], q: float) -> dict[str, float]:
    failures = [on for on, failed in runs if failed]
    rows = [Failure(0.0, 1.0, "ann", 1e9) for _ in failures]
    classes: dict[tuple[tuple[int, ...], int], list[str]] = {}
    for node in nodes:
        indices = tuple(index for index, on in enumerate(failures) if node in on)
        classes.setdefault((indices, sum(node in on for on, failed in runs if not failed)), []).append(node)
    alike = [Alike(tuple(names), key, len(key), 0.0, good) for (key, good), names in classes.items()]
    found = groups(alike, rows, q)
    assert all(abs(group.total - 1) < 1e-9 for group in found)
    return {
        node: p for group in found for one, p in zip(group.classes, group.posterior, strict=True) for node in one.nodes
    }


@pytest.mark.parametrize("seed", range(40))
def test_the_posterior_is_that_of_all_hypotheses_written_out(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [f"n{index}" for index in range(chance.randint(2, 7))]
    core = nodes[0]  # in every failed attempt, so that all nodes belong to one group
    runs = [({core, *chance.sample(nodes, chance.randint(1, len(nodes)))}, True) for _ in range(chance.randint(2, 6))]
    runs[0] = (set(nodes), True)
    q = chance.uniform(0.02, 0.3)
    if chance.random() < 0.5:
        runs.append(({core}, False))
    expected, got = enumerated(nodes, runs, q), answered(nodes, runs, q)
    assert got == pytest.approx(expected, rel=1e-9)


def test_groups_that_share_no_failure_are_independent() -> None:
    left = [({"a", "b"}, True), ({"a", "c"}, True)]
    right = [({"x", "y"}, True), ({"x", "z"}, True), ({"x"}, True)]
    both = answered("abcxyz", left + right, 0.05)
    assert both == pytest.approx(enumerated("abc", left, 0.05) | enumerated("xyz", right, 0.05), rel=1e-9)


def test_more_than_two_nodes_may_be_bad_where_no_failure_ties_them() -> None:
    runs = [run(f"n{index}", user=f"u{user}", job=10 * index + user) for index in range(6) for user in range(5)]
    found = posterior([*runs, *others(100)])
    assert all(found[f"n{index}"] > 0.9 for index in range(6))


def test_the_probabilities_of_all_hypotheses_sum_to_one() -> None:
    chance = random.Random(3)
    nodes = [f"n{index}" for index in range(200)]
    failures = [Failure(0.0, chance.random(), f"u{index % 7}", 1.0) for index in range(40)]
    classes = [
        Alike((node, f"{node}b"), tuple(sorted(chance.sample(range(40), 3))), 2.0, chance.choice([0.0, 1.0]), 0.3)
        for node in nodes
    ]
    found = groups(classes, failures, 0.05)
    assert len({node for group in found for alike in group.classes for node in alike.nodes}) == 400
    assert any(group.two for group in found)
    for group in found:
        assert group.total == pytest.approx(1, abs=1e-9)


def test_the_order_of_runs_does_not_matter() -> None:
    chance = random.Random(5)
    names = [f"n{index}" for index in range(30)]
    runs = [
        run(
            *chance.sample(names, chance.randint(1, 20)),
            good=chance.random() < 0.4,
            user=f"u{index % 4}",
            job=index,
            age=HOUR * chance.randint(1, 90),
            blamed=[chance.choice(names)] if chance.random() < 0.2 else [],
        )
        for index in range(60)
    ]
    wanted = suspicions(runs, NOW, HALF_LIFE)
    for _ in range(5):
        chance.shuffle(runs)
        assert suspicions(runs, NOW, HALF_LIFE) == wanted


# What counts


def test_one_failure_of_eight_nodes_makes_none_of_them_likely() -> None:
    found = posterior([run(*"abcdefgh")])
    assert len(found) == 8
    assert len(set(found.values())) == 1
    assert BASE_RATE < found["a"] < 0.1


def test_the_node_in_every_failure_stands_out() -> None:
    runs = [run("bad", f"x{index}", f"y{index}", user=f"u{index}", job=index) for index in range(4)]
    found = suspicions([*runs, *others(100)], NOW, HALF_LIFE)
    assert found[0].node == "bad"
    assert found[0].posterior > 0.9
    assert all(one.posterior < 0.1 for one in found[1:])
    assert (found[0].failed, found[0].good, found[0].users, found[0].jobs) == (4, 0, 4, 4)
    assert found[0].last == NOW - HOUR
    assert "4 failed attempts (4 jobs, 4 users)" in found[0].because


def test_a_good_attempt_exonerates_its_nodes_and_leaves_the_others() -> None:
    before = posterior([run("a", "b"), run("a", "b", restart=1)], whose="ann")
    after = posterior([run("a", "b"), run("a", "b", restart=1), run("a", good=True, job=2)], whose="ann")
    assert after["a"] < before["a"] / 2
    assert after["b"] > before["b"]


def test_many_good_attempts_leave_less_than_the_base_rate() -> None:
    runs = [run("a", "b"), *(run("a", good=True, user=f"u{index}", job=index) for index in range(20))]
    assert posterior(runs)["a"] < BASE_RATE


def test_a_short_good_attempt_says_little() -> None:
    failed = [*others(300), run("a", restart=0), run("a", restart=1)]
    none = posterior(failed, whose="ann")["a"]
    short = posterior([*failed, run("a", good=True, job=2, length=10)], whose="ann")["a"]
    long = posterior([*failed, run("a", good=True, job=2, length=HOUR)], whose="ann")["a"]
    unknown = posterior([*failed, run("a", good=True, job=2, length=None)], whose="ann")["a"]
    assert long < short < none
    assert none - short < (none - long) / 5
    assert unknown == long


def test_blame_explains_a_failure_away() -> None:
    found = posterior([run("a", "b", "c", blamed=["b"])])
    assert set(found) == {"b"}
    assert found["b"] > 0.2
    unexplained = run("a", "b", "c", user="bob", job=2)
    after = posterior([run("a", "b", "c", blamed=["b"]), unexplained])
    alone = posterior([unexplained])
    assert after["b"] > alone["b"]
    assert after["a"] < alone["a"], "the node that is known to be bad explains this failure, too"


def test_blamed_nodes_that_are_not_of_the_attempt_count_for_nothing() -> None:
    assert posterior([run("a", "b", blamed=["elsewhere"])]) == {}


@pytest.mark.parametrize(
    "reason",
    ["", *"python_exception cuda_oom time_limit cancelled_by_user import_error filesystem_io disk_full none".split()],
)
def test_failures_of_others_say_nothing_of_nodes(reason: str) -> None:
    assert posterior([run("a", reason=reason)]) == {}
    other = [run("a"), run("b", good=True, job=2)]
    assert posterior([*other, run("a", reason=reason, job=3)]) == posterior(other)


@pytest.mark.parametrize(
    "reason", ["hang", "nccl_timeout", "unknown", "killed_unknown", "node_fail", "gpu_fell_off_bus", "ib_link_error"]
)
def test_failures_that_nodes_can_cause_count(reason: str) -> None:
    assert posterior([run("a", reason=reason)])["a"] > BASE_RATE


def test_blame_counts_whatever_the_reason() -> None:
    assert posterior([run("a", reason="filesystem_io", blamed=["a"])])["a"] > 0.2


# For how much


def test_old_attempts_fade_and_go() -> None:
    ages = [HOUR, HALF_LIFE, 3 * HALF_LIFE, 7 * HALF_LIFE]
    found = [posterior([run("a", age=age), run("a", age=age, restart=1)], whose="ann")["a"] for age in ages]
    assert found == sorted(found, reverse=True)
    assert found[0] > 10 * found[-1]
    assert posterior([run("a", age=9 * HALF_LIFE)]) == {}


def test_an_attempt_one_half_life_old_weighs_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "SHRINK", 1e12)  # two attempts say more of other causes than one does
    old = posterior([run("a", age=HALF_LIFE), run("a", age=HALF_LIFE, restart=1)], whose="ann")
    new = posterior([run("a", age=0)], whose="ann")
    assert old["a"] == pytest.approx(new["a"], rel=1e-9)


def test_what_was_before_the_node_was_renewed_is_no_more_its_own() -> None:
    runs = [run("a", "b", user=f"u{index}", job=index, age=2 * HOUR) for index in range(4)]
    assert posterior(runs, since={"a": NOW - HOUR}).keys() == {"b"}
    runs.append(run("a", age=HOUR / 2, job=9))
    found = suspicions(runs, NOW, HALF_LIFE, since={"a": NOW - HOUR})
    assert next(one for one in found if one.node == "a").failed == 1


def test_what_a_renewed_node_explained_is_not_laid_upon_its_neighbours() -> None:
    runs = [run("a", f"x{index}", "b", user=f"u{index}", job=index, age=2 * HOUR) for index in range(4)]
    runs += [*others(100), *(run("b", good=True, user=f"v{index}", job=20 + index) for index in range(4))]
    before, after = posterior(runs), posterior(runs, since={"a": NOW - HOUR})
    assert before["a"] > 0.8
    assert after["b"] == pytest.approx(before["b"])
    assert after["x0"] == pytest.approx(before["x0"])


def test_what_was_before_a_reboot_counts_half() -> None:
    runs = [run("a", user=f"u{index}", job=index, age=2 * HOUR) for index in range(3)]
    plain, rebooted = posterior(runs)["a"], posterior(runs, boots={"a": NOW - HOUR})["a"]
    assert BASE_RATE < rebooted < plain / 2
    assert posterior(runs, boots={"a": NOW - 3 * HOUR})["a"] == plain
    good = [*runs[:1], *(run("a", good=True, user=f"v{index}", job=20 + index, age=2 * HOUR) for index in range(9))]
    plain, rebooted = posterior(good)["a"], posterior(good, boots={"a": NOW - HOUR})["a"]
    assert plain < rebooted < BASE_RATE, "a good attempt, too, counts half"


# Whose word


def others(count: int) -> list[Run]:
    """Good attempts of nine other users, on nodes that a failure long ago has put on record."""
    nodes = [f"m{index}" for index in range(10)]
    first = run(*nodes, user="w", job=4999, age=2 * HALF_LIFE)
    return [
        first,
        *(run(nodes[index % 10], good=True, user=f"w{index % 9}", job=5000 + index) for index in range(count)),
    ]


@pytest.mark.parametrize("blamed", [[], ["a"]])
@pytest.mark.parametrize("quiet", [0, 2000])
def test_one_user_who_fails_a_hundred_jobs_gets_no_node_avoided_by_others(blamed: list[str], quiet: int) -> None:
    attack = [run("a", user="eve", job=index, blamed=blamed if index % 2 else []) for index in range(100)]
    found = next(one for one in suspicions([*attack, *others(quiet)], NOW, HALF_LIFE) if one.node == "a")
    assert found.users == 1
    assert found.posterior < 0.34
    assert not avoid([found], ["a", "b"], ["c"], 0.5, 1, 7)


def test_independent_users_raise_it_beyond_half_and_then_to_a_drains() -> None:
    quiet = others(300)
    counted = [
        posterior([*quiet, *(run("a", user=f"u{user}", job=user) for user in range(users))])["a"]
        for users in (1, 2, 3, 4)
    ]
    assert counted[0] < 0.2
    assert counted[1] > 0.5
    assert counted[3] > 0.95
    assert counted == sorted(counted)


def test_ones_own_failures_count_in_full_for_ones_own_jobs() -> None:
    runs = [run("a", "b", restart=index) for index in range(4)] + [run("b", good=True, job=2)]
    own, public = posterior(runs, whose="ann"), posterior(runs)
    assert own["a"] > 0.5 > public["a"]
    assert posterior(runs, whose="bob") == public
    assert posterior([one.model_copy(update={"user": ""}) for one in runs], whose="")["a"] < 0.5


def test_one_user_cannot_praise_a_bad_node_without_end() -> None:
    failed = [run("a", user=f"u{index}", job=index) for index in range(4)]
    some = posterior([*failed, *(run("a", good=True, user="eve", job=50 + index) for index in range(10))])["a"]
    many = posterior([*failed, *(run("a", good=True, user="eve", job=50 + index) for index in range(500))])["a"]
    assert many == pytest.approx(some, rel=0.01)


def test_where_most_attempts_fail_a_failure_says_little() -> None:
    runs = [run(f"n{index % 50}", user=f"u{index % 11}", job=index) for index in range(400)]
    assert max(posterior(runs).values()) < 0.1


def test_a_job_that_fails_again_and_again_is_one_job_for_the_share_of_failures() -> None:
    quiet = others(50)
    often = posterior([*quiet, *(run("a", restart=index) for index in range(30))])["a"]
    few = posterior([*quiet, *(run("a", restart=index) for index in range(3))])["a"]
    assert often == pytest.approx(few, rel=0.01)


def test_good_attempts_that_nobody_recorded_do_not_make_failures_look_common() -> None:
    """The ledger takes good attempts only of nodes that are suspected already."""
    first_failures = [run(f"x{index}", f"y{index}", user=f"w{index % 9}", job=100 + index) for index in range(60)]
    bad = [run("a", user=f"u{index}", job=index) for index in range(4)]
    assert posterior([*first_failures, *bad])["a"] == pytest.approx(posterior(bad)["a"], rel=0.01)


# Hostile and odd input, and cost


def test_odd_numbers_and_names_do_no_harm() -> None:
    odd = [
        run("a", age=float("nan")),
        run("a", age=float("inf")),
        run("a", age=float("-inf")),
        run("a", good=True, length=float("nan")),
        run("a", good=True, length=-5.0),
        run(),
        run("a", "a", "a"),
        run("", "\0", "a\0", "\udcff", "ä" * 300),
        run("a", age=-HOUR),
    ]
    for half_life in (0.0, -1.0, 1.0, HALF_LIFE):
        found = suspicions(odd, NOW, half_life, since={"x": float("nan")}, boots={"a": float("inf")})
        assert all(0 <= one.posterior <= 1 for one in found)
        assert avoid(found, ["a", "b"], ["c", "\udcff"], 0.5, 3, -1) is not None
    assert suspicions([], NOW, HALF_LIFE) == ()


def test_extreme_records_stay_probabilities() -> None:
    runs = [run("a", "b", "c", restart=index) for index in range(3000)]
    runs += [run("c", good=True, user=f"u{index}", job=9000 + index) for index in range(1500)]
    found = posterior(runs, whose="ann")
    assert all(0 <= p <= 1 for p in found.values())
    assert found["c"] < 1e-9 < found["a"]


def cluster_of(nodes: int, runs: int, sizes: Sequence[int], failing: float) -> list[Run]:
    chance = random.Random(nodes)
    names = [f"n{index}" for index in range(nodes)]
    made = []
    for index in range(runs):
        first = chance.randrange(nodes)
        on = (names * 2)[first : first + chance.choice(sizes)]
        good = chance.random() > failing
        blamed = on[:1] if not good and chance.random() < 0.1 else []
        made.append(run(*on, good=good, user=f"u{index % 50}", job=index, age=60.0 * index, blamed=blamed))
    return made


@pytest.mark.parametrize(
    ("nodes", "runs", "sizes", "failing", "bound"),
    [
        (512, 200, (384, 64, 8, 1), 0.3, 0.2),
        (512, 200, (384, 384, 64), 0.95, 0.2),
        (10_000, 5000, (1, 8, 64, 512), 0.3, 2.0),
        (10_000, 5000, (200,), 0.95, 2.0),
        (10_000, 5000, (10_000,), 0.5, 2.0),
        (10_000, 5000, (2,), 0.95, 2.0),
        (48, 5000, (24,), 1.0, 2.0),
    ],
)
def test_it_is_quick(nodes: int, runs: int, sizes: Sequence[int], failing: float, bound: float) -> None:
    made = cluster_of(nodes, runs, sizes, failing)
    since = {f"n{index}": NOW - 100 * 60.0 for index in range(nodes // 2)}
    boots = {f"n{index}": NOW - 50 * 60.0 for index in range(nodes)}
    took = []
    for _ in range(2):
        start = time.process_time()
        assert suspicions(made, NOW, HALF_LIFE, since=since, boots=boots)
        took.append(time.process_time() - start)
    assert min(took) < bound


def test_what_is_beyond_the_bound_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "MOST_MEMBERSHIPS", 3)
    found = suspicions([run("a", "b", age=HOUR), run("c", "d", age=2 * HOUR, job=2)], NOW, HALF_LIFE)
    assert {one.node for one in found} == {"a", "b"}


def test_pairs_are_bounded_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypotheses, "MOST_PAIRS", 10)
    failures = [Failure(0.0, 1.0, "ann", 9.0) for _ in range(20)]
    classes = [
        Alike((f"n{group}-{index}",), (2 * group, 2 * group + 1)[: 1 + index % 2], 1.0 + index, 0.0, 0.0)
        for group in range(10)
        for index in range(4)
    ]
    assert 0 < sum(len(group.two) for group in groups(classes, failures, 0.05)) <= 10


# Which nodes a restart avoids


def suspected(**nodes: float) -> tuple[Suspicion, ...]:
    told = [Suspicion(node, value, 1, 0, 1, 1, NOW) for node, value in nodes.items()]
    return tuple(sorted(told, key=lambda one: -one.posterior))


def names(found: Iterable[tuple[str, float]]) -> list[str]:
    return [node for node, _ in found]


def test_a_node_above_the_threshold_is_avoided_at_once() -> None:
    seen = suspected(a=0.7, b=0.5, c=0.49)
    for unexplained, spares in product((0, 1, 2), ((), ("x",))):
        assert names(avoid(seen, "abcd", spares, 0.5, unexplained, 7))[:2] == ["a", "b"]
    assert avoid(seen, "abcd", (), 0.5, 0, 7) == (("a", 0.7), ("b", 0.5))


def test_below_it_nobody_after_the_first_failure_and_nobody_without_spare_nodes() -> None:
    seen = suspected(a=0.4, b=0.3)
    assert avoid(seen, "abcd", "xyz", 0.5, 1, 7) == ()
    assert avoid(seen, "abcd", (), 0.5, 5, 7) == ()


def test_from_the_second_on_as_many_as_there_are_spare_nodes_the_most_suspected_first() -> None:
    seen = suspected(a=0.4, b=0.3, c=0.2, d=0.1)
    assert names(avoid(seen, "abcd", "x", 0.5, 2, 7)) == ["a"]
    assert names(avoid(seen, "abcd", "xy", 0.5, 2, 7)) == ["a", "b"]


def test_at_most_half_of_the_jobs_nodes() -> None:
    seen = suspected(a=0.4, b=0.3, c=0.2, d=0.1, e=0.05)
    assert names(avoid(seen, "abcde", "uvwxyz", 0.5, 2, 7)) == ["a", "b", "c"]
    assert names(avoid(suspected(a=0.1), "a", "xyz", 0.5, 2, 7)) == ["a"]
    assert names(avoid(suspected(a=0.9, b=0.8, c=0.4, d=0.3), "abcd", "wxyz", 0.5, 2, 7)) == ["a", "b"]


def test_a_more_suspected_spare_node_is_not_taken_in() -> None:
    seen = suspected(x=0.45, a=0.3, b=0.2, c=0.01, d=0.01)
    assert names(avoid(seen, "abcd", "xy", 0.5, 2, 7)) == ["x", "a"]
    assert names(avoid(seen, "abcd", "x", 0.5, 2, 7)) == ["x"], "then the job keeps its own nodes"


@pytest.mark.parametrize("seed", range(50))
def test_what_is_avoided_leaves_enough_nodes_and_nobody_worse_comes_in(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [f"n{index}" for index in range(chance.randint(1, 40))]
    own = nodes[: chance.randint(1, len(nodes))]
    spares = nodes[len(own) :]
    value = {node: chance.random() ** 2 * 0.5 for node in nodes if chance.random() < 0.8}
    out = set(names(avoid(suspected(**value), own, spares, 0.5, 2, seed)))
    assert len(out) <= len(spares)
    assert len(out & set(own)) <= (len(own) + 1) // 2
    for comes, goes in product(set(spares) - out, out & set(own)):
        assert value.get(comes, 0) <= value[goes] * ALIKE


def test_alike_suspected_nodes_are_picked_differently_by_job_and_failure_and_alike_by_process() -> None:
    own, spares = [f"n{index}" for index in range(32)], [f"s{index}" for index in range(8)]
    seen = suspected(**dict.fromkeys(own, 0.02))
    picks = {
        (job, failures): tuple(sorted(names(avoid(seen, own, spares, 0.5, failures, job))))
        for job in range(5)
        for failures in (2, 3)
    }
    assert len(set(picks.values())) == 10
    assert all(len(pick) == 8 for pick in picks.values())
    assert picks[0, 2] == ("n11", "n14", "n17", "n18", "n19", "n21", "n30", "n9")


# The whole, simulated


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("busy", [False, True])
def test_a_bad_node_is_found_in_few_restarts(size: int, busy: bool) -> None:
    found = results(size, 1, 1.0, busy, "suspicion", 40)
    assert all(one.to_clean is not None for one in found)
    assert mean(one.to_first_good for one in found) < 3.5
    assert max(one.to_first_good for one in found) <= 7
    by_chance = results(size, 1, 1.0, busy, "random", 40)
    assert mean(one.to_first_good for one in found) < 0.7 * mean(one.to_first_good for one in by_chance)


@pytest.mark.parametrize(("fails", "busy", "share"), [(0.5, False, 0.6), (0.5, True, 0.6), (1.0, True, 0.3)])
def test_two_bad_nodes_of_sixty_four_cost_fewer_restarts_than_by_chance(fails: float, busy: bool, share: float) -> None:
    found, by_chance = (results(64, 2, fails, busy, way, 40) for way in ("suspicion", "random"))
    assert mean(one.restarts for one in found) < share * mean(one.restarts for one in by_chance)


def test_two_bad_nodes_of_sixty_four_without_any_other_job_to_tell_of_them() -> None:
    """A quarter of the nodes is spare, so one pair in sixteen is left out by chance."""
    found = results(64, 2, 1.0, False, "suspicion", 25)
    assert mean(one.to_first_good for one in found) < 18
    assert all(one.healthy_excluded <= 16 for one in found)


def test_no_more_is_excluded_than_spare_nodes_wait_and_a_healthy_cluster_loses_nothing() -> None:
    assert all(one.healthy_excluded <= 2 for one in results(8, 1, 0.5, True, "suspicion", 40))
    healthy = Cluster.draw(64, 1, 0.0, True, 1)
    assert by_suspicion(healthy, *_one_failure(healthy), random.Random(1)) == ()


def _one_failure(cluster: Cluster) -> tuple[list[Attempt], list[Run]]:
    nodes = cluster.placed((), ())
    return [Attempt(nodes, False, (), nodes[0])], [run(*nodes, user="owner")]
