"""The rows in which evidence has the word: kernel logs first, then what the program itself reported.

Owns which evidence is a cause by itself, and when the same message on one node only becomes that node's
fault. Bare timeouts are not judged here but in behind.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, category, suspects, told
from slurm_recovery.records import Category, Evidence, Role, Source, Suspect

# Xid 79 after a fatal AER: the bus is the cause. Otherwise the first line counts.
_BEFORE_ALL = ("pcie_error", "host_memory_error")
_DEVICE_OWNERS = (Category.HARDWARE, Category.NODE)
_LINK_OWNERS = (Category.INTERCONNECT, Category.STORAGE)
_LOCAL_OWNERS = (Category.STORAGE, Category.SOFTWARE_ENV, Category.APPLICATION, Category.NODE)
# Messages that any rank of a node would meet alike, so that one rank is proof enough.
_ONE_RANK_IS_ENOUGH = ("gpu_missing", "driver_mismatch")

_VICTIM = re.compile(r"Killed process \d{1,10} \(([^)]{1,40})\)|task=([^,]{1,40}),")
_JOBS_OWN = ("python", "pt_main", "pt_data", "ray", "torchrun", "mpirun", "java")
_BY_ITSELF = ("Exited with exit code", "Segmentation", "Aborted", "Bus")
_CGROUP_JOB = re.compile(r"/job_(\d{1,12})\b")


def kernel_hardware(view: View) -> Finding | None:
    """A node's kernel reports its GPU, bus, memory, disk, or itself."""
    lines = view.having(source=Source.KERNEL_LOG, role=Role.ROOT, categories=_DEVICE_OWNERS)
    if not lines:
        return kernel_memory(view)
    first = min(lines, key=lambda found: found.reason not in _BEFORE_ALL)
    same = tuple(found for found in lines if found.reason == first.reason)
    nodes = suspects(view, same, first.reason)
    named = view.places.node(first)
    return Finding(
        first.reason,
        told(view, first.reason, first),
        (first, *(found for found in same if found is not first)),
        rank=_first_rank_on(view, named),
        suspects=nodes,
    )


def kernel_memory(view: View) -> Finding | None:
    """The kernel's OOM killer: within the job's cgroup the job's own doing, else the node's."""
    lines = [
        found
        for found in view.having(source=Source.KERNEL_LOG, role=Role.ROOT, reasons=("host_oom",))
        if _may_be_ours(found, view.attempt.job_id)
    ]
    if not lines:
        return None
    first = lines[0]
    strangers = [found for found in lines if found.signature == "oom_global" and not _victim_is_the_jobs(found)]
    if strangers and not any(found.signature == "oom_memcg" for found in lines):
        nodes = suspects(view, strangers, "host_oom")
        because = told(view, "host_oom", strangers[0])
        return Finding("host_oom", because, tuple(strangers), suspects=nodes, category=Category.NODE)
    rank = _first_rank_on(view, first.node)
    rank = rank if rank is not None else _killed_on(view, first.node)
    return Finding("host_oom", told(view, "host_oom", first), tuple(lines), rank=rank)


def _killed_on(view: View, node: str | None) -> int | None:
    """The one task of a node that srun saw killed, where tasks are ranks."""
    killed = [end for end in view.places.ends if end.how in ("Killed", "Out Of Memory") and node in end.hosts]
    alone = view.places.tasks_are_ranks and len(killed) == 1 and len(killed[0].tasks) == 1
    return min(killed[0].tasks) if alone else None


def _may_be_ours(evidence: Evidence, job_id: int) -> bool:
    jobs = _CGROUP_JOB.findall(evidence.line)
    return not jobs or not job_id or str(job_id) in jobs


def _victim_is_the_jobs(evidence: Evidence) -> bool:
    match = _VICTIM.search(evidence.line)
    return match is None or (match[1] or match[2]).startswith(_JOBS_OWN)


def _first_rank_on(view: View, node: str | None) -> int | None:
    """The first rank of a node that reported more than a lost peer or a timeout."""
    for found in view.having(source=Source.JOB_LOG):
        telling = found.role in (Role.ROOT, Role.CONDITIONAL) and category(found.reason) is not Category.INTERCONNECT
        rank = view.places.rank(found) if telling and found.reason else None
        if rank is not None and view.places.node(found) == node:
            return rank
    return only_end(view) if node is not None and len(view.attempt.nodes) == 1 else None


def device_error(view: View) -> Finding | None:
    """A device error that the program reports."""
    lines = view.having(source=Source.JOB_LOG, role=Role.ROOT, categories=(Category.HARDWARE,))
    if not lines:
        return None
    reason = lines[0].reason
    same = tuple(found for found in lines if found.reason == reason)
    rank = next((rank for found in same if (rank := view.places.rank(found)) is not None), None)
    if rank is None:
        rank = _first_rank_on(view, view.places.node(same[0])) if view.places.node(same[0]) else only_end(view)
    nodes = suspects(view, same, reason) or _suspect_of_rank(view, same[0], rank)
    return Finding(reason, told(view, reason, same[0]), same, rank=rank, suspects=nodes)


def _suspect_of_rank(view: View, evidence: Evidence, rank: int | None) -> tuple[Suspect, ...]:
    node = view.places.of_node(rank) if rank is not None and view.places.node(evidence) is None else None
    if node is None:
        return ()
    return (Suspect(node=node, trust=evidence.trust, because=told(view, evidence.reason, evidence)),)


def local_error(view: View) -> Finding | None:
    """The first error of a rank's own; a specific message before a bare Python exception."""
    lines = view.having(source=Source.JOB_LOG, role=Role.ROOT, categories=_LOCAL_OWNERS)
    if not lines:
        return None
    odd = only_end(view)
    first = min(
        lines, key=lambda found: (_generic(found), odd is not None and view.places.rank(found) not in (odd, None))
    )
    same = tuple(found for found in lines if found.reason == first.reason)
    return _on_one_node(view, first, same) or _everywhere(view, first, same)


def _generic(evidence: Evidence) -> int:
    """A messenger weighs less than a message: a file that is missing, then any exception at all."""
    return {"python_exception": 2, "path_missing": 1, "mpi_abort": 1}.get(evidence.signature, 0)


def _everywhere(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding:
    row = REASONS[first.reason]
    reason = row.otherwise or row.code
    rank = _root_rank(view, first, same)
    ordered = (first, *(found for found in same if found is not first))
    return Finding(reason, told(view, reason, first), ordered, rank=rank)


def _on_one_node(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding | None:
    """The finding against a node, where the message is one of a node's own or is proven on one node only."""
    row = REASONS[first.reason]
    if not row.one_node and row.category is not Category.NODE:
        return None
    reason = row.one_node or row.code
    by_itself = row.category is Category.NODE and not row.one_node and row.otherwise != "python_exception"
    nodes = suspects(view, same, reason)
    if not nodes or (not by_itself and not _proven(view, same, reason)):
        return None
    owner = REASONS[reason].category
    kept = owner in (Category.HARDWARE, Category.NODE, Category.STORAGE)
    rank = _root_rank(view, first, same)
    trusted = suspects(view, (*same, *view.having(source=Source.KERNEL_LOG, reasons=(reason,))), reason)
    return Finding(
        reason,
        told(view, reason, first),
        tuple(same),
        rank=rank,
        suspects=tuple(one for one in trusted if one.node in {other.node for other in nodes}),
        category=None if kept else Category.NODE,
    )


def _proven(view: View, same: Sequence[Evidence], reason: str) -> bool:
    """Whether the message came from one node while others of the job ran, and not by chance of one rank.

    The first rank often does what others do not (downloads, logs, saves), so alone it proves nothing.
    """
    nodes = {view.places.node(found) for found in same}
    if len(nodes) != 1 or None in nodes or len(view.attempt.nodes) < 2:
        return False
    node = nodes.pop()
    voices = {(view.places.rank(found), found.local_rank, found.line[:8]) for found in same}
    whole_node = view.places.tasks_are_ranks and len(voices) >= (view.places.per_node or 0)
    if not whole_node and not _others_ran(view, node):
        return False
    alone = len(voices) == 1 and node == view.attempt.nodes[0]
    enough = len(voices) > 1 or view.attempt.ntasks_per_node == 1 or reason in _ONE_RANK_IS_ENOUGH
    return enough and not alone


def _others_ran(view: View, node: str | None) -> bool:
    spoke = {view.places.node(found) for found in view.evidence} | {
        view.places.known(host) for end in view.places.ends for host in end.hosts
    }
    return bool(spoke - {node, None}) or len(view.attempt.nodes) > 2


def _root_rank(view: View, first: Evidence, same: Sequence[Evidence]) -> int | None:
    """The rank that began; nobody where half of the job reported the same."""
    places, world = view.places, view.places.world
    voices = {(places.rank(found), found.local_rank, places.node(found)) for found in same}
    voices = {voice for voice in voices if voice[:2] != (None, None)}
    shared = category(first.reason) is Category.SOFTWARE_ENV
    if world is not None and ((len(voices) > 1 and 2 * len(voices) >= world) or (shared and _all_ended(view, world))):
        return None
    also = view.having(role=Role.CONDITIONAL, reasons=(first.reason,))
    told_rank = next((rank for found in (first, *same, *also) if (rank := places.rank(found)) is not None), None)
    if told_rank is not None or category(first.reason) is Category.SOFTWARE_ENV:
        return told_rank
    return only_end(view)


def _all_ended(view: View, world: int) -> bool:
    return sum(len(end.tasks) for end in view.places.ends if end.how.startswith("Exited")) >= world


def only_end(view: View) -> int | None:
    """The one task that ended by itself with an error, where tasks are ranks; 0 where there is only one rank."""
    own = [
        end
        for end in view.places.ends
        if end.how.startswith(("Exited with exit code", "Segmentation", "Aborted", "Bus"))
    ]
    if view.places.tasks_are_ranks:
        single = [end for end in own if len(end.tasks) == 1]
        return min(single[0].tasks) if len(single) == 1 and len(own) == 1 else _clean_exit(view)
    return 0 if len(view.attempt.nodes) == 1 and view.attempt.ntasks_per_node == 1 else None


def _clean_exit(view: View) -> int | None:
    """The one task that exited while all others were aborted or killed."""
    exits = [end for end in view.places.ends if end.how.startswith(("Exited with exit code", "Segmentation"))]
    return min(exits[0].tasks) if len(exits) == 1 and len(exits[0].tasks) == 1 else None


def link_or_storage(view: View) -> Finding | None:
    """A link or a file system that fails, by the word of the node that it belongs to."""
    lines = view.having(role=Role.ROOT, categories=_LINK_OWNERS)
    if not lines:
        return None
    first = min(lines, key=lambda found: found.source is not Source.KERNEL_LOG)
    same = tuple(found for found in lines if found.reason == first.reason)
    if category(first.reason) is Category.STORAGE:
        return _storage(view, first, same)
    return Finding(first.reason, told(view, first.reason, first), same, suspects=suspects(view, same, first.reason))


def _storage(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding:
    """A file system that only one client of several lost is that client's fault."""
    nodes = suspects(view, same, first.reason) if _one_client(view, same) else ()
    rank = _first_rank_on(view, view.places.node(first)) if len(view.attempt.nodes) == 1 or nodes else None
    return Finding(first.reason, told(view, first.reason, first), tuple(same), rank=rank, suspects=nodes)


def _one_client(view: View, same: Sequence[Evidence]) -> bool:
    blind = any(gap.source is Source.KERNEL_LOG for gap in view.observation.gaps)
    return len(view.attempt.nodes) > 1 and len({view.places.node(found) for found in same}) == 1 and not blind
