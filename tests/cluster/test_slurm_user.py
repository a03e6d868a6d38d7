"""SlurmUser=slurm, jobs of an ordinary user, logs of mode 0600: all works, and what cannot be read is a gap."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_recovery
from slurm_recovery.records import Stage
from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import SYSTEM_PYTHON, TRAINER, Site

USER = "nobody"
ENDS = (Stage.RUNNING, Stage.LEFT, Stage.STOPPED, Stage.ABANDONED)


def environment_for_all(folder: Path) -> str:
    """This virtual environment where every user may read it; the interpreter's path."""
    copy = folder / "venv"
    shutil.copytree(Path(sys.prefix), copy, symlinks=True)
    packages = next((copy / "lib").glob("python*")) / "site-packages"
    shutil.copytree(Path(slurm_recovery.__file__).parent, packages / "slurm_recovery", dirs_exist_ok=True)
    for redirect in packages.glob("__editable__*slurm_recovery*"):
        redirect.unlink()
    subprocess.run(["chmod", "-R", "go+rX", str(copy)], check=True)
    return str(copy / "bin/python")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with PrivateCluster(slurm_user="slurm") as cluster:
        site = Site(cluster, {"Backoff": "0"}, python=environment_for_all(cluster.folder))
        site.install()
        trainer = cluster.folder / "trainer.py"
        shutil.copy(TRAINER, trainer)
        trainer.chmod(0o755)
        yield site


def train(site: Site, name: str, umask: str) -> int:
    """The training job as the ordinary user, whose log has the mode that the umask leaves."""
    cluster = site.cluster
    log = cluster.work / f"{name}.log"
    subprocess.run(["install", "-o", USER, "-m", umask, "/dev/null", str(log)], check=True)
    run = f"srun --label {SYSTEM_PYTHON} {cluster.folder}/trainer.py {cluster.work}/checkpoints-{name} --fail-node n2"
    return cluster.sbatch("--nodes=3", f"--output={log}", "--open-mode=append", script=run, user=USER)


def test_a_readable_log_is_judged_and_the_job_comes_back(site: Site) -> None:
    job = train(site, "readable", "0644")
    incident = site.wait_stage(job, *ENDS)
    assert incident.stage is Stage.RUNNING
    assert incident.attribution is not None
    assert incident.attribution.suspect_nodes == ("n2",)
    assert site.cluster.wait(job, "COMPLETED", timeout=30)["ExcNodes"] == "n2"


def test_an_unreadable_log_is_a_gap_and_the_job_still_comes_back(site: Site) -> None:
    job = train(site, "private", "0600")
    incident = site.wait_stage(job, *ENDS)
    assert incident.observation is not None
    assert incident.decision is not None
    (gap,) = incident.observation.gaps
    assert gap.what == str(site.cluster.work / "private.log")
    assert gap.why == "EACCES: Permission denied"
    assert incident.observation.evidence == ()
    assert incident.decision.exclude == ()
    record = site.cluster.wait(job, "COMPLETED", timeout=30)
    assert (record["RestartCnt"], record["ExcNodes"]) == ("1", "")
    assert gap.why in site.srecover("show", str(job)).stdout
    options = ("--hook-dir", str(site.hooks), "--slurm-conf", str(site.cluster.slurm_conf))
    said = site.srecover("check", *options, check=False).stdout
    assert "1 of the last 2 failed attempts had a log that SlurmUser cannot read" in said


def test_what_root_runs_stays_slurmusers(site: Site) -> None:
    site.sweep()
    owner = pwd.getpwnam("slurm").pw_uid
    others = [path for path in [site.state, *site.state.rglob("*")] if path.stat().st_uid != owner]
    assert others == []
    readable = [path for path in [site.state, *site.state.rglob("*")] if path.stat().st_mode & 0o077]
    assert readable == []
