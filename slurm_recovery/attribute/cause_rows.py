"""The rows in which evidence has the word: kernel logs first, then what the program itself reported.

Owns which evidence is a cause by itself. When the same message is a node's fault is judged in one_node.py,
which rank was first in first_rank.py, bare timeouts in behind.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_recovery.attribute.first_rank import first_rank_on, killed_on, only_end, root_rank
from slurm_recovery.attribute.one_node import on_one_node
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, category, suspects, told
from slurm_recovery.records import Category, Evidence, Role, Source, Suspect

# Xid 79 after a fatal AER: the bus is the cause. Otherwise the first line counts.
_BEFORE_ALL = ("pcie_error", "host_memory_error")
_DEVICE_OWNERS = (Category.HARDWARE, Category.NODE)
_LINK_OWNERS = (Category.INTERCONNECT, Category.STORAGE)
_LOCAL_OWNERS = (Category.STORAGE, Category.SOFTWARE_ENV, Category.APPLICATION, Category.NODE)

_VICTIM = re.compile(r"Killed process \d{1,10} \(([^)]{1,40})\)|task=([^,]{1,40}),")
_JOBS_OWN = ("python", "pt_main", "pt_data", "ray", "torchrun", "mpirun", "java")
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
        rank=first_rank_on(view, named),
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
    rank = first_rank_on(view, first.node)
    rank = rank if rank is not None else killed_on(view, first.node)
    return Finding("host_oom", told(view, "host_oom", first), tuple(lines), rank=rank)


def _may_be_ours(evidence: Evidence, job_id: int) -> bool:
    jobs = _CGROUP_JOB.findall(evidence.line)
    return not jobs or not job_id or str(job_id) in jobs


def _victim_is_the_jobs(evidence: Evidence) -> bool:
    match = _VICTIM.search(evidence.line)
    return match is None or (match[1] or match[2]).startswith(_JOBS_OWN)


def device_error(view: View) -> Finding | None:
    """A device error that the program reports."""
    lines = view.having(source=Source.JOB_LOG, role=Role.ROOT, categories=(Category.HARDWARE,))
    if not lines:
        return None
    reason = lines[0].reason
    same = tuple(found for found in lines if found.reason == reason)
    rank = next((rank for found in same if (rank := view.places.rank(found)) is not None), None)
    if rank is None:
        node = view.places.node(same[0])
        rank = first_rank_on(view, node) if node else only_end(view)
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
    likely = {odd, None} if odd is not None else {view.places.rank(found) for found in lines}
    first = min(lines, key=lambda found: (_generic(found), view.places.rank(found) not in likely))
    same = tuple(found for found in lines if found.reason == first.reason)
    return on_one_node(view, first, same) or _everywhere(view, first, same)


def _generic(evidence: Evidence) -> int:
    """A messenger weighs less than a message: a file that is missing, then any exception at all."""
    return {"python_exception": 2, "path_missing": 1, "mpi_abort": 1}.get(evidence.signature, 0)


def _everywhere(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding:
    row = REASONS[first.reason]
    reason = row.otherwise or row.code
    rank = root_rank(view, first, same)
    ordered = (first, *(found for found in same if found is not first))
    return Finding(reason, told(view, reason, first), ordered, rank=rank)


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
    rank = first_rank_on(view, view.places.node(first)) if len(view.attempt.nodes) == 1 or nodes else None
    return Finding(first.reason, told(view, first.reason, first), tuple(same), rank=rank, suspects=nodes)


def _one_client(view: View, same: Sequence[Evidence]) -> bool:
    blind = any(gap.source is Source.KERNEL_LOG for gap in view.observation.gaps)
    return len(view.attempt.nodes) > 1 and len({view.places.node(found) for found in same}) == 1 and not blind
