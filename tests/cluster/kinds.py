"""What the tests of the kinds of failure share: scripts that fail once, and what is read of incidents."""

from __future__ import annotations

from slurm_recovery.records import Incident, Stage
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site

CLOSED = tuple(stage for stage in Stage if not stage.open)
FIRST = '[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]'  # true in a job's first attempt
FAIL_ONCE = f"if {FIRST}; then exit 1; fi"
# A node's Epilog of the cluster: it keeps a job COMPLETING that asks for it, until the test lets it go.
EPILOG = """#!/bin/sh
work={work}
[ -e $work/slow-$SLURM_JOB_ID ] || exit 0
for turn in $(seq 300); do
    [ -e $work/go-$SLURM_JOB_ID ] && exit 0
    sleep 0.05
done
"""
SLOW = "touch slow-$SLURM_JOB_ID"


def give_nodes(cluster: PrivateCluster, hook: str, text: str) -> None:
    """The Prolog or Epilog that the cluster was configured with; `{work}` in it becomes its work folder."""
    path = cluster.folder / hook.lower()
    path.write_text(text.replace("{work}", str(cluster.work)))
    path.chmod(0o755)


def closed(site: Site, job: int | str, timeout: float = 30) -> Incident:
    """The job's newest incident, once nothing more is to be done about it."""
    return site.wait_stage(job, *CLOSED, timeout=timeout)


def basis(incident: Incident) -> str:
    """The name of the rule that decided."""
    assert incident.decision is not None
    return incident.decision.basis


def reason(incident: Incident) -> str:
    """The reason that the failure was given."""
    assert incident.attribution is not None
    return incident.attribution.reason


def deeds(incident: Incident) -> list[str]:
    return [outcome.action for outcome in incident.outcomes]


def steps(site: Site, incident: Incident) -> list[str]:
    """The names of all steps in the incident's audit."""
    with site.store() as store:
        return [step.action for step in store.steps(incident.id)]


def restarts(site: Site, *jobs: int | str) -> list[int]:
    return [int(site.cluster.show(job)["RestartCnt"]) for job in jobs]
