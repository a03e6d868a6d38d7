"""The rows about ranks that wait for one another: which of them was late, or did something else.

Owns the comparison of ranks by what they say of their collectives: a barrier that lists who is missing, counters
of work that lag, sequence numbers of what timed out, silence. Collectives are counted for each process group, so
only ranks of one group are compared. A timeout is a cause only where nothing better was found, and names a node
only where the others agree on it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Evidence, Role, Source, Suspect, Trust

# ProcessGroupNCCL.cpp: "[PG ID 0 PG GUID 0(default_pg) Rank 7]"; before 2.4 "[PG 0 Rank 7]"; at first "[Rank 7]".
_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID ([^\]]{1,200}?))?(?: ?\([^)\]]{1,80}\))? Rank \d{1,7}\]")
# "last enqueued NCCL work: 12, last completed NCCL work: 11"; from 2.5 on without the word NCCL
_COUNTERS = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})")
_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?")
_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d{1,18})?(?:, )?"
    r"OpType=(\w{1,40})(?:, TensorShape=\[([\d, ]{0,200})\])?"
)
# TraceUtils.h, with TORCH_NCCL_DESYNC_DEBUG: "[13] finished collective #182, but didn't join collective #183"
_DESYNC = re.compile(r"^\s{0,16}\[(\d[\d, ]{0,400})\] (?:finished|joined)\b")
_BARRIER = re.compile(r"Ranks? (\d[\d, ]{0,400}) failed to pass monitoredBarrier")
# Who prints these waited itself; a dump signal reaches those too that did not.
COUNTERS = ("nccl_work_counters", "nccl_pg_status")
WAITED = ("nccl_watchdog_timeout", *COUNTERS)
# The first collectives of several groups have the same small numbers.
WARMED_UP = 100
# In these every rank of the group passes as much as the others.
_EVEN = ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLREDUCE_COALESCED", "BARRIER")
MINORITY = 4  # odd ranks are at most this part of those that are compared


_Told = TypeVar("_Told")


class Odd(NamedTuple):
    """The ranks that differ from their peers, the lines that show it (theirs first), and a sentence."""

    ranks: list[int]
    evidence: list[Evidence]
    why: str


def lagging(view: View) -> Finding | None:
    """Ranks that the others waited for: named by a barrier, or lower in their counters."""
    odd = _barrier(view) or _desynchronised(view) or _low_counters(view) or _low_sequence(view)
    return _late(view, odd) if odd else None


def silent(view: View) -> Finding | None:
    """Ranks of which nothing was heard while most others waited."""
    odd = _silent(view)
    return _late(view, odd) if odd else None


def _late(view: View, odd: Odd) -> Finding:
    because = f"{REASONS['nccl_timeout'].sentence} {odd.why}"
    rank = odd.ranks[0] if len(odd.ranks) == 1 else None
    return Finding("nccl_timeout", because, tuple(odd.evidence), rank=rank, suspects=of_ranks(view, odd.ranks, because))


def of_ranks(view: View, ranks: Sequence[int], because: str) -> tuple[Suspect, ...]:
    """The node that all these ranks ran on, where it is one."""
    nodes = {view.places.of_node(rank) for rank in ranks}
    node = nodes.pop() if len(nodes) == 1 else None
    return (Suspect(node=node, trust=Trust.USER, because=because),) if node else ()


def mismatched(view: View) -> Finding | None:
    """Ranks that waited in different collectives of the same number: the program's own fault."""
    for name, group in sorted(_works(view).items()):
        by_sequence: dict[int, dict[int, tuple[str, Evidence]]] = defaultdict(dict)
        for member, (number, work, found) in group.items():
            by_sequence[number][member] = work, found
        for number, works in by_sequence.items():
            if odd := _different(number, works, named=bool(name)):
                because = f"{REASONS['collective_mismatch'].sentence} {odd.why}"
                rank = odd.ranks[0] if len(odd.ranks) == 1 else None
                return Finding("collective_mismatch", because, tuple(odd.evidence), rank=rank)
    return None


def odd_fingerprint(lines: Iterable[Evidence]) -> tuple[int | None, bool]:
    """The one rank that ran another collective than all others, by what each says of itself; and whether any did.

    ProcessGroupWrapper gives the other's collective too, but has been seen to misprint it (PyTorch 2.13).
    """
    told: dict[int, str] = {}
    for found in lines:
        if match := _FINGERPRINT.search(found.line):
            told[int(match[1])] = f"{match[2]} {match[3]}"
    votes = Counter(told.values()).most_common()
    odd = [rank for rank, work in told.items() if votes and work != votes[0][0]]
    return (odd[0] if len(odd) == 1 and votes[0][1] > 1 else None), len(told) > 1


def _different(number: int, works: Mapping[int, tuple[str, Evidence]], *, named: bool) -> Odd | None:
    """Where the lines name no group, one odd rank at most: several may well be of a group of their own."""
    votes = Counter(work for work, _ in works.values())
    if len(votes) < 2 or number < WARMED_UP:
        return None
    (usual, most), *_ = votes.most_common()
    ranks = sorted(rank for rank, (work, _) in works.items() if work != usual)
    if most < 2 or MINORITY * len(ranks) > len(works) or (len(ranks) > 1 and not named):
        return None
    other = next(found for work, found in works.values() if work == usual)
    why = f"Collective {number} was {works[ranks[0]][0]} on rank {listed(ranks)} and {usual} on {most} others."
    return Odd(ranks, [*(works[rank][1] for rank in ranks), other], why)


def _barrier(view: View) -> Odd | None:
    for found in view.having(signatures=("monitored_barrier",)):
        if (match := _BARRIER.search(found.line)) and (ranks := _numbers(match[1])):
            return Odd(ranks, [found], f"Ranks {listed(ranks)} did not reach the barrier.")
    return None


def _desynchronised(view: View) -> Odd | None:
    """The ranks that torch's desync report names as behind, where all reports agree on them and they are few."""
    lines = view.having(signatures=("desync_behind",))
    reports = {tuple(_numbers(match[1])) for found in lines if (match := _DESYNC.match(frame(found.line).text))}
    ranks = list(reports.pop()) if len(reports) == 1 else []
    if not ranks or MINORITY * len(ranks) > (view.places.world or 0):
        return None
    return Odd(ranks, list(lines), f"The others' reports say that rank {listed(ranks)} was behind.")


def _numbers(text: str) -> list[int]:
    return sorted({int(part) for part in text.replace(" ", "").split(",") if part.isdecimal()})


def _group(line: str) -> str:
    """The process group that a line speaks of; "" where it names none, and for the default one."""
    match = _GROUP.search(line, 0, 600)
    if match is None or (match[1] == "0" and "undefined" not in (match[2] or "")):
        return ""
    return f"{match[1]} {match[2] or ''}"


def _low_counters(view: View) -> Odd | None:
    """The ranks that had enqueued less than most others of their group, or completed less of the same."""
    groups: dict[str, dict[int, tuple[int, int, Evidence]]] = defaultdict(dict)
    for found in view.having(signatures=(*COUNTERS, "nccl_dump_signal")):
        match, rank = _COUNTERS.search(found.line), view.rank(found)
        if match and rank is not None:
            told = int(match[1]), int(match[2]), found
            last = groups[_group(found.line)].get(rank)
            groups[_group(found.line)][rank] = max(last, told, key=lambda one: one[:2]) if last else told
    for group in _in_order(groups):
        enqueued = {rank: (told[0], told[2]) for rank, told in group.items()}
        completed = {rank: (told[1], told[2]) for rank, told in group.items()}
        odd = _low(enqueued, "had enqueued less than") or _low(completed, "had completed less than", few=True)
        if odd:
            return odd
    return None


def _low_sequence(view: View) -> Odd | None:
    """The ranks that timed out in an earlier collective than most others of their group."""
    for group in _in_order(_works(view)):
        numbers = {rank: (number, found) for rank, (number, _, found) in group.items() if number >= WARMED_UP}
        if odd := _low(numbers, "waited in an earlier collective than", few=True):
            return odd
    return None


def _works(view: View) -> dict[str, dict[int, tuple[int, str, Evidence]]]:
    """Of each group, the collective in which each rank timed out first: its number, and what it was."""
    groups: dict[str, dict[int, tuple[int, str, Evidence]]] = defaultdict(dict)
    for found in view.having(signatures=("nccl_watchdog_timeout",)):
        match, rank = _WORK.search(found.line), view.rank(found)
        if match and rank is not None:
            told = int(match[1]), _called(match), found
            last = groups[_group(found.line)].get(rank)
            groups[_group(found.line)][rank] = min(last, told, key=lambda one: one[0]) if last else told
    return groups


def _called(match: re.Match[str]) -> str:
    """The collective, with its size where that is the same on all ranks."""
    size = f" of {match[3]} elements" if match[3] and match[2] in _EVEN else ""
    return f"{match[2]}{size}"


def _in_order(groups: Mapping[str, _Told]) -> list[_Told]:
    """The default group first: all ranks are in it."""
    return [groups[name] for name in sorted(groups)]


def _low(told: Mapping[int, tuple[int, Evidence]], what: str, *, few: bool = False) -> Odd | None:
    """The ranks below the number that most of at least three tell."""
    if len(told) < 3:
        return None
    usual, votes = Counter(count for count, _ in told.values()).most_common(1)[0]
    ranks = sorted(rank for rank, (count, _) in told.items() if count < usual)
    if not ranks or len(ranks) >= votes or (few and MINORITY * len(ranks) > len(told)):
        return None
    other = next(found for count, found in told.values() if count == usual)
    counts = ", ".join(map(str, sorted({told[rank][0] for rank in ranks})[:3]))
    why = f"Rank {listed(ranks)} {what} {votes} others ({counts} against {usual})."
    return Odd(ranks, [*(told[rank][1] for rank in ranks), other], why)


def _silent(view: View) -> Odd | None:
    """The ranks that reported no timeout, nor a lost peer, while most others did."""
    world = view.places.world
    lines = view.having(signatures=WAITED)
    ranks = {rank for found in lines if (rank := view.rank(found)) is not None}
    if world is None or len(ranks) < 2 or 2 * len(ranks) < world or view.unread(Source.JOB_LOG):
        return None
    told = [found for found in view.having(source=Source.JOB_LOG) if found.line not in view.places.by_line]
    spoke = {view.rank(found) for found in told if found.role is not Role.NOISE}
    silent = sorted(set(range(world)) - ranks)
    if not silent or spoke & set(silent) or len({view.places.of_node(rank) for rank in silent}) != 1:
        return None
    why = f"{len(ranks)} of {world} ranks waited; nothing was heard of rank {listed(silent)}."
    return Odd(silent, list(lines), why)


def listed(ranks: Iterable[int]) -> str:
    shown = list(ranks)
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")
