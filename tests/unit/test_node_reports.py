"""Which of the files in EvidenceDir are believed, and what is said of the others."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_recovery.evidence import node_reports
from slurm_recovery.evidence.node_reports import (
    MOST_GAPS,
    MOST_LISTED,
    MOST_REPORT,
    LogPiece,
    Reports,
    fits,
    log_pieces,
    read_health,
    read_reports,
)
from slurm_recovery.node_report import Log, NodeReport
from slurm_recovery.records import Attempt, Gap, Source

START, END = 1_000_000.0, 1_000_600.0
STRANGER = 4242
ATTEMPT = Attempt(
    cluster="c", job_id=7, restart_count=1, start_time=START, end_time=END, nodes=("n1", "n2"), user_id=STRANGER
)


def form(node: str = "n1", **changes: Any) -> dict[str, Any]:
    told = {"format": 1, "kind": "epilog", "node": node, "time": END + 1, "job_id": 7, "restart_count": 1}
    return {**told, "boot_id": "boot", **changes}


class Folder:
    """An EvidenceDir as the node hooks leave it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o2750)
        path.chmod(0o2750)

    def node(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(mode=0o2750, exist_ok=True)
        folder.chmod(0o2750)
        return folder

    def put(self, node: str = "n1", name: str = "7.5.json", content: bytes | None = None, **changes: Any) -> Path:
        path = self.node(node) / name
        path.write_bytes(json.dumps(form(node, **changes)).encode() if content is None else content)
        path.chmod(0o640)
        return path

    def read(self, *nodes: str, attempt: Attempt = ATTEMPT, most: int = 64 << 20, **more: Any) -> Reports:
        return read_reports(self.path, attempt, nodes or ("n1",), most=most, **{"timeout": 10.0, **more})

    def why(self, *nodes: str, **more: Any) -> str:
        """What is said of a node of which nothing is believed."""
        read = self.read(*nodes, **more)
        assert not read.reports
        assert read.missing == (nodes or ("n1",))
        assert {gap.source for gap in read.gaps} == {Source.NODE}
        return "; ".join(f"{gap.what.removeprefix(str(self.path))}: {gap.why}" for gap in read.gaps)


@pytest.fixture
def evidence(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "evidence")


def test_reports_come_in_the_order_of_the_nodes(evidence: Folder) -> None:
    for node in ("n1", "n2", "n3"):
        evidence.put(node, kernel=f"of {node}")
    read = evidence.read("n3", "n1", "n2")
    assert [(report.node, report.kernel) for report in read.reports] == [(n, f"of {n}") for n in ("n3", "n1", "n2")]
    assert read.gaps == ()
    assert read.missing == ()


def test_a_node_that_wrote_nothing_is_missed_by_name(evidence: Folder) -> None:
    evidence.put("n1")
    evidence.node("n2")
    read = evidence.read("n1", "n2", "n3")
    assert [report.node for report in read.reports] == ["n1"]
    assert read.missing == ("n2", "n3")
    assert [(gap.what, gap.why) for gap in read.gaps] == [
        (f"{evidence.path}/{node}", f"no report from {node}") for node in ("n2", "n3")
    ]


def test_no_nodes_need_no_folder(tmp_path: Path) -> None:
    assert read_reports(tmp_path / "none", ATTEMPT, (), most=1, timeout=1) == Reports()


def test_a_folder_that_is_not_there_is_one_gap(tmp_path: Path) -> None:
    read = read_reports(tmp_path / "none", ATTEMPT, ("n1", "n2"), most=1 << 20, timeout=5)
    assert read.missing == ("n1", "n2")
    assert [gap.what for gap in read.gaps] == [str(tmp_path / "none")]
    assert read.gaps[0].why == "ENOENT: No such file or directory: nothing read of n1, n2"


# --- signed by its path's ownership


def _own(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def _for_group(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def _for_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def _linked(path: Path) -> None:
    path.rename(path.with_name(path.name + ".real"))
    path.symlink_to(path.with_name(path.name + ".real"))


FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "another's": (_own, f"belongs to uid {STRANGER}, not to root: refused"),
    "the group's to write": (_for_group, "lets others write it: refused"),
    "everybody's to write": (_for_all, "lets others write it: refused"),
    "a link": (_linked, "a link, or no"),
}


@pytest.mark.parametrize("forged", FORGERIES)
@pytest.mark.parametrize("level", ["the folder", "the node's folder", "the file"])
def test_what_is_not_roots_alone_is_refused(evidence: Folder, level: str, forged: str) -> None:
    path = evidence.put()
    forge, words = FORGERIES[forged]
    forge({"the file": path, "the node's folder": path.parent, "the folder": evidence.path}[level])
    where = {"the file": "/n1/7.5.json: ", "the node's folder": "/n1: ", "the folder": ": "}[level]
    why = evidence.why()
    assert why.startswith(where)
    assert words in why


def test_squashed_root_is_told(evidence: Folder) -> None:
    os.chown(evidence.put(), 65534, 65534)
    assert "is it exported with root_squash?" in evidence.why()


def test_a_refused_report_does_not_hide_a_genuine_one(evidence: Folder) -> None:
    evidence.put(name="7.5.json", kernel="genuine")
    _own(evidence.put(name="7.9.json", kernel="forged"))
    read = evidence.read()
    assert [report.kernel for report in read.reports] == ["genuine"]
    assert [gap.why for gap in read.gaps] == [f"belongs to uid {STRANGER}, not to root: refused"]


def test_another_trusted_user_may_be_named(evidence: Folder) -> None:
    path = evidence.put()
    for one in (path, path.parent, evidence.path):
        os.chown(one, STRANGER, 0)
    assert not evidence.read().reports
    assert len(evidence.read(trusted_uid=STRANGER).reports) == 1


def test_a_pipe_a_folder_and_a_socket_are_no_reports(evidence: Folder) -> None:
    folder = evidence.node("n1")
    os.mkfifo(folder / "7.1.json", 0o600)
    (folder / "7.2.json").mkdir(mode=0o700)
    os.mknod(folder / "7.3.json", 0o600 | 0o140000)
    begun = time.monotonic()
    why = evidence.why()
    assert time.monotonic() - begun < 5
    assert [one.rpartition(": ")[0].split(":")[0] for one in why.split("; ")] == [f"/n1/7.{n}.json" for n in (1, 2, 3)]
    assert why.count("regular file: refused") == 3


@pytest.mark.parametrize("name", ["", ".", "..", "../evil", "/etc", "n\0", "n" * 300, "\udc80"])
def test_a_name_leads_to_no_other_folder(evidence: Folder, tmp_path: Path, name: str) -> None:
    Folder(tmp_path / "evil").put("x")
    for folder in (tmp_path / "evil", evidence.path):
        (folder / "7.5.json").write_text(json.dumps(form("..")))
    read = evidence.read(name)
    assert not read.reports
    assert read.missing == (name,)
    assert len(read.gaps) == 1


# --- whose report it is


def test_the_newest_of_the_attempt_counts(evidence: Folder) -> None:
    evidence.put(name="7.5.json", kernel="old")
    evidence.put(name="7.30.json", kernel="new")
    evidence.put(name="gate.7.90.json", kernel="a gate's")
    evidence.put(name="8.90.json", kernel="another job's", job_id=8)
    evidence.put(name="7.99.json.tmp", kernel="being written")
    evidence.put(name="health.json", kernel="health")
    assert [report.kernel for report in evidence.read().reports] == ["new"]


STRANGERS = {
    "another restart's": {"restart_count": 0},
    "a start's of another hour": {"start_time": START - 3600},
    "of long before": {"time": START - 1000},
    "of long after": {"time": END + 2000},
    "of before, uncounted": {"time": START - 5, "restart_count": None},
}


@pytest.mark.parametrize("changes", STRANGERS.values(), ids=STRANGERS)
def test_a_report_of_another_attempt_is_none_of_this_one(evidence: Folder, changes: dict[str, Any]) -> None:
    evidence.put(**changes)
    assert evidence.why() == "/n1: no report from n1"


OURS: dict[str, dict[str, Any]] = {
    "told by its start": {"start_time": START, "time": END + 5000},
    "a fraction off": {"start_time": START + 0.4},
    "uncounted, in its time": {"restart_count": None},
    "by a clock that is slow": {"time": START - 60},
}


@pytest.mark.parametrize("changes", OURS.values(), ids=OURS)
def test_a_report_of_this_attempt(evidence: Folder, changes: dict[str, Any]) -> None:
    evidence.put(**changes)
    assert len(evidence.read().reports) == 1


def test_an_old_report_behind_a_newer_attempts_is_found(evidence: Folder) -> None:
    evidence.put(name="7.5.json", kernel="this")
    evidence.put(name="7.9.json", kernel="the next", restart_count=2, time=END + 60)
    assert [report.kernel for report in evidence.read().reports] == ["this"]


def test_times_that_are_not_known_exclude_nothing() -> None:
    report = NodeReport.model_validate(form(time=5.0))
    assert fits(report, ATTEMPT.model_copy(update={"start_time": None, "end_time": None}))
    assert not fits(report, ATTEMPT.model_copy(update={"end_time": None}))


def test_the_components_of_a_heterogeneous_job_have_their_own_ids(evidence: Folder) -> None:
    evidence.put("n1", "7.5.json")
    evidence.put("n2", "8.5.json", job_id=8)
    assert [report.node for report in evidence.read("n1", "n2").reports] == ["n1"]
    assert [report.node for report in evidence.read("n1", "n2", job_ids=(7, 8)).reports] == ["n1", "n2"]


def test_a_report_that_tells_of_another_node_or_job_is_refused_by_name(evidence: Folder) -> None:
    evidence.put("n1", content=json.dumps(form("n2")).encode())
    evidence.put("n2", job_id=9)
    evidence.put("n3", kind="health")
    assert evidence.why("n1", "n2", "n3") == (
        "/n1/7.5.json: tells of node n2: refused; /n2/7.5.json: tells of job 9: refused; "
        "/n3/7.5.json: a report of kind health, not epilog: refused"
    )


# --- what is in it


WHOLE = json.dumps(form(kernel="x" * 1000)).encode()
SPOILT = {
    "half-written": (WHOLE[:500], "half-written, or not JSON"),
    "empty": (b"", "half-written, or not JSON"),
    "zeroes": (b"\0" * 4096, "half-written, or not JSON"),
    "deep": (b'{"format": ' + b"[" * 1_000_000, "half-written, or not JSON"),
    "deep in an unknown key": (WHOLE[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
    "no time": (WHOLE.replace(str(END + 1).encode(), b"NaN"), "not a node's report: time: Input should be a finite"),
    "endless": (WHOLE.replace(str(END + 1).encode(), b"1e999"), "not a node's report: time: Input should be a finite"),
    "a list": (b"[1, 2]", "not a node's report"),
    "a wrong kind": (WHOLE.replace(b'"epilog"', b'"party"'), "not a node's report: kind"),
    "a later form": (WHOLE.replace(b'"format": 1', b'"format": 2'), "not of form 1"),
    "no UTF-8": (WHOLE.replace(b"xxx", b"\xff\xfe\xfd"), "half-written, or not JSON"),
    "a control character in a key": (
        WHOLE[:-1] + b', "ecc_before": {"\\u001b[2J\\n": "many"}}',
        "not a node's report: ecc_before.?[2J?: Input should be a valid integer",
    ),
    "a number of many digits": (WHOLE.replace(b'"job_id": 7', b'"job_id": ' + b"9" * 5000), "not"),
}


@pytest.mark.parametrize(("content", "words"), SPOILT.values(), ids=SPOILT)
def test_what_is_no_report_is_one_clear_line(evidence: Folder, content: bytes, words: str) -> None:
    evidence.put(content=content)
    evidence.put("n2")
    read = evidence.read("n1", "n2")
    assert [report.node for report in read.reports] == ["n2"]
    assert [gap.what for gap in read.gaps] == [f"{evidence.path}/n1/7.5.json"]
    assert words in read.gaps[0].why
    assert read.gaps[0].why.isprintable()
    assert len(read.gaps[0].why) <= 500


def test_keys_of_a_later_release_are_left_aside(evidence: Folder) -> None:
    evidence.put(more={"x": [1]}, gpus=[{"index": 0, "colour": "green"}])
    assert evidence.read().reports[0].gpus[0].index == 0


# --- bounds


def test_a_report_that_is_too_long_is_not_read(evidence: Folder) -> None:
    path = evidence.put()
    os.truncate(path, MOST_REPORT + 1)
    assert f"{MOST_REPORT + 1} bytes: no more than {MOST_REPORT} of one report are read" in evidence.why()


def test_all_reports_together_are_bounded(evidence: Folder) -> None:
    for number in range(4):
        evidence.put(f"n{number}", kernel="x" * 1000)
    read = evidence.read("n0", "n1", "n2", "n3", most=3000)
    assert len(read.reports) == 2
    assert len(read.missing) == 2
    assert {gap.why for gap in read.gaps} == {"not read: reports of more than 3000 bytes in all"}


def test_a_folder_full_of_names_is_not_listed_to_its_end(evidence: Folder) -> None:
    folder = evidence.node("n1")
    for number in range(MOST_LISTED + 200):
        (folder / f"9.{number}.json").touch()
    begun = time.monotonic()
    assert f"/n1: more than {MOST_LISTED} files" in evidence.why()
    assert time.monotonic() - begun < 3


def test_many_gaps_are_summed_up(evidence: Folder) -> None:
    nodes = tuple(f"n{number:03}" for number in range(MOST_GAPS + 36))
    read = evidence.read(*nodes)
    assert read.missing == nodes
    assert len(read.gaps) == MOST_GAPS + 1
    assert read.gaps[-1].why == "and 36 more like these"


@contextmanager
def hanging(folder: Path) -> Iterator[None]:
    """A file system that answers nothing: FUSE without a server that reads its requests. mount(2), fuse(4)"""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
    try:
        if libc.mount(b"hang", bytes(folder), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        yield
    finally:
        libc.umount2(bytes(folder), 2)  # MNT_DETACH
        os.close(device)


def test_a_node_whose_folder_hangs_costs_no_more_than_the_time_given(evidence: Folder) -> None:
    for node in ("n1", "n2", "n3"):
        evidence.put(node)
    with hanging(evidence.node("n2")):
        begun = time.monotonic()
        read = evidence.read("n1", "n2", "n3", timeout=0.8)
        assert time.monotonic() - begun < 2
    assert [report.node for report in read.reports] == ["n1", "n3"]
    assert read.missing == ("n2",)
    assert [(gap.what, gap.why) for gap in read.gaps] == [
        (str(evidence.path), "no answer within 0.8 s: nothing read of n2")
    ]


def test_a_folder_that_hangs_is_one_gap(evidence: Folder) -> None:
    with hanging(evidence.path):
        begun = time.monotonic()
        read = evidence.read(*(f"n{number}" for number in range(10)), timeout=0.5)
        assert time.monotonic() - begun < 2
    assert [gap.why for gap in read.gaps] == ["no answer within 0.5 s: nothing read of n0, n1, n2, n3 and 6 more nodes"]


def test_a_reader_that_dies_is_a_gap(evidence: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the kernel ends it for want of memory."""
    evidence.put()
    monkeypatch.setattr(node_reports, "_parsed", lambda *_: os._exit(9))  # in the child: there is no port to die by
    assert evidence.why() == ": the reader died: nothing read of n1"


@pytest.mark.parametrize(("nodes", "most"), [(64, 0.3), (512, 2.0)])
def test_many_reports_are_read_quickly(evidence: Folder, nodes: int, most: float) -> None:
    names = [f"n{number}" for number in range(nodes)]
    gpus = [{"index": n, "uuid": f"GPU-{n}", "pci": f"0000:{n:02x}:00.0"} for n in range(8)]
    for name in names:
        evidence.put(name, kernel="2026-06-12T03:40:09,114217+00:00 eth0: harmless\n" * 200, gpus=gpus)
    seconds = []
    for _ in range(3):  # the machine has other things to do, too
        begun = time.perf_counter()
        assert len(evidence.read(*names).reports) == nodes
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < most


# --- health


def test_health_is_read_when_it_was_written_anew(evidence: Folder) -> None:
    for node in ("n1", "n2"):
        evidence.put(node, "health.json", kind="health")
    evidence.put("n3")
    (evidence.path / "README").write_text("no folder")
    first = read_health(evidence.path, None, {}, most=1 << 20, timeout=5)
    assert [report.node for report in first.reports] == ["n1", "n2"]
    assert set(first.seen) == {"n1", "n2"}
    assert first.gaps == ()
    assert read_health(evidence.path, None, first.seen, most=1 << 20, timeout=5) == ((), (), first.seen)
    path = evidence.put("n2", "health.json", kind="health", kernel="anew")
    os.utime(path, (5, 5))  # a file server's clock may go back
    again = read_health(evidence.path, None, first.seen, most=1 << 20, timeout=5)
    assert [report.kernel for report in again.reports] == ["anew"]
    assert again.seen == {**first.seen, "n2": 5.0}


def test_health_of_some_nodes_only(evidence: Folder) -> None:
    for node in ("n1", "n2"):
        evidence.put(node, "health.json", kind="health")
    read = read_health(evidence.path, ("n2", "n9"), {}, most=1 << 20, timeout=5)
    assert [report.node for report in read.reports] == ["n2"]


def test_forged_health_is_refused_and_told_once(evidence: Folder) -> None:
    _own(evidence.put("n1", "health.json", kind="health"))
    path = evidence.put("n2", "health.json", kind="health")
    path.rename(path.with_name("other"))
    path.symlink_to("other")
    evidence.put("n3", "health.json", kind="epilog")
    _own(evidence.put("n4", "health.json", kind="health").parent)
    read = read_health(evidence.path, None, {}, most=1 << 20, timeout=5)
    assert read.reports == ()
    assert [(gap.what.removeprefix(f"{evidence.path}/"), gap.why) for gap in read.gaps] == [
        ("n1/health.json", f"belongs to uid {STRANGER}, not to root: refused"),
        ("n2/health.json", "a link, or no regular file: refused"),
        ("n3/health.json", "a report of kind epilog, not health: refused"),
        ("n4/health.json", f"belongs to uid {STRANGER}, not to root: refused"),
    ]
    assert read_health(evidence.path, None, read.seen, most=1 << 20, timeout=5).gaps == ()


# --- the log's pieces


def test_pieces_of_a_log_are_decoded() -> None:
    data = base64.b64encode(b"Traceback\n").decode()
    report = NodeReport.model_validate(
        form(
            logs=[
                {"path": "/home/u/slurm-7.out", "size": 20, "inode": 3, "offset": 10, "data": data},
                {"path": "/home/u/slurm-7.err", "data": "no base64!"},
            ]
        )
    )
    assert log_pieces(report) == (
        LogPiece("/home/u/slurm-7.out", 20, 3, 10, b"Traceback\n"),
        Gap(source=Source.JOB_LOG, what="/home/u/slurm-7.err", why="what n1 sent of it is not base64"),
    )


def test_pieces_of_a_log_are_bounded() -> None:
    report = NodeReport.model_validate(form()).model_copy(update={"logs": (Log(path="/x"),) * 1000})
    assert len(log_pieces(report)) == node_reports.MOST_PIECES
