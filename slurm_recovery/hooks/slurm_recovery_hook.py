"""What both controller hooks do: write one event into the spool, start a worker where one is needed, let go.

Standard library only; `srecover setup` copies this file beside the hooks. It runs as SlurmUser with a bare
environment, for every job that ends, so it imports nothing that it does not need, never fails, and always
exits 0. It is the watchdog too: the work is a child's, and the hook lets its job go after `watchdog` seconds,
whatever becomes of the worker, of the child, or of the file system under StateDir.

An event is the hook's SLURM_* and SPANK_* environment as it is, NUL between the entries, and `argv=` lines.
"""

import fcntl
import os
import select
import sys
import time


class Hook:
    """One run of one hook. `state` is StateDir; `worker` the worker's command line; times in seconds."""

    def __init__(
        self, state: str, worker: list[str], environment: dict[str, str], watchdog: float, hold_timeout: float
    ) -> None:
        self.state = state
        self.spool = state + "/spool"
        self.worker = worker
        self.environment = environment
        self.watchdog = watchdog
        self.hold_timeout = hold_timeout

    def job_end(self) -> None:
        """EpilogSlurmctld: record; after a definite failure start a worker and give it time to act."""
        deadline = time.monotonic() + self.watchdog
        event = self.record("job_end")
        failed = os.environ.get("SLURM_JOB_EXIT_CODE2", "0:0") != "0:0"
        if failed or self.hold_overdue():
            self.start_worker()
        if failed:
            self.wait(event, deadline)

    def node_down(self) -> None:
        """strigger: record which nodes, and start a worker to look after their jobs."""
        self.record("node_down")
        self.start_worker()

    def record(self, kind: str) -> str:
        """Write, fsync, rename; the event's path."""
        job = os.environ.get("SLURM_JOB_ID", "")
        number = job if job.isdigit() else "0"
        name = f"{self.spool}/{time.time_ns()}-{kind}-{number}-{os.getpid()}"
        entries = [b"%s=%s" % pair for pair in os.environb.items() if pair[0].startswith((b"SLURM", b"SPANK_"))]
        entries += [b"argv=" + os.fsencode(argument) for argument in sys.argv[1:]]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            handle = os.open(name + ".tmp", flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self.spool, 0o700)
            handle = os.open(name + ".tmp", flags, 0o600)
        try:
            data = b"\0".join(entries)
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(name + ".tmp", name + ".event")
        return name + ".event"

    def hold_overdue(self) -> bool:
        """Whether a job that we hold has waited too long: its worker is gone."""
        try:
            with os.scandir(self.state + "/holds") as holds:
                oldest = time.time() - self.hold_timeout
                return any(hold.stat().st_mtime < oldest for hold in holds)
        except OSError:
            return False

    def start_worker(self) -> None:
        """Start the worker unless one lives: its life is a lock, which it inherits from us."""
        lock = os.open(self.state + "/worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        handles = [lock]
        try:
            log = os.open(self.state + "/worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            handles.append(log)
            os.set_inheritable(lock, True)
            os.posix_spawn(
                self.worker[0],
                [*self.worker, "--lock-fd", str(lock)],
                self.environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=(),  # slurmctld blocks SIGALRM and SIGTERM in its hooks, and the worker relies on both
            )
        finally:
            for handle in handles:
                os.close(handle)

    def wait(self, event: str, deadline: float) -> None:
        """Until the worker has taken the event over, or the time is up. A worker that died is started once more."""
        again = time.monotonic() + 1.0
        while os.path.exists(event) and time.monotonic() < deadline:
            time.sleep(0.02)
            if again and time.monotonic() > again:
                self.start_worker()
                again = 0.0


def open_standard_files() -> None:
    """strigger closes descriptors 0 to 2; the first file that we open must not become one of them."""
    while (handle := os.open("/dev/null", os.O_RDWR)) <= 2:
        pass
    os.close(handle)


def run(step: str, settings: dict[str, object]) -> None:
    """Run `job_end` or `node_down` in a child, wait for it, but not for longer than the watchdog; exit 0."""
    try:
        open_standard_files()
        reading, writing = os.pipe()
        if os.fork() == 0:
            work(step, settings, writing)
        os.close(writing)
        patience = settings["watchdog"]
        assert isinstance(patience, (int, float))
        if select.select([reading], [], [], patience)[0]:
            os.write(2, os.read(reading, 4096))
    except BaseException:  # noqa: BLE001  # whatever it is, the job must end
        pass
    os._exit(0)


def work(step: str, settings: dict[str, object], writing: int) -> None:
    """The child: what goes wrong is said through the pipe, for slurmctld's log. Ends the process."""
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        for handle in (0, 1, 2):  # slurmctld waits for whoever holds these
            os.dup2(nothing, handle)
        os.umask(0o077)
        getattr(Hook(**settings), step)()  # type: ignore[arg-type]  # written by srecover setup
    except BaseException as error:  # noqa: BLE001  # whatever it is, the job must end
        os.write(writing, f"slurm_recovery: {step}: {type(error).__name__}: {error}\n".encode()[:4096])
    finally:
        os._exit(0)
