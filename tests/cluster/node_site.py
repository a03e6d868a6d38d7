"""A site whose nodes are asked: a kernel log and an NVML state of each node that a test writes, as the nodes read them.

Owns: where these lie in the cluster's folder. The stand-in for libnvidia-ml.so.1 is tests/nvml's.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site
from tests.nvml.build import build
from tests.nvml.state import Gpu, State

WAITS = "until [ -e go-$SLURM_JOB_ID ]; do sleep 0.05; done; "


class NodeSite(Site):
    """`kernel` and `nvml` plant evidence on one node; `go` lets a job that waits for it end."""

    def __init__(self, cluster: PrivateCluster, settings: Mapping[str, str] | None = None, lines: str = "") -> None:
        self.evidence = cluster.folder / "evidence"
        self.kernel_logs = cluster.folder / "kmsg"
        self.nvml_states = cluster.folder / "nvml"
        self.run_dirs = cluster.folder / "run-dirs"
        for folder in (self.kernel_logs, self.nvml_states):
            folder.mkdir()
            folder.chmod(0o755)
        build(self.nvml_states)
        ours = {
            "EvidenceDir": str(self.evidence),
            "KernelLog": f"{self.kernel_logs}/%n",
            "NvmlLibDir": str(self.nvml_states),
            "RunDir": f"{self.run_dirs}/%n",
        }
        self.sound = State([Gpu() for _ in range(cluster.gpus)])
        super().__init__(cluster, ours | dict(settings or {}), lines)
        for node in cluster.nodes:
            (self.kernel_logs / node).touch()
            self.nvml(node, self.sound)

    def install(self) -> str:
        said = super().install()
        self.cluster.reconfigure()
        return said

    def kernel(self, node: str, *lines: str) -> None:
        """The node's kernel says so now."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S,%f+00:00")
        with (self.kernel_logs / node).open("a", encoding="utf-8") as log:
            log.writelines(f"{now} {line}\n" for line in lines)

    def nvml(self, node: str, state: State) -> None:
        """What NVML answers on the node from now on."""
        path = self.nvml_states / f"{node}.nvml"
        fresh = path.with_suffix(".new")
        fresh.write_text(state.text())
        fresh.replace(path)

    def heal(self, node: str) -> None:
        """The node is repaired: its log is empty, its GPUs are sound, an administrator has released and resumed it."""
        (self.kernel_logs / node).write_text("")
        self.nvml(node, self.sound)
        if "drain" in self.cluster.node(node)["StateComplete"]:
            self.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.srecover("release", node, check=False)
        self.cluster.wait_for(lambda: "*" not in self.cluster.node(node)["StateComplete"], what=f"{node} to be well")

    def submit(self, *options: str, script: str = "exit 1", user: str | None = None) -> int:
        """A job that waits, and then does as the script says."""
        return self.cluster.sbatch("--output=%j.log", *options, script=WAITS + script, user=user)

    def go(self, job: int) -> None:
        (self.cluster.work / f"go-{job}").touch()

    def running(self, job: int) -> list[str]:
        """The job's nodes, once it runs."""
        record = self.cluster.wait(job, "RUNNING")
        return self.cluster.run("scontrol", "show", "hostnames", record["NodeList"]).stdout.split()

    def told(self, node: str, job: int) -> Path:
        """What the node's Prolog left for the job's TaskProlog."""
        return self.run_dirs / node / str(job)

    def reports(self, node: str) -> list[Path]:
        return sorted((self.evidence / node).glob("*.json"))
