"""`make bench`: the figures of the README, each against a yardstick measured in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_recovery.hooks.install import install_hooks, system_python
from tests import bench_scan
from tests.cluster.private_cluster import ClusterUnavailable, PrivateCluster
from tests.cluster.site import Site
from tests.score import CORPUS, score

RESTARTS = 10
HOOK_RUNS = 20
FAILS_ONCE = 'sleep 1; test "${SLURM_RESTART_COUNT:-0}" != 0 && sleep 1'
ECC = "echo '[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2"


class OwnRequeue(threading.Thread):
    """Slurm's own requeue of the same job, by `scontrol requeue`: seconds until it runs again."""

    def __init__(self, cluster: PrivateCluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.seconds = 0.0

    def run(self) -> None:
        job = self.cluster.sbatch("--output=/dev/null", "--comment=recovery=off", script=FAILS_ONCE)
        ended = end_of(self.cluster, job)
        self.cluster.wait(job, "FAILED")
        self.cluster.run("scontrol", "requeue", str(job))
        self.seconds = start_of_next(self.cluster, job, timeout=200) - ended


def end_of(cluster: PrivateCluster, job: int) -> float:
    """When the job is first seen to have left RUNNING (seconds since the epoch)."""
    cluster.wait(job, "RUNNING", timeout=30)
    cluster.wait(job, "COMPLETING", "FAILED", "PENDING", timeout=30)
    return time.time()


def start_of_next(cluster: PrivateCluster, job: int, timeout: float) -> float:
    """When its next attempt is first seen RUNNING."""

    def runs() -> bool:
        record = cluster.show(job)
        return record["RestartCnt"] == "1" and record["State"] in ("RUNNING", "COMPLETED")

    cluster.wait_for(runs, timeout=timeout, what=f"job {job} to run again")
    return time.time()


def restart_times(site: Site, runs: int = RESTARTS) -> tuple[list[float], float]:
    """Seconds from the end to RUNNING again: ours, one at a time; and Slurm's own, once, meanwhile."""
    own = OwnRequeue(site.cluster)
    own.start()
    ours = []
    for _ in range(runs):
        job = site.cluster.sbatch("--nodes=2", script=f"{ECC}; {FAILS_ONCE}")
        ended = end_of(site.cluster, job)
        ours.append(start_of_next(site.cluster, job, timeout=60) - ended)
        site.cluster.wait(job, "COMPLETED")
    own.join(200)
    return ours, own.seconds


def installed(folder: Path, worker: Sequence[str] = ()) -> Path:
    """A hook with its own StateDir, whose worker leaves a mark when it is started."""
    (folder / "state/spool").mkdir(parents=True)
    (folder / "state/holds").mkdir()
    settings = {
        "state": str(folder / "state"),
        "worker": list(worker) or ["/bin/sh", "-c", f"echo >> {folder}/started"],
        "environment": {},
        "watchdog": 1.0,
        "hold_timeout": 60.0,
    }
    install_hooks(folder / "hooks", settings)
    return folder / "hooks/epilog_slurmctld"


def seconds(*command: str, environment: dict[str, str]) -> float:
    """Wall seconds of a process that must end with 0."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return time.perf_counter() - began


def hook_cost(hook: Path, runs: int = HOOK_RUNS) -> float:
    """The hook for a job that ended well, as a multiple of the bare interpreter; medians, run in turn."""
    ended_well = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_NAME": "fine"}
    bare, ours = [], []
    for _ in range(runs):
        bare.append(seconds(system_python(), "-I", "-S", "-c", "pass", environment={}))
        ours.append(seconds(str(hook), environment=ended_well))
    print(
        f"hook for a job that ended well: {statistics.median(ours) * 1e3:.1f} ms, "
        f"bare interpreter {statistics.median(bare) * 1e3:.1f} ms, "
        f"ratio {statistics.median(ours) / statistics.median(bare):.2f} (medians of {runs})"
    )
    return statistics.median(ours) / statistics.median(bare)


def restart_report(ours: list[float], own: float) -> str:
    middle = statistics.median(ours)
    return (
        f"end to RUNNING again: median {middle:.2f} s of {len(ours)} (from {min(ours):.2f} to {max(ours):.2f}); "
        f"scontrol requeue {own:.1f} s; ratio {own / middle:.0f}"
    )


def main() -> int:
    for folder in (CORPUS, CORPUS / "real"):
        print(*score(folder).lines(folder.name), sep="\n", flush=True)
    for line in bench_scan.report():
        print(line, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        hook_cost(installed(Path(folder)))
    try:
        with PrivateCluster() as cluster:
            site = Site(cluster, {"Backoff": "0"})
            site.install()
            print(f"Slurm {cluster.release}, four nodes on loopback; two minutes ...", flush=True)
            print(restart_report(*restart_times(site)))
    except ClusterUnavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
