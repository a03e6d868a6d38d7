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
from slurm_recovery.decide.progress import LOAD_FAILED, Course
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
    course: Course = Course()
    successors: tuple[int, ...] = ()  # jobs that its user has queued to go on where it failed

    @property
    def policy(self) -> Policy:
        return self.config.policy(self.attempt.partition)

    @property
    def reason(self) -> str:
        return self.attribution.reason

    @property
    def options(self) -> JobOptions:
        return options_of(self.attempt, self.policy)

    @property
    def max_requeues(self) -> int:
        """The site's, or fewer where the job's owner wants fewer."""
        wish = self.options.max_requeues
        return self.policy.max_requeues if wish is None else min(wish, self.policy.max_requeues)

    @property
    def used(self) -> int:
        """Restarts as MaxRequeues counts them: one that gained nothing counts twice."""
        return self.ledger.restarts + self.wasted

    @property
    def wasted(self) -> int:
        return self.course.in_all if self.policy.stop_after_no_progress else 0

    @property
    def retreats(self) -> bool:
        """Whether an earlier checkpoint is what a restart tries, where the site does not say otherwise."""
        own = self.config.reason(self.reason).action
        return self.reason == LOAD_FAILED and self.course.retreat is not None and own is None

    @property
    def action(self) -> Verdict:
        if self.retreats:
            return Verdict.REQUEUE
        return self.config.reason(self.reason).action or advised(self.attribution)

    @property
    def bequest(self) -> tuple[str, ...]:
        """The nodes that successors are kept off: those that evidence names, not those of suspicion alone."""
        named = self.attribution.suspect_nodes if self.action is Verdict.REQUEUE_EXCLUDE else ()
        return tuple(dict.fromkeys((*named, *(node for node, _ in self.faulty))))

    @property
    def reason_budget(self) -> int:
        own = self.config.reason(self.reason)
        if own.max_requeues is not None:
            return own.max_requeues
        if self.avoid:  # each such restart tries other nodes, as one does that excludes a node
            return max(requeues(self.attribution), HARDWARE_TRIES)
        by_site = own.action is not None and own.action.restarts  # where we would stop, with no restarts at all
        return requeues(self.attribution) or (self.max_requeues if by_site or self.retreats else 0)


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
    used, most = case.used, case.max_requeues
    used_here, most_here = case.ledger.restarts_for(case.reason), case.reason_budget
    if most_here - used_here < most - used:
        return f"restart {used_here + 1} of {most_here} for {case.reason}"
    if case.wasted:
        return f"restart {case.ledger.restarts + 1}, counted as {used + 1} of {most} ({_twice(case)})"
    return f"restart {used + 1} of {most}"


def _twice(case: Case) -> str:
    return f"{case.wasted} without progress count{'s' if case.wasted == 1 else ''} double"


def _used_up(case: Case) -> str:
    """Whose budget of a job's restarts is used up, and how they were counted."""
    own = "" if case.max_requeues == case.policy.max_requeues else ", as its owner wants (max-requeues)"
    if own and not case.max_requeues:
        return "not to be restarted, as its owner wants (max-requeues=0)"
    if case.wasted:
        return f"{case.ledger.restarts} restarts count as {case.used} of {case.max_requeues}{own}: {_twice(case)}"
    return f"{case.used} of {case.max_requeues} restarts used{own}"


def _no_progress(case: Case) -> str:
    count = case.course.in_a_row
    restarts = f"{count} restarts in a row" if count > 1 else "a restart"
    step = "" if case.course.step is None else f"; last step {case.course.step}"
    return f"{restarts} without a newer checkpoint or a later step (StopAfterNoProgress){step}"


def _warning(case: Case) -> str:
    """AdminComment cannot be set on a job that has ended: its owner is told while the job may still go on."""
    count, most = case.course.in_a_row, case.policy.stop_after_no_progress
    if not count or not most:
        return ""
    restarts = f"last {count} restarts" if count > 1 else "last restart"
    return f"no progress in the {restarts}: each counts double, and {most} in a row stop the job (StopAfterNoProgress)"


def _no_checkpoint_left(case: Case) -> bool:
    return case.reason == LOAD_FAILED and case.course.at_fault and case.action is Verdict.STOP


def _none_left(case: Case) -> str:
    count = case.course.refused
    return "no complete checkpoint is left to begin from" + (f": {count} could not be loaded" if count else "")


def _retreat(case: Case) -> str:
    retreat = case.course.retreat
    step = "" if retreat is None or retreat.step is None else f", of step {retreat.step}"
    return f"{_count(case)}, from an earlier checkpoint{step}: {REASONS[case.reason].sentence}"


SUCCESSOR = "successor"


def _has_successor(case: Case) -> bool:
    """Whether its user has queued the restart himself, and one may help. Where none would, what he does is his own.

    It goes before `no_requeue`, for who builds such a chain often submits so, and before the budgets: his restarts are
    not ours.
    """
    stops = case.action is Verdict.STOP or common_cause(case) or case.attempt.expedited
    by_exit = case.attempt.signal == 0 and case.attempt.exit_code in case.policy.stop_exit
    useful = case.action.restarts and not stops and not by_exit
    return bool(case.successors) and not case.requeued_by_slurm and useful


def _goes_on(case: Case) -> str:
    jobs = ",".join(map(str, case.successors))
    nodes = ",".join(case.bequest)
    without = f" without {nodes}" if nodes else ", no node excluded"
    told = f"its user has queued the restart, job {jobs}: it goes on{without}, and this one is not requeued"
    return f"{told}: {REASONS[case.reason].sentence}"


RULES: Sequence[Rule] = (
    Rule("completed", Verdict.NONE, lambda c: c.attempt.state == "COMPLETED", lambda c: "the job completed"),
    Rule("cancelled", Verdict.NONE, _cancelled, lambda c: "the job was cancelled, and stays so"),
    Rule("mode_off", Verdict.NONE, lambda c: c.mode is Mode.OFF, lambda c: "recovery is off for this job"),
    Rule(
        "interactive", Verdict.NONE, lambda c: not c.attempt.batch, lambda c: "an interactive job cannot be requeued"
    ),
    Rule(SUCCESSOR, Verdict.NONE, _has_successor, _goes_on),
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
    Rule("no_checkpoint_left", Verdict.STOP, _no_checkpoint_left, _none_left),
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
        "no_progress",
        Verdict.STOP,
        lambda c: c.course.in_a_row >= c.policy.stop_after_no_progress > 0,
        _no_progress,
    ),
    Rule("budget_job", Verdict.STOP, lambda c: c.used >= c.max_requeues, _used_up),
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
    Rule("earlier_checkpoint", Verdict.REQUEUE, lambda c: c.retreats, _retreat),
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
    if rule.basis == SUCCESSOR:
        exclude = case.bequest
    decision = Decision(
        verdict=verdict,
        basis=rule.basis,
        because=rule.says(case),
        exclude=exclude,
        delay=_delay(case) if verdict.restarts else 0.0,
        act=case.mode is Mode.ACT,
        stop_action=StopAction.HOLD if rule.basis == "common_cause" else case.policy.stop_action,
        policy=case.config.digest,
        warning=_warning(case) if verdict.restarts else "",
        untaken=case.options.refused,
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
