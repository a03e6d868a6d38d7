"""Mode=observe touches nothing: by slurmctld's log, SlurmUser asked, and changed not one thing.

slurmctld and our worker run as the user slurm, nodes and test as root: so the log tells whose request each was.
"""

from __future__ import annotations

import pwd
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from slurm_recovery.records import Incident, Stage, Verdict
from tests.cluster.kinds import FIRST, closed, deeds, give_nodes, reason, restarts
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import SYSTEM_PYTHON, TRAINER, Site

PROLOG = "#!/bin/sh\n[ ! -e {work}/prolog-fails-$SLURMD_NODENAME ]\n"
RPC = re.compile(r"Processing RPC: (\w+) from UID=(\d+)")
QUESTIONS = re.compile(r"REQUEST_(\w+_INFO(_SINGLE)?|PING|JOB_STATE|TRIGGER_GET)")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    conf = {"SlurmctldDebug": "debug2", "DefMemPerNode": "50", "ReturnToService": "1"}
    conf |= {"Prolog": "{folder}/prolog", "PrologFlags": "Alloc"}
    weights = {f"n{number}": f"Weight={number}" for number in range(1, 7)}
    with PrivateCluster(nodes=6, conf=conf, node_conf=weights, slurm_user="slurm") as cluster:
        give_nodes(cluster, "Prolog", PROLOG)
        site = Site(cluster, {"Backoff": "0"})
        site.install()
        yield site


def requests(log: str, user: str) -> Counter[str]:
    """How often the user asked slurmctld for what."""
    return Counter(kind for kind, uid in RPC.findall(log) if int(uid) == pwd.getpwnam(user).pw_uid)


def changes(log: str, user: str) -> Counter[str]:
    asked = requests(log, user)
    return Counter({kind: count for kind, count in asked.items() if not QUESTIONS.fullmatch(kind)})


def submit(site: Site, name: str) -> tuple[int, int, int]:
    """A training job that breaks on n2, what waits for it, and a job that fails for no known reason."""
    cluster = site.cluster
    trainer = f"{SYSTEM_PYTHON} {TRAINER} {cluster.work}/{name} --seconds=0.05 --fail-node n2"
    train = cluster.sbatch("-N3", "-n3", script=f"srun --label {trainer}")
    return train, cluster.sbatch(f"--dependency=afterok:{train}", script="true"), cluster.sbatch(script="exit 1")


def test_the_log_shows_what_act_does_and_that_observe_does_nothing(site: Site) -> None:
    cluster = site.cluster
    train, successor, unknown = submit(site, "act")
    cluster.wait(successor, "COMPLETED")
    cluster.wait_for(lambda: restarts(site, unknown) == [1], what="a restart")
    assert restarts(site, train) == [1]
    cluster.wait_for(lambda: [closed(site, job).stage for job in (unknown,)] == [Stage.STOPPED], what="the end")
    log = cluster.slurmctld_log()
    assert changes(log, "slurm").keys() >= {"REQUEST_UPDATE_JOB", "REQUEST_JOB_REQUEUE"}

    site.configure({"Backoff": "0", "Mode": "observe"})
    site.sweep()
    before = len(cluster.slurmctld_log())
    incidents = fail_in_every_way(site)
    log = cluster.slurmctld_log()[before:]
    assert changes(log, "root").keys() >= {"REQUEST_UPDATE_NODE", "REQUEST_KILL_JOB"}  # the test's own are seen
    assert requests(log, "slurm").total() > 20
    assert not changes(log, "slurm")
    assert [deeds(incident) for incident in incidents] == [[]] * 4
    assert [incident.stage for incident in incidents] == [Stage.LEFT] * 4


def fail_in_every_way(site: Site) -> list[Incident]:
    cluster = site.cluster
    train, successor, unknown = submit(site, "observe")
    incidents = [closed(site, train), closed(site, unknown)]
    cluster.wait_for(lambda: cluster.show(successor)["Reason"] == "DependencyNeverSatisfied", what="a broken chain")
    on_node = cluster.sbatch("--nodelist=n5", script=f"{FIRST} && sleep 90; true")
    cluster.wait(on_node, "RUNNING")
    cluster.kill_slurmd("n5")
    cluster.run("scontrol", "update", "NodeName=n5", "State=DOWN", "Reason=test")
    (cluster.work / "prolog-fails-n6").touch()
    no_prolog = cluster.sbatch("--nodelist=n6", script="true")
    cluster.wait(no_prolog, "PENDING")
    cluster.wait(on_node, "PENDING")
    site.sweep()
    incidents += [closed(site, on_node), closed(site, no_prolog)]
    verdicts = [incident.decision.verdict for incident in incidents if incident.decision]
    assert [reason(incident) for incident in incidents] == [
        "gpu_ecc_uncorrectable", "unknown", "node_fail", "launch_failed"
    ]  # fmt: skip
    assert verdicts == [Verdict.REQUEUE_EXCLUDE, Verdict.REQUEUE, Verdict.REQUEUE_EXCLUDE, Verdict.REQUEUE_EXCLUDE]
    assert [cluster.show(job)["State"] for job in (train, unknown)] == ["FAILED", "FAILED"]
    assert cluster.show(no_prolog)["PriorityLong"] == "0"
    cluster.run("scancel", str(successor))
    return incidents
