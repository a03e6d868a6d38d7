"""The rows about what nodes share, links and file systems, by the word of the node that they belong to.

Owns when such a fault outranks what the program raised: any exception may be all that it shows of a link that failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_recovery.attribute.cause_rows import messengers_only
from slurm_recovery.attribute.first_rank import first_rank_on
from slurm_recovery.attribute.reading import OF_ANYTHING
from slurm_recovery.attribute.view import Finding, Rival, View, category, in_order, others, suspects, told
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Category, Evidence, Role, Source

_OWNERS = (Category.INTERCONNECT, Category.STORAGE)
# The file system is gone for this client: what a program raises after that came of it.
_EVICTED = ("lustre_evicted", "gpfs_panic", "ceph_evicted")
# What says that it works again.
_RECOVERED = ("nccl_port_active", "link_up", "nfs_ok", "lustre_restored")


def shared_fault(view: View) -> Finding | None:
    """A node's own word about a link or a file system, where the program only raised any exception."""
    messengers = messengers_only(view)
    finding = link_or_storage(view) if messengers else None
    if finding is None:
        return None
    first = finding.evidence[0]
    any_of_all = all(OF_ANYTHING.match(frame(found.line).text) for found in messengers)
    if any_of_all and not _recovered(view, first):
        return finding
    felt = view.having(source=Source.JOB_LOG, role=Role.CONDITIONAL, categories=_OWNERS)
    kernels = first.source is Source.KERNEL_LOG
    return finding if kernels and (felt or first.signature in _EVICTED) else None


def stuck(view: View) -> Finding | None:
    """A kernel's word about a link or a file system that does not work again, where the program waited."""
    finding = link_or_storage(view)
    waited = view.having(source=Source.JOB_LOG, role=Role.CONDITIONAL, categories=(Category.INTERCONNECT,))
    if finding is None or not waited or finding.evidence[0].source is not Source.KERNEL_LOG:
        return None
    return None if _recovered(view, finding.evidence[0]) else finding


def _recovered(view: View, fault: Evidence) -> bool:
    """Whether the same log tells later that it works again, on that node."""
    order = {id(found): number for number, found in enumerate(view.evidence)}
    again = [found for found in view.having(signatures=_RECOVERED) if found.source is fault.source]
    return any(order[id(found)] > order[id(fault)] and view.node(found) == view.node(fault) for found in again)


def link_or_storage(view: View) -> Finding | None:
    """A link or a file system that fails, by the word of the node that it belongs to."""
    lines = in_order(view.having(role=Role.ROOT, categories=_OWNERS))
    if not lines:
        return None
    first = min(lines, key=lambda found: found.source is not Source.KERNEL_LOG)
    same = tuple(found for found in lines if found.reason == first.reason)
    rivals = others(first, lines, lambda found: f"{first.place} is the kernel's own word, or came first")
    if category(first.reason) is Category.STORAGE:
        return _storage(view, first, same, rivals)
    because = told(view, first.reason, first)
    return Finding(first.reason, because, same, suspects=suspects(view, same, first.reason), rivals=rivals)


def _storage(view: View, first: Evidence, same: Sequence[Evidence], rivals: tuple[Rival, ...]) -> Finding:
    """A file system that only one client of several lost is that client's fault."""
    nodes = suspects(view, same, first.reason) if _one_client(view, same) else ()
    rank = first_rank_on(view, view.node(first)) if len(view.attempt.nodes) == 1 or nodes else None
    because = told(view, first.reason, first)
    return Finding(first.reason, because, tuple(same), rank=rank, suspects=nodes, rivals=rivals)


def _one_client(view: View, same: Sequence[Evidence]) -> bool:
    one = len({view.node(found) for found in same}) == 1
    return len(view.attempt.nodes) > 1 and one and not (
        view.unread(Source.KERNEL_LOG) or view.unread(Source.NODE)
    )
