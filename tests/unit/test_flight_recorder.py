"""Dumps of PyTorch's flight recorder: real ones, and by the schema what only NCCL writes.

Which rank of which process group did not arrive, by its global number; and what the files of a hostile user may
cost. Real files, real processes, as root.
"""

from __future__ import annotations

import json
import os
import pickle
import pwd
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.dump_rows import dump_absent, dump_behind
from slurm_recovery.attribute.view import view
from slurm_recovery.detect.flight_compare import compare
from slurm_recovery.detect.flight_recorder import Dump, Group, NotDump, looks_like_dump, read_dump
from slurm_recovery.evidence.trace_dumps import MOST_DUMP, Traces, read_traces
from slurm_recovery.records import Attempt, Evidence, Observation, Role, Source, Trust

DATA = Path(__file__).parent / "data/flight"
NOBODY = pwd.getpwnam("nobody").pw_uid
NOW = 1_795_971_990
WORLD = tuple(range(8))
DEFAULT = ("0", "default_pg")
VERSIONS = ("2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10")


def rank_of(path: Path) -> int:
    match = re.search(r"(\d+)(\.json)?$", path.name)
    assert match
    return int(match[1])


def real(name: str) -> list[Dump]:
    return [read_dump(path.read_bytes(), rank_of(path), path.name) for path in sorted((DATA / name).iterdir())]


def told(found: Iterable[Evidence]) -> list[tuple[str, int | None, str]]:
    return [(one.signature.removeprefix("flight_recorder_"), one.rank, one.line) for one in found]


# Composed by FlightRecorder.hpp: what NCCL's recorder writes.


def call(
    number: int,
    name: str = "all_reduce",
    state: str = "completed",
    group: tuple[str, str] = DEFAULT,
    sizes: Sequence[Sequence[int]] = ((16,),),
    dtype: str = "Float",
    p2p: bool = False,
    created: int = 0,
    pg_id: int | None = None,
) -> dict[str, Any]:
    """One entry. `created`: seconds after NOW."""
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        "record_id": number,
        "pg_id": int(group[0]) if pg_id is None else pg_id,
        "process_group": group,
        "collective_seq_id": 0 if p2p else number,
        "p2p_seq_id": number if p2p else 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": (NOW + created) * 10**9 + number,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": [dtype],
        "output_sizes": [list(size) for size in sizes],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": NOW * 10**9 if state == "started" else None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": p2p,
    }


def steps(last: int, *, done: int | None = None, first: int = 1, **more: Any) -> list[dict[str, Any]]:
    """all_reduce number `first` to `last`, those up to `done` completed."""
    done = last if done is None else done
    return [call(n, state="completed" if n <= done else "scheduled", **more) for n in range(first, last + 1)]


def content(
    entries: Sequence[Mapping[str, Any]],
    groups: Mapping[tuple[str, str], Sequence[int]],
    status: Mapping[int, tuple[int, int]] | None = None,
    version: str = "2.9",
) -> dict[str, Any]:
    minor = int(version.partition(".")[2])
    told: dict[str, Any] = {
        "version": version,
        "pg_config": {n: {"name": n, "desc": d, "ranks": str(list(ranks))} for (n, d), ranks in groups.items()},
        "comm_lib_version" if minor >= 10 else "nccl_version": "2.27.3",
    }
    if status is not None:
        told["pg_status"] = {
            str(number): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for number, (enqueued, completed) in status.items()
        }
    late = (("timeout_ms", 3), ("input_dtypes", 4), ("output_dtypes", 4), ("is_p2p", 4))
    older = {key for key, since in late if minor < since}
    return told | {"entries": [{key: value for key, value in entry.items() if key not in older} for entry in entries]}


def dump(rank: int, *given: Any, entries: bool = True, **named: Any) -> Dump:
    return read_dump(pickle.dumps(content(*given, **named), 2), rank, f"/logs/nccl_trace_rank_{rank}", entries=entries)


def late_rank(rank: int, late: int = 5, last: int = 123) -> list[dict[str, Any]]:
    return steps(last - 1, first=last - 20) if rank == late else steps(last, done=last - 1, first=last - 20)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "sleeping",
            ("behind", 2, "rank 2 of process group 0 (default_pg) did not reach ALLREDUCE #6 that 3 others waited in"),
        ),
        (
            "sleeping-json",
            ("behind", 2, "rank 2 of process group 0 (default_pg) did not reach ALLREDUCE #6 that 3 others waited in"),
        ),
        (
            "subgroup",
            ("behind", 3, "rank 3 of process group 0 (default_pg) did not reach ALLREDUCE #6 that 2 others waited in"),
        ),
        (
            "mismatch",
            (
                "mismatch",
                1,
                "rank 1 of process group 0 (default_pg) called BROADCAST of 16 Float as #6 "
                "where 3 others called ALL_REDUCE of 16 Float",
            ),
        ),
        (
            "other-size-with-stacks",
            (
                "mismatch",
                1,
                "rank 1 of process group 0 (default_pg) called ALL_REDUCE of 32 Float as #6 "
                "where 2 others called ALL_REDUCE of 16 Float",
            ),
        ),
        (
            "killed",
            (
                "no_dump",
                3,
                "rank 3 of process group 0 (default_pg) left no dump, and 3 others waited in ALLREDUCE #6",
            ),
        ),
    ],
)
def test_real_dumps_name_the_rank(name: str, expected: tuple[str, int, str]) -> None:
    found = compare(real(name), world=4)
    assert told(found) == [expected]
    (evidence,) = found
    mismatch = expected[0] == "mismatch"
    assert evidence.reason == ("collective_mismatch" if mismatch else "nccl_timeout")
    assert evidence.role is (Role.ROOT if mismatch else Role.CONDITIONAL)
    assert evidence.trust is Trust.USER
    assert evidence.source is Source.FLIGHT_RECORDER
    assert evidence.time is not None
    assert 1_795_971_000 < evidence.time < 1_795_980_000
    assert evidence.place.startswith("comm_lib_trace_rank_")


def test_without_the_world_a_last_rank_that_left_nothing_is_not_missed() -> None:
    assert compare(real("killed")) == ()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["pickle", "python", "json"])
def test_every_version_and_form_tells_the_late_rank(version: str, kind: str) -> None:
    dumps = []
    for rank in WORLD:
        count = 122 if rank == 5 else 123
        whole = content(late_rank(rank), {DEFAULT: WORLD}, {0: (count, 122)}, version)
        if kind == "json":  # dump_json writes the counters as texts
            whole["pg_status"]["0"] = {key: str(value) for key, value in whole["pg_status"]["0"].items()}
        data = json.dumps(whole).encode() if kind == "json" else pickle.dumps(whole, 2 if kind == "pickle" else 5)
        assert looks_like_dump(data[:4096])
        dumps.append(read_dump(data, rank, ""))
    assert told(compare(dumps)) == [
        ("behind", 5, "rank 5 of process group 0 (default_pg) did not reach ALLREDUCE #123 that 7 others waited in")
    ]


@pytest.mark.parametrize("version", ["3.0", "0.9", "", None, 2.1, ["2.0"]])
def test_an_unknown_version_is_said(version: object) -> None:
    with pytest.raises(NotDump, match=r"version .* is not known"):
        read_dump(pickle.dumps({"version": version, "entries": []}, 2), 0, "")


def test_ranks_of_a_subgroup_are_global_ones() -> None:
    group = ("7", "TENSOR_PARALLEL")
    ranks = (40, 41, 42, 43)
    dumps = [dump(rank, steps(8 if rank == 42 else 9, done=8, group=group), {group: ranks}) for rank in ranks]
    assert told(compare(dumps)) == [
        (
            "behind",
            42,
            "rank 42 of process group 7 (TENSOR_PARALLEL) did not reach ALLREDUCE #9 that 3 others waited in",
        )
    ]


def test_groups_of_one_name_and_other_ranks_are_not_compared() -> None:
    group = ("1", "dp")
    dumps = [dump(rank, steps(9, done=8, group=group), {group: (0, 1)}) for rank in (0, 1)]
    dumps += [dump(rank, steps(5, group=group), {group: (2, 3)}) for rank in (2, 3)]
    expected = ("stuck", None, "all 2 ranks of process group 1 (dp) came to ALLREDUCE #9, and it did not end")
    assert told(compare(dumps)) == [expected]


def test_who_waits_itself_is_not_where_it_began() -> None:
    """3 is late for its neighbour; 2 waits for 3 in their pair, so it is late for everybody else."""
    pairs = {rank: (f"{1 + rank // 2}", f"pair_{rank // 2}") for rank in range(4)}
    dumps = []
    for rank in range(4):
        groups = {DEFAULT: (0, 1, 2, 3), pairs[rank]: (rank // 2 * 2, rank // 2 * 2 + 1)}
        entries = steps(5)
        if rank < 2:
            entries = steps(6, done=5)
        elif rank == 2:
            entries += steps(4, done=3, group=pairs[rank], first=3)
        else:
            entries += steps(3, group=pairs[rank], first=3)
        dumps.append(dump(rank, entries, groups))
    assert [rank for _, rank, _ in told(compare(dumps))] == [3]


def pipeline(stuck: int, ranks: int = 4) -> list[Dump]:
    """Stages that receive from the one before and send to the next; `stuck` did not even ask for its receive."""
    group = ("3", "PIPELINE")
    dumps = []
    for stage in range(ranks):
        entries = []
        if stage and stage != stuck:
            entries.append(call(8, f"recv {stage}<-{stage - 1}", "scheduled", group, p2p=True))
        if stage < stuck:
            entries.append(call(9, f"send {stage}->{stage + 1}", "scheduled", group, p2p=True))
        dumps.append(dump(10 + stage, entries, {group: [10 + one for one in range(ranks)]}))
    return dumps


def test_a_pipeline_ends_at_the_stage_that_asks_for_nothing() -> None:
    (found,) = compare(pipeline(stuck=2))
    assert (found.rank, found.signature) == (12, "flight_recorder_behind")
    assert re.search(r"rank 12 of process group 3 \(PIPELINE\) did not reach (SEND|RECV) #\d that \d", found.line)


def test_a_gpu_that_does_not_end_what_its_peers_ended() -> None:
    """As after a fault of one GPU: the host goes on asking, the device does nothing more."""
    dumps = [dump(rank, steps(30, done=12 if rank == 6 else 20), {DEFAULT: WORLD}) for rank in WORLD]
    assert told(compare(dumps)) == [
        (
            "unfinished",
            6,
            "rank 6 of process group 0 (default_pg) did not get through ALLREDUCE #13 that 7 others had behind them",
        )
    ]


def test_a_gpu_that_does_not_start_what_its_peers_started() -> None:
    """With TORCH_NCCL_ENABLE_TIMING: all have asked, one GPU is still busy with something else."""
    dumps = []
    for rank in WORLD:
        entries = [call(8, state="completed"), call(9, state="scheduled" if rank == 3 else "started")]
        entries[0]["time_discovered_started_ns"] = NOW * 10**9
        dumps.append(dump(rank, entries, {DEFAULT: WORLD}))
    assert told(compare(dumps)) == [
        (
            "not_started",
            3,
            "rank 3 of process group 0 (default_pg) had ALLREDUCE #9 in its queue and did not start it "
            "while 7 others had",
        )
    ]


def test_all_came_and_it_did_not_end() -> None:
    dumps = [dump(rank, steps(9, done=8), {DEFAULT: WORLD}) for rank in WORLD]
    assert told(compare(dumps)) == [
        ("stuck", None, "all 8 ranks of process group 0 (default_pg) came to ALLREDUCE #9, and it did not end")
    ]


def test_one_rank_that_ran_ahead_makes_nobody_late() -> None:
    dumps = [dump(rank, steps(9 if rank == 0 else 8, done=8), {DEFAULT: WORLD}) for rank in WORLD]
    assert compare(dumps) == ()


def test_a_job_that_is_well_proves_nothing() -> None:
    assert compare([dump(rank, steps(9), {DEFAULT: WORLD}) for rank in WORLD]) == ()
    assert compare([]) == ()
    assert compare([dump(0, steps(9, done=8), {DEFAULT: WORLD})]) == ()


TENSOR, PIPE = ("35", "tp"), ("43", "pp")


@pytest.mark.parametrize("entries", [True, False], ids=["idle", "counters-only"])
def test_a_rank_that_is_in_nothing_is_known_by_its_counters(entries: bool) -> None:
    """TORCH_INCLUDE_ONLY_ACTIVE: a rank in no operation writes no entry; ids are tied to names by their order."""
    groups = {DEFAULT: WORLD, TENSOR: WORLD[:4], PIPE: (0, 4)}
    dumps = []
    for rank in WORLD[:4]:
        status = {0: (50, 50), 5: (900, 900) if rank == 2 else (905, 900), 6: (71, 71)}
        calls = [] if rank == 2 else [call(n, state="scheduled", group=TENSOR, pg_id=5) for n in range(901, 906)]
        dumps.append(dump(rank, calls, groups, status, entries=entries or rank != 2))
    expected = ("behind", 2, "rank 2 of process group 35 (tp) did not reach ALLREDUCE #901 that 3 others waited in")
    assert told(compare(dumps)) == [expected]


def test_counters_of_a_group_with_sends_are_not_counters_of_collectives() -> None:
    """pg_status counts both into one number, and ranks of a pipeline send as often as their place demands."""
    groups = {DEFAULT: WORLD[:4]}
    dumps = []
    for rank in WORLD[:4]:
        calls = [] if rank == 2 else [call(41, state="scheduled")]
        if rank == 0:
            calls.append(call(7000, "send 0->3", "scheduled", p2p=True))
        dumps.append(dump(rank, calls, groups, {0: (12, 12) if rank == 2 else (7000, 40)}))
    assert not [one for one in compare(dumps) if one.rank == 2]


def test_ids_that_no_order_ties_to_names_are_left_out() -> None:
    groups = {DEFAULT: WORLD[:3], ("mesh_dp", "dp"): WORLD[:3], ("mesh_tp", "tp"): WORLD[:3]}
    calls = [call(9, state="scheduled", group=("mesh_dp", "dp"), pg_id=1)]
    dumps = [dump(rank, [] if rank == 2 else calls, groups, {0: (5, 5), 1: (8, 8), 2: (9, 9)}) for rank in WORLD[:3]]
    assert compare(dumps) == ()


def test_a_rank_without_a_dump_is_weaker_than_one_that_is_behind() -> None:
    waiting = [dump(rank, steps(9, done=8), {DEFAULT: WORLD}) for rank in WORLD if rank not in (2, 5)]
    missing = told(compare([*waiting, dump(5, steps(9, done=8), {DEFAULT: WORLD})]))
    assert missing == [
        ("no_dump", 2, "rank 2 of process group 0 (default_pg) left no dump, and 7 others waited in ALLREDUCE #9")
    ]
    behind = told(compare([*waiting, dump(5, steps(8), {DEFAULT: WORLD})]))
    assert [(kind, rank) for kind, rank, _ in behind] == [("behind", 5)]


def test_a_dump_that_was_not_read_is_not_missing() -> None:
    dumps = [dump(rank, steps(9, done=8), {DEFAULT: WORLD}) for rank in WORLD if rank != 2]
    assert compare(dumps, unread={2}) == ()


def test_where_most_dumps_are_missing_nobody_is_named() -> None:
    dumps = [dump(rank, steps(9, done=8), {DEFAULT: WORLD}) for rank in (0, 1)]
    assert compare(dumps) == ()


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (call(9, "broadcast", "scheduled"), "BROADCAST of 16 Float"),
        (call(9, "all_reduce", "scheduled", sizes=((17,),)), "ALL_REDUCE of 17 Float"),
        (call(9, "all_reduce", "scheduled", dtype="BFloat16"), "ALL_REDUCE of 16 BFloat16"),
    ],
    ids=["operation", "size", "type"],
)
def test_different_collectives_under_one_number(odd: dict[str, Any], words: str) -> None:
    dumps = [
        dump(rank, [*steps(8), odd if rank == 4 else call(9, state="scheduled")], {DEFAULT: WORLD}) for rank in WORLD
    ]
    assert told(compare(dumps)) == [
        (
            "mismatch",
            4,
            f"rank 4 of process group 0 (default_pg) called {words} as #9 "
            "where 7 others called ALL_REDUCE of 16 Float",
        )
    ]


def test_of_two_ranks_that_differ_none_is_the_odd_one() -> None:
    dumps = [
        dump(rank, [*steps(8), call(9, name, "scheduled")], {DEFAULT: (0, 1)})
        for rank, name in enumerate(("barrier", "reduce"))
    ]
    ((kind, rank, _),) = told(compare(dumps))
    assert (kind, rank) == ("mismatch", None)


def test_what_may_differ_is_no_mismatch() -> None:
    """all_to_all of uneven parts, scatter's inputs of the source alone, and what is done already."""
    for name in ("all_to_all", "scatter", "gather", "all_gather_v"):
        dumps = [
            dump(rank, [*steps(8), call(9, name, "scheduled", sizes=((rank + 1,),))], {DEFAULT: WORLD})
            for rank in WORLD
        ]
        assert [kind for kind, _, _ in told(compare(dumps))] == ["stuck"]
    odd = [dump(rank, [*steps(8), call(9, "barrier" if rank else "reduce")], {DEFAULT: WORLD}) for rank in WORLD]
    assert compare(odd) == ()


def test_a_ring_that_began_elsewhere_is_no_mismatch() -> None:
    """The first number of a full buffer may be there only in part: of what was coalesced, the rest is gone."""
    tail = [call(n, state="scheduled") for n in (51, 52)]
    dumps = []
    for rank in WORLD:
        first = [call(50, "all_reduce"), call(50, "reduce_scatter")] if rank else [call(50, "reduce_scatter")]
        dumps.append(dump(rank, [*first, *tail], {DEFAULT: WORLD}))
    assert [kind for kind, _, _ in told(compare(dumps))] == ["stuck"]


def test_names_of_groups_are_shown_and_never_obeyed() -> None:
    group = ("\x1b[31m" + "x" * 500, "a\nb" * 90)
    dumps = [dump(rank, steps(9 if rank else 8, done=8, group=group, pg_id=0), {group: WORLD}) for rank in WORLD]
    (found,) = compare(dumps)
    assert found.rank == 0
    assert found.line.isprintable()
    assert len(found.line) <= 500


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = (*call(1), "seq_id")
NAMES = st.sampled_from(["0", "1", "x"])
COUNTERS = ("last_enqueued_collective", "last_completed_collective")
ENTRY = st.dictionaries(st.sampled_from(KEYS), ANY | st.just("nccl:all_reduce") | st.just(["0", "default_pg"]))


@settings(max_examples=250, deadline=None)
@given(
    entries=st.lists(ENTRY | ANY, max_size=5) | ANY,
    config=st.dictionaries(NAMES, st.fixed_dictionaries({"ranks": ANY, "desc": ANY}) | ANY) | ANY,
    status=st.dictionaries(NAMES, st.dictionaries(st.sampled_from(COUNTERS), ANY) | ANY) | ANY,
)
def test_no_content_raises(entries: object, config: object, status: object) -> None:
    whole = {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}
    data = json.dumps(whole).encode()
    dumps = [read_dump(data, rank, "") for rank in range(3)]
    compare([*dumps, dump(3, steps(9, done=8), {DEFAULT: WORLD})], unread=(4,), world=9)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_dump_are_refused(data: bytes) -> None:
    looks_like_dump(data)
    for bytes_ in (data, b"{" + data, b"\x80\x02}" + data):
        try:
            read_dump(bytes_, 0, "")
        except NotDump:
            continue


@pytest.mark.parametrize("bomb", [b"[" * 3_000_000, b'{"version":"2.10","entries":[' + b"[]," * 3_000_000 + b"[]]}"])
def test_json_bombs_are_refused_at_once(bomb: bytes) -> None:
    begin = time.process_time()
    with pytest.raises(NotDump):
        read_dump(bomb, 0, "")
    assert time.process_time() - begin < 1


def test_a_thousand_ranks_are_compared_within_seconds() -> None:
    world = range(1024)
    group = Group("0", "default_pg", tuple(world))
    one, late = dump(0, steps(60, done=30), {DEFAULT: world}), dump(0, steps(30), {DEFAULT: world})
    dumps = [Dump(rank, "", "2.9", {group: (late if rank == 77 else one).tracks[group]}) for rank in world]
    begin = time.process_time()
    assert [(kind, rank) for kind, rank, _ in told(compare(dumps))] == [("behind", 77)]
    assert time.process_time() - begin < 5


# The files.


@pytest.fixture
def logs(open_folder: Path) -> Path:
    """A log folder of nobody's, which every user may enter."""
    os.chown(open_folder, NOBODY, NOBODY)
    return open_folder


def put(path: Path, data: bytes, *, uid: int = NOBODY, written: float = NOW) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.chown(path, uid, uid)
    path.chmod(0o600)
    os.utime(path, (written, written))
    return path


def put_all(folder: Path, prefix: str = "nccl_trace_rank_", suffix: str = "", late: int = 5) -> None:
    for rank in WORLD:
        put(folder / f"{prefix}{rank}{suffix}", pickle.dumps(content(late_rank(rank, late), {DEFAULT: WORLD}), 2))


def attempt(**fields: Any) -> Attempt:
    known = {"job_id": 881, "user_id": NOBODY, "start_time": NOW - 900, "end_time": NOW + 60}
    return Attempt(cluster="c", nodes=("a1", "a2"), **{**known, **fields})


def read(logs: Path, *, timeout: float = 20, most: int = 1 << 30, **fields: Any) -> Traces:
    return read_traces(attempt(**fields), [str(logs / "slurm-881.out")], most=most, timeout=timeout)


def whys(traces: Traces) -> list[str]:
    return [f"{Path(gap.what).name}: {gap.why}" for gap in traces.gaps]


@pytest.mark.parametrize(
    ("inner", "prefix", "suffix"),
    [
        (".", "nccl_trace_rank_", ""),
        (".", "comm_lib_trace_rank_", ""),
        (".", "_dump_", ""),
        (".", "run7-", ".pkl"),
        (".", "0000", ""),
        ("traces", "r", ""),
        ("job_881", "r", ""),
    ],
)
def test_dumps_are_found_beside_the_log_whatever_their_prefix(logs: Path, inner: str, prefix: str, suffix: str) -> None:
    put_all(logs / inner, prefix, suffix)
    os.chown(logs / inner, NOBODY, NOBODY)
    put(logs / "slurm-881.out", b"log")
    put(logs / "checkpoint_1000", b"\x80\x02}q\x00.")
    traces = read(logs)
    assert [(kind, rank) for kind, rank, _ in told(traces.evidence)] == [("behind", 5)]
    assert traces.evidence[0].place == str(logs / inner / f"{prefix}5{suffix}")
    assert traces.gaps == ()


def test_a_folder_without_dumps_is_no_gap(logs: Path) -> None:
    put(logs / "slurm-881.out", b"log")
    assert read(logs) == Traces()
    assert read(logs / "that is not there").evidence == ()


def test_real_dumps_are_read_as_the_user(logs: Path) -> None:
    for path in (DATA / "sleeping").iterdir():
        put(logs / path.name, path.read_bytes())
    assert [rank for _, rank, _ in told(read(logs).evidence)] == [2]


def test_dumps_of_another_attempt_are_not_read(logs: Path) -> None:
    put_all(logs)
    assert read(logs, start_time=NOW + 10, end_time=NOW + 60) == Traces()
    assert read(logs, start_time=NOW - 900, end_time=NOW - 300) == Traces()
    assert read(logs, start_time=NOW - 900, end_time=None).evidence


def test_two_prefixes_are_two_jobs(logs: Path) -> None:
    """The one with the job's number; which of two is this job's is never guessed rank by rank."""
    put_all(logs, "trace_880_rank_", late=3)
    put_all(logs, "trace_881_rank_", late=6)
    traces = read(logs)
    assert [rank for _, rank, _ in told(traces.evidence)] == [6]
    assert whys(traces) == [f"trace_880_rank_*: another prefix than {logs}/trace_881_rank_*: not read"]


def test_what_a_user_may_put_there_instead_is_left_alone(logs: Path) -> None:
    """A FIFO, links, a folder, another user's file: not opened, or not read; and nothing is waited for."""
    put_all(logs)
    secret = put(logs / "secret", pickle.dumps(content(late_rank(9), {DEFAULT: WORLD}), 2), uid=0)
    (logs / "nccl_trace_rank_8").symlink_to(logs / "nccl_trace_rank_1")
    (logs / "nccl_trace_rank_9").symlink_to(secret)
    (logs / "nccl_trace_rank_10").mkdir()
    os.mkfifo(logs / "nccl_trace_rank_11")
    os.chown(logs / "nccl_trace_rank_11", NOBODY, NOBODY)
    put(logs / "nccl_trace_rank_12", secret.read_bytes(), uid=0)
    begin = time.monotonic()
    traces = read(logs)
    assert [rank for _, rank, _ in told(traces.evidence)] == [5]
    assert traces.gaps == ()
    assert time.monotonic() - begin < 20


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.timing
def test_a_hostile_dump_is_a_gap_and_the_others_are_read(logs: Path) -> None:
    put_all(logs)
    calls = late_rank(7)
    put(logs / "nccl_trace_rank_7", pickle.dumps(content(calls, {DEFAULT: WORLD}) | {"x": Evil(logs / "made")}, 2))
    put(logs / "nccl_trace_rank_6", b"\x80\x02}X\x07\x00\x00\x00version" + b"]" * 30_000_000)
    put(logs / "nccl_trace_rank_4", (logs / "nccl_trace_rank_3").read_bytes()[:-9])
    traces = read(logs)
    assert [rank for _, rank, _ in told(traces.evidence)] == [5]
    assert not (logs / "made").exists()
    refused = {gap.what[-1]: gap.why for gap in traces.gaps}
    assert set(refused) == {"4", "6", "7"}
    assert "opcode" in refused["7"]
    assert refused["6"] == "more than 4000000 steps"
    assert refused["4"] == "cut short"


def test_a_dump_that_is_too_long_gives_its_counters(logs: Path) -> None:
    put_all(logs)
    whole = content(late_rank(5), {DEFAULT: WORLD}, {0: (122, 122)})
    whole["entries"] *= 1 + MOST_DUMP // len(pickle.dumps(whole["entries"], 2))
    data = pickle.dumps({key: whole[key] for key in whole} | {"entries": json.loads(json.dumps(whole["entries"]))}, 2)
    assert len(data) > MOST_DUMP
    put(logs / "nccl_trace_rank_5", data)
    traces = read(logs)
    assert traces.gaps == ()
    assert [rank for _, rank, _ in told(traces.evidence)] == [5]


def test_bytes_are_bounded_and_said(logs: Path) -> None:
    put_all(logs)
    traces = read(logs, most=20_000)
    assert [why for why in whys(traces) if "dumps were not read (TraceBytes)" in why]
    assert not [kind for kind, _, _ in told(traces.evidence) if kind == "no_dump"]


def test_no_time_is_no_look(logs: Path) -> None:
    put_all(logs)
    assert read(logs, timeout=0) == Traces()


@pytest.mark.timing
def test_many_files_end_in_time(logs: Path) -> None:
    for number in range(3000):
        (logs / f"step_{number}").write_bytes(b"\x80\x02}version" + b"K\x01" * 400)
        os.chown(logs / f"step_{number}", NOBODY, NOBODY)
    put_all(logs)
    begin = time.monotonic()
    assert [rank for _, rank, _ in told(read(logs, timeout=5, end_time=None).evidence)] == [5]
    assert time.monotonic() - begin < 20


def test_a_user_without_an_account_is_a_gap(logs: Path) -> None:
    put_all(logs)
    assert whys(read(logs, user_id=3_999_999)) == [f"{logs.name}: uid 3999999 has no account here"]


# What the rows make of it.


WAITED = Evidence(
    source=Source.JOB_LOG,
    trust=Trust.USER,
    signature="nccl_watchdog_timeout",
    reason="nccl_timeout",
    role=Role.CONDITIONAL,
    line="Watchdog caught collective operation timeout",
)


def finding(evidence: Iterable[Evidence], *log: Evidence, **fields: Any) -> Any:
    seen = view(Observation(attempt=attempt(**fields), evidence=(*evidence, *(log or (WAITED,)))))
    return dump_behind(seen), dump_absent(seen)


def test_the_node_of_a_rank_that_is_behind_is_suspected() -> None:
    found, weaker = finding(compare(real("sleeping")), ntasks_per_node=2)
    assert (found.reason, found.rank) == ("nccl_timeout", 2)
    assert [(one.node, one.trust) for one in found.suspects] == [("a2", Trust.USER)]
    assert "rank 2 of process group 0 (default_pg) did not reach ALLREDUCE #6 that 3 others waited in" in found.because
    assert weaker is None


def test_dumps_beside_a_log_that_tells_of_no_waiting_are_another_jobs() -> None:
    done = WAITED.model_copy(update={"reason": "python_exception", "role": Role.ROOT})
    assert finding(compare(real("sleeping")), done) == (None, None)


def test_where_ranks_are_not_mapped_no_node_is_named() -> None:
    found, _ = finding(compare(real("sleeping")), ntasks_per_node=1)
    assert (found.rank, found.suspects) == (2, ())


def test_ranks_of_several_nodes_name_no_node() -> None:
    dumps = [dump(rank, steps(8 if rank in (2, 5) else 9, done=8), {DEFAULT: WORLD}) for rank in WORLD]
    found, _ = finding(compare(dumps), ntasks_per_node=4)
    assert (found.reason, found.rank, found.suspects, len(found.evidence)) == ("nccl_timeout", None, (), 2)


def test_a_rank_without_a_dump_names_no_node() -> None:
    found, weaker = finding(compare(real("killed"), world=4), ntasks_per_node=2)
    assert found is None
    assert (weaker.reason, weaker.rank, weaker.suspects) == ("nccl_timeout", 3, ())


def test_a_mismatch_is_the_programs() -> None:
    found, _ = finding(compare(real("mismatch")), ntasks_per_node=2)
    assert (found.reason, found.rank, found.suspects) == ("collective_mismatch", 1, ())


def test_fixtures_are_complete() -> None:
    assert {path.name for path in DATA.iterdir() if path.is_dir()} == {
        *("sleeping", "sleeping-json", "subgroup", "mismatch", "other-size-with-stacks", "killed")
    }
