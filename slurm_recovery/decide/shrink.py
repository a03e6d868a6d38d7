"""Fewer nodes: whether a restart that waits for nodes shall ask for fewer, and for how many. Pure.

Only where its owner said that it can do with fewer, only where Slurm waits for nodes and not for the job's turn, and
only where that many fewer can be had. A request `-N min-max` needs none of this: Slurm starts a requeued job with any
number in between by itself (22.05, 26.05), and its least number is what counts as wanted here.

The numbers allowed are MIN, MIN + STEP, MIN + 2 STEP and so on (`--recovery-min-nodes=MIN:STEP`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_recovery.decide.exclusions import can_start_on, suits
from slurm_recovery.job_options import JobOptions
from slurm_recovery.records import Size
from slurm_recovery.slurm.port import Job, Node

# Reasons of Slurm's for which the job waits for nodes. Not Priority: it waits for its turn, and Slurm has not looked.
# "Nodes required for job are DOWN, DRAINED or reserved ..." is squeue's text of ReqNodeNotAvail's sister.
SHORT = ("resources", "reqnodenotavail", "nodes required for job", "nodes_required_for_job")
IMPOSSIBLE = "badconstraints"


def least_nodes(wanted: int, options: JobOptions) -> int:
    """The fewest that the job may be given."""
    return min(wanted, options.min_nodes) if options.min_nodes else wanted


def short_of_nodes(job: Job) -> bool:
    """Whether nodes are what the job waits for."""
    return job.pending and job.reason.lower().startswith(SHORT)


def impossible(job: Job) -> bool:
    """Whether Slurm says that the job cannot start at all, as things are."""
    return job.pending and job.reason.lower().startswith(IMPOSSIBLE)


def fewer(request: Size, job: Job, options: JobOptions, nodes: Mapping[str, Node]) -> Size | None:
    """The greatest number of nodes below the wanted one that the job can have; None where that would not help.

    First of the nodes that are idle, for those it gets at once. Where they are less than the least, but the nodes that
    are up are not enough for the wanted number: of all that are up, for more it will not get. Where Slurm says that the
    wanted number is impossible, and there are less nodes than that (ours are excluded): of all there are.
    """
    least = least_nodes(request.nodes, options)
    here = _here(job, nodes)
    up = _up(here)
    if least >= request.nodes or not set(job.required_nodes) <= up:
        return None
    if impossible(job):
        count = allowed(len(up), request.nodes, options) if len(here) < request.nodes else 0
        return scaled(request, count) if count else None
    idle = sum(1 for node in here if can_start_on(node, job))
    if idle >= request.nodes:  # it waits for something else than a number of nodes
        return None
    count = allowed(idle, request.nodes, options)
    if not count and len(up) < request.nodes:
        count = allowed(len(up), request.nodes, options)
    return scaled(request, count) if count else None


def allowed(most: int, wanted: int, options: JobOptions) -> int:
    """The greatest number that the job's owner allows, at most `most` and less than `wanted`; 0: none."""
    most = min(most, wanted - 1)
    least = least_nodes(wanted, options)
    return most - (most - least) % options.node_step if most >= least else 0


def scaled(request: Size, count: int) -> Size:
    """The request with so many nodes, as many tasks and CPUs on each as before; at least one task each."""
    tasks = max(request.tasks * count // request.nodes, count)
    return Size(nodes=count, tasks=tasks, cpus=max(-(-request.cpus * count // request.nodes), tasks))


def grown(wanted: Size, job: Job, nodes: Mapping[str, Node]) -> bool:
    """Whether a later restart shall ask for the wanted number again: so many nodes are up."""
    return len(_up(_here(job, nodes))) >= wanted.nodes


def _here(job: Job, nodes: Mapping[str, Node]) -> list[Node]:
    return [node for node in nodes.values() if node.name not in job.excluded_nodes and suits(node, job)]


def _up(here: Iterable[Node]) -> set[str]:
    return {node.name for node in here if not node.away}
