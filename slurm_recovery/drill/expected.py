"""What the site's policy makes of a drill's failure: the same rules that a worker asks, over what the drill knows.

Pure. What the hour's budgets and the nodes' records add is the worker's to know: where that changes the verdict, the
drill says so.
"""

from __future__ import annotations

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.settings import Config
from slurm_recovery.decide.history import Ledger
from slurm_recovery.decide.progress import LOAD_FAILED, Course
from slurm_recovery.decide.rules import Case, decide, effective_mode
from slurm_recovery.records import Attempt, Attribution, Checkpoint, Decision, Suspect, Trust

_EARLIER = Course(at_fault=True, refused=1, retreat=Checkpoint(path="/earlier", format="", time=0.0))


def expected(config: Config, attempt: Attempt, reason: str, suspect: str = "") -> Decision:
    """The decision on a first run that failed at once for this reason; `suspect`: the node that the log names.

    Whether the job may be requeued at all is not the policy's to say: a drill wants it to be.
    """
    suspects = (Suspect(node=suspect, trust=Trust.USER, because=""),) if suspect else ()
    case = Case(
        attempt=attempt.model_copy(update={"requeue": True, "state": "FAILED"}),
        attribution=Attribution(category=REASONS[reason].category, reason=reason, suspects=suspects),
        config=config,
        ledger=Ledger(fast_failures=1),
        mode=effective_mode(config.policy(attempt.partition), attempt),
        course=_EARLIER if reason == LOAD_FAILED else Course(),
    )
    return decide(case)
