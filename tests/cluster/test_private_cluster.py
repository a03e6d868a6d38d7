"""The private cluster itself: that it comes up, does what it is asked, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.leftovers import clean_up_dead_clusters
from tests.cluster.ports import PortClaim
from tests.cluster.private_cluster import ClusterError, ClusterUnavailable, PrivateCluster
from tests.cluster.processes import end_processes

CHECKOUT = Path(__file__).parents[2]
# A job that hides: its processes lose their environment, one of them its session too.
HIDING = 'cd /; setsid env -i sleep {nap} & env -i bash -c "sleep {nap} & sleep {nap}"'
OTHER_OWNER = """
import sys, time
from tests.cluster.private_cluster import PrivateCluster
cluster = PrivateCluster(nodes=2).start()
cluster.wait(cluster.sbatch(script=sys.argv[1]), "RUNNING")
print(cluster.folder, flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateCluster]:
    conf = {"SlurmdTimeout": "10", "minjobage": "77"}
    partitions = ["PartitionName=main Nodes=ALL", "PartitionName=high Nodes=n[1-2] PriorityTier=10"]
    with PrivateCluster(conf=conf, partitions=partitions, node_conf={"n2": "Feature=big"}) as booted:
        yield booted


pytestmark = pytest.mark.timing  # alone: any other test cleans up dead clusters, too


def naming(folder: Path) -> list[int]:
    """Every process that names the folder, found in another way than the cluster's own."""
    word = os.fsencode(folder)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            opened = b"".join(os.fsencode(os.readlink(entry)) for entry in (process / "fd").iterdir())
        except OSError:
            continue
        if word in said + opened:
            found.append(int(process.name))
    return found


@pytest.fixture
def nap() -> str:
    """Seconds that nobody else on this host sleeps: the hiding job's processes are known by it."""
    return str(random.randrange(10**6, 10**8))


def none_left(look: Callable[[], list[int]]) -> list[int]:
    """What is still there after a while. (Another test may be cleaning up the same dead cluster just now.)"""
    until = time.monotonic() + 30
    while (found := look()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def sleepers(nap: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program, *arguments = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if program.endswith("sleep") and nap in arguments:
            found.append(int(process.name))
    return found


@contextmanager
def other_owner(nap: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a cluster, in which the hiding job runs."""
    argv = [sys.executable, "-c", OTHER_OWNER, HIDING.format(nap=nap)]
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip())
            assert folder.is_dir()
            yield owner, folder
        finally:
            owner.terminate()


def test_a_job_runs_and_its_record_is_read(cluster: PrivateCluster) -> None:
    before = time.time()
    job = cluster.sbatch("-N2", "-J", "a\nb JobState=RUNNING", "--exclude=n3", script="srun hostname; exit 3")
    record = cluster.wait(job)
    assert record["State"] == "FAILED"
    assert record["ExitCode"] == "3:0"
    assert record["Name"] == "a\nb JobState=RUNNING"
    assert record["ExcNodes"] == "n3"
    assert record["AdminComment"] == ""
    assert before - 2 < int(record["StartTime"]) <= int(record["EndTime"]) < time.time() + 2
    assert len((cluster.work / f"slurm-{job}.out").read_text().split()) == 2


def test_array_tasks_and_het_components_are_told_apart(cluster: PrivateCluster) -> None:
    array = cluster.sbatch("--array=0-1", script="exit $SLURM_ARRAY_TASK_ID")
    het = int(cluster.run("sbatch", "--parsable", "-n1", ":", "-n2", stdin="#!/bin/sh\n").stdout)
    assert cluster.wait(f"{array}_0")["State"] == "COMPLETED"
    assert cluster.wait(f"{array}_1")["ExitCode"] == "1:0"
    assert cluster.show(het)["HetJobOffset"] == "0"
    assert cluster.show(f"{het}+1")["HetJobOffset"] == "1"
    assert len(cluster.records(array)) == 2


def test_the_conf_is_what_was_asked_for(cluster: PrivateCluster) -> None:
    assert "MinJobAge               = 77 sec" in cluster.run("scontrol", "show", "config").stdout
    record = cluster.wait(cluster.sbatch("-p", "high", "--constraint=big", script="true"), "COMPLETED")
    assert record["NodeList"] == "n2"
    cluster.append_conf("KillWait=4")
    cluster.reconfigure()
    assert "KillWait                = 4 sec" in cluster.run("scontrol", "show", "config").stdout


def test_a_job_of_another_user_writes_into_the_work_folder(cluster: PrivateCluster) -> None:
    job = cluster.sbatch("--output=mine-%j", script="id -un", user="games")
    assert cluster.wait(job, "COMPLETED")["UserName"] == "games"
    output = cluster.work / f"mine-{job}"
    assert (output.read_text(), output.owner()) == ("games\n", "games")


def test_what_slurmctld_does_not_know_and_what_does_not_come(cluster: PrivateCluster) -> None:
    assert cluster.records(999999) == []
    with pytest.raises(LookupError):
        cluster.show(999999)
    with pytest.raises(ClusterError, match=r"exit 1: .*Invalid node name"):
        cluster.run("scontrol", "update", "nodename=n9", "state=drain", "reason=x")
    with pytest.raises(ClusterError, match=r"waited 0.2 s for rain, in vain(.|\n)*slurmctld.log"):
        cluster.wait_for(lambda: None, timeout=0.2, what="rain")


def test_a_node_dies_with_its_steps_and_comes_back(cluster: PrivateCluster, nap: str) -> None:
    job = cluster.sbatch("-N2", "-w", "n[3-4]", "--no-requeue", script=f"srun --overlap sleep {nap}")
    cluster.wait_for(lambda: len(sleepers(nap)) == 2, what="a task on each node")
    cluster.kill_slurmd("n4")
    assert cluster.daemon_pid("n4") == 0
    cluster.wait_for(lambda: len(sleepers(nap)) == 1, what="the task on n4 to be gone, and only that")
    cluster.start_slurmd("n4")
    cluster.run("scancel", str(job))
    cluster.wait(job)


@pytest.mark.parametrize("kill", [False, True])
def test_slurmctld_ends_and_comes_back_with_its_jobs(kill: bool) -> None:
    with PrivateCluster(nodes=1, slurm_user="slurm") as cluster:
        assert (cluster.folder / "state").owner() == "slurm"
        job = cluster.sbatch("--hold", script="true")
        cluster.stop_slurmctld(kill=kill)
        assert cluster.daemon_pid("slurmctld") == 0
        cluster.start_slurmctld(nodes=False)
        if not kill:  # SIGKILL may come before the state is saved
            assert cluster.show(job)["State"] == "PENDING"
        assert "slurmctld version" in cluster.slurmctld_log()
        assert "in vain" not in cluster.describe()


def test_nothing_is_left_behind(nap: str) -> None:
    with PrivateCluster(nodes=2) as cluster:
        cluster.sbatch(script=HIDING.format(nap=nap))
        cluster.wait_for(lambda: len(sleepers(nap)) == 3, what="the sleepers")
        folder = cluster.folder
        assert len(naming(folder)) >= 5
    assert none_left(lambda: naming(folder)) == []
    assert none_left(lambda: sleepers(nap)) == []
    assert not folder.exists()
    cluster.stop()


def test_one_cluster_beside_another(cluster: PrivateCluster, nap: str) -> None:
    with other_owner(nap) as (owner, folder):
        with PrivateCluster(nodes=3, slurm_user="slurm") as third:
            assert folder.is_dir(), "a living owner's cluster stays"
            jobs = [(each, each.sbatch(script="true")) for each in (cluster, third)]
            for each, job in jobs:
                each.wait(job, "COMPLETED")
        owner.terminate()
        assert owner.wait(30) == -signal.SIGTERM
        assert not folder.exists(), "SIGTERM cleans up"
        assert none_left(lambda: naming(folder)) == []
        assert none_left(lambda: sleepers(nap)) == []
    assert cluster.daemon_pid("slurmctld"), "and nothing else"


def test_a_killed_owners_cluster_is_ended_by_the_next(nap: str) -> None:
    with other_owner(nap) as (owner, folder):
        owner.kill()
        owner.wait(30)
        assert naming(folder)
        with PrivateCluster(nodes=1):
            assert not folder.exists()
            assert none_left(lambda: naming(folder)) == []
            assert none_left(lambda: sleepers(nap)) == []


def test_what_forks_meanwhile_is_ended_too(tmp_path: Path, nap: str) -> None:
    """The children name nothing, and have their own sessions: only their parent tells whose they are."""
    forking = f"while true; do env -i setsid sleep {nap} & env -i sleep {nap} & sleep 0.001; done"
    for _ in range(10):
        with subprocess.Popen(["bash", "-c", forking, tmp_path], cwd="/"):
            while len(sleepers(nap)) < 10:
                time.sleep(0.01)
            end_processes(tmp_path)
        assert sleepers(nap) == []


def test_what_looks_like_a_cluster_and_is_none_stays(tmp_path: Path) -> None:
    fresh, link, foreign = (tmp_path / f"slurm_recovery.{name}" for name in ("fresh", "link", "foreign"))
    fresh.mkdir()
    link.symlink_to(tmp_path)
    foreign.mkdir()
    os.utime(foreign, (1, 1))
    os.chown(foreign, 1, 1)
    assert clean_up_dead_clusters(tmp_path) == []
    os.utime(fresh, (1, 1))
    assert clean_up_dead_clusters(tmp_path) == [fresh]
    assert not fresh.exists()


def test_ports_that_are_taken_are_not_given() -> None:
    first = PortClaim.find(5)
    second = PortClaim.find(5)
    assert not set(range(first.first, first.first + 5)) & set(range(second.first, second.first + 5))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.first + 2))
        taken.listen()
        first.close()
        assert PortClaim.of(range(first.first, first.first + 5)) is None
    second.close()


def test_who_is_not_root_is_told_so() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            PrivateCluster().start()
        except ClusterUnavailable as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 1000).decode().endswith("run this as root")
    os.close(reading)
