"""slurm.conf of a private cluster: a small, fast, loopback one.

Owns: the text, for each Slurm release. Must not: start or ask anything.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PARTITIONS = ("PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE",)


@dataclass(frozen=True)
class Plan:
    """What a cluster is to look like."""

    nodes: Sequence[str]
    slurm_user: str = "root"
    cpus: int = 8
    conf: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = DEFAULT_PARTITIONS
    node_conf: Mapping[str, str] = field(default_factory=dict)
    cgroup_conf: str = ""
    gpus: int = 0


def _placed(value: str, folder: Path) -> str:
    """`{folder}` in a value is the cluster's folder."""
    return value.replace("{folder}", str(folder))


def write_conf(plan: Plan, folder: Path, version: tuple[int, ...], first_port: int) -> None:
    """slurm.conf, and what goes with it in this release. slurmctld has the first port, the nodes those that follow."""
    keys = _keys(plan, folder, first_port)
    ours = {key.lower(): key for key in keys}
    keys |= {ours.get(key.lower(), key): _placed(value, folder) for key, value in plan.conf.items()}
    lines = [f"{key}={value}" for key, value in keys.items() if value]
    lines += [_node_line(plan, node, port) for port, node in enumerate(plan.nodes, first_port + 1)]
    lines += _partition_lines(plan.partitions or DEFAULT_PARTITIONS)
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    disabled = "CgroupPlugin=disabled\n" if version >= (23, 11) else ""  # an older slurmd does not know it, and ends
    if text := plan.cgroup_conf or disabled:
        (folder / "cgroup.conf").write_text(text, encoding="utf-8")
    if plan.gpus:  # slurmd counts a GRES by its files; any will do
        for number in range(plan.gpus):
            (folder / f"run/gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/run/gpu[0-{plan.gpus - 1}]\n", encoding="utf-8")


def _keys(plan: Plan, folder: Path, port: int) -> dict[str, str]:
    return {
        "ClusterName": "private",
        "SlurmctldHost": f"{socket.gethostname().split('.')[0]}(127.0.0.1)",
        "SlurmctldPort": str(port),
        "SlurmUser": plan.slurm_user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "SlurmctldDebug": "debug",
        "SlurmdDebug": "verbose",
        "MailProg": "/bin/true",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "KillWait": "3",
        "GresTypes": "gpu" if plan.gpus else "",
    }


def _node_line(plan: Plan, node: str, port: int) -> str:
    more = f"Gres=gpu:{plan.gpus} " * bool(plan.gpus) + plan.node_conf.get(node, "")
    return f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs={plan.cpus} RealMemory=4000 {more}".rstrip()


def _partition_lines(partitions: Sequence[str]) -> list[str]:
    first, *others = partitions
    if not any("default=yes" in line.lower() for line in partitions):
        first += " Default=YES"
    return [first, *others]
