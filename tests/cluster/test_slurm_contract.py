"""The contract of the Slurm port: one set of cases on real daemons, run through every adapter that this machine has.

The pyslurm adapter is run where a pyslurm of this Slurm's release is installed; the commands adapter everywhere.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_recovery.config.settings import Backend, Settings
from slurm_recovery.decide.successor import dependents, successors
from slurm_recovery.evidence.paths import expand_pattern
from slurm_recovery.records import Attempt, Size
from slurm_recovery.slurm.commands import Commands, node_state
from slurm_recovery.slurm.errors import (
    AlreadyPending,
    Refused,
    RequeueDisabled,
    SlurmError,
    SlurmUnavailable,
    UnknownJob,
    UnknownNode,
)
from slurm_recovery.slurm.port import AWAY, Job, Node, Slurm, drain_reason
from slurm_recovery.slurm.select import open_slurm, pyslurm_unfit
from tests.cluster.private_cluster import PrivateCluster, check_machine

UNKNOWN = 987654
TIMEOUT = 3.0
SLEEP = "sleep 300"
# The node's epilog waits as long as the job's script has asked for by a file.
EPILOG = "#!/bin/bash\nfor i in {{1..150}}; do [ -e {work}/epilog.$SLURM_JOB_ID ] || exit 0; sleep 0.1; done\n"
KEEP_COMPLETING = "touch epilog.$SLURM_JOB_ID"

FORGED = "x ExcNodeList=n4 JobState=RUNNING <0123456789abcdef>"
NASTY = "a\tb\n   ExpeditedRequeue=Yes\n'\"`touch pwned` $(touch pwned) ; | & (null) \\ %j"


def adapters() -> list[str]:
    """`pyslurm` too where one is installed that matches. Some releases say theirs only where there is a slurm.conf."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write("ClusterName=none\nSlurmctldHost=nowhere\n")
        conf.flush()
        unfit = pyslurm_unfit(Settings(slurm_conf=Path(conf.name)))
    return ["commands", *([] if unfit else ["pyslurm"])]


ADAPTERS = adapters()


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateCluster]:
    with tempfile.TemporaryDirectory(prefix="contract") as folder:
        os.chmod(folder, 0o755)
        conf = {"Epilog": f"{folder}/epilog", "DefMemPerCPU": "10", "MinJobAge": "299", "JobRequeue": "1"}
        if check_machine() >= (25, 11):
            conf["SlurmctldParameters"] = "enable_expedited_requeue"
        Path(folder, "epilog").write_text("#!/bin/sh\n")
        Path(folder, "epilog").chmod(0o755)
        partitions = ["PartitionName=main Nodes=n[1-4]", "PartitionName=few Nodes=n[1-2,5-6] Hidden=YES"]
        features = {"n1": "Feature=a,b", "n2": "Feature=a"}
        with PrivateCluster(nodes=6, conf=conf, partitions=partitions, node_conf=features) as cluster:
            Path(folder, "epilog").write_text(EPILOG.format(work=cluster.work))
            yield cluster


@pytest.fixture(scope="module")
def slurms(cluster: PrivateCluster) -> Iterator[Mapping[str, Slurm]]:
    """The adapters by name, made as the program makes them."""
    before = os.environ.get("SLURM_CONF")
    try:
        yield {name: open_slurm(settings(cluster, name)) for name in ADAPTERS}
    finally:
        os.environ.pop("SLURM_CONF", None)
        if before is not None:
            os.environ["SLURM_CONF"] = before


def settings(cluster: PrivateCluster, backend: str) -> Settings:
    return Settings(slurm_backend=Backend(backend), slurm_conf=cluster.slurm_conf, command_timeout=TIMEOUT)


@pytest.fixture(params=ADAPTERS)
def slurm(request: pytest.FixtureRequest, slurms: Mapping[str, Slurm]) -> Slurm:
    return slurms[request.param]


@dataclass(frozen=True)
class Jobs:
    """Jobs that are looked at and not touched."""

    ids: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.ids[name]


@pytest.fixture(scope="module")
def jobs(cluster: PrivateCluster) -> Jobs:
    def held(*options: str) -> int:
        return cluster.sbatch("--hold", "--output=/dev/null", *options, script="true")

    nasty_folder = cluster.work / "w ExcNodeList=n4;$(touch pwned)\n'"
    nasty_folder.mkdir()
    deep = "d" * 190
    started = cluster.work / "started"
    ids = {
        "running": cluster.sbatch(
            "-N2", "--ntasks-per-node=2", "-w", "n1", "-x", "n4", "-C", "a", "--requeue",
            "-J", "run", "--comment=why not", "-o", "out-%x-%j-%%", "-e", "err-%A", script=SLEEP,
        ),
        "default log": cluster.sbatch("-J", "plain", script=SLEEP),
        "pending": held("-N1-2", "-x", "n[3-4]", "-C", "a&b", "--no-requeue", "-p", "few"),
        "exit 3": cluster.sbatch(script="exit 3"),
        "exit 139": cluster.sbatch(script="exit 139"),
        "exit 255": cluster.sbatch(script="exit 255"),
        "signal 9": cluster.sbatch(script="kill -9 $$"),
        "completed": cluster.sbatch("-w", "n2", script="srun sh -c 'exit 130'; exit 0"),
        "cancelled": cluster.sbatch("-o", "/dev/null", script=f": >{started}; exec {SLEEP}"),
        "array": cluster.sbatch("--array=0-3%2", script=SLEEP),
        "het": het(cluster, SLEEP, "-xn4", ":", "-xn3", "-N2"),
        "forged": held("-J", FORGED, "--comment", FORGED, "-o", f"/tmp/{FORGED}"),
        "nasty": held("-J", NASTY, "--comment", NASTY, "-D", str(nasty_folder)),
        "blanks": held("-J", " x ", "--comment", "  y "),
        "long": held("-J", "n" * 1000, "--comment", "c" * 1000, "-o", f"/tmp/{deep}/{deep}/{deep}/{deep}/{deep}"),
        "bytes": held("-J", "caf\udce9", "--comment", "na\udcefve", "-o", "/tmp/\udcff"),
        "none": held("-J", "None", "--comment", "N/A"),
    }  # fmt: skip
    cluster.wait_for(started.exists)  # RUNNING alone is too early: a script that has not begun is ended by SIGKILL
    cluster.run("scancel", str(ids["cancelled"]))
    cluster.run("salloc", "-n1", "--no-shell", "-J", "talk")
    ids["interactive"] = next(int(row["JobID"]) for row in cluster.records() if row["Name"] == "talk")
    for name in ("exit 3", "exit 139", "exit 255", "signal 9", "completed", "cancelled"):
        cluster.wait(ids[name])
    for task in (ids["running"], f"{ids['array']}_0", f"{ids['array']}_1", ids["het"], ids["default log"]):
        cluster.wait(task, "RUNNING")
    ids |= {f"task {n}": int(cluster.show(f"{ids['array']}_{n}")["JobID"]) for n in (0, 1)}
    return Jobs(ids)


def het(cluster: PrivateCluster, script: str, *options: str) -> int:
    """Submits a het job; gives its leader's id."""
    return int(cluster.run("sbatch", "--parsable", "-o/dev/null", *options, stdin=f"#!/bin/sh\n{script}\n").stdout)


def one(slurm: Slurm, number: int) -> Job:
    return slurm.jobs([number])[number]


def log_of(job: Job, pattern: str | None = None) -> str:
    attempt = Attempt(
        cluster="private", job_id=job.job_id, array_job_id=job.array_job_id, array_task_id=job.array_task_id,
        user=job.user, name=job.name, work_dir=job.work_dir, nodes=job.nodes,
    )  # fmt: skip
    return expand_pattern(job.stdout if pattern is None else pattern, attempt)


def fields(job: Job, *names: str) -> tuple[object, ...]:
    return tuple(getattr(job, name) for name in names)


# -- questions ------------------------------------------------------------------------------------------------------


def test_a_running_job(slurm: Slurm, cluster: PrivateCluster, jobs: Jobs) -> None:
    job = one(slurm, jobs["running"])
    assert fields(job, "state", "reason", "pending", "completing", "ended", "held") == (
        "RUNNING", "", False, False, False, False,
    )  # fmt: skip
    assert fields(job, "array_job_id", "array_task_id", "het_job_id", "expedited") == (None, None, None, False)
    assert set(job.nodes) > {"n1"}
    assert len(job.nodes) == job.num_nodes == 2
    assert (job.num_tasks, job.ntasks_per_node) == (4, 2)
    assert fields(job, "required_nodes", "excluded_nodes", "features") == (("n1",), ("n4",), "a")
    assert fields(job, "requeue", "batch", "restart_count") == (True, True, 0)
    assert fields(job, "user_id", "user", "partition", "name", "comment") == (0, "root", "main", "run", "why not")
    assert job.priority > 0
    shown = cluster.show(job.job_id)
    assert (job.submit_time, job.start_time) == (int(shown["SubmitTime"]), int(shown["StartTime"]))
    assert (job.end_time, job.exit_code, job.signal, job.derived_exit_code) == (None, 0, 0, "0:0")
    assert (job.work_dir, job.admin_comment) == (str(cluster.work), "")
    assert log_of(job) == f"{cluster.work}/out-run-{job.job_id}-%"
    assert log_of(job, job.stderr) == f"{cluster.work}/err-{job.job_id}"
    assert Path(log_of(job)).exists()


def test_a_pending_job_has_no_times_but_its_submission(slurm: Slurm, jobs: Jobs) -> None:
    job = one(slurm, jobs["pending"])
    assert fields(job, "state", "reason", "held", "pending") == ("PENDING", "JobHeldUser", True, True)
    assert fields(job, "nodes", "num_nodes", "priority", "requeue") == ((), 1, 0, False)
    assert fields(job, "excluded_nodes", "features", "partition") == (("n3", "n4"), "a&b", "few")
    assert job.submit_time is not None
    assert fields(job, "start_time", "end_time", "exit_code", "derived_exit_code") == (None, None, 0, "0:0")
    assert (job.stdout, job.stderr) == ("/dev/null", "")


@pytest.mark.parametrize(
    ("name", "state", "code", "signal"),
    [
        ("exit 3", "FAILED", 3, 0),
        ("exit 139", "FAILED", 139, 0),
        ("exit 255", "FAILED", 255, 0),
        ("signal 9", "FAILED", 0, 9),
        ("completed", "COMPLETED", 0, 0),
        ("cancelled", "CANCELLED", 0, 15),
    ],
)
def test_how_a_job_ended(slurm: Slurm, jobs: Jobs, name: str, state: str, code: int, signal: int) -> None:
    job = one(slurm, jobs[name])
    assert fields(job, "state", "exit_code", "signal") == (state, code, signal)
    assert job.ended
    assert job.start_time is not None
    assert job.end_time is not None
    assert 0 <= job.end_time - job.start_time < 60
    assert len(job.nodes) == 1


def test_a_step_that_failed_in_a_job_that_did_not(slurm: Slurm, jobs: Jobs) -> None:
    job = one(slurm, jobs["completed"])
    assert job.derived_exit_code == "130:0"
    assert job.nodes == ("n2",)


def test_a_completing_job_keeps_its_nodes_and_its_exit_code(slurm: Slurm, cluster: PrivateCluster) -> None:
    number = cluster.sbatch("-N2", script=f"{KEEP_COMPLETING}; exit 200")
    cluster.wait(number, "COMPLETING")
    job = one(slurm, number)
    assert fields(job, "state", "completing", "ended", "pending") == ("COMPLETING", True, False, False)
    assert fields(job, "exit_code", "signal") == (200, 0)
    assert len(job.nodes) == 2
    assert job.end_time is not None
    let_go(cluster, number)


def let_go(cluster: PrivateCluster, number: int) -> None:
    (cluster.work / f"epilog.{number}").unlink()


def test_array_tasks(slurm: Slurm, cluster: PrivateCluster, jobs: Jobs) -> None:
    array = jobs["array"]
    found = slurm.jobs([array, jobs["task 0"], jobs["task 1"]])
    assert set(found) == {array, jobs["task 0"], jobs["task 1"]}
    first, second, waiting = found[jobs["task 0"]], found[jobs["task 1"]], found[array]
    assert fields(first, "array_job_id", "array_task_id", "label") == (array, 0, f"{array}_0")
    assert fields(second, "array_job_id", "array_task_id", "label") == (array, 1, f"{array}_1")
    assert fields(waiting, "array_job_id", "array_task_id", "label") == (array, 2, f"{array}_2")
    assert fields(waiting, "state", "job_id") == ("PENDING", array)
    assert log_of(first) == f"{cluster.work}/slurm-{array}_0.out"
    assert Path(log_of(second)).exists()


def test_a_het_job_comes_with_its_components(slurm: Slurm, jobs: Jobs) -> None:
    leader = jobs["het"]
    found = slurm.jobs([leader])
    assert set(found) == {leader, leader + 1}
    assert {job.het_job_id for job in found.values()} == {leader}
    assert [found[number].num_nodes for number in (leader, leader + 1)] == [1, 2]
    assert [found[number].excluded_nodes for number in (leader, leader + 1)] == [("n4",), ("n3",)]
    assert [found[number].label for number in (leader, leader + 1)] == [str(leader), str(leader + 1)]
    assert set(slurm.jobs([leader + 1])) == {leader + 1}


def test_an_interactive_job(slurm: Slurm, jobs: Jobs) -> None:
    job = one(slurm, jobs["interactive"])
    assert fields(job, "batch", "state", "stdout") == (False, "RUNNING", "")


def test_what_a_user_writes_forges_no_field(slurm: Slurm, cluster: PrivateCluster, jobs: Jobs) -> None:
    for name, text in (("forged", FORGED), ("nasty", NASTY)):
        job = one(slurm, jobs[name])
        assert fields(job, "name", "comment", "excluded_nodes", "state") == (text, text, (), "PENDING")
        assert job.expedited is False
    assert one(slurm, jobs["forged"]).stdout == f"/tmp/{FORGED}"
    assert one(slurm, jobs["nasty"]).work_dir == str(cluster.work / "w ExcNodeList=n4;$(touch pwned)\n'")
    assert list(cluster.work.rglob("pwned")) == []


def test_texts_come_whole(slurm: Slurm, jobs: Jobs) -> None:
    blanks, long, not_utf8, none = (one(slurm, jobs[name]) for name in ("blanks", "long", "bytes", "none"))
    assert (blanks.name, blanks.comment) == (" x ", "  y ")
    assert (long.name, long.comment) == ("n" * 1000, "c" * 1000)
    assert len(long.stdout) == len("/tmp") + 5 * 191
    assert (not_utf8.name, not_utf8.comment, not_utf8.stdout) == ("caf\ufffd", "na\ufffdve", "/tmp/\ufffd")
    assert (none.name, none.comment) == ("None", "N/A")


def test_unknown_jobs_are_left_out_and_many_may_be_asked_for(slurm: Slurm, jobs: Jobs) -> None:
    assert slurm.jobs([]) == {}
    assert slurm.jobs([UNKNOWN]) == {}
    assert set(slurm.jobs([UNKNOWN, jobs["exit 3"]])) == {jobs["exit 3"]}
    many = slurm.jobs([jobs["het"], jobs["running"], *range(UNKNOWN, UNKNOWN + 30000)])
    assert set(many) == {jobs["het"], jobs["het"] + 1, jobs["running"]}


def test_the_adapters_tell_the_same(slurms: Mapping[str, Slurm], jobs: Jobs) -> None:
    told = [slurm.jobs(jobs.ids.values()) for slurm in slurms.values()]
    assert {frozenset(found) for found in told} == {frozenset({*jobs.ids.values(), jobs["het"] + 1})}
    for number, job in told[0].items():
        assert [_comparable(found[number]) for found in told] == [_comparable(job)] * len(told)
    nodes = [{name: _plain(node) for name, node in slurm.nodes().items()} for slurm in slurms.values()]
    assert nodes == [nodes[0]] * len(nodes)


def _comparable(job: Job) -> Job:
    return job.model_copy(update={"stdout": log_of(job), "stderr": log_of(job, job.stderr)})


def _plain(node: Node) -> Node:
    """Without what changes from one moment to the next, or what pyslurm does not tell apart: MIXED, PLANNED."""
    return node.model_copy(update={"state": node.state & AWAY})


def test_expedited_jobs_are_known(slurm: Slurm, cluster: PrivateCluster) -> None:
    offered = "=expedite" in cluster.run("sbatch", "--help").stdout
    number = cluster.sbatch("--hold", "--requeue=expedite" if offered else "--requeue", script="true")
    assert one(slurm, number).expedited is offered


def test_the_configuration(slurm: Slurm, cluster: PrivateCluster) -> None:
    config = slurm.config()
    assert config["clustername"] == "private"
    assert config["slurmuser"] == "root(0)"
    assert config["minjobage"] == "299 sec"
    assert config["jobrequeue"] == "1"
    assert tuple(map(int, config["slurm_version"].split("."))) == cluster.version
    assert config["slurm_conf"] == str(cluster.slurm_conf)
    assert config["taskprolog"] == ""


REASON = "a \"b\" State=IDLE, 'c' none"


def test_nodes(slurm: Slurm, cluster: PrivateCluster) -> None:
    cluster.run("scontrol", "update", "NodeName=n6", "State=DRAIN", f"Reason={REASON}")
    nodes = slurm.nodes()
    assert sorted(nodes) == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert nodes["n1"].partitions == {"main", "few"}
    assert nodes["n4"].partitions == {"main"}
    assert [nodes[name].features for name in ("n1", "n2", "n3")] == [{"a", "b"}, {"a"}, frozenset()]
    assert nodes["n6"].state == {"IDLE", "DRAIN"}
    assert (nodes["n6"].reason, nodes["n6"].away, nodes["n6"].unusable) == (REASON, True, False)
    assert (nodes["n6"].drained, nodes["n6"].idle, nodes["n6"].alloc) == (True, True, False)
    assert nodes["n6"].reason_user == "root"
    assert abs((nodes["n6"].reason_time or 0) - time.time()) < 60
    assert (nodes["n1"].reason_user, nodes["n1"].reason_time, nodes["n1"].drained) == ("", None, False)
    assert (nodes["n1"].reason, nodes["n1"].away) == ("", False)
    assert nodes["n1"].state & {"IDLE", "MIXED", "ALLOCATED"}


OURS = "slurm_recovery: gpu_fell_off_bus incident 42"


@pytest.fixture
def spare(cluster: PrivateCluster) -> Iterator[str]:
    """A node that the test may drain; it is as before when the test ends."""
    yield "n4"
    cluster.run("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test ends")
    cluster.run("scontrol", "update", "NodeName=n4", "State=RESUME")
    cluster.wait_for(lambda: not {"NOT_RESPONDING", "DOWN"} & node_state(cluster.node("n4")["StateComplete"]))


def left_behind(cluster: PrivateCluster) -> str:
    """What is left of our reason after a resume: 24.11 does not clear it, after no kind of resume."""
    return OURS if cluster.version[:2] == (24, 11) else ""


def test_drain_and_resume(slurm: Slurm, cluster: PrivateCluster, spare: str) -> None:
    assert not slurm.nodes()[spare].drained
    slurm.drain(spare, OURS)
    node = slurm.nodes()[spare]
    assert (node.drained, node.reason, node.reason_user) == (True, OURS, "root")
    assert abs((node.reason_time or 0) - time.time()) < 60
    slurm.drain(spare, OURS)
    assert slurm.nodes()[spare].reason == OURS, "a second time is nothing"
    slurm.resume(spare)
    node = slurm.nodes()[spare]
    assert (node.drained, node.reason) == (False, left_behind(cluster))
    assert (node.reason_time is None) == (node.reason_user == "") == (node.reason == "")
    slurm.resume(spare)
    cluster.wait_for(lambda: not slurm.nodes()[spare].unusable, what="the node to answer")


def test_drain_lets_a_job_go_on_and_resume_while_it_runs(slurm: Slurm, cluster: PrivateCluster, spare: str) -> None:
    number = cluster.sbatch("-w", spare, script=SLEEP)
    cluster.wait(number, "RUNNING")
    slurm.drain(spare, OURS)
    node = slurm.nodes()[spare]
    assert (node.drained, node.alloc, node.idle) == (True, True, False)
    slurm.resume(spare)
    node = slurm.nodes()[spare]
    assert (node.drained, node.alloc, node.reason) == (False, True, left_behind(cluster))
    assert one(slurm, number).state == "RUNNING"
    slurm.cancel(one(slurm, number))
    cluster.wait(number, "CANCELLED")


def test_drain_keeps_no_former_reason(slurm: Slurm, cluster: PrivateCluster, spare: str) -> None:
    """So whoever drains looks first."""
    cluster.run("scontrol", "update", f"NodeName={spare}", "State=DRAIN", "Reason=bob looks")
    assert slurm.nodes()[spare].reason == "bob looks"
    slurm.drain(spare, OURS)
    assert slurm.nodes()[spare].reason == OURS


def test_resume_leaves_a_node_down_that_is_down(slurm: Slurm, cluster: PrivateCluster, dead_node: str) -> None:
    """One whose slurmd lives would come back by itself: ReturnToService=2."""
    cluster.run("scontrol", "update", f"NodeName={dead_node}", "State=DOWN", "Reason=no power")
    slurm.drain(dead_node, OURS)
    assert {"DOWN", "DRAIN"} <= slurm.nodes()[dead_node].state
    slurm.resume(dead_node)
    node = slurm.nodes()[dead_node]
    assert (node.down, node.drained) == (True, False)


REASONS = (
    "a \"b\" State=IDLE, 'c'",
    '"quoted"',
    "$(touch pwned) `x`; | & <>\\ %n",
    "\u00fcn\u00ef\x1b[31m\x00\r\n\tx",
    "y" * 100_000,
)


@pytest.mark.parametrize("reason", REASONS, ids=range(len(REASONS)))
def test_a_reason_is_written_as_drain_reason_has_it(
    slurm: Slurm, cluster: PrivateCluster, spare: str, reason: str
) -> None:
    slurm.drain(spare, reason)
    assert slurm.nodes()[spare].reason == drain_reason(reason)
    assert list(cluster.work.rglob("pwned")) == []


def test_drain_and_resume_of_what_is_no_node_change_nothing(slurm: Slurm, cluster: PrivateCluster, spare: str) -> None:
    before = {name: node.drained for name, node in slurm.nodes().items()}
    for name in ("n77", f"{spare},n77", f"{spare},n3", "n[3-4]", "ALL", "all", "", f"{spare} State=DOWN", "-h"):
        with pytest.raises(UnknownNode):
            slurm.drain(name, OURS)
        with pytest.raises(UnknownNode):
            slurm.resume(name)
    with pytest.raises(Refused, match="reason"):
        slurm.drain(spare, " \n")
    assert {name: node.drained for name, node in slurm.nodes().items()} == before


@pytest.fixture(scope="module")
def dead_node(cluster: PrivateCluster) -> str:
    cluster.kill_slurmd("n5")
    return "n5"


@pytest.mark.parametrize(("given", "shown"), [("NoResp", "NOT_RESPONDING"), ("DOWN", "DOWN")])
def test_a_node_that_is_away(slurm: Slurm, cluster: PrivateCluster, dead_node: str, given: str, shown: str) -> None:
    cluster.run("scontrol", "update", f"NodeName={dead_node}", f"State={given}", "Reason=gone")
    node = slurm.nodes()[dead_node]
    assert shown in node.state
    assert node.unusable


# -- jobs that wait for others --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(cluster: PrivateCluster, jobs: Jobs) -> Mapping[str, int]:
    """Jobs that wait for others, by what they wait for."""
    plain, array, het = jobs["running"], jobs["array"], jobs["het"]
    other = jobs["default log"]
    kinds = {
        f"{kind} {name}": f"{kind}:{number}"
        for kind in ("afterok", "afterany", "afternotok")
        for name, number in (("plain", plain), ("other", other), ("array", array), ("het", het))
    } | {
        "afterok task 1": f"afterok:{array}_1",
        "afterany task 0, other": f"afterany:{array}_0:{other}",
        "list": f"afterok:{other},afterany:{plain}",
        "any of": f"afterok:{other}?afterany:{plain}",
        "with minutes": f"after:{plain}+500",
    }
    numbers = {name: cluster.sbatch(f"--dependency={text}", script="true") for name, text in kinds.items()}
    numbers["aftercorr"] = cluster.sbatch("--array=0-3", f"--dependency=aftercorr:{array}", script="true")
    numbers["named so"] = cluster.sbatch("--hold", "-J", f"afterok:{plain}(unfulfilled)", script="true")
    return numbers


ALL_KINDS = ("afterok", "afterany", "afternotok")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running", [f"{kind} plain" for kind in ALL_KINDS] + ["list", "any of", "with minutes"]),
        ("default log", [f"{kind} other" for kind in ALL_KINDS] + ["list", "any of", "afterany task 0, other"]),
        ("task 0", [f"{kind} array" for kind in ALL_KINDS] + ["aftercorr", "afterany task 0, other"]),
        ("task 1", [f"{kind} array" for kind in ALL_KINDS] + ["aftercorr", "afterok task 1"]),
        ("het", [f"{kind} het" for kind in ALL_KINDS]),
        ("exit 3", []),
    ],
)
def test_dependents(
    slurm: Slurm, cluster: PrivateCluster, jobs: Jobs, waiting: Mapping[str, int], name: str, expected: list[str]
) -> None:
    names = {number: name for name, number in waiting.items()}
    found = dependents(one(slurm, jobs[name]), slurm.queue())
    # slurmctld may have split a waiting array into its tasks, each with an id of its own.
    arrays = {int(row["JobID"]): int(row["ArrayJobID"]) for row in cluster.records()}
    assert {names.get(arrays[number], str(number)) for number in found} == set(expected)


HOSTILE = "x|singleton(unfulfilled)\n1 ExcNodeList=n4"


def test_successors_are_their_users_own_and_bear_the_jobs_name(slurm: Slurm, cluster: PrivateCluster) -> None:
    def queue(dependency: str, name: str = HOSTILE, *options: str, user: str | None = None) -> int:
        options = ("--output=/dev/null", f"--job-name={name}", f"--dependency={dependency}", *options)
        return cluster.sbatch(*options, script="true", user=user)

    job = cluster.sbatch("--hold", f"--job-name={HOSTILE}", "--array=0-1", script="true")
    other = cluster.sbatch("--hold", script="true")
    after = [queue(f"{kind}:{job}") for kind in ("afterany", "afternotok")]
    both = [queue(f"afternotok:{job}?afterok:{job}"), queue(f"afterany:{job},singleton"), queue("singleton")]
    dead = [queue(f"afterok:{job}"), queue(f"afterok:{job},singleton")]
    dead += [queue(f"after:{job}"), queue(f"afterany:{other}")]
    others = [queue(f"afterany:{job}", "y"), queue("singleton", "y"), queue(f"afterany:{job}", user="nobody")]
    array = queue("singleton", HOSTILE, "--array=0-3")
    found = successors(one(slurm, job), slurm.queue(), seen=0.0)
    cluster.run("scancel", *map(str, [job, other, *after, *both, *dead, *others, array]))
    assert found == (*after, *both, array)


def test_exclusions_of_a_job_that_waits(slurm: Slurm, cluster: PrivateCluster) -> None:
    ahead = cluster.sbatch("--hold", script="true")
    for dependency in ("singleton", f"afterany:{ahead}", f"afternotok:{ahead}"):
        number = cluster.sbatch(f"--dependency={dependency}", "-x", "n1", script="true")
        slurm.update(one(slurm, number), excluded=["n1", "n2"], admin_comment="kept off n2")
        assert fields(one(slurm, number), "excluded_nodes", "admin_comment") == (("n1", "n2"), "kept off n2")
        queued = {one.job_id: one for one in slurm.queue()}
        assert (queued[number].state, queued[number].eligible_time) == ("PENDING", None)
        assert queued[ahead].dependency == ""
        cluster.run("scancel", str(number))
    cluster.run("scancel", str(ahead))


@pytest.mark.parametrize(
    ("options", "wanted", "fewer"),
    [
        (["-N3", "--ntasks-per-node=2"], Size(nodes=3, tasks=6, cpus=6), Size(nodes=2, tasks=4, cpus=4)),
        (["-N3", "-n6", "-c2"], Size(nodes=3, tasks=6, cpus=12), Size(nodes=2, tasks=4, cpus=8)),
        (["-N2-3"], Size(nodes=2, tasks=2, cpus=2), Size(nodes=1, tasks=1, cpus=1)),
    ],
)
def test_fewer_nodes_and_as_many_again(
    slurm: Slurm, cluster: PrivateCluster, options: list[str], wanted: Size, fewer: Size
) -> None:
    number = cluster.sbatch("--requeue", *options, "-o/dev/null", script=SLEEP)
    cluster.wait(number, "RUNNING")
    running = one(slurm, number)
    with pytest.raises(SlurmError):
        slurm.update(running, size=fewer)
    assert one(slurm, number).nodes == running.nodes
    slurm.requeue_hold(running)
    cluster.wait(number, "PENDING")
    asked = slurm.request(one(slurm, number))
    assert asked == (wanted if "-N2-3" not in options else wanted.model_copy(update={"cpus": 1}))
    for size in (fewer, wanted, fewer):
        slurm.update(one(slurm, number), size=size, admin_comment="fewer")
        assert slurm.request(one(slurm, number)) == size
    time.sleep(1.2)  # slurmd refuses the next credential within the second of the last: recover.CREDENTIAL_SECONDS
    slurm.update(one(slurm, number), start_in=0)
    slurm.release(one(slurm, number))
    cluster.wait(number, "RUNNING")
    assert len(one(slurm, number).nodes) == fewer.nodes
    cluster.run("scancel", str(number))


def test_what_fewer_nodes_cannot_be_asked_of(slurm: Slurm, jobs: Jobs) -> None:
    assert slurm.request(Job(job_id=UNKNOWN)) is None
    assert slurm.request(one(slurm, jobs["het"])) is None
    assert slurm.request(one(slurm, jobs["nasty"])) == Size(nodes=1, tasks=1, cpus=1)


# -- deeds ----------------------------------------------------------------------------------------------------------


def failed(cluster: PrivateCluster, *options: str) -> int:
    number = cluster.sbatch("-o", "/dev/null", *options, script="exit 3")
    cluster.wait(number, "FAILED")
    return number


def requeued(slurm: Slurm, cluster: PrivateCluster, *options: str) -> Job:
    number = failed(cluster, *options)
    slurm.requeue_hold(one(slurm, number))
    return one(slurm, number)


def test_requeue_hold_of_a_failed_job_then_an_immediate_start(slurm: Slurm, cluster: PrivateCluster) -> None:
    job = requeued(slurm, cluster)
    assert fields(job, "state", "held", "pending", "restart_count") == ("PENDING", True, True, 1)
    assert fields(job, "start_time", "end_time", "exit_code", "nodes") == (None, None, 0, ())
    slurm.update(job, start_in=0)
    assert one(slurm, job.job_id).held
    slurm.release(job)
    assert not one(slurm, job.job_id).held
    cluster.wait(job.job_id, timeout=10)
    assert one(slurm, job.job_id).restart_count == 1


def test_requeue_hold_of_a_completing_job(slurm: Slurm, cluster: PrivateCluster) -> None:
    number = cluster.sbatch(script=f"{KEEP_COMPLETING}; exit 3")
    cluster.wait(number, "COMPLETING")
    slurm.requeue_hold(one(slurm, number))
    let_go(cluster, number)
    cluster.wait_for(lambda: one(slurm, number).pending, timeout=10, what="PENDING")
    assert one(slurm, number).held
    slurm.cancel(one(slurm, number))


def test_requeue_hold_of_what_cannot_be_requeued(slurm: Slurm, cluster: PrivateCluster, jobs: Jobs) -> None:
    with pytest.raises(AlreadyPending):
        slurm.requeue_hold(one(slurm, jobs["blanks"]))
    with pytest.raises(RequeueDisabled):
        slurm.requeue_hold(one(slurm, failed(cluster, "--no-requeue")))
    with pytest.raises(RequeueDisabled):
        slurm.requeue_hold(one(slurm, jobs["interactive"]))


DEEDS: Mapping[str, Callable[[Slurm, Job], None]] = {
    "requeue_hold": lambda slurm, job: slurm.requeue_hold(job),
    "special_exit": lambda slurm, job: slurm.requeue_hold(job, special_exit=True),
    "update": lambda slurm, job: slurm.update(job, excluded=["n1"]),
    "clear": lambda slurm, job: slurm.update(job, excluded=[]),
    "release": lambda slurm, job: slurm.release(job),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_deeds_on_a_forgotten_job(slurm: Slurm, jobs: Jobs, deed: str) -> None:
    gone = Job(job_id=UNKNOWN, state="FAILED")
    with pytest.raises(UnknownJob):
        DEEDS[deed](slurm, gone)
    with pytest.raises(UnknownJob):
        DEEDS[deed](slurm, gone.model_copy(update={"array_job_id": UNKNOWN, "array_task_id": 3}))
    slurm.cancel(gone)


def test_special_exit_and_its_release(slurm: Slurm, cluster: PrivateCluster) -> None:
    number = failed(cluster)
    slurm.requeue_hold(one(slurm, number), special_exit=True)
    job = one(slurm, number)
    assert fields(job, "state", "pending", "held") == ("SPECIAL_EXIT", True, True)
    slurm.release(job)
    assert fields(one(slurm, number), "state", "held") == ("PENDING", False)
    slurm.cancel(job)


def test_the_exclusion_list_is_set_replaced_and_cleared(slurm: Slurm, cluster: PrivateCluster) -> None:
    job = requeued(slurm, cluster, "-x", "n4", "-J", "keeps the rest", "--comment=and this", "-C", "a")
    for nodes in (("n1",), ("n2", "n3", "n4"), (), ("n3",)):
        slurm.update(job, excluded=nodes)
        after = one(slurm, job.job_id)
        assert after.excluded_nodes == nodes
        assert after.model_copy(update={"excluded_nodes": job.excluded_nodes}) == job, "and nothing else"
    slurm.cancel(job)


def test_an_unknown_node_changes_nothing(slurm: Slurm, cluster: PrivateCluster) -> None:
    job = requeued(slurm, cluster, "-x", "n4")
    start = cluster.show(job.job_id)["StartTime"]
    with pytest.raises(UnknownNode):
        slurm.update(job, excluded=["n1", "n77"], start_in=0, admin_comment="changed")
    assert one(slurm, job.job_id) == job
    assert cluster.show(job.job_id)["StartTime"] == start
    slurm.cancel(job)


def test_a_start_in_some_seconds(slurm: Slurm, cluster: PrivateCluster) -> None:
    job = requeued(slurm, cluster)
    slurm.update(job, start_in=30)
    assert abs(int(cluster.show(job.job_id)["StartTime"]) - time.time() - 30) < 3
    slurm.cancel(job)


COMMENTS = ("one", 'a "b" c=d, \'e\' ;$(touch pwned) %j "q"', '"all of it"', "x" * 1000, " ", "ünï", "")


def test_the_admin_comment_is_kept_as_it_is(slurm: Slurm, cluster: PrivateCluster) -> None:
    number = cluster.sbatch("--hold", script="true")
    for comment in COMMENTS:
        slurm.update(one(slurm, number), admin_comment=comment)
        assert one(slurm, number).admin_comment == comment
    slurm.update(one(slurm, number), excluded=["n1"], start_in=5, admin_comment="all at once")
    assert fields(one(slurm, number), "excluded_nodes", "admin_comment") == (("n1",), "all at once")
    slurm.update(one(slurm, number))


def test_one_array_task_alone_is_requeued_and_released(slurm: Slurm, cluster: PrivateCluster) -> None:
    array = cluster.sbatch("--array=0-2", "-o", "/dev/null", script="exit 3")
    for task in range(3):
        cluster.wait(f"{array}_{task}", "FAILED")
    ids = [int(cluster.show(f"{array}_{task}")["JobID"]) for task in range(3)]
    assert ids[2] == array, "the last task has the array's id"

    def states() -> list[str]:
        found = slurm.jobs(ids)
        return [found[number].state for number in ids]

    slurm.requeue_hold(one(slurm, array))
    assert states() == ["FAILED", "FAILED", "PENDING"]
    slurm.requeue_hold(one(slurm, ids[0]))
    assert states() == ["PENDING", "FAILED", "PENDING"]
    slurm.update(one(slurm, array), excluded=["n1"])
    slurm.release(one(slurm, array))
    assert [one(slurm, number).held for number in (ids[0], array)] == [True, False]
    assert [one(slurm, number).excluded_nodes for number in (ids[0], array)] == [(), ("n1",)]
    slurm.cancel(one(slurm, array))
    assert states() == ["PENDING", "FAILED", "CANCELLED"]
    slurm.cancel(one(slurm, ids[0]))
    assert states() == ["CANCELLED", "FAILED", "CANCELLED"]


def test_a_waiting_array_task_stands_for_itself_in_a_deed(slurm: Slurm, cluster: PrivateCluster) -> None:
    array = cluster.sbatch("--hold", "--array=1-3", script="true")
    slurm.cancel(one(slurm, array))
    left = {row["ArrayTaskID"] for row in cluster.records(array) if row["State"] == "PENDING"}
    assert left == {"2", "3"}


def test_a_het_job_is_handled_as_a_whole(slurm: Slurm, cluster: PrivateCluster) -> None:
    leader = het(cluster, "exit 3", "-xn3", ":", "-N2")
    ids = [leader, leader + 1]
    cluster.wait(leader, "FAILED")
    cluster.wait(f"{leader}+1")
    with pytest.raises(SlurmError):
        slurm.requeue_hold(one(slurm, leader + 1))
    slurm.requeue_hold(one(slurm, leader))
    cluster.wait_for(lambda: all(job.held for job in slurm.jobs([leader]).values()), what="both held")
    with pytest.raises(UnknownNode):
        slurm.update(one(slurm, leader), excluded=["n77"])
    slurm.update(one(slurm, leader), excluded=["n1"], start_in=0, admin_comment="both")
    found = slurm.jobs([leader])
    assert [found[number].excluded_nodes for number in ids] == [("n1",), ("n1",)]
    assert [found[number].admin_comment for number in ids] == ["both", "both"]
    slurm.release(one(slurm, leader))
    assert [job.held for job in slurm.jobs([leader]).values()] == [False, False]
    cluster.wait_for(lambda: one(slurm, leader).ended, timeout=15, what="the second run")
    assert one(slurm, leader).restart_count == 1


def test_cancel(slurm: Slurm, cluster: PrivateCluster, jobs: Jobs) -> None:
    number = cluster.sbatch("-o", "/dev/null", script=SLEEP)
    cluster.wait(number, "RUNNING")
    slurm.cancel(one(slurm, number))
    cluster.wait(number, "CANCELLED")
    slurm.cancel(one(slurm, number))
    slurm.cancel(one(slurm, jobs["exit 3"]))
    assert one(slurm, jobs["exit 3"]).state == "FAILED"


# -- no answer: last, since slurmctld is stopped ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def silent(cluster: PrivateCluster, jobs: Jobs) -> None:
    cluster.stop_slurmctld()


ASKING: Mapping[str, Callable[[Slurm, Job], object]] = {
    "config": lambda slurm, job: slurm.config(),
    "jobs": lambda slurm, job: slurm.jobs([job.job_id]),
    "queue": lambda slurm, job: slurm.queue(),
    "request": lambda slurm, job: slurm.request(job),
    "nodes": lambda slurm, job: slurm.nodes(),
    **DEEDS,
    "cancel": lambda slurm, job: slurm.cancel(job),
}


@pytest.mark.parametrize("asking", ASKING)
def test_without_slurmctld_commands_say_so_in_time(
    cluster: PrivateCluster, jobs: Jobs, silent: None, asking: str
) -> None:
    slurm = Commands(timeout=0.5, slurm_conf=cluster.slurm_conf)
    began = time.monotonic()
    with pytest.raises(SlurmUnavailable):
        ASKING[asking](slurm, Job(job_id=jobs["exit 3"]))
    assert time.monotonic() - began < 1


def test_without_slurmctld_no_job_is_called_unknown(slurm: Slurm, jobs: Jobs, silent: None) -> None:
    with pytest.raises(SlurmUnavailable):
        slurm.jobs([jobs["running"]])


def test_commands_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match="SlurmBinDir"):
        Commands(bin_dir=tmp_path).jobs([1])
