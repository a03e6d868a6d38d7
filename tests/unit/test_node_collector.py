"""The collector as the hook starts it: what a report holds, what each failing part costs, when the gate closes.

Real processes, real files, NVML's stand-in through pynvml. As root.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_recovery.node.collector import FORMAT, REFUSED
from slurm_recovery.node_report import FORMAT as FORMAT_READ
from slurm_recovery.node_report import Kind, NodeReport
from tests.nvml.build import build
from tests.nvml.state import Gpu, State

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

NOBODY = pwd.getpwnam("nobody").pw_uid
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
COLLECTOR = [sys.executable, "-I", "-m", "slurm_recovery.node.collector"]


def iso(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(when))


@dataclass
class Node:
    """A folder that plays a cluster's: EvidenceDir, a kernel log and an NVML state of each node, slurm.conf."""

    folder: Path
    library: Path
    name: str = "n1"
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evidence.mkdir(exist_ok=True)
        self.evidence.chmod(0o2750)
        self.kernel("boot")
        self.nvml(State([Gpu(), Gpu()]))

    @property
    def evidence(self) -> Path:
        return self.folder / "evidence"

    def kernel(self, *lines: str) -> None:
        with (self.folder / f"{self.name}.kernel").open("a") as log:
            log.writelines(f"{iso(time.time())} {line}\n" for line in lines)

    def nvml(self, state: State) -> None:
        if not (self.folder / "libnvidia-ml.so.1").exists():
            os.link(self.library, self.folder / "libnvidia-ml.so.1")
        state.write(self.folder, self.name)

    def gpus_configured(self, count: int) -> None:
        (self.folder / "slurm.conf").write_text(f"NodeName=n[1-9] Gres=gpu:h100:{count}\n")

    def run(self, kind: str, timeout: float = 5, code: int = 0, **job: str) -> str:
        """What it said. `job` are SLURM_* variables without that word."""
        options = {
            "--kind": kind,
            "--evidence-dir": str(self.evidence),
            "--timeout": str(timeout),
            "--kernel-log": f"{self.folder}/%n.kernel",
            "--slurm-conf": f"{self.folder}/slurm.conf",
            **self.options,
        }
        environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.folder),
            "SLURMD_NODENAME": self.name,
            **{f"SLURM_{name}": value for name, value in job.items()},
            **self.environment,
        }
        command = [*COLLECTOR, *(word for pair in options.items() for word in pair)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code, done.stderr
        assert not done.stdout
        return done.stderr

    def reports(self, pattern: str = "*.json") -> list[NodeReport]:
        paths = sorted((self.evidence / self.name).glob(pattern))
        return [NodeReport.model_validate_json(path.read_bytes()) for path in paths]

    def report(self, pattern: str = "*.json") -> NodeReport:
        (report,) = self.reports(pattern)
        return report


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Node:
    return Node(tmp_path, library)


@pytest.fixture
def work(open_folder: Path) -> Path:
    os.chown(open_folder, NOBODY, NOBODY)
    (open_folder / "slurm-7.out").write_text("the job's words\n")
    os.chown(open_folder / "slurm-7.out", NOBODY, NOBODY)
    return open_folder


def job(work: Path, **more: str) -> dict[str, str]:
    told = {
        "JOB_ID": "7",
        "JOB_UID": str(NOBODY),
        "JOB_USER": "nobody",
        "NODELIST": "n[1-2]",
        "JOB_WORK_DIR": str(work),
        "JOB_RESTART_COUNT": "2",
        "JOB_EXIT_CODE2": "3:0",
    }
    return told | more


def why(report: NodeReport, source: str) -> str:
    return "; ".join(gap.why for gap in report.gaps if gap.source == source)


def test_a_failed_jobs_report_holds_all_that_the_node_knows(node: Node, work: Path) -> None:
    node.kernel(XID)
    node.gpus_configured(2)
    began = time.time()
    assert node.run("epilog", **job(work, JOB_START_TIME=str(int(began) - 300))) == ""
    (path,) = (node.evidence / "n1").iterdir()
    report = node.report()
    assert report.kind is Kind.EPILOG
    assert (report.job_id, report.restart_count, report.exit_code) == (7, 2, "3:0")
    assert path.name == f"7.{path.name.split('.')[1]}.json"
    assert int(path.name.split(".")[1]) / 1e9 == pytest.approx(report.time)
    assert began < report.time < time.time()
    assert (report.node, report.boot_id) == ("n1", BOOT)
    assert report.boot_time == pytest.approx(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), abs=1)
    assert report.start_time == int(began) - 300
    assert report.kernel_since == report.start_time - 60
    assert XID in report.kernel
    assert (report.driver, report.gpus_configured, len(report.gpus)) == ("570.124.06", 2, 2)
    assert report.gpus[1].uuid == "GPU-00000001-0000-0000-0000-000000000000"
    (log,) = report.logs
    assert base64.b64decode(log.data) == b"the job's words\n"
    assert not report.gaps


def test_the_form_is_the_readers() -> None:
    assert FORMAT == FORMAT_READ


@pytest.mark.parametrize("nodelist", ["n2,n1", "n[2-9]", "m1"])
def test_only_the_batch_node_reads_the_jobs_log(node: Node, work: Path, nodelist: str) -> None:
    node.run("epilog", **job(work, NODELIST=nodelist))
    assert node.report().logs == ()
    assert not why(node.report(), "job_log")


def test_a_job_that_slurm_does_not_describe_is_a_gap(node: Node) -> None:
    node.run("epilog", JOB_ID="7")
    report = node.report()
    assert why(report, "job_log") == "Slurm did not tell the job's id and user"
    assert (report.restart_count, report.start_time) == (None, None)


def test_without_a_start_time_the_log_of_a_day_is_read_of_this_boot(node: Node) -> None:
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    path = node.folder / "n1.kernel"
    path.write_text(f"{iso(boot - 3600)} before this boot\n{iso(time.time())} now\n")
    node.run("epilog", JOB_ID="7")
    report = node.report()
    assert report.kernel_since == pytest.approx(max(boot, report.time - 86400), abs=1)
    assert report.kernel.endswith(" now\n")
    assert "before this boot" not in report.kernel


def test_a_health_check_replaces_the_last_one_and_goes_on_where_that_was(node: Node) -> None:
    node.nvml(State([Gpu(ecc=3), Gpu()]))
    node.run("health")
    first = node.report("health.json")
    assert first.kernel_since == pytest.approx(first.boot_time, abs=1)
    assert first.ecc_before == {}
    node.nvml(State([Gpu(ecc=5), Gpu()]))
    node.run("health")
    second = node.report("health.json")
    assert second.kind is Kind.HEALTH
    assert second.kernel_since == pytest.approx(max(second.boot_time, first.time - 60), abs=1)
    assert second.ecc_before == {first.gpus[0].uuid: 3, first.gpus[1].uuid: 0}
    assert second.gpus[0].ecc_uncorrectable == 5
    node.run("epilog", JOB_ID="7")
    assert node.report("7.*.json").ecc_before == {first.gpus[0].uuid: 5, first.gpus[1].uuid: 0}


@pytest.mark.parametrize("last", ["another boot", "a user's", "half", "a list", "a link"])
def test_a_last_health_check_that_is_none_is_left_aside(node: Node, last: str) -> None:
    node.run("health")
    path = node.evidence / "n1/health.json"
    if last == "another boot":
        path.write_text(path.read_text().replace(BOOT, "0" * 36))
    elif last == "a user's":
        os.chown(path, NOBODY, NOBODY)
    elif last == "half":
        path.write_text(path.read_text()[:200])
    elif last == "a list":
        path.write_text("[]")
    else:
        path.rename(node.folder / "elsewhere")
        path.symlink_to(node.folder / "elsewhere")
    node.run("health")
    assert node.report().ecc_before == {}
    assert node.report().kernel_since == pytest.approx(node.report().boot_time, abs=1)


def test_slurms_own_variable_says_where_slurm_conf_is(node: Node, tmp_path: Path) -> None:
    node.gpus_configured(2)
    (tmp_path / "told.conf").write_text("NodeName=n[1-9] Gres=gpu:8\n")
    node.run("health", CONF=str(tmp_path / "told.conf"))
    assert node.report().gpus_configured == 8


def test_hostile_variables_harm_nothing(node: Node, work: Path) -> None:
    hostile = os.fsdecode(b"x\xff\n\"';$(touch /tmp/x)" + b"y" * 10_000)
    told = job(work, JOB_EXIT_CODE2=hostile, JOB_RESTART_COUNT=hostile, JOB_COMMENT=hostile, JOB_START_TIME="9" * 40)
    node.run("epilog", **told, JOB_STDOUT=hostile, JOB_STDERR=hostile)
    report = node.report()
    assert (report.job_id, report.restart_count, report.start_time) == (7, None, None)
    assert len(report.exit_code) == 32
    assert "ENAMETOOLONG" in why(report, "job_log")
    node.run("epilog", JOB_ID="../../7")
    assert len(node.reports("0.*.json")) == 1


@pytest.mark.parametrize("name", ["", "..", "a/b", ".gate"])
def test_a_name_that_is_no_nodes_is_refused(node: Node, name: str) -> None:
    node.environment["SLURMD_NODENAME"] = name
    assert "SLURMD_NODENAME" in node.run("health", code=1)
    assert not list(node.evidence.iterdir())


# --- parts that fail


def test_nvml_that_hangs_costs_only_itself(node: Node, work: Path) -> None:
    node.nvml(State([Gpu(), Gpu(temperature="hang")]))
    node.kernel(XID)
    began = time.monotonic()
    node.run("epilog", timeout=2, **job(work))
    assert time.monotonic() - began < 4
    report = node.report()
    assert "no answer within" in why(report, "nvml")
    assert len(report.gpus) == 2
    assert XID in report.kernel
    assert report.logs


def test_a_kernel_log_that_is_a_fifo_costs_only_itself(node: Node, work: Path) -> None:
    (node.folder / "n1.kernel").unlink()
    os.mkfifo(node.folder / "n1.kernel")
    node.run("epilog", **job(work))
    report = node.report()
    assert "neither a file" in why(report, "kernel_log")
    assert len(report.gpus) == 2
    assert report.logs


def test_no_nvml_no_slurm_conf_no_log_are_gaps(node: Node, work: Path) -> None:
    for path in ("libnvidia-ml.so.1", "n1.kernel"):
        (node.folder / path).unlink()
    (work / "slurm-7.out").unlink()
    node.run("epilog", **job(work))
    report = node.report()
    assert "ENOENT" in why(report, "kernel_log")
    assert "Library Not Found" in why(report, "nvml")
    assert "files fit" in why(report, "job_log")
    assert report.gpus_configured is None


def test_where_no_process_can_be_started_a_report_is_written_all_the_same(node: Node, work: Path) -> None:
    """fork(2) fails: of root too, where its limit of processes is none and it is no longer privileged to pass it."""
    limited = (
        "import os, sys; from slurm_recovery.node import collector\n"
        "def no(): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork = no; sys.exit(collector.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-I", "-c", limited, "--kind", "epilog", "--evidence-dir", str(node.evidence)]
    environment = {"SLURMD_NODENAME": "n1"} | {f"SLURM_{name}": value for name, value in job(work).items()}
    subprocess.run(command, env=environment, check=True, timeout=30)
    report = node.report()
    assert {gap.source for gap in report.gaps} == {"kernel_log", "nvml", "job_log", "node"}
    assert why(report, "job_log") == "EAGAIN: Resource temporarily unavailable"


# --- EvidenceDir


def test_an_evidence_dir_that_is_not_there_is_said_in_one_line(node: Node) -> None:
    node.evidence.rmdir()
    said = node.run("health", code=1)
    assert (
        said
        == f"slurm_recovery: {node.evidence}: ENOENT: No such file or directory; hint: EvidenceDir; n1 left no report\n"
    )


def test_an_evidence_dir_that_is_not_roots_is_refused_in_one_line(node: Node) -> None:
    os.chown(node.evidence, NOBODY, NOBODY)
    said = node.run("epilog", JOB_ID="7")
    assert said.startswith(f"slurm_recovery: {node.evidence} belongs to uid {NOBODY}; hint:")
    assert said.count("\n") == 1
    assert not list(node.evidence.iterdir())


@pytest.fixture
def mounted(node: Node) -> Iterator[Node]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=2750", "none", str(node.evidence)], check=True)
    try:
        yield node
    finally:
        subprocess.run(["umount", str(node.evidence)], check=True)


@pytest.mark.parametrize("trouble", ["ENOSPC", "EROFS"])
def test_a_full_or_read_only_evidence_dir_loses_nothing(mounted: Node, trouble: str) -> None:
    mounted.run("health")
    before = mounted.report()
    if trouble == "EROFS":
        subprocess.run(["mount", "-o", "remount,ro", str(mounted.evidence)], check=True)
    else:
        mounted.kernel(*(f"{''.join(chr(103 + int(d)) for d in str(n))} x" * 8 for n in range(10_000)))
    said = mounted.run("health", code=1)
    assert trouble in said
    assert said.count("\n") == 1
    assert mounted.report() == before


# --- the gate

FAULTY = State([Gpu(), Gpu(all="gpu_is_lost")])


def test_a_sound_node_is_given_the_job_and_leaves_nothing(node: Node) -> None:
    node.gpus_configured(2)
    node.options["--max-drains-per-hour"] = "4"
    assert node.run("gate", JOB_ID="8") == ""
    assert not list(node.evidence.iterdir())


def test_a_proven_present_fault_closes_the_gate(node: Node) -> None:
    node.nvml(FAULTY)
    said = node.run("gate", code=REFUSED, JOB_ID="8")
    assert said.startswith("slurm_recovery: gpu_fell_off_bus: GPU 1")
    assert said.endswith("n1 refuses the job\n")
    report = node.report("gate.8.*.json")
    assert report.kind is Kind.GATE
    assert report.gpus[1].lost
    assert (report.kernel, report.logs) == ("", ())


def test_a_gpu_that_slurm_counts_on_is_missing(node: Node) -> None:
    node.gpus_configured(8)
    assert "gpu_missing" in node.run("gate", code=REFUSED)


def test_not_more_nodes_than_the_brake_allows(node: Node, library: Path) -> None:
    codes = []
    for number in range(1, 5):
        other = Node(node.folder, library, name=f"n{number}", options={"--max-drains-per-hour": "2"})
        other.nvml(FAULTY)
        code = REFUSED if number <= 2 else 0
        codes.append((code, other.run("gate", code=code, JOB_ID="8")))
        assert other.report("gate.8.*.json").gpus[1].lost
    assert "2 nodes did so within an hour (MaxDrainsPerHour)" in codes[3][1]
    first = Node(node.folder, library, name="n1", options={"--max-drains-per-hour": "2"})
    first.nvml(FAULTY)
    first.run("gate", code=REFUSED, JOB_ID="9")  # resumed, and given the next job: it has its slot


@pytest.mark.parametrize("trouble", ["none", "missing", "a user's", "file"])
def test_without_the_brake_the_node_is_given_the_job(node: Node, trouble: str) -> None:
    node.nvml(FAULTY)
    if trouble == "none":
        node.options["--max-drains-per-hour"] = "0"
    elif trouble == "a user's":
        os.chown(node.evidence, NOBODY, NOBODY)
    else:
        node.evidence.rmdir()
        if trouble == "file":
            node.evidence.touch()
    assert "takes the job all the same" in node.run("gate", JOB_ID="8")


@pytest.mark.parametrize("state", [State([Gpu(), Gpu(temperature="hang")]), State(init="hang"), State(init="unknown")])
def test_what_nvml_does_not_say_closes_no_gate(node: Node, state: State) -> None:
    node.gpus_configured(2)
    node.nvml(state)
    assert node.run("gate", timeout=1) == ""


# --- what it costs


def in_nvml(collector: int) -> str:
    """The part that waits for NVML."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{collector}/task/{collector}/children").read_text().split():
            with contextlib.suppress(OSError):
                if "libnvidia-ml" in Path(f"/proc/{child}/maps").read_text():
                    return child
    raise AssertionError("NVML was not asked")


@pytest.mark.timing
def test_it_lowers_itself(node: Node) -> None:
    """As the kernel shows it, of the collector and of its parts: one that hangs is looked at."""
    node.nvml(State([Gpu(temperature="hang")]))
    environment = {"LD_LIBRARY_PATH": str(node.folder), "SLURMD_NODENAME": "n1"}
    command = [*COLLECTOR, "--kind", "health", "--evidence-dir", str(node.evidence), "--timeout", "3"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as running:
        for process in (str(running.pid), in_nvml(running.pid)):
            assert Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[16] == "19"
            shown = subprocess.run(["ionice", "-p", process], capture_output=True, text=True, check=True).stdout
            assert shown.strip() == "idle"


def test_it_loads_nothing_heavy() -> None:
    code = "import sys; import slurm_recovery.node.collector, slurm_recovery.node.kernel_log; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert (
        loaded & {"pydantic", "structlog", "typer", "rich", "tenacity", "sqlalchemy", "subprocess", "pynvml"} == set()
    )


def test_a_failed_job_of_a_gigabyte_costs_little(node: Node, work: Path) -> None:
    """CPU and memory of the collector and all its parts, a start of Python included."""
    with (work / "slurm-7.out").open("r+b") as log:
        log.truncate(1 << 30)
    node.kernel(*(f"mlx5_core 0000:9b:00.{n % 8} event {n}" for n in range(2000)))
    code = (
        "import os, resource, sys; from slurm_recovery.node import collector\n"
        "code = collector.main(sys.argv[1:])\n"
        "us = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]\n"
        "hwm = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0]\n"
        "print(sum(u.ru_utime + u.ru_stime for u in us), hwm, us[1].ru_maxrss, code)"
    )
    options = ["--kind", "epilog", "--evidence-dir", str(node.evidence), "--kernel-log", f"{node.folder}/%n.kernel"]
    environment = {"LD_LIBRARY_PATH": str(node.folder), "SLURMD_NODENAME": "n1"}
    environment |= {f"SLURM_{name}": value for name, value in job(work).items()}
    began = time.monotonic()
    command = [sys.executable, "-I", "-c", code, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30)
    seconds = time.monotonic() - began
    cpu, own, largest_part, status = done.stdout.split()
    print(f"{seconds:.2f} s, {cpu} s CPU, {own} KiB, parts {largest_part} KiB")
    assert status == "0"
    assert [len(base64.b64decode(log.data)) for log in node.report().logs] == [64 << 10, 1 << 20]
    assert seconds < 2
    assert float(cpu) < 1
    assert int(own) < 40_000
    assert int(largest_part) < 40_000
