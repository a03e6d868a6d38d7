"""Fewer nodes: for how many a restart asks, and when it asks for none fewer."""

from __future__ import annotations

import pytest

from slurm_recovery.decide.shrink import allowed, fewer, grown, least_nodes, scaled, short_of_nodes
from slurm_recovery.job_options import JobOptions
from slurm_recovery.records import Size
from slurm_recovery.slurm.port import Job, Node

DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
EIGHT = Size(nodes=8, tasks=64, cpus=64)
TWO = JobOptions(min_nodes=2)
TWO_UP = JobOptions(min_nodes=2, node_step=2)


def cluster(**states: str) -> dict[str, Node]:
    """Eight idle nodes, but for those that are named."""
    names = [f"n{number}" for number in range(1, 9)]
    words = {name: frozenset(states.get(name, "IDLE").split("+")) for name in names}
    return {name: Node(name=name, state=words[name], partitions=frozenset({"main"})) for name in names}


def job(reason: str = DOWN, **more: object) -> Job:
    fields = {"job_id": 7, "state": "PENDING", "reason": reason, "partition": "main", "num_nodes": 8} | more
    return Job(**fields)  # type: ignore[arg-type]


def asked(nodes: dict[str, Node], options: JobOptions = TWO, **more: object) -> int:
    found = fewer(EIGHT, job(**more), options, nodes)  # type: ignore[arg-type]
    return found.nodes if found else 0


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("Resources", True),
        (DOWN, True),
        ("ReqNodeNotAvail, UnavailableNodes:n4", True),
        ("ReqNodeNotAvail, May be reserved for other job", True),
        ("Priority", False),
        ("BeginTime", False),
        ("QOSMaxNodePerUserLimit", False),
        ("JobHeldUser", False),
        ("", False),
    ],
)
def test_what_a_job_waits_for(reason: str, short: bool) -> None:
    assert short_of_nodes(job(reason)) is short
    assert not short_of_nodes(job(reason, state="RUNNING"))


@pytest.mark.parametrize(
    ("nodes", "options", "number"),
    [
        (cluster(n8="DOWN"), JobOptions(min_nodes=2), 7),
        (cluster(n8="IDLE+DRAIN"), TWO_UP, 6),
        (cluster(n8="DOWN", n7="DOWN"), TWO_UP, 6),
        (cluster(n8="ALLOCATED"), JobOptions(min_nodes=2), 7),  # at once, where the eighth comes free some time
        (cluster(n8="DOWN"), JobOptions(min_nodes=8), 0),
        (cluster(n8="DOWN"), JobOptions(), 0),
        (cluster(), JobOptions(min_nodes=2), 0),  # it waits for something else
        (cluster(**{f"n{n}": "DOWN" for n in range(2, 9)}), JobOptions(min_nodes=2), 0),
        # One idle, six busy, one down: eight will not be had, seven some time
        (cluster(n8="DOWN", **{f"n{n}": "ALLOCATED" for n in range(2, 8)}), JobOptions(min_nodes=2), 7),
        # One idle, seven busy: all of them some time
        (cluster(**{f"n{n}": "ALLOCATED" for n in range(2, 9)}), JobOptions(min_nodes=2), 0),
    ],
)
def test_the_greatest_number_that_can_be_had(nodes: dict[str, Node], options: JobOptions, number: int) -> None:
    assert asked(nodes, options) == number


def test_excluded_nodes_count_as_none_and_required_ones_must_be_up() -> None:
    assert asked(cluster(), excluded_nodes=("n1", "n2")) == 6
    assert asked(cluster(n8="DOWN"), required_nodes=("n8",)) == 0
    assert asked(cluster(n8="DOWN"), required_nodes=("n1",)) == 7


def test_impossible_means_our_exclusions_or_nothing_that_fewer_nodes_would_help() -> None:
    busy = cluster(n1="ALLOCATED", n2="ALLOCATED")
    assert asked(busy, reason="BadConstraints", excluded_nodes=("n8",)) == 7
    assert asked(busy, reason="BadConstraints") == 0


@pytest.mark.parametrize("wanted", range(1, 20))
@pytest.mark.parametrize("least", range(1, 8))
@pytest.mark.parametrize("step", range(1, 6))
def test_only_numbers_that_are_allowed(wanted: int, least: int, step: int) -> None:
    options = JobOptions(min_nodes=least, node_step=step)
    numbers = set(range(least, wanted, step))
    for most in range(wanted + 3):
        assert allowed(most, wanted, options) == max((n for n in numbers if n <= most), default=0)


def test_each_node_keeps_its_tasks_and_cpus() -> None:
    assert scaled(EIGHT, 7) == Size(nodes=7, tasks=56, cpus=56)
    assert scaled(Size(nodes=4, tasks=9, cpus=18), 3) == Size(nodes=3, tasks=6, cpus=14)
    assert scaled(Size(nodes=4, tasks=1, cpus=1), 3) == Size(nodes=3, tasks=3, cpus=3)


def test_the_wanted_number_comes_back_with_its_nodes() -> None:
    assert grown(EIGHT, job(), cluster(n8="ALLOCATED"))
    assert not grown(EIGHT, job(), cluster(n8="DOWN"))
    assert not grown(EIGHT, job(excluded_nodes=("n1",)), cluster())


def test_the_least_is_what_its_owner_says_and_never_more_than_wanted() -> None:
    assert [least_nodes(4, JobOptions(min_nodes=least)) for least in (0, 2, 9)] == [4, 2, 4]
