"""What a compute node writes down of itself, as the controller reads it.

Owns the form of a report. node/ writes it, without pydantic; evidence/node_reports.py reads it. Times are seconds since
the epoch; sizes are bytes. A number that the node could not read is None and has its gap.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1


class Part(BaseModel):
    """A part of a report. Keys that a later release adds are left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Kind(StrEnum):
    """Which hook had the report made."""

    EPILOG = "epilog"  # a failed job's end
    HEALTH = "health"  # HealthCheckProgram
    GATE = "gate"  # Prolog


class GpuProcess(Part):
    """A process that has a context on a GPU. `uid` is None where it was gone before it was looked at."""

    pid: int
    name: str = Field("", max_length=256)
    uid: int | None = None
    job_id: int | None = None  # the Slurm job whose cgroup it is in
    memory: int | None = None


class Gpu(Part):
    """One GPU as NVML shows it. Where it cannot even be opened, only `index` and `trouble` are known."""

    index: int
    pci: str = Field("", max_length=32)  # "0000:9b:00.0", in lower case
    uuid: str = Field("", max_length=96)
    name: str = Field("", max_length=96)
    trouble: str = Field("", max_length=300)  # NVML's word, as "GPU is lost"
    lost: bool = False  # NVML_ERROR_GPU_IS_LOST, of any call
    ecc_uncorrectable: int | None = None  # since the driver was loaded (volatile)
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    # none, gpu_reset, bus_reset, node_reboot, system_reboot, drain_p2p, drain_and_reset, recover_imex_domain, or
    # action_N for a number that this release does not know
    recovery_action: str = Field("", max_length=32)
    mig: bool = False  # it is cut into instances, which Slurm counts instead of it
    links_down: tuple[int, ...] = ()  # NVLinks that are there and not active
    throttled: tuple[str, ...] = ()  # hw_slowdown, hw_thermal, hw_power_brake, sw_thermal
    temperature: int | None = None  # degrees Celsius
    processes: tuple[GpuProcess, ...] = ()


class Log(Part):
    """A piece of a job's log, read as the job's user. `data` is base64; `offset` is where it stands in the file."""

    path: str = Field(max_length=4096)
    size: int = 0
    inode: int = 0
    offset: int = 0
    data: str = ""


class SavedCheckpoint(Part):
    """A complete checkpoint, see records.Checkpoint."""

    path: str = Field(max_length=4096)
    format: str = Field("", max_length=64)
    step: int | None = Field(None, ge=0, lt=1 << 63)
    began: float | None = None
    time: float


class PassedCheckpoint(Part):
    """One that was passed over, and why."""

    path: str = Field(max_length=4096)
    why: str = Field(max_length=500)


class Checkpoints(Part):
    """The job's folder of checkpoints at its end; read as the job's user, on the batch node only."""

    folder: str = Field(max_length=4096)
    newest: SavedCheckpoint | None = None
    earlier: tuple[SavedCheckpoint, ...] = Field((), max_length=32)
    passed: tuple[PassedCheckpoint, ...] = Field((), max_length=32)


class NodeGap(Part):
    """What the node could not read. `source` is a value of records.Source."""

    source: str = Field("node", max_length=32)
    what: str = Field(max_length=4096)
    why: str = Field(max_length=500)


class NodeReport(Part):
    """One report of one node."""

    format: Literal[1]
    kind: Kind
    node: str = Field(max_length=255)
    time: float  # when it was begun
    boot_id: str = Field("", max_length=64)  # /proc/sys/kernel/random/boot_id
    boot_time: float = 0.0
    instance_id: str = Field("", max_length=255)  # cloud-init's, where there is one
    job_id: int = 0
    restart_count: int | None = None
    start_time: float | None = None  # the job's, where Slurm tells it to node hooks (23.02 and later)
    exit_code: str = Field("", max_length=32)  # SLURM_JOB_EXIT_CODE2
    driver: str = Field("", max_length=64)
    gpus_configured: int | None = None  # by slurm.conf's Gres=
    gpus_on_bus: int | None = None  # NVIDIA's display controllers that PCI shows
    gpus: tuple[Gpu, ...] = ()
    ecc_before: dict[str, int] = {}  # uuid: ecc_uncorrectable of the last health report of the same boot
    kernel: str = ""  # lines as dmesg --time-format=iso prints them, oldest first
    kernel_since: float = 0.0  # no line before this was looked at
    logs: tuple[Log, ...] = ()
    checkpoints: Checkpoints | None = None  # None: no folder is known, or this is not the batch node
    gaps: tuple[NodeGap, ...] = ()
