"""The rules of deciding: rows, tried in order; the first that applies gives the verdict.

Pure: no I/O, no clock, no logging. A row returns data; recover.py acts on it. To add a rule is to add a
row to RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_recovery.attribute.reasons import HARDWARE_TRIES, REASONS, advised, requeues
from slurm_recovery.config.settings import Config, Mode, Policy, StopAction
from slurm_recovery.decide.history import Ledger
from slurm_recovery.job_options import JobOptions, allowed, read_options
from slurm_recovery.records import Attempt, Attribution, Category, Decision, Trust, Verdict


class Alike(NamedTuple):
    """The jobs, this one among them, that failed for the same reason within CommonCauseTime, and their users."""

    jobs: int = 1
    users: int = 1


class Case(NamedTuple):
    """All that a decision may depend on."""

    attempt: Attempt
    attribution: Attribution
    config: Config
    ledger: Ledger
    mode: Mode  # the partition's, lowered by the job's own wish
    requeued_by_slurm: bool = False  # another attempt is due or under way, and not by our hand
    still_pending: bool = False  # ... and it has not started yet
    held_by_other: bool = False  # ... for somebody wants it held
    alike: Alike = Alike()
    faulty: tuple[tuple[str, str], ...] = ()  # nodes whose own kernel or NVML tells of a fault, and its reason
    avoid: tuple[tuple[str, float], ...] = ()  # nodes that a restart would avoid for suspicion, and how far each is

    @property
    def policy(self) -> Policy:
        return self.config.policy(self.attempt.partition)

    @property
    def reason(self) -> str:
        return self.attribution.reason

    @property
    def action(self) -> Verdict:
        return self.config.reason(self.reason).action or advised(self.attribution)

    @property
    def reason_budget(self) -> int:
        own = self.config.reason(self.reason)
        if own.max_requeues is not None:
            return own.max_requeues
        if self.avoid:  # each such restart tries other nodes, as one does that excludes a node
            return max(requeues(self.attribution), HARDWARE_TRIES)
        by_site = own.action is not None and own.action.restarts  # where we would stop, with no restarts at all
        return requeues(self.attribution) or (self.policy.max_requeues if by_site else 0)


MOST_TOLD = 4  # suspected nodes of one sentence


class Rule(NamedTuple):
    """`applies` looks at the case; `says` gives the sentence, with its numbers."""

    basis: str
    verdict: Verdict | None  # None: the reason's own action
    applies: Callable[[Case], bool]
    says: Callable[[Case], str]


def _cancelled(case: Case) -> bool:
    return case.attempt.state in ("CANCELLED", "REVOKED")


# What nodes and jobs share. A collective that timed out is not among them: several such jobs at once may be chance.
_SHARED = ("mount_missing", "nccl_network_error", "ib_link_error", "nic_link_down", "name_resolution_failed")


def common_cause(case: Case) -> bool:
    """Whether this job's failure is one of several by something that they share, and no node's.

    One user's word alone holds nobody: either a node's own kernel tells of it, or several users' jobs do.
    """
    attribution = case.attribution
    shared = attribution.category is Category.STORAGE or attribution.reason in _SHARED
    proven = case.alike.users > 1 or any(one.trust is Trust.ROOT for one in attribution.evidence[:1])
    return shared and not attribution.suspects and proven and case.alike.jobs >= case.config.settings.common_cause_jobs


def _ours_to_lift(case: Case) -> bool:
    """Slurm requeued the job itself, for a fault of a node: the exclusion is left to do, and the delay to lift."""
    open_to_us = case.still_pending and not case.held_by_other
    excludes = case.action is Verdict.REQUEUE_EXCLUDE and bool(case.attribution.suspects)
    return open_to_us and (excludes or case.attempt.state == "NODE_FAIL")


def _count(case: Case) -> str:
    """Which restart this is, by the budget that runs out first."""
    used, most = case.ledger.restarts, case.policy.max_requeues
    used_here, most_here = case.ledger.restarts_for(case.reason), case.reason_budget
    if most_here - used_here < most - used:
        return f"restart {used_here + 1} of {most_here} for {case.reason}"
    return f"restart {used + 1} of {most}"


RULES: Sequence[Rule] = (
    Rule("completed", Verdict.NONE, lambda c: c.attempt.state == "COMPLETED", lambda c: "the job completed"),
    Rule("cancelled", Verdict.NONE, _cancelled, lambda c: "the job was cancelled, and stays so"),
    Rule("mode_off", Verdict.NONE, lambda c: c.mode is Mode.OFF, lambda c: "recovery is off for this job"),
    Rule(
        "interactive", Verdict.NONE, lambda c: not c.attempt.batch, lambda c: "an interactive job cannot be requeued"
    ),
    Rule(
        "no_requeue",
        Verdict.NONE,
        lambda c: not c.attempt.requeue,
        lambda c: "submitted with --no-requeue (or JobRequeue=0 in slurm.conf)",
    ),
    Rule(
        "expedited",
        Verdict.NONE,
        lambda c: c.attempt.expedited,
        lambda c: "submitted with --requeue=expedite: Slurm restarts it itself",
    ),
    Rule(
        "already_requeued",
        Verdict.NONE,
        lambda c: c.requeued_by_slurm and not _ours_to_lift(c),
        lambda c: "already back in the queue, and not by us",
    ),
    Rule(
        "stop_exit",
        Verdict.STOP,
        lambda c: c.attempt.signal == 0 and c.attempt.exit_code in c.policy.stop_exit,
        lambda c: f"exit code {c.attempt.exit_code} means do not restart (StopExit)",
    ),
    Rule(
        "reason_stops",
        Verdict.STOP,
        lambda c: c.action is Verdict.STOP,
        lambda c: f"another try would not get further: {REASONS[c.reason].sentence}",
    ),
    Rule(
        "common_cause",
        Verdict.STOP,
        common_cause,
        lambda c: f"{c.alike.jobs} jobs of {c.alike.users} users failed for {c.reason} within "
        f"{c.config.settings.common_cause_time / 60:g} minutes: {REASONS[c.reason].sentence}",
    ),
    Rule("reason_none", Verdict.NONE, lambda c: c.action is Verdict.NONE, lambda c: REASONS[c.reason].sentence),
    Rule(
        "budget_job",
        Verdict.STOP,
        lambda c: c.ledger.restarts >= c.policy.max_requeues,
        lambda c: f"{c.ledger.restarts} of {c.policy.max_requeues} restarts used",
    ),
    Rule(
        "budget_reason",
        Verdict.STOP,
        lambda c: c.ledger.restarts_for(c.reason) >= c.reason_budget,
        lambda c: f"{c.ledger.restarts_for(c.reason)} of {c.reason_budget} restarts used for {c.reason}",
    ),
    Rule(
        "budget_user",
        Verdict.STOP,
        lambda c: c.ledger.user_hour >= c.config.settings.max_requeues_per_user_hour,
        lambda c: f"{c.ledger.user_hour} of {c.config.settings.max_requeues_per_user_hour} restarts used by this user "
        "within an hour",
    ),
    Rule(
        "budget_hour",
        Verdict.STOP,
        lambda c: c.ledger.cluster_hour >= c.config.settings.max_requeues_per_hour,
        lambda c: f"{c.ledger.cluster_hour} of {c.config.settings.max_requeues_per_hour} restarts used on the cluster "
        "within an hour",
    ),
    Rule(
        "exclude",
        Verdict.REQUEUE_EXCLUDE,
        lambda c: c.action is Verdict.REQUEUE_EXCLUDE and bool(c.attribution.suspects),
        lambda c: f"{_count(c)} without {','.join(c.attribution.suspect_nodes)}: {REASONS[c.reason].sentence}",
    ),
    Rule(
        "restart",
        Verdict.REQUEUE,
        lambda c: True,
        lambda c: f"{_count(c)}, no node excluded: {REASONS[c.reason].sentence}",
    ),
)


def decide(case: Case) -> Decision:
    """The first rule that applies, as a decision."""
    rule = next(rule for rule in RULES if rule.applies(case))
    verdict = rule.verdict or case.action
    exclude = case.attribution.suspect_nodes if verdict is Verdict.REQUEUE_EXCLUDE else ()
    decision = Decision(
        verdict=verdict,
        basis=rule.basis,
        because=rule.says(case),
        exclude=exclude,
        delay=_delay(case) if verdict.restarts else 0.0,
        act=case.mode is Mode.ACT,
        stop_action=StopAction.HOLD if rule.basis == "common_cause" else case.policy.stop_action,
        policy=case.config.digest,
    )
    return _avoiding(_excluding(decision, case.faulty), case.avoid) if verdict.restarts else decision


def _excluding(decision: Decision, faulty: Sequence[tuple[str, str]]) -> Decision:
    """A restart that is also kept off nodes at fault, whatever this attempt ended of. `faulty`: (node, reason)."""
    more = {node: reason for node, reason in faulty if node not in decision.exclude}
    if not more:
        return decision
    told = ", ".join(f"{node} ({reason})" for node, reason in list(more.items())[:MOST_TOLD])
    told += f" and {len(more) - MOST_TOLD} more" if len(more) > MOST_TOLD else ""
    because = f"{decision.because}; nodes tell of faults of their own and are excluded, too: {told}"
    exclude = (*decision.exclude, *more)
    return decision.model_copy(
        update={"verdict": Verdict.REQUEUE_EXCLUDE, "exclude": exclude, "because": because}
    )


def _avoiding(decision: Decision, suspected: Sequence[tuple[str, float]]) -> Decision:
    """A restart that also avoids nodes for suspicion alone, and says so. `suspected`: (node, posterior)."""
    more = [(node, posterior) for node, posterior in suspected if node not in decision.exclude]
    if not more:
        return decision
    told = ", ".join(f"{node} ({posterior:.0%})" for node, posterior in more[:MOST_TOLD])
    told += f" and {len(more) - MOST_TOLD} more" if len(more) > MOST_TOLD else ""
    because = f"{decision.because}; suspected and avoided: {told}"
    return decision.model_copy(update={"avoid": tuple(node for node, _ in more), "because": because})


def _delay(case: Case) -> float:
    """Seconds: none for a first fast failure with a node to exclude; else doubling with each fast one in a row."""
    fast = case.ledger.fast_failures
    if case.attribution.suspects:
        fast -= 1
    return min(case.policy.backoff * 2 ** (fast - 1), case.policy.backoff_max) if fast > 0 else 0.0


_ORDER = (Mode.OFF, Mode.OBSERVE, Mode.ACT)


def options_of(attempt: Attempt, policy: Policy) -> JobOptions:
    """What the job's owner says about its recovery, as far as the site lets him."""
    return allowed(read_options(attempt.comment, attempt.spank), policy.job_options)


def effective_mode(policy: Policy, attempt: Attempt) -> Mode:
    """The site's mode, lowered by the job's own wish, never raised."""
    wish = options_of(attempt, policy).mode
    return min(policy.mode, Mode(wish) if wish else Mode.ACT, key=_ORDER.index)
