"""`make demo`: a private cluster, a training job that loses a GPU, and what becomes of it with slurm_recovery."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slurm_recovery.records import Incident, Stage
from tests.cluster.private_cluster import ClusterUnavailable, PrivateCluster
from tests.cluster.site import Site

BAD_NODE = "n2"
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"})


class Story:
    """Prints what happens, with the seconds since the chapter began."""

    def __init__(self, title: str) -> None:
        self.begin = time.time()
        print(f"\n=== {title}", flush=True)

    def tell(self, text: str) -> None:
        print(f"{time.time() - self.begin:6.1f} s  {text}", flush=True)


def watch(site: Site, job: int, story: Story, over: Callable[[], bool]) -> None:
    """Tell every change of the job's state until `over`."""
    told = ""
    until = time.monotonic() + 90
    while not over():
        if time.monotonic() > until:
            raise SystemExit(f"demo: job {job} did not get there within 90 s\n{site.cluster.describe()}")
        record = site.cluster.show(job)
        now = f"job {job} {record['State']}"
        if record["NodeList"] and record["State"] == "RUNNING":
            now += f" on {record['NodeList']}"
        if record["ExcNodes"]:
            now += f", ExcNodeList={record['ExcNodes']}"
        if now != told:
            told = now
            story.tell(now)
        time.sleep(0.05)


def timeline(incident: Incident) -> str:
    """The seconds between the steps of a recovery."""
    steps = sorted(incident.times.items(), key=lambda step: step[1])
    rows, before = [], steps[0][1]
    for name, when in steps:
        rows.append(f"  {name:<10}{when - before:>8.2f} s")
        before = when
    return "\n".join(rows)


def act(site: Site) -> None:
    story = Story("Mode=act: a three-node training job; the GPU of n2 fails at step 5; a second job waits by afterok")
    job = site.train(trainer=f"--fail-node {BAD_NODE}", name="train")
    waiting = site.cluster.sbatch(f"--dependency=afterok:{job}", "--job-name=evaluate", script="echo evaluated")
    story.tell(f"submitted: job {job} (train), job {waiting} (evaluate) waits for it")
    watch(site, job, story, lambda: site.cluster.show(job)["State"] == "COMPLETED")
    story.tell(f"job {job} COMPLETED; AdminComment={site.cluster.show(job)['AdminComment']}")
    site.cluster.wait(waiting, "COMPLETED")
    story.tell(f"job {waiting} (evaluate) COMPLETED: the chain held")
    incident = site.wait_stage(job, Stage.RUNNING)
    log = (site.cluster.work / f"train-{job}.log").read_text()
    story.tell("the job's log: " + next(line for line in log.splitlines() if "resuming" in line))
    print("\nTimeline, each step with the seconds since the one before:")
    print(timeline(incident))
    print(f"\n$ srecover show {job}\n{site.srecover('show', str(job)).stdout}")


def observe(site: Site) -> None:
    story = Story("Mode=observe: the same failure; nothing is touched, the advice is on record")
    site.configure({"Mode": "observe"})
    job = site.train(trainer=f"--fail-node {BAD_NODE}", name="observed")
    story.tell(f"submitted: job {job}")
    watch(site, job, story, lambda: site.cluster.show(job)["State"] in ENDED)
    incident = site.wait_stage(job, Stage.LEFT)
    record = site.cluster.show(job)
    excluded = record["ExcNodes"] or "(null)"
    story.tell(f"job {job} stays {record['State']}, Restarts={record['RestartCnt']}, ExcNodeList={excluded}")
    assert incident.decision is not None
    story.tell(f"advice: {incident.decision.verdict.value}: {incident.decision.because}")
    print(f"\n$ srecover show {job}\n{site.srecover('show', str(job)).stdout}")
    print(f"$ srecover list\n{site.srecover('list').stdout}")


@contextmanager
def sweeps(site: Site, every: float = 1.0) -> Iterator[None]:
    """What slurm-recovery-sweep.timer does, at its own pace."""
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(every):
            site.srecover("sweep", "--timeout", "5", check=False)

    timer = threading.Thread(target=sweep)
    timer.start()
    try:
        yield
    finally:
        over.set()
        timer.join()


def rehearse(site: Site, *options: str) -> subprocess.CompletedProcess[str]:
    """`srecover drill` in the cluster's partition, while the timer of the sweep runs."""
    with sweeps(site):
        return site.srecover("drill", "-p", "main", "--dir", str(site.cluster.work), *options, check=False, timeout=300)


def drill(site: Site) -> None:
    Story("srecover drill: jobs that fail on purpose, and whether recovery does what the policy says")
    done = rehearse(site)
    print(f"$ srecover drill -p main\n{done.stdout}{done.stderr}")
    if done.returncode != 0:
        raise SystemExit(f"demo: the drill ended with exit status {done.returncode}")


def asking_nodes(cluster: PrivateCluster) -> Site:
    """A site whose nodes leave their reports, and tell a restarted job its checkpoint."""
    kernel_log = cluster.folder / "kmsg"
    kernel_log.touch()
    settings = {"EvidenceDir": str(cluster.folder / "evidence"), "RunDir": f"{cluster.folder}/run/slurm_recovery-%n"}
    return Site(cluster, settings | {"KernelLog": str(kernel_log), "Backoff": "0"})


def main() -> int:
    print("slurm_recovery demo: booting munged, slurmctld and four slurmd on loopback ...", flush=True)
    try:
        with PrivateCluster() as cluster:
            site = asking_nodes(cluster)
            print(f"Slurm {cluster.release} in {cluster.folder}\n\n$ srecover setup")
            print(site.install())
            cluster.reconfigure()  # slurmd's hooks
            act(site)
            drill(site)
            observe(site)
    except ClusterUnavailable as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print("The cluster is gone again.")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
