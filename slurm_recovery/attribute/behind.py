"""The rows for timeouts: who was late, whom do all others complain about, and if nobody can tell, just that.

Owns the comparison of ranks with each other. A timeout is a cause only where nothing better was found, and
names a node only where the others agree on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from slurm_recovery.attribute.first_rank import only_end
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, category, suspects, told
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Category, Evidence, Role, Source, Suspect, Trust, Verdict

_COUNTERS = re.compile(r"[Ll]ast enqueued NCCL work: (-?\d{1,18}), last completed NCCL work: (-?\d{1,18})")
_BARRIER = re.compile(r"Ranks? (\d[\d, ]{0,400}) failed to pass monitoredBarrier")
_PEER = re.compile(r"(?:from peer|recv from|send to|connect to|remote peer) ([A-Za-z0-9.:_-]{1,120}?)<\d{1,5}>")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using \S{1,40}:(\d{1,3}(?:\.\d{1,3}){3})<")
# Who prints these waited itself; a dump signal reaches those too that did not.
WAITED = ("nccl_watchdog_timeout", "nccl_work_counters")


def lagging(view: View) -> Finding | None:
    """Ranks that the others waited for: named by a barrier, lower in their counters, or silent."""
    named = _barrier(view) or _low_counters(view) or _silent(view)
    if not named:
        return None
    ranks, evidence, why = named
    nodes = {view.places.of_node(rank) for rank in ranks}
    node = nodes.pop() if len(nodes) == 1 else None
    because = f"{REASONS['nccl_timeout'].sentence} {why}"
    accused = (Suspect(node=node, trust=Trust.USER, because=because),) if node else ()
    return Finding(
        "nccl_timeout", because, tuple(evidence), rank=ranks[0] if len(ranks) == 1 else None, suspects=accused
    )


_Behind = tuple[list[int], list[Evidence], str] | None


def _barrier(view: View) -> _Behind:
    for found in view.having(signatures=("monitored_barrier",)):
        if match := _BARRIER.search(found.line):
            ranks = sorted({int(part) for part in match[1].replace(" ", "").split(",") if part.isdecimal()})
            return ranks, [found], f"Ranks {_listed(ranks)} did not reach the barrier."
    return None


def _low_counters(view: View) -> _Behind:
    """The ranks that had enqueued less than most others."""
    last: dict[int, tuple[int, Evidence]] = {}
    for found in view.having(signatures=("nccl_work_counters", "nccl_dump_signal")):
        match = _COUNTERS.search(found.line)
        if match and found.rank is not None and "(default_pg)" in found.line:
            last[found.rank] = int(match[1]), found
    if len(last) < 3:
        return None
    usual, votes = Counter(count for count, _ in last.values()).most_common(1)[0]
    low = sorted(rank for rank, (count, _) in last.items() if count < usual)
    if not low or len(low) >= votes:
        return None
    evidence = [last[rank][1] for rank in low]
    return low, evidence, f"Ranks {_listed(low)} had enqueued less than {votes} others."


def _silent(view: View) -> _Behind:
    """The ranks that reported no timeout while most others did."""
    world = view.places.world
    lines = view.having(signatures=WAITED)
    ranks = {rank for found in lines if (rank := view.places.rank(found)) is not None}
    if world is None or len(ranks) < 2 or 2 * len(ranks) < world:
        return None
    silent = sorted(set(range(world)) - ranks)
    if not silent or len({view.places.of_node(rank) for rank in silent}) != 1:
        return None
    return silent, list(lines), f"{len(ranks)} of {world} ranks waited; nothing was heard of rank {_listed(silent)}."


def _listed(ranks: Iterable[int]) -> str:
    shown = list(ranks)
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")


def absent(view: View) -> Finding | None:
    """A node that never came to the rendezvous at which all others waited."""
    lines = view.having(role=Role.CONDITIONAL, reasons=("rendezvous_timeout",))
    waited = {node for found in lines if (node := view.places.node(found)) is not None}
    missing = [node for node in view.attempt.nodes if node not in waited]
    if len(waited) < 2 or len(missing) != 1:
        return None
    why = f"{len(waited)} of {len(view.attempt.nodes)} nodes waited; nothing was heard of {missing[0]}."
    accused = (Suspect(node=missing[0], trust=Trust.USER, because=why),)
    because = f"{REASONS['rendezvous_timeout'].sentence} {why}"
    return Finding("rendezvous_timeout", because, lines, suspects=accused)


def blamed_peer(view: View) -> Finding | None:
    """A peer that several other nodes complain about, and nobody else."""
    for reason in ("ib_link_error", "nccl_network_error"):
        lines = view.having(source=Source.JOB_LOG, role=Role.CONDITIONAL, reasons=(reason,))
        node = _blamed(view, lines)
        if node is not None:
            why = told(view, reason, lines[0])
            accused = (Suspect(node=node, trust=Trust.USER, because=f"All complaints name {node}. {why}"),)
            return Finding(reason, f"{why} All complaints name {node}.", lines, suspects=accused)
    return None


def _blamed(view: View, lines: Iterable[Evidence]) -> str | None:
    addresses = _addresses(view)
    complaints: set[tuple[str, str | None]] = set()
    for found in lines:
        match, host = _PEER.search(found.line), view.places.node(found)
        if match and host:
            complaints.add((host, addresses.get(match[1]) or view.places.known(match[1])))
    return next((peer for peer in view.attempt.nodes if _all_name(peer, complaints)), None)


def _all_name(peer: str, complaints: Iterable[tuple[str, str | None]]) -> bool:
    """Whether several others complain, all of this peer. A node with a broken link complains itself, of anyone."""
    others = {(host, named) for host, named in complaints if host != peer}
    return len({host for host, _ in others}) > 1 and {named for _, named in others} == {peer}


def _addresses(view: View) -> dict[str, str]:
    """IP addresses of the job's nodes, as NCCL announced them."""
    found: dict[str, str] = {}
    for line in view.having(signatures=("bootstrap_address",)):
        match, node = _BOOTSTRAP.search(line.line), view.places.known(frame(line.line).node)
        if match and node:
            found[match[1]] = node
    return found


# What is a cause only if nothing above was, strongest first.
CONDITIONAL = (
    "cancelled_by_user",
    "ib_link_error",
    "gpu_ecc_uncorrectable",
    "silent_data_corruption",
    "node_fail",
    "launch_failed",
    "node_hang",
    "filesystem_io",
    "disk_full",
    "shm_exhausted",
    "nan_loss",
    "illegal_memory_access",
    "cuda_launch_failure",
    "segfault",
    "script_error",
    "dataloader_killed",
    "ucx_transport_error",
    "nccl_network_error",
    "rendezvous_timeout",
    "gloo_connection_error",
    "nccl_timeout",
    "hang",
    "killed_unknown",
    "unknown",
)
_EVERYBODYS = ("rendezvous_timeout", "gloo_connection_error", "nccl_network_error", "nccl_timeout", "hang")


def conditional(view: View) -> Finding | None:
    lines = view.having(role=Role.CONDITIONAL)
    reason = next((code for code in CONDITIONAL if any(found.reason == code for found in lines)), None)
    if reason is None:
        return None
    same = tuple(found for found in lines if found.reason == reason)
    ranks = {view.places.rank(found) for found in same}
    rank = ranks.pop() if len(ranks) == 1 else None
    if rank is None and category(reason) is not Category.NODE:
        rank = only_end(view)
    nodes = suspects(view, _by_itself(same), reason) if REASONS[reason].action is Verdict.REQUEUE_EXCLUDE else ()
    rank = None if reason in _EVERYBODYS else rank
    return Finding(reason, told(view, reason, same[0]), same, rank=rank, suspects=nodes)


def _by_itself(same: Iterable[Evidence]) -> list[Evidence]:
    """What a node's kernel says of itself, or a program of the device it runs on; not what one says of another."""
    return [found for found in same if found.source is Source.KERNEL_LOG or category(found.reason) is Category.HARDWARE]


def consequences(view: View) -> Finding | None:
    """Only lines that follow from something else: their own reason, weakly."""
    lines = [found for found in view.having(role=Role.SECONDARY) if found.reason in REASONS]
    if not lines:
        return None
    reason = lines[0].reason
    return Finding(reason, told(view, reason, lines[0]), tuple(found for found in lines if found.reason == reason))
