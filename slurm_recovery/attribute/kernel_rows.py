"""The rows in which a node has the word about its own devices, memory and disks: its kernel, then NVML.

Owns which of the kernel's lines count for this attempt, which of several came first, and which rank felt it. The
kernel's words about links and file systems are in shared_rows.py.

A kernel's line tells of an event and has its time. What NVML shows after the end is a state, which may be older than
the attempt. So the kernel's line comes first, and a reading bears it out. A reading alone outranks what the program
printed only where no program can work with the state (a GPU that is lost or missing), or where the program told of
the very same; any other counts like a doubted line, where the program itself reported nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_recovery.attribute.first_rank import first_end_on, first_rank_on, killed_on
from slurm_recovery.attribute.view import HOUR, Finding, View, category, in_order, others, suspects, told, with_first
from slurm_recovery.attribute.window import LONG_STATES, kernel_pid, pids
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.notes import CLOCK
from slurm_recovery.detect.readings import READINGS
from slurm_recovery.records import Category, Evidence, Role, Source

# Xid 79 after a fatal AER: the bus is the cause. Otherwise the first line counts.
_BEFORE_ALL = ("pcie_error", "host_memory_error")
# What the driver concludes of other Xids, whichever of them the log shows first.
_AFTER_ALL = ("xid_reboot_required",)
_DEVICE_OWNERS = (Category.HARDWARE, Category.NODE)
_FELT = (Role.ROOT, Role.CONDITIONAL)
_VICTIM = re.compile(r"Killed process \d{1,10} \(([^)]{1,40})\)|task=([^,]{1,40}),")
_JOBS_OWN = ("python", "pt_main", "pt_data", "ray", "torchrun", "mpirun", "java")
_CGROUP_JOB = re.compile(r"/job_(\d{1,12})\b")
OUTLIVED_AFTER = 1 * HOUR  # a program that is at work for so long after a kernel's line has outlived it
_MAY_PASS = ("node_hang", "local_disk_failure", "host_oom")
_SLURM_SAYS = ("srun: ", "slurmstepd")
_STRENGTH = {row.name: number for number, row in enumerate(READINGS)}
_NONE_WORKS_WITH = ("gpu_fell_off_bus", "gpu_missing")


def hardware_lines(view: View) -> tuple[Evidence, ...]:
    """The kernel's lines about its devices, adapters, disks and itself that are of this attempt beyond doubt."""
    return _kernel(view, (*_DEVICE_OWNERS, Category.INTERCONNECT), doubted=False)


def hardware_states(view: View) -> tuple[Evidence, ...]:
    """What NVML showed and is a cause by itself, on the job's nodes, the strongest first."""
    found_all = view.having(source=Source.NVML, role=Role.ROOT, categories=_DEVICE_OWNERS)
    of_ours = [found for found in found_all if view.node(found) is not None]
    return tuple(sorted(of_ours, key=lambda found: _STRENGTH.get(found.signature, len(_STRENGTH))))


def _states(view: View, *, doubted: bool) -> tuple[Evidence, ...]:
    states = hardware_states(view)
    return tuple(found for found in states if _certain(view, found, states) is not doubted)


def _certain(view: View, state: Evidence, states: Sequence[Evidence]) -> bool:
    """Whether the state explains whatever the program printed.

    What most nodes of a job show alike is how they are set up. A job that ran until its limit had the GPUs it needed.
    """
    if _on_most(view, [found for found in states if found.reason == state.reason]):
        return False
    if state.reason in _NONE_WORKS_WITH:
        return state.reason != "gpu_missing" or view.attempt.state not in LONG_STATES
    felt = [found for found in view.having(source=Source.JOB_LOG, reasons=(state.reason,)) if found.role in _FELT]
    return any(view.node(found) in (None, view.node(state)) for found in felt)


def _on_most(view: View, states: Sequence[Evidence]) -> bool:
    nodes = {view.node(found) for found in states}
    return len(view.attempt.nodes) > 1 and 2 * len(nodes) > len(view.attempt.nodes)


def _kernel(view: View, owners: Sequence[Category] = _DEVICE_OWNERS, *, doubted: bool) -> tuple[Evidence, ...]:
    found_all = view.having(source=Source.KERNEL_LOG, role=Role.ROOT, categories=owners)
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
    """A node's kernel reports its GPU, bus, memory, disk, or itself; or NVML a state that explains everything."""
    lines, states = _kernel(view, doubted=False), _states(view, doubted=False)
    return _hardware(view, lines) or kernel_memory(view) or _hardware(view, states)


def doubted_hardware(view: View) -> Finding | None:
    """The same of what may be of another time or job: only where the program itself reported nothing."""
    return _hardware(view, _kernel(view, doubted=True)) or _hardware(view, _states(view, doubted=True))


def _hardware(view: View, lines: Sequence[Evidence]) -> Finding | None:
    """`lines`: the kernel's, or states alone."""
    if not lines:
        return None
    first = min(lines, key=lambda found: (found.reason not in _BEFORE_ALL, found.signature in _AFTER_ALL))
    same = [found for found in lines if found.reason == first.reason]
    borne_out = _bearing_out(view, same)
    shown = [found for found in hardware_states(view) if found.reason != first.reason]
    setup = first.source is Source.NVML and _on_most(view, same)
    return Finding(
        first.reason,
        told(view, first.reason, first),
        (*with_first(first, same), *borne_out),
        rank=None if setup else _rank_of(view, first),
        suspects=() if setup else suspects(view, (*same, *borne_out), first.reason),
        rivals=others(first, (*lines, *shown), lambda found: _after_hardware(first, found)),
    )


def _bearing_out(view: View, same: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """What NVML shows of the same on the same nodes, and on any node where it is a cause by itself."""
    known = {id(found) for found in same}
    nodes = {view.node(found) for found in same} - {None}
    states = view.having(source=Source.NVML, reasons=(same[0].reason,))
    alike = [found for found in states if found.role is Role.ROOT or view.node(found) in nodes]
    return tuple(found for found in alike if id(found) not in known and view.node(found) is not None)


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
    if found.source is Source.NVML:
        return f"it is a state that was found after the end, {first.place} is the stronger word"
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
