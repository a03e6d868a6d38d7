"""What nodes know of themselves, on real daemons: the job's log says nothing, and the right node is isolated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from slurm_recovery.records import Stage
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster
from tests.nvml.state import Gpu, State

SETTINGS = {
    "Backoff": "0",
    "MaxRequeues": "1",
    "MaxDrainsPerHour": "100",
    "MaxDrainedShare": "100",
    "CommonCauseNodes": "4",
}
XID = "NVRM: Xid (PCI:0000:9b:00): "


class Planted(NamedTuple):
    """What one of the job's nodes is made to say, and what shall come of it."""

    name: str
    reason: str
    excluded: bool
    drained: bool
    kernel: tuple[str, ...] = ()
    nvml: State | None = None


def _kernel(name: str, reason: str, *lines: str, excluded: bool = True, drained: bool = True) -> Planted:
    return Planted(name, reason, excluded, drained, kernel=lines)


def _nvml(name: str, reason: str, state: State) -> Planted:
    return Planted(name, reason, True, True, nvml=state)


CASES = (
    _kernel("xid79", "gpu_fell_off_bus", XID + "79, pid=1234, name=python, GPU has fallen off the bus."),
    _kernel("xid48", "gpu_ecc_uncorrectable", XID + "48, pid=1234, name=python, DBE (double bit error) has occurred"),
    _kernel("xid95", "gpu_ecc_uncorrectable", XID + "95, pid=1234, name=python, Uncontained ECC error. RST: Yes"),
    _kernel("xid74", "gpu_nvlink_error", XID + "74, pid=1234, name=python, NVLink: fatal error detected on link 6"),
    _kernel("sxid", "nvswitch_error", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),  # noqa: E501
    _kernel("xid119", "gpu_gsp_timeout", XID + "119, pid=1234, name=python, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76"),  # noqa: E501
    _kernel("xid62", "gpu_internal_error", XID + "62, pid='<unknown>', name=<unknown>, 0000(0000) 00000000 00000000"),
    _kernel("aer", "pcie_error", "pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0"),
    _kernel("edac", "host_memory_error", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
    _kernel("disk", "local_disk_failure", "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"),
    _kernel("mlx5", "nic_failure", "mlx5_core 0000:9a:00.0: poll_health:800:(pid 0): Fatal error 1 detected"),
    _kernel("lockup", "node_hang", "watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [python:4711]"),
    _nvml("lost", "gpu_fell_off_bus", State([Gpu(), Gpu(all="gpu_is_lost")])),
    _nvml("missing", "gpu_missing", State([Gpu()])),
    _nvml("remap", "gpu_ecc_uncorrectable", State([Gpu(), Gpu(remap="0,1")])),
    _nvml("mismatch", "driver_mismatch", State(init="lib_rm_version_mismatch")),
    _kernel(
        "link",
        "ib_link_error",
        "mlx5_core 0000:9a:00.0: Port: 1 Link DOWN",
        drained=False,
    ),
    _kernel(
        "application",
        "illegal_memory_access",
        XID + "31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 faulted",
        excluded=False,
        drained=False,
    ),
    _kernel(
        "aftermath",
        "unknown",
        XID + "45, pid=1234, name=python, Ch 00000008",
        excluded=False,
        drained=False,
    ),
    _kernel(
        "corrected",
        "unknown",
        "pcieport 0000:15:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
        excluded=False,
        drained=False,
    ),
)


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    with PrivateCluster(nodes=4, gpus=2) as cluster:
        site = NodeSite(cluster, SETTINGS)
        site.install()
        yield site


@pytest.fixture(scope="module")
def healed() -> set[tuple[str, str]]:
    """Nodes that an administrator has resumed after a reason: he is not contradicted within a day."""
    return set()


@pytest.mark.parametrize("planted", CASES, ids=lambda planted: planted.name)
def test_the_node_that_says_so_is_found(site: NodeSite, healed: set[tuple[str, str]], planted: Planted) -> None:
    cluster = site.cluster
    job = site.submit("-N3", "--no-kill", script="test $SLURM_RESTART_COUNT && exit 0; exit 1")
    nodes = site.running(job)
    victim = next(node for node in nodes[1:] + nodes[:1] if (node, planted.reason) not in healed)
    healed.add((victim, planted.reason))
    site.kernel(victim, *planted.kernel)
    if planted.nvml is not None:
        site.nvml(victim, planted.nvml)
    try:
        site.go(job)
        incident = site.wait_stage(job, Stage.RUNNING, Stage.LEFT, Stage.STOPPED)
        assert incident.attribution is not None
        assert incident.attribution.reason == planted.reason
        assert incident.attribution.suspect_nodes == ((victim,) if planted.excluded else ())
        if incident.stage is Stage.RUNNING:
            cluster.wait(job, "COMPLETED")
        assert cluster.show(job)["ExcNodes"] == (victim if planted.excluded else "")
        shown = cluster.node(victim)
        wanted = f"slurm_recovery: {planted.reason} incident {incident.id}"
        assert (shown["Reason"] if "drain" in shown["StateComplete"] else "") == (wanted if planted.drained else "")
        if planted.drained:
            assert wanted in cluster.run("sinfo", "-R", "-o", "%E %N").stdout
        assert all("drain" not in cluster.node(other)["StateComplete"] for other in cluster.nodes if other != victim)
    finally:
        site.heal(victim)
