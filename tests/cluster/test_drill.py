"""The rehearsal on real daemons: it passes where recovery works, and says where it does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurm_recovery.drill.drills import DRILLS
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site
from tests.demo import asking_nodes, rehearse, sweeps

ECC = "gpu_ecc_uncorrectable"
QUICK = ("--within", "4")  # a step that will never come


class Drilled(NamedTuple):
    """What a drill said."""

    status: int
    rows: list[dict[str, Any]]

    @property
    def failed(self) -> dict[str, Any]:
        [row] = [row for row in self.rows if row["result"] == "fail"]
        assert row == self.rows[-1], "a drill ends with its first failure"
        return row

    def of(self, drill: str) -> dict[str, dict[str, Any]]:
        return {row["step"]: row for row in self.rows if row["drill"] == drill}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    partitions = ("PartitionName=main Nodes=ALL", "PartitionName=pair Nodes=n1,n2")
    with PrivateCluster(nodes=4, partitions=partitions) as cluster:
        site = asking_nodes(cluster)
        settings(site, WatchdogTimeout="3")  # so long a job waits for a worker that does not start
        site.install()
        cluster.reconfigure()
        yield site


@contextmanager
def put_back(*files: Path) -> Iterator[None]:
    """What the block does to them is undone at its end."""
    sound = {path: path.read_bytes() for path in files}
    try:
        yield
    finally:
        for path, content in sound.items():
            path.write_bytes(content)


@pytest.fixture(autouse=True)
def _as_it_was(site: Site) -> Iterator[None]:
    with put_back(site.conf):
        yield


def drilled(site: Site, *options: str, partition: str = "main") -> Drilled:
    done = site.srecover(
        "drill", "-p", partition, "--dir", str(site.cluster.work), "--json", *options, check=False, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr
    return Drilled(done.returncode, json.loads(done.stdout))


def settings(site: Site, **values: str) -> None:
    """More lines for recovery.conf; a later one beats an earlier one."""
    with site.conf.open("a") as conf:
        conf.writelines(f"{key}={value}\n" for key, value in values.items())


def ours(site: Site) -> list[str]:
    """Our folders that are left, and our jobs that have not ended."""
    left = [path.name for path in site.cluster.work.glob("srecover-drill*")]
    return left + site.cluster.run("squeue", "--noheader", "--name=srecover-drill", "-o", "%i").stdout.split()


# -- where recovery works ----------------------------------------------------------------------------


def test_every_drill_passes_on_the_demos_cluster(site: Site) -> None:
    settings(site, SuspicionExclude="0.5")
    done = rehearse(site, "--json")
    rows = json.loads(done.stdout)
    assert [row for row in rows if row["result"] != "pass"] == []
    assert (done.returncode, done.stderr) == (0, "")
    assert {row["result"] for row in rows} == {"pass"}
    assert {row["drill"] for row in rows} == set(DRILLS)
    drill = Drilled(0, rows)
    assert drill.of("ecc")["excluded"]["detail"] == "ExcNodeList=n2"
    assert drill.of("corrupt")["told where"]["detail"].endswith("/checkpoints/checkpoint-10")
    assert drill.of("evidence")["reports"]["detail"] == "of n1,n2"
    assert max(row["seconds"] for row in rows) < 60
    assert ours(site) == []
    with site.store() as store:
        assert not [run for run in store.ledger.runs(site.cluster_name, 0.0) if not run.good]
    assert "n2" not in site.srecover("nodes", "--noheader").stdout


def test_observe_is_advice_and_off_is_nothing_and_both_are_right(site: Site) -> None:
    settings(site, Mode="observe")
    observed = drilled(site, "-s", "ecc,evidence")
    assert observed.status == 0, observed.rows
    assert "advice only" in observed.of("ecc")["decided"]["detail"]
    assert observed.of("ecc")["left alone"]["detail"] == "stays FAILED, Restarts=0"
    settings(site, Mode="off")
    off = drilled(site, "-s", "killed")
    assert off.status == 0, off.rows
    assert "mode_off" in off.of("killed")["decided"]["detail"]


def test_a_partition_without_a_spare_node_gives_the_exclusion_up(site: Site) -> None:
    pair = drilled(site, "-s", "ecc", partition="pair")
    assert pair.status == 0, pair.rows
    assert pair.of("ecc")["excluded"]["detail"].startswith("not possible, for there is no spare node")


def test_root_submits_as_somebody_else(site: Site) -> None:
    one = drilled(site, "-s", "stop", "--uid", "games", "--sbatch=--time=2")
    assert one.status == 0, one.rows
    assert one.rows[0]["detail"].endswith(" as games")
    assert site.cluster.show(one.rows[0]["job_id"])["UserName"] == "games"


# -- where it does not -------------------------------------------------------------------------------


def test_a_hook_that_is_not_called_is_found(site: Site) -> None:
    hook = site.hooks / "epilog_slurmctld"
    with put_back(hook):
        hook.write_text("#!/bin/sh\nexit 0\n")
        broken = drilled(site, "-s", "ecc", *QUICK)
    assert broken.status == 1
    assert broken.failed["step"] == "taken up"
    assert "EpilogSlurmctld has not called our hook" in broken.failed["detail"]
    assert "is EpilogSlurmctld set" in broken.failed["hint"]
    [folder, *jobs] = ours(site)
    assert not jobs, "the folder stays for somebody to look at, the jobs do not"
    assert (site.cluster.work / folder / "ecc.log").exists()
    site.cluster.run("rm", "-r", site.cluster.work / folder)


def test_a_worker_that_does_not_start_is_found(site: Site) -> None:
    with put_back(site.hooks / "epilog_slurmctld", site.hooks / "node_down"):
        site.replace_worker(["/bin/false"])
        broken = drilled(site, "-s", "killed", *QUICK)
    assert broken.status == 1
    assert broken.failed["step"] == "taken up"
    assert "no worker has taken it up" in broken.failed["detail"]
    site.sweep()
    site.cluster.run("rm", "-r", *site.cluster.work.glob("srecover-drill*"))


def test_a_sweep_that_never_comes_is_found(site: Site) -> None:
    broken = drilled(site, "-s", "sweep", "--sweep-within", "3", *QUICK)
    assert broken.status == 1
    assert broken.failed["step"] == "swept"
    assert "no sweep" in broken.failed["detail"]
    assert "slurm-recovery-sweep" in broken.failed["hint"]
    site.cluster.run("rm", "-r", *site.cluster.work.glob("srecover-drill*"))
    with sweeps(site):
        assert drilled(site, "-s", "sweep").status == 0


def test_a_policy_that_does_not_what_the_operator_expects_is_found(site: Site) -> None:
    with site.conf.open("a") as conf:
        conf.write(f"Reason={ECC} Action=none\n")
    assert drilled(site, "-s", "ecc").status == 0, "it is what recovery.conf says"
    broken = drilled(site, "-s", "ecc", "--expect", "ecc=requeue_exclude")
    assert broken.status == 1
    assert broken.failed["step"] == "decided"
    assert "requeue_exclude was expected" in broken.failed["detail"]
    site.cluster.run("rm", "-r", *site.cluster.work.glob("srecover-drill*"))


def test_a_budget_that_is_used_up_is_told(site: Site) -> None:
    settings(site, MaxRequeuesPerUserHour="1")
    broken = drilled(site, "-s", "killed")
    assert broken.status == 1
    assert broken.failed["step"] == "decided"
    assert "budget_user" in broken.failed["detail"]
    site.cluster.run("rm", "-r", *site.cluster.work.glob("srecover-drill*"))


def test_nodes_that_tell_nothing_are_found(site: Site) -> None:
    epilog = site.hooks / "epilog.d/50-slurm-recovery"
    with put_back(epilog):
        epilog.write_text("#!/bin/sh\nexit 0\n")
        broken = drilled(site, "-s", "evidence", *QUICK)
    assert broken.status == 1
    assert broken.failed["step"] == "reports"
    assert broken.failed["detail"].startswith("n1,n2 left no report")
    site.cluster.run("rm", "-r", *site.cluster.work.glob("srecover-drill*"))


# -- what cannot be held, and what is interrupted ------------------------------------------------------


def refused(site: Site, *options: str, **more: Any) -> str:
    """The one line on standard error."""
    done = site.srecover("drill", *options, check=False, **more)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("srecover: error: ")
    return line


def test_what_cannot_be_held_is_one_line_and_exit_status_2(site: Site) -> None:
    here = ("--dir", str(site.cluster.work))
    assert "--partition nowhere: Slurm has no such partition" in refused(site, "-p", "nowhere", *here)
    assert "has 2 nodes in service, the drill needs 3" in refused(site, "-p", "pair", "-N", "3", *here)
    assert "ENOENT" in refused(site, "-p", "main", "--dir", "/nowhere")
    assert "no such user" in refused(site, "-p", "main", "--uid", "nobody-at-all", *here)
    settings(site, JobOptions="mode")
    assert "drill corrupt: JobOptions" in refused(site, "-p", "main", "-s", "corrupt", *here)
    settings(site, MaxRequeue="3")
    assert f"{site.conf}:" in refused(site, "-p", "main", *here)
    assert ours(site) == []


def test_an_ordinary_user_is_told_who_may(site: Site) -> None:
    command = [sys.executable, "-I", "-m", "slurm_recovery.cli.main", "--conf", str(site.conf)]
    done = site.cluster.run(*command, "drill", "-p", "main", user="games", check=False)
    assert done.returncode == 2
    assert "only SlurmUser and root" in done.stderr


def test_sbatchs_own_refusal_is_told(site: Site) -> None:
    one = drilled(site, "-s", "stop", "--sbatch=--constraint=nowhere")
    assert one.status == 1
    assert one.failed["step"] == "submitted"
    site.cluster.run("rm", "-r", *site.cluster.work.glob("srecover-drill*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_drill_that_is_interrupted_leaves_nothing(site: Site, number: signal.Signals) -> None:
    command = [sys.executable, "-I", "-m", "slurm_recovery.cli.main", "--conf", str(site.conf)]
    process = subprocess.Popen(
        [*command, "drill", "-p", "main", "-s", "ecc", "--dir", str(site.cluster.work), "--sbatch=--begin=now+60"],
        env=site.cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's `&` has it ignored
    )
    site.cluster.wait_for(lambda: len(ours(site)) == 2, what="the drill's folder and job")
    time.sleep(0.5)
    process.send_signal(number)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 1, (out, error)
    assert error == "srecover: error: interrupted; the drill's jobs are cancelled\n"
    assert ours(site) == []
    assert os.listdir(site.state / "holds") == []
