"""The records that every part of slurm_recovery exchanges. All frozen, all serialisable.

Owns the vocabulary: attempt, evidence, gap, attribution, decision, outcome, incident. Knows no Slurm
command, no file, no clock. Times are seconds since the epoch (UTC); durations are seconds; a rank is a
global rank counted from 0. An incident holds its whole observation, so that it can be replayed later
against other rules, and becomes a test.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Category(StrEnum):
    """Who owns the repair."""

    HARDWARE = "hardware"
    INTERCONNECT = "interconnect"
    NODE = "node"
    STORAGE = "storage"
    SOFTWARE_ENV = "software_env"
    APPLICATION = "application"
    USER_OR_SCHEDULER = "user_or_scheduler"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Where a piece of evidence was read."""

    SCHEDULER = "scheduler"
    JOB_LOG = "job_log"
    KERNEL_LOG = "kernel_log"
    NVML = "nvml"
    NODE = "node"  # what a node wrote down of itself; a report that is missing or refused is a gap of this source
    FLIGHT_RECORDER = "flight_recorder"
    CHECKPOINT = "checkpoint"  # the job's folder of checkpoints, looked at by its batch node as its user
    ATTRIBUTOR = "attributor"


class Trust(StrEnum):
    """Who could have written the evidence: `root` (kernel, slurmd, slurmctld) or the job's own `user`."""

    ROOT = "root"
    USER = "user"


class Role(StrEnum):
    """What a signature's line is worth in a cascade."""

    ROOT = "root"  # a cause by itself
    CONDITIONAL = "conditional"  # a cause only where nothing better is found
    SECONDARY = "secondary"  # always the consequence of something else
    NOISE = "noise"  # harmless, however alarming its words


class Verdict(StrEnum):
    """What shall be done with the job."""

    REQUEUE_EXCLUDE = "requeue_exclude"
    REQUEUE = "requeue"
    STOP = "stop"
    NONE = "none"

    @property
    def restarts(self) -> bool:
        return self in (Verdict.REQUEUE, Verdict.REQUEUE_EXCLUDE)


class Attempt(Record):
    """One run of a job, from its start to its end.

    (job id, restart count) is not unique in Slurm, so the start time belongs to the identity.
    `exit_code` and `signal` are the two halves of sacct's ExitCode. Everything that a user may choose
    (`name`, `comment`, the paths) is text to show, never to interpret.
    """

    cluster: str
    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    restart_count: int = 0
    start_time: float | None = None
    end_time: float | None = None
    user_id: int = -1
    user: str = ""
    name: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    ntasks_per_node: int | None = None
    state: str = ""  # Slurm's word: FAILED, TIMEOUT, NODE_FAIL ...; "" while not yet certain
    reason: str = ""  # Slurm's Reason
    exit_code: int = 0
    signal: int = 0
    derived_exit_code: str = ""
    batch: bool = True
    requeue: bool = True
    expedited: bool = False
    excluded_nodes: tuple[str, ...] = ()  # ExcNodeList as it stood when the attempt ended
    required_nodes: tuple[str, ...] = ()
    work_dir: str = ""
    stdout: str = ""
    stderr: str = ""
    comment: str = ""
    spank: dict[str, str] = {}  # SPANK_RECOVERY...: what the job's owner said by options of sbatch; see job_options.py

    @property
    def label(self) -> str:
        """The job's name as people and Slurm's commands write it: `123`, or `120_3` for an array task."""
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.het_job_id or self.job_id)


class Evidence(Record):
    """One line or reading, what it means, and how far it can be trusted."""

    source: Source
    trust: Trust
    signature: str  # the signature's id, or Slurm's field
    reason: str  # the reason code that it speaks for; "" where it only tells a place
    role: Role
    line: str  # as printed, at most 500 characters, control characters removed
    place: str = ""  # "/path/to/file:line", or the field of Slurm
    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    time: float | None = None
    count: int = 1  # how many lines like this one were seen
    weight: float | None = None  # 0 to 1: how much the site gives on an attributor's word


class Gap(Record):
    """Evidence that should be there and is not. Never to be read as "nothing there"."""

    source: Source
    what: str  # a path, a command
    why: str  # with the errno's name where there is one


class Suspect(Record):
    """A node that an administrator would take out for a check."""

    node: str
    trust: Trust
    because: str


class Beaten(Record):
    """An explanation that lost, what beat it and why, and the line that had spoken for it."""

    reason: str
    by: str  # the row that won, see attribute/engine.py
    why: str = ""
    line: str = ""
    place: str = ""


class Attribution(Record):
    """Why the attempt ended and where that began."""

    category: Category
    reason: str
    root_rank: int | None = None
    suspects: tuple[Suspect, ...] = ()
    because: str = ""
    evidence: tuple[Evidence, ...] = ()
    beaten: tuple[Beaten, ...] = ()
    since: str = ""  # the place behind which this attempt begins, where its log holds earlier ones too

    @property
    def suspect_nodes(self) -> tuple[str, ...]:
        return tuple(suspect.node for suspect in self.suspects)


class Checkpoint(Record):
    """A complete checkpoint as its batch node saw it at the attempt's end. Only its owner's word vouches for it."""

    path: str
    format: str
    step: int | None = None  # None where neither its name nor its files tell one
    began: float | None = None  # when its first file was begun, where that can be told
    time: float  # when its last file was written


class PassedOver(Record):
    """A checkpoint newer than the newest complete one, and why it cannot be started from."""

    path: str
    why: str


class Progress(Record):
    """How far an attempt had come when it ended. `folder` is "" where nobody knows of one."""

    folder: str = ""
    newest: Checkpoint | None = None
    earlier: tuple[Checkpoint, ...] = ()  # the complete ones before it, newest first, a few
    passed: tuple[PassedOver, ...] = ()
    log_step: int | None = None  # of the last step line in this attempt's log
    log_step_time: float | None = None  # where that line tells one
    first_log_step: int | None = None
    first_log_step_time: float | None = None

    @property
    def step(self) -> int | None:
        """The step from which the job could go on, or, where no folder is known, which it had reached."""
        if self.folder:
            return self.newest.step if self.newest else None
        return self.log_step


class LogEnd(Record):
    """Where a log ended with an attempt: its size, its inode, and the mark of its last bytes."""

    path: str
    end: int
    inode: int
    mark: str


class Observation(Record):
    """All that was known of an attempt when it was judged."""

    attempt: Attempt
    evidence: tuple[Evidence, ...] = ()
    gaps: tuple[Gap, ...] = ()
    down_nodes: tuple[str, ...] = ()  # the attempt's nodes that Slurm shows DOWN, FAIL or not responding
    prolog_failed_nodes: tuple[str, ...] = ()  # the attempt's nodes that slurmctld drained for a failed prolog
    log_path: str = ""
    log_tail: str = ""  # a snapshot: the restart may truncate the file
    log_end: int = 0  # bytes in the log when the attempt ended: where the next attempt's lines begin
    log_inode: int = 0
    log_mark: str = ""  # of the log's last bytes then: whether they are still there tells an append from a rewrite
    other_logs: tuple[LogEnd, ...] = ()  # of the job's further logs
    boots: dict[str, str] = {}  # the kernel's boot_id of each node that reported
    progress: Progress | None = None  # None: nobody could look


class Decision(Record):
    """What shall be done, by which rule, and why."""

    verdict: Verdict
    basis: str  # the rule's name, see decide/rules.py
    because: str
    exclude: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()  # besides, for suspicion alone: the next decision's replaces it
    delay: float = 0.0  # seconds of back-off before the restart may begin
    act: bool = False  # False: Mode=observe, this is advice only
    stop_action: str = "leave"
    policy: str = ""  # digest of the settings that it was decided under
    warning: str = ""  # to the owner of a job that is restarted once more
    untaken: tuple[str, ...] = ()  # a sentence for each option of the job's owner that was not taken


class Size(Record):
    """How much a job asks for."""

    nodes: int
    tasks: int
    cpus: int


class Fewer(Record):
    """A restart that asks for fewer nodes than its job wanted."""

    wanted: Size
    given: Size


class Result(StrEnum):
    """How one action ended. Success is what Slurm shows afterwards."""

    DONE = "done"
    ALREADY = "already so"
    REFUSED = "refused"
    FAILED = "failed"


class Outcome(Record):
    """One action, how it ended, and what a fresh read of Slurm showed."""

    action: str
    result: Result
    detail: str = ""
    seen: str = ""


class Stage(StrEnum):
    """Where an incident stands. The walk between them is in recover.py."""

    DETECTED = "detected"
    HELD = "held"  # requeued held inside the job's completion, the final word still open
    DECIDED = "decided"
    REQUEUED = "requeued"  # PENDING, held by us until its exclusions are set
    RELEASED = "released"
    RUNNING = "running"
    LEFT = "left"  # nothing to do, or only advised
    STOPPED = "stopped"
    ABANDONED = "abandoned"

    @property
    def open(self) -> bool:
        return self not in (Stage.RUNNING, Stage.LEFT, Stage.STOPPED, Stage.ABANDONED)


class Incident(Record):
    """An attempt's life from its failure to its successor's start. `times` maps a step's name to its time."""

    id: int = 0  # given by the store
    attempt: Attempt
    stage: Stage = Stage.DETECTED
    observation: Observation | None = None
    attribution: Attribution | None = None
    decision: Decision | None = None
    outcomes: tuple[Outcome, ...] = ()
    excluded: tuple[str, ...] = ()  # exclusions of ours that were put on the job, and not given up again
    successors: tuple[int, ...] = ()  # jobs of its user that waited for its end, to go on from there
    fewer: Fewer | None = None
    times: dict[str, float] = {}
    note: str = ""  # why it was abandoned or left

    def at(self, step: str, when: float) -> Incident:
        """The same incident with the first time of a step noted."""
        return self if step in self.times else self.model_copy(update={"times": {**self.times, step: when}})


class Run(Record):
    """One attempt as the suspicion of its nodes counts it: where it ran, and whether it ended well.

    `good` attempts exonerate. A failed one counts against its nodes unless its cause is the job's own; `blamed` are
    the nodes that its evidence of trust `root` named.
    """

    cluster: str
    job_id: int
    label: str
    restart_count: int = 0
    start_time: float | None = None
    end_time: float
    user: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    good: bool = False
    reason: str = ""  # of a failed one; "" while it is not judged
    blamed: tuple[str, ...] = ()


class NodeAction(StrEnum):
    """What a line of a node's history tells."""

    FAULT = "fault"  # its own kernel or NVML told of a fault
    XID = "xid"  # an Xid that speaks against the GPU only when it comes again: 13, 31
    DRAIN = "drain"
    RESUME = "resume"
    ADVISED = "advised"  # a drain that Mode or Drain leaves to people
    REFUSED = "refused"  # a drain that a brake or an administrator's word forbade
    ALERT = "alert"  # several nodes, or several jobs, with one cause: not the nodes' own
    OVERRULED = "overruled"  # an administrator resumed the node, or gave it a reason of his own
    RELEASE = "release"  # `srecover release`: what was known of the node counts no longer
    BOOT = "boot"  # it reported another boot_id than before
    CLEAN = "clean"  # a health check found nothing, after a fault


class NodeEvent(Record):
    """One line of a node's history. `result` is "intent" before a deed, one of `Result` after it, else ""."""

    id: int = 0  # given by the store
    cluster: str
    node: str  # "" where it is about several: then `detail` names them
    time: float
    action: NodeAction
    result: str = ""
    reason: str = ""  # a reason code
    user: str = ""  # whose job it was, or who gave the word
    job: str = ""  # Attempt.label
    incident_id: int = 0
    boot_id: str = ""
    detail: str = ""
