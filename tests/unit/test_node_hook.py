"""The node hooks as slurmd starts them: nothing for a good job, and exit 0 whatever becomes of the collector.

Real processes; a file system that hangs is FUSE without its daemon. As root.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_recovery.hooks.install import install_node_hooks, system_python
from slurm_recovery.node.collector import REFUSED
from slurm_recovery.node_report import NodeReport
from tests.nvml.build import build
from tests.nvml.state import Gpu, State

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

NOBODY = pwd.getpwnam("nobody").pw_uid
ENTRIES = {"epilog": "epilog.d/50-slurm-recovery", "gate": "prolog.d/50-slurm-recovery", "health": "health_check"}
GOOD = {"SLURM_JOB_EXIT_CODE": "0", "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_DERIVED_EC": "0"}
FAILED = {**GOOD, "SLURM_JOB_EXIT_CODE": "768", "SLURM_JOB_EXIT_CODE2": "3:0"}
TOLD = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
REAL = [sys.executable, "-I", "-m", "slurm_recovery.node.collector"]
TIMEOUT = 1.0


@dataclass
class Hooks:
    """Installed hooks, whose collector is a shell's script or the real one. `$0` is the test's folder."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    gate: bool = True
    timeout: float = TIMEOUT
    said: str = ""
    run_dir: str = "/nowhere/%n"

    @property
    def evidence(self) -> Path:
        return self.folder / "evidence"

    @property
    def mark(self) -> Path:
        """What a collector leaves that was started."""
        return self.folder / "mark"

    def script(self, text: str) -> None:
        self.collector(["/bin/sh", "-c", f"echo $$ > {self.mark}; {text}", str(self.folder)])

    def real(self, **options: str) -> None:
        self.evidence.mkdir(exist_ok=True)
        asked = {"--evidence-dir": str(self.evidence), "--timeout": str(self.timeout)} | options
        self.collector([*REAL, *(word for pair in asked.items() for word in pair)])

    def collector(self, command: list[str]) -> None:
        settings: dict[str, object] = {"collector": command, "environment": self.environment}
        settings |= {"timeout": self.timeout, "gate": self.gate, "run_dir": self.run_dir}
        install_node_hooks(self.folder / "hooks", settings)

    def path(self, entry: str) -> Path:
        return self.folder / "hooks" / ENTRIES[entry]

    def run(self, entry: str, told: dict[str, str] | None = None, path: Path | None = None) -> int:
        """The hook's exit status; what it said is in `said`. stdin, stdout and stderr are as slurmd gives them."""
        environment = TOLD | (told if told is not None else FAILED)
        done = subprocess.run(
            [str(path or self.path(entry))],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
        self.said = done.stdout.decode()
        return done.returncode


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)


def gone(process: int) -> bool:
    """Whether it ended, within a second."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


# --- a job that ended well


def test_a_job_that_ended_well_starts_nothing(hooks: Hooks) -> None:
    hooks.script("true")
    assert hooks.run("epilog", GOOD) == 0
    assert hooks.run("epilog", {}) == 0
    assert not hooks.mark.exists()
    assert hooks.said == ""
    assert hooks.run("epilog", FAILED) == 0
    assert hooks.mark.exists()


def test_a_job_that_ended_well_forks_nothing(hooks: Hooks) -> None:
    """The kernel's own count: no process but the hook's own, which sh becomes."""
    hooks.script("true")
    follow = (
        "import os, sys\n"
        "def numbers(): return int(open('/proc/self/status').read().split('\\nPid:')[1].split()[0])\n"
        "unshare = os.fork()\n"
        "if not unshare: os.execve(sys.argv[1], [sys.argv[1]], dict(os.environ))\n"
        "os.waitpid(unshare, 0)\n"
        "after = os.fork()\n"
        "if not after: os._exit(0)\n"
        "os.waitpid(after, 0); print(after - unshare - 1)"
    )

    def forks(told: dict[str, str]) -> int:
        """In a pid namespace of its own, numbers are given one after the other."""
        command = ["unshare", "--pid", "--fork", sys.executable, "-I", "-c", follow, str(hooks.path("epilog"))]
        done = subprocess.run(command, env=TOLD | told | {"PATH": os.environ["PATH"]}, capture_output=True, check=True)
        return int(done.stdout)

    assert forks(GOOD) == 0
    assert forks(FAILED) > 0


def test_a_job_that_ended_well_costs_at_most_half_an_interpreter_more(hooks: Hooks) -> None:
    hooks.script("true")
    bare, ours = [], []
    environment = TOLD | GOOD | {"SLURM_JOB_COMMENT": "x" * 1000}
    for _ in range(30):
        for command, times in (
            ([system_python(), "-I", "-S", "-c", "pass"], bare),
            ([str(hooks.path("epilog"))], ours),
        ):
            began = time.perf_counter()
            assert os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(command[0], command, environment), 0)[1]) == 0
            times.append(time.perf_counter() - began)
    quickest = min(ours) / min(bare)
    median = statistics.median(ours) / statistics.median(bare)
    print(f"quickest {min(ours) * 1e3:.1f} ms, {quickest:.2f} bare interpreters; by medians {median:.2f}")
    assert quickest <= 1.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_EXIT_CODE", "256"),
        ("SLURM_JOB_EXIT_CODE2", "0:9"),
        ("SLURM_JOB_EXIT_CODE2", "0:125"),
        ("SLURM_JOB_DERIVED_EC", "256"),  # a step failed, and the script went on
        ("SLURM_JOB_EXIT_CODE", "?"),
    ],
)
def test_each_sign_of_failure_starts_the_collector(hooks: Hooks, name: str, value: str) -> None:
    hooks.script("true")
    assert hooks.run("epilog", GOOD | {name: value}) == 0
    assert hooks.mark.exists()


def test_a_gate_that_is_off_starts_nothing(hooks: Hooks) -> None:
    hooks.gate = False
    hooks.script(f"exit {REFUSED}")
    for told in ({}, {"SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_COMMENT": "my run"}, {"SPANK_RECOVERY": "act"}):
        assert hooks.run("gate", told) == 0
    assert not hooks.mark.exists()


@pytest.mark.parametrize(
    "told",
    [
        {"SLURM_JOB_RESTART_COUNT": "1"},
        {"SPANK_RECOVERY_CHECKPOINT": "/ckpt"},
        {"SLURM_JOB_COMMENT": "x; Recovery=act,checkpoint=/ckpt"},
    ],
    ids=["restart", "option", "comment"],
)
def test_a_job_that_is_to_be_told_something_starts_the_collector_and_is_never_refused(
    hooks: Hooks, told: dict[str, str]
) -> None:
    hooks.gate = False
    hooks.script(f"exit {REFUSED}")
    assert hooks.run("gate", told) == 0
    assert hooks.mark.exists()


def test_a_restarted_job_that_ended_well_starts_the_collector(hooks: Hooks) -> None:
    hooks.script("true")
    assert hooks.run("epilog", GOOD | {"SLURM_JOB_RESTART_COUNT": "0"}) == 0
    assert not hooks.mark.exists()
    assert hooks.run("epilog", GOOD | {"SLURM_JOB_RESTART_COUNT": "1"}) == 0
    assert hooks.mark.exists()


def test_the_epilog_takes_away_what_the_prolog_left(hooks: Hooks) -> None:
    hooks.run_dir = f"{hooks.folder}/it's a run dir/%n"
    hooks.script("true")
    run_dir = hooks.folder / "it's a run dir/n1"
    run_dir.mkdir(parents=True)
    for name in ("7", "8"):
        (run_dir / name).touch()
    assert hooks.run("epilog", GOOD) == 0
    assert [path.name for path in run_dir.iterdir()] == ["8"]
    hooks.gate = False
    hooks.script("true")
    (run_dir / "7").touch()
    assert hooks.run("gate", {}) == 0
    assert hooks.mark.exists(), "an attempt whose Epilog never ran left it"
    assert hooks.said == ""


def test_a_health_check_needs_no_job(hooks: Hooks) -> None:
    hooks.script("true")
    assert hooks.run("health", {}) == 0
    assert hooks.mark.exists()


# --- how the collector is started


def test_the_collector_gets_slurms_variables_and_ours_as_they_are(hooks: Hooks) -> None:
    hooks.environment = {"LD_LIBRARY_PATH": "/opt/nvml", "SLURM_CONF": "/ours"}
    hooks.collector(
        [
            "/usr/bin/python3",
            "-IS",
            "-c",
            f"import os, sys; open({str(hooks.mark)!r}, 'w').write(repr((dict(os.environb), sys.argv[1:])))",
        ]
    )
    hostile = "x\nSLURM_JOB_ID=9\n$(touch /tmp/x) \udcff"
    told = {"SLURM_JOB_COMMENT": hostile, "PATH": "/evil", "LD_PRELOAD": "", "SPANK_X": "1", "SLURM_CONF": "/theirs"}
    assert hooks.run("epilog", FAILED | told) == 0
    environment, arguments = eval(hooks.mark.read_text())
    expected = TOLD | FAILED | {"SLURM_JOB_COMMENT": hostile} | hooks.environment
    environment.pop(b"LC_CTYPE", None)  # Python's own
    assert environment == {os.fsencode(name): os.fsencode(value) for name, value in expected.items()}
    assert arguments == ["--kind", "epilog"]


def test_the_collector_holds_nothing_of_slurmds_and_is_of_the_lowest_priority(hooks: Hooks) -> None:
    hooks.script(
        f"ls -l /proc/$$/fd > {hooks.folder}/files; cat /proc/$$/stat > {hooks.folder}/stat; pwd > {hooks.folder}/pwd"
    )
    own = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(own, True)
    try:
        assert hooks.run("epilog") == 0
    finally:
        os.close(own)
    stat = (hooks.folder / "stat").read_text().rpartition(")")[2].split()
    group, session, nice = stat[2], stat[3], stat[16]
    assert group == session == hooks.mark.read_text().strip()
    assert nice == "19"
    files = {
        line.split()[-3]: line.split()[-1] for line in (hooks.folder / "files").read_text().splitlines() if "->" in line
    }
    assert files["0"] == files["1"].replace(str(hooks.folder / "files"), "/dev/null") == "/dev/null"
    assert files["2"].startswith("pipe:")
    assert (hooks.folder / "pwd").read_text() == "/\n"


def test_closed_descriptors_do_no_harm(hooks: Hooks) -> None:
    hooks.script(f"echo words >&2; ls /proc/$$/fd > {hooks.folder}/files")
    command = ["/bin/sh", "-c", f"exec {hooks.path('epilog')} 0<&- 1>&- 2>&-"]
    assert subprocess.run(command, env=TOLD | FAILED, check=False).returncode == 0
    assert {"0", "1", "2"} <= set((hooks.folder / "files").read_text().split())


def test_what_the_collector_says_is_said_to_slurmd_and_bounded(hooks: Hooks) -> None:
    hooks.script("echo 'slurm_recovery: words' >&2; exit 1")
    assert hooks.run("epilog") == 0
    assert hooks.said == "slurm_recovery: words\n"
    hooks.script("head -c 60000 /dev/zero | tr '\\0' x >&2")
    assert hooks.run("epilog") == 0
    assert len(hooks.said) == 4097


def test_a_link_to_the_hook_will_do(hooks: Hooks) -> None:
    hooks.script("true")
    link = hooks.folder / "site.d/50-ours"
    link.parent.mkdir()
    link.symlink_to(hooks.path("epilog"))
    assert hooks.run("epilog", path=link) == 0
    assert hooks.mark.exists()


# --- whatever goes wrong, exit 0


FAILING = {
    "exits 1": "exit 1",
    "exits as a gate that refuses": f"exit {REFUSED}",
    "killed": "kill -9 $$",
    "crashes": "kill -SEGV $$",
    "says no word of text": "head -c 100 /dev/urandom >&2",
    "closes all": "exec 0<&- 1>&- 2>&-; exit 3",
}


@pytest.mark.parametrize("entry", ["epilog", "health"])
@pytest.mark.parametrize("how", FAILING)
def test_a_collector_that_fails_is_nothing_to_slurmd(hooks: Hooks, how: str, entry: str) -> None:
    environment = TOLD | FAILED
    hooks.script(FAILING[how])
    done = subprocess.run([str(hooks.path(entry))], env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0
    assert hooks.mark.exists()


@pytest.mark.parametrize(
    "command", [["/nonexistent/python"], ["/etc/passwd"], ["/"], [], ["/bin/sh", "-c", 5], "no list", None]
)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_collector_that_cannot_be_started_is_nothing_to_slurmd(hooks: Hooks, command: list[str], entry: str) -> None:
    hooks.collector(command)
    assert hooks.run(entry) == 0


def test_a_collector_that_is_missing_is_said(hooks: Hooks) -> None:
    hooks.collector(["/nonexistent/python"])
    hooks.run("epilog")
    assert hooks.said.startswith("slurm_recovery: /nonexistent/python: FileNotFoundError")


@pytest.mark.parametrize("broken", ["module", "half a module", "settings", "interpreter"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_broken_installation_is_nothing_to_slurmd(hooks: Hooks, broken: str, entry: str) -> None:
    """slurmd drains a node whose Prolog or Epilog fails."""
    hooks.script("true")
    module = hooks.folder / "hooks/slurm_recovery_node_hook.py"
    if broken == "module":
        module.unlink()
    elif broken == "half a module":
        module.write_text(module.read_text()[:1500])
    elif broken == "settings":
        hooks.path(entry).write_text(
            hooks.path(entry).read_text().replace('"gate"', '"gat"').replace('"timeout"', '"t"')
        )
    else:
        lines = hooks.path(entry).read_text().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if line.startswith("python="))
        lines[at] = "python=/nonexistent/python3\n"
        hooks.path(entry).write_text("".join(lines))
    assert hooks.run(entry) == 0
    assert not hooks.mark.exists()


HANGING = {
    "sleeps": "exec sleep 60",
    "ignores signals": "trap '' TERM INT HUP; while true; do sleep 1; done",
    "stopped": "kill -STOP $$",
    "leaves its children behind": "sleep 60 & echo $! > $0/child; exec sleep 61",
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("how", HANGING)
def test_a_collector_that_hangs_is_ended_in_time(hooks: Hooks, how: str, entry: str) -> None:
    hooks.script(HANGING[how])
    began = time.monotonic()
    assert hooks.run(entry) == 0  # and so slurmd's pipe was closed, which run() waits for
    assert TIMEOUT - 0.1 < time.monotonic() - began < TIMEOUT + 3
    assert "did not end in 1.0 s" in hooks.said
    assert gone(int(hooks.mark.read_text()))
    if "children" in how:
        assert gone(int((hooks.folder / "child").read_text()))


def test_children_that_outlive_the_collector_are_ended_and_not_waited_for(hooks: Hooks) -> None:
    hooks.script("sleep 60 & echo $! > $0/child; exit 0")
    began = time.monotonic()
    assert hooks.run("epilog") == 0
    assert time.monotonic() - began < 3
    assert gone(int((hooks.folder / "child").read_text()))


def test_the_collector_ends_where_the_hook_was_killed(hooks: Hooks) -> None:
    """slurmd kills hooks after PrologEpilogTimeout; nobody is left to end the collector."""
    hooks.environment = {"LD_LIBRARY_PATH": str(build(hooks.folder / "nvml").parent)}
    State([Gpu(temperature="hang")]).write(hooks.folder / "nvml")
    hooks.real()
    with subprocess.Popen([str(hooks.path("health"))], env=TOLD) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        collector = ""
        deadline = time.monotonic() + 5
        while not collector and time.monotonic() < deadline:
            collector = children.read_text().strip()
        running.kill()
    for _ in range(40):
        if gone(int(collector)):
            return
    raise AssertionError("the collector lives on")


# --- the gate


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 0), (REFUSED, 1), (100, 0), (127, 0)])
def test_only_the_collectors_word_closes_the_gate(hooks: Hooks, code: int, status: int) -> None:
    hooks.script(f"echo why >&2; exit {code}")
    assert hooks.run("gate") == status
    assert hooks.said == "why\n"


def test_a_word_that_comes_too_late_closes_no_gate(hooks: Hooks) -> None:
    hooks.script(f"sleep 1.5; exit {REFUSED}")
    assert hooks.run("gate") == 0


# --- the real collector


def report(hooks: Hooks) -> NodeReport:
    (path,) = (hooks.evidence / "n1").glob("*.json")
    return NodeReport.model_validate_json(path.read_bytes())


def real(hooks: Hooks, **options: str) -> Hooks:
    hooks.timeout = 4.0
    hooks.real(**options)
    hooks.evidence.chmod(0o2750)
    return hooks


def test_a_failed_jobs_report_is_left(hooks: Hooks) -> None:
    real(hooks)
    assert hooks.run("epilog") == 0
    assert hooks.said == ""
    assert (report(hooks).kind, report(hooks).job_id, report(hooks).exit_code) == ("epilog", 7, "3:0")


@pytest.mark.parametrize("trouble", ["missing", "a user's", "full", "read-only"])
def test_trouble_with_evidence_dir_is_one_line_in_slurmds_log(hooks: Hooks, trouble: str) -> None:
    real(hooks)
    if trouble == "missing":
        hooks.evidence.rmdir()
    elif trouble == "a user's":
        os.chown(hooks.evidence, NOBODY, NOBODY)
    else:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,mode=2750", "none", str(hooks.evidence)], check=True)
        if trouble == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(hooks.evidence)], check=True)
    try:
        assert hooks.run("epilog") == 0
        assert not list(hooks.evidence.glob("n1/*"))
    finally:
        subprocess.run(
            ["umount", str(hooks.evidence)], check=trouble not in ("missing", "a user's"), capture_output=True
        )
    words = {"missing": "ENOENT", "a user's": "belongs to uid", "full": "ENOSPC", "read-only": "EROFS"}
    assert words[trouble] in hooks.said
    assert hooks.said.count("\n") == 1


@pytest.fixture
def hanging(open_folder: Path) -> Iterator[Path]:
    """A FUSE file system whose daemon never answers: whoever touches it hangs in the kernel."""
    folder = open_folder / "hanging"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    try:
        assert libc.mount(b"none", os.fsencode(folder), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
        yield folder
    finally:
        os.close(device)  # whoever hangs is let go
        libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


def test_it_does_hang(hanging: Path) -> None:
    with subprocess.Popen(["/bin/ls", str(hanging)], stdout=subprocess.DEVNULL) as listing:
        with pytest.raises(subprocess.TimeoutExpired):
            listing.wait(0.5)
        listing.send_signal(signal.SIGKILL)


def test_an_evidence_dir_that_hangs_costs_no_more_than_the_timeout(hooks: Hooks, hanging: Path) -> None:
    hooks.real(**{"--evidence-dir": str(hanging)})
    began = time.monotonic()
    assert hooks.run("epilog") == 0
    assert time.monotonic() - began < TIMEOUT + 3
    assert "did not end" in hooks.said


def test_a_gate_whose_brake_hangs_stays_open(hooks: Hooks, hanging: Path) -> None:
    hooks.environment = {"LD_LIBRARY_PATH": str(build(hooks.folder / "nvml").parent)}
    State([Gpu(all="gpu_is_lost")]).write(hooks.folder / "nvml")
    hooks.real(**{"--evidence-dir": str(hanging)})
    began = time.monotonic()
    assert hooks.run("gate") == 0
    assert time.monotonic() - began < TIMEOUT + 3


def test_a_collector_that_lies_on_what_hangs_is_left_behind(hooks: Hooks, hanging: Path) -> None:
    hooks.collector([str(hanging / "python")])
    began = time.monotonic()
    assert hooks.run("epilog") == 0
    assert time.monotonic() - began < TIMEOUT + 3


def test_a_kernel_log_and_a_job_log_that_hang_are_gaps(hooks: Hooks, hanging: Path) -> None:
    real(hooks, **{"--kernel-log": str(hanging / "kernel.log")})
    job = {"SLURM_JOB_UID": str(NOBODY), "SLURM_NODELIST": "n1", "SLURM_JOB_WORK_DIR": str(hanging)}
    began = time.monotonic()
    assert hooks.run("epilog", FAILED | job) == 0
    assert time.monotonic() - began < 6
    gaps = {gap.source: gap.why for gap in report(hooks).gaps}
    assert gaps["kernel_log"] == gaps["job_log"] == "no answer in time"
