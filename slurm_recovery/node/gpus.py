"""A node's GPUs, as NVML and PCI show them. The one file that imports pynvml.

Owns every reading of a GPU (node_report.Gpu). Judges none of them: present.py does. Nothing here raises. NVML is asked
by a child process, which tells every answer at once: what was read before a call that hangs is kept, and a child that
the kernel does not let go (state D) is left behind. The parent never loads the library.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

PCI_DEVICES = "/sys/bus/pci/devices"
MISMATCH = "Driver/library version mismatch"  # as nvidia-smi says it; pynvml has other words

MAX_GPUS = 256
MAX_LINKS = 36  # nvml.h NVML_NVLINK_MAX_LINKS (r615)
MAX_PROCESSES = 256
MAX_ANSWER = 1 << 20
MAX_DEVICES = 65536
PATIENCE = 0.2  # seconds that a child gets to die

# nvml.h nvmlReturn_t
_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND = 2, 3, 13
_GPU_IS_LOST, _RESET_REQUIRED, _LIB_RM_VERSION_MISMATCH, _DEPRECATED = 15, 16, 18, 26
_CANNOT_SAY = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _DEPRECATED)  # by this GPU, driver or release of pynvml

_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_GPU_SENSOR = 0  # nvmlTemperatureSensors_t
_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; by number, because old releases of pynvml lack the name
# nvmlDeviceGpuRecoveryAction_t (r615)
_RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
_RESET_BUS_UNTIL = 580  # driver branch: there 5 was NVML_GPU_RECOVERY_ACTION_GPU_RESET_BUS (nvidia-ml-py 13.580.126)
# nvml.h nvmlClocksEventReason*
_THROTTLES = {0x08: "hw_slowdown", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x20: "sw_thermal"}

_PCI = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
# The job's folder below slurmstepd's own: /system.slice/slurmstepd.scope/job_1 (v2), /slurm/uid_1000/job_1 (v1).
_JOB = re.compile(r"(?:slurmstepd\.scope|/slurm[^/\n]{0,64}(?:/uid_\d{1,10})?)/job_(\d{1,10})(?:/|$)", re.MULTILINE)
_UID = re.compile(r"^Uid:\s+(\d{1,10})\s", re.MULTILINE)

Message = dict[str, Any]
Tell = Callable[[Message], None]


@dataclass
class GpuReading:
    """`gpus` in the form of node_report.Gpu, one for each that NVML counts; of one not read, `index` alone is known.

    A GPU in MIG mode also has `mig`: Slurm's count of GPUs then is one of instances.
    """

    driver: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[dict[str, str]] = field(default_factory=list)


def read_gpus(timeout: float, devices: str = PCI_DEVICES) -> GpuReading:
    """All that can be read within `timeout` seconds, and a gap for whatever could not. Never raises."""
    reading = GpuReading()
    try:
        ours, theirs = os.pipe()
    except OSError as error:
        return _with_gap(reading, "GPUs", _one_line(error))
    try:
        child = os.fork()
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        return _with_gap(reading, "GPUs", _one_line(error))
    if not child:
        _read_and_exit(theirs, timeout)
    os.close(theirs)
    answers = _Answers(reading)
    try:
        in_time = _gather(ours, time.monotonic() + timeout, answers)
    finally:
        os.close(ours)
        status = _end(child)
    if not answers.ended:
        _with_gap(reading, "GPUs", f"{_why(in_time, timeout, status)} at {answers.at or 'its start'}")
    _name_the_unopened(reading.gpus, _on_bus(devices) or ())
    return reading


def gpus_on_bus(devices: str = PCI_DEVICES) -> int | None:
    """How many of NVIDIA's display controllers PCI shows; None where it cannot be read."""
    found = _on_bus(devices)
    return None if found is None else len(found)


def _on_bus(devices: str) -> list[str] | None:
    """Their addresses. The kernel holds these files' content itself, so that reading them cannot hang on a device."""
    try:
        names = sorted(os.listdir(devices))[:MAX_DEVICES]
    except OSError:
        return None
    return [_address(name) for name in names if _is_gpu(os.path.join(devices, name))]


def _is_gpu(folder: str) -> bool:
    if _text(os.path.join(folder, "vendor")).strip() != "0x10de":
        return False
    kind = _text(os.path.join(folder, "class")).strip()
    # VGA and 3D controllers; a virtual function (vGPU) is none of its own
    return kind.startswith(("0x0300", "0x0302")) and not os.path.lexists(os.path.join(folder, "physfn"))


def _name_the_unopened(gpus: list[dict[str, Any]], addresses: list[str] | tuple[str, ...]) -> None:
    """NVML gives no address of a GPU that it cannot open; where one is unnamed and one address is left, it is that."""
    known = {gpu.get("pci") for gpu in gpus}
    unnamed, left = [gpu for gpu in gpus if not gpu.get("pci")], [one for one in addresses if one not in known]
    if len(unnamed) == 1 and len(left) == 1 and len(gpus) == len(addresses):
        unnamed[0]["pci"] = left[0]


def _with_gap(reading: GpuReading, what: str, why: str) -> GpuReading:
    reading.gaps.append({"source": "nvml", "what": what, "why": why})
    return reading


def _why(in_time: bool, timeout: float, status: int | None) -> str:
    if not in_time:
        return f"no answer within {timeout:g} s"
    if status is not None and os.WIFSIGNALED(status):
        return f"the reader was ended by signal {os.WTERMSIG(status)}"
    return "the reader ended"


class _Answers:
    """What the child told so far: its messages, put into a reading."""

    def __init__(self, reading: GpuReading) -> None:
        self._reading = reading
        self.at = ""  # the call that it is in
        self.ended = False

    def take(self, message: Message) -> None:
        reading = self._reading
        self.at = message.get("call", self.at)
        self.ended = message.get("end", self.ended)
        reading.driver = message.get("driver", reading.driver)
        if "count" in message:
            reading.gpus = [{"index": index} for index in range(message["count"])]
        if "gpu" in message:
            reading.gpus[message["gpu"]].update(message["set"])
        if "gap" in message:
            _with_gap(reading, *message["gap"])


def _gather(pipe: int, deadline: float, answers: _Answers) -> bool:
    """Take the child's messages up to its end; False where it did not end in time."""
    poll, rest, size = select.poll(), b"", 0
    poll.register(pipe, select.POLLIN)
    while size < MAX_ANSWER:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return False
        data = os.read(pipe, 65536)
        if not data:
            return True
        size += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a library that overwrites its own process
                answers.take(json.loads(line))
    return False


def _end(child: int) -> int | None:
    """Kill it; its wait status, or None where the kernel does not let it go."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            ended, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended:
            return status
        time.sleep(0.002)
    return None


# From here on: the child.


class _RefusedError(Exception):
    """NVML did not answer a call: its code, and its words."""

    def __init__(self, call: str, code: int | None, words: str) -> None:
        super().__init__(f"{call}: {words}")
        self.call, self.code, self.words = call, code, words


class _Nvml:
    """pynvml, whichever release it is."""

    def __init__(self, module: ModuleType, tell: Tell) -> None:
        self._module = module
        self.tell = tell
        self.driver = ""

    def ask(self, call: str, *arguments: object, of: str = "") -> Any:
        """What NVML answers; None where it cannot say. Raises _RefusedError."""
        function = getattr(self._module, call, None)
        if function is None:
            return None
        self.tell({"call": f"{call}{of}"})
        try:
            return function(*arguments)
        except Exception as error:  # which there are differs by release; some are no NVMLError
            code = getattr(error, "value", None)
            if code in _CANNOT_SAY:
                return None
            words = MISMATCH if code == _LIB_RM_VERSION_MISMATCH else _one_line(error)
            raise _RefusedError(call, code, words) from error


@dataclass
class _Gpu:
    index: int
    nvml: _Nvml
    handle: Any = None
    pci: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.pci})" if self.pci else f"GPU {self.index}"

    def ask(self, call: str, *arguments: object) -> Any:
        return self.nvml.ask(call, self.handle, *arguments, of=f" of {self}")

    def set(self, **found: object) -> None:
        self.nvml.tell({"gpu": self.index, "set": found})


def _read_and_exit(pipe: int, timeout: float) -> None:
    """The child's whole life. nvmlShutdown is left out: it could only hang, and the kernel cleans up."""
    try:
        pipe = _alone(pipe, timeout)
        _read(lambda message: _write(pipe, message))
        _write(pipe, {"end": True})
    except BaseException as error:  # noqa: BLE001  # the parent's code must not run on in here
        with contextlib.suppress(OSError):
            _write(pipe, {"gap": ("GPUs", _one_line(error)), "end": True})
    finally:
        os._exit(0)


def _alone(pipe: int, timeout: float) -> int:
    """Hold nothing of the parent's but the pipe: a child that hangs would keep its locks; and end by itself."""
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.setitimer(signal.ITIMER_REAL, timeout + 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 3)
    for other in map(int, os.listdir("/proc/self/fd")):
        if other > 2 and other != pipe:
            with contextlib.suppress(OSError):
                os.close(other)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    if null > 2:
        os.close(null)
    return pipe


def _write(pipe: int, message: Message) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _read(tell: Tell) -> None:
    try:
        import pynvml
    except ImportError:
        tell({"gap": ("pynvml", f"nvidia-ml-py is not installed for {sys.executable}")})
        return
    nvml = _Nvml(pynvml, tell)
    try:
        nvml.ask("nvmlInit")
        count = nvml.ask("nvmlDeviceGetCount")
    except _RefusedError as refused:
        tell({"gap": (refused.call, refused.words)})
        return
    if count is None:
        tell({"gap": ("nvmlDeviceGetCount", "Not Supported")})
        return
    tell({"count": min(count, MAX_GPUS)})
    try:
        nvml.driver = _decoded(nvml.ask("nvmlSystemGetDriverVersion"))[:64]
        tell({"driver": nvml.driver})
    except _RefusedError as refused:
        tell({"gap": (refused.call, refused.words)})
    gpus = [_Gpu(index, nvml) for index in range(min(count, MAX_GPUS))]
    # First who is there at all, then one GPU after the other: most is known when a call hangs.
    opened = [gpu for gpu in gpus if _open(gpu) and _take(gpu, IDENTITY)]
    for gpu in opened:
        _take(gpu, READINGS)


def _open(gpu: _Gpu) -> bool:
    call = "nvmlDeviceGetHandleByIndex"
    try:
        gpu.handle = gpu.nvml.ask(call, gpu.index, of=f" of {gpu}")
    except _RefusedError as refused:
        _trouble(gpu, refused)
        return False
    if gpu.handle is None:
        gpu.set(trouble="Not Supported")
    return gpu.handle is not None


def _take(gpu: _Gpu, readings: tuple[Callable[[_Gpu], Message], ...]) -> bool:
    """False where the GPU is lost: it answers nothing any more."""
    for reading in readings:
        try:
            gpu.set(**reading(gpu))
        except _RefusedError as refused:
            if refused.code == _GPU_IS_LOST:
                _trouble(gpu, refused)
                return False
            if refused.code == _RESET_REQUIRED:
                _trouble(gpu, refused)
            gpu.nvml.tell({"gap": (f"{gpu}: {refused.call}", refused.words)})
    return True


def _trouble(gpu: _Gpu, refused: _RefusedError) -> None:
    gpu.set(trouble=refused.words, lost=refused.code == _GPU_IS_LOST)
    if refused.code == _RESET_REQUIRED:  # "The GPU requires a reset before it can be used again" (nvml.h)
        gpu.set(recovery_action="gpu_reset")


def _pci(gpu: _Gpu) -> Message:
    info = gpu.ask("nvmlDeviceGetPciInfo")
    gpu.pci = _address(_decoded(getattr(info, "busId", "")))
    return {"pci": gpu.pci}


def _uuid(gpu: _Gpu) -> Message:
    return {"uuid": _decoded(gpu.ask("nvmlDeviceGetUUID"))[:96]}


def _name(gpu: _Gpu) -> Message:
    return {"name": _decoded(gpu.ask("nvmlDeviceGetName"))[:96]}


def _recovery(gpu: _Gpu) -> Message:
    """Since driver r570. An older one does not know the field, and says so in one of two ways."""
    fields = gpu.ask("nvmlDeviceGetFieldValues", [_RECOVERY_FIELD])
    if not fields or fields[0].nvmlReturn in (*_CANNOT_SAY, _INVALID_ARGUMENT):
        return {}
    if fields[0].nvmlReturn:
        code = fields[0].nvmlReturn
        lost = code == _GPU_IS_LOST
        raise _RefusedError("nvmlDeviceGetFieldValues", code, "GPU is lost" if lost else f"NVML Error with code {code}")
    value = fields[0].value.uiVal
    branch = gpu.nvml.driver.partition(".")[0]
    if value == 5 and branch.isdecimal() and int(branch) <= _RESET_BUS_UNTIL:
        return {"recovery_action": "bus_reset"}
    return {"recovery_action": _RECOVERY_ACTIONS.get(value, f"action_{value}")}


def _remapped(gpu: _Gpu) -> Message:
    """Row remapping since Ampere; before, retired pages."""
    rows = gpu.ask("nvmlDeviceGetRemappedRows")
    if rows is not None:
        return {"remap_pending": bool(rows[2]), "remap_failed": bool(rows[3])}
    pending = gpu.ask("nvmlDeviceGetRetiredPagesPendingStatus")
    return {} if pending is None else {"remap_pending": bool(pending)}


def _ecc(gpu: _Gpu) -> Message:
    return {"ecc_uncorrectable": gpu.ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)}


def _mig(gpu: _Gpu) -> Message:
    mode = gpu.ask("nvmlDeviceGetMigMode")
    return {"mig": True} if mode and mode[0] else {}


def _throttled(gpu: _Gpu) -> Message:
    reasons = gpu.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # its name before driver r535
        reasons = gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return {"throttled": [word for bit, word in _THROTTLES.items() if reasons & bit]}


def _temperature(gpu: _Gpu) -> Message:
    degrees = gpu.ask("nvmlDeviceGetTemperature", _GPU_SENSOR)
    if degrees is None:  # its successor, since r570
        degrees = gpu.ask("nvmlDeviceGetTemperatureV", _GPU_SENSOR)
    return {"temperature": degrees}


def _links(gpu: _Gpu) -> Message:
    """A GPU without a bridge shows all its links as inactive: where none is active, none is taken for wired."""
    states: dict[int, int] = {}
    for link in range(MAX_LINKS):
        try:
            state = gpu.ask("nvmlDeviceGetNvLinkState", link)
        except _RefusedError as refused:
            if refused.code == _INVALID_ARGUMENT:  # it has no more
                break
            raise
        if state is not None:
            states[link] = state
    return {"links_down": [link for link, state in states.items() if not state] if any(states.values()) else []}


def _processes(gpu: _Gpu) -> Message:
    found = gpu.ask("nvmlDeviceGetComputeRunningProcesses") or ()
    return {"processes": [_process(one.pid, one.usedGpuMemory) for one in found[:MAX_PROCESSES]]}


IDENTITY = (_pci, _recovery, _uuid, _name)
READINGS = (_remapped, _ecc, _mig, _throttled, _temperature, _links, _processes)


def _process(pid: int, memory: int | None) -> Message:
    """These files of /proc need no lock of the process, unlike its cmdline: a process that hangs does not hang us."""
    folder = f"/proc/{pid}"
    uid = _UID.search(_text(f"{folder}/status"))
    return {
        "pid": pid,
        "name": _text(f"{folder}/comm").rstrip("\n")[:256],
        "uid": int(uid[1]) if uid else None,
        "job_id": job_of(_text(f"{folder}/cgroup")),
        "memory": memory,
    }


def job_of(cgroup: str) -> int | None:
    """The Slurm job that a process belongs to, by its /proc/PID/cgroup. What a user made in his own slice is none."""
    lines = [line for line in cgroup.splitlines() if not line.split(":", 2)[-1].startswith("/user.slice")]
    job = _JOB.search("\n".join(lines))
    return int(job[1]) if job else None


def _address(text: str) -> str:
    """`00000000:9B:00.0` as the kernel writes it: `0000:9b:00.0`; "" where it is no address."""
    match = _PCI.fullmatch(text.strip())
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower() if match else ""


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(65536).decode(errors="replace")
    except OSError:
        return ""


def _decoded(value: object) -> str:
    """Old releases of pynvml give bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words[:300]
