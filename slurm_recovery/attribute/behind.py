"""The rows of last resort: what is a cause only where nothing better was found.

Owns the order of such reasons among themselves. Names a node only by its own kernel's word, or by that of a
program about the device that it ran on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_recovery.attribute.ends import told_by_exit
from slurm_recovery.attribute.first_rank import only_end, told_first
from slurm_recovery.attribute.one_node import may_be_a_nodes, on_one_node
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, Rival, View, category, in_order, suspects, told
from slurm_recovery.attribute.window import OF_NODES
from slurm_recovery.detect.notes import TABLE
from slurm_recovery.records import Category, Evidence, Role, Source, Verdict

# What is a cause only if nothing above was, strongest first.
CONDITIONAL = (
    "cancelled_by_user",
    "ib_link_error",
    "nic_failure",
    "nic_link_down",
    "host_memory_error",
    "gpu_ecc_uncorrectable",
    "gpu_nvlink_error",
    "gpu_fell_off_bus",
    "nvswitch_error",
    "gpu_gsp_timeout",
    "silent_data_corruption",
    "node_fail",
    "launch_failed",
    "node_hang",
    "local_disk_failure",
    "filesystem_io",
    "local_disk_full",
    "disk_full",
    "shm_exhausted",
    "host_oom",
    "cuda_oom",
    "nan_loss",
    "illegal_memory_access",
    "gpu_internal_error",
    "pcie_error",
    "cuda_launch_failure",
    "segfault",
    "script_error",
    "dataloader_killed",
    "import_error",
    "stale_gpu_process",
    "unknown",  # an error of one's own all the same
    "ucx_transport_error",
    "nccl_network_error",
    "name_resolution_failed",
    "rendezvous_timeout",
    "gloo_connection_error",
    "nccl_timeout",
    "hang",
    "killed_unknown",
    "no_cuda_device",  # nvidia-smi says so on any host without a GPU, long before the job ends of something else
)
_EVERYBODYS = ("rendezvous_timeout", "gloo_connection_error", "nccl_network_error", "nccl_timeout", "hang")
_WAITING = ("nccl_timeout", "hang", "rendezvous_timeout", "gloo_connection_error", "nccl_network_error")
_LOST = ("nccl_timeout", "gloo_connection_error", "nccl_network_error")
MOST_RIVALS = 4
FEW = 3  # nodes of which one is lost


def teardown(view: View) -> Finding | None:
    """The work was done, and what came after it was only ranks that waited for each other."""
    done = view.having(source=Source.JOB_LOG, signatures=("work_done",))
    waiting = view.having(source=Source.JOB_LOG, role=Role.CONDITIONAL)
    if not done or any(found.reason not in _WAITING for found in waiting):
        return None
    waited = waiting or view.having(signatures=("slurm_time_limit",))
    stopped = view.attempt.state in ("TIMEOUT", "DEADLINE")
    if not (waited or stopped) or _begins_after(view, done[-1]):
        return None
    return Finding("teardown_hang", told(view, "teardown_hang", done[-1]), (done[-1], *waited))


def _begins_after(view: View, done: Evidence) -> bool:
    """Whether anything began after the line: then another piece of work was under way."""
    index = next(number for number, found in enumerate(view.evidence) if found is done)
    return any(found.signature == "attempt_begins" for found in view.evidence[index + 1 :])


def conditional(view: View) -> Finding | None:
    lines = view.having(role=Role.CONDITIONAL)
    reason = _strongest(_without_waits_for_storage(view, _without_late_meetings(view, lines)))
    if reason is None or (reason == "no_cuda_device" and told_by_exit(view)):
        return None
    same = in_order([found for found in lines if found.reason == reason])
    if may_be_a_nodes(reason) and (on_one := on_one_node(view, same[0], same)):
        return on_one
    ranks = _ranks(view, same)
    rank = ranks.pop() if len(ranks) == 1 else None
    if rank is None and category(reason) is not Category.NODE:
        rank = only_end(view)
        rank = rank if rank is not None else told_first(view)
    nodes = (
        suspects(view, _by_itself(same) or _one_gone(view, same), reason)
        if REASONS[reason].action is Verdict.REQUEUE_EXCLUDE
        else ()
    )
    rank = None if reason in _EVERYBODYS else rank
    others = {found.reason: found for found in reversed(lines) if found.reason != reason}
    rivals = [
        Rival(found.reason, f"{reason} explains it, and not the other way about", found) for found in others.values()
    ]
    return Finding(
        reason, told(view, reason, same[0]), same, rank=rank, suspects=nodes, rivals=tuple(rivals[:MOST_RIVALS])
    )


def _ranks(view: View, same: Sequence[Evidence]) -> set[int | None]:
    """The ranks that speak; a launcher's line that tells only the local rank adds none to those of its table."""
    tables = {found.local_rank for found in same if found.signature == TABLE}
    spoken = [(view.rank(found), found.local_rank) for found in same if found.source is Source.JOB_LOG]
    return {rank for rank, local in spoken if rank is not None or local not in tables - {None}}


def _without_late_meetings(view: View, lines: Sequence[Evidence]) -> Sequence[Evidence]:
    """Who had met and lost a peer meets nobody after that: neither that, nor a name not found before, is a cause.

    A name that was not found explains no more than a meeting that failed: who tries again may find it.
    """
    lost = next((found for found in view.evidence if found.reason in _LOST), None)
    if lost is None:
        failed = view.having(reasons=("rendezvous_timeout",))
        return lines if failed else [found for found in lines if found.reason != "name_resolution_failed"]
    order = {id(found): number for number, found in enumerate(view.evidence)}
    met = [found for found in lines if found.reason != "rendezvous_timeout" or order[id(found)] < order[id(lost)]]
    return [found for found in met if found.reason != "name_resolution_failed"]


def _without_waits_for_storage(view: View, lines: Sequence[Evidence]) -> Sequence[Evidence]:
    """A task that hangs in the kernel of a node which lost its file system waits for that."""
    lost = {view.node(found) for found in lines if found.reason == "filesystem_io"} - {None}
    return [found for found in lines if found.signature != "hung_task" or view.node(found) not in lost]


def _strongest(lines: Iterable[Evidence]) -> str | None:
    found = {line.reason for line in lines}
    return next((code for code in (*CONDITIONAL, *sorted(REASONS)) if code in found), None)


def _by_itself(same: Iterable[Evidence]) -> list[Evidence]:
    """What a node says of itself, or a program of the device or disk that it uses; not what one says of another."""
    return [found for found in same if found.source in OF_NODES or _of_its_own(found.reason)]


def _of_its_own(reason: str) -> bool:
    return category(reason) is Category.HARDWARE or reason == "local_disk_full"


def _one_gone(view: View, same: Sequence[Evidence]) -> Sequence[Evidence]:
    """Ray's word that it lost one node of several; as a job ends it loses all of them."""
    lost = [found for found in same if found.signature == "ray_node_dead"]
    one = len({view.node(found) for found in lost} - {None}) == 1 and not any(
        view.node(found) is None for found in lost
    )
    return lost if one and len(view.attempt.nodes) >= FEW else ()


def consequences(view: View) -> Finding | None:
    """Only lines that follow from something else: what most of them say, weakly."""
    lines = [found for found in view.having(role=Role.SECONDARY) if found.reason in REASONS]
    if not lines:
        return None
    votes = Counter(found.reason for found in lines)
    reason = max(votes, key=lambda code: votes[code])
    same = tuple(found for found in lines if found.reason == reason)
    return Finding(reason, told(view, reason, same[0]), same)
