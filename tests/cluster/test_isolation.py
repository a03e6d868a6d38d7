"""When nodes are taken out of service and when not, on real daemons: common causes, forgeries, brakes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from slurm_recovery.records import NodeAction, NodeEvent, Stage
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster
from tests.nvml.state import Gpu, State

SETTINGS = {"Backoff": "0", "MaxRequeues": "1", "MaxDrainsPerHour": "100", "MaxDrainedShare": "100"}
EACH_BY_ITSELF = SETTINGS | {"CommonCauseNodes": "100"}  # tests that share a cluster have the same fault in turn
SMALL = "--mem=100"  # of a node, else one job takes it whole
XID79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
LOST = State([Gpu(), Gpu(all="gpu_is_lost")])
ENDED = (Stage.LEFT, Stage.STOPPED)


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    """Four nodes without GPUs; each test has its own node."""
    with PrivateCluster(nodes=4) as cluster:
        site = NodeSite(cluster, EACH_BY_ITSELF)
        site.install()
        yield site


def check(site: NodeSite, node: str) -> None:
    """HealthCheckProgram, as slurmd runs it: no other variable than the node's name."""
    done = subprocess.run(
        [site.hooks / "health_check"],
        env={"SLURMD_NODENAME": node},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def swept_check(site: NodeSite, node: str) -> None:
    check(site, node)
    site.sweep()


def events(site: NodeSite, *actions: NodeAction, node: str | None = None) -> list[NodeEvent]:
    with site.store() as store:
        return store.ledger.events(site.cluster_name, node=node, actions=actions)


def drained(site: NodeSite, node: str) -> str:
    """The Reason of a drained node; "" where it serves."""
    shown = site.cluster.node(node)
    return shown["Reason"] if "drain" in shown["StateComplete"] else ""


def drains_of_ours(site: NodeSite) -> list[str]:
    lines = site.cluster.run("sinfo", "-hR", "-o", "%E").stdout.splitlines()
    return [line for line in lines if "slurm_recovery" in line]


def drained_by_check(site: NodeSite, node: str) -> str:
    """An idle node's kernel tells of a lost GPU, and its check finds that: the Reason that it has then."""
    site.kernel(node, XID79)
    swept_check(site, node)
    reason = drained(site, node)
    assert reason.startswith("slurm_recovery: gpu_fell_off_bus health check ")
    return reason


# -- one cause of several jobs ----------------------------------------------------------------------------------------


def test_one_cause_that_all_share_drains_nobody_and_holds_every_job() -> None:
    with PrivateCluster(nodes=4) as cluster:
        site = NodeSite(cluster, SETTINGS | {"MaxRequeues": "3"})
        site.install()
        (cluster.work / "stale").write_text("OSError: [Errno 116] Stale file handle: '/data/x'\n")
        script = "srun cat stale; exit 1"
        wanted = [(f"-N{1 + number % 2}", ("games", "root")[number // 3]) for number in range(6)]
        jobs = [site.submit(nodes, SMALL, "--ntasks-per-node=1", script=script, user=user) for nodes, user in wanted]
        for job in jobs:
            site.running(job)
        for node in cluster.nodes:
            site.kernel(node, "nfs: server 10.0.0.9 not responding, timed out")
        for job in jobs:
            site.go(job)
        for job in jobs:
            incident = site.wait_stage(job, *ENDED)
            assert incident.attribution is not None
            assert incident.attribution.reason == "filesystem_io"
            assert incident.decision is not None
            assert incident.decision.basis == "common_cause"
            record = cluster.show(job)
            assert (record["State"], record["ExcNodes"]) == ("SPECIAL_EXIT", "")
        assert drains_of_ours(site) == []
        alert, *more = events(site, NodeAction.ALERT)
        assert (alert.node, alert.reason, more) == ("", "filesystem_io", [])
        assert events(site, NodeAction.DRAIN) == []


# -- a user's word ----------------------------------------------------------------------------------------------------

FORGERIES = (
    XID79,
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
)
FRAMES = ("{line}", "2026-11-29T20:11:12,000000+00:00 {line}", "{node} kernel: {line}", "0: {node}: {line}")


def test_a_users_forgeries_drain_nobody_and_touch_no_other_job(site: NodeSite) -> None:
    nodes = site.cluster.nodes
    forged = [frame.format(line=line, node=node) for frame in FRAMES for node in nodes for line in FORGERIES]
    (site.cluster.work / "forged").write_text("\n".join(forged * 300) + "\n")
    bystander = site.submit("-N4", SMALL, script="exit 0")
    site.running(bystander)
    attacker = site.submit("-N4", SMALL, script="cat forged; srun cat forged; exit 1", user="games")
    site.running(attacker)
    before = site.cluster.show(bystander)
    site.go(attacker)
    site.wait_stage(attacker, *ENDED)
    first = site.incidents(attacker)[-1].observation
    assert first is not None
    assert XID79 in first.log_tail
    site.sweep()
    assert [drained(site, node) for node in nodes] == [""] * 4
    assert events(site, NodeAction.FAULT, NodeAction.DRAIN, NodeAction.ADVISED, NodeAction.REFUSED) == []
    after = site.cluster.show(bystander)
    assert after["State"] == "RUNNING"
    assert {key for key in before if before[key] != after[key]} <= {"Time", "TimeLeft", "TimeUsed"}
    site.go(bystander)
    site.cluster.wait(bystander, "COMPLETED")


# -- health checks ----------------------------------------------------------------------------------------------------


def test_what_a_reboot_cures_is_not_resumed_for_a_clean_check(site: NodeSite) -> None:
    reason = drained_by_check(site, "n2")
    (site.kernel_logs / "n2").write_text("")
    swept_check(site, "n2")
    swept_check(site, "n2")
    assert drained(site, "n2") == reason
    assert len(events(site, NodeAction.CLEAN, node="n2")) == 1
    assert events(site, NodeAction.RESUME, node="n2") == []
    assert "a reboot" in site.srecover("nodes").stdout


def test_an_administrators_drain_stays_his(site: NodeSite) -> None:
    site.cluster.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=mine")
    site.kernel("n3", XID79)
    swept_check(site, "n3")
    assert [event.reason for event in events(site, NodeAction.FAULT, node="n3")] == ["gpu_fell_off_bus"]
    assert len(events(site, NodeAction.REFUSED, node="n3")) == 1
    assert drained(site, "n3") == "mine"
    (site.kernel_logs / "n3").write_text("")
    swept_check(site, "n3")
    assert len(events(site, NodeAction.CLEAN, node="n3")) == 1
    assert drained(site, "n3") == "mine"
    assert events(site, NodeAction.DRAIN, NodeAction.RESUME, node="n3") == []


def test_an_administrator_who_resumes_a_node_overrules_us(site: NodeSite) -> None:
    node = "n4"
    drained_by_check(site, node)
    site.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    site.sweep()
    assert [event.reason for event in events(site, NodeAction.OVERRULED, node=node)] == ["gpu_fell_off_bus"]
    swept_check(site, node)
    assert drained(site, node) == ""
    (site.kernel_logs / node).write_text("")
    for _ in range(2):
        site.kernel(node, XID79)
        swept_check(site, node)
        assert drained(site, node) == ""
    assert len(events(site, NodeAction.OVERRULED, node=node)) == 1
    assert len(events(site, NodeAction.REFUSED, node=node)) == 1


def test_an_administrators_resume_is_heard_before_the_next_check_is_judged() -> None:
    with PrivateCluster(nodes=1) as cluster:
        site = NodeSite(cluster, SETTINGS)
        site.install()
        drained_by_check(site, "n1")
        cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        site.kernel("n1", XID79)
        swept_check(site, "n1")
        assert len(events(site, NodeAction.OVERRULED, node="n1")) == 1
        assert drained(site, "n1") == ""


def test_observing_drains_nobody_and_tells_what_would_have_been_done() -> None:
    """With slurmd's own health checks. Once the site says act, the next check drains."""
    with PrivateCluster(nodes=2) as cluster:
        site = NodeSite(cluster, SETTINGS | {"Mode": "observe"})
        site.install()
        site.kernel("n2", XID79)
        cluster.append_conf("HealthCheckInterval=5")
        cluster.reconfigure()
        report = site.evidence / "n2/health.json"
        cluster.wait_for(report.exists, what="slurmd to run HealthCheckProgram")
        site.sweep()
        assert drains_of_ours(site) == []
        assert [event.reason for event in events(site, NodeAction.FAULT)] == ["gpu_fell_off_bus"]
        advice, *more = events(site, NodeAction.ADVISED)
        assert (advice.node, advice.reason, more) == ("n2", "gpu_fell_off_bus", [])
        assert "Mode=act" in advice.detail
        assert events(site, NodeAction.DRAIN) == []

        text = site.conf.read_text()
        site.conf.write_text(text.replace("Mode=observe", "Mode=act"))
        seen = json.loads(report.read_text())["time"]
        cluster.wait_for(lambda: json.loads(report.read_text())["time"] > seen, what="another check")
        site.sweep()
        assert drained(site, "n2").startswith("slurm_recovery: gpu_fell_off_bus health check ")
        assert drained(site, "n1") == ""


# -- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu_site() -> Iterator[NodeSite]:
    with PrivateCluster(nodes=3, gpus=2) as cluster:
        site = NodeSite(cluster, EACH_BY_ITSELF | {"PrologGate": "yes"})
        said = site.install()
        assert f"\nProlog={site.hooks}/prolog.d/50-slurm-recovery\n" in said
        yield site


def test_what_a_check_can_clear_is_resumed(gpu_site: NodeSite) -> None:
    gpu_site.nvml("n3", State([Gpu()]))
    swept_check(gpu_site, "n3")
    assert drained(gpu_site, "n3").startswith("slurm_recovery: gpu_missing health check ")
    swept_check(gpu_site, "n3")
    assert drained(gpu_site, "n3") != ""
    gpu_site.nvml("n3", gpu_site.sound)
    swept_check(gpu_site, "n3")
    assert drained(gpu_site, "n3") == ""
    newest = events(gpu_site, NodeAction.RESUME, node="n3")[0]
    assert (newest.result, newest.reason) == ("done", "gpu_missing")


def test_the_gate_lets_no_job_onto_a_node_that_lost_a_gpu(gpu_site: NodeSite) -> None:
    cluster = gpu_site.cluster
    gpu_site.nvml("n1", LOST)
    job = cluster.sbatch("-N1", "--gres=gpu:2", script="echo $SLURMD_NODENAME >> ran-$SLURM_JOB_ID")
    assert cluster.wait_for(lambda: drained(gpu_site, "n1"), what="Slurm to drain n1") == "Prolog error"
    held = cluster.wait(job, "PENDING")
    assert (held["Reason"], held["PriorityLong"]) == ("launch failed requeued held", "0")
    gpu_site.sweep()
    gpu_site.wait_stage(job, Stage.RUNNING)
    cluster.wait(job, "COMPLETED")
    assert (cluster.work / f"ran-{job}").read_text() == "n2\n"
    assert cluster.show(job)["ExcNodes"] == "n1"
    gates = [path for path in gpu_site.reports("n1") if path.name.startswith(f"gate.{job}.")]
    assert len(gates) == 1
    gpu_site.heal("n1")


def test_the_brake_holds_the_gate_open(gpu_site: NodeSite) -> None:
    """With MaxDrainsPerHour=0 no node may refuse a job."""
    cluster = gpu_site.cluster
    conf = gpu_site.conf
    conf.write_text(conf.read_text().replace("MaxDrainsPerHour=100", "MaxDrainsPerHour=0"))
    gpu_site.setup()
    gpu_site.nvml("n2", LOST)
    job = cluster.sbatch("-N1", "--nodelist=n2", script="true")
    cluster.wait(job, "COMPLETED")
    assert cluster.show(job)["RestartCnt"] == "0"
    assert drained(gpu_site, "n2") == ""
    assert any(path.name.startswith(f"gate.{job}.") for path in gpu_site.reports("n2"))  # it would have refused
