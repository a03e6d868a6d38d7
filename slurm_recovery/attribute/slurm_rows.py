"""The rows in which Slurm has the word: how the attempt ended by slurmctld, slurmstepd and srun.

Owns Slurm's states. What Slurm says of the whole job outranks every line that a program prints, with the
exceptions that are written here: a time limit that only ended a hang, or that came long after an error.
"""

from __future__ import annotations

from slurm_recovery.attribute.cause_rows import kernel_hardware, local_error
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import HOUR, MINUTE, Finding, View, suspects, told
from slurm_recovery.detect.scan import CLOCK
from slurm_recovery.records import Category, Evidence, Role, Source, Suspect, Trust

SILENCE = 1 * HOUR  # a program that printed dates and then nothing for so long had hung
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
    return Finding(reason, f"{REASONS[reason].sentence} State {view.attempt.state}.")


def time_limit(view: View) -> Finding | None:
    if _state(view) not in TIME_STATES:
        return None
    return _before_the_limit(view) or Finding("time_limit", f"{REASONS['time_limit'].sentence} State {_state(view)}.")


def _before_the_limit(view: View) -> Finding | None:
    """What the time limit only put an end to."""
    return kernel_hardware(view) or _long_before(view) or _silent(view)


def _long_before(view: View) -> Finding | None:
    """An error that the program reported long before the limit ended it."""
    finding, end = local_error(view), view.ended
    when = finding.evidence[0].time if finding and finding.evidence else None
    return finding if end is not None and when is not None and end - when >= LONG_BEFORE else None


def _silent(view: View) -> Finding | None:
    clock = view.having(source=Source.JOB_LOG, signatures=(CLOCK,))
    end = view.ended
    if not clock or clock[0].time is None or end is None or end - clock[0].time < SILENCE:
        return None
    hours = (end - clock[0].time) / HOUR
    because = f"{REASONS['hang'].sentence} The program's last line came {hours:.1f} hours before the time limit."
    return Finding("hang", because, clock)


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


def slurm_words(view: View) -> Finding | None:
    found = {line.reason: line for line in reversed(view.having(source=Source.JOB_LOG, role=Role.ROOT, reasons=WORDS))}
    reason = next((word for word in WORDS if word in found), None)
    if reason is None:
        return None
    earlier = _before_the_limit(view) if reason == "time_limit" else None
    return earlier or _words(view, reason, found[reason])


def _words(view: View, reason: str, line: Evidence) -> Finding:
    named = REASONS[reason].category is Category.NODE
    lines = view.having(source=Source.JOB_LOG, role=Role.ROOT, reasons=(reason,))
    rank = _killed_rank(view) if reason == "host_oom" else None
    nodes = suspects(view, lines, reason) if named else ()
    return Finding(reason, told(view, reason, line), lines, rank=rank, suspects=nodes)
