"""What earlier attempts of a job and the cluster's last hour say: the ledger that budgets are counted in.

Pure. An incident counts as a restart where its verdict was one, acted on or only advised: under
Mode=observe the advice has to be what `act` would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_recovery.records import Attempt, Incident


class Ledger(NamedTuple):
    """Earlier restarts of one job, newest first, by reason; and those of the whole cluster."""

    reasons: tuple[str, ...] = ()  # one entry a restart
    fast_failures: int = 0  # attempts in a row, this one included, that ended faster than FastFailure
    cluster_hour: int = 0  # restarts by us on the cluster within the last hour
    user_hour: int = 0  # those of this user's jobs

    @property
    def restarts(self) -> int:
        return len(self.reasons)

    def restarts_for(self, reason: str) -> int:
        return self.reasons.count(reason)


def ledger(
    attempt: Attempt, earlier: Sequence[Incident], *, fast_failure: float, cluster_hour: int = 0, user_hour: int = 0
) -> Ledger:
    """The ledger of an attempt; `earlier` are its job's former incidents, newest first."""
    restarted = [i for i in earlier if i.decision and i.decision.verdict.restarts]
    runs = [attempt, *(incident.attempt for incident in earlier)]
    fast = 0
    for run in runs:
        if run.start_time is None or run.end_time is None or run.end_time - run.start_time >= fast_failure:
            break
        fast += 1
    return Ledger(
        reasons=tuple(i.attribution.reason for i in restarted if i.attribution),
        fast_failures=fast,
        cluster_hour=cluster_hour,
        user_hour=user_hour,
    )
