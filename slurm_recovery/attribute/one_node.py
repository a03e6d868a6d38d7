"""When the same message is a node's fault: shown on one node only, while others of the job ran.

Owns the divider between a broken node and a broken environment. The log is the user's word, so what is
found here may keep a job off a node, and never drains one.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_recovery.attribute.first_rank import root_rank
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, suspects, told
from slurm_recovery.records import Category, Evidence, Source

# Messages that any rank of a node would meet alike, so that one rank is proof enough.
_ONE_RANK_IS_ENOUGH = ("gpu_missing", "driver_mismatch")
# A node's fault only by comparison; the other reasons of the node's own need none.
_BY_COMPARISON = ("mount_missing",)
_KEEP_OWNER = (Category.HARDWARE, Category.NODE, Category.STORAGE)


def on_one_node(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding | None:
    """The finding against a node, where the message is one of a node's own or is proven on one node only."""
    row = REASONS[first.reason]
    if not row.one_node and row.category is not Category.NODE:
        return None
    reason = row.one_node or row.code
    by_itself = not row.one_node and reason not in _BY_COMPARISON
    nodes = suspects(view, same, reason)
    if not nodes or (not by_itself and not _proven(view, same, reason)):
        return None
    accused = {one.node for one in nodes}
    with_kernel = suspects(view, (*same, *view.having(source=Source.KERNEL_LOG, reasons=(reason,))), reason)
    return Finding(
        reason,
        told(view, reason, first),
        (first, *(found for found in same if found is not first)),
        rank=root_rank(view, first, same),
        suspects=tuple(one for one in with_kernel if one.node in accused),
        category=None if REASONS[reason].category in _KEEP_OWNER else Category.NODE,
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
    return bool(spoke - {node, None})
