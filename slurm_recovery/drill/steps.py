"""The steps of a drill, as rows in their order: what must be seen, how long that may take, where to look if it is not.

A row looks at a View and says yes, no, or not yet. What is right comes from the policy (View.expected) or from the
drill's own row; nothing here decides what a job deserves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from slurm_recovery.act import shown
from slurm_recovery.decide.exclusions import suits
from slurm_recovery.drill.view import View
from slurm_recovery.records import Decision, Incident, Outcome, Result, Stage


class Wait(Enum):
    """What bounds a step."""

    QUEUE = "queue"  # the partition's other jobs
    RUN = "run"  # the job's own run
    RECOVERY = "recovery"
    RESTART = "restart"  # back-off, then the queue
    SWEEP = "sweep"


class Seen(NamedTuple):
    """`passed` is None while it may yet come."""

    passed: bool | None
    detail: str = ""


class Step(NamedTuple):
    """`applies` is asked when the step is reached; `hint`: where to look when it fails."""

    name: str
    wait: Wait
    look: Callable[[View], Seen]
    hint: str
    applies: Callable[[View], bool] = lambda view: True


def _yes(detail: str = "") -> Seen:
    return Seen(True, detail)


def _no(detail: str) -> Seen:
    return Seen(False, detail)


def _not_yet(detail: str = "") -> Seen:
    return Seen(None, detail)


# -- the first run -------------------------------------------------------------------------------


def _started(view: View) -> Seen:
    job = view.job
    if view.incident or (job and (job.restart_count or job.completing or job.ended or job.state == "RUNNING")):
        return _yes(f"on {','.join(job.nodes)}" if job and job.nodes and not job.restart_count else "")
    return _not_yet(_slurms(view))


def _failed(view: View) -> Seen:
    job = view.job
    if view.incident:
        attempt = view.incident.attempt
        return _yes(f"ExitCode={attempt.exit_code}:{attempt.signal}")
    if job is None:
        return _not_yet(_slurms(view))
    if job.state in ("COMPLETED", "CANCELLED") and not job.restart_count:
        return _no(f"{job.state}; it should have failed")
    if job.launch_failed:
        return _no(f"Slurm could not launch it: {job.reason}")
    if job.ended or job.completing:
        return _yes(f"ExitCode={job.exit_code}:{job.signal}")
    return _not_yet(_slurms(view))


def _taken_up(view: View) -> Seen:
    if view.incident:
        return _yes(f"incident {view.incident.id}")
    if not view.event:
        return _not_yet("no event of the job in StateDir/spool, so EpilogSlurmctld has not called our hook")
    if view.event.endswith(".event"):
        return _not_yet(f"the hook has left {view.event}, and no worker has taken it up")
    return _not_yet(f"the event is {view.event}: a worker has put it off")


# -- what was found out ---------------------------------------------------------------------------


def _is_on(view: View) -> bool:
    return view.expected.basis != "mode_off"


def _cause(view: View) -> Seen:
    attribution = view.incident.attribution if view.incident else None
    if attribution is None:
        return _not_yet(_stage(view))
    if attribution.reason in view.drill.reasons:
        return _yes(attribution.reason)
    return _no(f"{attribution.reason}, not {' or '.join(view.drill.reasons)}{_gaps(view)}")


def _node(view: View) -> Seen:
    attribution = view.incident.attribution if view.incident else None
    if attribution is None:
        return _not_yet(_stage(view))
    found, right = attribution.suspect_nodes, view.said.failed_on
    if not right:
        return _not_yet("the job's log does not say where its rank ran")
    if found == (right,):
        return _yes(right)
    return _no(f"{','.join(found) or 'none'} named, not {right}{_gaps(view)}")


def _reports(view: View) -> Seen:
    incident = view.incident
    if incident is None or incident.observation is None or incident.decision is None:
        return _not_yet(_stage(view))
    told, silent = _told(incident)
    return _no(f"{','.join(silent)} left no report{_gaps(view)}") if silent else _yes(f"of {','.join(told)}")


def _told(incident: Incident) -> tuple[list[str], list[str]]:
    boots = incident.observation.boots if incident.observation else {}
    nodes = incident.attempt.nodes
    return [node for node in nodes if node in boots], [node for node in nodes if node not in boots]


def _decided(view: View) -> Seen:
    """The verdict. Where the operator expects one, advice alone is not enough."""
    decision = view.incident.decision if view.incident else None
    if decision is None:
        return _not_yet(_stage(view))
    policy = view.expected
    said = _said(decision)
    if decision.policy != policy.policy:
        return _no(f"decided under other settings ({decision.policy}) than these ({policy.policy})")
    if view.wanted is not None:
        if decision.verdict is not view.wanted:
            return _no(f"{said}; {view.wanted.value} was expected")
        return _yes(said) if decision.act or not decision.verdict.restarts else _no(f"{said}; it was to be done")
    if (decision.verdict, decision.act) != (policy.verdict, policy.act):
        return _no(f"{said}; the policy says {policy.verdict.value} ({policy.basis}): {policy.because}")
    return _yes(said)


def _said(decision: Decision) -> str:
    nodes = f" {','.join((*decision.exclude, *decision.avoid))}" if decision.exclude or decision.avoid else ""
    advice = "" if decision.act or decision.basis == "mode_off" else ", advice only: Mode=observe"
    return f"{decision.verdict.value}{nodes} ({decision.basis}{advice}): {decision.because}"


# -- what was done --------------------------------------------------------------------------------


def _restarts(view: View) -> bool:
    decision = view.incident.decision if view.incident else None
    return decision is not None and decision.act and decision.verdict.restarts


def _excludes(view: View) -> bool:
    decision = view.incident.decision if view.incident else None
    return _restarts(view) and decision is not None and bool(decision.exclude)


def _left(view: View) -> Seen:
    """No restart: the job stays as it ended, or as StopAction wants it."""
    incident, job = view.incident, view.job
    if incident is None or incident.stage.open:
        return _not_yet(_stage(view))
    if incident.stage not in (Stage.LEFT, Stage.STOPPED):
        return _no(f"stage {incident.stage.value}: {incident.note}")
    if job is None:
        return _yes(incident.note)
    if job.state == "SPECIAL_EXIT" and incident.decision is not None and incident.decision.stop_action == "hold":
        return _yes("SPECIAL_EXIT, for someone to look (StopAction=hold)")
    if not job.ended or job.restart_count:
        return _no(f"not restarted by us, and yet {shown(job)}")
    return _yes(f"stays {job.state}, Restarts=0")


def _outcome(view: View, *actions: str) -> Outcome | None:
    found = [one for one in (view.incident.outcomes if view.incident else ()) if one.action in actions]
    return found[-1] if found else None


def _held(view: View) -> Seen:
    if view.incident is None or "held" not in view.incident.times or view.incident.stage is Stage.DECIDED:
        return _closed_early(view) or _not_yet(_stage(view))
    outcome = _outcome(view, "requeue")
    if outcome and outcome.result in (Result.REFUSED, Result.FAILED):
        return _no(f"requeue {outcome.result.value}: {outcome.detail}")
    return _yes(outcome.seen if outcome else "requeued")


def _excluded(view: View) -> Seen:
    incident, job = view.incident, view.job
    if incident is None or incident.decision is None or job is None:
        return _not_yet(_slurms(view))
    missing = set(incident.decision.exclude) - set(job.excluded_nodes)
    if not missing:
        return _yes(f"ExcNodeList={','.join(job.excluded_nodes)}")
    outcome = _outcome(view, "exclude", "start", "give_way")
    if outcome is None:
        return _closed_early(view) or _not_yet(f"ExcNodeList={','.join(job.excluded_nodes)}")
    usable = [node for node in view.slurm.nodes().values() if suits(node, job) and not node.away]
    if len(usable) >= job.num_nodes + len(missing):
        return _no(f"{','.join(sorted(missing))} not in ExcNodeList: {outcome.result.value}: {outcome.detail}")
    return _yes(f"not possible, for there is no spare node: {outcome.detail}")


def _released(view: View) -> Seen:
    if view.incident is None or "released" not in view.incident.times:
        return _closed_early(view) or _not_yet(_stage(view))
    return _yes()


def _runs_again(view: View) -> Seen:
    job, incident = view.job, view.incident
    if job is None or incident is None or job.pending or not job.restart_count or not job.nodes:
        return _closed_early(view) or _not_yet(_slurms(view))
    bad = sorted(set(job.nodes) & set(incident.excluded))
    if bad:
        return _no(f"on {','.join(bad)}, which was excluded")
    begin = incident.times.get("ended")
    after = f", {job.start_time - begin:.0f} s after the failure" if begin and job.start_time else ""
    return _yes(f"on {','.join(job.nodes)}{after}")


def _finished(view: View) -> Seen:
    job = view.job
    if job is None or not job.ended:
        return _not_yet(_slurms(view))
    if job.state != "COMPLETED":
        return _no(f"{shown(job)}, ExitCode={job.exit_code}:{job.signal}")
    nodes = view.said.of_run(job.restart_count)
    if len(nodes) < job.num_nodes:
        return _not_yet(f"COMPLETED, but its log tells of {len(nodes)} of {job.num_nodes} nodes")
    return _yes(f"COMPLETED on {','.join(nodes)}")


def _resumed(view: View) -> Seen:
    told = view.said.checkpoint
    right = view.earlier_checkpoint
    if told is None:
        return _not_yet("the job's log does not say what it was told")
    if told == right:
        return _yes(told)
    return _no(f"SLURM_RECOVERY_CHECKPOINT={told or '(not set)'}, not {right}")


def _comment(view: View) -> Seen:
    job, incident = view.job, view.incident
    if job is None or incident is None or incident.attribution is None:
        return _not_yet(_slurms(view))
    if job.admin_comment.startswith(f"slurm_recovery: {incident.attribution.reason}"):
        return _yes(job.admin_comment)
    return _no(f"AdminComment={job.admin_comment or '(null)'}")


def _closed(view: View) -> Seen:
    if view.incident is None or view.incident.stage is not Stage.RUNNING:
        return _closed_early(view) or _not_yet(_stage(view))
    return _yes()


# -- the sweep ------------------------------------------------------------------------------------


def _ended_well(view: View) -> Seen:
    job = view.job
    if job is None or not job.ended:
        return _not_yet(_slurms(view))
    return _yes(job.state) if job.state == "COMPLETED" else _no(f"{shown(job)}; it should have ended well")


def _event_left(view: View) -> Seen:
    """Seen in the spool; or taken from there already, by whoever was about."""
    end = view.job.end_time if view.job and view.job.end_time else view.submitted
    if view.event or view.spool_changed >= end:
        return _yes(view.event)
    return _not_yet("no event of the job in StateDir/spool, so EpilogSlurmctld has not called our hook")


def _swept(view: View) -> Seen:
    end = view.job.end_time if view.job and view.job.end_time else view.submitted
    if view.last_sweep < end:
        return _not_yet("no sweep since the job's end" if view.last_sweep else "no sweep ever")
    if left := view.event_left:
        return _not_yet(f"a sweep has been, and {left} is still there")
    return _yes()


def _untouched(view: View) -> Seen:
    if view.incident or (view.job and view.job.restart_count):
        return _no("it was taken for a failure")
    return _yes("no incident, Restarts=0")


# -- words ----------------------------------------------------------------------------------------


def _slurms(view: View) -> str:
    if view.unavailable:
        return view.unavailable
    return shown(view.job)


def _stage(view: View) -> str:
    if view.incident is None:
        return "no incident"
    note = f" ({view.incident.note})" if view.incident.note else ""
    return f"stage {view.incident.stage.value}{note}"


def _closed_early(view: View) -> Seen | None:
    """Nothing more will come of an incident that was closed otherwise than by the job's running again."""
    incident = view.incident
    if incident and not incident.stage.open and incident.stage is not Stage.RUNNING:
        return _no(_stage(view))
    return None


def _gaps(view: View) -> str:
    gaps = view.incident.observation.gaps if view.incident and view.incident.observation else ()
    return "".join(f"; not read: {gap.what}: {gap.why}" for gap in gaps[:2])


READ = "srecover show JOB: what was read"
LOGS = "slurmctld's log, StateDir/worker.log, srecover check"
_STARTED = Step(
    "started", Wait.QUEUE, _started, "squeue: the partition is busy, or its limits forbid the job; --timeout, --sbatch"
)
STEPS: Sequence[Step] = (
    _STARTED,
    Step("failed", Wait.RUN, _failed, "the job's log in --dir, slurmd's log"),
    Step("taken up", Wait.RECOVERY, _taken_up, f"is EpilogSlurmctld set, and the hook's worker there? {LOGS}"),
    Step("cause", Wait.RECOVERY, _cause, f"{READ}; does a signature of SignatureDir speak?", _is_on),
    Step("node named", Wait.RECOVERY, _node, READ, lambda view: view.drill.names_node and _is_on(view)),
    Step("decided", Wait.RECOVERY, _decided, "srecover show JOB, recovery.conf, srecover config; srecover setup"),
    Step(
        "reports",
        Wait.RECOVERY,
        _reports,
        "is Epilog= set on all nodes, EvidenceDir shared and root's there? srecover check",
        lambda view: view.drill.reports and _is_on(view),
    ),
    Step("left alone", Wait.RECOVERY, _left, f"srecover show JOB; {LOGS}", lambda view: not _restarts(view)),
    Step("held", Wait.RECOVERY, _held, f"JobRequeue in slurm.conf; {LOGS}", _restarts),
    Step("excluded", Wait.RECOVERY, _excluded, f"srecover show JOB, scontrol show job JOB; {LOGS}", _excludes),
    Step("released", Wait.RECOVERY, _released, f"srecover show JOB; {LOGS}", _restarts),
    Step("runs again", Wait.RESTART, _runs_again, "scontrol show job JOB: Reason, ExcNodeList; --timeout", _restarts),
    Step(
        "told where",
        Wait.RUN,
        _resumed,
        "TaskProlog and Prolog in slurm.conf, EvidenceDir/resume; srecover check",
        lambda view: view.drill.resumes and _restarts(view),
    ),
    Step("finished", Wait.RUN, _finished, "the job's log in --dir, slurmd's log", _restarts),
    Step("comment", Wait.RECOVERY, _comment, "scontrol show job JOB, srecover show JOB", _restarts),
    Step("recorded", Wait.SWEEP, _closed, f"the worker, or the sweep after it; {LOGS}", _restarts),
)
SWEEP_STEPS: Sequence[Step] = (
    _STARTED,
    Step("finished", Wait.RUN, _ended_well, "the job's log in --dir, slurmd's log"),
    Step("event left", Wait.RECOVERY, _event_left, f"is EpilogSlurmctld set? {LOGS}"),
    Step(
        "swept",
        Wait.SWEEP,
        _swept,
        "systemctl list-timers slurm-recovery-sweep.timer; journalctl -u slurm-recovery-sweep; srecover sweep",
    ),
    Step("untouched", Wait.RECOVERY, _untouched, "srecover show JOB"),
)


def steps_of(view: View) -> Sequence[Step]:
    return STEPS if view.drill.reasons else SWEEP_STEPS
