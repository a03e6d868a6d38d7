"""Gathers what a compute node knows of itself into one report. The node hooks start it, as root.

Owns which parts a report has (the form is node_report.NodeReport) and how long each may take: every part is read by a
process of its own, all at once, and one that hangs or fails is a gap. So a report is written whatever happened to its
parts. Standard library and pynvml only: the controller, not the node, says what a reading means; only the Prolog's
gate must judge here. Sends no RPC.

Before a job starts it also leaves there what the job is to be told (`start`, and `gate`).

Exit status: 0 written; 99 (`gate` only) the node must not get the job; else nothing was written, with one line of why.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slurm_recovery.evidence.as_user import Child, TooLate, Write
from slurm_recovery.node import checkpoints, job_tail
from slurm_recovery.node.report_file import HEALTH, MOST_BYTES, Refused, is_node, write_report

if TYPE_CHECKING:
    from slurm_recovery.resume import Resume

FORMAT = 1  # node_report.FORMAT
REFUSED = 99
NICE = 19
SHARE_OF_PARTS = 0.7  # of the timeout; the rest is for writing
SHARE_OF_LAST = 0.2  # for reading the last health report, before the parts
SHARE_OF_RESUME = 0.4  # for reading what the controller tells a restarted job
SHARE_OF_FINDING = 0.8  # of the time of its part: then what was found so far is told
SKEW = 60.0  # seconds that a job's start may lie before it in the node's clock
DAY = 86400.0  # how far back the kernel's log is read where Slurm does not tell the job's start
MOST_GAPS = 64
MOST_ANSWER = 64 << 20
INSTANCE_ID = "/var/lib/cloud/data/instance-id"  # cloud-init
SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")  # slurmd's own defaults; the latter configless
# include/uapi/linux/ioprio.h; ioprio_set(2) has no function in libc, and its number depends on the machine
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13

Answer = dict[str, Any]


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="slurm_recovery.node.collector", description=__doc__, allow_abbrev=False)
    parser.add_argument("--kind", required=True, choices=("epilog", "health", "gate", "start"))
    parser.add_argument("--evidence-dir", required=True)
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds until the hook ends us")
    parser.add_argument("--evidence-bytes", type=int, default=16 << 20)
    parser.add_argument("--kernel-log", default="/dev/kmsg")
    parser.add_argument("--kernel-log-bytes", type=int, default=256 << 10)
    parser.add_argument("--job-log-bytes", type=int, default=1 << 20)
    parser.add_argument("--slurm-conf", default="", help="where Slurm does not tell it")
    parser.add_argument("--max-drains-per-hour", type=int, default=4)
    parser.add_argument("--run-dir", default="/run/slurm_recovery", help="%%n is the node's name")
    parser.add_argument("--checkpoint", choices=("yes", "no"), default="yes", help="whether a job may name its folder")
    parser.add_argument("--checkpoint-otherwise", default="", help="partitions, with commas, where that is not so")
    parser.add_argument("--checkpoint-formats", default="[]", help="JSON: a list of [name, pattern, marker]")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    lower_priority()
    asked = options(arguments)
    # Should the hook be killed, nobody else ends us. slurmd's hooks may have signals blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, asked.timeout + 1)
    os.umask(0o077)
    node = os.environ.get("SLURMD_NODENAME", "")
    if not is_node(node):
        return say(f"SLURMD_NODENAME is {node[:80]!r}; hint: only slurmd runs this hook")
    collector = Collector(asked, node, started())
    try:
        if asked.kind in ("start", "gate"):
            collector.tell()
            return collector.gate() if asked.kind == "gate" else 0
        return collector.report()
    except Refused as refused:
        say(str(refused))
        return 0
    except OSError as error:
        return say(f"{asked.evidence_dir}: {named(error)}; hint: EvidenceDir; {node} left no report")


def started() -> float:
    """When the hook started us, as a time of time.monotonic(): on a busy node that is long ago."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])  # proc(5): starttime, since boot
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(0.0, age)


def lower_priority() -> None:
    """Behind everything else that the node does. The hook has set `nice` already, unless somebody runs us by hand."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


class Collector:
    """One run. `began` is a time of time.monotonic()."""

    def __init__(self, asked: argparse.Namespace, node: str, began: float) -> None:
        self.asked = asked
        self.node = node
        self.began = began
        self.nanoseconds = time.time_ns()
        self.now = self.nanoseconds / 1e9
        self.gaps: list[dict[str, str]] = []

    def report(self) -> int:
        """`epilog` and `health`: all parts, written. Of a good end only what the job saved, and only where it did."""
        report = self.empty()
        if self.asked.kind == "epilog" and self.ended_well():
            return self.saved(report)
        last = self.last_health(report["boot_id"])
        since = self.kernel_since(report, last)
        report["kernel_since"] = since
        report["ecc_before"] = last.get("ecc", {})
        deadline = self.began + self.asked.timeout * SHARE_OF_PARTS
        with contextlib.ExitStack() as running:
            parts = [
                running.enter_context(Part(source, what, work, 0, deadline))
                for source, what, work in (
                    ("kernel_log", self.kernel_log_path(), lambda: self.kernel(since, deadline)),
                    ("node", "slurm.conf", self.configured),
                )
            ]
            if self.asked.kind == "epilog" and (logs := self.job_logs(report["start_time"], deadline)):
                parts.append(running.enter_context(logs))
            if self.asked.kind == "epilog" and (look := self.checkpoints(deadline)):
                parts.append(running.enter_context(look))
            self.take(report, self.gpus(deadline))
            for part in parts:
                self.take(report, part.answer())
        self.write(report, HEALTH if self.asked.kind == "health" else f"{report['job_id']}.{self.nanoseconds}.json")
        return 0

    def saved(self, report: Answer) -> int:
        """A restarted job that ended well: its checkpoints, where it has a folder of them."""
        report["kernel_since"] = self.now  # nothing before it was looked at
        look = self.checkpoints(self.began + self.asked.timeout * SHARE_OF_PARTS)
        if look:
            with look:
                self.take(report, look.answer())
            self.write(report, f"{report['job_id']}.{self.nanoseconds}.json")
        return 0

    def tell(self) -> None:
        """Leave in RunDir what TaskProlog tells the job; nothing of it is worth keeping the job from its start."""
        from slurm_recovery.node.told import merge, number, remove_told, write_told
        from slurm_recovery.resume import Refused as Disbelieved

        told = os.environ
        job_id = number(told, "SLURM_JOB_ID")
        run_dir = self.asked.run_dir.replace("%n", self.node)
        deadline = self.began + self.asked.timeout * SHARE_OF_RESUME
        restarts = number(told, "SLURM_JOB_RESTART_COUNT")
        folder = checkpoints.folder_of(told, self.may_name_a_folder())
        try:
            remove_told(run_dir, job_id)
            if restarts or folder:
                resume = merge(job_id, restarts, folder, self.written(job_id, deadline) if restarts else None)
                write_told(run_dir, resume, number(told, "SLURM_JOB_UID"))
        except Disbelieved as refused:
            say(str(refused))
        except OSError as error:
            say(f"{run_dir}: {named(error)}; hint: RunDir; job {job_id} is not told that it is a restart")

    def written(self, job_id: int, deadline: float) -> Resume | None:
        """What the controller wrote for the job. A child reads it: EvidenceDir may hang."""
        from slurm_recovery.resume import Refused as Disbelieved
        from slurm_recovery.resume import decode, encode, read_resume

        def work() -> Answer:
            try:
                resume = read_resume(self.asked.evidence_dir, job_id)
            except Disbelieved as refused:
                raise ValueError(str(refused)) from None
            return {"resume": encode(resume).decode("ascii") if resume else ""}

        with Part("node", self.asked.evidence_dir, work, 0, deadline) as part:
            answer = part.answer()
        for gap in answer.get("gaps", []):
            say(f"{self.asked.evidence_dir}: {gap['why']}; job {job_id} is not told why it was restarted")
        return decode(str(answer["resume"]).encode()) if answer.get("resume") else None

    def gate(self) -> int:
        """Only the GPUs; a node with a fault that is proven and present refuses, if the brake allows it."""
        from slurm_recovery.node.gate import claim
        from slurm_recovery.node.present import present_faults

        report = self.empty()
        deadline = self.began + self.asked.timeout * SHARE_OF_PARTS
        with Part("node", "slurm.conf", self.configured, 0, deadline) as configured:
            self.take(report, self.gpus(deadline))
            self.take(report, configured.answer())
        report["gaps"] = self.gaps
        faults = present_faults(report)
        if not faults:
            return 0
        try:
            refuses = claim(self.asked.evidence_dir, self.node, self.asked.max_drains_per_hour)
            why = "" if refuses else f"{self.asked.max_drains_per_hour} nodes did so within an hour (MaxDrainsPerHour)"
        except (OSError, Refused) as error:
            refuses, why = False, named(error) if isinstance(error, OSError) else str(error)
        with contextlib.suppress(OSError, Refused):
            self.write(report, f"gate.{report['job_id']}.{self.nanoseconds}.json")
        fault = f"{faults[0].reason}: {faults[0].sentence}"
        say(f"{fault} {self.node} " + ("refuses the job" if refuses else f"takes the job all the same: {why}"))
        return REFUSED if refuses else 0

    def empty(self) -> Answer:
        """What is known at once: of the node, and of the job by the hook's variables."""
        told = os.environ
        return {
            "format": FORMAT,
            "kind": self.asked.kind,
            "node": self.node,
            "time": self.now,
            "boot_id": first_line("/proc/sys/kernel/random/boot_id", 64),
            "boot_time": self.now - time.clock_gettime(time.CLOCK_BOOTTIME),
            "instance_id": first_line(INSTANCE_ID, 255),
            "job_id": number(told.get("SLURM_JOB_ID")) or 0,
            "restart_count": number(told.get("SLURM_JOB_RESTART_COUNT")),
            "start_time": number(told.get("SLURM_JOB_START_TIME")) or None,
            "exit_code": job_tail.printable(told.get("SLURM_JOB_EXIT_CODE2", ""))[:32],
            "driver": "",
            "gpus_configured": None,
            "gpus_on_bus": None,
            "gpus": [],
            "ecc_before": {},
            "kernel": "",
            "kernel_since": 0.0,
            "logs": [],
            "checkpoints": None,
            "gaps": [],
        }

    def kernel_since(self, report: Answer, last: Answer) -> float:
        """Never before this boot."""
        boot, start = float(report["boot_time"]), report["start_time"]
        if self.asked.kind == "health":
            return max(boot, float(last.get("time", 0.0)) - SKEW)
        return max(boot, float(start) - SKEW if start else self.now - DAY)

    def take(self, report: Answer, answer: Answer) -> None:
        self.gaps += answer.pop("gaps", [])
        report.update(answer)

    def write(self, report: Answer, name: str) -> None:
        report["gaps"] = self.gaps[:MOST_GAPS]
        write_report(self.asked.evidence_dir, report, name, self.asked.evidence_bytes)

    # --- the parts: each a function that a process of its own runs

    def last_health(self, boot_id: str) -> Answer:
        """When this node's last health check was, and its ECC counts, where it was of the same boot."""
        deadline = self.began + self.asked.timeout * SHARE_OF_LAST
        path = f"{self.asked.evidence_dir}/{self.node}/{HEALTH}"
        with Part("node", path, lambda: of_last_health(path, boot_id), 0, deadline) as part:
            answer = part.answer()
        self.gaps += answer.pop("gaps", [])
        return answer

    def kernel_log_path(self) -> str:
        return str(self.asked.kernel_log).replace("%n", self.node)

    def kernel(self, since: float, deadline: float) -> Answer:
        from slurm_recovery.node.kernel_log import read_kernel_log

        timeout = max(0.1, deadline - time.monotonic() - 0.2)
        log = read_kernel_log(self.kernel_log_path(), since, self.asked.kernel_log_bytes, timeout)
        return {"kernel": log.text, "gaps": log.gaps}

    def configured(self) -> Answer:
        from slurm_recovery.node.configured import configured_gpus

        told = (os.environ.get("SLURM_CONF", ""), self.asked.slurm_conf, *SLURM_CONFS)
        path = next((path for path in told if path and os.path.isfile(path)), "")
        return {"gpus_configured": configured_gpus(path, self.node) if path else None}

    def gpus(self, deadline: float) -> Answer:
        """By a process of its own, too: read_gpus sees to it."""
        from slurm_recovery.node.gpus import gpus_on_bus, read_gpus

        reading = read_gpus(max(0.1, deadline - time.monotonic()))
        return {
            "driver": reading.driver,
            "gpus": reading.gpus,
            "gpus_on_bus": gpus_on_bus(),
            "gaps": reading.gaps,
        }

    def job_logs(self, start: float | None, deadline: float) -> Part | None:
        """On the batch node only; as the job's user."""
        most = self.asked.job_log_bytes
        if most <= 0:
            return None
        job = job_tail.job_of(os.environ, start)
        if isinstance(job, str):
            self.gaps.append(job_tail.gap("the job's log", job))
            return None
        if job.node != self.node:
            return None
        return Part("job_log", "the job's log", lambda: job_tail.read_logs(job, most), job.user_id, deadline)

    def checkpoints(self, deadline: float) -> Part | None:
        """On the batch node only; as the job's user. None where nobody knows a folder."""
        folder = checkpoints.folder_of(os.environ, self.may_name_a_folder())
        if not folder or job_tail.batch_node(os.environ.get("SLURM_NODELIST", "")) != self.node:
            return None
        user = number(os.environ.get("SLURM_JOB_UID"))
        if user is None:
            self.gaps.append(checkpoints.gap(folder, "Slurm did not tell the job's user"))
            return None
        rules = checkpoints.rules_of(self.asked.checkpoint_formats)
        until = time.monotonic() + (deadline - time.monotonic()) * SHARE_OF_FINDING
        what = checkpoints.printable(folder)
        return Part(checkpoints.SOURCE, what, lambda: checkpoints.look(folder, rules, until), user, deadline)

    def may_name_a_folder(self) -> bool:
        """JobOptions of the job's partition."""
        partition = os.environ.get("SLURM_JOB_PARTITION", "")
        otherwise = bool(partition) and partition in self.asked.checkpoint_otherwise.split(",")
        return (self.asked.checkpoint == "yes") is not otherwise

    def ended_well(self) -> bool:
        """As the hook sees it; where Slurm says nothing, the job counts as failed."""
        told = [os.environ.get(f"SLURM_JOB_{name}") for name in ("EXIT_CODE", "EXIT_CODE2", "DERIVED_EC")]
        return told[1] == "0:0" and told[0] in (None, "0") and told[2] in (None, "0")


class Part:
    """`with Part(...) as part: part.answer()`: `work` runs as `user_id` and is given up at the deadline.

    The answer is a part of a report, and perhaps `gaps`.
    """

    def __init__(self, source: str, what: str, work: Callable[[], Answer], user_id: int, deadline: float) -> None:
        self._source, self._what = source, what
        self._child: Child | None
        left = max(0.1, deadline - time.monotonic())

        def answer(write: Write) -> None:
            signal.setitimer(signal.ITIMER_REAL, left + 1)
            write(json.dumps(work(), allow_nan=False).encode("ascii"))

        self._child, self._why = None, ""
        try:
            self._child = Child(answer, user_id, deadline)
        except OSError as error:
            self._why = named(error)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._child.__exit__(None, None, None)

    def answer(self) -> Answer:
        if not self._child:
            return self._gap(self._why)
        try:
            data = self._child.read(MOST_ANSWER)
        except TooLate:
            return self._gap("no answer in time")
        if data.startswith(b"-"):
            return self._gap(data[1:500].decode(errors="replace"))
        try:
            answer = json.loads(data)
        except ValueError:
            return self._gap("the reader ended")
        return answer if isinstance(answer, dict) else self._gap("no answer")

    def _gap(self, why: str) -> Answer:
        return {"gaps": [{"source": self._source, "what": self._what[:4096], "why": why}]}


def of_last_health(path: str, boot_id: str) -> Answer:
    """`time`, and `ecc` by GPU; nothing where there is none of this boot, or none of root's."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            return {}
        last = json.loads(file.read(MOST_BYTES + 1))
    if not isinstance(last, dict) or last.get("boot_id") != boot_id or not isinstance(last.get("time"), float):
        return {}
    gpus = [gpu for gpu in last.get("gpus", []) if isinstance(gpu.get("ecc_uncorrectable"), int) and gpu.get("uuid")]
    return {"time": last["time"], "ecc": {gpu["uuid"]: gpu["ecc_uncorrectable"] for gpu in gpus}}


def first_line(path: str, most: int) -> str:
    """Of a file of root's; "" where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != 0:
                return ""
            return file.read(4096).partition(b"\n")[0].decode(errors="replace").strip()[:most]
    except OSError:
        return ""


def number(text: str | None) -> int | None:
    """A variable that Slurm sets to a number."""
    return int(text) if text and len(text) <= 12 and text.isascii() and text.isdigit() else None


def named(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, 'OSError')}: {error.strerror}"


def say(what: str) -> int:
    """One line for slurmd's log."""
    line = "".join(character if character.isprintable() else "?" for character in f"slurm_recovery: {what}")
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="replace")[:2000] + b"\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
