"""The rows about how processes ended, by the word of srun and by exit codes, where no line says why.

Owns what an end proves by itself. srun reports ends in the order in which they came, so who ended first, without a
word, did not end because the others lost their peer. Which rank that is tells first_rank.py.
"""

from __future__ import annotations

import re

from slurm_recovery.attribute.first_rank import only_end, told_first
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, category
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.srun_words import TaskEnd
from slurm_recovery.records import Category, Evidence, Role, Source

# By exit code, where no line says more. Shells add 128 to a signal: sysexits.h, bash(1) EXIT STATUS.
EXITS: dict[tuple[int, int], str] = {
    (126, 0): "permission_denied",
    (127, 0): "command_not_found",
    (130, 0): "cancelled_by_user",
    (0, 2): "cancelled_by_user",
    (129, 0): "sighup",
    (0, 1): "sighup",
    (137, 0): "killed_unknown",
    (0, 9): "killed_unknown",
    (139, 0): "segfault",
    (0, 11): "segfault",
}
# What a first end means that nothing explains, by srun's words (strsignal(3), slurm src/srun/launch.c).
_HOW = (
    (re.compile(r"Killed\b|Exited with exit code 137$"), "killed_unknown"),
    (re.compile(r"Segmentation fault\b|Exited with exit code 139$"), "segfault"),
    (re.compile(r"Exited with exit code \d{1,3}$|Bus error\b"), "unknown"),
)
# What others print that lost a peer, or wait for it: none of it explains an end that came before.
_WAITING = (
    "nccl_timeout",
    "hang",
    "rendezvous_timeout",
    "gloo_connection_error",
    "nccl_network_error",
    "ucx_transport_error",
    "killed_unknown",
    "unknown",
)
_JAX = ("jax_unhealthy", "jax_terminating", "jax_task_listed", "jax_barrier")
_TERMINATING = "srun_terminating"


def ended_first(view: View) -> Finding | None:
    """One process ended before all others, and said nothing; the others lost their peer, or srun ended them."""
    ends, all_ends = _by_themselves(view), view.places.ends
    reason = _means(ends[0][1].how) if ends else None
    if reason is None or len(all_ends) < 2 or not _are_ranks(view):
        return None
    line, first = ends[0]
    alike = any(end.how == first.how for _, end in ends[1:])
    if first.only is None or (alike and reason != "unknown"):
        return None
    others = _others_that_lost(view, first.only)
    # Who leaves without a word is known by that only where all others had one.
    enough = sum(end.count for _, end in ends[1:]) if reason == "unknown" else min(1, len(ends) - 1)
    if others is None or len(others) < enough:
        return None
    because = f"{REASONS[reason].sentence} srun saw task {first.only} end first ({first.how}), and it said nothing."
    return Finding(reason, because, (line,), rank=first.only)


def _by_themselves(view: View) -> list[tuple[Evidence, TaskEnd]]:
    """The ends in srun's order up to where it began to end the rest; without those that an earlier attempt had too."""
    found: list[tuple[Evidence, TaskEnd]] = []
    for one in view.evidence:
        end = view.places.by_line.get(one.line) if one.source is Source.JOB_LOG else None
        if end is not None and (one.count == 1 or not view.earlier):
            found.append((one, end))
        elif one.signature == _TERMINATING and found:
            break
    return found


def _means(how: str) -> str | None:
    return next((reason for pattern, reason in _HOW if pattern.match(how)), None)


def _are_ranks(view: View) -> bool:
    """JAX numbers its processes by SLURM_PROCID: jax/_src/clusters/slurm_cluster.py."""
    return view.places.tasks_are_ranks or bool(view.having(signatures=_JAX))


def _others_that_lost(view: View, task: int) -> set[int] | None:
    """Who waited or lost a peer; None where that may be the task itself, or where anything else was said."""
    conditional = view.having(role=Role.CONDITIONAL)
    if any(found.reason not in _WAITING for found in conditional):
        return None
    hurt = [*conditional, *view.having(source=Source.JOB_LOG, role=Role.SECONDARY)]
    lost = [one for one in hurt if category(one.reason) is Category.INTERCONNECT or one.signature == "jax_terminating"]
    voices = {_voice(view, one) for one in lost}
    return None if task in voices or None in voices else {voice for voice in voices if voice is not None}


def _voice(view: View, found: Evidence) -> int | None:
    rank = view.rank(found)
    return rank if rank is not None else frame(found.line).task


def told_by_exit(view: View) -> bool:
    """Whether the exit code tells by itself how the attempt ended."""
    return (view.attempt.exit_code, view.attempt.signal) in EXITS


def exit_code(view: View) -> Finding | None:
    code, signal = view.attempt.exit_code, view.attempt.signal
    reason = EXITS.get((code, signal))
    if reason is None:
        return None
    rank = {"segfault": only_end, "killed_unknown": only_killed}.get(reason, _nobody)(view)
    return Finding(reason, f"{REASONS[reason].sentence} ExitCode {code}:{signal}.", rank=rank)


def _nobody(view: View) -> None:
    """No rank: the whole job ended so."""


def only_killed(view: View) -> int | None:
    """The one task that srun saw killed before it killed others itself, where tasks are ranks."""
    killed = [end for _, end in _by_themselves(view) if end.how == "Killed"]
    return killed[0].only if view.places.tasks_are_ranks and len(killed) == 1 else None


def killed(view: View) -> Finding | None:
    """srun saw every task killed, or one of them before the others lost their peer."""
    ends = view.places.ends
    rank, all_killed = only_killed(view), all(end.how == "Killed" for end in ends)
    if not ends or not (all_killed or rank is not None):
        return None
    how = f"task {rank} was Killed" if rank is not None else f"{len(ends)} lines, all Killed"
    return Finding("killed_unknown", f"{REASONS['killed_unknown'].sentence} srun: {how}.", rank=rank)


def nothing(view: View) -> Finding | None:
    state = view.attempt.state or "state not known"
    exits = f"{view.attempt.exit_code}:{view.attempt.signal}"
    unread = "".join(f" Not read: {gap.what}: {gap.why}." for gap in view.observation.gaps[:3])
    because = f"{REASONS['unknown'].sentence} {state}, ExitCode {exits}.{unread}"
    return Finding("unknown", because, rank=told_first(view))
