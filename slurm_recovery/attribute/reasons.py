"""Every reason that a failure can be given, as rows: who repairs it, what helps, how often.

Owns the vocabulary of reasons. `decide`, `explain` and the manual read this same table; adding a reason is
adding a row. Knows no log line: which line speaks for which reason is written in detect/signatures.d.
"""

from __future__ import annotations

from enum import StrEnum

from slurm_recovery.records import Attribution, Category, Record, Verdict


class Cure(StrEnum):
    """What ends a node's fault."""

    CHECK = "check"  # a clean check says that it is over
    REBOOT = "reboot"  # only a reboot can, and then a clean check


class Reason(Record):
    """One row: a cause, its owner, and what a restart can do about it.

    `action` holds when no node is to blame. `one_node` is the reason that it becomes when the very same
    message is proven on one node of several, and the fault is then that node's; "" where being on one node
    proves nothing. `otherwise` is the opposite: what a node's fault becomes when no single node can be named.
    `max_requeues` bounds restarts for this reason within one job. `cure` is what must be seen before a node that was
    drained for it serves again; None: it is no ground for a drain.
    """

    code: str
    category: Category
    action: Verdict
    max_requeues: int
    sentence: str
    one_node: str = ""
    otherwise: str = ""
    cure: Cure | None = None


# Faults for which a node is drained, where its own kernel or NVML tells of them. Links that flap are not among them:
# a job is kept off the node, and the link is mostly up again before anybody looks.
_CURES = dict.fromkeys(
    (
        "gpu_fell_off_bus",
        "gpu_ecc_uncorrectable",
        "gpu_nvlink_error",
        "nvswitch_error",
        "gpu_gsp_timeout",
        "gpu_internal_error",
        "pcie_error",
        "host_memory_error",
        "nic_failure",
        "node_hang",
    ),
    Cure.REBOOT,
) | dict.fromkeys(("gpu_missing", "local_disk_failure", "driver_mismatch", "stale_gpu_process"), Cure.CHECK)

HARDWARE_TRIES = 3  # another node each time
TRANSIENT_TRIES = 2
UNKNOWN_TRIES = 1


def _rows(
    category: Category,
    action: Verdict,
    tries: int,
    sentences: dict[str, str],
    one_node: dict[str, str] | None = None,
    otherwise: dict[str, str] | None = None,
) -> dict[str, Reason]:
    becomes, else_becomes = one_node or {}, otherwise or {}
    return {
        code: Reason(
            code=code,
            category=category,
            action=action,
            max_requeues=tries,
            sentence=sentence,
            one_node=becomes.get(code, ""),
            otherwise=else_becomes.get(code, ""),
            cure=_CURES.get(code),
        )
        for code, sentence in sentences.items()
    }


_HARDWARE = _rows(
    Category.HARDWARE,
    Verdict.REQUEUE_EXCLUDE,
    HARDWARE_TRIES,
    {
        "gpu_fell_off_bus": "A GPU fell off the PCIe bus; its node must be restarted or repaired.",
        "gpu_ecc_uncorrectable": "A GPU reported memory errors that ECC cannot correct.",
        "gpu_nvlink_error": "A GPU reported a fatal NVLink error.",
        "nvswitch_error": "An NVSwitch reported a fatal error.",
        "gpu_gsp_timeout": "A GPU's firmware (GSP) stopped answering; its node must be restarted.",
        "gpu_internal_error": "A GPU reported an internal error of its own firmware.",
        "gpu_missing": "A node offers fewer GPUs than the job was given.",
        "pcie_error": "A node's PCIe bus reported an uncorrected error.",
        "host_memory_error": "A node's memory reported an uncorrected error.",
        "local_disk_failure": "A node's local drive fails.",
        "silent_data_corruption": "A GPU computed a result that it could not repeat.",
    },
)
_INTERCONNECT_NODE = _rows(
    Category.INTERCONNECT,
    Verdict.REQUEUE_EXCLUDE,
    HARDWARE_TRIES,
    {
        "ib_link_error": "An InfiniBand or RoCE link failed.",
        "nic_failure": "A network adapter failed.",
        "nic_link_down": "A network adapter lost its link or stopped sending.",
    },
)
_INTERCONNECT = _rows(
    Category.INTERCONNECT,
    Verdict.REQUEUE,
    TRANSIENT_TRIES,
    {
        "nccl_timeout": "A collective operation did not finish in time and no better cause was found.",
        "nccl_network_error": "NCCL lost a connection and no earlier cause was found.",
        "ucx_transport_error": "UCX lost a connection; only the sending side is known.",
        "gloo_connection_error": "Gloo lost or never got a connection and no earlier cause was found.",
        "rendezvous_timeout": "Not all processes came together at the start.",
    },
)
_NODE = _rows(
    Category.NODE,
    Verdict.REQUEUE_EXCLUDE,
    HARDWARE_TRIES,
    {
        "node_fail": "A node went down or stopped answering.",
        "node_unreachable": "A node could not be reached.",
        "launch_failed": "A node could not start the job's tasks.",
        "node_hang": "A node's kernel hung.",
        "kill_task_failed": "A node could not end the job's processes.",
        "stale_gpu_process": "A foreign process occupied a GPU of the job.",
        "fabric_manager_down": "A node's NVSwitch fabric manager is not running.",
        "driver_mismatch": "A node's GPU driver does not fit its libraries or its peers.",
        "mount_missing": "A shared file system is not mounted on one node.",
        "local_disk_full": "A node's local disk is full.",
    },
    otherwise={
        "driver_mismatch": "cuda_driver_insufficient",
        "mount_missing": "python_exception",
        "local_disk_full": "disk_full",
    },
) | _rows(
    Category.NODE,
    Verdict.STOP,  # on every node alike it is the job's own doing
    0,
    {"shm_exhausted": "Shared memory (/dev/shm) is used up."},
    one_node={"shm_exhausted": "shm_exhausted"},
)
_STORAGE = _rows(
    Category.STORAGE,
    Verdict.REQUEUE,
    TRANSIENT_TRIES,
    {"filesystem_io": "A shared file system did not answer or returned an I/O error."},
    one_node={"filesystem_io": "filesystem_io"},
) | _rows(
    Category.STORAGE,
    Verdict.STOP,
    0,
    {
        "disk_full": "A shared file system is full.",
        "quota_exceeded": "A disk quota is used up.",
        "checkpoint_corrupt": "The checkpoint cannot be read; only an older one can help.",
        "data_corrupt": "Input data cannot be read.",
    },
)
_SOFTWARE = _rows(
    Category.SOFTWARE_ENV,
    Verdict.STOP,
    0,
    {
        "import_error": "A library or module cannot be loaded.",
        "cuda_driver_insufficient": "The GPU driver is older than the CUDA that the job brings.",
        "cuda_arch_mismatch": "The job's binaries hold no code for this GPU.",
        "no_cuda_device": "The job sees no GPU at all.",
        "nccl_misconfig": "NCCL was told to use an interface that does not exist.",
        "name_resolution_failed": "A host name that the job needs cannot be resolved.",
        "resource_limit": "A limit of the job's shell (files, processes, locked memory) was hit.",
        "command_not_found": "A program that the script calls was not found.",
        "container_start_failed": "The job's container cannot be started.",
    },
    one_node={
        "import_error": "import_error",
        "cuda_driver_insufficient": "driver_mismatch",
        "no_cuda_device": "gpu_missing",
        "container_start_failed": "container_start_failed",
    },
) | _rows(
    Category.SOFTWARE_ENV,
    Verdict.REQUEUE,
    TRANSIENT_TRIES,
    {
        "port_in_use": "A network port that the job needs was still in use.",
        "external_service_unreachable": "A service outside the cluster did not answer.",
    },
)
_APPLICATION = _rows(
    Category.APPLICATION,
    Verdict.STOP,
    0,
    {
        "python_exception": "The program raised an exception that nobody caught.",
        "cuda_oom": "The program asked for more GPU memory than there is.",
        "host_oom": "The job used more memory than it was given.",
        "illegal_memory_access": "A GPU kernel of the program touched memory that is not its own.",
        "device_side_assert": "An assertion inside a GPU kernel failed, mostly an index out of range.",
        "cuda_launch_failure": "A GPU kernel of the program failed.",
        "cublas_error": "cuBLAS refused a call, mostly for its arguments.",
        "cudnn_error": "cuDNN refused a call, mostly for its arguments.",
        "nan_loss": "The training diverged: the loss or the gradients are not numbers.",
        "collective_mismatch": "The ranks called different collective operations.",
        "dataloader_killed": "A data loader's worker died.",
        "segfault": "The program crashed with a segmentation fault.",
        "nccl_invalid_usage": "NCCL was used wrongly, such as two ranks on one GPU.",
        "mpi_abort": "The program called MPI_Abort.",
        "bad_arguments": "The program was started with arguments that it does not know.",
        "permission_denied": "A file may not be read, written or executed by the job's user.",
        "auth_error": "A service refused the job's credentials.",
        "script_error": "The batch script itself is wrong or ended its own processes.",
        "teardown_hang": "The work was done; only the shutdown hung.",
    },
    one_node={"host_oom": "host_oom"},
)
_SCHEDULER = (
    _rows(
        Category.USER_OR_SCHEDULER,
        Verdict.STOP,
        0,
        {
            "time_limit": "The job reached its time limit.",
            "cancelled_by_user": "The job was cancelled by its user.",
            "sighup": "The job's terminal went away.",
            "slurm_config_error": "The job step asks for something that Slurm cannot give it.",
        },
    )
    | _rows(
        Category.USER_OR_SCHEDULER,
        Verdict.REQUEUE,
        TRANSIENT_TRIES,
        {
            "preempted": "The job was preempted.",
            "cancelled_by_admin": "The job was cancelled by an administrator or a health check.",
        },
    )
    | _rows(Category.USER_OR_SCHEDULER, Verdict.NONE, 0, {"requeued": "The job has already been requeued."})
)
_REST = _rows(Category.HEALTHY, Verdict.NONE, 0, {"completed": "The job completed."}) | _rows(
    Category.UNKNOWN,
    Verdict.REQUEUE,
    UNKNOWN_TRIES,
    {
        "hang": "The job stopped making progress and nothing says why.",
        "killed_unknown": "The job's processes were killed and nothing says by whom.",
        "unknown": "Nothing that was found says why the job failed.",
    },
)

REASONS: dict[str, Reason] = (
    _HARDWARE | _INTERCONNECT_NODE | _INTERCONNECT | _NODE | _STORAGE | _SOFTWARE | _APPLICATION | _SCHEDULER | _REST
)


def advised(attribution: Attribution) -> Verdict:
    """What helps against this attribution, before any budget or policy: exclude only where there is a suspect."""
    action = REASONS[attribution.reason].action
    if attribution.suspects:
        return Verdict.REQUEUE_EXCLUDE
    return Verdict.REQUEUE if action is Verdict.REQUEUE_EXCLUDE else action


def requeues(attribution: Attribution) -> int:
    """How many restarts this attribution is worth within one job: with a suspect to keep out, at least two."""
    most = REASONS[attribution.reason].max_requeues
    return max(most, TRANSIENT_TRIES) if attribution.suspects else most
