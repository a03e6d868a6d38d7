"""EvidenceDir is full, read-only, silent or forged: the job ends in time, no node suffers, what is missing is named.

The job's own log tells why it failed, so that it is judged and restarted with the nodes' evidence or without.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from slurm_recovery.node_report import NodeReport
from slurm_recovery.records import Incident, NodeAction, Source, Stage
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster
from tests.unit.test_node_reports import hanging

TIMEOUT = 2.0
SLACK = 4.0  # for all else that ends a job: its processes, slurmctld's own pauses
STRANGER = 1000
REASON = "gpu_ecc_uncorrectable"
FAILS_ONCE = (
    "test $SLURM_RESTART_COUNT && exit 0; "
    "echo '[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1"
)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
Trouble = Callable[[NodeSite], AbstractContextManager[object]]


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    """EvidenceDir is a small file system of its own, so that it can be filled or write-protected."""
    with PrivateCluster(nodes=3, gpus=1) as cluster:
        site = NodeSite(cluster, {"Backoff": "0", "EvidenceTimeout": f"{TIMEOUT:g}", "EvidenceWait": "1"})
        site.evidence.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(site.evidence)], check=True)
        try:
            site.install()
            yield site
        finally:
            subprocess.run(["umount", "--lazy", str(site.evidence)], check=True)


@contextmanager
def full(site: NodeSite) -> Iterator[None]:
    ballast = site.evidence / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
        yield
    finally:
        ballast.unlink()


@contextmanager
def read_only(site: NodeSite) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(site.evidence)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(site.evidence)], check=True)


def silent(site: NodeSite) -> AbstractContextManager[None]:
    return hanging(site.evidence)


def run(site: NodeSite, before: Callable[[int], None] = lambda job: None) -> tuple[Incident, float]:
    """A job on n1 and n2 fails and is restarted; its incident, and how long its nodes kept it."""
    cluster = site.cluster
    job = site.submit("--nodelist=n1,n2", "--nodes=1-2", script=FAILS_ONCE)
    assert site.running(job) == ["n1", "n2"]
    before(job)
    site.go(job)
    cluster.wait(job, "COMPLETING")
    began = time.monotonic()
    cluster.wait_for(lambda: cluster.show(job)["State"] != "COMPLETING", what="the epilogs' end")
    taken = time.monotonic() - began
    print(f"job {job}: {taken:.2f} s in COMPLETING")
    incident = site.wait_stage(job, Stage.RUNNING, Stage.LEFT, Stage.STOPPED, Stage.ABANDONED)
    assert incident.attribution is not None
    assert (incident.stage, incident.attribution.reason) == (Stage.RUNNING, REASON)
    assert cluster.wait(job, "COMPLETED")["RestartCnt"] == "1"
    return incident, taken


def missed(incident: Incident) -> list[str]:
    """What of the nodes' evidence is missing, and why."""
    assert incident.observation is not None
    sources = (Source.NODE, Source.KERNEL_LOG, Source.NVML)
    return [f"{gap.what}: {gap.why}" for gap in incident.observation.gaps if gap.source in sources]


def contents(site: NodeSite) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in site.evidence.rglob("*.json") if path.is_file()}


def drained(site: NodeSite) -> list[str]:
    return [node for node in site.cluster.nodes if "drain" in site.cluster.node(node)["StateComplete"]]


def faults(site: NodeSite) -> list[str]:
    with site.store() as store:
        events = store.ledger.events(site.cluster_name, actions=[NodeAction.FAULT, NodeAction.DRAIN])
    return [f"{event.node} {event.reason}" for event in events]


NOTHING = [f"/{node}: no report from {node}" for node in ("n1", "n2")]
NO_ANSWER = [f": no answer within {TIMEOUT:g} s: nothing read of n1, n2"]


@pytest.mark.parametrize(
    ("trouble", "gaps"),
    [(full, NOTHING), (read_only, NOTHING), (silent, NO_ANSWER)],
    ids=["full", "read_only", "silent"],
)
def test_the_folder_fails(site: NodeSite, trouble: Trouble, gaps: list[str]) -> None:
    incident, _ = run(site)
    assert missed(incident) == []
    before = contents(site)
    assert {path.parent.name for path in before} >= {"n1", "n2"}
    with trouble(site):
        incident, taken = run(site)
        assert drained(site) == []
    assert taken < TIMEOUT + SLACK
    assert missed(incident) == [f"{site.evidence}{gap}" for gap in gaps]
    assert contents(site) == before
    for data in before.values():
        NodeReport.model_validate_json(data)
    incident, _ = run(site)
    assert missed(incident) == [], "all is well again"
    assert faults(site) == []


def test_one_node_whose_folder_is_silent_is_named_and_the_other_is_heard(site: NodeSite) -> None:
    run(site)
    with hanging(site.evidence / "n2"):
        incident, taken = run(site)
        assert drained(site) == []
    assert taken < TIMEOUT + SLACK
    assert missed(incident) == [f"{site.evidence}: no answer within {TIMEOUT:g} s: nothing read of n2"]
    assert incident.observation is not None
    assert set(incident.observation.boots) == {"n1"}


def test_a_kernel_log_that_nobody_writes_is_named_and_the_rest_is_told(site: NodeSite) -> None:
    log = site.kernel_logs / "n2"
    log.unlink()
    os.mkfifo(log)
    try:
        incident, taken = run(site)
    finally:
        log.unlink()
        log.touch()
    assert taken < TIMEOUT + SLACK
    assert missed(incident) == [f"n2: {log}: neither a file nor the kernel's log; hint: KernelLog"]
    assert incident.observation is not None
    assert set(incident.observation.boots) == {"n1", "n2"}
    assert drained(site) == []


# --- forged


def forged(job: int, kind: str = "epilog") -> bytes:
    """A report by which n2 would be drained, were it believed."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S,000000+00:00", time.gmtime(now))
    form = {"format": 1, "kind": kind, "node": "n2", "time": now, "job_id": job, "restart_count": 0}
    form |= {"boot_id": "forged", "kernel": f"{stamp} {XID}\n", "kernel_since": now - 600}
    NodeReport.model_validate(form)
    return json.dumps(form).encode()


def plant(path: Path, data: bytes, owner: int) -> None:
    path.write_bytes(data)
    path.chmod(0o640)
    os.chown(path, owner, -1)


def of_late(site: NodeSite, job: int) -> Path:
    """The name of a report that is newer than any that the node will write."""
    return site.evidence / "n2" / f"{job}.{time.time_ns() + 3600 * 10**9}.json"


def test_the_forgery_would_drain_its_node_were_it_roots(site: NodeSite) -> None:
    """So the tests below are about whose the report is, and nothing else."""
    job = site.submit("--nodelist=n1,n2", "--nodes=1-2", script=FAILS_ONCE)
    assert site.running(job) == ["n1", "n2"]
    path = of_late(site, job)
    plant(path, forged(job), 0)
    site.go(job)
    try:
        site.wait_stage(job, Stage.RELEASED)  # its user wants n2, and must wait for it
        assert drained(site) == ["n2"]
        assert faults(site) == ["n2 gpu_fell_off_bus"] * 3  # the fault, the drain's intent and its outcome
    finally:
        path.unlink()
        site.heal("n2")
    site.cluster.wait(job, "COMPLETED")


def test_a_report_of_another_user_is_refused_by_name(site: NodeSite) -> None:
    before = faults(site)
    planted: list[Path] = []

    def forge(job: int) -> None:
        planted.append(of_late(site, job))
        plant(planted[0], forged(job), STRANGER)

    try:
        incident, _ = run(site, forge)
    finally:
        planted[0].unlink()
    assert missed(incident) == [f"{planted[0]}: belongs to uid {STRANGER}, not to root: refused"]
    assert incident.observation is not None
    assert set(incident.observation.boots) == {"n1", "n2"}, "the genuine one is read all the same"
    assert "forged" not in incident.observation.boots.values()
    assert drained(site) == []
    assert faults(site) == before


def test_nothing_in_a_folder_that_others_can_write_is_believed(site: NodeSite) -> None:
    before = faults(site)
    folder = site.evidence / "n2"
    planted: list[Path] = []

    def forge(job: int) -> None:
        folder.chmod(0o2777)
        planted.append(of_late(site, job))
        subprocess.run(
            ["tee", str(planted[0])], input=forged(job), stdout=subprocess.DEVNULL, user=STRANGER, check=True
        )

    site.evidence.chmod(0o2755)  # that the user may reach the folder
    try:
        incident, _ = run(site, forge)
    finally:
        site.evidence.chmod(0o2750)
        folder.chmod(0o2750)
        planted[0].unlink()
    assert missed(incident) == [f"{folder}: mode 2777 lets others write it: refused"]
    assert incident.observation is not None
    assert set(incident.observation.boots) == {"n1"}
    assert drained(site) == []
    assert faults(site) == before


def test_a_health_report_of_another_user_drains_nothing(site: NodeSite) -> None:
    before = faults(site)
    path = site.evidence / "n2/health.json"
    kept = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    plant(path, forged(0, "health"), STRANGER)
    try:
        said = site.srecover("sweep", "--timeout", "50")
    finally:
        path.unlink()
        if kept is not None:
            plant(path, kept, 0)
    assert f"belongs to uid {STRANGER}, not to root: refused" in said.stdout + said.stderr + site.worker_log()
    assert drained(site) == []
    assert faults(site) == before
