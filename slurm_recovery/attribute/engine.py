"""Evidence to attribution: the first row that answers wins.

Owns the order of the rows (who outranks whom) and nothing else; each row is a function of its own in
slurm_rows.py, cause_rows.py or behind.py. Pure: no file, no clock, no Slurm.
"""

from __future__ import annotations

from slurm_recovery.attribute import behind, cause_rows, slurm_rows
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, Row, View, view
from slurm_recovery.records import Attribution, Beaten, Category, Observation

MOST_EVIDENCE = 12
MOST_BEATEN = 4

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


def exit_code(view: View) -> Finding | None:
    code, signal = view.attempt.exit_code, view.attempt.signal
    reason = EXITS.get((code, signal))
    return Finding(reason, f"{REASONS[reason].sentence} ExitCode {code}:{signal}.") if reason else None


def killed(view: View) -> Finding | None:
    """All that srun says is that every task was killed."""
    ends = view.places.ends
    if not ends or any(end.how != "Killed" for end in ends):
        return None
    return Finding("killed_unknown", f"{REASONS['killed_unknown'].sentence} srun: {len(ends)} lines, all Killed.")


def nothing(view: View) -> Finding | None:
    state = view.attempt.state or "state not known"
    exits = f"{view.attempt.exit_code}:{view.attempt.signal}"
    unread = "".join(f" Not read: {gap.what}: {gap.why}." for gap in view.observation.gaps[:3])
    return Finding("unknown", f"{REASONS['unknown'].sentence} {state}, ExitCode {exits}.{unread}")


# Strongest first.
ROWS: tuple[tuple[str, Row], ...] = (
    ("final_state", slurm_rows.final_state),
    ("node_down", slurm_rows.node_down),
    ("prolog_failed", slurm_rows.prolog_failed),
    ("node_failed", slurm_rows.node_failed),
    ("out_of_memory", slurm_rows.out_of_memory),
    ("cancelled", slurm_rows.cancelled),
    ("time_limit", slurm_rows.time_limit),
    ("slurm_words", slurm_rows.slurm_words),
    ("kernel_hardware", cause_rows.kernel_hardware),
    ("device_error", cause_rows.device_error),
    ("local_error", cause_rows.local_error),
    ("link_or_storage", cause_rows.link_or_storage),
    ("lagging", behind.lagging),
    ("absent", behind.absent),
    ("blamed_peer", behind.blamed_peer),
    ("conditional", behind.conditional),
    ("killed", killed),
    ("exit_code", exit_code),
    ("consequences", behind.consequences),
    ("nothing", nothing),
)


def attribute(observation: Observation) -> Attribution:
    """Why the attempt ended and where that began, with the explanations that were beaten."""
    looked_at = view(observation)
    answers = [(name, finding) for name, row in ROWS if (finding := row(looked_at)) is not None]
    name, best = answers[0]
    return Attribution(
        category=best.category or REASONS[best.reason].category,
        reason=best.reason,
        root_rank=best.rank,
        suspects=() if _blameless(best) else best.suspects,
        because=best.because,
        evidence=best.evidence[:MOST_EVIDENCE],
        beaten=_beaten(name, best, [finding for _, finding in answers[1:]]),
    )


def _blameless(finding: Finding) -> bool:
    """Never a node for what the program or its owner did."""
    owner = finding.category or REASONS[finding.reason].category
    return owner in (Category.APPLICATION, Category.USER_OR_SCHEDULER, Category.HEALTHY)


def _beaten(winner: str, best: Finding, others: list[Finding]) -> tuple[Beaten, ...]:
    reasons = dict.fromkeys(other.reason for other in others if other.reason not in (best.reason, "unknown"))
    return tuple(Beaten(reason=reason, by=winner) for reason in list(reasons)[:MOST_BEATEN])
