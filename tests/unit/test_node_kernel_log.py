"""The node's kernel log: its forms, who may have written it, and its bounds. As root, on the real /dev/kmsg too."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_recovery.detect.frame import frame
from slurm_recovery.node import kernel_log
from slurm_recovery.node.kernel_log import ALIKE, KernelLog, booted, read_kernel_log, shape, stamp

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

MOST = 64 << 10
WHEN = 1_764_446_400.25
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def log(tmp_path: Path, *lines: str | bytes, since: float = 0.0, most: int = MOST) -> KernelLog:
    path = tmp_path / "kernel.log"
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return read_kernel_log(str(path), since, most, 5)


def micro(when: float) -> int:
    """A time as the kernel's log counts it."""
    return round((when - booted()) * 1e6)


def why(read: KernelLog) -> str:
    return "; ".join(gap["why"] for gap in read.gaps)


NOW = time.time()
FORMS: dict[str, Callable[[], str]] = {
    "record of /dev/kmsg": lambda: f"3,17,{micro(NOW)},-;{XID}",
    "record with a caller": lambda: f"3,17,{micro(NOW)},c,caller=T12;{XID}",
    "dmesg": lambda: f"[{micro(NOW) / 1e6:12.6f}] {XID}",
    "dmesg -x": lambda: f"kern  :err   : [{micro(NOW) / 1e6:12.6f}] {XID}",
    "dmesg -r": lambda: f"<3>[{micro(NOW) / 1e6:12.6f}] {XID}",
    "dmesg --time-format=iso": lambda: f"{stamp(NOW)} {XID}",
    "journalctl -o short-iso-precise": lambda: f"{stamp(NOW).replace(',', '.')[:-3]}00 gpu01 kernel: {XID}",
    "rsyslog": lambda: f"{stamp(NOW).replace(',', '.')} gpu01 kernel: {XID}",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_comes_out_as_the_scanner_reads_it(tmp_path: Path, form: str) -> None:
    read = log(tmp_path, FORMS[form]())
    assert not read.gaps
    seen = frame(read.text.rstrip("\n"))
    assert seen.text == XID
    assert seen.zoned
    assert seen.time == pytest.approx(NOW, abs=0.01)
    assert read.text == f"{read.text[:32]} {XID}\n"


def test_a_stamp_is_what_dmesg_prints() -> None:
    assert stamp(WHEN) == "2025-11-29T20:00:00,250000+00:00"
    assert stamp(WHEN + 0.7499999) == "2025-11-29T20:00:01,000000+00:00"


FORGED = {
    "record of facility user": f"11,18,{{micro}},-;{XID}",  # 1 << 3 | 3
    "record of facility daemon": f"27,18,{{micro}},-;{XID}",
    "dmesg -x": f"user  :err   : [{{seconds}}] {XID}",
    "dmesg -r": f"<11>[{{seconds}}] {XID}",
}


@pytest.mark.parametrize("form", FORGED)
def test_what_a_program_wrote_into_the_kernels_log_is_dropped(tmp_path: Path, form: str) -> None:
    forged = FORGED[form].format(micro=micro(NOW), seconds=f"{micro(NOW) / 1e6:.6f}")
    read = log(tmp_path, forged, f"6,19,{micro(NOW)},-;eth0: link up")
    assert read.text.endswith(" eth0: link up\n")
    assert read.text.count("\n") == 1


def test_the_kernels_own_buffer_holds_the_kernels_word_and_not_that_of_programs() -> None:
    """A program writes a kernel line, another makes the kernel print its name, with a line's end within."""
    mark = uuid.uuid4().hex[:8]
    with open("/dev/kmsg", "w", encoding="ascii") as kmsg:
        kmsg.write(f"<3>{mark}-forged {XID}")
    name = f"{mark}\nNVRM:"
    crash = "import ctypes, sys; open('/proc/self/comm', 'w').write(sys.argv[1]); ctypes.string_at(0)"
    began = time.time()
    subprocess.run([sys.executable, "-I", "-c", crash, name], check=False, timeout=20)
    read = read_kernel_log("/dev/kmsg", began - 5, 1 << 20, 5)
    (line,) = [line for line in read.text.splitlines() if mark in line]
    assert f" {mark}\\x0aNVRM:[" in line
    assert "segfault at 0" in line
    assert (frame(line).time or 0.0) == pytest.approx(began, abs=5)
    assert mark in subprocess.run(["dmesg", "-u"], capture_output=True, text=True, check=True).stdout  # it was there


def test_lines_before_the_time_and_dictionaries_are_left_out(tmp_path: Path) -> None:
    lines = [f"3,{n},{micro(NOW - 10 + n)},-;line {n}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0" for n in range(20)]
    read = log(tmp_path, *lines, since=NOW - 0.5)
    assert [line[33:] for line in read.text.splitlines()] == [f"line {n}" for n in range(10, 20)]


def test_lines_without_a_time_are_a_gap(tmp_path: Path) -> None:
    read = log(tmp_path, "NVRM: something", f"[99999999999999999999.5] {XID}", "2026-13-45T99:99:99+00:00 x")
    assert read.text == ""
    assert why(read) == "3 lines without a time left out"


def records(*read: bytes | OSError, since: float = 0.0) -> tuple[list[bytes], list[str]]:
    """The kernel's buffer, where these come one after the other."""
    left, gaps = list(read), []

    def one() -> bytes:
        if not left:
            raise BlockingIOError
        record = left.pop(0)
        if isinstance(record, OSError):
            raise record
        return record

    found = kernel_log.records(one, "/dev/kmsg", since, time.monotonic() + 5, lambda _, gap: gaps.append(gap))
    return [line.text for line in found], gaps


def test_records_that_are_overwritten_are_a_gap_and_the_rest_is_read() -> None:
    read = records(b"6,0,10,-;a\n", BrokenPipeError(), b"6,900,20,-;b\n", BrokenPipeError(), b"6,1900,30,-;c\n")
    assert read == ([b"a", b"b", b"c"], ["overwritten while it was read, 2 times"])


def test_a_buffer_that_begins_too_late_is_a_gap() -> None:
    first = f"6,812,{micro(NOW)},-;a\n".encode()
    assert "begins only at" in records(first, since=NOW - 100)[1][0]
    assert records(first, since=NOW + 0.1)[1] == []
    assert records(first.replace(b"812", b"0", 1), since=NOW - 100)[1] == []


def test_a_flood_is_read_to_where_it_was_when_we_began() -> None:
    ahead = f"6,2,{micro(time.time() + 60)},-;later\n".encode()
    assert records(b"6,0,10,-;a\n", b"no record", ahead, b"6,3,10,-;b\n")[0] == [b"a"]


def unreadable(path: Path, timeout: float = 5) -> str:
    began = time.monotonic()
    read = read_kernel_log(str(path), 0.0, MOST, timeout)
    assert time.monotonic() - began < 3
    assert read.text == ""
    return why(read)


def test_what_is_no_log_is_not_read_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "neither a file" in unreadable(tmp_path / "fifo")
    assert "neither a file" in unreadable(tmp_path)
    assert "neither a file" in unreadable(Path("/dev/zero"))
    assert "ENOENT" in unreadable(tmp_path / "missing")
    assert "no path" in unreadable(Path("/dev/nul\0"))


def test_too_much_is_cut_in_the_middle_at_line_ends(tmp_path: Path) -> None:
    texts = [f"{''.join(random.Random(n).choices('ghijklmnop', k=80))} end" for n in range(4000)]  # none like another
    lines = [f"{stamp(NOW)} {text}" for text in texts]
    read = log(tmp_path, *lines)
    kept = read.text.splitlines()
    assert MOST - 200 < len(read.text) <= MOST
    head = next(n for n, line in enumerate(kept) if line != lines[n])
    assert kept == lines[:head] + lines[-(len(kept) - head) :]
    assert abs(sum(len(line) + 1 for line in kept[:head]) - MOST // 4) < 200
    left_out = sum(len(line) + 1 for line in lines) - len(read.text)
    assert why(read) == f"{left_out} bytes left out in the middle: KernelLogBytes is {MOST}"


def test_no_flood_pushes_out_a_fault(tmp_path: Path) -> None:
    """A user's processes crash by the thousand, each under another name and at another address."""
    chosen = random.Random(4)
    lines = []
    for number in range(20_000):
        name = "".join(chosen.choices("abcdefgh []:0123456789", k=chosen.randint(1, 15)))
        at = f"{chosen.getrandbits(40):x}"
        lines.append(f"6,{number},{micro(NOW)},-;{name}[{number}]: segfault at {at} ip {at} sp {at} error 4 in a.so")
    lines.insert(9_000, f"3,1,{micro(NOW)},-;{XID}")
    read = log(tmp_path, *lines, most=16 << 10)
    assert XID in read.text
    crashes = [line.partition("]: segfault")[0] for line in read.text.splitlines() if "Xid" not in line]
    kept = [int(line.rpartition("[")[2]) for line in crashes]
    assert kept[:3] == [0, 1, 2]
    assert kept[-3:] == [19_997, 19_998, 19_999]
    assert "lines left out: like" in why(read)


def test_of_lines_alike_the_first_and_the_last_are_kept(tmp_path: Path) -> None:
    lines = [f"{stamp(NOW)} mlx5_core 0000:9b:00.0 mlx5_0: link down, {n} times" for n in range(1000)]
    kept = [int(line.split()[-2]) for line in log(tmp_path, *lines).text.splitlines()]
    assert kept == [*range(ALIKE), *range(1000 - ALIKE, 1000)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (XID, XID.replace("9b", "1b")),
        (XID, XID.replace("79", "119")),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, x", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20035, x"),
        ("mlx5_core 0000:9b:00.0 mlx5_0: down", "mlx5_core 0000:1b:00.0 mlx5_1: down"),
        ("EDAC MC0: 1 UE", "EDAC MC1: 1 UE"),
        ("nvme nvme3: timeout", "nvme nvme4: timeout"),
    ],
)
def test_another_device_or_another_xid_is_another_line(one: str, other: str) -> None:
    assert shape(one) != shape(other)


def test_hostile_bytes_become_printable_lines(tmp_path: Path) -> None:
    chosen = random.Random(7)
    for _ in range(300):
        garbage = chosen.randbytes(chosen.randint(0, 400))
        start = chosen.choice([b"", b"3,1,5,-;", b"[ 1.5] ", b"<3>", b"kern  :", stamp(NOW).encode() + b" "])
        read = log(tmp_path, start + garbage, start + b"x" * 9000)
        assert all(line.isprintable() and line.isascii() for line in read.text.splitlines())
        assert all(frame(line).zoned for line in read.text.splitlines())
        assert len(read.text) < 64 << 10


def test_time_is_linear_and_memory_bounded(tmp_path: Path) -> None:
    """The worst lines for every pattern, on 16 MB; and a file longer than what is read of it."""
    path = tmp_path / "kernel.log"
    for bad in ("a" * 3000, "0" * 3000, "[ " * 1500, "0:" * 1500, "Xid (" * 600, f"{'9' * 15}[" * 180):
        path.write_text(f"{stamp(NOW)} {bad}\n" * 5000)
        began = time.process_time()
        assert read_kernel_log(str(path), 0, MOST, 30).text
        assert time.process_time() - began < 3, bad[:10]
    with path.open("ab") as file:
        file.truncate(2 << 30)
        file.seek(0, os.SEEK_END)
        file.write(f"\n{stamp(NOW)} {XID}\n".encode())
    code = (
        "from slurm_recovery.node.kernel_log import read_kernel_log; "
        f"r = read_kernel_log({str(path)!r}, 0, {MOST}, 30); assert 'fallen' in r.text; "
        "assert 'only its last' in r.gaps[0]['why'], r.gaps; "
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 40_000  # KiB


# What journalctl 252 prints, recorded; the second line's text has a line's end in it.
JOURNAL = f"""-- Journal begins at Sat 2025-11-29 19:00:00 UTC, ends at Sat 2025-11-29 21:00:00 UTC. --
2025-11-29T20:00:00.250000+0000 gpu01 kernel: {XID}
2025-11-29T20:00:01.000000+0000 gpu01 kernel: traps: x
                                              {XID}[811] trap
2025-11-29T20:00:02.000000+0000 gpu01 kernel: eth0: link up
"""


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script in journalctl's place; it notes its arguments."""

    def put(script: str) -> Path:
        program = tmp_path / "bin/journalctl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "$TZ $@" > {tmp_path}/asked\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return tmp_path / "asked"

    return put


def test_the_journal_gives_the_same_lines(tmp_path: Path, journalctl: Callable[[str], Path]) -> None:
    (tmp_path / "journal").write_text(JOURNAL)
    asked = journalctl(f"cat {tmp_path}/journal")
    read = read_kernel_log("journal", WHEN - 60, MOST, 5)
    assert read == KernelLog(
        f"2025-11-29T20:00:00,250000+00:00 {XID}\n"
        f"2025-11-29T20:00:01,000000+00:00 traps: x\\x0a{XID}[811] trap\n"
        "2025-11-29T20:00:02,000000+00:00 eth0: link up\n",
        [],
    )
    words = asked.read_text().split()
    assert words[:3] == ["UTC", "-k", "SYSLOG_FACILITY=0"]
    assert words[-1] == f"--since=@{int(WHEN - 60)}"


def test_a_journal_that_hangs_or_is_not_there_is_a_gap(journalctl: Callable[[str], Path]) -> None:
    journalctl(f"echo '{JOURNAL.splitlines()[1].replace(chr(39), chr(34))}'; exec sleep 60")
    began = time.monotonic()
    read = read_kernel_log("journal", 0, MOST, 0.5)
    assert time.monotonic() - began < 5
    assert "Xid" in read.text
    assert why(read) == "did not end in time"
    journalctl("echo No journal files were found. >&2; echo '-- No entries --'")
    assert why(read_kernel_log("journal", 0, MOST, 2)) == "journalctl: No journal files were found."


def test_without_the_buffer_the_journal_is_read(
    journalctl: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: the kernel's buffer is no device there."""
    os.mkfifo(tmp_path / "kmsg")
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "kmsg"))
    journalctl("echo '2025-11-29T20:00:02.000000+0000 gpu01 kernel: eth0: up'")
    assert read_kernel_log(str(tmp_path / "kmsg"), 0, MOST, 2) == KernelLog(
        "2025-11-29T20:00:02,000000+00:00 eth0: up\n", []
    )
    monkeypatch.setenv("PATH", "/nonexistent")
    read = read_kernel_log(str(tmp_path / "kmsg"), 0, MOST, 2)
    assert "neither a file" in why(read)
    assert "ENOENT" in why(read)
