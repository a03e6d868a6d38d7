"""Exclusions: their age, nodes that are gone, and jobs that could not start any more."""

from __future__ import annotations

from slurm_recovery.decide.exclusions import Exclusion, choose, live
from slurm_recovery.records import Attempt, Attribution, Category, Decision, Incident, Suspect, Trust, Verdict
from slurm_recovery.slurm.port import Job, Node

NOW = 1_000_000.0
DAY = 86400.0


def incident(node: str, decided: float, trust: Trust = Trust.USER) -> Incident:
    """One that named the node at that time."""
    suspect = Suspect(node=node, trust=trust, because="test")
    return Incident(
        attempt=Attempt(cluster="test", job_id=1),
        attribution=Attribution(category=Category.HARDWARE, reason="gpu_ecc_uncorrectable", suspects=(suspect,)),
        decision=Decision(verdict=Verdict.REQUEUE_EXCLUDE, basis="exclude", because="test", exclude=(node,)),
        times={"decided": decided},
    )


def nodes(*names: str, away: str = "", features: str = "") -> dict[str, Node]:
    state = {name: frozenset({"DOWN"} if name == away else {"IDLE"}) for name in names}
    return {
        name: Node(name=name, state=state[name], partitions=frozenset({"main"}), features=frozenset(features.split()))
        for name in names
    }


def ours(*names: str) -> list[Exclusion]:
    return [Exclusion(name, NOW, Trust.ROOT) for name in names]


def job(size: int, **more: object) -> Job:
    return Job.model_validate({"job_id": 1, "partition": "main", "num_nodes": size, **more})


def test_an_exclusion_expires() -> None:
    chain = [incident("n1", NOW - DAY + 1), incident("n2", NOW - DAY)]
    assert [entry.node for entry in live(chain, NOW, DAY)] == ["n1"]


def test_an_exclusion_that_is_named_again_is_as_young_as_its_last_naming() -> None:
    chain = [incident("n1", NOW - 10), incident("n1", NOW - 2 * DAY)]
    assert [entry.since for entry in live(chain, NOW, DAY)] == [NOW - 10]


def test_the_strongest_come_first_then_the_newest() -> None:
    chain = [incident("n3", NOW - 1), incident("n1", NOW - 2), incident("n2", NOW - 3, Trust.ROOT)]
    assert [entry.node for entry in live(chain, NOW, DAY)] == ["n2", "n3", "n1"]


def test_a_node_that_is_gone_from_slurm_conf_is_left_out() -> None:
    """One unknown host fails the whole update, the user's own exclusions with it."""
    choice = choose(["n4", "old"], ours("older", "n1"), [job(1)], nodes("n1", "n2", "n4"))
    assert choice.nodes == ("n4", "n1")
    assert choice.left_out == (("older", "no longer in slurm.conf"),)


def test_nodes_that_are_away_do_not_count_as_left_over() -> None:
    choice = choose([], ours("n1"), [job(2)], nodes("n1", "n2", "n3", away="n3"))
    assert choice.left_out == (("n1", "too few other nodes for this job"),)


def test_the_weakest_is_left_out_first() -> None:
    choice = choose([], ours("n1", "n2"), [job(2)], nodes("n1", "n2", "n3"))
    assert choice.nodes == ("n1",)
    assert [node for node, _ in choice.left_out] == ["n2"]


def test_every_component_of_a_het_job_must_be_able_to_start() -> None:
    parts = [job(1), job(3, job_id=2, het_job_id=1)]
    choice = choose([], ours("n1"), parts, nodes("n1", "n2", "n3"))
    assert choice.nodes == ()
    asks = [job(1), job(1, job_id=2, required_nodes=("n1",))]
    assert choose([], ours("n1"), asks, nodes("n1", "n2")).left_out == (("n1", "the job asks for it by --nodelist"),)


def test_features_that_the_job_asks_for_count() -> None:
    choice = choose([], ours("n1"), [job(1, features="red&big")], nodes("n1", "n2", features="red"))
    assert choice.left_out == (("n1", "too few other nodes for this job"),)
