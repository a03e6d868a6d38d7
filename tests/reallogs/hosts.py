"""A private cluster whose nodes differ as real ones do: each has a host name, an address and mounts of its own.

Owns: the nodes' namespaces (network, host name, mounts) and what can befall them: a lost link, a full disk, a missing
folder. Must not: change anything outside the namespaces that make.py has entered, or know what a job prints.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.processes import send

SUBNET = "10.20.0"
GROUPS = {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup"}


def sh(*argv: str | Path) -> None:
    subprocess.run([str(word) for word in argv], check=True, stdin=subprocess.DEVNULL)


class Hosts(PrivateCluster):
    """The controller is `ctl` at .1; node number N of the cluster is at .10+N, on one bridge."""

    def __init__(self, nodes: int, prefix: str) -> None:
        # Slurm's own words in a job's output name the spool folder, so that is where sites have it.
        conf = {"SlurmctldHost": f"ctl({SUBNET}.1)", "SlurmdSpoolDir": "/var/spool/slurmd/%n", "MessageTimeout": "5"}
        conf |= {"SlurmdTimeout": "20", "DefMemPerNode": "2000"}
        super().__init__(nodes=nodes, prefix=prefix, conf=conf | GROUPS, cgroup_conf="ConstrainRAMSpace=yes\n")
        self._others: list[subprocess.Popen[bytes]] = []
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, node: str) -> str:
        return f"{SUBNET}.{10 + self.nodes.index(node) + 1}"

    def stop(self) -> None:
        super().stop()
        self.end_background()
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
        self._holders.clear()

    def on(self, node: str, *argv: str | Path) -> None:
        """Run a command in the node's namespaces."""
        sh(*self._enter(node), *argv)

    def cut_off(self, node: str) -> None:
        """The node's cable is pulled."""
        sh("ip", "link", "set", f"v{node}", "down")

    def plug_in(self, node: str) -> None:
        sh("ip", "link", "set", f"v{node}", "up")

    def small_disk(self, node: str, folder: str, size: str) -> None:
        """A disk of that size on this node; the cluster's own folder stays to be seen where it would be hidden."""
        self.on(node, "mkdir", "-p", "/mnt/.keep")
        self.on(node, "mount", "--rbind", "/tmp", "/mnt/.keep")
        self.on(node, "mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "disk", folder)
        if self.folder.is_relative_to(folder):
            self.on(node, "mkdir", "-m", "755", self.folder)
            self.on(node, "mount", "--bind", f"/mnt/.keep/{self.folder.name}", self.folder)

    def hide(self, node: str, folder: str) -> None:
        """An empty folder instead of this one, as where an image lacks it or a mount is gone."""
        self.on(node, "mount", "-t", "tmpfs", "-o", "mode=755", "none", folder)

    def unmount(self, node: str, folder: str) -> None:
        self.on(node, "umount", "--lazy", folder)

    def background(self, node: str, *argv: str) -> None:
        """Start a program on the node, besides Slurm."""
        quiet = subprocess.DEVNULL
        self._others.append(subprocess.Popen([*self._enter(node), *argv], stdout=quiet, stderr=quiet))
        time.sleep(1)

    def end_background(self) -> None:
        while self._others:
            other = self._others.pop()
            other.kill()
            other.wait()

    def kill_named(self, node: str, name: str) -> None:
        """SIGKILL for the cluster's processes of that name on this node."""
        space = os.readlink(f"/proc/{self._holders[node].pid}/ns/net")
        for entry in self.processes():
            here = Path(f"/proc/{entry.pid}")
            if os.readlink(here / "ns/net") == space and (here / "comm").read_text().strip() == name:
                send(entry, signal.SIGKILL)

    def _enter(self, node: str) -> list[str]:
        return ["nsenter", "--target", str(self._holders[node].pid), "--net", "--uts", "--mount", "--"]

    def _boot(self, timeout: float) -> PrivateCluster:  # type: ignore[override]
        self._wire()
        return super()._boot(timeout)

    def _launch(self, name: str, *argv: str) -> None:
        if name == "munged":  # the first: slurm.conf has just been written
            text = self.slurm_conf.read_text()
            for node in self.nodes:
                was = f"NodeName={node} NodeAddr="
                text = text.replace(f"{was}127.0.0.1 ", f"{was}{self.address(node)} ")
            self.slurm_conf.write_text(text)
        super()._launch(name, *(self._enter(name) if name in self.nodes else ()), *argv)

    def _wire(self) -> None:
        if not self._holders and not Path("/sys/class/net/br0").exists():
            sh("ip", "link", "add", "br0", "type", "bridge")
            sh("ip", "addr", "add", f"{SUBNET}.1/24", "dev", "br0")
            sh("ip", "link", "set", "br0", "up")
        names = [f"127.0.0.1 localhost\n{SUBNET}.1 ctl"] + [f"{self.address(node)} {node}" for node in self.nodes]
        Path("/etc/hosts").write_text("\n".join(names) + "\n")  # make.py has mounted one of our own there
        for node in self.nodes:
            if node not in self._holders:
                self._holders[node] = self._add_node(node)

    def _add_node(self, node: str) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sleep", "infinity"])
        self._holders[node] = holder
        own = os.readlink("/proc/self/ns/net")
        self.wait_for(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, 10, f"{node}'s namespaces")
        self.wait_for(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", 10, f"{node}'s namespaces")
        sh("ip", "link", "add", f"v{node}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        sh("ip", "link", "set", f"v{node}", "master", "br0", "up")
        self.on(node, "hostname", node)
        self.small_disk(node, "/tmp", "1G")
        self.on(node, "ip", "link", "set", "lo", "up")
        self.on(node, "ip", "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
        self.on(node, "ip", "link", "set", "eth0", "up")
        return holder
