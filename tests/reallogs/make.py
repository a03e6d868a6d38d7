"""Make the real logs of tests/corpus/real again: real software, run on a private cluster, and what it printed.

    python -m tests.reallogs.make FOLDER [NAME...]

Writes one case folder for each row of cases.py (or for those named) into FOLDER: job.log, dmesg.NODE.log where the
kernel told of the job, and case.json. State, exit codes and nodes are what Slurm showed; labels are those of the table.
All runs in namespaces (`unshare`) that end with this command, and leaves nothing behind but the Python environments in
/var/tmp/reallogs: pip builds them once, some gigabytes; torch's CPU build is enough.

Run it as root. Needs Debian's slurm-wlm, munge, iproute2, openmpi-bin, libopenmpi-dev and gcc; half an hour for all
cases. Not a part of `make test`. Must not: edit a line of a log. Long ones lose whole lines of their middle.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.reallogs.cases import CASES
from tests.reallogs.hosts import Hosts, sh
from tests.reallogs.run import Case, Run

BUILD = Path("/var/tmp/reallogs")
PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENTS = {
    "torch": ("torch==2.13.0", "numpy", "accelerate==1.15.0", "lightning==2.6.6"),
    "jax": ("jax==0.10.2", "jaxlib==0.10.2", "mpi4py==4.1.2"),
}
INSIDE = "REALLOGS_INSIDE"
NODES, PREFIX = 3, "gn"
PREFIX_OF_LINE = rb"(?:\s*\d+: )?(?:\[[a-z]+\d+\]: ?)?(?:\[rank\d+\]: )?"
REPETITIVE = (  # frames of C++ stacks, steps that go well, frames of Python's tracebacks
    re.compile(PREFIX_OF_LINE + rb"frame #\d+: "),
    re.compile(PREFIX_OF_LINE + rb"step \d+"),
    re.compile(PREFIX_OF_LINE + rb"(?:  File|    +\S)"),
)
MAX_LINES, MAX_BYTES = 200, 40_000


def main(argv: Sequence[str]) -> int:
    if not argv:
        print("usage: python -m tests.reallogs.make FOLDER [NAME...]", file=sys.stderr)
        return 2
    folder, names = Path(argv[0]).absolute(), argv[1:]
    if unknown := set(names) - {case.name for case in CASES}:
        print(f"make: no case named {', '.join(sorted(unknown))}: see tests/reallogs/cases.py", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("make: run this as root: namespaces and slurmd need it", file=sys.stderr)
        return 1
    if INSIDE not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        for name, packages in ENVIRONMENTS.items():
            build(BUILD / name, packages)
        return enter(argv)
    folder = stage(folder)
    failed: list[str] = []
    with Hosts(NODES, PREFIX) as cluster:
        for case in CASES:
            if not names or case.name in names:
                try:
                    make(cluster, case, folder / case.name)
                except ClusterError as error:
                    failed.append(case.name)
                    print(f"{case.name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def build(home: Path, packages: Sequence[str]) -> None:
    """A virtual environment of this Python that is to be seen as /opt/NAME."""
    if (home / "ready").exists():
        return
    sh(sys._base_executable, "-m", "venv", "--clear", home)  # type: ignore[attr-defined]
    sh(home / "bin/pip", "install", "--quiet", *packages)
    for script in (home / "bin").iterdir():
        if not script.is_symlink() and script.read_bytes().startswith(f"#!{home}/bin/".encode()):
            rest = script.read_text().removeprefix(f"#!{home}")
            script.write_text(f"#!/opt/{home.name}{rest}")
    (home / "ready").touch()


def enter(argv: Sequence[str]) -> int:
    """Once more, in namespaces of our own. The end of this process is the end of all that runs in them."""
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", INSIDE: "1"}
    spaces = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    again = (sys.executable, "-B", "-m", "tests.reallogs.make", *argv)
    return subprocess.run(["nice", "unshare", *spaces, *again], env=env, check=False).returncode


def stage(folder: Path) -> Path:
    """The folders that the logs speak of, in place of those that are there. Gives where `folder` is now to be found."""
    sh("hostname", "ctl")
    sh("ip", "link", "set", "lo", "up")
    hosts, cases, programs = BUILD / "hosts", BUILD / "cases", BUILD / "programs"
    hosts.touch()
    sh("mount", "--bind", hosts, "/etc/hosts")
    cases.mkdir(exist_ok=True)
    sh("mount", "--bind", folder, cases)
    shutil.copytree(PROGRAMS, programs, dirs_exist_ok=True)
    for name, mode in {"/opt": 755, "/srv": 755, "/mnt": 755, "/var/spool": 755, "/tmp": 1777}.items():
        sh("mount", "-t", "tmpfs", "-o", f"mode={mode}", "none", name)
    Path("/var/spool/slurmd").mkdir()
    for name in ENVIRONMENTS:
        Path("/opt", name).mkdir()
        sh("mount", "--bind", BUILD / name, Path("/opt", name))
    shutil.copytree(programs, "/opt/train")
    for program in Path("/opt/train").glob("*.c"):
        sh("mpicc", "-g", "-o", program.with_suffix(""), program)
    return cases


def make(cluster: Hosts, case: Case, folder: Path) -> None:
    begun = time.time()
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    run = Run(cluster, case)
    record = run.finish()
    log = trimmed(run.log.read_bytes())
    case_file = json.dumps(described(run, record), indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.log").write_bytes(log)
    for old in folder.glob("dmesg.*.log"):
        old.unlink()
    for node, lines in run.kernel_lines(uptime).items():
        (folder / f"dmesg.{node}.log").write_text("".join(lines))
    (folder / "case.json").write_text(case_file)
    print(f"{case.name:45} {record['State']:14} {record['ExitCode']:6} {record['DerivedEC']:6} "
          f"{len(log.splitlines()):4} lines  {time.time() - begun:.0f} s", flush=True)  # fmt: skip


def described(run: Run, record: dict[str, str]) -> dict[str, object]:
    cluster, case = run.cluster, run.case
    exit_code, signal = record["ExitCode"].split(":")
    names = cluster.run("scontrol", "show", "hostnames", record["NodeList"]).stdout.split()
    versions = {"Slurm": cluster.release} | {name: version(name) for name in case.software}
    return {
        "id": case.name,
        "source": "printed by " + ", ".join(f"{name} {text}" for name, text in versions.items())
        + f" on the cluster of tests/reallogs: {case.command()}",
        "job": {
            "state": record["State"],
            "exit_code": int(exit_code),
            "signal": int(signal),
            "derived_exit_code": record["DerivedEC"],
            "nodes": names,
            "ntasks_per_node": case.tasks,
            "restart_count": int(record["RestartCnt"] or 0),
        },
        "expect": run.expected(),
        "why": case.why,
    }  # fmt: skip


def version(name: str) -> str:
    if name == "Open MPI":
        words = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout.split()
        return words[3] if len(words) > 3 else ""
    for environment in ENVIRONMENTS:
        found = sorted((BUILD / environment).glob(f"lib/python3*/site-packages/{name}-*.dist-info"))
        if found:
            return found[0].name.removeprefix(f"{name}-").removesuffix(".dist-info")
    return ""


def trimmed(log: bytes) -> bytes:
    """The log without whole lines of its middle, where it is long: those first of which there are too many anyway."""
    lines = log.splitlines(keepends=True)
    kept, size = set(range(len(lines))), len(log)

    def dull(at: int) -> tuple[int, int]:
        kind = next((number for number, pattern in enumerate(REPETITIVE) if pattern.match(lines[at])), len(REPETITIVE))
        return kind, abs(at - len(lines) // 2)

    for at in sorted(range(1, len(lines) - 1), key=dull):
        if len(kept) <= MAX_LINES and size <= MAX_BYTES:
            break
        kept.discard(at)
        size -= len(lines[at])
    return b"".join(lines[at] for at in sorted(kept))


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
