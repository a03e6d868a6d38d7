"""The node's kernel log since a time: bounded, as `dmesg --time-format=iso` prints it, oldest first.

Owns where it is read (/dev/kmsg, journalctl, a file) and how it is made to fit. Knows no meaning of a line: the
controller scans it. Only what the kernel itself printed is taken; a line that some program wrote into the kernel's log
has another facility than `kern`, which the kernel sees to (kernel/printk/printk.c, devkmsg_write).
Characters other than printable ASCII stay `\\xNN`, as /dev/kmsg escapes them: a process name cannot forge a line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

KMSG = "/dev/kmsg"
JOURNAL = "journal"
SOURCE = "kernel_log"  # records.Source.KERNEL_LOG
MOST_OF_FILE = 32 << 20
MOST_OF_LINE = 4096
ALIKE = 25  # of lines alike so many first ones are kept, and so many last ones
SLACK = 1 << 20
_KMSG_DEVICE = os.makedev(1, 11)  # Documentation/admin-guide/devices.txt
_RECORD = 16 << 10  # larger than any record; /dev/kmsg gives one a read
_LAST_TIME = 4_102_444_800  # the year 2100

# Documentation/ABI/testing/dev-kmsg: priority,sequence,microseconds,flags[,more];text
_KMSG = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,18}),[^;\n]{0,400};([^\n]{0,8192})")
# dmesg, with the priority before it by -r (`<6>`) or -x (`kern  :info  : `)
_DECORATION = re.compile(rb"<(\d{1,4})>|([a-z0-9]{1,8}) {0,5}:[a-z]{1,8} {0,5}: ")
_UPTIME = re.compile(rb"\[ {0,8}(\d{1,10}\.\d{1,9})\] ?")
_ISO = re.compile(
    rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)? (?:\S{1,255} kernel: {0,3})?"
)
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")

# What makes two lines alike: all but numbers and names that a user's process can choose.
_XID = re.compile(r".{0,60}?Xid \([^)]{1,40}\): ?\d{1,6}")  # another Xid or another GPU is another line
_NAMED = re.compile(r"(?:traps: )?.{1,15}\[\d{1,10}\]")  # `python3[4711]: segfault at ...`: comm has 15 characters
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_NUMBER = re.compile(rf"({_PCI})|\b(?:0[xX])?[0-9a-fA-F]{{1,64}}\b")  # any word that may be an address


Gap = Callable[[str, str], None]  # how a reader says what it could not read, and why


class KernelLog(NamedTuple):
    """`text` is lines with their ends; `gaps` in the form of node_report.NodeGap."""

    text: str
    gaps: list[dict[str, str]]


class Line(NamedTuple):
    """A line of the kernel's; `time` in seconds since the epoch, None where it tells none."""

    time: float | None
    text: bytes


class Unreadable(Exception):
    """The source gives no lines; why."""


def read_kernel_log(source: str, since: float, most: int, timeout: float) -> KernelLog:
    """The log from `since` on, at most `most` bytes, read within `timeout` seconds.

    `source` is /dev/kmsg (journalctl where that cannot be read), `journal`, or the path of a file of such lines. What
    a file system hangs on is the caller's to bound: he runs this in a process of its own.
    """
    deadline = time.monotonic() + timeout
    kept, gaps = Kept(most), []

    def gap(what: str, why: str) -> None:
        gaps.append({"source": SOURCE, "what": what, "why": why[:500]})

    readers = {KMSG: (_kmsg_or_file, _journal), JOURNAL: (_journal,)}.get(source, (_kmsg_or_file,))
    refusals = []
    for reader in readers:
        try:
            untimed = 0
            for line in reader(source, since, deadline, gap):
                if line.time is None:
                    untimed += 1
                elif since <= line.time < _LAST_TIME:
                    kept.add(line.time, line.text)
            if untimed:
                gap(source, f"{untimed} lines without a time left out")
            break
        except Unreadable as refused:
            refusals.append(str(refused))
        except ValueError:  # a NUL in it
            refusals.append("no path")
        except OSError as error:
            refusals.append(f"{errno.errorcode.get(error.errno or 0, 'OSError')}: {error.strerror}")
    else:
        gap(source, "; ".join(refusals))
    text, alike, cut = kept.result()
    if alike:
        gap(source, f"{alike} lines left out: like {2 * ALIKE} others that were kept")
    if cut:
        gap(source, f"{cut} bytes left out in the middle: KernelLogBytes is {most}")
    return KernelLog(text, gaps)


def booted() -> float:
    """When the clock of the kernel's log stood at 0, seconds since the epoch.

    printk's clock (local_clock) does not count while the machine sleeps, so CLOCK_MONOTONIC is nearest to it. It is
    not steered by NTP and runs apart from it by seconds in weeks; as `dmesg --time-format=iso` does.
    """
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


# --- where lines come from


def _kmsg_or_file(path: str, since: float, deadline: float, gap: Gap) -> Iterator[Line]:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == _KMSG_DEVICE:
            yield from records(lambda: os.read(handle, _RECORD), path, since, deadline, gap)
        elif stat.S_ISREG(status.st_mode):
            yield from _file(handle, path, status.st_size, deadline, gap)
        else:
            raise Unreadable("neither a file nor the kernel's log; hint: KernelLog")
    finally:
        os.close(handle)


def records(read: Callable[[], bytes], path: str, since: float, deadline: float, gap: Gap) -> Iterator[Line]:
    """Of the kernel's buffer: each read gives a record, from the oldest on that it still has; at the end it blocks."""
    zero, now = booted(), time.time()
    first, overwritten = True, 0
    while True:
        if time.monotonic() > deadline:
            gap(path, "not read to its end in time")
            break
        try:
            record = read()
        except BlockingIOError:
            break
        except BrokenPipeError:  # records were overwritten before we came to them; the next read goes on behind them
            overwritten += 1
            continue
        match = _KMSG.match(record)
        if match is None:
            continue
        when = zero + int(match[3]) / 1e6
        if first and int(match[2]) > 0 and when > since:
            gap(path, f"the kernel's buffer begins only at {stamp(when)}: what was before is overwritten")
        first = False
        if when > now + 1:  # a flood is read to where it was when we began
            break
        if int(match[1]) >> 3 == 0:
            yield Line(when, match[4])
    if overwritten:
        gap(path, f"overwritten while it was read, {overwritten} times")


def _file(handle: int, path: str, size: int, deadline: float, gap: Gap) -> Iterator[Line]:
    """The end of a file of lines."""
    if size > MOST_OF_FILE:
        os.lseek(handle, size - MOST_OF_FILE, os.SEEK_SET)
        gap(path, f"only its last {MOST_OF_FILE} of {size} bytes were read")
    zero = booted()
    whole = size <= MOST_OF_FILE
    for raw in _lines(_blocks(handle, path, deadline, gap)):
        if not whole:  # the first may begin in the middle of one
            whole = True
        elif (line := _parse(raw, zero)) is not None:
            yield line


def _blocks(handle: int, path: str, deadline: float, gap: Gap) -> Iterator[bytes]:
    left = MOST_OF_FILE
    while left > 0 and (block := os.read(handle, min(left, 256 << 10))):
        yield block
        left -= len(block)
        if time.monotonic() > deadline:
            gap(path, "not read to its end in time")
            return


def _journal(source: str, since: float, deadline: float, gap: Gap) -> Iterator[Line]:
    """journalctl, of this boot. `_TRANSPORT=kernel` (-k) and the facility say what the kernel wrote itself."""
    import subprocess

    command = ["journalctl", "-k", "SYSLOG_FACILITY=0", "-o", "short-iso-precise", "--no-pager"]
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}
    process = subprocess.Popen(
        [*command, f"--since=@{max(0, int(since))}"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = 0
    try:
        last: Line | None = None
        for raw in _lines(_piped(process.stdout.fileno(), deadline, gap)):
            if raw.startswith(b" ") and last is not None:  # a further line of one message
                last = Line(last.time, (last.text + b"\n" + raw.lstrip(b" "))[:MOST_OF_LINE])
                continue
            if last is not None:
                yield last
            if last := None if raw.startswith(b"-- ") else _parse(raw, 0.0):  # "-- No entries --"
                lines += 1
        if last is not None:
            yield last
        if not lines and time.monotonic() < deadline:
            ready, _, _ = select.select([process.stderr], [], [], max(0.0, deadline - time.monotonic()))
            if ready and (said := os.read(process.stderr.fileno(), 400)):
                raise Unreadable("journalctl: " + said.decode(errors="replace").strip())
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)


def _piped(handle: int, deadline: float, gap: Gap) -> Iterator[bytes]:
    while True:
        ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            gap("journalctl", "did not end in time")
            return
        block = os.read(handle, 64 << 10)
        if not block:
            return
        yield block


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends; of one longer than MOST_OF_LINE the beginning."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from (line[:MOST_OF_LINE] for line in whole)
        rest = rest[:MOST_OF_LINE]
    if rest:
        yield rest


def _parse(raw: bytes, zero: float) -> Line | None:
    """A line of a file, of any of the forms; None for what is not the kernel's own, or no line of its own."""
    if not raw.strip() or raw.startswith(b" "):  # " SUBSYSTEM=pci": a record's dictionary
        return None
    if match := _KMSG.match(raw):
        return Line(zero + int(match[3]) / 1e6, match[4]) if int(match[1]) >> 3 == 0 else None
    if match := _DECORATION.match(raw):
        if (match[2] or b"kern") != b"kern" or int(match[1] or 0) >> 3:
            return None
        raw = raw[match.end() :]
    if match := _UPTIME.match(raw):
        return Line(zero + float(match[1]), raw[match.end() :])
    if match := _ISO.match(raw):
        return Line(_time(match), raw[match.end() :])
    return Line(None, raw)


def _time(match: re.Match[bytes]) -> float | None:
    date, clock, part, zone = (group.decode() if group else "" for group in match.groups())
    try:
        return datetime.fromisoformat(f"{date}T{clock}{zone}").timestamp() + float(f"0.{part or 0}")
    except (ValueError, OverflowError, OSError):
        return None


# --- making them fit


class Kept:
    """The lines that are kept so far, whatever comes: memory is bounded by `most` and time is linear."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: list[tuple[str, str]] = []  # what it is like, and the line
        self._size = 0
        self._alike = self._cut = 0

    def add(self, when: float, text: bytes) -> None:
        printed = _UNPRINTABLE.sub(_escape, text[:MOST_OF_LINE]).decode("ascii")
        line = f"{stamp(when)} {printed}\n"
        self._lines.append((shape(printed), line))
        self._size += len(line)
        if self._size > 2 * self._most + SLACK:
            self._thin()

    def result(self) -> tuple[str, int, int]:
        """The text; lines left out because they are like others; bytes left out because it was too much."""
        self._thin()
        return "".join(line for _, line in self._lines), self._alike, self._cut

    def _thin(self) -> None:
        """Of lines alike the first and the last, so that no flood pushes out the rest; then all within the bound."""
        total: dict[str, int] = {}
        for like, _ in self._lines:
            total[like] = total.get(like, 0) + 1
        seen: dict[str, int] = {}
        lines = []
        for like, line in self._lines:
            seen[like] = nth = seen.get(like, 0) + 1
            if nth <= ALIKE or nth > total[like] - ALIKE:
                lines.append((like, line))
        self._alike += len(self._lines) - len(lines)
        self._lines, left_out = _ends(lines, self._most)
        self._cut += left_out
        self._size = sum(len(line) for _, line in self._lines)


def _ends(lines: list[tuple[str, str]], most: int) -> tuple[list[tuple[str, str]], int]:
    """The first quarter and the last three quarters of the bound, in whole lines; and how many bytes are left out."""
    total = sum(len(line) for _, line in lines)
    if total <= most:
        return lines, 0
    head, size = 0, 0
    while size + len(lines[head][1]) <= most // 4:
        size += len(lines[head][1])
        head += 1
    tail = len(lines)
    while tail > head and size + len(lines[tail - 1][1]) <= most:
        tail -= 1
        size += len(lines[tail][1])
    return lines[:head] + lines[tail:], total - size


def shape(text: str) -> str:
    """What is equal in lines that tell the same: numbers and a process's name are not; an Xid and its GPU are."""
    match = _XID.match(text)
    if match is None and (match := _NAMED.match(text)):
        return "[]" + _NUMBER.sub(_number, text[match.end() : 400])
    head = match.end() if match else 0
    return text[:head] + _NUMBER.sub(_number, text[head:400])


def _number(match: re.Match[str]) -> str:
    return match[1] or "#"


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\x%02x" % match[0][0]


def stamp(when: float) -> str:
    """`2026-11-29T20:11:12,123456+00:00`"""
    microseconds = round(when * 1e6)
    seconds, part = divmod(microseconds, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))},{part:06}+00:00"
