"""A private Slurm cluster of real daemons on loopback, for the demo and the tests.

Owns: one temporary folder (/tmp/slurm_recovery.*), the munged, slurmctld and slurmds that run in it, their ports,
every process of their jobs, and the end of all that, also of a cluster whose owner was killed.
Must not: touch anything outside that folder (nothing under /etc or /var/lib), signal a process that does not name the
folder, or know anything of slurm_recovery. Standard library only.

    with PrivateCluster(nodes=4) as cluster:
        job = cluster.sbatch("-N2", script="srun hostname")
        print(cluster.wait(job, "COMPLETED")["NodeList"])
"""

from __future__ import annotations

import atexit
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Self, TypeVar

from tests.cluster.errors import ClusterError, ClusterUnavailable
from tests.cluster.leftovers import PREFIX, clean_up_dead_clusters, remove_cluster, write_owner
from tests.cluster.ports import PortClaim
from tests.cluster.processes import (
    ProcessRecord,
    end_processes,
    find_processes,
    holds_open,
    is_same_process,
    read_process,
    send,
    with_descendants,
)
from tests.cluster.slurm_conf import Plan, write_conf
from tests.cluster.tables import job_rows, node_rows

__all__ = ["ClusterError", "ClusterUnavailable", "PrivateCluster"]

T = TypeVar("T")
Job = int | str

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = ("slurmctld", "slurmd", "scontrol", "squeue", "sinfo", "sbatch", "munged")
PORT_TRIES = 3
STOP_PATIENCE = 15.0  # seconds between SIGTERM and SIGKILL
SLURM_VARIABLES = re.compile(r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SCONTROL|SPANK|MUNGE)_")

PORT_IS_TAKEN = "Address already in use"
LAST_WORDS = ("fatal:", PORT_IS_TAKEN)  # what is in the log of a daemon that could not start

FINAL_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
)  # fmt: skip


class PrivateCluster:
    """One cluster: a folder, its daemons, and the commands run against it.

    All waits are in seconds. Commands get `env`: the caller's environment without Slurm's variables, with SLURM_CONF
    and a PATH that has the sbin folders.
    """

    def __init__(
        self,
        *,
        nodes: int = 4,
        slurm_user: str = "root",
        conf: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
        node_conf: Mapping[str, str] | None = None,
        cpus: int = 8,
        prefix: str = "n",
        cgroup_conf: str = "",
        gpus: int = 0,
    ) -> None:
        """Nothing happens before start().

        conf: slurm.conf keys that are added, or replace ours ("" leaves a key out); "{folder}" is the cluster's folder.
        partitions: whole PartitionName= lines; the first is made the default unless one says Default=.
        node_conf: more words for a node's line, as {"n2": "Feature=big"}.
        prefix: of the nodes' names; where control groups are used, they bear those names on the whole host.
        cgroup_conf: the text of cgroup.conf; without one, control groups are not used.
        gpus: of each node, by slurm.conf (Gres=gpu:N); there is none.
        """
        self.nodes = [f"{prefix}{number}" for number in range(1, nodes + 1)]
        self.slurm_user = slurm_user
        self.gpus = gpus
        self._plan = Plan(
            self.nodes,
            slurm_user,
            cpus,
            dict(conf or {}),
            tuple(partitions),
            dict(node_conf or {}),
            cgroup_conf,
            gpus,
        )
        self.version: tuple[int, ...] = ()
        self._folder: Path | None = None
        self._ports: PortClaim | None = None
        self._owner = 0
        self._launched_at: dict[str, int] = {}  # how long a daemon's log was then

    # -- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, timeout: float = 60) -> Self:
        """Boot everything and wait until every node is idle. Cleans up after owners that died, first.

        Raises ClusterUnavailable when this machine cannot run one, ClusterError when the daemons do not come up.
        """
        if self._folder is not None:
            raise ClusterError(f"this cluster is already running in {self._folder}")
        self.version = check_machine(self.slurm_user)
        clean_up_dead_clusters()
        self._owner = os.getpid()
        _LIVE.add(self)
        _catch_signals()
        try:
            self._make_folder()
            for _ in range(PORT_TRIES - 1):
                try:
                    return self._boot(timeout)
                except ClusterError as error:
                    if PORT_IS_TAKEN not in str(error):
                        raise
                    end_processes(self.folder)
            return self._boot(timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the cluster, jobs included, and remove its folder. Twice is fine."""
        if self._folder is not None and self._owner == os.getpid():
            remove_cluster(self._folder)
            self._folder = None
        self._release_ports()
        _LIVE.discard(self)

    # -- where things are ---------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ClusterError("the cluster is not running: call start() first")
        return self._folder

    @property
    def release(self) -> str:
        """As Slurm writes it: 22.05.8."""
        major, minor, *rest = self.version
        return ".".join([str(major), f"{minor:02}", *map(str, rest)])

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def work(self) -> Path:
        """Where jobs run; anyone may write there."""
        return self.folder / "work"

    @property
    def env(self) -> dict[str, str]:
        """A fresh copy each time: change it as you like."""
        env = {key: value for key, value in os.environ.items() if not SLURM_VARIABLES.match(key)}
        path = os.environ.get("PATH", "")
        return env | {"SLURM_CONF": str(self.slurm_conf), "PATH": f"{path}:{SYSTEM_PATH}" if path else SYSTEM_PATH}

    def slurmctld_log(self) -> str:
        return self._log("slurmctld")

    def slurmd_log(self, node: str) -> str:
        return self._log(node)

    # -- commands -----------------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str | Path,
        user: str | None = None,
        check: bool = True,
        timeout: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        cwd: str | Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's environment (`env` is added to it), as `user` if one is named.

        Raises ClusterError with both outputs when it fails and `check` is set; subprocess.TimeoutExpired.
        """
        environment = self.env | dict(env or {})
        account = pwd.getpwnam(user) if user is not None and user != "root" else None
        if account is not None:
            environment |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
        done = subprocess.run(
            [str(word) for word in argv],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            cwd=cwd or self.work,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=os.getgrouplist(account.pw_name, account.pw_gid) if account else None,
        )
        if check and done.returncode != 0:
            command = " ".join(str(word) for word in argv)
            raise ClusterError(f"{command}: exit {done.returncode}: {(done.stderr + done.stdout).strip()}")
        return done

    def sbatch(self, *options: str, script: str, user: str | None = None, env: Mapping[str, str] | None = None) -> int:
        """Submit a script (bash unless it says otherwise) from the work folder; gives the job id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        done = self.run("sbatch", "--parsable", *options, user=user, env=env, stdin=text)
        return int(done.stdout.split(";")[0])

    def records(self, job: Job | None = None) -> list[dict[str, str]]:
        """Every record that slurmctld has of a job (array tasks, het components), or of all jobs. Times are epochs.

        Empty when slurmctld does not know the job (any more).
        """
        which = () if job is None else ("-j", str(job).split("+")[0])
        return job_rows(self.run, self.version, "--states=all", "--array", *which)

    def show(self, job: Job) -> dict[str, str]:
        """One job: 12, an array task: "12_3", a component of a het job: "12+1".

        Raises LookupError when slurmctld does not know it.
        """
        wanted = str(job)
        for record in self.records(job):
            if wanted in (record["JobID"], record["JobArrayID"]):
                return record
        raise LookupError(f"slurmctld does not know job {job}")

    def node(self, name: str) -> dict[str, str]:
        """One node, as sinfo has it."""
        return node_rows(self.run, f"--nodes={name}")[0]

    def wait(self, job: Job, *states: str, timeout: float = 60) -> dict[str, str]:
        """Wait until the job is in one of the states (none named: in any state that is over) and give its record."""
        wanted = states or FINAL_STATES

        def in_state() -> dict[str, str] | None:
            record = self.show(job)
            return record if record["State"] in wanted else None

        return self.wait_for(in_state, timeout=timeout, what=f"job {job} to be {' or '.join(wanted)}")

    def wait_for(self, predicate: Callable[[], T | None], timeout: float = 60, what: str = "something") -> T:
        """Call `predicate` until it gives something true, and give that.

        Raises ClusterError with squeue and the end of slurmctld's log after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while True:
            if found := predicate():
                return found
            if time.monotonic() > end:
                raise ClusterError(f"waited {timeout:g} s for {what}, in vain\n{self.describe()}")
            time.sleep(0.05)

    def describe(self, lines: int = 40) -> str:
        """What a person wants to see when a test fails."""
        parts = []
        for argv in (("squeue", "--states=all", "-o", "%i %j %T %r %N"), ("sinfo", "-N", "-o", "%N %T %E")):
            try:
                parts.append(self.run(*argv, check=False, timeout=5).stdout)
            except (subprocess.TimeoutExpired, OSError) as error:
                parts.append(f"{argv[0]}: {error}\n")
        log = self.slurmctld_log().splitlines()[-lines:]
        return "".join(parts) + f"slurmctld.log ({self.folder}):\n" + "\n".join(log)

    # -- pieces -------------------------------------------------------------------------------------------------

    def append_conf(self, lines: str | Iterable[str]) -> None:
        """Add lines to slurm.conf. They count after reconfigure() or a restart."""
        text = lines if isinstance(lines, str) else "\n".join(lines)
        with self.slurm_conf.open("a", encoding="utf-8") as conf:
            conf.write(text.rstrip("\n") + "\n")

    def reconfigure(self, timeout: float = 30) -> None:
        """`scontrol reconfigure`, and wait until slurmctld answers again (from 23.11 on it starts itself anew)."""
        self.run("scontrol", "reconfigure", timeout=timeout)
        self._wait_for_slurmctld(timeout)
        self._wait_for_nodes(timeout, idle=False)

    def start_slurmctld(self, timeout: float = 30, nodes: bool = True) -> None:
        """With the state that the last one left. With `nodes`, waits until those whose slurmd runs answer (seconds)."""
        self._launch("slurmctld", "slurmctld")
        self._wait_for_slurmctld(timeout)
        if nodes:
            self._wait_for_nodes(timeout, idle=False, names=[node for node in self.nodes if self.daemon_pid(node)])

    def stop_slurmctld(self, kill: bool = False, timeout: float = 30) -> None:
        """As systemd stops it, or with SIGKILL at once.

        SIGTERM saves its state. 22.05 may then hang for ever where a hook was just being killed (slurmscriptd:
        "track_script_remove: thread ... not found"); systemd sends SIGKILL after TimeoutStopSec, and so do we.
        """
        if not kill:
            try:
                return self._end_daemon("slurmctld", signal.SIGTERM, STOP_PATIENCE)
            except ClusterError:
                if not self.daemon_pid("slurmctld"):
                    raise
        return self._end_daemon("slurmctld", signal.SIGKILL, timeout)

    def start_slurmd(self, node: str, timeout: float = 30) -> None:
        """Start it and wait until slurmctld takes the node for alive."""
        self._launch(node, "slurmd", "-N", node)
        self._wait_for_nodes(timeout, idle=False, names=[node])

    def kill_slurmd(self, node: str, steps: bool = True, timeout: float = 30) -> None:
        """The node dies: slurmd by SIGKILL, and (`steps`) everything that ran on it."""
        self._end_daemon(node, signal.SIGKILL, timeout)
        log = str(self.folder / f"log/{node}.log")
        processes = self.processes() if steps else []
        step_daemons = [entry for entry in processes if holds_open(entry.pid, log)]
        for entry in with_descendants(step_daemons, processes):
            send(entry, signal.SIGKILL)

    def daemon_pid(self, name: str) -> int:
        """The pid of "slurmctld", "munged" or a node's slurmd; 0 when it does not run."""
        try:
            pid = int((self.folder / f"run/{name}.pid").read_text())
        except (OSError, ValueError):
            return 0
        record = read_process(pid, self.folder)
        return pid if record is not None and record.names_us else 0

    def processes(self) -> list[ProcessRecord]:
        """Every process of this cluster: daemons, hooks, step daemons, jobs."""
        return find_processes(self.folder)

    # -- boot ---------------------------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        self._folder = folder
        write_owner(folder)
        folder.chmod(0o755)
        modes = {"state": 0o755, "log": 0o755, "run": 0o755, "spool": 0o755, "munge": 0o755, "work": 0o1777}
        for name, mode in modes.items():
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        for name in ("state", "log", "run"):
            shutil.chown(folder / name, self.slurm_user)
        key = folder / "munge/key"
        key.touch(0o400)
        key.write_bytes(secrets.token_bytes(128))

    def _boot(self, timeout: float) -> Self:
        end = time.monotonic() + timeout
        self._release_ports()
        try:
            self._ports = PortClaim.find(len(self.nodes) + 1)
        except OSError as error:
            raise ClusterUnavailable(f"{error}: end some of the clusters on this host") from None
        write_conf(self._plan, self.folder, self.version, self._ports.first)
        munge = self.folder / "munge"
        self._launch(
            "munged", "munged", f"--key-file={munge}/key", f"--socket={munge}/socket", f"--seed-file={munge}/seed",
            f"--log-file={self.folder}/log/munged.log", f"--pid-file={self.folder}/run/munged.pid", "--force",
        )  # fmt: skip
        self._launch("slurmctld", "slurmctld", "-c")
        self._wait_for_slurmctld(end - time.monotonic())
        for node in self.nodes:
            self._launch(node, "slurmd", "-N", node)
        self._wait_for_nodes(end - time.monotonic(), idle=True)
        return self

    def _launch(self, name: str, *argv: str) -> None:
        """A daemon forks itself away: what it says until then goes to a file, since it may keep the descriptor."""
        if self.daemon_pid(name):
            raise ClusterError(f"{name} is already running in {self.folder}")
        bare = {"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.slurm_conf), "LANG": "C.UTF-8"}
        output = self.folder / f"log/{name}.start"
        self._launched_at[name] = len(self._log(name))
        with output.open("wb") as stream:
            done = subprocess.run(
                argv, env=bare, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True, timeout=60, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            text = _read_text(output) + self._log_since_launch(name)
            raise ClusterError(f"{' '.join(argv)}: exit {done.returncode}: {text.strip()}")

    def _log(self, name: str) -> str:
        return _read_text(self.folder / f"log/{name}.log")

    def _log_since_launch(self, name: str) -> str:
        return self._log(name)[self._launched_at.get(name, 0) :]

    def _raise_if_ended(self, name: str) -> None:
        said = self._log_since_launch(name)
        if any(word in said for word in LAST_WORDS) and not self.daemon_pid(name):
            raise ClusterError(f"{name} has ended\n{said[-3000:]}")

    def _end_daemon(self, name: str, with_signal: signal.Signals, timeout: float) -> None:
        pid = self.daemon_pid(name)
        record = read_process(pid, self.folder) if pid else None
        if record is None:
            raise ClusterError(f"{name} is not running in {self.folder}")
        send(record, with_signal)
        self.wait_for(lambda: not is_same_process(record), timeout, f"{name} (pid {pid}) to end")

    def _wait_for_slurmctld(self, timeout: float) -> None:
        def answers() -> bool:
            self._raise_if_ended("slurmctld")
            return " UP" in self.run("scontrol", "ping", check=False).stdout

        self.wait_for(answers, timeout, "slurmctld to answer")

    def _wait_for_nodes(self, timeout: float, *, idle: bool, names: Sequence[str] | None = None) -> None:
        """Until the nodes answer and, if `idle`, are idle."""
        wanted = self.nodes if names is None else names

        def ready() -> bool:
            states = {row["NodeHost"]: row["StateComplete"] for row in node_rows(self.run)}
            for node in wanted:
                self._raise_if_ended(node)
            return all(_is_alive(states.get(node, "unknown"), idle) for node in wanted)

        self.wait_for(ready, timeout, f"{','.join(wanted)} to be {'idle' if idle else 'alive'}")

    def _release_ports(self) -> None:
        if self._ports is not None:
            self._ports.close()
            self._ports = None


_LIVE: set[PrivateCluster] = set()


def check_machine(slurm_user: str = "root") -> tuple[int, ...]:
    """Slurm's release, as (22, 5, 8). Raises ClusterUnavailable when no cluster can run here."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    if os.geteuid() != 0:
        raise ClusterUnavailable("a private cluster needs root (slurmd starts jobs as their users): run this as root")
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        raise ClusterUnavailable(f"{', '.join(missing)} not found: apt-get install slurm-wlm munge")
    try:
        pwd.getpwnam(slurm_user)
    except KeyError:
        raise ClusterUnavailable(f"no user {slurm_user}: Debian's slurm-wlm makes the user slurm") from None
    words = subprocess.run(
        ["slurmctld", "-V"], env={"PATH": path}, capture_output=True, text=True, check=False
    ).stdout  # fmt: skip
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", words)
    if found is None:
        raise ClusterUnavailable(f"slurmctld -V says {words.strip()!r}: is that Slurm?")
    return tuple(int(number) for number in found.groups() if number is not None)


def _is_alive(state: str, idle: bool) -> bool:
    if "*" in state or any(word in state for word in ("unknown", "down", "not_responding", "future")):
        return False
    return state == "idle" if idle else True


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _stop_all() -> None:
    for cluster in list(_LIVE):
        cluster.stop()


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Clean up, then die of the signal as if we had not been here."""
    _stop_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _catch_signals() -> None:
    """SIGTERM and SIGHUP would end Python without any clean-up. Somebody else's handlers stay."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _on_signal)


atexit.register(_stop_all)
