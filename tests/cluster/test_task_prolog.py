"""What a job is told at its start, on real daemons: a restart all that is known, a first attempt what it asked for.

In partition `main` recovery acts; in `manual` a test requeues by hand and writes what the controller would.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from slurm_recovery.node_report import Checkpoints, NodeReport
from slurm_recovery.records import Stage
from slurm_recovery.resume import Resume, write_resume
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster
from tests.unit.test_node_reports import hanging

USER = "nobody"
TIMEOUT = 3.0
SLACK = 3.0  # for all else that starts a job
PARTITIONS = (
    "PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE",
    "PartitionName=manual Nodes=ALL State=UP MaxTime=INFINITE",
)
CONF = "PartitionName=manual Mode=observe\nCheckpointFormat=ours Pattern=ckpt-{step} Marker=DONE\n"
SHOW = "env | grep ^SLURM_RECOVERY_ | sort | sed 's/^/TOLD /'; date +STARTED=%s.%N; "


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    """SlurmUser is not root, as on most clusters."""
    with PrivateCluster(nodes=2, slurm_user="slurm", partitions=PARTITIONS, conf={"JobFileAppend": "1"}) as cluster:
        settings = {"Backoff": "3", "BackoffMax": "3", "TaskPrologTimeout": f"{TIMEOUT:g}", "EvidenceTimeout": "4"}
        site = NodeSite(cluster, settings, CONF)
        site.install()
        yield site


@pytest.fixture
def folder(site: NodeSite, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The user's own folder of checkpoints."""
    path = site.cluster.work / f"ckpt.{request.node.name.partition('[')[0]}"
    path.mkdir()
    os.chown(path, pwd.getpwnam(USER).pw_uid, -1)
    yield path
    shutil.rmtree(path)


def save(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "DONE").touch()
    return path


def submit(site: NodeSite, script: str, *options: str, folder: Path | None = None, partition: str = "manual") -> int:
    say = [f"--comment=recovery=act,checkpoint={folder}"] if folder else []
    wanted = ["--nodes=2", f"--partition={partition}", "--output=%j.log", *say, *options]
    return site.cluster.sbatch(*wanted, script=SHOW + script, user=USER)


def log(site: NodeSite, job: int) -> str:
    path = site.cluster.work / f"{job}.log"
    return path.read_text(errors="surrogateescape") if path.exists() else ""


def told(site: NodeSite, job: int, mark: str = "TOLD ") -> dict[str, str]:
    """Of the last attempt that the log holds."""
    attempt = log(site, job).split("ATTEMPT ENDS")[-1]
    lines = [line.removeprefix(mark) for line in attempt.splitlines() if line.startswith(mark)]
    return {line.partition("=")[0].removeprefix("SLURM_RECOVERY_"): line.partition("=")[2] for line in lines}


def restart(site: NodeSite, job: int) -> None:
    """A running job's next attempt, which nobody else has a hand in."""
    site.cluster.wait_for(lambda: "STARTED" in log(site, job), what="its script to run")
    site.cluster.run("scontrol", "requeue", str(job))
    site.cluster.wait(job, "PENDING")
    time.sleep(2.5)  # slurmd 22.05 forgets the jobs that it had at most once in two seconds: no Prolog
    site.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")


WAITS_ONCE = "test $SLURM_RESTART_COUNT || { echo ATTEMPT ENDS; sleep 300; }; "


def test_a_job_that_asks_for_nothing_is_told_nothing(site: NodeSite) -> None:
    job = submit(site, "srun sh -c \"env | grep ^SLURM_RECOVERY_ | sed 's/^/TASK /'\"")
    site.cluster.wait(job, "COMPLETED")
    assert "TOLD" not in log(site, job)
    assert "TASK" not in log(site, job)
    assert not site.told("n1", job).exists()


def test_a_restart_by_us_is_told_all_of_it_in_its_script_and_in_its_tasks(site: NodeSite, folder: Path) -> None:
    saves = "mkdir ckpt-100 ckpt-200 ckpt-300; touch ckpt-100/DONE ckpt-200/DONE"
    script = (
        "srun sh -c \"env | grep ^SLURM_RECOVERY_ | sort | sed 's/^/TASK /'\"; test $SLURM_RESTART_COUNT && exit 0; "
        f"echo ATTEMPT ENDS; cd {folder}; {saves}; "
        "echo '[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1"
    )
    job = submit(site, script, "--nodes=1-2", folder=folder, partition="main")
    incident = site.wait_stage(job, Stage.RUNNING, Stage.LEFT, Stage.STOPPED)
    assert incident.stage is Stage.RUNNING, incident.note
    site.cluster.wait(job, "COMPLETED")
    said = told(site, job)
    assert (said["JOB_ID"], said["ATTEMPT"], said["REASON"]) == (str(job), "2", "gpu_ecc_uncorrectable")
    assert (said["CHECKPOINT"], said["STEP"]) == (f"{folder}/ckpt-200", "200")
    assert told(site, job, "TASK ") == said
    first, _ = log(site, job).split("ATTEMPT ENDS")
    assert "ATTEMPT=" not in first
    assert "CHECKPOINT=" not in first, "there was none yet"


def test_what_the_nodes_tell_of_its_checkpoints_at_each_end(site: NodeSite, folder: Path) -> None:
    """A good end of a restarted job, too: the last attempt made progress or did not."""
    script = f"test $SLURM_RESTART_COUNT || {{ mkdir {folder}/ckpt-100; touch {folder}/ckpt-100/DONE; sleep 300; }}; "
    script += f"mkdir {folder}/ckpt-200; touch {folder}/ckpt-200/DONE"
    job = submit(site, script, folder=folder)
    site.cluster.wait_for(lambda: (folder / "ckpt-100/DONE").exists(), what="a checkpoint")
    restart(site, job)
    site.cluster.wait(job, "COMPLETED")

    def looks() -> list[Checkpoints]:
        reports = [NodeReport.model_validate_json(path.read_bytes()) for path in site.reports("n1")]
        mine = sorted((one for one in reports if one.job_id == job), key=lambda one: one.time)
        return [one.checkpoints for one in mine if one.checkpoints]

    site.cluster.wait_for(lambda: len(looks()) == 2, what="two reports")
    assert [look.newest.step for look in looks() if look.newest] == [100, 200]
    assert not [path for path in site.reports("n2") if path.name.startswith(f"{job}.")][1:], "not of its good end"


def test_a_first_attempt_starts_from_what_its_folder_holds(site: NodeSite, folder: Path) -> None:
    newest = save(folder, "ckpt-40")
    (folder / "ckpt-50").mkdir()
    job = submit(site, "srun -n1 sh -c \"env | grep ^SLURM_RECOVERY_ | sed 's/^/TASK /'\"", folder=folder)
    site.cluster.wait(job, "COMPLETED")
    assert told(site, job) == {"JOB_ID": str(job), "CHECKPOINT": str(newest), "STEP": "40"}
    assert told(site, job, "TASK ") == told(site, job)
    site.cluster.wait_for(lambda: not site.told("n1", job).exists(), what="the Epilog to take it away")


def test_jobs_without_a_batch_script(site: NodeSite, folder: Path) -> None:
    """One task looks for itself; of several none does, for they might see different ones."""
    newest = save(folder, "ckpt-40")
    show = ("sh", "-c", "env | grep ^SLURM_RECOVERY_C || true")
    srun = ("srun", "--partition=manual", f"--comment=recovery=act,checkpoint={folder}")
    assert site.cluster.run(*srun, "-n1", *show, user=USER).stdout == f"SLURM_RECOVERY_CHECKPOINT={newest}\n"
    assert site.cluster.run(*srun, "-n2", *show, user=USER).stdout == ""


def test_what_was_written_for_this_attempt_is_told_and_for_another_is_not(site: NodeSite, folder: Path) -> None:
    save(folder, "ckpt-10")
    save(folder, "ckpt-20")
    job = submit(site, WAITS_ONCE, folder=folder)
    older = Resume(job, 2, "node_fail", ("n7", "n9"), str(folder), f"{folder}/ckpt-10", 10, (f"{folder}/ckpt-20",))
    write_resume(site.evidence, older)
    restart(site, job)
    site.cluster.wait(job, "COMPLETED")
    assert told(site, job) == {
        "JOB_ID": str(job), "ATTEMPT": "2", "REASON": "node_fail", "EXCLUDED": "n7,n9",
        "CHECKPOINT": f"{folder}/ckpt-10", "STEP": "10",
    }  # fmt: skip
    job = submit(site, WAITS_ONCE, folder=folder)
    write_resume(site.evidence, older._replace(job_id=job, attempt=5))
    restart(site, job)
    site.cluster.wait(job, "COMPLETED")
    assert told(site, job) == {
        "JOB_ID": str(job), "ATTEMPT": "2", "CHECKPOINT": f"{folder}/ckpt-10", "STEP": "10"
    }, "the refused one stays refused"  # fmt: skip


def test_a_job_submitted_by_a_restarted_one_is_a_first_attempt(site: NodeSite) -> None:
    child = "env | grep ^SLURM_RECOVERY_ | sed s/^/CHILD/; echo CHILD RUNS"
    script = f"{WAITS_ONCE} sbatch --partition=manual --output=child.log --wrap=\"{child}\""
    job = submit(site, script)
    restart(site, job)
    site.cluster.wait(job, "COMPLETED")
    assert told(site, job)["ATTEMPT"] == "2"
    path = site.cluster.work / "child.log"
    site.cluster.wait_for(lambda: path.exists() and "RUNS" in path.read_text(), what="the child")
    assert path.read_text() == "CHILD RUNS\n"


@pytest.mark.parametrize("how", ["checkpoint", "folder", "file"])
def test_no_name_forges_a_variable(site: NodeSite, folder: Path, how: str) -> None:
    evil = "x\nexport FORGED=1\nprint FORGED\nexport SLURM_RECOVERY_REASON=forged\n"
    where = folder / evil
    where.mkdir()
    save(where if how == "folder" else folder, f"ckpt-7{evil if how == 'checkpoint' else ''}".replace("/", ""))
    job = submit(site, WAITS_ONCE + "env | grep FORGED || true")
    resume = Resume(job, 2, "node_fail", (), str(where if how == "folder" else folder), "", None)
    if how == "checkpoint":
        resume = resume._replace(checkpoint=f"{folder}/ckpt-7{evil}", step=7)
    write_resume(site.evidence, resume)
    if how == "file":
        path = site.evidence / "resume" / str(job)
        path.write_text(path.read_text().replace("node_fail", "x\\nexport FORGED=1"))
    restart(site, job)
    site.cluster.wait(job, "COMPLETED")
    assert "FORGED" not in log(site, job)
    assert told(site, job)["ATTEMPT"] == "2"
    assert told(site, job).get("REASON") == (None if how == "file" else "node_fail")


# --- trouble


@contextmanager
def full(path: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "tmpfs", str(path)], check=True)
    try:
        try:
            with (path / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
        except OSError:
            pass
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def troubles(site: NodeSite, folder: Path, trouble: str) -> AbstractContextManager[object]:
    if trouble == "none":
        return nullcontext()
    if trouble == "run dir":
        site.run_dirs.mkdir(exist_ok=True)
        return full(site.run_dirs)
    return hanging(folder) if trouble == "hung" else full(folder)


@pytest.mark.parametrize("trouble", ["none", "hung", "full", "run dir"])
def test_a_file_system_in_trouble_delays_a_start_by_no_more_than_the_deadline(
    site: NodeSite, folder: Path, trouble: str
) -> None:
    with troubles(site, folder, trouble):
        began = time.time()
        job = submit(site, "true", folder=folder)
        site.cluster.wait_for(lambda: "STARTED" in log(site, job), what="its script to run")
        taken = float(log(site, job).partition("STARTED=")[2].split()[0]) - began
        print(f"{trouble}: {taken:.2f} s from submission to the script's first line")
        site.cluster.wait(job, "COMPLETED")
        states = [site.cluster.node(node)["StateComplete"] for node in site.cluster.nodes]
    assert taken < (TIMEOUT if trouble == "hung" else 0) + SLACK
    assert not any("drain" in state for state in states)
    assert "CHECKPOINT" not in told(site, job)
    assert ("could not be looked at" in log(site, job)) is (trouble == "hung")
