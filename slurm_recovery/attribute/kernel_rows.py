"""The rows in which a node's kernel has the word about its own devices, memory and disks.

Owns which of the kernel's lines count for this attempt, which of several came first, and which rank felt it. Its
words about links and file systems are in shared_rows.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_recovery.attribute.first_rank import first_end_on, first_rank_on, killed_on
from slurm_recovery.attribute.view import HOUR, Finding, View, category, in_order, others, suspects, told, with_first
from slurm_recovery.attribute.window import kernel_pid, pids
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.notes import CLOCK
from slurm_recovery.records import Category, Evidence, Role, Source

# Xid 79 after a fatal AER: the bus is the cause. Otherwise the first line counts.
_BEFORE_ALL = ("pcie_error", "host_memory_error")
_DEVICE_OWNERS = (Category.HARDWARE, Category.NODE)
_VICTIM = re.compile(r"Killed process \d{1,10} \(([^)]{1,40})\)|task=([^,]{1,40}),")
_JOBS_OWN = ("python", "pt_main", "pt_data", "ray", "torchrun", "mpirun", "java")
_CGROUP_JOB = re.compile(r"/job_(\d{1,12})\b")
OUTLIVED_AFTER = 1 * HOUR  # a program that is at work for so long after a kernel's line has outlived it
_MAY_PASS = ("node_hang", "local_disk_failure", "host_oom")
_SLURM_SAYS = ("srun: ", "slurmstepd")


def _kernel(view: View, *, doubted: bool) -> tuple[Evidence, ...]:
    found_all = view.having(source=Source.KERNEL_LOG, role=Role.ROOT, categories=_DEVICE_OWNERS)
    lines = in_order([found for found in found_all if (id(found) in view.doubted) is doubted])
    last = _last_word(view)
    return tuple(found for found in lines if last is None or not _outlived(found, last))


def _last_word(view: View) -> Evidence | None:
    """The last date that the program printed; None where somebody waited at its end, for then it was not at work."""
    clock = [found for found in view.having(source=Source.JOB_LOG, signatures=(CLOCK,)) if found.time is not None]
    waited = view.having(role=Role.CONDITIONAL, categories=(Category.INTERCONNECT,)) or view.having(reasons=("hang",))
    return max(clock, key=lambda found: found.time or 0.0) if clock and not waited else None


def _outlived(kernel: Evidence, last: Evidence) -> bool:
    """Whether the program was at work long after the kernel's line.

    Two times without a zone may be of a host's and of a container's, so then only what may pass is taken to have
    passed.
    """
    zoned = frame(kernel.line).zoned
    if kernel.time is None or last.time is None or zoned is not frame(last.line).zoned:
        return False
    if not zoned and kernel.reason not in _MAY_PASS:
        return False
    return last.time - kernel.time > OUTLIVED_AFTER and not last.line.lstrip().startswith(_SLURM_SAYS)


def kernel_hardware(view: View) -> Finding | None:
    """A node's kernel reports its GPU, bus, memory, disk, or itself."""
    return _hardware(view, _kernel(view, doubted=False)) or kernel_memory(view)


def doubted_hardware(view: View) -> Finding | None:
    """The same of a line that may be of another time or job: only where the program itself reported nothing."""
    return _hardware(view, _kernel(view, doubted=True))


def _hardware(view: View, lines: Sequence[Evidence]) -> Finding | None:
    if not lines:
        return None
    first = min(lines, key=lambda found: found.reason not in _BEFORE_ALL)
    same = tuple(found for found in lines if found.reason == first.reason)
    return Finding(
        first.reason,
        told(view, first.reason, first),
        with_first(first, same),
        rank=_rank_of(view, first),
        suspects=suspects(view, same, first.reason),
        rivals=others(first, lines, lambda found: _after_hardware(first, found)),
    )


def _rank_of(view: View, kernel: Evidence) -> int | None:
    """The rank of the process that the kernel names, else the first on its node, else the only one that felt it."""
    rank = _of_process(view, kernel)
    rank = rank if rank is not None else first_rank_on(view, view.node(kernel))
    rank = rank if rank is not None else first_end_on(view, view.node(kernel))
    return rank if rank is not None else _only_one_hurt(view)


def _of_process(view: View, kernel: Evidence) -> int | None:
    pid, node = kernel_pid(kernel.line), view.node(kernel)
    if pid is None or node is None:
        return None
    alone = len(view.attempt.nodes) == 1
    for found in view.having(source=Source.JOB_LOG):
        if pid in found.line and pid in pids(found.line) and view.node(found) == node:
            rank = view.rank(found)
            rank = frame(found.line).local_rank if rank is None and alone else rank
            if rank is not None:
                return rank
    return None


def _only_one_hurt(view: View) -> int | None:
    """The one rank that reported more than a lost peer, where nothing tells on which node it ran."""
    hurt = [
        found
        for found in view.having(source=Source.JOB_LOG)
        if found.role in (Role.ROOT, Role.CONDITIONAL) and category(found.reason) is not Category.INTERCONNECT
    ]
    ranks = {view.rank(found) for found in hurt}
    unplaced = all(view.node(found) is None for found in hurt)
    return ranks.pop() if len(ranks) == 1 and unplaced else None


def _after_hardware(first: Evidence, found: Evidence) -> str:
    if first.reason in _BEFORE_ALL and found.reason not in _BEFORE_ALL:
        return "a fault of bus or memory shows in the devices behind it"
    return f"it came after {first.place}"


def kernel_memory(view: View) -> Finding | None:
    """The kernel's OOM killer: within the job's cgroup the job's own doing, else the node's."""
    lines = [
        found
        for found in in_order(view.having(source=Source.KERNEL_LOG, role=Role.ROOT, reasons=("host_oom",)))
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
    rank = _of_process(view, next((one for one in lines if "Killed process" in one.line), first))
    rank = rank if rank is not None else first_rank_on(view, first.node)
    rank = rank if rank is not None else killed_on(view, first.node)
    return Finding("host_oom", told(view, "host_oom", first), tuple(lines), rank=rank)


def _may_be_ours(evidence: Evidence, job_id: int) -> bool:
    jobs = _CGROUP_JOB.findall(evidence.line)
    return not jobs or not job_id or str(job_id) in jobs


def _victim_is_the_jobs(evidence: Evidence) -> bool:
    match = _VICTIM.search(evidence.line)
    return match is None or (match[1] or match[2]).startswith(_JOBS_OWN)
