"""What the hooks on a compute node do: nothing for a job that went well at once, else run the collector, for a while.

Standard library only; `srecover setup` copies this file beside the hooks. It runs as root for every job, and slurmd
drains a node whose Prolog or Epilog fails. So it always exits 0, except where the gate refuses a node. It is the
collector's watchdog: after `timeout` seconds it kills the collector and its children, and waits for none of them, for
a process that a dead file system holds cannot be killed. It sends no RPC and reads no file.
"""

import os
import select
import time

REFUSED = 99  # the collector's exit status for "do not give this node the job"
SIGKILL = 9  # importing signal costs as much as all the rest
NICE = 19
MOST_SAID = 4096
PASSED_ON = (b"SLURM_", b"SLURMD_NODENAME", b"SPANK_RECOVERY")
# A wait status, `exit:signal`, and the worst wait status of the job's steps. Slurm 22.05 and later tell all three.
ENDED_WELL = (("SLURM_JOB_EXIT_CODE", "0"), ("SLURM_JOB_EXIT_CODE2", "0:0"), ("SLURM_JOB_DERIVED_EC", "0"))


def run(entry: str, settings: dict[str, object]) -> None:
    """`epilog`, `health` or `prolog`; ends the process.

    `collector` is its command line, to which `--kind` is added; `environment` what it gets besides Slurm's variables;
    `timeout` is in seconds; `gate` says whether the Prolog may refuse a node at all.
    """
    status = 0
    try:
        if entry != "epilog" or wanted():
            status = collect(kind_of(entry, settings), settings)
    except BaseException:  # noqa: BLE001  # whatever it is, the node must serve
        pass
    os._exit(status)


def wanted() -> bool:
    """Whether the job failed, or was restarted: then its checkpoints are looked at, how ever it ended."""
    failed = any(os.environ.get(name, good) != good for name, good in ENDED_WELL)
    return failed or os.environ.get("SLURM_JOB_RESTART_COUNT", "") not in ("", "0")


def kind_of(entry: str, settings: dict[str, object]) -> str:
    """The collector's word for it. The gate tells a restarted job what it is to be told, too."""
    if entry != "prolog":
        return entry
    return "gate" if settings["gate"] else "start"


def collect(kind: str, settings: dict[str, object]) -> int:
    """Run the collector and say what it said; the hook's exit status."""
    command, environment, timeout = settings["collector"], settings["environment"], settings["timeout"]
    assert isinstance(command, list)
    assert isinstance(environment, dict)
    assert isinstance(timeout, (int, float))
    deadline = time.monotonic() + timeout
    open_standard_files()
    reading, writing = os.pipe()
    # A child starts it: where the collector lies on a dead file system, even exec does not come back.
    collector = os.fork()
    if collector == 0:
        become([*command, "--kind", kind], environment, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    code = wait(collector, reading, deadline)
    said = read(reading)
    if code is None:
        said += f"slurm_recovery: {kind}: the collector did not end in {timeout} s; hint: EvidenceTimeout\n".encode()
    if said:
        os.write(2, said)
    return 1 if kind == "gate" and code == REFUSED else 0


def become(command: list[str], environment: dict[str, str], writing: int, answers: bool = False) -> None:
    """The child: a session of its own, then the command. What it says comes through the pipe.

    That is its standard error, and then it gets the lowest priority; or, where it `answers`, its standard output.
    """
    try:
        os.setsid()
        os.nice(0 if answers else NICE)
        nothing = os.open("/dev/null", os.O_RDWR)
        said, silent = (1, 2) if answers else (2, 1)
        for handle, source in ((0, nothing), (said, writing), (silent, nothing)):
            os.dup2(source, handle)  # slurmd waits for whoever holds the hook's own
        os.closerange(3, 256)
        os.chdir("/")
        told = {name: value for name, value in os.environb.items() if name.startswith(PASSED_ON)}
        os.execve(command[0], command, {**told, **{os.fsencode(k): os.fsencode(v) for k, v in environment.items()}})
    except BaseException as error:  # noqa: BLE001  # whatever it is, this must not go on as a second hook
        os.write(2, f"slurm_recovery: {command[0]}: {type(error).__name__}: {error}\n".encode()[:MOST_SAID])
    finally:
        os._exit(127)


def wait(collector: int, reading: int, deadline: float) -> int | None:
    """The collector's exit status; None where its time is up. None of its session is left alive."""
    try:
        ended = [os.pidfd_open(collector)]
    except OSError:  # Linux before 5.3
        ended = []
    while not over(collector) and time.monotonic() < deadline:
        patience = max(0.0, deadline - time.monotonic())
        select.select(ended, [], [], patience if ended else min(patience, 0.01))
    in_time = over(collector)
    for end in (os.killpg, os.kill):  # its group, and itself where it has not come to its own group yet
        try:  # noqa: SIM105  # importing contextlib costs more than all the rest
            end(collector, SIGKILL)
        except OSError:
            pass
    return os.waitstatus_to_exitcode(os.waitpid(collector, 0)[1]) if in_time else None


def over(collector: int) -> bool:
    """Whether it ended. It stays a zombie, so that its number is nobody else's when its group is killed."""
    return os.waitid(os.P_PID, collector, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def read(reading: int) -> bytes:
    """What was said, as one bounded piece; what is still being said is not waited for."""
    try:
        said = os.read(reading, MOST_SAID)
    except BlockingIOError:
        return b""
    return said if not said or said.endswith(b"\n") else said + b"\n"


def open_standard_files() -> None:
    """Descriptors 0 to 2 may be closed; the first file that we open must not become one of them."""
    while (handle := os.open("/dev/null", os.O_RDWR)) <= 2:
        pass
    os.close(handle)
