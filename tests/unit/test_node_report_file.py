"""Writing a report into EvidenceDir: whole or not at all, by root alone, within bounds. Real file systems, as root."""

from __future__ import annotations

import base64
import contextlib
import errno
import grp
import json
import multiprocessing
import os
import pwd
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_recovery.node import gate, report_file
from slurm_recovery.node.report_file import HEALTH, MOST_BYTES, MOST_FILES, Refused, fit, write_report
from slurm_recovery.node_report import NodeReport

NOBODY = pwd.getpwnam("nobody").pw_uid
GROUP = grp.getgrnam("daemon").gr_gid
MOST = 16 << 20


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return opened(tmp_path / "evidence")


def opened(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2750)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], check=True)
    try:
        yield opened(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def report(kernel: str = "", **more: Any) -> dict[str, Any]:
    return {"format": 1, "kind": "health", "node": "n1", "time": 5.0, "kernel": kernel, "logs": [], "gaps": []} | more


def kernel_of(path: Path) -> str:
    return NodeReport.model_validate_json(path.read_text()).kernel


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folder_and_file_are_roots_and_slurmusers_group_may_read(evidence: Path) -> None:
    before = os.umask(0o077)
    try:
        write_report(str(evidence), report("one"), "7.5.json", MOST)
    finally:
        os.umask(before)
    folder, file = (evidence / "n1").stat(), (evidence / "n1/7.5.json").stat()
    assert (folder.st_uid, folder.st_gid, stat.S_IMODE(folder.st_mode)) == (0, GROUP, 0o2750)
    assert (file.st_uid, file.st_gid, stat.S_IMODE(file.st_mode)) == (0, GROUP, 0o640)
    assert kernel_of(evidence / "n1/7.5.json") == "one"
    assert names(evidence / "n1") == ["7.5.json"]


def test_a_folder_with_another_mode_or_group_is_set_right(evidence: Path) -> None:
    (evidence / "n1").mkdir(mode=0o700)
    os.chown(evidence / "n1", 0, 0)
    write_report(str(evidence), report(), HEALTH, MOST)
    found = (evidence / "n1").stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, 0o2750)
    assert (evidence / "n1" / HEALTH).stat().st_gid == GROUP


def change(folder: Path, how: str) -> None:
    if how == "users":
        os.chown(folder, NOBODY, GROUP)
    elif how == "writable by all":
        folder.chmod(0o1777)
    elif how == "writable by the group":
        folder.chmod(0o2770)
    else:
        folder.rename(folder.with_name("elsewhere"))
        if how == "link":
            folder.symlink_to(folder.with_name("elsewhere"))
        elif how == "file":
            folder.touch()


@pytest.mark.parametrize("which", [".", "n1"])
@pytest.mark.parametrize("how", ["users", "writable by all", "writable by the group", "link", "file"])
def test_a_folder_that_is_not_roots_alone_is_refused(evidence: Path, which: str, how: str) -> None:
    write_report(str(evidence), report("old"), HEALTH, MOST)
    change(evidence / which if which != "." else evidence, how)
    before = {path: path.read_bytes() for path in evidence.parent.rglob("*.json")}
    with pytest.raises((Refused, OSError)) as refused:
        write_report(str(evidence), report("new"), HEALTH, MOST)
    if isinstance(refused.value, Refused):
        assert "hint:" in str(refused.value)
    else:
        assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert {path: path.read_bytes() for path in evidence.parent.rglob("*.json")} == before
    assert not list(evidence.parent.rglob(".*"))


def test_evidence_dir_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(str(tmp_path / "missing"), report(), HEALTH, MOST)
    assert not names(tmp_path)


@pytest.mark.parametrize("node", ["", ".", "..", ".gate", "../n1", "a/b", "n1\n", "n\0", "-rf", "x" * 300, "n1 "])
def test_hostile_names_of_nodes_are_refused(evidence: Path, node: str) -> None:
    with pytest.raises(Refused):
        write_report(str(evidence), report(node=node), HEALTH, MOST)
    assert not names(evidence)


@pytest.mark.parametrize("name", ["", "x.json", "../7.5.json", ".7.5.json", "7.5.json\n", "7.5", "gate.json"])
def test_hostile_names_of_reports_are_refused(evidence: Path, name: str) -> None:
    with pytest.raises(Refused):
        write_report(str(evidence), report(), name, MOST)


def test_a_full_file_system_loses_nothing_that_was_there(tiny: Path) -> None:
    write_report(str(tiny), report("old"), HEALTH, MOST)
    write_report(str(tiny), report("a job's"), "7.5.json", MOST)
    with pytest.raises(OSError, match="No space left") as full:
        write_report(str(tiny), report("x" * 400_000), HEALTH, MOST)
    assert full.value.errno == errno.ENOSPC
    assert names(tiny / "n1") == ["7.5.json", HEALTH]
    assert kernel_of(tiny / "n1" / HEALTH) == "old"
    write_report(str(tiny), report("new"), HEALTH, MOST)
    assert kernel_of(tiny / "n1" / HEALTH) == "new"


def test_a_read_only_file_system_is_said(tiny: Path) -> None:
    write_report(str(tiny), report("old"), HEALTH, MOST)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    with pytest.raises(OSError, match="Read-only") as read_only:
        write_report(str(tiny), report("new"), HEALTH, MOST)
    assert read_only.value.errno == errno.EROFS
    assert kernel_of(tiny / "n1" / HEALTH) == "old"


def test_a_reader_sees_the_old_report_or_the_new_one(evidence: Path) -> None:
    """While one process writes without a pause, another never reads half of one."""
    write_report(str(evidence), report("0" * 200_000), HEALTH, MOST)

    def write() -> None:
        for number in range(60):
            write_report(str(evidence), report(str(number % 10) * 200_000), HEALTH, MOST)

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        text = kernel_of(evidence / "n1" / HEALTH)
        assert len(text) == 200_000
        assert text == text[0] * 200_000
        seen.add(text[0])
    writer.join()
    assert writer.exitcode == 0
    assert len(seen) > 1


def test_a_link_at_the_half_written_name_is_not_followed(evidence: Path) -> None:
    (evidence / "n1").mkdir()
    victim = evidence.parent / "victim"
    victim.write_text("whole")
    (evidence / f"n1/.{HEALTH}.{os.getpid()}.tmp").symlink_to(victim)
    write_report(str(evidence), report("new"), HEALTH, MOST)
    assert victim.read_text() == "whole"
    assert kernel_of(evidence / "n1" / HEALTH) == "new"


def test_the_oldest_reports_go_first(evidence: Path) -> None:
    for number in range(30):
        write_report(str(evidence), report("x" * 100_000), f"{number}.5.json", MOST)
        os.utime(evidence / f"n1/{number}.5.json", (number, number))
    write_report(str(evidence), report("x" * 100_000), HEALTH, MOST)
    os.utime(evidence / "n1" / HEALTH, (0, 0))
    (evidence / "n1/notes.txt").write_text("an administrator's")
    write_report(str(evidence), report("x" * 100_000), "99.5.json", 1 << 20)
    assert names(evidence / "n1") == sorted([f"{n}.5.json" for n in range(22, 30)] + ["99.5.json", HEALTH, "notes.txt"])


def test_no_more_files_than_the_bound(evidence: Path) -> None:
    (evidence / "n1").mkdir()
    for number in range(MOST_FILES + 40):
        (evidence / f"n1/{number}.5.json").touch()
        os.utime(evidence / f"n1/{number}.5.json", (number, number))
    write_report(str(evidence), report(), "99999.5.json", MOST)
    assert len(names(evidence / "n1")) == MOST_FILES
    assert not (evidence / "n1/40.5.json").exists()
    assert (evidence / "n1/41.5.json").exists()


def test_the_newest_stays_even_where_it_alone_is_too_much(evidence: Path) -> None:
    write_report(str(evidence), report("x" * 2_000_000), "7.5.json", 1 << 20)
    assert names(evidence / "n1") == ["7.5.json"]


def test_half_written_files_of_the_dead_go_and_those_of_the_living_stay(evidence: Path) -> None:
    (evidence / "n1").mkdir()
    for name, age in ((".7.5.json.11.tmp", 3600), (".8.5.json.12.tmp", 5)):
        (evidence / "n1" / name).touch()
        os.utime(evidence / "n1" / name, (1, time.time() - age))
    write_report(str(evidence), report(), HEALTH, MOST)
    assert names(evidence / "n1") == [".8.5.json.12.tmp", HEALTH]


def big_log(size: int) -> dict[str, Any]:
    data = b"begin" + b"x" * (size - 8) + b"end"
    return {"path": "/log", "size": size, "inode": 1, "offset": 10, "data": base64.b64encode(data).decode()}


def test_what_is_too_large_loses_the_logs_beginnings_first() -> None:
    kernel = "2025-11-29T20:00:00,250000+00:00 line\n" * 20_000
    data = fit(report(kernel, logs=[big_log(5 << 20), big_log(5 << 20)]))
    assert MOST_BYTES - 100_000 < len(data) <= MOST_BYTES
    cut = NodeReport.model_validate_json(data)
    assert cut.kernel == kernel
    for log in cut.logs:
        text = base64.b64decode(log.data)
        assert text.endswith(b"xend")
        assert log.offset + len(text) == 10 + (5 << 20)
    assert "logs were cut" in cut.gaps[0].why


def test_then_the_kernel_logs_beginning() -> None:
    kernel = "".join(f"2025-11-29T20:00:00,250000+00:00 line\\x0a {n}\n" for n in range(300_000))
    data = fit(report(kernel, logs=[big_log(1 << 20)]))
    assert len(data) <= MOST_BYTES
    cut = NodeReport.model_validate_json(data)
    assert kernel.endswith("\n" + cut.kernel)
    assert len(cut.kernel) > 2 << 20
    assert cut.logs[0].data == ""
    assert len(cut.gaps) == 2


# --- the gate's brake


def test_so_many_nodes_may_refuse_and_no_more(evidence: Path) -> None:
    assert [gate.claim(str(evidence), f"n{number}", 3) for number in range(5)] == [True, True, True, False, False]


def test_a_node_that_has_a_slot_needs_no_second(evidence: Path) -> None:
    assert [gate.claim(str(evidence), "n1", 2) for _ in range(4)] == [True] * 4
    assert gate.claim(str(evidence), "n2", 2)
    assert not gate.claim(str(evidence), "n3", 2)
    assert gate.claim(str(evidence), "n1", 2)


def test_the_mark_of_a_node_that_died_goes(evidence: Path) -> None:
    gate.claim(str(evidence), "n1", 2)
    for name, age in ((".n8.11", 4000), (".n9.12", 10)):
        (evidence / gate.FOLDER / name).touch()
        os.utime(evidence / gate.FOLDER / name, (1, time.time() - age))
    gate.claim(str(evidence), "n2", 2)
    assert [name for name in names(evidence / gate.FOLDER) if name.startswith(".")] == [".n9.12"]


def test_none_may_where_none_shall(evidence: Path) -> None:
    assert not gate.claim(str(evidence), "n1", 0)
    assert not names(evidence)


def aged(evidence: Path, seconds: float) -> None:
    """As if all slots had been claimed so much earlier."""
    folder = evidence / gate.FOLDER
    for path in folder.glob("slot.*"):
        hour, number = path.name.split(".")[1:]
        when = path.stat().st_mtime - seconds
        os.utime(path, (when, when))
        path.rename(folder / f"slot.{int(hour) - int(seconds // gate.HOUR) - 1}.{number}")


def test_after_an_hour_a_slot_is_free_again_and_not_before(evidence: Path) -> None:
    assert gate.claim(str(evidence), "n1", 1)
    aged(evidence, 3500)
    assert not gate.claim(str(evidence), "n2", 1)
    aged(evidence, 200)
    assert gate.claim(str(evidence), "n2", 1)
    aged(evidence, 2 * 3600 + 10)
    assert gate.claim(str(evidence), "n3", 1)
    assert len(names(evidence / gate.FOLDER)) == 1


def _claim(evidence: Path, node: str, most: int, start: Any, granted: Any) -> None:
    start.wait()
    granted.put(gate.claim(str(evidence), node, most))


@pytest.mark.parametrize("expired", [0, 4])
def test_many_nodes_at_once_get_no_more_slots_than_there_are(evidence: Path, expired: int) -> None:
    for number in range(expired):
        gate.claim(str(evidence), f"old{number}", 4)
    aged(evidence, 3700)
    context = multiprocessing.get_context("fork")
    start, granted = context.Event(), context.Queue()
    claimers = [
        context.Process(target=_claim, args=(evidence, f"n{number}", 4, start, granted)) for number in range(24)
    ]
    for claimer in claimers:
        claimer.start()
    start.set()
    answers = [granted.get(timeout=20) for _ in claimers]
    for claimer in claimers:
        claimer.join()
    assert sum(answers) == 4
    assert len([name for name in names(evidence / gate.FOLDER) if name.startswith("slot.")]) == 4 + expired


def test_forged_slots_and_a_forged_folder_do_not_count(evidence: Path) -> None:
    folder = evidence / gate.FOLDER
    folder.mkdir(mode=0o750)
    hour = int(time.time() // 3600)
    (folder / f"slot.{hour}.0").write_text("n1")
    os.chown(folder / f"slot.{hour}.0", NOBODY, NOBODY)
    (folder / f"slot.{hour}.1").symlink_to("/etc/passwd")
    os.mkfifo(folder / f"slot.{hour}.2")
    with pytest.raises(OSError, match="symbolic"):
        gate.claim(str(evidence), "n1", 9)
    (folder / f"slot.{hour}.1").unlink()
    assert gate.claim(str(evidence), "n1", 4)
    assert (folder / f"slot.{hour}.1").read_text() == "n1"
    folder.chmod(0o777)
    with pytest.raises(Refused):
        gate.claim(str(evidence), "n1", 4)


def test_a_full_file_system_gives_no_slot(tiny: Path) -> None:
    with contextlib.suppress(OSError), (tiny / "fill").open("wb", buffering=0) as fill:
        while True:
            fill.write(b"x" * 4096)
    with pytest.raises(OSError, match="No space left"):
        gate.claim(str(tiny), "n1", 4)
    assert [name for name in names(tiny / gate.FOLDER) if name.startswith("slot.")] == []


def test_what_is_written_is_plain_json() -> None:
    assert json.loads(fit(report("a\\x0a\n")))["kernel"] == "a\\x0a\n"
    with pytest.raises(ValueError, match="JSON"):
        fit(report(time=float("nan")))
    assert report_file.FILE_MODE & 0o007 == 0
