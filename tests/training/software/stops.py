"""Runs a function in a child process and kills it at a chosen point of a chosen checkpoint write.

Owns: the child, its process group, and a seccomp filter (seccomp_unotify(2)) by which every system call of it that
changes a file waits here first. So each state that a SIGKILL can leave on disk can be had on purpose: before the call,
or in the middle of a write's bytes. Not seen: files changed through memory maps; `seen_bytes` tells how much went by.
Must not: know any checkpoint format. Linux on x86_64 or aarch64, as root. Standard library only.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NamedTuple

X86_64 = {
    "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328,
    "open": 2, "creat": 85, "openat": 257, "rename": 82, "renameat": 264, "renameat2": 316, "mkdir": 83, "mkdirat": 258,
    "unlink": 87, "unlinkat": 263, "rmdir": 84, "link": 86, "linkat": 265, "symlink": 88, "symlinkat": 266,
    "truncate": 76, "ftruncate": 77, "fallocate": 285, "sendfile": 40, "copy_file_range": 326,
}  # fmt: skip
AARCH64 = {
    "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "pwritev2": 287,
    "openat": 56, "renameat": 38, "renameat2": 276, "mkdirat": 34, "unlinkat": 35, "linkat": 37, "symlinkat": 36,
    "truncate": 45, "ftruncate": 46, "fallocate": 47, "sendfile": 71, "copy_file_range": 285,
}  # fmt: skip
CALLS = {"x86_64": X86_64, "aarch64": AARCH64}[platform.machine()]
NAMES = {number: name for name, number in CALLS.items()}
ON_DESCRIPTOR = {"write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "sendfile"}
PAGE = 4096
TORN = {"write", "pwrite64", "writev", "pwritev", "pwritev2"}
SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]  # the system call's number
PIDFD_GETFD = 438

# linux/seccomp.h, linux/filter.h, linux/prctl.h
SET_MODE_FILTER, NEW_LISTENER, NO_NEW_PRIVS = 1, 8, 38
ALLOW, USER_NOTIF, CONTINUE = 0x7FFF0000, 0x7FC00000, 1
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTIFICATION, ANSWER = "=QIIiIQ6Q", "=QqiI"
FLAGS_ARGUMENT = {"open": 1, "openat": 2}

MOST_SECONDS = 120.0  # of a child
LIBC = ctypes.CDLL(None, use_errno=True)


class Plan(NamedTuple):
    """The kill: in the child's `save`-th write of a checkpoint, from 1, before its `change`-th change, from 1.

    `part`: of the bytes, where that change is a long write: so much of it is done first, from 0 to 1, in whole pages: a
    kill cannot come within less (generic_perform_write in Linux). With `delay` the kill comes so many seconds after the
    write's begin instead, wherever the child is then.
    """

    save: int
    change: int = 0
    part: float = 0.0
    delay: float | None = None


@dataclass
class Outcome:
    """`marks`: what the child said, as (word, value). `changes`, `seconds`: of each checkpoint write that ended."""

    marks: list[tuple[str, str]] = field(default_factory=list)
    killed: bool = False
    inside: bool = False  # the kill came within a checkpoint write
    at: str = ""  # the call that was stopped
    torn: bool = False  # with a part of it done
    code: int = 0  # as os.waitstatus_to_exitcode gives it
    changes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    seen_bytes: int = 0


Mark = Callable[[str, object], None]


def run(work: Callable[[Mark], None], folder: Path, log: Path, plan: Plan | None = None) -> Outcome:
    """Call `work` in a child; only changes below `folder` count. Its output goes to `log`.

    `work` gets a function that tells this side a word and a value: "saving" before a checkpoint's write, "saved" when
    the software says that it is done.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, theirs, writing, log)
    theirs.close()
    os.close(writing)
    with ours:
        listener = _receive_descriptor(ours)
    try:
        return _Watch(child, listener, reading, folder, plan).result()
    finally:
        os.close(listener)
        os.close(reading)


def _child(work: Callable[[Mark], None], channel: socket.socket, writing: int, log: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.set_inheritable(writing, True)
        _send_descriptor(channel, _install_filter())
        channel.close()

        def mark(word: str, value: object) -> None:
            os.write(writing, f"{word} {value}\n".encode())

        work(mark)
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not run its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Watch:
    """The parent's side."""

    def __init__(self, child: int, listener: int, reading: int, folder: Path, plan: Plan | None) -> None:
        self.child = child
        self.listener = listener
        self.reading = reading
        self.folder = f"{folder}/"
        self.plan = plan
        self.outcome = Outcome()
        self.text = b""
        self.saves = 0
        self.began = 0.0  # of the checkpoint write that goes on; 0.0: none does
        self.changes = 0
        self.ends = time.monotonic() + MOST_SECONDS
        os.set_blocking(reading, False)

    def result(self) -> Outcome:
        poller = select.poll()
        poller.register(self.listener, select.POLLIN)
        while True:
            events = poller.poll(self._patience())
            if events and events[0][1] & select.POLLIN:
                self._one_call()
            elif events:  # nobody with this filter lives
                break
            elif self._is_time() or time.monotonic() > self.ends:
                self._kill("clock")
        self._read_marks()
        _, status = os.waitpid(self.child, 0)
        self.outcome.code = os.waitstatus_to_exitcode(status)
        return self.outcome

    def _patience(self) -> float:
        """Milliseconds."""
        until = self.ends
        if self.plan and self.plan.delay is not None and self.began and self.saves == self.plan.save:
            until = self.began + self.plan.delay
        return max(0.0, (until - time.monotonic()) * 1000)

    def _is_time(self) -> bool:
        plan = self.plan
        if plan is None or plan.delay is None or self.outcome.killed or self.saves != plan.save:
            return False
        return not self.began or time.monotonic() >= self.began + plan.delay

    def _one_call(self) -> None:
        note = bytearray(struct.calcsize(NOTIFICATION))
        try:
            fcntl.ioctl(self.listener, RECEIVE, note)
        except OSError:  # the caller died meanwhile
            return
        identity, pid, _, number, _, _, *arguments = struct.unpack(NOTIFICATION, note)
        self._read_marks()
        if self._counts(NAMES[number], pid, arguments) and self._is_reached():
            self._tear(NAMES[number], pid, arguments)
            self._kill(NAMES[number])
        elif self._is_time():
            self._kill("clock")
        try:
            fcntl.ioctl(self.listener, SEND, struct.pack(ANSWER, identity, 0, 0, CONTINUE))
        except OSError:
            return

    def _counts(self, name: str, pid: int, arguments: list[int]) -> bool:
        if not self.began or self.outcome.killed:
            return False
        if name in ON_DESCRIPTOR and not _target(pid, arguments[0]).startswith(self.folder):
            return False
        self.changes += 1
        self.outcome.seen_bytes += _size(name, pid, arguments)
        return True

    def _is_reached(self) -> bool:
        plan = self.plan
        return plan is not None and plan.delay is None and (self.saves, self.changes) == (plan.save, plan.change)

    def _tear(self, name: str, pid: int, arguments: list[int]) -> None:
        """Do a part of a write for the caller: what a SIGKILL in the middle of a long write leaves."""
        if name == "sendfile":
            output, source = _borrowed(pid, arguments[0]), _borrowed(pid, arguments[1])
            os.sendfile(output, source, None, self._torn(os.fstat(source).st_size))
            os.close(source)
        elif name in TORN:
            output = _borrowed(pid, arguments[0])
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                data = b"".join(os.pread(memory.fileno(), size, at) for at, size in _pieces(name, memory, arguments))
            data = data[: self._torn(len(data))]
            if name.startswith("p"):
                os.pwrite(output, data, arguments[3])
            else:
                os.write(output, data)
        else:
            return
        os.close(output)

    def _torn(self, size: int) -> int:
        done = int(size * self.plan.part) // PAGE * PAGE if self.plan else 0
        self.outcome.torn = done > 0
        return done

    def _kill(self, at: str) -> None:
        os.killpg(self.child, signal.SIGKILL)
        if not self.outcome.killed:
            self.outcome.killed = True
            self.outcome.inside = bool(self.began)
            self.outcome.at = at

    def _read_marks(self) -> None:
        try:
            while piece := os.read(self.reading, 65536):
                self.text += piece
        except BlockingIOError:
            pass
        *lines, self.text = self.text.split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            self._take_mark(word, value)

    def _take_mark(self, word: str, value: str) -> None:
        self.outcome.marks.append((word, value))
        if word == "saving":
            self.saves += 1
            self.began = time.monotonic()
            self.changes = 0
        elif word == "saved" and not self.outcome.killed:
            self.outcome.changes.append(self.changes)
            self.outcome.seconds.append(time.monotonic() - self.began)
            self.began = 0.0
            if self.plan and self.saves == self.plan.save:
                self._kill("after")  # the write was over before the chosen point


def _target(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def _size(name: str, pid: int, arguments: list[int]) -> int:
    """Of what a call writes."""
    if name == "sendfile":
        return os.stat(f"/proc/{pid}/fd/{arguments[1]}").st_size
    if name not in TORN:
        return 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return sum(size for _, size in _pieces(name, memory, arguments))


def _pieces(name: str, memory: FileIO, arguments: list[int]) -> list[tuple[int, int]]:
    """Address and size of what a call writes: one buffer, or a list of them (struct iovec)."""
    if name in ("write", "pwrite64"):
        return [(arguments[1], arguments[2])]
    found = os.pread(memory.fileno(), 16 * arguments[2], arguments[1])
    return [(at, size) for at, size in struct.iter_unpack("QQ", found)]


def _borrowed(pid: int, descriptor: int) -> int:
    """Another process's descriptor, with its place in the file. pidfd_open(2) takes no other thread than the first."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    process = os.pidfd_open(int(next(line.split()[1] for line in lines if line.startswith("Tgid:"))))
    ours = int(LIBC.syscall(PIDFD_GETFD, process, descriptor, 0))
    os.close(process)
    if ours < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return ours


def _install_filter() -> int:
    """For this process and what it starts; gives the listener's descriptor."""
    code = _program()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    listener = int(LIBC.syscall(SECCOMP, SET_MODE_FILTER, NEW_LISTENER, program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)")
    return listener


def _program() -> bytes:
    """Files that are only opened to be read pass: of these there are thousands, by imports."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    making = os.O_CREAT | os.O_TRUNC
    steps = step(LOAD, 0)  # seccomp_data.nr
    for name, argument in FLAGS_ARGUMENT.items():
        if name in CALLS:
            steps += step(JUMP_EQUAL, CALLS[name], 0, 4) + step(LOAD, 16 + 8 * argument)
            steps += step(JUMP_SET, making, 0, 1) + step(RETURN, USER_NOTIF) + step(RETURN, ALLOW)
    for name in CALLS.keys() - FLAGS_ARGUMENT.keys():
        steps += step(JUMP_EQUAL, CALLS[name], 0, 1) + step(RETURN, USER_NOTIF)
    return steps + step(RETURN, ALLOW)


def _send_descriptor(channel: socket.socket, descriptor: int) -> None:
    channel.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    os.close(descriptor)


def _receive_descriptor(channel: socket.socket) -> int:
    _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
    if not ancillary:
        raise RuntimeError("the child ended before it began: see its log")
    return int(array.array("i", ancillary[0][2])[0])
