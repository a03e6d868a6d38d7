"""A log's bytes to evidence, also where the bytes are hostile."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.margins import MOST_VOICES
from slurm_recovery.detect.notes import KEPT, LONGEST_EXCERPT, VOICE
from slurm_recovery.detect.scan import scan
from slurm_recovery.records import Evidence, Role, Source, Trust

SIGNATURES = load_signatures()
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def everything(data: bytes) -> tuple[Evidence, ...]:
    return scan(data, signatures=SIGNATURES, source=Source.JOB_LOG, path="job.log")


def job(data: bytes) -> tuple[Evidence, ...]:
    return tuple(found for found in everything(data) if found.signature != VOICE)


def kernel(data: bytes, node: str = "a01") -> tuple[Evidence, ...]:
    return scan(data, signatures=SIGNATURES, source=Source.KERNEL_LOG, path="dmesg", node=node)


def test_evidence_says_where_it_was_found_and_by_whom() -> None:
    (found,) = job(b"step 1\n[rank5]: " + OOM + b"\n")
    assert (found.place, found.rank, found.reason, found.trust) == ("job.log:2", 5, "cuda_oom", Trust.USER)
    assert found.line == "[rank5]: " + OOM.decode()


def test_a_kernel_log_is_trusted_and_belongs_to_its_node() -> None:
    found, _ = kernel(b"[Thu Jan  1 00:01:00 1970] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.")
    assert (found.trust, found.node, found.time) == (Trust.ROOT, "a01", 60.0)


def test_kernel_words_in_a_job_log_are_nothing() -> None:
    assert job(b"NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.") == ()


def test_lines_alike_are_counted() -> None:
    (found,) = job((b"[rank5]: " + OOM + b"\n") * 7)
    assert found.count == 7


def test_ranks_are_kept_apart() -> None:
    assert [found.rank for found in job(b"[rank5]: " + OOM + b"\n[rank6]: " + OOM)] == [5, 6]


@pytest.mark.parametrize(
    "data",
    [
        b"\r" + b"\r".join(b" 1%%| %d/9" % step for step in range(9)) + b"\r" + OOM,
        b"\x1b[31;1m" + OOM + b"\x1b[0m",
        b"\x1b]0;title\x07" + OOM,
        b"\0\0" + OOM + b"\0",
        b"\xff\xfe\x80\n" + OOM + b" \xc3",
        b"x\r\n" + OOM + b"\r\n",
        OOM[:60],
        OOM + b"x" * 1_000_000,
        b"x" * 500_000 + b" CUDA out of memory. Tried to allocate 2.00 GiB." + b"x" * 500_000,
        b"torch.OutOfMemoryError: " + b"x" * 1_000_000 + b" CUDA out of memory. Tried to allocate 2.00 GiB.",
    ],
    ids=["cr-only", "colour", "title", "nul", "not-utf8", "crlf", "cut", "long-head", "long-middle", "long-tail"],
)
def test_the_line_is_found_whatever_surrounds_it(data: bytes) -> None:
    (found,) = job(data)
    assert found.reason == "cuda_oom"
    assert len(found.line) <= LONGEST_EXCERPT
    assert found.line.isprintable()
    assert "out of memory" in found.line


def test_much_evidence_is_thinned_from_the_middle() -> None:
    found = job(b"".join(b"[rank%d]: %s\n" % (rank, OOM) for rank in range(1000)))
    assert len(found) == KEPT[Role.ROOT]
    assert (found[0].rank, found[-1].rank) == (0, 999)


def test_the_cause_survives_a_flood_of_consequences() -> None:
    flood = b"".join(b"[rank%d]: ncclRemoteError: A call failed\n" % (n % 4096) for n in range(20000))
    assert any(found.reason == "cuda_oom" for found in job(flood + b"[rank7]: " + OOM + b"\n" + flood))


def test_the_failure_table_places_its_ranks() -> None:
    table = b"""
[0]:
  time      : 2026-05-12_22:14:40
  host      : a04.cluster
  rank      : 10 (local_rank: 2)
  exitcode  : -9 (pid: 366)
"""
    (found,) = [found for found in job(table) if found.signature == "torchrun_table"]
    assert (found.node, found.rank, found.local_rank, found.reason) == ("a04.cluster", 10, 2, "killed_unknown")


def test_who_printed_anything_is_noted() -> None:
    found = everything(b"0: hello\n1: hello\n0: again\na01:1:2 [0] NCCL INFO hello\n")
    assert [line.place for line in found if line.signature == VOICE] == ["job.log:1", "job.log:2", "job.log:4"]
    crowd = everything(b"".join(b"%d: hello\n" % task for task in range(1000)))
    assert len(crowd) == MOST_VOICES


def test_the_programs_last_date_is_noted() -> None:
    log = b"[1970-01-01 00:01:00] step 1\nslurmstepd: error: *** JOB 1 ON a CANCELLED AT 1970-01-02T00:00:00 ***\n"
    assert [found.time for found in job(log) if found.signature == "clock"] == [60.0]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=4000))
def test_no_bytes_raise(data: bytes) -> None:
    job(data)
    kernel(data)


WORDS = [row.example.encode() for row in SIGNATURES] + [
    b"\r",
    b"\n",
    b"\x1b[",
    b"[rank",
    b"srun: error: ",
    b"\0",
    b"9: ",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_no_mixture_of_known_lines_raises(parts: list[bytes]) -> None:
    for found in job(b"".join(parts)) + kernel(b"\n".join(parts)):
        assert len(found.line) <= LONGEST_EXCERPT


@pytest.mark.parametrize(
    "data",
    [
        b"".join(b"iteration %8d | lm loss: %.6E | grad norm: %.3f |\n" % (n, 2 / n, n / 7) for n in range(1, 70000)),
        b"ValueError: boom\nKeyError: z\n" * 140_000,
        b"Error: x " * 450_000,
        b"\n" * 4_000_000,
    ],
    ids=["progress", "errors-only", "one-line", "empty-lines"],
)
def test_four_megabytes_take_no_time_to_speak_of(data: bytes) -> None:
    start = time.process_time()
    job(data)
    assert time.process_time() - start < 3.0  # 0.05 to 0.4 s on one core of 2024; slow machines are not failures
