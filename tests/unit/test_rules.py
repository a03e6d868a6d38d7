"""The rules of deciding: which row applies, budgets, back-off, and the job's own wish."""

from __future__ import annotations

import pytest

from slurm_recovery.act import comment_of
from slurm_recovery.config.settings import Config, Mode, Policy, ReasonPolicy, Settings
from slurm_recovery.decide.history import Ledger, ledger
from slurm_recovery.decide.progress import Course
from slurm_recovery.decide.rules import RULES, Alike, Case, decide, effective_mode
from slurm_recovery.records import (
    Attempt,
    Attribution,
    Category,
    Checkpoint,
    Decision,
    Evidence,
    Incident,
    Role,
    Source,
    Suspect,
    Trust,
    Verdict,
)

ATTEMPT = Attempt(cluster="c", job_id=1, state="FAILED", exit_code=1, start_time=1000, end_time=9000)
NODE = Suspect(node="n2", trust=Trust.USER, because="test")
ECC = Attribution(category=Category.HARDWARE, reason="gpu_ecc_uncorrectable", suspects=(NODE,))
UNKNOWN = Attribution(category=Category.UNKNOWN, reason="unknown")
MOUNT = Attribution(category=Category.STORAGE, reason="filesystem_io")
NFS = Evidence(
    source=Source.KERNEL_LOG, trust=Trust.ROOT, signature="nfs", reason="filesystem_io", role=Role.ROOT, line="nfs: ..."
)
TOLD_BY_KERNEL = MOUNT.model_copy(update={"evidence": (NFS,)})
IMPORT = Attribution(category=Category.SOFTWARE_ENV, reason="import_error")
CORRUPT = Attribution(category=Category.STORAGE, reason="checkpoint_corrupt")
SAVED = Checkpoint(path="/ckpt/900", format="dcp", step=900, time=5)


def case(attribution: Attribution = ECC, attempt: Attempt = ATTEMPT, **more: object) -> Case:
    fields = {"config": Config(), "ledger": Ledger(), "mode": Mode.ACT} | more
    return Case(attempt=attempt, attribution=attribution, **fields)  # type: ignore[arg-type]


def with_attempt(**more: object) -> Attempt:
    return ATTEMPT.model_copy(update=more)


@pytest.mark.parametrize(
    ("basis", "verdict", "given"),
    [
        ("completed", Verdict.NONE, case(attempt=with_attempt(state="COMPLETED"))),
        ("cancelled", Verdict.NONE, case(attempt=with_attempt(state="CANCELLED"))),
        ("mode_off", Verdict.NONE, case(mode=Mode.OFF)),
        ("interactive", Verdict.NONE, case(attempt=with_attempt(batch=False))),
        ("no_requeue", Verdict.NONE, case(attempt=with_attempt(requeue=False))),
        ("expedited", Verdict.NONE, case(attempt=with_attempt(expedited=True))),
        ("already_requeued", Verdict.NONE, case(UNKNOWN, requeued_by_slurm=True, still_pending=True)),
        ("already_requeued", Verdict.NONE, case(requeued_by_slurm=True)),
        ("exclude", Verdict.REQUEUE_EXCLUDE, case(requeued_by_slurm=True, still_pending=True)),
        ("reason_stops", Verdict.STOP, case(IMPORT)),
        ("reason_stops", Verdict.STOP, case(CORRUPT)),
        ("no_checkpoint_left", Verdict.STOP, case(CORRUPT, course=Course(at_fault=True, refused=2))),
        ("earlier_checkpoint", Verdict.REQUEUE, case(CORRUPT, course=Course(at_fault=True, retreat=SAVED))),
        ("restart", Verdict.REQUEUE, case(MOUNT, course=Course(at_fault=True, retreat=SAVED))),
        ("no_progress", Verdict.STOP, case(course=Course(in_a_row=3, in_all=3, step=1200))),
        ("exclude", Verdict.REQUEUE_EXCLUDE, case(course=Course(in_a_row=2, in_all=2))),
        ("common_cause", Verdict.STOP, case(MOUNT, alike=Alike(jobs=3, users=2))),
        ("restart", Verdict.REQUEUE, case(MOUNT, alike=Alike(jobs=2, users=2))),
        ("restart", Verdict.REQUEUE, case(MOUNT, alike=Alike(jobs=9, users=1))),
        ("common_cause", Verdict.STOP, case(TOLD_BY_KERNEL, alike=Alike(jobs=3, users=1))),
        ("restart", Verdict.REQUEUE, case(UNKNOWN, alike=Alike(jobs=9, users=9))),
        ("exclude", Verdict.REQUEUE_EXCLUDE, case(ECC, alike=Alike(jobs=9, users=9))),
        ("budget_job", Verdict.STOP, case(ledger=Ledger(("a", "b", "c")))),
        ("budget_job", Verdict.STOP, case(ledger=Ledger(("a", "b")), course=Course(in_all=1))),
        ("budget_reason", Verdict.STOP, case(UNKNOWN, ledger=Ledger(("unknown",)))),
        ("budget_user", Verdict.STOP, case(ledger=Ledger(user_hour=20, cluster_hour=60))),
        ("budget_hour", Verdict.STOP, case(ledger=Ledger(cluster_hour=60))),
        ("successor", Verdict.NONE, case(successors=(124,))),
        ("exclude", Verdict.REQUEUE_EXCLUDE, case()),
        ("restart", Verdict.REQUEUE, case(UNKNOWN)),
    ],
)
def test_the_first_row_that_applies_decides(basis: str, verdict: Verdict, given: Case) -> None:
    decision = decide(given)
    assert (decision.basis, decision.verdict) == (basis, verdict)
    assert decision.because
    assert decision.policy == given.config.digest


def test_every_row_is_tried_above() -> None:
    (parameters,) = (mark for mark in test_the_first_row_that_applies_decides.pytestmark)  # type: ignore[attr-defined]
    tried = {row[0] for row in parameters.args[1]}
    assert {rule.basis for rule in RULES} - tried == {"stop_exit", "reason_none"}


def test_the_owner_of_a_job_may_ask_for_fewer_restarts_and_not_for_more() -> None:
    def told(comment: str, used: int) -> Decision:
        return decide(case(attempt=with_attempt(comment=comment), ledger=Ledger(("a", "b", "c")[:used])))

    wanted = "recovery=act,max-requeues=1"
    assert told(wanted, 0).because.startswith("restart 1 of 1 without n2")
    assert told(wanted, 1).because == "1 of 1 restarts used, as its owner wants (max-requeues)"
    assert told("recovery=act,max-requeues=9", 3).because == "3 of 3 restarts used"
    never = told("recovery=act,max-requeues=0", 0)
    assert (never.verdict, never.basis) == (Verdict.STOP, "budget_job")
    assert never.because == "not to be restarted, as its owner wants (max-requeues=0)"


def test_options_that_are_not_taken_are_told_without_the_users_words() -> None:
    config = Config(settings=Settings(job_options=("mode", "max-requeues")))
    attempt = with_attempt(comment="recovery=act,checkpoint=/secret/evil,max-requeues=lots,evil=1")
    incident = Incident(attempt=attempt, attribution=ECC)
    for given in (case(attempt=attempt, config=config), case(IMPORT, attempt, config=config)):
        decision = decide(given)
        assert len(decision.untaken) == 3
        comment = comment_of(incident, decision)
        assert comment.endswith("; recovery options not taken: max-requeues, an unknown one, checkpoint")
    assert "not taken" not in comment_of(incident, decide(case()))


def test_a_common_cause_is_held_for_somebody_to_look() -> None:
    decision = decide(case(MOUNT, alike=Alike(jobs=6, users=2)))
    assert decision.stop_action == "hold"
    assert "6 jobs of 2 users failed for filesystem_io within 10 minutes" in decision.because


def test_what_is_avoided_for_suspicion_is_told_apart_from_what_is_proven() -> None:
    suspected = (("n2", 0.9), ("n3", 0.62), *((f"m{number}", 0.5) for number in range(9)))
    decision = decide(case(avoid=suspected))
    assert decision.exclude == ("n2",)
    assert decision.avoid == ("n3", *(f"m{number}" for number in range(9)))
    assert decision.because.endswith("; suspected and avoided: n3 (62%), m0 (50%), m1 (50%), m2 (50%) and 6 more")
    assert decide(case(avoid=(("n2", 0.9),))) == decide(case())
    assert decide(case(IMPORT, avoid=suspected)).avoid == ()


def test_a_restart_is_kept_off_nodes_at_fault_whatever_the_job_ended_of() -> None:
    decision = decide(case(UNKNOWN, faulty=(("n4", "pcie_error"), ("n5", "node_hang"))))
    assert (decision.verdict, decision.exclude) == (Verdict.REQUEUE_EXCLUDE, ("n4", "n5"))
    assert "n4 (pcie_error), n5 (node_hang)" in decision.because
    assert decide(case(ECC, faulty=(("n2", "gpu_ecc_uncorrectable"),))) == decide(case(ECC))
    assert decide(case(IMPORT, faulty=(("n4", "pcie_error"),))).exclude == ()


def test_a_restart_on_other_nodes_is_worth_as_many_tries_as_one_without_a_bad_node() -> None:
    suspected = (("n3", 0.4),)
    assert decide(case(UNKNOWN, ledger=Ledger(("unknown",)))).basis == "budget_reason"
    assert decide(case(UNKNOWN, ledger=Ledger(("unknown",)), avoid=suspected)).avoid == ("n3",)
    assert decide(case(UNKNOWN, ledger=Ledger(("unknown",) * 3), avoid=suspected)).verdict is Verdict.STOP


def test_stop_exit_and_a_reasons_own_line() -> None:
    stop = Config(settings=Settings(stop_exit=(93,)))
    assert decide(case(config=stop, attempt=with_attempt(exit_code=93))).basis == "stop_exit"
    assert decide(case(config=stop, attempt=with_attempt(exit_code=93, signal=9))).basis == "exclude"
    quiet = Config(reasons={"gpu_ecc_uncorrectable": ReasonPolicy(action=Verdict.NONE)})
    assert decide(case(config=quiet)).basis == "reason_none"
    more = Config(reasons={"unknown": ReasonPolicy(max_requeues=2)})
    assert decide(case(UNKNOWN, config=more, ledger=Ledger(("unknown",)))).basis == "restart"


def test_observe_decides_alike_and_does_not_act() -> None:
    acting, advising = decide(case()), decide(case(mode=Mode.OBSERVE))
    assert acting.act
    assert not advising.act
    assert acting.model_copy(update={"act": False}) == advising


@pytest.mark.parametrize(
    ("fast", "suspects", "delay"),
    [(0, False, 0), (1, False, 30), (2, False, 60), (9, False, 3600), (1, True, 0), (2, True, 30)],
)
def test_back_off_grows_with_fast_failures_in_a_row(fast: int, suspects: bool, delay: float) -> None:
    assert decide(case(ECC if suspects else UNKNOWN, ledger=Ledger(fast_failures=fast))).delay == delay


def test_a_wish_only_lowers_the_sites_mode() -> None:
    act, observe = Policy(mode=Mode.ACT), Policy(mode=Mode.OBSERVE)
    assert effective_mode(act, Attempt(cluster="c", job_id=1, comment="")) is Mode.ACT
    assert effective_mode(act, Attempt(cluster="c", job_id=1, comment="team=x, recovery=OFF")) is Mode.OFF
    assert effective_mode(act, Attempt(cluster="c", job_id=1, comment="recovery=observe,x")) is Mode.OBSERVE
    assert effective_mode(observe, Attempt(cluster="c", job_id=1, comment="recovery=act")) is Mode.OBSERVE
    assert effective_mode(act, Attempt(cluster="c", job_id=1, comment="norecovery=off")) is Mode.ACT
    assert effective_mode(act, Attempt(cluster="c", job_id=1, comment="recovery=act recovery=off")) is Mode.OFF


@pytest.mark.parametrize(
    ("comment", "asked"),
    [
        ("my run recovery=off", Mode.OFF),
        ("recovery = off", Mode.OFF),
        ("recovery:off;x", Mode.OFF),
        ("recovery=no", Mode.OFF),
        ("recovery=of", Mode.OBSERVE),
        ("recovery=", Mode.OBSERVE),
        ("recovery=act,checkpoint=/x", Mode.ACT),
        ("no word of it", Mode.ACT),
    ],
)
def test_a_wish_that_is_not_understood_leaves_the_job_alone(comment: str, asked: Mode) -> None:
    assert effective_mode(Policy(mode=Mode.ACT), Attempt(cluster="c", job_id=1, comment=comment)) is asked


def test_the_sentence_counts_by_the_budget_that_runs_out_first() -> None:
    assert decide(case(UNKNOWN)).because.startswith("restart 1 of 1 for unknown, no node excluded")
    assert decide(case()).because.startswith("restart 1 of 3 without n2")
    assert decide(case(ledger=Ledger(("a", "b")))).because.startswith("restart 3 of 3 without n2")


def earlier(reason: str, verdict: Verdict, run: float) -> Incident:
    return Incident(
        attempt=with_attempt(start_time=0, end_time=run),
        attribution=Attribution(category=Category.UNKNOWN, reason=reason),
        decision=Decision(verdict=verdict, basis="x", because="x"),
    )


def test_the_ledger_counts_restarts_and_fast_failures_in_a_row() -> None:
    past = [earlier("a", Verdict.REQUEUE, 5), earlier("b", Verdict.STOP, 900), earlier("a", Verdict.REQUEUE, 5)]
    now = with_attempt(start_time=100, end_time=110)
    counted = ledger(now, past, fast_failure=60, cluster_hour=4)
    assert (counted.restarts, counted.restarts_for("a"), counted.fast_failures) == (2, 2, 2)
    assert counted.cluster_hour == 4


@pytest.mark.parametrize(
    ("basis", "given"),
    [
        ("successor", case(attempt=with_attempt(requeue=False), successors=(124,))),
        ("successor", case(UNKNOWN, ledger=Ledger(("unknown",) * 9, cluster_hour=99), successors=(124,))),
        ("interactive", case(attempt=with_attempt(batch=False), successors=(124,))),
        ("expedited", case(attempt=with_attempt(expedited=True), successors=(124,))),
        ("exclude", case(requeued_by_slurm=True, still_pending=True, successors=(124,))),
        ("reason_stops", case(IMPORT, successors=(124,))),
        ("common_cause", case(MOUNT, alike=Alike(jobs=3, users=2), successors=(124,))),
        ("no_requeue", case(IMPORT, with_attempt(requeue=False), successors=(124,))),
    ],
)
def test_a_successor_is_the_restart_where_one_would_help(basis: str, given: Case) -> None:
    assert decide(given).basis == basis


def test_a_successor_is_kept_off_what_evidence_names_and_not_off_suspects() -> None:
    decision = decide(case(successors=(124, 125), faulty=(("n9", "ib_link_error"),), avoid=(("n5", 0.6),)))
    assert (decision.exclude, decision.avoid) == ((*ECC.suspect_nodes, "n9"), ())
    assert "job 124,125: it goes on without" in decision.because
    assert "not requeued" in decision.because
    assert decide(case(UNKNOWN, successors=(124,))).exclude == ()
