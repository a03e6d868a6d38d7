"""Every setting of recovery.conf, declared once: key, default, range, one sentence.

The sample file, the manual page recovery.conf(5), `srecover config` and the checks are made from these
declarations. Durations are seconds. Knows no file: see load.py.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_pascal

from slurm_recovery.config.values import Bytes, JobOptionNames, Numbers, Seconds, Word
from slurm_recovery.job_options import NAMES
from slurm_recovery.records import Trust, Verdict


class Mode(StrEnum):
    """`off` does not even look; `observe` records what it would do; `act` does it."""

    OFF = "off"
    OBSERVE = "observe"
    ACT = "act"


class StopAction(StrEnum):
    """What becomes of a job that is not to be restarted."""

    LEAVE = "leave"
    HOLD = "hold"


class YesNo(StrEnum):
    """As slurm.conf writes a switch."""

    YES = "yes"
    NO = "no"


class Backend(StrEnum):
    AUTO = "auto"
    PYSLURM = "pyslurm"
    COMMANDS = "commands"


class Section(BaseModel):
    """Keys as slurm.conf writes them: `MaxRequeues` for max_requeues."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_pascal, populate_by_name=True)


class Policy(Section):
    """What may also stand on a PartitionName line."""

    mode: Annotated[Mode, Word] = Field(
        Mode.OBSERVE, description="off, observe (record the advice, touch nothing) or act."
    )
    max_requeues: int = Field(3, ge=0, le=1000, description="Restarts that one job may be given in all.")
    stop_action: Annotated[StopAction, Word] = Field(
        StopAction.LEAVE,
        description="A job that another try would not help: leave (it stays as it ended; one that we hold is "
        "cancelled) or hold (requeued in state SPECIAL_EXIT, for someone to look).",
    )
    stop_exit: Numbers = Field(
        (), description="Exit codes by which a job says: do not restart me. NVIDIA's ft_launcher uses 93."
    )
    exclusion_time: Seconds = Field(
        86400, ge=60, description="Age at which a node that we excluded from a job may serve it again."
    )
    backoff: Seconds = Field(
        30, ge=0, description="Delay of a restart after a job failed faster than FastFailure; doubles each time."
    )
    backoff_max: Seconds = Field(3600, ge=0, description="The longest such delay.")
    fast_failure: Seconds = Field(60, ge=0, description="A run shorter than this counts as failed at its start.")
    drain: Annotated[YesNo, Word] = Field(
        YesNo.YES,
        description="Whether Mode=act also drains a node whose own kernel or NVML tells of a fault, and resumes it "
        "when the fault is over. no: it is only recorded.",
    )


    stop_after_no_progress: int = Field(
        3,
        ge=0,
        le=1000,
        description="Restarts in a row after which a job had no newer checkpoint and no later step: then it is not "
        "restarted again. 0: progress is not looked at.",
    )
    shrink_after: Seconds = Field(
        600,
        ge=0,
        description="How long a restart waits for the nodes that it wants before it asks for fewer, where the job "
        "said that it can do with fewer (--recovery-min-nodes).",
    )
    job_options: JobOptionNames = Field(
        NAMES,
        description="What a job's owner may say by sbatch --recovery... or --comment: all, none, or some of mode, "
        "checkpoint, max-requeues, log, min-nodes. max-requeues never exceeds MaxRequeues, mode never Mode.",
    )


class Settings(Policy):
    """The whole of recovery.conf, but for its PartitionName and Reason lines."""

    state_dir: Path = Field(
        Path("/var/lib/slurm_recovery"), description="Spool, store, logs and locks. Belongs to SlurmUser, mode 0700."
    )
    store_url: str = Field(
        "", description="Database of the incidents, an SQLAlchemy URL. Empty: SQLite in StateDir. "
        "MariaDB: mysql+pymysql://user@host/slurm_recovery."
    )
    slurm_backend: Annotated[Backend, Word] = Field(
        Backend.AUTO, description="pyslurm, commands, or auto: pyslurm where it matches the Slurm release."
    )
    slurm_conf: Path | None = Field(None, description="slurm.conf of this cluster. Unset: Slurm's own default.")
    slurm_bin_dir: Path | None = Field(None, description="Folder of squeue and scontrol. Unset: found along PATH.")
    signature_dir: Path | None = Field(None, description="Folder of a site's own signatures, *.toml.")
    watchdog_timeout: Seconds = Field(
        20, ge=1, le=600, description="The longest that a hook keeps its job COMPLETING, whatever happens to us."
    )
    hold_timeout: Seconds = Field(
        120, ge=5, description="A job held by us for longer is released by whoever notices first."
    )
    worker_timeout: Seconds = Field(
        900, ge=30, description="The longest life of a worker; the kernel ends it then, and sweep goes on."
    )
    follow_time: Seconds = Field(
        15, ge=0, description="How long a worker watches a released job; afterwards sweep does."
    )
    command_timeout: Seconds = Field(10, ge=1, le=300, description="The longest that one question to Slurm may take.")
    log_bytes: Bytes = Field(
        2 << 30,
        ge=4096,
        le=1 << 40,
        description="How much of an attempt's log is read; of a longer one the first half of this and the last.",
    )
    log_timeout: Seconds = Field(5, ge=1, le=120, description="The longest that reading a job's log may take.")
    snapshot_bytes: Bytes = Field(65536, ge=0, le=16 << 20, description="How much of a log's end is kept on record.")
    trace_bytes: Bytes = Field(
        1 << 30, ge=1 << 20, le=1 << 40, description="How many bytes of PyTorch's flight recorder dumps are read."
    )
    trace_timeout: Seconds = Field(
        10,
        ge=0,
        le=300,
        description="The longest that finding and reading the flight recorder's dumps beside a job's log may take. "
        "0: they are not looked for.",
    )
    attributor: str = Field(
        "",
        pattern=r"^(/[^\x00-\x1f]*|https?://[!-~]+)?$",
        description="A program (absolute path) or an http(s):// address of the site that is given each failed attempt "
        "as JSON and may say why it failed. See conf/attributor.example.",
    )
    attributor_timeout: Seconds = Field(10, ge=1, le=300, description="The longest that Attributor may take to answer.")
    attributor_weight: float = Field(
        0.3,
        ge=0,
        le=1,
        description="What Attributor's word is worth. From 0.5 on it goes before causes that are taken only because "
        "nothing better was found; below, only before an unknown cause; 0 puts it on record and no more.",
    )
    attributor_trust: Annotated[Trust, Word] = Field(
        Trust.USER,
        description="user, or root: then nodes that Attributor names count as if Slurm itself had named them.",
    )
    max_requeues_per_hour: int = Field(60, ge=0, description="Restarts by us on the whole cluster within an hour.")
    max_requeues_per_user_hour: int = Field(
        20, ge=0, description="Restarts by us of one user's jobs within an hour: nobody uses up the others' share."
    )
    evidence_dir: Path | None = Field(
        None,
        description="Folder that all nodes and the controller share, where node hooks leave what the node knows. "
        "Belongs to root; root must be root on it (no_root_squash). Unset: nodes are not asked.",
    )
    evidence_timeout: Seconds = Field(
        5, ge=1, le=50, description="The longest that a node hook waits for what it reads; the rest is then missing."
    )
    evidence_wait: Seconds = Field(
        3, ge=0, le=60, description="How long a judgement waits for reports of nodes that are not there yet."
    )
    evidence_bytes: Bytes = Field(
        16 << 20, ge=1 << 20, le=1 << 30, description="What one node keeps in EvidenceDir; the oldest reports go first."
    )
    kernel_log: str = Field(
        "/dev/kmsg",
        pattern=r"^(journal|/[^\x00-\x1f]*)$",
        description="Where a node's kernel log is read: /dev/kmsg (or journalctl, where that cannot be read), journal, "
        "or a file of such lines; %n is the node's name.",
    )
    kernel_log_bytes: Bytes = Field(
        256 << 10, ge=4096, le=2 << 20, description="How much of a node's kernel log one report holds."
    )
    job_log_bytes: Bytes = Field(
        1 << 20, ge=0, le=2 << 20, description="How much of the end of a job's log the batch node's report holds."
    )
    nvml_lib_dir: Path | None = Field(
        None, description="Folder of libnvidia-ml.so.1 on the nodes, where the loader does not find it by itself."
    )
    prolog_gate: Annotated[YesNo, Word] = Field(
        YesNo.NO,
        description="Whether the Prolog refuses a node with a proven, present GPU fault. Slurm drains the node then, "
        "and holds the job until it is released.",
    )
    run_dir: str = Field(
        "/run/slurm_recovery",
        pattern=r"^/[^\x00-\x1f]*$",
        description="Folder on each node, made by root, from which TaskProlog takes what a restarted job is told; %n "
        "is the node's name.",
    )
    task_prolog_timeout: Seconds = Field(
        5, ge=1, le=60, description="The longest that TaskProlog delays a task while it looks for a checkpoint."
    )
    max_drains_per_hour: int = Field(4, ge=0, description="Nodes that we drain within an hour, on the whole cluster.")
    max_drained_share: int = Field(
        10,
        ge=0,
        le=100,
        description="Percent of a partition's nodes that may be drained by us at once; one always may.",
    )
    common_cause_nodes: int = Field(
        3,
        ge=2,
        description="So many nodes with one new reason within CommonCauseTime are a common cause: none is drained.",
    )
    common_cause_jobs: int = Field(
        3,
        ge=2,
        description="So many jobs that fail for one reason of file systems or network within CommonCauseTime are not "
        "restarted but held (SPECIAL_EXIT), and people are told.",
    )
    common_cause_time: Seconds = Field(600, ge=10, description="How near to each other such failures lie.")
    health_age: Seconds = Field(900, ge=10, description="Age up to which a node's clean check counts as fresh.")
    suspicion_exclude: float = Field(
        0.5, ge=0, le=1, description="Suspicion from which on a restart avoids a node that no evidence names. "
        "1: none is avoided, and no other nodes are tried."
    )
    suspicion_drain: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Suspicion from which on a node is drained, where jobs of several users bear it out.",
    )
    suspicion_half_life: Seconds = Field(
        3 * 86400, ge=3600, description="Age at which an attempt counts half for or against its nodes."
    )
    retain_time: Seconds = Field(90 * 86400, ge=3600, description="Age at which closed incidents are forgotten.")

    @property
    def url(self) -> str:
        return self.store_url or f"sqlite:///{self.state_dir}/recovery.db"


class ReasonPolicy(Section):
    """A `Reason=` line: what a site wants done for one reason."""

    action: Annotated[Verdict | None, Word] = Field(None, description="requeue_exclude, requeue, stop or none.")
    max_requeues: int | None = Field(None, ge=0, le=1000, description="Restarts of one job for this reason.")


class CheckpointFormat(Section):
    """A `CheckpointFormat=` line: a site's own kind of checkpoint."""

    pattern: str = Field(
        "",
        pattern=r"^[^/\x00-\x1f{}]*\{step\}[^/\x00-\x1f{}]*$",
        max_length=200,
        description="Name of a checkpoint's file or folder; {step} stands for its step, * for anything.",
    )
    marker: str = Field(
        "",
        pattern=r"^[^/\x00-\x1f]*$",
        max_length=200,
        description="Name of the file that the job writes last: in the checkpoint's folder, or, beginning with a dot, "
        "what is added to its name. Empty: it is complete as it stands.",
    )


class Config(BaseModel):
    """Settings, the lines of partitions, reasons and checkpoint formats, and where each value came from."""

    model_config = ConfigDict(frozen=True)

    settings: Settings = Settings()
    partitions: dict[str, Policy] = {}
    reasons: dict[str, ReasonPolicy] = {}
    checkpoint_formats: dict[str, CheckpointFormat] = {}
    origins: dict[str, str] = {}  # "MaxRequeues" or "PartitionName=train MaxRequeues": file:line

    def policy(self, partition: str) -> Policy:
        """What holds for jobs of a partition."""
        return self.partitions.get(partition, self.settings)

    def reason(self, code: str) -> ReasonPolicy:
        return self.reasons.get(code, ReasonPolicy())

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change when any deciding value does."""
        return hashlib.sha256(self.model_dump_json(exclude={"origins"}).encode()).hexdigest()[:12]


def keys(section: type[Section]) -> dict[str, str]:
    """{key in lower case: field name}."""
    return {(field.alias or name).lower(): name for name, field in section.model_fields.items()}


__all__ = [
    "Backend",
    "CheckpointFormat",
    "Config",
    "Mode",
    "Policy",
    "ReasonPolicy",
    "Section",
    "Settings",
    "StopAction",
    "YesNo",
    "keys",
]
