"""The rows in which Slurm has the word: how the attempt ended by slurmctld, slurmstepd and srun.

Owns Slurm's states. What Slurm says of the whole job outranks every line that a program prints, with the
exceptions that are written here: a time limit that only ended a hang, or that came long after an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_recovery.attribute.behind import teardown
from slurm_recovery.attribute.cause_rows import local_error, of_a_task
from slurm_recovery.attribute.kernel_rows import kernel_hardware, kernel_memory
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.shared_rows import stuck
from slurm_recovery.attribute.view import HOUR, MINUTE, Finding, View, suspect, suspects, told
from slurm_recovery.detect.notes import CLOCK
from slurm_recovery.records import Category, Evidence, Role, Source, Suspect, Trust

SILENCE = 1 * HOUR  # a program that printed dates and then nothing for so long had hung
BEHIND_IT = 12  # lines that may follow an error's own: the rest of its message and of its stack
LONG_BEFORE = 30 * MINUTE
TIME_STATES = ("TIMEOUT", "DEADLINE")

# Slurm's states that settle the matter by themselves.
STATES = {"COMPLETED": "completed", "PREEMPTED": "preempted", "REQUEUED": "requeued"}


def _state(view: View) -> str:
    """The base state: `CANCELLED by 0` is CANCELLED, `NODE_FAIL+` is NODE_FAIL."""
    words = view.attempt.state.replace("+", " ").split()
    return words[0].upper() if words else ""


def final_state(view: View) -> Finding | None:
    reason = STATES.get(_state(view))
    if reason is None:
        return None
    return Finding(reason, f"{REASONS[reason].sentence} State {_state(view)}.")


def node_down(view: View) -> Finding | None:
    return _named_by_slurm(
        view, view.observation.down_nodes, "node_fail", "Slurm shows the node down or not responding"
    )


def prolog_failed(view: View) -> Finding | None:
    why = "slurmctld drained the node for its failed prolog"
    return _named_by_slurm(view, view.observation.prolog_failed_nodes, "launch_failed", why)


def _named_by_slurm(view: View, names: tuple[str, ...], reason: str, why: str) -> Finding | None:
    nodes = [node for node in names if node in view.attempt.nodes]
    if not nodes:
        return None
    named = tuple(Suspect(node=node, trust=Trust.ROOT, because=why) for node in nodes)
    return Finding(reason, f"{REASONS[reason].sentence} {why}: {', '.join(nodes)}.", suspects=named)


def node_failed(view: View) -> Finding | None:
    """NODE_FAIL: the node is named by `Node failure on`, or by its own panic; never by the line that reports it."""
    if _state(view) not in ("NODE_FAIL", "BOOT_FAIL"):
        return None
    lines = view.having(role=Role.ROOT, reasons=("node_fail",))
    because = f"{REASONS['node_fail'].sentence} State {_state(view)}."
    named = suspects(view, lines, "node_fail")
    if not named and (kernel := kernel_hardware(view)):
        lines, named = kernel.evidence, kernel.suspects
    return Finding("node_fail", because, lines, suspects=named)


def out_of_memory(view: View) -> Finding | None:
    attempt = view.attempt
    if _state(view) != "OUT_OF_MEMORY" and (attempt.exit_code, attempt.signal) != (0, 125):
        return None
    if (kernel := kernel_memory(view)) and kernel.category is Category.NODE:
        return kernel
    lines = view.having(role=Role.ROOT, reasons=("host_oom",))
    because = told(view, "host_oom", lines[0]) if lines else f"{REASONS['host_oom'].sentence} ExitCode 0:125."
    return Finding("host_oom", because, lines, rank=_killed_rank(view))


def _killed_rank(view: View) -> int | None:
    """The rank that ran out of memory, by srun or by a failure table."""
    killed = [end for end in view.places.ends if end.how.startswith("Out Of Memory")]
    if killed and view.places.tasks_are_ranks:
        return killed[0].first
    tables = [found.rank for found in view.having(signatures=("torchrun_table",), reasons=("killed_unknown",))]
    return tables[0] if tables else None


def cancelled(view: View) -> Finding | None:
    if _state(view) != "CANCELLED":
        return None
    by = view.attempt.state.split()[-1]
    stranger = by.isdecimal() and int(by) != view.attempt.user_id
    reason = "cancelled_by_admin" if stranger and (int(by) == 0 or view.attempt.user_id >= 0) else "cancelled_by_user"
    kernel = kernel_hardware(view) if reason == "cancelled_by_admin" else None  # a health check may have cancelled it
    if kernel is not None and REASONS[kernel.reason].category is Category.HARDWARE:
        return kernel
    return Finding(reason, f"{REASONS[reason].sentence} State {view.attempt.state}.")


def time_limit(view: View) -> Finding | None:
    if _state(view) not in TIME_STATES:
        return None
    return _before_the_limit(view) or Finding("time_limit", f"{REASONS['time_limit'].sentence} State {_state(view)}.")


def _before_the_limit(view: View) -> Finding | None:
    """What the time limit only put an end to."""
    return kernel_hardware(view) or _long_before(view) or teardown(view) or stuck(view) or _silent(view)


def _long_before(view: View) -> Finding | None:
    """An error that the program reported long before the limit ended it, or after which it printed no more."""
    finding, end = local_error(view), view.ended
    if finding is None or not finding.evidence or end is None:
        return None
    error, last = finding.evidence[0], _last_clock(view)
    if error.time is not None:
        went_on = last is not None and (last.time or 0.0) - error.time >= LONG_BEFORE
        return finding if end - error.time >= LONG_BEFORE and not went_on else None
    if last is None:
        return finding if _last_words(view, finding) else None
    return finding if end - (last.time or end) >= SILENCE and _after(view, error, last) else None


def _last_words(view: View, finding: Finding) -> bool:
    """Whether ranks ended of the error, and nobody printed anything between it and Slurm's word about the limit."""
    limit = next(iter(view.having(source=Source.JOB_LOG, signatures=("slurm_time_limit",))), None)
    ranks = [found for found in finding.evidence if found.rank is not None and found.source is Source.JOB_LOG]
    lines = [number for found in ranks if (number := _number(found)) is not None]
    at = _number(limit) if limit is not None else None
    return at is not None and bool(lines) and 0 < at - max(lines) <= BEHIND_IT


def _number(found: Evidence) -> int | None:
    number = found.place.rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def _last_clock(view: View) -> Evidence | None:
    clock = view.having(source=Source.JOB_LOG, signatures=(CLOCK,))
    return clock[0] if clock and clock[0].time is not None else None


def _after(view: View, error: Evidence, clock: Evidence) -> bool:
    """Whether the error was printed after the program's last date."""
    order = {id(found): number for number, found in enumerate(view.evidence)}
    return order.get(id(error), -1) > order.get(id(clock), -1)


def _silent(view: View) -> Finding | None:
    last, end = _last_clock(view), view.ended
    if last is None or last.time is None or end is None or end - last.time < SILENCE:
        return None
    hours = (end - last.time) / HOUR
    because = f"{REASONS['hang'].sentence} The program's last line came {hours:.1f} hours before the time limit."
    return Finding("hang", because, (last,))


# What slurmstepd and srun print, strongest first, where the state alone does not say it.
WORDS = (
    "node_fail",
    "launch_failed",
    "kill_task_failed",
    "preempted",
    "requeued",
    "slurm_config_error",
    "host_oom",
    "time_limit",
    "cancelled_by_user",
    "sighup",
)


# What is said of the whole job shows in its state: such words in the log of a job with another state are old, of
# another job, or the user's own.
OF_THE_JOB = {
    "node_fail": ("NODE_FAIL", "BOOT_FAIL"),
    "preempted": ("PREEMPTED",),
    "requeued": ("REQUEUED",),
    "cancelled_by_user": ("CANCELLED",),
}
_OF_SLURM = ("slurm_oom",)
_BY_TASK = "task_number_launch_failed"
_BY_SRUN = ("srun_node_failure", "slurm_preempted", "slurm_requeued", "slurm_cancelled")


def slurm_words(view: View) -> Finding | None:
    """What slurmstepd and srun say, unless the job's state contradicts it."""
    return _first_word(view, [line for line in _said(view) if not _contradicted(view, line)])


def contradicted_words(view: View) -> Finding | None:
    """What they say against the job's state: only where nothing else was found."""
    return _first_word(view, [line for line in _said(view) if _contradicted(view, line)])


def _said(view: View) -> list[Evidence]:
    """Slurm's words; that memory ran out is said by programs too, and then it is one rank's error."""
    lines = view.having(source=Source.JOB_LOG, role=Role.ROOT, reasons=WORDS)
    return [line for line in lines if line.reason != "host_oom" or line.signature in _OF_SLURM]


def _contradicted(view: View, line: Evidence) -> bool:
    if line.reason == "host_oom":
        return of_a_task(view, line)
    states = OF_THE_JOB.get(line.reason, ())
    return bool(states) and line.signature in _BY_SRUN and _state(view) not in ("", *states)


def _first_word(view: View, lines: Sequence[Evidence]) -> Finding | None:
    found = {line.reason: line for line in reversed(lines)}
    reason = next((word for word in WORDS if word in found), None)
    if reason is None:
        return None
    earlier = _before_the_limit(view) if reason == "time_limit" else None
    words = earlier or _words(view, reason, found[reason])
    return _behind_it(view, words) or words


def _behind_it(view: View, words: Finding) -> Finding | None:
    """The kernel's word about the very node whose processes could not be ended: a lost device keeps them."""
    if words.reason != "kill_task_failed":
        return None
    kernel = kernel_hardware(view)
    named = {one.node for one in kernel.suspects} if kernel else set()
    return kernel if named and named <= {one.node for one in words.suspects} else None


def _words(view: View, reason: str, line: Evidence) -> Finding:
    named = REASONS[reason].category is Category.NODE
    lines = view.having(source=Source.JOB_LOG, role=Role.ROOT, reasons=(reason,))
    rank = _killed_rank(view) if reason == "host_oom" else None
    by_task = [found for found in lines if found.signature == _BY_TASK]
    others = [found for found in lines if found.signature != _BY_TASK]
    nodes = suspects(view, others, reason) or _whole_node(view, by_task, reason) if named else ()
    return Finding(reason, told(view, reason, line), lines, rank=rank, suspects=nodes)


def _whole_node(view: View, lines: Sequence[Evidence], reason: str) -> tuple[Suspect, ...]:
    """The node all of whose tasks, and no others, could not be launched."""
    tasks = {found.rank for found in lines if found.rank is not None}
    nodes = {view.places.layout.task_node(task) for task in tasks}
    node = nodes.pop() if len(nodes) == 1 else None
    if node is None or len(tasks) != view.places.per_node or len(view.attempt.nodes) < 2:
        return ()
    return (suspect(view, lines[0], node, reason),)
