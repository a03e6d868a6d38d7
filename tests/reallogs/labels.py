"""Labels that several cases share: how a careful administrator judges what a log shows.

Owns: the answers' form and the common ones. Must not: look at how slurm_recovery judges. In an answer, "@3" is the node
on which rank 3 said that it runs.
"""

from __future__ import annotations

from tests.reallogs.run import Expect


def expect(
    category: str, reason: str, action: str, rank: int | None = None, suspects: tuple[str, ...] = (), **accept: object
) -> Expect:
    answer = {"category": category, "reason": reason, "suspect_nodes": suspects, "root_rank": rank, "action": action}
    return answer | ({"accept": accept} if accept else {})


def killed(rank: int, node: str) -> Expect:
    """By SIGKILL, and nothing says by whom."""
    return expect(
        "unknown", "killed_unknown", "requeue", rank,
        reasons=["unknown", "host_oom", "sigkill"], categories=["application", "node"],
        actions=["stop", "requeue_exclude"], suspect_nodes=[[node]],
    )  # fmt: skip


def crashed(rank: int) -> Expect:
    return expect("application", "segfault", "stop", rank, actions=["requeue"])


def raised(rank: int | None, **accept: object) -> Expect:
    return expect("application", "python_exception", "stop", rank, (), **accept)


def late(rank: int, node: str) -> Expect:
    """One rank does not come to a collective, the others run into its time-out; the cause is not printed."""
    return expect(
        "interconnect", "nccl_timeout", "requeue", rank,
        reasons=["collective_timeout", "gloo_connection_error", "hang"], categories=["unknown", "node", "application"],
        actions=["requeue_exclude"], suspect_nodes=[[node]], root_ranks=[None],
    )  # fmt: skip


def unreadable() -> Expect:
    """A checkpoint whose bytes are not those of a checkpoint, on every rank, though no message says so."""
    return expect(
        "storage", "checkpoint_corrupt", "stop", None,
        reasons=["python_exception"], categories=["application"], actions=["requeue"], root_ranks=[0, 1, 2, 3],
    )  # fmt: skip
