"""Every reading of a GPU, through the real pynvml and the stand-in library, in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_recovery.node.gpus import gpus_on_bus, job_of
from tests.nvml.build import build
from tests.nvml.state import Gpu, State

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

REPOSITORY = Path(__file__).parents[2]
QUICK = 3.0  # seconds that all but the calls that hang may take, on a loaded machine
PTRACE_SEIZE = 0x4206

READ = """
import dataclasses, json, sys, time
{before}
from slurm_recovery.node import gpus
start = time.monotonic()
reading = gpus.read_gpus({timeout}, {devices!r})
took = time.monotonic() - start
library = any("libnvidia-ml" in line for line in open("/proc/self/maps"))
print(json.dumps(dataclasses.asdict(reading) | {{"took": took, "library": library}}))
"""


@dataclass
class Node:
    """A folder that plays the node: its library, its state, its PCI devices."""

    folder: Path

    def command(self, timeout: float, before: str = "", flags: tuple[str, ...] = ("-I",)) -> list[str]:
        code = READ.format(before=before, timeout=timeout, devices=str(self.folder / "devices"))
        return [sys.executable, *flags, "-c", code]

    def environment(self, node: str = "") -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.folder), "SLURMD_NODENAME": node}

    def read(self, state: State | None, timeout: float = 20, before: str = "", node: str = "", **more: Any) -> Any:
        if state is not None:
            state.write(self.folder, node or "default")
        command = self.command(timeout, before, **more)
        done = subprocess.run(command, env=self.environment(node), capture_output=True, text=True, timeout=60)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    def start(self, state: State, timeout: float) -> subprocess.Popen[str]:
        state.write(self.folder)
        return subprocess.Popen(self.command(timeout), env=self.environment(), stdout=subprocess.PIPE, text=True)

    def device(self, address: str, vendor: str = "0x10de", kind: str = "0x030200", virtual: bool = False) -> None:
        folder = self.folder / "devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
        if virtual:
            (folder / "physfn").symlink_to("../0000:1b:00.0")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Node:
    """The library finds its state beside itself, so each test has its own copy."""
    (tmp_path / library.name).write_bytes(library.read_bytes())
    return Node(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that could have a context on a GPU, of another user where we may start one."""
    with subprocess.Popen(["sleep", "60"], user=65534 if os.getuid() == 0 else None) as process:
        yield process
        process.kill()


def gap(what: str, why: str) -> dict[str, str]:
    return {"source": "nvml", "what": what, "why": why}


def one(node: Node, gpu: Gpu, driver: str = "570.124.06") -> Any:
    """The reading of a node with one GPU, which has no gap."""
    reading = node.read(State([gpu], driver=driver))
    assert reading["gaps"] == []
    return reading["gpus"][0]


def test_a_sound_gpu_is_read_whole(node: Node) -> None:
    reading = node.read(State([Gpu(ecc=3)]))
    assert reading["driver"] == "570.124.06"
    assert reading["gaps"] == []
    assert reading["gpus"] == [
        {
            "index": 0,
            "pci": "0000:1b:00.0",
            "uuid": "GPU-00000000-0000-0000-0000-000000000000",
            "name": "NVIDIA H100 80GB HBM3",
            "ecc_uncorrectable": 3,
            "remap_pending": False,
            "remap_failed": False,
            "recovery_action": "none",
            "links_down": [],
            "throttled": [],
            "temperature": 41,
            "processes": [],
        }
    ]


def test_the_collector_itself_never_loads_the_library(node: Node) -> None:
    assert node.read(State([Gpu()]))["library"] is False


def test_the_reading_is_one_of_the_report(node: Node) -> None:
    from slurm_recovery.node_report import Gpu as ReportGpu
    from slurm_recovery.node_report import NodeGap

    reading = node.read(State([Gpu(remap="1,0"), Gpu(all="gpu_is_lost"), Gpu(ecc="unknown")]))
    gpus = [ReportGpu.model_validate(gpu) for gpu in reading["gpus"]]
    assert [(gpu.index, gpu.lost, gpu.remap_pending) for gpu in gpus] == [
        (0, False, True),
        (1, True, None),
        (2, False, False),
    ]
    assert [NodeGap.model_validate(one).source for one in reading["gaps"]] == ["nvml"]


def test_each_slurmd_of_one_machine_has_its_own_state(node: Node) -> None:
    State([Gpu()]).write(node.folder)
    assert len(node.read(State([Gpu(), Gpu()]), node="n2")["gpus"]) == 2
    assert len(node.read(None, node="n1")["gpus"]) == 1


@pytest.mark.parametrize(("rows", "pending", "failed"), [("1,0", True, False), ("0,1", False, True)])
def test_rows_remapped(node: Node, rows: str, pending: bool, failed: bool) -> None:
    gpu = one(node, Gpu(remap=rows))
    assert (gpu["remap_pending"], gpu["remap_failed"]) == (pending, failed)


def test_before_ampere_retired_pages_are_pending_instead(node: Node) -> None:
    gpu = one(node, Gpu(remap=None, retired=1))
    assert gpu["remap_pending"] is True
    assert "remap_failed" not in gpu


@pytest.mark.parametrize(
    ("value", "driver", "action"),
    [
        (1, "570.124.06", "gpu_reset"),
        (2, "570.124.06", "node_reboot"),
        (3, "570.124.06", "drain_p2p"),
        (4, "570.124.06", "drain_and_reset"),
        (5, "580.126.09", "bus_reset"),
        (5, "595.45.04", "recover_imex_domain"),
        (6, "615.71", "bus_reset"),
        (7, "615.71", "system_reboot"),
        (8, "700.1", "action_8"),
    ],
)
def test_recovery_action(node: Node, value: int, driver: str, action: str) -> None:
    assert one(node, Gpu(recovery=value), driver)["recovery_action"] == action


@pytest.mark.parametrize("answer", ["not_supported", "invalid_argument"])
def test_an_older_driver_knows_no_recovery_action_and_that_is_no_gap(node: Node, answer: str) -> None:
    gpu = one(node, Gpu(recovery=answer), driver="535.54.03")
    assert "recovery_action" not in gpu
    assert gpu["temperature"] == 41


def test_recovery_action_refused(node: Node) -> None:
    reading = node.read(State([Gpu(recovery="unknown"), Gpu(recovery="gpu_is_lost")]))
    assert reading["gaps"] == [gap("GPU 0 (0000:1b:00.0): nvmlDeviceGetFieldValues", "NVML Error with code 999")]
    assert (reading["gpus"][1]["lost"], reading["gpus"][1]["trouble"]) == (True, "GPU is lost")


@pytest.mark.parametrize(
    ("links", "down"),
    [("1" * 18, []), ("110111011111", [2, 6]), ("1-0-1", [2]), ("1" * 35 + "0", [35]), ("0" * 12, []), (None, [])],
)
def test_links_that_are_there_and_not_active(node: Node, links: str | None, down: list[int]) -> None:
    assert one(node, Gpu(links=links))["links_down"] == down


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x08, ["hw_slowdown"]),
        (0x20, ["sw_thermal"]),
        (0x40, ["hw_thermal"]),
        (0x80, ["hw_power_brake"]),
        (0x48, ["hw_slowdown", "hw_thermal"]),
        (0x705, []),  # idle, power cap and the like
    ],
)
@pytest.mark.parametrize("name", ["clocks", "throttle"])
def test_clocks_throttled_by_either_name_of_the_call(node: Node, reasons: int, words: list[str], name: str) -> None:
    gpu = Gpu(clocks=reasons) if name == "clocks" else Gpu(clocks=None, throttle=reasons)
    assert one(node, gpu)["throttled"] == words


@pytest.mark.parametrize("gpu", [Gpu(temperature=93), Gpu(temperature="deprecated", temperature_v=93)])
def test_temperature_by_either_call(node: Node, gpu: Gpu) -> None:
    assert one(node, gpu)["temperature"] == 93


def test_processes(node: Node, sleeper: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    gpu = one(node, Gpu(processes=f"{sleeper.pid}:1048576,{gone.pid}:"))
    uid = 65534 if os.getuid() == 0 else os.getuid()
    assert gpu["processes"] == [
        {"pid": sleeper.pid, "name": "sleep", "uid": uid, "job_id": None, "memory": 1048576},
        {"pid": gone.pid, "name": "", "uid": None, "job_id": None, "memory": None},
    ]


@pytest.mark.parametrize(
    ("cgroup", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", 4711),
        ("0::/system.slice/n1_slurmstepd.scope/job_4711/step_batch/user/task_special\n", 4711),
        ("11:cpuset:/slurm/uid_1000/job_4711/step_0\n4:memory:/\n", 4711),
        ("5:devices:/slurm_n1/uid_1000/job_4711/step_extern\n", 4711),
        ("0::/kubepods.slice/pod1/system.slice/slurmstepd.scope/job_7\n", 7),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/slurm/job_8\n", 7),  # made by the job's user
        ("0::/user.slice/user-1000.slice/user@1000.service/slurm/job_8\n", None),
        ("1:name=systemd:/user.slice/user-1000.slice/slurm/job_8\n", None),
        ("0::/system.slice/ssh.service\n", None),
        ("0::/home/job_8\n", None),
        ("", None),
    ],
)
def test_the_job_of_a_process(cgroup: str, job: int | None) -> None:
    assert job_of(cgroup) == job


def test_mig_is_told(node: Node) -> None:
    assert one(node, Gpu(mig=1))["mig"] is True


def test_a_gpu_that_cannot_be_opened_is_lost_and_its_address_is_the_one_that_is_left(node: Node) -> None:
    for bus in ("1b", "1c", "1d"):
        node.device(f"0000:{bus}:00.0")
    reading = node.read(State([Gpu(), Gpu(all="gpu_is_lost"), Gpu()]))
    assert reading["gpus"][1] == {"index": 1, "trouble": "GPU is lost", "lost": True, "pci": "0000:1c:00.0"}
    assert reading["gaps"] == []
    assert reading["gpus"][2]["temperature"] == 41


def test_no_address_is_guessed(node: Node) -> None:
    for bus in ("1b", "1c", "1d"):
        node.device(f"0000:{bus}:00.0")
    both = node.read(State([Gpu(), Gpu(all="gpu_is_lost"), Gpu(all="gpu_is_lost")]))
    assert [gpu.get("pci") for gpu in both["gpus"]] == ["0000:1b:00.0", None, None]
    fewer = node.read(State([Gpu(), Gpu(all="gpu_is_lost")]))
    assert [gpu.get("pci") for gpu in fewer["gpus"]] == ["0000:1b:00.0", None]


@pytest.mark.parametrize("call", ["pci", "uuid", "name", "ecc", "remap", "clocks", "temperature", "links", "processes"])
def test_a_gpu_is_lost_whichever_call_says_so(node: Node, call: str) -> None:
    reading = node.read(State([replace(Gpu(), **{call: "gpu_is_lost"}), Gpu()]))
    assert (reading["gpus"][0]["lost"], reading["gpus"][0]["trouble"]) == (True, "GPU is lost")
    assert "lost" not in reading["gpus"][1]
    assert reading["gaps"] == []


def test_a_gpu_that_cannot_be_opened_for_another_reason(node: Node) -> None:
    gpu = one(node, Gpu(handle="insufficient_power"))
    assert gpu == {"index": 0, "trouble": "Insufficient External Power", "lost": False}


@pytest.mark.parametrize("gpu", [Gpu(handle="reset_required"), Gpu(ecc="reset_required")])
def test_a_gpu_that_answers_that_it_needs_a_reset(node: Node, gpu: Gpu) -> None:
    reading = node.read(State([gpu]))["gpus"][0]
    assert (reading["recovery_action"], reading["lost"]) == ("gpu_reset", False)


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("pci", "nvmlDeviceGetPciInfo"),
        ("uuid", "nvmlDeviceGetUUID"),
        ("name", "nvmlDeviceGetName"),
        ("ecc", "nvmlDeviceGetTotalEccErrors"),
        ("remap", "nvmlDeviceGetRemappedRows"),
        ("links", "nvmlDeviceGetNvLinkState"),
        ("clocks", "nvmlDeviceGetCurrentClocksEventReasons"),
        ("temperature", "nvmlDeviceGetTemperature"),
        ("processes", "nvmlDeviceGetComputeRunningProcesses"),
        ("mig", "nvmlDeviceGetMigMode"),
    ],
)
def test_a_reading_that_fails_is_a_gap_and_the_others_are_kept(node: Node, key: str, call: str) -> None:
    reading = node.read(State([replace(Gpu(), **{key: "unknown"})]))
    where = "GPU 0" if key == "pci" else "GPU 0 (0000:1b:00.0)"
    assert reading["gaps"] == [gap(f"{where}: {call}", "Unknown Error")]
    names = {"ecc": "ecc_uncorrectable", "remap": "remap_failed", "links": "links_down", "clocks": "throttled"}
    sound = {"pci", "uuid", "name", "ecc_uncorrectable", "remap_failed", "links_down", "throttled", "temperature"}
    assert set(reading["gpus"][0]) >= sound - {names.get(key, key)}
    assert names.get(key, key) not in reading["gpus"][0]


def test_what_a_gpu_does_not_support_is_no_gap(node: Node) -> None:
    nothing: dict[str, Any] = {key: None for key in vars(Gpu()) if key not in ("all", "pci", "uuid", "name")}
    gpu = one(node, Gpu(**nothing))
    assert (gpu["ecc_uncorrectable"], gpu["temperature"]) == (None, None)
    assert "remap_pending" not in gpu
    assert "recovery_action" not in gpu


def test_calls_that_an_old_release_of_pynvml_does_not_have_are_no_gap(node: Node) -> None:
    kept = "nvmlInit nvmlDeviceGetCount nvmlDeviceGetHandleByIndex nvmlDeviceGetUUID".split()
    before = f"""
import pynvml
for name in dir(pynvml):
    if name.startswith(("nvmlDeviceGet", "nvmlSystemGet", "NVML_FI_", "NVML_GPU_")) and name not in {kept}:
        delattr(pynvml, name)
"""
    reading = node.read(State([Gpu(ecc=5)]), before=before)
    assert reading["gaps"] == []
    assert reading["driver"] == ""
    assert reading["gpus"][0]["uuid"] == "GPU-00000000-0000-0000-0000-000000000000"
    assert reading["gpus"][0]["ecc_uncorrectable"] is None


def test_an_old_release_of_pynvml_gives_bytes(node: Node) -> None:
    before = """
import pynvml
pynvml.nvmlDeviceGetName = lambda handle: b"Tesla \\xff V100"
pynvml.nvmlSystemGetDriverVersion = lambda: b"470.57.02"
"""
    reading = node.read(State([Gpu()]), before=before)
    assert (reading["driver"], reading["gpus"][0]["name"]) == ("470.57.02", "Tesla \ufffd V100")


@pytest.mark.parametrize(
    ("init", "why"),
    [
        ("lib_rm_version_mismatch", "Driver/library version mismatch"),
        ("driver_not_loaded", "Driver Not Loaded"),
        ("no_permission", "Insufficient Permissions"),
        ("unknown", "Unknown Error"),
    ],
)
def test_nvml_that_does_not_start_is_a_gap(node: Node, init: str, why: str) -> None:
    reading = node.read(State([Gpu()], init=init))
    assert (reading["gpus"], reading["gaps"]) == ([], [gap("nvmlInit", why)])


@pytest.mark.parametrize(("count", "why"), [("unknown", "Unknown Error"), ("not_supported", "Not Supported")])
def test_gpus_that_nvml_cannot_count_are_a_gap(node: Node, count: str, why: str) -> None:
    reading = node.read(State([Gpu()], count=count))
    assert (reading["gpus"], reading["gaps"]) == ([], [gap("nvmlDeviceGetCount", why)])


def test_a_driver_without_a_version_is_a_gap_and_its_gpus_are_read(node: Node) -> None:
    reading = node.read(State([Gpu()], driver="unknown"))
    assert reading["gaps"] == [gap("nvmlSystemGetDriverVersion", "Unknown Error")]
    assert reading["gpus"][0]["temperature"] == 41


def test_no_gpu_and_no_gap_where_nvml_counts_none(node: Node) -> None:
    reading = node.read(State([]))
    assert (reading["gpus"], reading["gaps"]) == ([], [])


def test_a_machine_without_the_library(node: Node) -> None:
    (node.folder / "libnvidia-ml.so.1").unlink()
    reading = node.read(None)
    assert (reading["gpus"], reading["gaps"]) == ([], [gap("nvmlInit", "NVML Shared Library Not Found")])


def test_a_machine_without_pynvml(node: Node) -> None:
    """The interpreter without any site-packages: nothing but the standard library is needed."""
    before = f"sys.path.insert(0, {str(REPOSITORY)!r})"
    reading = node.read(State([Gpu()]), before=before, flags=("-I", "-S"))
    assert reading["gpus"] == []
    assert reading["gaps"] == [gap("pynvml", f"nvidia-ml-py is not installed for {sys.executable}")]


def test_a_hang_at_the_start_ends_in_time(node: Node) -> None:
    reading = node.read(State([Gpu()], init="hang"), timeout=0.5)
    assert (reading["gpus"], reading["gaps"]) == ([], [gap("GPUs", "no answer within 0.5 s at nvmlInit")])
    assert 0.5 <= reading["took"] < 0.5 + QUICK


def test_a_hang_in_the_middle_keeps_what_was_read_before(node: Node) -> None:
    sound = Gpu(ecc=2, temperature=55)
    reading = node.read(State([sound, Gpu(recovery=2, temperature="hang"), Gpu()]), timeout=1)
    first, second, third = reading["gpus"]
    assert (first["ecc_uncorrectable"], first["temperature"], first["processes"]) == (2, 55, [])
    assert (second["recovery_action"], second["remap_failed"]) == ("node_reboot", False)
    assert "temperature" not in second
    assert third["uuid"] == "GPU-00000002-0000-0000-0000-000000000000"
    where = "nvmlDeviceGetTemperature of GPU 1 (0000:1c:00.0)"
    assert reading["gaps"] == [gap("GPUs", f"no answer within 1 s at {where}")]
    assert 1 <= reading["took"] < 1 + QUICK


def test_every_gpu_is_counted_where_one_hangs_when_it_is_opened(node: Node) -> None:
    reading = node.read(State([Gpu(), Gpu(all="hang"), Gpu()]), timeout=0.5)
    assert [gpu["index"] for gpu in reading["gpus"]] == [0, 1, 2]
    assert reading["gpus"][0]["pci"] == "0000:1b:00.0"
    assert reading["gaps"] == [gap("GPUs", "no answer within 0.5 s at nvmlDeviceGetHandleByIndex of GPU 1")]


def test_a_library_that_crashes_is_a_gap(node: Node) -> None:
    reading = node.read(State([Gpu(), Gpu(remap="crash")]))
    assert reading["gpus"][0]["temperature"] == 41
    where = "nvmlDeviceGetRemappedRows of GPU 1 (0000:1c:00.0)"
    assert reading["gaps"] == [gap("GPUs", f"the reader was ended by signal {signal.SIGSEGV:d} at {where}")]
    assert reading["took"] < QUICK


def child_of(parent: int) -> int:
    """The one child that `parent` has, as soon as it has loaded the library."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                of = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if of == parent and "libnvidia-ml" in (folder / "maps").read_text():
                    return int(folder.name)
            except OSError:  # it has ended since
                continue
        time.sleep(0.01)
    raise AssertionError("no child")


def test_a_child_that_the_kernel_does_not_let_go_is_not_waited_for(node: Node) -> None:
    """As one in state D cannot be waited for, neither can one that a debugger holds."""
    with node.start(State([Gpu()], init="hang"), timeout=2) as process:
        child = child_of(process.pid)
        assert ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_SEIZE, child, 0, 0) == 0, os.strerror(ctypes.get_errno())
        try:
            out, _ = process.communicate(timeout=20)
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        finally:
            os.waitpid(child, 0)  # it is the debugger's now
    assert state == "Z"
    assert json.loads(out)["gaps"] == [gap("GPUs", "no answer within 2 s at nvmlInit")]
    assert 2 <= json.loads(out)["took"] < 2 + QUICK


def test_a_child_that_hangs_holds_nothing_of_its_parent(node: Node) -> None:
    """Such as a lock on a file, or the pipe to slurmd."""
    with node.start(State([Gpu()], init="hang"), timeout=2) as process:
        child = child_of(process.pid)
        held = [os.readlink(path) for path in Path(f"/proc/{child}/fd").iterdir()]
        process.communicate(timeout=20)
    *standard, pipe = sorted(held)
    assert standard == ["/dev/null"] * 3
    assert pipe.startswith("pipe:")


def test_a_child_that_hangs_ends_by_itself_when_its_parent_is_killed(node: Node) -> None:
    with node.start(State([Gpu()], init="hang"), timeout=1) as process:
        child = child_of(process.pid)
        process.kill()
    deadline = time.monotonic() + 2 + QUICK
    while Path(f"/proc/{child}/maps").exists() and time.monotonic() < deadline:
        try:
            if not Path(f"/proc/{child}/maps").read_text():  # a zombie, where nobody reaps orphans
                return
        except OSError:
            return
        time.sleep(0.02)
    assert not Path(f"/proc/{child}/maps").exists()


def test_the_bus_shows_nvidias_display_controllers_alone(node: Node) -> None:
    node.device("0000:1b:00.0")
    node.device("0000:1c:00.0", kind="0x030000")
    node.device("0000:1c:00.1", kind="0x040300")  # its sound
    node.device("0000:1d:00.0", kind="0x068000")  # an NVSwitch
    node.device("0000:1e:00.0", vendor="0x1002")
    node.device("0000:1b:00.4", virtual=True)
    (node.folder / "devices" / "0000:1f:00.0").mkdir()
    assert gpus_on_bus(str(node.folder / "devices")) == 2


def test_a_bus_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert gpus_on_bus(str(tmp_path / "none")) is None
    (tmp_path / "empty").mkdir()
    assert gpus_on_bus(str(tmp_path / "empty")) == 0
