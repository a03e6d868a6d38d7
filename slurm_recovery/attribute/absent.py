"""The rows about who never came, or stopped answering, by the word of those that waited.

Owns the lists that rendezvous, stores, barriers and heartbeats print of the missing. Where the missing are most,
or on several nodes, no node is named; where a log could not be read, silence proves nothing.
"""

from __future__ import annotations

import re

from slurm_recovery.attribute.lagging import listed, of_ranks
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Evidence, Role, Source, Suspect, Trust

# distributed_c10d.py: "... on rank: 3, for key: store_based_barrier_key:1 (world_size=32, worker_count=24, ..."
_STORE = re.compile(r"world_size=(\d{1,7}), worker_count=(\d{1,7})")
# TCPStore.cpp: "Timed out after 1801 seconds waiting for clients. 3/4 clients joined."
_CLIENTS = re.compile(r"waiting for clients\. (\d{1,6})/(\d{1,6}) clients")
MOST_HEARD = 16  # of more tasks not all are noted: detect/margins.py
_MISSING_RANKS = re.compile(r"\[missing ranks: (\d[\d, ]{0,400})\]")
MOST_RANKS = 65536


def absent(view: View) -> Finding | None:
    """Who is missing: at a meeting of processes, in a barrier, or among the heartbeats."""
    return (
        _from_store(view)
        or _from_clients(view)
        or _from_rendezvous(view)
        or _listed_tasks(view)
        or _stalled(view)
        or _no_heartbeat(view)
    )


def _from_rendezvous(view: View) -> Finding | None:
    """A node that never came to the rendezvous at which all others waited."""
    lines = view.having(role=Role.CONDITIONAL, reasons=("rendezvous_timeout",))
    waited = {node for found in lines if (node := view.node(found)) is not None}
    missing = [node for node in view.attempt.nodes if node not in waited]
    if len(waited) < 2 or len(missing) != 1 or view.unread(Source.JOB_LOG):
        return None
    why = f"{len(waited)} of {len(view.attempt.nodes)} nodes waited; nothing was heard of {missing[0]}."
    return _missing(view, "rendezvous_timeout", why, lines, nodes=tuple(missing))


def _from_store(view: View) -> Finding | None:
    """The ranks that did not reach the store's barrier, where those that did are all heard of."""
    lines = view.having(signatures=("store_barrier",))
    counts = [(int(match[1]), int(match[2])) for found in lines if (match := _STORE.search(found.line))]
    came = {found.rank for found in lines if found.rank is not None}
    if not counts or not came or view.unread(Source.JOB_LOG):
        return None
    world, most = counts[0][0], max(count for _, count in counts)
    if world > MOST_RANKS or len(came) != most or 2 * most < world:
        return None
    missing = sorted(set(range(world)) - came)
    why = f"{most} of {world} ranks came; rank {listed(missing)} did not."
    return _missing(view, "rendezvous_timeout", why, lines, ranks=missing) if missing else None


def _from_clients(view: View) -> Finding | None:
    """The only task that printed nothing, where the store misses one client of as many as there are tasks."""
    lines = view.having(reasons=("rendezvous_timeout",))
    counts = [(int(match[1]), int(match[2])) for found in lines if (match := _CLIENTS.search(found.line))]
    tasks = len(view.attempt.nodes) * (view.attempt.ntasks_per_node or 0)
    if not counts or not 2 < tasks <= MOST_HEARD or counts[0] != (tasks - 1, tasks) or view.unread(Source.JOB_LOG):
        return None
    heads = (frame(found.line) for found in view.having(source=Source.JOB_LOG))
    silent = sorted(set(range(tasks)) - {head.task for head in heads if not head.relayed})
    if len(silent) != 1:
        return None
    node = view.places.layout.task_node(silent[0])
    why = f"{tasks - 1} of {tasks} clients came; task {silent[0]} printed nothing."
    ranks = silent if view.places.tasks_are_ranks else None  # a launcher of many is no rank
    return _missing(view, "rendezvous_timeout", why, lines, ranks=ranks, nodes=(node,) if node else ())


def _listed_tasks(view: View) -> Finding | None:
    """The tasks that JAX's coordination service lists as unhealthy, or as missing in a barrier."""
    lines = view.having(signatures=("jax_task_listed",))
    heads = view.having(signatures=("jax_unhealthy", "jax_connect_barrier", "jax_barrier"))
    tasks = sorted({found.rank for found in (*lines, *heads) if found.rank is not None and _is_listed(found)})
    if not tasks or not (heads or lines):
        return None
    reason = next((found.reason for found in heads if found.signature == "jax_connect_barrier"), "hang")
    nodes = {_node_of_task(view, task) for task in tasks}
    few = len(tasks) * 2 <= max(len(view.attempt.nodes) * (view.attempt.ntasks_per_node or 1), 2)
    named = tuple(node for node in nodes if node) if len(nodes) == 1 and few else ()
    why = f"The coordination service misses task {listed(tasks)}."
    return _missing(view, reason, why, (*lines, *heads), ranks=tasks, nodes=named)


def _is_listed(found: Evidence) -> bool:
    return found.signature == "jax_task_listed" or "/task:" in found.line


def _node_of_task(view: View, task: int) -> str | None:
    """JAX numbers its processes by SLURM_PROCID: jax/_src/clusters/slurm_cluster.py."""
    if view.places.tasks_are_ranks or len(view.attempt.nodes) == 1:
        return view.places.of_node(task)
    return view.places.layout.task_node(task)


def _stalled(view: View) -> Finding | None:
    """The ranks that Horovod's stall inspector waits for."""
    lines = view.having(signatures=("horovod_missing",))
    ranks: set[int] = set()
    for found in lines:
        if match := _MISSING_RANKS.search(found.line):
            ranks.update(int(part) for part in match[1].replace(" ", "").split(",") if part.isdecimal())
        elif (rank := _before_list(found.line)) is not None:
            ranks.add(rank)
    if not ranks:
        return None
    why = f"The others waited for rank {listed(sorted(ranks))}."
    return _missing(view, "hang", why, lines, ranks=sorted(ranks))


_BEFORE_LIST = re.compile(r"(?:^|>:|\s)(\d{1,7}): \[")


def _before_list(line: str) -> int | None:
    match = _BEFORE_LIST.search(line, 0, 200)
    return int(match[1]) if match else None


def _no_heartbeat(view: View) -> Finding | None:
    """The ranks whose heartbeat NVIDIA's resiliency extension misses, where the others' went on."""
    lines = view.having(signatures=("nvrx_heartbeat",))
    ranks = sorted({found.rank for found in lines if found.rank is not None})
    world = view.places.world
    if not ranks or (world is not None and 2 * len(ranks) > world) or view.unread(Source.JOB_LOG):
        return None
    nodes = {node for found in lines if (node := view.places.known(found.node))}
    why = f"No heartbeat came from rank {listed(ranks)}."
    return _missing(view, "hang", why, lines, ranks=ranks, nodes=tuple(nodes) if len(nodes) == 1 else ())


def _missing(
    view: View,
    reason: str,
    why: str,
    lines: tuple[Evidence, ...],
    *,
    ranks: list[int] | None = None,
    nodes: tuple[str, ...] = (),
) -> Finding:
    because = f"{REASONS[reason].sentence} {why}"
    named = tuple(Suspect(node=node, trust=Trust.USER, because=because) for node in nodes)
    rank = ranks[0] if ranks and len(ranks) == 1 else None
    return Finding(reason, because, lines, rank=rank, suspects=named or of_ranks(view, ranks or [], because))
