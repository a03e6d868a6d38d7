"""A private cluster with slurm_recovery installed as a sysadmin would: `srecover setup`, its lines in slurm.conf."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_recovery.hooks.install import HOOKS, hook_text, system_python, written_settings
from slurm_recovery.hooks.spool import Spool
from slurm_recovery.records import Incident, Stage
from slurm_recovery.store.store import Store
from tests.cluster.private_cluster import PrivateCluster

TRAINER = Path(__file__).with_name("trainer.py")
SYSTEM_PYTHON = "/usr/bin/python3"


class Site:
    """What a test holds in its hands: the cluster, and slurm_recovery on it."""

    def __init__(
        self,
        cluster: PrivateCluster,
        settings: Mapping[str, str] | None = None,
        lines: str = "",
        python: str = sys.executable,
        store_url: str = "",
    ) -> None:
        self.cluster = cluster
        self.python = python
        self.conf = cluster.folder / "recovery.conf"
        self.state = cluster.folder / "recovery"
        self.hooks = cluster.folder / "hooks"
        self.store_url = store_url or f"sqlite:///{self.state}/recovery.db"
        self.configure(settings or {}, lines)

    def configure(self, settings: Mapping[str, str], lines: str = "") -> None:
        """Write recovery.conf anew."""
        values = {"MaxRequeuesPerHour": "10000", "MaxRequeuesPerUserHour": "10000"}
        values["SuspicionExclude"] = "1"  # a test's jobs fail on purpose: they would be held against the nodes
        values |= {"Mode": "act", "StateDir": str(self.state), "SlurmConf": str(self.cluster.slurm_conf)}
        values |= settings
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()) + lines)

    def install(self) -> str:
        """`srecover setup`, then its lines into slurm.conf; what setup printed."""
        said = self.setup()
        lines = [line for line in said.splitlines() if re.match(r"[A-Z]\w+=", line)]
        self.cluster.append_conf(lines)
        self.restart_slurmctld()
        return said

    def restart_slurmctld(self) -> None:
        """Before 23.11 a reconfigure does not start a hook that was not there before."""
        self.cluster.stop_slurmctld()
        self.cluster.start_slurmctld()

    def setup(self, *options: str) -> str:
        slurm_conf = str(self.cluster.slurm_conf)
        return self.srecover("setup", "--hook-dir", str(self.hooks), "--slurm-conf", slurm_conf, *options).stdout

    def srecover(self, *arguments: str, check: bool = True, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        command = [self.python, "-I", "-m", "slurm_recovery.cli.main", "--conf", str(self.conf), *arguments]
        return self.cluster.run(*command, check=check, timeout=timeout)

    def sweep(self, timeout: float = 50) -> None:
        self.srecover("sweep", "--timeout", str(timeout))

    def incidents(self, job: int | str) -> list[Incident]:
        """The job's incidents, newest first."""
        with self.store() as store:
            return store.of_job(self.cluster_name, str(job))

    def store(self) -> Store:
        return Store.open(self.store_url)

    @property
    def cluster_name(self) -> str:
        lines = self.cluster.slurm_conf.read_text().splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith("ClusterName="))

    def wait_stage(self, job: int | str, *stages: Stage, timeout: float = 60) -> Incident:
        """The job's newest incident, once it is in one of the stages."""

        def found() -> Incident | None:
            incidents = self.incidents(job)
            return incidents[0] if incidents and incidents[0].stage in stages else None

        what = f"an incident of {job} to be {' or '.join(stages)}"
        try:
            return self.cluster.wait_for(found, timeout=timeout, what=what)
        except Exception as error:
            error.add_note(self.worker_log())
            error.add_note(repr([(i.stage, i.note, i.decision) for i in self.incidents(job)]))
            raise

    def worker_log(self) -> str:
        path = self.state / "worker.log"
        return path.read_text() if path.exists() else "no worker.log"

    def events(self) -> list[str]:
        return sorted(path.name for path in (self.state / "spool").iterdir())

    def replace_worker(self, command: list[str]) -> None:
        """Let the installed hooks start another worker; its options stay."""
        for name in HOOKS:
            settings = written_settings(self.hooks / name)
            assert settings is not None
            settings["worker"] = [*command, *settings["worker"][settings["worker"].index("--conf") :]]
            (self.hooks / name).write_text(hook_text(name, settings, system_python()))

    def worker_is_gone(self, job: int) -> bool:
        """Whether no worker lives, and the job's hook, which would start another, is over."""
        with Spool(self.state).lock() as got:
            return got and self.cluster.show(job)["State"] != "COMPLETING"

    def swept(self) -> bool:
        """Whether a sweep finds nothing more to do; it does what it finds."""
        self.sweep()
        with self.store() as store:
            return not store.open_incidents(self.cluster_name) and not self.events()

    def train(self, *options: str, name: str = "train", trainer: str = "", nodes: int = 3) -> int:
        """Submit the training job."""
        folder = self.cluster.work / f"checkpoints-{name}"
        script = f"srun --label {SYSTEM_PYTHON} {TRAINER} {folder} {trainer}"
        return self.cluster.sbatch(
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            f"--job-name={name}",
            f"--output={name}-%j.log",
            *options,
            script=script,
        )
