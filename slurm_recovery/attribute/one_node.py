"""When the same message is a node's fault: shown on one node only, while others of the job ran.

Owns the divider between a broken node and a broken environment. The log is the user's word, so what is
found here may keep a job off a node, and never drains one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_recovery.attribute.first_rank import MANY, root_rank
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, suspects, told
from slurm_recovery.attribute.window import OF_NODES
from slurm_recovery.records import Category, Evidence, Role, Source

# Messages that any rank of a node would meet alike, so that one rank is proof enough.
_ONE_RANK_IS_ENOUGH = ("gpu_missing", "driver_mismatch")
# A node's fault only by comparison; the other reasons of the node's own need none.
BY_COMPARISON = ("mount_missing",)
# What else a node's image, devices or limits bring about, where several others fare well. Of two nodes only one
# needs to find the other by its name, so that two prove nothing.
_ALSO = ("command_not_found", "cuda_arch_mismatch", "name_resolution_failed", "resource_limit")
# A full disk that no path tells the place of: on few nodes, and not on the first, which often saves for all, it is
# their own.
_BECOMES = {"disk_full": "local_disk_full"}
# A program that others find at the same place: sharing the folder is what differs. Not where nodes hold their own.
_ELSEWHERE = re.compile(
    r"(?<![\w./-])/(?!(?:usr|s?bin|opt|lib\w{0,3}|etc|tmp|var|dev|run)/)[\w.-]{1,80}/[\w./-]{1,200}"
)
_KEEP_OWNER = (Category.HARDWARE, Category.NODE, Category.STORAGE)
FEW = 4  # several nodes may be at fault where they are no more than this part of all


def may_be_a_nodes(reason: str) -> bool:
    """Whether the reason is one that only a comparison of nodes makes a node's."""
    return bool(REASONS[reason].one_node) or reason in _BECOMES or reason in _ALSO


def on_one_node(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding | None:
    """The finding against a node, where the message is one of a node's own or is proven on few nodes only."""
    row = REASONS[first.reason]
    also = row.code in _ALSO and len(view.attempt.nodes) > 2
    becomes = row.one_node or _shared_place(same) or ("" if _tells_path(view, same) else _BECOMES.get(row.code, ""))
    if not becomes and row.category is not Category.NODE and not also:
        return None
    reason = becomes or row.code
    by_itself = not becomes and not also and reason not in BY_COMPARISON
    nodes = suspects(view, same, reason)
    light = _said_lightly(view, row.code) if by_itself and not nodes else ()
    nodes = nodes or suspects(view, light, reason)
    if not nodes or (not by_itself and not _proven(view, same, reason)):
        return None
    accused = {one.node for one in nodes}
    with_own = suspects(view, (*same, *light, *_own_word(view, reason)), reason)
    return Finding(
        reason,
        told(view, reason, first),
        (first, *(found for found in same if found is not first)),
        rank=None if _several_at_once(view, same) else root_rank(view, first, same),
        suspects=tuple(one for one in with_own if one.node in accused),
        category=None if REASONS[reason].category in _KEEP_OWNER else Category.NODE,
    )


def _own_word(view: View, reason: str) -> tuple[Evidence, ...]:
    """What nodes say of themselves by their kernel, and by NVML where that is proof."""
    by_nvml = view.having(source=Source.NVML, role=Role.ROOT, reasons=(reason,))
    return (*view.having(source=Source.KERNEL_LOG, reasons=(reason,)), *by_nvml)


def _several_at_once(view: View, same: Sequence[Evidence]) -> bool:
    """Whether all of a node's ranks, and they are many, met its fault alike, so that none was first."""
    return len({view.rank(found) for found in same} - {None}) >= max(view.attempt.ntasks_per_node or 0, MANY)


def _said_lightly(view: View, reason: str) -> Sequence[Evidence]:
    """The same from who would not be believed alone, but tells where it is."""
    return view.having(source=Source.JOB_LOG, role=Role.CONDITIONAL, reasons=(reason,))


def _shared_place(same: Sequence[Evidence]) -> str:
    """What a program becomes that is missing where its folder is that of all nodes."""
    missing = all(found.reason == "command_not_found" and _ELSEWHERE.search(found.line, 0, 400) for found in same)
    return "mount_missing" if missing else ""


def _tells_path(view: View, same: Sequence[Evidence]) -> bool:
    """Whether a line names the file, or the first node is among those that speak."""
    first = view.attempt.nodes[:1]
    return any("'/" in found.line or view.node(found) in (None, *first) for found in same)


def _proven(view: View, same: Sequence[Evidence], reason: str) -> bool:
    """Whether the message came from few nodes while others of the job ran, and not by chance of one rank.

    The first rank often does what others do not (downloads, logs, saves), so alone it proves nothing.
    """
    nodes = {view.node(found) for found in same}
    total = len(view.attempt.nodes)
    if None in nodes or total < 2 or (len(nodes) > 1 and FEW * len(nodes) > total) or view.unread(Source.JOB_LOG):
        return False
    voices = {(view.node(found), view.rank(found), found.local_rank, found.line[:8]) for found in same}
    whole = view.places.tasks_are_ranks and len(voices) >= (view.places.per_node or 0) * len(nodes)
    if not (whole and len(nodes) == 1) and len(_others(view) - nodes) < len(nodes):
        return False
    one_is_enough = reason in _ONE_RANK_IS_ENOUGH
    first_rank = view.rank(same[0]) in (None, 0) or not one_is_enough
    alone = len(voices) == 1 and view.attempt.nodes[0] in nodes and first_rank
    enough = len(voices) > len(nodes) or _one_rank_a_node(view) or one_is_enough
    return enough and not alone


def _one_rank_a_node(view: View) -> bool:
    """Whether a node has one voice only, as far as is known: a launcher may start several ranks."""
    world = view.places.world
    return view.attempt.ntasks_per_node == 1 and (world is None or world <= len(view.attempt.nodes))


def _others(view: View) -> set[str | None]:
    """The nodes of which the job was heard."""
    ended = (view.places.known(host) for end in view.places.ends for host in end.hosts)
    return ({view.node(found) for found in view.evidence if found.source not in OF_NODES} | set(ended)) - {None}
