"""The rows in which the program has the word: a device error that it reports, and a rank's own error.

Owns which of several such errors came first, and which were no end. When the same message is a node's fault is
judged in one_node.py, which rank was first in first_rank.py. Kernels have the word in kernel_rows.py, links and file
systems in shared_rows.py, bare timeouts in lagging.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from slurm_recovery.attribute.first_rank import first_rank_on, followers, many_alike, only_end, root_rank
from slurm_recovery.attribute.lagging import odd_fingerprint
from slurm_recovery.attribute.layout import counted
from slurm_recovery.attribute.one_node import BY_COMPARISON, on_one_node
from slurm_recovery.attribute.reading import OF_ANYTHING
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import (
    HOUR,
    MOST_RIVALS,
    Finding,
    Rival,
    View,
    in_order,
    others,
    suspects,
    told,
    with_first,
)
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.notes import CLOCK, TABLE
from slurm_recovery.records import Category, Evidence, Role, Source, Suspect

_LOCAL_OWNERS = (Category.STORAGE, Category.SOFTWARE_ENV, Category.APPLICATION, Category.NODE)
HANDLED_AFTER = 1 * HOUR  # a program that goes on printing for so long has handled its error
_MESSENGER = 2  # the weight of any exception at all
_WEIGHTS = {
    "path_missing": 1,
    "python_exception": _MESSENGER,
    "loader_exception": _MESSENGER,
    "mpi_abort": 3,
    "mpi_exited": 3,
}
# rerun_state_machine.py: printed by the GPU on which the result was right, so that its own node is well; the one
# before, which asked for another GPU, is not
_ELSEWHERE = ("not reproducible on a different GPU", "Possible persistent error")
_ASKED = "megatron_undecided"
_OF_ARGUMENTS = re.compile(
    r"(?i)shape|size|dtype|type|expect|must|argument|index|grad|tensor|match|invalid|implement|support|key|config|option"
)
_LAUNCHED = (2, 4, 6, 8, 10, 12, 16)  # devices in one host
_SHELLS = ("command_not_found", "permission_denied", "script_syntax")
_SHELL = re.compile(r"(?:slurm_script|\.sh|\b(?:ba|z|da)?sh): (?:line \d{1,6}: )?(?!line |syntax error|unexpected EOF)")
_STEPD = "slurmstepd: "  # which ends with the task that it could not execute
_NOT_RUN = (126, 127)  # a shell's status for what it may not execute, or does not find: bash(1) EXIT STATUS
_OF_THE_SCRIPT = ("/slurm_script: ", "execve(): ")  # said of the batch script or the launcher, before any rank
_LOGGED = re.compile(r"\b(?:ERROR|CRITICAL)\b[ |:-]{1,8}\[?rank[ =]\d")  # detect/prefixes.py
_BY_ITSELF = ("Exited", "Segmentation", "Bus error", "Aborted")
_OF_CONTAINERS = ("mount_missing", "driver_mismatch")
_STEPDS = "slurm_oom"
_SLURMS = "srun_node_failure"  # a word about the job, see slurm_rows.py


def device_error(view: View) -> Finding | None:
    """A device error that the program reports."""
    lines = in_order(view.having(source=Source.JOB_LOG, role=Role.ROOT, categories=(Category.HARDWARE,)))
    if not lines:
        return None
    first = lines[0]
    same = tuple(found for found in lines if found.reason == first.reason)
    rank = next((rank for found in same if (rank := view.rank(found)) is not None), None)
    if rank is None:
        node = view.node(first)
        rank = first_rank_on(view, node) if node else only_end(view)
    rank, node = _of_table(view) if rank is None and view.node(first) is None else (rank, None)
    accused = [found for found in same if not any(words in found.line for words in _ELSEWHERE)]
    by_rank = _suspect_of_rank(view, first, rank, node) if accused else ()
    asked = () if accused else view.having(signatures=(_ASKED,))
    nodes = suspects(view, accused or asked, first.reason) or by_rank
    rivals = others(first, lines, lambda found: f"it came after {first.place}")
    rank = None if many_alike(view, first, same) else rank
    return Finding(first.reason, told(view, first.reason, first), same, rank=rank, suspects=nodes, rivals=rivals)


def _of_table(view: View) -> tuple[int | None, str | None]:
    """The rank and node of the only process that torchrun's tables list."""
    entries = {(found.rank, view.node(found)) for found in view.having(signatures=(TABLE,))}
    return entries.pop() if len(entries) == 1 else (None, None)


def _suspect_of_rank(view: View, evidence: Evidence, rank: int | None, named: str | None) -> tuple[Suspect, ...]:
    told_node = view.places.of_node(rank) if rank is not None and view.node(evidence) is None else None
    relayed = frame(evidence.line).relayed or view.node(evidence) is not None
    node = named or told_node or (None if relayed else _failed_launcher(view, rank))
    if node is None:
        return ()
    return (Suspect(node=node, trust=evidence.trust, because=told(view, evidence.reason, evidence)),)


def _failed_launcher(view: View, rank: int | None) -> str | None:
    """The only host whose launcher failed by itself, where the rank, if one is told, can be one of that launcher's.

    torch counts ranks in the order of the launchers: elastic/agent/server/api.py.
    """
    ends = [end for end in view.places.ends if end.how.startswith("Exited")]
    nodes, task = view.attempt.nodes, ends[0].only if len(ends) == 1 else None
    if task is None or view.attempt.ntasks_per_node != 1 or view.places.tasks_are_ranks or len(ends[0].hosts) != 1:
        return None
    node, most = view.places.known(ends[0].hosts[0]), max(found.rank or 0 for found in view.evidence)
    fits = rank is None or any(rank // size == task and most < size * len(nodes) for size in _LAUNCHED)
    return node if fits and node is not None and node == counted(task, 1, nodes) else None


def local_error(view: View) -> Finding | None:
    """The first error of a rank's own; a specific message before a bare Python exception."""
    ending, went_on = _local(view)
    lines = in_order(_within_containers(ending))
    if not lines:
        return None
    odd = only_end(view)
    likely = {odd, None} if odd is not None else {view.rank(found) for found in lines}
    crowd = followers(view, lines)
    first = min(lines, key=lambda found: (_generic(found), id(found) in crowd, view.rank(found) not in likely))
    apart = frozenset() if id(first) in crowd else crowd
    same = tuple(found for found in lines if found.reason == first.reason and id(found) not in apart)
    rivals = others(first, lines, lambda found: _less_likely(view, first, found, odd))
    finding = on_one_node(view, first, same) or _everywhere(view, first, same)
    return replace(finding, rivals=rivals + _handled(went_on))


def _within_containers(lines: Sequence[Evidence]) -> list[Evidence]:
    """The errors without those of a container's start, where its own log tells what the node lacked."""
    told_why = any(found.reason in _OF_CONTAINERS for found in lines)
    return [found for found in lines if not (told_why and found.reason == "container_start_failed")]


def _local(view: View) -> tuple[list[Evidence], list[Evidence]]:
    """The errors that the program reported of itself; and those after which it went on, so that they were no end.

    It went on where it printed dates for long after, and nobody waited for anybody at its end.
    """
    found_all = view.having(source=Source.JOB_LOG, role=Role.ROOT, categories=_LOCAL_OWNERS)
    went_on = _shell_went_on(view, found_all)
    lines = [
        found
        for found in found_all
        if found.signature != _SLURMS
        and id(found) not in went_on
        and not of_a_task(view, found)
        and not _only_logged(view, found)
    ]
    clock = view.having(source=Source.JOB_LOG, signatures=(CLOCK,))
    last = max((found.time for found in clock if found.time is not None), default=None)
    if last is None or view.having(role=Role.CONDITIONAL, categories=(Category.INTERCONNECT,)):
        return lines, []
    ending = [found for found in lines if found.time is None or last - found.time < HANDLED_AFTER]
    kept = {id(found) for found in ending}
    return ending, [found for found in lines if id(found) not in kept]


def _only_logged(view: View, found: Evidence) -> bool:
    """Whether a logger printed the exception, and nothing tells that its rank ended: it may have been caught."""
    logged = _LOGGED.search(found.line, 0, 300) or frame(found.line).record
    if found.signature != "python_exception" or not logged:
        return False
    rank, tables = view.rank(found), {one.rank for one in view.having(signatures=(TABLE,))}
    ended = any(end.how.startswith(_BY_ITSELF) and any(rank in span for span in end.tasks) for end in view.places.ends)
    return rank is None or not ((view.places.tasks_are_ranks and ended) or rank in tables)


def of_a_task(view: View, found: Evidence) -> bool:
    """Whether slurmstepd's word about memory stands in a task's own output, and Slurm's state is another.

    Then it may be the task's own text: that memory ran out Slurm's state tells, or the kernel.
    """
    labelled = found.signature == _STEPDS and frame(found.line).task is not None
    return labelled and view.attempt.state not in ("", "OUT_OF_MEMORY")


def _shell_went_on(view: View, lines: Sequence[Evidence]) -> frozenset[int]:
    """id() of the errors after which a shell went on: all but the last command's, whose status it returns."""
    said = [found for found in lines if found.signature in _SHELLS and not found.line.startswith(_STEPD)]
    of_shells = [found for found in said if _SHELL.search(found.line, 0, 300)]
    statuses = {f"Exited with exit code {code}" for code in _NOT_RUN}
    ended = view.attempt.exit_code in _NOT_RUN or any(end.how in statuses for end in view.places.ends)
    if ended or not of_shells:
        return frozenset()
    order = {id(found): number for number, found in enumerate(view.evidence)}
    told = (found for found in view.having(source=Source.JOB_LOG) if found.role is not Role.NOISE)
    last = max((order[id(found)] for found in told if found.signature not in _SHELLS), default=-1)
    return frozenset(id(found) for found in of_shells if order[id(found)] < last)


def messengers_only(view: View) -> list[Evidence]:
    """The errors that the program reported of itself, where all are exceptions that tell no cause; else none."""
    lines = _local(view)[0]
    return [] if any(_generic(found) < _MESSENGER for found in lines) else lines


def handled(view: View) -> tuple[Rival, ...]:
    """Errors that were no end: the program printed on."""
    return _handled(_local(view)[1])


def _handled(lines: Sequence[Evidence]) -> tuple[Rival, ...]:
    first = {found.reason: found for found in reversed(lines)}
    why = f"the program went on for more than {HANDLED_AFTER / HOUR:.0f} h after it"
    return tuple(Rival(found.reason, why, found) for found in list(first.values())[:MOST_RIVALS])


def _generic(evidence: Evidence) -> int:
    """A messenger weighs less than a message: a file that is missing, any exception at all, then an abort after it."""
    return _WEIGHTS.get(evidence.signature, 0)


def _less_likely(view: View, first: Evidence, found: Evidence, odd: int | None) -> str:
    if _generic(found) > _generic(first):
        return f"{first.place} names the error itself, this only that there was one"
    if odd is not None and view.rank(found) not in (odd, None):
        return f"srun saw task {odd} end by itself, not task {view.rank(found)}"
    if first.time is not None and found.time is not None and found.time > first.time:
        return f"it came {found.time - first.time:.0f} s after {first.place}"
    return f"it was printed after {first.place}"


def _everywhere(view: View, first: Evidence, same: Sequence[Evidence]) -> Finding:
    row = REASONS[first.reason]
    somewhere = _somewhere(view, first, same)
    reason = row.code if somewhere else row.otherwise or row.code
    reason = row.one_node or reason if somewhere and _one_address(view, same) else reason
    odd, compared = odd_fingerprint(same)
    unknown = any(words in first.line for words in _OF_THE_SCRIPT)
    rank = odd if compared else None if unknown else root_rank(view, first, same)
    reason = "unknown" if _of_a_whole_node(view, first, same) else reason
    return Finding(reason, told(view, reason, first), with_first(first, same), rank=rank)


def _of_a_whole_node(view: View, first: Evidence, same: Sequence[Evidence]) -> bool:
    """Whether all ranks of one node, and no other's, raised what libraries raise for anything.

    A program's own mistake chooses no host, unless it is one of a group of ranks: then the words are of arguments.
    """
    text = frame(first.line).text[:300]
    if first.signature != "python_exception" or not OF_ANYTHING.match(text) or _OF_ARGUMENTS.search(text):
        return False
    nodes, per_node = {view.node(found) for found in same}, view.attempt.ntasks_per_node or 0
    whole = len({view.rank(found) for found in same} - {None}) >= per_node > 1
    return whole and len(nodes) == 1 and None not in nodes and len(view.attempt.nodes) > 1


def _one_address(view: View, same: Sequence[Evidence]) -> bool:
    """Whether several ranks, all at one address, say it: then one node does, of which only the name is not known."""
    addresses = {frame(found.line).ip for found in same if view.node(found) is None}
    return len(same) > 1 and len(addresses) == 1 and None not in addresses


def _somewhere(view: View, first: Evidence, same: Sequence[Evidence]) -> bool:
    """Whether a message of a node's own came from one node, of which only the name is not known."""
    if len(view.attempt.nodes) < 2 or REASONS[first.reason].code in BY_COMPARISON:
        return False
    if _one_address(view, same):
        return True
    nodes = {view.node(found) for found in same}
    return nodes == {None} and not any(found.count > 1 for found in same)
