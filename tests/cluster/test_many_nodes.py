"""Sixty-four nodes are asked at once: all answer, the judgement follows at once, and slurmctld hardly notices.

And what the node's part costs: next to nothing for a job that ended well, little for one that failed.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_recovery.hooks.install import install_node_hooks
from slurm_recovery.node_report import NodeReport
from slurm_recovery.records import Incident, Source, Stage
from tests.bench import seconds
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster

pytestmark = pytest.mark.timing

NODES = 64
# Here all nodes share the cores that a cluster's nodes each have for themselves, so each gets more time.
SETTINGS = {"Backoff": "0", "MaxDrainsPerHour": "100", "MaxDrainedShare": "100", "EvidenceTimeout": "50"}
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
JUDGED_WITHIN = 5.0  # seconds from the last report
# `squeue --jobs` is three RPCs. The loop asks it again and again while a job is COMPLETING, ever less often: where that
# takes four seconds (64 epilogs on two cores) instead of a quarter, some fifteen times more, whatever the nodes.
AGAIN = ("REQUEST_JOB_INFO_SINGLE", "REQUEST_FED_INFO", "REQUEST_PARTITION_INFO")
MORE_AGAIN = 3 * 18
MORE = 4  # of all other kinds
# What each node's slurmd and slurmstepd say by themselves, with us or without.
OF_THE_NODES = re.compile(r"MESSAGE_|REQUEST_COMPLETE_|REQUEST_STEP_COMPLETE|REQUEST_PERSIST|REQUEST_STATS_INFO")

BARE = ("/usr/bin/python3", "-I", "-S", "-c", "pass")
RUNS = 20
GOOD = {"SLURM_JOB_EXIT_CODE": "0", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_DERIVED_EC": "0"}
FAILED = {**GOOD, "SLURM_JOB_EXIT_CODE": "768", "SLURM_JOB_EXIT_CODE2": "3:0"}
LAST_WORDS = b"\n[rank0]: RuntimeError: the last words\n"
# Runs the hook and tells the largest process below it. Small itself: a child's peak begins with its parent's size.
MEASURED = """
import os, resource, sys
status = os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class Handled(NamedTuple):
    """A failed job, and what it cost slurmctld."""

    job: int
    nodes: list[str]
    incident: Incident
    rpcs: Counter[str]
    seconds: float  # from the script's end to the judgement


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    began = time.monotonic()
    with PrivateCluster(nodes=NODES, cpus=1) as cluster:
        print(f"{NODES} nodes booted in {time.monotonic() - began:.1f} s")
        site = NodeSite(cluster, SETTINGS)
        site.install()
        yield site


def asked(cluster: PrivateCluster) -> Counter[str]:
    """RPCs since the last reset that users' commands caused, by kind, without those of sdiag itself."""
    by_kind = cluster.run("sdiag").stdout.partition("by message type")[2].partition("by user")[0]
    counts = re.findall(r"^\s+([A-Z_]+)\s+\( *\d+\) count:(\d+)", by_kind, re.MULTILINE)
    return Counter({kind: int(count) for kind, count in counts if not OF_THE_NODES.match(kind)})


def fail(site: NodeSite, nodes: str, victim: int) -> Handled:
    """A job fails, with an Xid on one of its nodes. From its end to the reading, the test itself asks Slurm nothing."""
    cluster = site.cluster
    job = site.submit(f"--nodes={nodes}", "--no-kill", script="test $SLURM_RESTART_COUNT && exit 0; exit 1")
    names = site.running(job)
    site.kernel(names[victim], XID)
    cluster.run("sdiag", "--reset")
    began = time.time()
    site.go(job)
    incident = site.wait_stage(job, Stage.RUNNING, Stage.LEFT, Stage.STOPPED, Stage.ABANDONED, timeout=120)
    rpcs = asked(cluster)
    cluster.wait(job, "COMPLETED")
    return Handled(job, names, incident, rpcs, incident.times["decided"] - began)


def reports_of(site: NodeSite, handled: Handled) -> list[Path]:
    return [path for node in handled.nodes for path in site.reports(node) if path.name.startswith(f"{handled.job}.")]


def test_all_nodes_answer_and_slurmctld_is_asked_no_more_than_for_one(site: NodeSite) -> None:
    many = fail(site, f"1-{NODES}", 7)  # all, and the restart may have fewer
    one = fail(site, "1", 0)
    assert (len(many.nodes), len(one.nodes)) == (NODES, 1)
    for handled in (many, one):
        last = seen(site, handled)
        judged = handled.incident.times["decided"] - last
        print(
            f"{len(handled.nodes)} nodes: judged {judged:.2f} s after the last report, {handled.seconds:.1f} s after "
            f"the script's end; {handled.rpcs.total()} RPCs: {dict(handled.rpcs)}"
        )
        assert 0 <= judged < JUDGED_WITHIN
    assert many.rpcs.total() <= one.rpcs.total() + MORE + MORE_AGAIN
    assert once(many) <= once(one) + MORE


def seen(site: NodeSite, handled: Handled) -> float:
    """All nodes' evidence is in, and means what it says; when the last report was written."""
    reports = reports_of(site, handled)
    assert [path.parent.name for path in reports] == handled.nodes
    observation, attribution = handled.incident.observation, handled.incident.attribution
    assert observation is not None
    assert attribution is not None
    assert set(observation.boots) == set(handled.nodes)
    assert not [gap for gap in observation.gaps if gap.source is Source.NODE]
    assert attribution.reason == "gpu_fell_off_bus"
    assert handled.incident.stage is Stage.RUNNING
    return max(path.stat().st_mtime for path in reports)


def once(handled: Handled) -> int:
    return sum(count for kind, count in handled.rpcs.items() if kind not in AGAIN)


def installed(folder: Path) -> Path:
    """The Epilog, with the collector as `srecover setup` writes it."""
    evidence = folder / "evidence"
    evidence.mkdir()
    evidence.chmod(0o2750)
    (folder / "kernel").write_text("")
    options = ["--evidence-dir", str(evidence), "--kernel-log", str(folder / "kernel"), "--timeout", "5"]
    collector = [sys.executable, "-I", "-m", "slurm_recovery.node.collector", *options]
    install_node_hooks(
        folder / "hooks", {"collector": collector, "environment": {"LANG": "C.UTF-8"}, "timeout": 5.0, "gate": False}
    )
    return folder / "hooks/epilog.d/50-slurm-recovery"


def told(folder: Path) -> dict[str, str]:
    """What slurmd tells an Epilog of a job of nobody's."""
    user = pwd.getpwnam("nobody")
    return {
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_UID": str(user.pw_uid),
        "SLURM_JOB_GID": str(user.pw_gid),
        "SLURM_JOB_USER": "nobody",
        "SLURM_JOB_WORK_DIR": str(folder),
        "SLURM_JOB_STDOUT": str(folder / "%j.log"),
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_NODELIST": "n1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CLUSTER_NAME": "c",
        "PATH": "/usr/bin:/bin",
    }


def medians(ours: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of the hook and of the bare interpreter, run in turn."""
    pairs = [(seconds(*ours, environment=environment), seconds(*BARE, environment={})) for _ in range(RUNS)]
    hook, bare = zip(*pairs, strict=True)
    return statistics.median(hook), statistics.median(bare)


def test_a_job_that_ended_well_costs_the_node_at_most_a_process_start(tmp_path: Path) -> None:
    hook = installed(tmp_path)
    ours, bare = medians([str(hook)], told(tmp_path) | GOOD)
    print(f"epilog of a good job {ours * 1e3:.1f} ms, bare interpreter {bare * 1e3:.1f} ms, ratio {ours / bare:.2f}")
    assert ours / bare <= 1.5
    assert not any((tmp_path / "evidence").iterdir())


def test_a_log_of_a_gigabyte_costs_the_node_little(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # the job's user reads his log
    hook = installed(tmp_path)
    log = tmp_path / "7.log"
    log.touch()
    os.truncate(log, 1 << 30)
    with log.open("ab") as file:
        file.write(LAST_WORDS)
    os.chown(log, pwd.getpwnam("nobody").pw_uid, -1)
    began = time.monotonic()
    done = subprocess.run(
        [BARE[0], "-I", "-S", "-c", MEASURED, str(hook)],
        env=told(tmp_path) | FAILED,
        capture_output=True,
        text=True,
        check=True,
    )
    taken = time.monotonic() - began
    status, kilobytes = map(int, done.stdout.split())
    print(f"epilog of a failed job with a log of 1 GB: {taken:.2f} s, {kilobytes / 1024:.0f} MB")
    (path,) = (tmp_path / "evidence/n1").iterdir()
    report = NodeReport.model_validate(json.loads(path.read_text()))
    assert [part.size for part in report.logs] == [(1 << 30) + len(LAST_WORDS)] * len(report.logs) != []
    assert status == 0
    assert taken < 2
    assert kilobytes < 60 << 10
