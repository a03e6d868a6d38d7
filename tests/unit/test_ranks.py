"""Which rank a line belongs to and where that rank ran: by evidence, and by nothing where the evidence disagrees."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.attribute.ranks import Places, places
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.placement import FORMS, LITERALS, Form, placements
from slurm_recovery.detect.table import Entry, TorchrunTable
from slurm_recovery.records import Attempt, Evidence, Role, Source, Trust

NODES = ("a1", "a2", "a3", "a4")


def seen(line: str, source: Source = Source.JOB_LOG, **known: Any) -> Evidence:
    """A line as the scanner notes it: with what its frame says, or what a signature took out of it."""
    head = frame(line)
    said = {"signature": "x", "rank": head.rank, "local_rank": head.local_rank, "node": head.node} | known
    return Evidence(source=source, trust=Trust.USER, reason="", role=Role.NOISE, line=line, **said)


def job(*lines: str | Evidence, nodes: tuple[str, ...] = NODES, per_node: int | None = 2, **fields: Any) -> Places:
    attempt = Attempt(cluster="c", job_id=1, nodes=nodes, ntasks_per_node=per_node, **fields)
    return places(attempt, [seen(line) if isinstance(line, str) else line for line in lines])


def place(where: Places, line: str) -> tuple[int | None, str | None]:
    return where.rank(seen(line)), where.node(seen(line))


# What one line says of places.

FORM_SAYS: dict[str, dict[str, object]] = {
    "nccl_rank": {"ranks": (9,), "communicator": 16},
    "nccl_address": {"ip": "10.0.0.3"},
    "torch_ranks": {"ranks": (8, 9, 10, 11), "local_ranks": (0, 1, 2, 3)},
    "torch_world": {"world": 16},
    "torch_joined": {"group": 1, "node": "a02"},
    "torch_group": {"group": 1},
    "mpi_exited": {"ranks": (9,), "node": "a02", "own": False},
    "mpi_reported": {"ranks": (9,)},
    "hydra_exited": {"ranks": (9,), "node": "a02", "own": False},
    "cray_rank": {"ranks": (9,), "node": "a02"},
    "megatron_rank": {"ranks": (9,), "node": "a02"},
    "deepspeed_rank": {"ranks": (9,), "local_ranks": (1,), "world": 16},
    "ray_rank": {"ranks": (9,), "local_ranks": (1,), "ip": "10.0.0.3", "pid": 815, "own": False},
    "ray_address": {"ip": "10.0.0.3"},
    "lightning_rank": {"ranks": (9,), "world": 16},
    "deepspeed_world": {"world": 16},
    "environment_world": {"world": 16},
}


@pytest.mark.parametrize("form", FORMS, ids=[f"{form.name} {form.source}" for form in FORMS])
def test_each_form_is_understood_by_its_example(form: Form) -> None:
    (found,) = placements(frame(form.example))
    said = {name: value for name, value in found._asdict().items() if value not in (None, ()) and name != "form"}
    assert said == {"own": True} | FORM_SAYS[form.name]
    assert form.literal in form.example
    assert form.literal in LITERALS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("host=a02 rank=9", ((9,), "a02", None)),
        ("rank: 9, local_rank: 1, hostname: a02", ((9,), "a02", None)),
        ("[2026-06-04 10:00:00] global_rank=9 node=a02.cluster", ((9,), "a02.cluster", None)),
        ("Hello from rank 9 of 16 on a02", ((9,), "a02", None)),
        ("rank 9/16 running on node a02", ((9,), "a02", None)),
        ("3: launch: host=a02 node_rank=3 MASTER_ADDR=a01", ((), "a02", None)),
        ("[rank3]: hostname: a02", ((), "a02", None)),
        ("SLURM_PROCID=3 host=a02", ((), "a02", 3)),
        ("RANK=9 LOCAL_RANK=1 SLURM_PROCID=3", ((9,), None, 3)),
    ],
)
def test_a_jobs_own_words(line: str, said: tuple[object, ...]) -> None:
    (found,) = placements(frame(line))
    assert (found.ranks, found.node, found.task) == said


@pytest.mark.parametrize(
    "line",
    [
        "rank=9 lost connection to host=a02",
        "timed out waiting for rank: 9, host: a02",
        "Connection closed by peer: rank=9 host=a02",
        "3: master host: a01",
        "local rank: 9 host: a02",
        "tp_rank=9 host=a02",
        "node_rank=1 host=a02",
        "host=a02",
        "rank=9",
        "frank=9 ghost=a02",
        "MY_WORLD_SIZE=16",
        "the best rank 9 of 16 on average",
        "max nranks 16",
        "global_ranks=[]",
        "global_rank_mapping=None",
        "process rank 9 on node a02",
    ],
)
def test_words_about_others_or_about_something_else_say_nothing(line: str) -> None:
    assert placements(frame(line)) == ()


SAYS_AN_ADDRESS = [
    "worker a2 at 10.0.0.3",
    "a2/10.0.0.3:6379",
    "node a2 (10.0.0.3)",
    "==> a2 worker 10.0.0.3",
    "a2: 10.0.0.3",
    "10.0.0.3 a2.cluster a2",
]


@pytest.mark.parametrize("line", SAYS_AN_ADDRESS)
def test_a_job_says_which_address_a_node_has(line: str) -> None:
    assert place(job(line, per_node=1), "(W pid=7, ip=10.0.0.3) KeyError") == (None, "a2")


@pytest.mark.parametrize("line", ["a2: 10.0.0.3 is gone", "a2 10.0.0.3", "http://a2/10.0.0.3", "a2 at 10.0.0.3.4"])
def test_an_address_beside_a_name_need_not_be_its_own(line: str) -> None:
    assert place(job(line, per_node=1), "(W pid=7, ip=10.0.0.3) KeyError") == (None, None)


def test_deepspeed_says_it_all_in_one_line() -> None:
    line = "[launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, {'a1': [0, 1], 'a2': [2, 3]})"
    where = job(line, per_node=1)
    assert [where.of_node(rank) for rank in range(5)] == ["a1", "a1", "a2", "a2", None]


# Tasks and ranks.


def test_plain_tasks_are_ranks_in_blocks() -> None:
    where = job()
    assert where.tasks_are_ranks
    assert where.world == 8
    assert place(where, "5: KeyError") == (5, "a3")
    assert place(where, "[rank7]: KeyError") == (7, "a4")


def test_launchers_are_no_ranks_but_name_their_node() -> None:
    where = job(per_node=1)
    assert not where.tasks_are_ranks
    assert where.world is None
    assert place(where, "1: torchrun failed") == (None, "a2")
    assert place(where, "[rank3]: KeyError") == (3, None)
    assert place(where, "1: [rank11]: KeyError") == (11, "a2")


def test_an_unknown_number_of_tasks_counts_nothing_out() -> None:
    where = job(per_node=None)
    assert place(where, "1: KeyError") == (None, None)
    assert where.where(seen("1: KeyError")).because == (
        "no line tells where task 1 ran, and the number of tasks per node is not known"
    )


def test_a_label_with_a_rank_of_another_number_shows_that_tasks_are_launchers() -> None:
    where = job("1: [rank9]: hello")
    assert not where.tasks_are_ranks
    assert where.world is None
    assert where.of_node(9) == "a1"  # task 1 of two on each node
    assert where.of_node(5) is None


def test_a_larger_world_shows_that_tasks_are_launchers() -> None:
    assert not job("WORLD_SIZE=64").tasks_are_ranks
    assert job("WORLD_SIZE=64").world == 64
    assert job("WORLD_SIZE=8").tasks_are_ranks


def test_tasks_that_print_their_own_number_are_ranks() -> None:
    alike = [f"{rank}: [rank{rank}]: hello" for rank in (0, 2, 3)]
    assert job(*alike, per_node=1).tasks_are_ranks
    assert not job(*alike[:2], per_node=1).tasks_are_ranks
    assert job(*alike[:2], "WORLD_SIZE=4", per_node=1).tasks_are_ranks
    assert not job(*alike, "1: [rank8]: hello", per_node=1).tasks_are_ranks


# Where evidence beats counting.


def test_sruns_own_lines_beat_blocks_and_then_nothing_is_counted() -> None:
    cyclic = job("srun: error: a2: task 1: Exited with exit code 1")
    assert cyclic.of_node(1) == "a2"
    assert cyclic.of_node(2) is None
    assert place(cyclic, "5: KeyError") == (5, None)
    assert cyclic.where(seen("5: KeyError")).because == "no line tells where task 5 ran, and task 1 ran on a2"
    in_blocks = job("srun: error: a2: tasks 2-3: Exited with exit code 1")
    assert (in_blocks.of_node(2), in_blocks.of_node(5)) == ("a2", "a3")


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        ("srun: error: a[3-4]: tasks 4-7: Killed", True),
        ("srun: error: a[1-4]: tasks 0-7: Killed", True),
        ("srun: error: a[3-4]: tasks 4,7: Killed", True),
        ("srun: error: a[3-4]: tasks 2,3: Killed", False),
        ("srun: error: a[1-4]: tasks 0-3: Killed", False),
        ("srun: error: a[1-2]: tasks 0-99999999: Killed", False),
        ("srun: error: Unknown: tasks 2,3: Killed", True),
        ("8: [rank0]: hello", False),
        ("5: a1:815:900 [0] NCCL INFO hello", False),
        ("5: a3:815:900 [0] NCCL INFO hello", True),
        ("5: host=a1", False),
        ("[a1:815] *** reported by process [3960668161,5]", False),
        ("mpirun noticed that process rank 5 with PID 815 on node a1 exited on signal 9 (Killed).", False),
        ("Rank 5, node a1, device 0, iteration #7: Possible transient error!", False),
    ],
)
def test_any_contradiction_ends_counting(line: str, blocks: bool) -> None:
    where = job(line)
    assert where.of_node(6) == ("a4" if blocks else None)


def test_a_launcher_that_ran_elsewhere_ends_counting_of_launchers() -> None:
    where = job("1: [rank9]: hello", seen("  exitcode  : 1", signature="torchrun_table", rank=9, node="a4"), per_node=1)
    assert where.of_node(9) == "a4"
    assert place(where, "2: hello") == (None, None)


def test_two_nodes_for_one_rank_are_none() -> None:
    where = job("a1:815:900 [0] NCCL INFO x", "[a1:815] [rank5] x", "[a2:815] [rank5] x", per_node=1)
    assert where.of_node(5) is None
    assert where.where(seen("[rank5]: KeyError")).because == "rank 5 was seen on a1, a2"


def test_a_table_of_torchrun_names_the_host() -> None:
    entry = seen("  exitcode  : 1 (pid: 366)", signature="torchrun_table", rank=10, local_rank=2, node="a4.cluster")
    where = job(entry, per_node=1)
    assert where.of_node(10) == "a4"
    assert place(where, "[default2]:KeyError") == (10, "a4")


def test_who_is_accused_is_not_where_the_accuser_runs() -> None:
    lost = seen("[rank0]: Node failure on a4", node="a4")
    barrier = seen("a1:1:2 [0] NCCL WARN task 7 is late", rank=7)
    where = job(lost, barrier, per_node=1)
    assert (where.of_node(0), where.of_node(7)) == (None, None)


# Bootstrap lines.


def nccl(node: str, rank: int, size: int, pid: int | None = None) -> str:
    pid = rank + 100 if pid is None else pid
    return f"{node}:{pid}:900 [0] NCCL INFO comm 0x5 rank {rank} nranks {size} cudaDev 0 busId 1000 - Init COMPLETE"


def test_nccl_places_the_ranks_of_the_whole_world() -> None:
    where = job(nccl("a3", 0, 4), nccl("a1", 1, 4), nccl("a2", 3, 4), nccl("a4", 2, 4), per_node=1)
    assert [where.of_node(rank) for rank in range(4)] == ["a3", "a1", "a4", "a2"]


def test_nccls_ranks_in_a_part_of_the_world_are_not_global() -> None:
    assert job(nccl("a3", 0, 4), nccl("a1", 1, 4), per_node=1).of_node(0) is None
    assert job(nccl("a3", 0, 4), nccl("a1", 1, 4), "WORLD_SIZE=4", per_node=1).of_node(0) == "a3"
    assert job(nccl("a3", 0, 4), "WORLD_SIZE=8", per_node=1).of_node(0) is None
    assert job(nccl("a4", 0, 4)).of_node(0) == "a1"  # 8 tasks are ranks, in blocks
    assert job(nccl("a4", 0, 8)).of_node(0) == "a4"


def test_nccls_groups_across_nodes_are_no_world() -> None:
    groups = [nccl(node, rank, 4, pid=10 * group) for group in (1, 2) for rank, node in enumerate(NODES)]
    assert job(*groups, per_node=1).of_node(1) is None


def test_a_torchrun_agent_tells_the_ranks_that_it_starts() -> None:
    where = job("0:   global_ranks=[2, 3]", "1:   global_ranks=[0, 1]", per_node=1)
    assert not where.tasks_are_ranks
    assert [where.of_node(rank) for rank in range(4)] == ["a2", "a2", "a1", "a1"]
    assert place(where, "1: [default1]:KeyError") == (1, "a2")


def test_torchs_groups_place_ranks_where_all_launchers_start_as_many() -> None:
    joined = "The node 'a{0}_815_0' has joined round 0 of the rendezvous '7' as rank {1} in a world of size 4."
    lines = [joined.format(4, 1), joined.format(1, 0)]
    assert job(*lines, per_node=1).of_node(8) is None
    assert job(*lines, "  global_ranks=[0, 1, 2, 3, 4, 5, 6, 7]", per_node=1).of_node(8) == "a4"
    assert job(*lines, "  global_ranks=[0, 1]", "  global_ranks=[2, 3, 4]", per_node=1).of_node(2) is None
    assert job("[a4:0] group_rank=1 group_world_size=4 local_world_size=8", per_node=1).of_node(10) == "a4"


def test_a_node_rank_is_no_rank_of_torchs_rendezvous() -> None:
    where = job("1: launch: host=a4 node_rank=1 MASTER_ADDR=a1 local_world_size=8", per_node=1)
    assert place(where, "1: hello") == (None, "a4")
    assert where.of_node(8) is None


# Ray, MPI, groups, heterogeneous jobs.


def test_ray_names_nodes_by_address() -> None:
    address = "a3:815:900 [0] NCCL INFO Bootstrap : Using ib0:10.0.0.3<0>"
    where = job(address, "1: Local node IP: 10.0.0.2", per_node=1)
    assert place(where, "(W pid=7, ip=10.0.0.3) KeyError") == (None, "a3")
    assert place(where, "(W pid=7, ip=10.0.0.2) KeyError") == (None, "a2")
    assert place(where, "(W pid=7, ip=10.0.0.9) KeyError") == (None, None)
    assert where.where(seen("(W pid=7, ip=10.0.0.9) KeyError")).because == "no node is known by the address 10.0.0.9"
    assert place(job(nodes=("ip-10-0-0-3", "ip-10-0-0-4")), "(W pid=7, ip=10.0.0.4) x") == (None, "ip-10-0-0-4")


def test_rays_driver_is_not_where_its_workers_run() -> None:
    where = job(per_node=1)
    assert place(where, "0: (W pid=7, ip=10.0.0.3) KeyError") == (None, None)
    assert place(where, "(W pid=7) KeyError") == (None, None)


def test_one_line_of_ray_for_many_workers_names_no_node() -> None:
    where = job("a3:815:900 [0] NCCL INFO Bootstrap : Using ib0:10.0.0.3<0>", per_node=1)
    line = "(W pid=7, ip=10.0.0.3) ImportError: x [repeated 7x across cluster]"
    assert place(where, line) == (None, None)
    assert where.where(seen(line)).because == "Ray printed one line for 7"


def test_rays_workers_are_known_by_address_and_process() -> None:
    told = "(TorchTrainer pid=1) - (node_id=4c93, ip=10.0.0.{0}, pid={1}) world_rank={2}, local_rank=0, node_rank=0"
    where = job(told.format(3, 815, 9), told.format(4, 816, 10), told.format(5, 815, 11), per_node=1)
    assert where.rank(seen("(RayTrainWorker pid=815, ip=10.0.0.3) KeyError")) == 9
    assert where.rank(seen("(RayTrainWorker pid=816) KeyError")) == 10
    assert where.rank(seen("(RayTrainWorker pid=815) KeyError")) is None


def test_mpirun_is_not_where_its_ranks_run() -> None:
    where = job(per_node=1)
    assert place(where, "0: [1,5]<stderr>:KeyError") == (5, None)
    assert place(where, "0: [1,5][a3:815]<stderr>: KeyError") == (5, "a3")
    assert place(where, "[a3:00815] *** Process received signal ***") == (None, "a3")


def test_a_name_before_the_line_is_the_node_of_pdsh() -> None:
    assert place(job(per_node=1), "a3: Traceback (most recent call last):") == (None, "a3")
    assert place(job(per_node=1), "ValueError: a3: x") == (None, None)


def test_a_groups_rank_is_believed_until_two_print_it() -> None:
    line = "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught"
    assert place(job(f"0: {line}", per_node=1), line) == (1, None)
    assert place(job(f"0: {line}", f"3: {line}", per_node=1), line) == (None, None)
    assert place(job(f"5: {line}"), f"5: {line}") == (5, "a3")


def test_a_heterogeneous_job_is_not_counted_out() -> None:
    for where, line in [
        (job(het_job_id=1), "5: KeyError"),
        (job(het_job_id=1), "[rank5]: KeyError"),
        (job("P0 1: hello", "P1 1: hello"), "P1 5: KeyError"),
    ]:
        assert where.node(seen(line)) is None
        assert not where.tasks_are_ranks
    where = job("srun: error: a4: task 1: Killed", het_job_id=1)
    assert where.where(seen("1: KeyError")) == (
        None,
        "no line tells where task 1 ran, and the job is heterogeneous",
    )
    assert place(job("1: a4:815:900 [0] NCCL INFO x", het_job_id=1), "1: KeyError") == (None, "a4")


# Names.


def test_nodes_are_known_with_and_without_their_domain() -> None:
    assert job(nodes=("a1.x", "a2.x")).known("a2") == "a2.x"
    assert job().known("a2.cluster") == "a2"
    assert job(nodes=("a1.x", "a1.y")).known("a1") is None
    assert job(nodes=("a1.x", "a1.y")).known("a1.y") == "a1.y"
    assert job().known("z9") is None
    assert job().known("") is None


def test_a_single_node_is_where_everything_ran() -> None:
    where = job(nodes=("a1",))
    assert place(where, "[default1]:KeyError") == (1, "a1")
    assert where.of_node(7) == "a1"
    assert where.node(seen("NVRM: Xid", source=Source.KERNEL_LOG)) is None


def test_a_kernel_log_says_nothing_of_ranks() -> None:
    line = seen("host=a4 rank=1", source=Source.KERNEL_LOG, node="a1")
    where = job(line, per_node=1)
    assert (where.of_node(1), where.node(line)) == (None, "a1")


# torchrun's table.


def table(*lines: str) -> list[Entry]:
    """Lines of tables, each after the name of who printed it."""
    reader, found = TorchrunTable(), []
    for line in lines:
        who, text = line.split("|")
        if entry := reader.take(
            {"host": "  host      : ", "rank": "  rank      : ", "exit": "  exitcode  : "}[text[:4]] + text[5:], who
        ):
            found.append(entry)
    return found


def rows(who: str, host: str, rank: int) -> list[str]:
    return [f"{who}|host {host}", f"{who}|rank {rank} (local_rank: 0)", f"{who}|exit -9 (pid: 1)"]


def test_entries_that_follow_one_another() -> None:
    found = table(*rows("", "a1", 0), *rows("", "a2", 8))
    assert [(one.node, one.rank, one.reason) for one in found] == [
        ("a1", 0, "killed_unknown"),
        ("a2", 8, "killed_unknown"),
    ]


def test_entries_that_are_mixed_up_are_told_apart_by_their_printers() -> None:
    a, b = rows("1", "a1", 0), rows("2", "a2", 8)
    found = table(a[0], b[0], b[1], a[1], b[2], a[2])
    assert [(one.node, one.rank) for one in found] == [("a2", 8), ("a1", 0)]


@pytest.mark.parametrize("order", ["abab ab", "aabbab", "abcbcabca", "abbcacabc", "ababba"])
def test_entries_that_cannot_be_told_apart_pair_no_host_with_anothers_rank(order: str) -> None:
    lines = {who: rows("", f"n{who}", rank) for rank, who in enumerate("abc")}
    mixed = [lines[who].pop(0) for who in order.replace(" ", "")]
    found = table(*mixed, *rows("", "a9", 9))
    assert all((one.node, one.rank) in {("na", 0), ("nb", 1), ("nc", 2), ("a9", 9)} for one in found)
    assert ("a9", 9) in {(one.node, one.rank) for one in found}


def test_a_cut_entry_is_forgotten() -> None:
    found = table(*rows("", "a1", 0)[:2], *[line for n in range(400) for line in rows("", "a2", n)])
    assert found[-1].rank == 399
    assert {one.node for one in found} == {"a2"}


# Hostile input.

LINES = [
    *(form.example for form in FORMS),
    *(nccl("a1", 0, 8), nccl("a2", 0, 8), "3: [rank3]: x", "3: [rank4]: x", "P1 3: x", "[rank3]: x", "9: a4:1:2 [0] x"),
    *("srun: error: a[1-4]: tasks 0-7: Killed", "srun: error: a2: task 1: Killed", "WORLD_SIZE=4", "WORLD_SIZE=0"),
    *(
        "(W pid=815, ip=10.0.0.3) x",
        "[1,5]<stdout>:x",
        "a3: x",
        "[default1]:x",
        "[E x.cpp:1] [Rank 1] x",
        "group_rank=9999999",
    ),
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(LINES) | st.text(max_size=60), max_size=12),
    st.sampled_from([None, 0, 1, 2]),
    st.integers(0, 4),
    st.sampled_from([None, 7]),
)
def test_any_mixture_names_only_the_jobs_nodes_in_any_order(
    lines: list[str], per_node: int | None, nodes: int, het: int | None
) -> None:
    def read(order: list[str]) -> list[tuple[int | None, str | None]]:
        where = job(*order, per_node=per_node, nodes=NODES[:nodes], het_job_id=het)
        return [place(where, line) for line in sorted(order)]

    found = read(lines)
    assert {node for _, node in found} <= {None, *NODES[:nodes]}
    assert found == read(lines[::-1])


def test_much_is_bounded() -> None:
    lines = [f"srun: error: a1: tasks {n}-{n + 4000}: Killed" for n in range(0, 4_000_000, 1000)]
    lines += [f"[a{n % 4 + 1}:1] group_rank={n} local_world_size=9999" for n in range(4000)]
    lines += ["0: global_ranks=[" + ", ".join(map(str, range(n, n + 256))) + "]" for n in range(300)]
    start = time.process_time()
    job(*lines)
    assert time.process_time() - start < 6.0  # 0.6 s on one core of 2024


def test_a_rank_beyond_the_tasks_makes_tasks_launchers() -> None:
    assert job("[rank7]: x").tasks_are_ranks
    assert not job("[rank8]: x").tasks_are_ranks
    assert job("[PG ID 3 PG GUID 9 Rank 8] x").tasks_are_ranks


def test_slurmstepd_that_cannot_execute_speaks_of_the_only_host_whose_tasks_ended_of_it() -> None:
    line = "slurmstepd: error: execve(): /home/u/run.sh: Permission denied"
    end = "srun: error: {}: task {}: Exited with exit code {}"
    assert place(job(line, end.format("a3", 2, 13), per_node=1), line) == (None, "a3")
    assert place(job(line, end.format("a3", 2, 13), end.format("a4", 3, 13), per_node=1), line) == (None, None)
    assert place(job(line, end.format("a3", 2, 1), per_node=1), line) == (None, None)


def test_nccl_tells_the_rank_of_each_process_and_device_of_the_world() -> None:
    line = "{0}:{1}:9 [{2}] NCCL INFO comm 0x55 rank {3} nranks {4} cudaDev {2} busId ab000 - Init COMPLETE"
    warn = "a2:71:9 [1] enqueue.cc:1402 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"
    whole = [line.format(f"a{rank // 2 + 1}", 70 + rank % 2, rank % 2, rank, 8) for rank in range(8)]
    assert place(job(*whole), warn) == (3, "a2")
    assert place(job(*whole), warn.replace(":71:", ":77:")) == (None, "a2")
    part = [line.format(f"a{rank + 1}", 71, 1, rank, 4) for rank in range(4)]
    assert place(job(*part), warn) == (None, "a2")


def test_jaxs_processes_are_sruns_tasks() -> None:
    listed = seen("0: /job:jax_worker/replica:0/task:3", signature="jax_task_listed")
    assert place(job(listed, per_node=1), "3: ValueError: 15 is not 16") == (3, "a4")
    assert place(job("0: /job", per_node=1), "3: ValueError: 15 is not 16") == (None, "a4")
