"""What a line means by what stands further on in it, or around it, where its first words leave it open.

Owns numbers and reasons inside messages: whose memory is in use, why a library could not be loaded, why a step was
not launched; ranks that cannot exist; and the blocks in which a launcher repeats one rank's output. Decides no cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.srun_words import task_end
from slurm_recovery.records import Attempt, Evidence, Role, Source

MOST_LOCAL = 64  # ranks on one node, where a launcher starts them
LONGEST = 600
_Change = dict[str, Any]

# CUDACachingAllocator.cpp reportProcessMemoryInfo: each process of NVML's list by its pid, but `this process` where
# that is getpid(). In a container NVML tells the host's pids, so that the program itself is one of the numbers.
_HOLDS = re.compile(r"\. Process (\d{1,10}) has ")
_ITSELF = "this process has"
MOST_STRANGERS = 2  # more processes on one device are ranks that all took it


def _memory(evidence: Evidence) -> _Change | None:
    """Memory that no other process than the job's own holds."""
    holders = set(_HOLDS.findall(evidence.line[:LONGEST]))
    strangers = len(holders) - (0 if _ITSELF in evidence.line else 1)
    return None if 0 < strangers <= MOST_STRANGERS else {"reason": "cuda_oom"}


# slurm src/common/slurm_errno.c: what a node, its slurmd or the way to it was not able to do, and what no node can.
_OF_THE_NODE = re.compile(
    r"(?i)communication|credential|prolog|socket|transmitted|receive|slurmd|not found on host|not available|timed out"
    r"|authentication|i/o error|not respond|protocol|connection|unspecified"
)
_OF_THE_REQUEST = re.compile(r"(?i)layout tasks|cpu bind|distribut|memory required|invalid (?:mpi|core|gres|generic)")


def _launch(evidence: Evidence) -> _Change | None:
    """A launch that failed for what the step asks for is against no node; nor is one that tells nothing of a node."""
    by_task = evidence.line.partition(" launch failed: ")[2]
    why = (by_task or evidence.line.partition(" failed on node ")[2].partition(": ")[2])[:LONGEST]
    if _OF_THE_REQUEST.search(why):
        return {"reason": "slurm_config_error", "node": None}
    return None if _OF_THE_NODE.search(why) else {"node": None}


# strerror(3) within a message: Python, dlopen(3), C++ and Rust (`Os { code: 5, kind: ..., message: "..." }`).
_ERRNO = re.compile(
    r"(?:: |\] |message: \")(?P<text>Stale (?:NFS )?file handle|Input/output error|Remote I/O error"
    r"|No space left on device|Disk quota exceeded|Cannot send after transport endpoint shutdown"
    r"|Transport endpoint is not connected|Too many open files|Permission denied)\b"
)
_OF_FILES_OR_NOT = ("Transport endpoint is not connected", "Permission denied")
_NAMES_A_FILE = re.compile(r"/[\w.-]{1,120}/")
_BY_ERRNO = {
    "No space left on device": "disk_full",
    "Disk quota exceeded": "quota_exceeded",
    "Too many open files": "resource_limit",
    "Permission denied": "permission_denied",
}
_MESSENGERS = ("import_error", "python_exception", "checkpoint_corrupt", "data_corrupt", "unknown")


def _errno(evidence: Evidence) -> _Change | None:
    """An exception of whatever kind whose reason is the operating system's."""
    if evidence.reason not in _MESSENGERS or evidence.role is not Role.ROOT:
        return None
    line = evidence.line[:LONGEST]
    match = _ERRNO.search(line)
    if match is None or (match["text"] in _OF_FILES_OR_NOT and _NAMES_A_FILE.search(line) is None):
        return None
    return {"reason": _BY_ERRNO.get(match["text"], "filesystem_io")}


# Exceptions that libraries raise for whatever failed below them; others tell of the program's own mistakes.
OF_ANYTHING = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:RuntimeError|OSError|IOError|SystemError|InternalError|Exception): "
)
# Words of devices, links and drivers that no mistake of a program's own brings about.
_BELOW = re.compile(
    r"(?i)\b(?:uncorrectable|multi[- ]bit|double[- ]bit|parity error|ecc (?:error|fault)"
    r"|hardware (?:error|fault|failure|exception)"
    r"|device (?:is |was )?(?:lost|acquire|fault|hung|hang|reset|removed|disconnected|unreachable|not responding)"
    r"|(?:driver|firmware|pcie|nvlink|xgmi|hccs|link|port) (?:error|fault|failure|crash|is down|went down|timed out)"
    r"|no such device|device or resource busy|link down|bus error|fell off|fallen off|remote i/o|stale file|heartbeat)"
    r"|/dev/(?:nvidia|accel|vfio|davinci|kfd|dri|infiniband|hl)"
)


def _bare(evidence: Evidence) -> _Change | None:
    """An exception of anything that tells of what lies below the program: that no signature knows it proves nothing."""
    text = frame(evidence.line).text[:LONGEST]
    if evidence.signature != "python_exception" or not OF_ANYTHING.match(text) or not _BELOW.search(text):
        return None
    return {"reason": "unknown", "role": Role.CONDITIONAL}


# Ray's GCS tells of a node by its address alone.
_ADDRESS = re.compile(r"\baddress: (?P<ip>\d{1,3}(?:\.\d{1,3}){3})\b")


def _address(evidence: Evidence) -> _Change | None:
    if evidence.node is not None or evidence.count > 1:  # lines that differ in the address alone are counted as one
        return None
    match = _ADDRESS.search(evidence.line, 0, LONGEST)
    return {"node": match["ip"]} if match else None


_BY_SIGNATURE: dict[str, Callable[[Evidence], _Change | None]] = {
    "gpu_foreign_process": _memory,
    "task_launch_failed": _launch,
    "task_number_launch_failed": _launch,
    "ray_node_dead": _address,
}


def read(evidence: Iterable[Evidence], attempt: Attempt) -> tuple[Evidence, ...]:
    """The evidence with what its lines say in full, without lines of ranks that cannot be."""
    possible = [_whole(found) for found in evidence if not _impossible(found, attempt)]
    odd = _odd_rank(possible, attempt)
    return tuple(_in_blocks([found for found in possible if odd is None or found.rank != odd]))


def _whole(evidence: Evidence) -> Evidence:
    if evidence.source is not Source.JOB_LOG:
        return evidence
    special = _BY_SIGNATURE.get(evidence.signature)
    change = special(evidence) if special else _errno(evidence) or _bare(evidence)
    return evidence.model_copy(update=change) if change else evidence


_TOO_LONG = re.compile(r"\[[Rr]ank[: ]{0,2}\d{8}")


def _impossible(evidence: Evidence, attempt: Attempt) -> bool:
    """Whether the line says that it is of a rank that no job of so many nodes has."""
    if evidence.source is not Source.JOB_LOG:
        return False
    head = frame(evidence.line)
    if head.rank is not None and attempt.nodes:
        return head.rank >= len(attempt.nodes) * max(MOST_LOCAL, attempt.ntasks_per_node or 256)
    return head.rank is None and _TOO_LONG.match(head.text) is not None


def _odd_rank(evidence: Sequence[Evidence], attempt: Attempt) -> int | None:
    """The only rank beyond srun's tasks, where the tasks that failed are the very ranks that told of errors."""
    tasks = len(attempt.nodes) * (attempt.ntasks_per_node or 0)
    log = [found for found in evidence if found.source is Source.JOB_LOG]
    beyond = {found.rank for found in log if found.rank is not None and found.rank >= tasks}
    if len(beyond) != 1 or (attempt.ntasks_per_node or 0) < 2:
        return None
    ends = [end for found in log if (end := task_end(found.line)) is not None]
    failed = {end.only for end in ends if end.how.startswith("Exited")}
    told = {found.rank for found in log if found.role is Role.ROOT and found.rank is not None}
    return beyond.pop() if failed and failed <= told - beyond else None


# Signatures of the lines around what a launcher repeats: MosaicML composer/cli/launcher.py; torch.multiprocessing.spawn
_BEGINS, _ENDS, _SPAWNED = "rank_block_begins", "rank_block_ends", "spawn_process"


def _in_blocks(evidence: Sequence[Evidence]) -> Iterator[Evidence]:
    """Gives lines without a printer of their own the rank in whose block they stand.

    A line that was seen more than once may be of several blocks.
    """
    block: _Change = {}
    path = ""
    for found in evidence:
        here = found.place.rpartition(":")[0]
        if found.signature in (_ENDS, "task_end") or here != path:
            block, path = {}, here
        if found.signature == _BEGINS and found.rank is not None:
            block = {"rank": found.rank}
        elif found.signature == _SPAWNED and found.local_rank is not None:
            block = {"local_rank": found.local_rank}
        yield found.model_copy(update=block) if block and _printed_by_nobody(found) else found


def _printed_by_nobody(found: Evidence) -> bool:
    known = (found.rank, found.local_rank, found.node)
    return bool(found.reason) and found.count == 1 and found.source is Source.JOB_LOG and known == (None, None, None)
