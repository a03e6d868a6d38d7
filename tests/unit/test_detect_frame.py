"""Who printed a line and when, and what srun says of tasks. Each format with the software that prints it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery.detect.frame import MOST_PREFIXES, frame
from slurm_recovery.detect.prefixes import PREFIXES, Prefix
from slurm_recovery.detect.srun_words import hosts, task_end, tasks
from slurm_recovery.detect.times import Yearless, any_time, in_year

EXAMPLE = {"rank": 3, "local_rank": 3, "node": "a02", "ip": "10.0.0.3", "pid": 815}


@pytest.mark.parametrize("row", PREFIXES, ids=[row.source for row in PREFIXES])
def test_each_prefix_is_understood_by_its_example(row: Prefix) -> None:
    found = frame(row.example)
    named = [name for name in EXAMPLE if f"?P<{name}>" in row.pattern]
    assert {name: getattr(found, name) for name in named} == {name: EXAMPLE[name] for name in named}
    assert found.relayed is row.relays
    assert row.example.endswith(found.text)
    assert len(found.text) < len(row.example)


def told(line: str) -> dict[str, object]:
    """What the frame says, without the text, the time and what is nothing."""
    unsaid = {"text": "", "time": None, "zoned": False, "uptime": None, "yearless": None}
    found = frame(line)._replace(**unsaid)._asdict()
    return {name: value for name, value in found.items() if value != frame("")._asdict()[name]}


PREFIXED = [
    # Slurm src/common/write_labelled_message.c
    ("12: KeyError: 1", {"task": 12}),
    ("   3: KeyError: 1", {"task": 3}),
    ("0:", {"task": 0}),
    ("P1  3: KeyError: 1", {"component": 1, "task": 3}),
    ("P0 12: [rank4]: KeyError: 1", {"component": 0, "task": 12, "rank": 4}),
    # PyTorch c10/util/Logging.cpp, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp createLogPrefix, tail_log.py
    ("[rank5]: KeyError: 1", {"rank": 5}),
    (" 1: [rank9]: KeyError: 1", {"task": 1, "rank": 9}),
    ("[default3]:KeyError: 1", {"local_rank": 3}),
    ("[trainer0]:KeyError: 1", {"local_rank": 0}),
    ("[default0]:[rank8]:[W TCPStore.cpp:87] reset", {"local_rank": 0, "rank": 8}),
    ("[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog", {"rank": 3, "in_group": True}),
    ("[rank2]:[E1109 16:13:20.222288244 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog", {"rank": 2}),
    ("[E ProcessGroupNCCL.cpp:1182] [PG 0 Rank 7] Timeout", {"rank": 7}),
    ("[PG ID 0 PG GUID 0(default_pg) Rank 7] Timeout", {"rank": 7}),
    ("[PG ID 4 PG GUID 0(default_pg) Rank 7] Timeout", {"rank": 7}),
    ("[PG ID 5 PG GUID 11(TENSOR) Rank 1] Timeout", {}),
    ("[PG GUID model_update_actor (3,0) Rank 1] Timeout", {}),
    # torchx, NeMo-Run: role/replica
    ("i.pretrain/0 [default3]:[rank11]: KeyError: 1", {"local_rank": 3, "rank": 11}),
    ("trainer/1   rank      : 12 (local_rank: 4)", {}),
    # loggers that print a rank, and perhaps a host, before the exception
    ("2026-02-20 11:51:00 ERROR rank 3: RuntimeError: x", {"rank": 3}),
    ("2026-08-18 21:30:43,010 ERROR rank=13 host=ep08 RuntimeError: x", {"rank": 13, "node": "ep08"}),
    ("ERROR: [rank 3/16] torch.OutOfMemoryError: x", {"rank": 3}),
    ("[rank 2/16] training step raised", {"rank": 2}),
    # structlog, python-json-logger
    (
        '{"level": "error", "rank": 3, "host": "a02", "exc": "Traceback:\\n  File \\"x.py\\"\\nKeyError: 1\\n"}',
        {"rank": 3, "node": "a02", "record": True},
    ),
    ('12: {"levelname": "INFO", "global_rank": 3, "msg": "step"}', {"task": 12, "rank": 3, "record": True}),
    ('{"level": "warning", "err": "KeyError: 1"}', {"record": True}),
    # Lightning rank_prefixed_message
    ("[rank: 6] Child process with PID 815 terminated with code 1.", {"rank": 6}),
    # NCCL src/debug.cc, 2.18 and, with a time, 2.30
    ("a01:3000:3400 [2] NCCL WARN x", {"node": "a01", "pid": 3000, "local_rank": 2}),
    ("a01:3000:3400 NCCL CALL ncclAllReduce(7f,1)", {"node": "a01", "pid": 3000}),
    (
        "[2026-06-04 10:00:00] ip-10-0-0-3:815:900 [0] enqueue.cc:12 (main) NCCL WARN x",
        {"node": "ip-10-0-0-3", "pid": 815, "local_rank": 0},
    ),
    # Open MPI 4 orte/mca/iof/base/iof_base_output.c; opal/util/output.c; opal/mca/btl/base/btl_base_error.h
    ("[1,5]<stderr>:IndexError: x", {"rank": 5, "relayed": True}),
    ("0: [1,5]<stderr>:IndexError: x", {"task": 0, "rank": 5, "relayed": True}),
    ("a02: [1,5]<stderr>:IndexError: x", {"rank": 5, "relayed": True}),
    ("Thu Jun  4 10:00:00 2026[1,5]<stdout>:step 1", {"rank": 5, "relayed": True}),
    ("[a05:953501] *** Process received signal ***", {"node": "a05", "pid": 953501}),
    ("[a05:953501] [[61437,0],2] ORTE_ERROR_LOG: Timeout", {"node": "a05", "pid": 953501}),
    ("[a05:953501] [[61437,1],2] ORTE_ERROR_LOG: Timeout", {"node": "a05", "pid": 953501, "rank": 2}),
    ("[a05][[61437,1],3][btl_tcp_frag.c:241:mca_btl_tcp_frag_recv] x", {"node": "a05", "rank": 3}),
    # PMIx src/common/pmix_iof.c: tag, tag-fullname, tag-detailed, rank, with a time
    ("[1,5]<stdout>: step 1", {"rank": 5, "relayed": True}),
    ("[prterun-a01-4711@1,5]<stdout>: step 1", {"rank": 5, "relayed": True}),
    ("[1,5][a02:815]<stderr>: KeyError", {"rank": 5, "node": "a02", "pid": 815, "relayed": True}),
    ("[1,5][unknown:unknown]<stderr>: KeyError", {"rank": 5, "relayed": True}),
    ("[5]<stdout>: step 1", {"rank": 5, "relayed": True}),
    ("[Thu Jun  4 10:00:00 2026][1,5]<stdout>: step 1", {"rank": 5, "relayed": True}),
    ("[Thu Jun  4 10:00:00 2026]<stdout>: step 1", {"relayed": True}),
    # UCX src/ucs/debug/log.c
    ("[a05:953501:0:953501] ib_mlx5_log.c:139  Transport", {"node": "a05", "pid": 953501}),
    ("[1780567200.123456] [a05:953501:0]  ib_mlx5_log.c:139  UCX  ERROR x", {"node": "a05", "pid": 953501}),
    # MPICH src/pm/hydra
    ("[mpiexec@a01] control_cb: assert (!closed) failed", {"node": "a01"}),
    # Ray python/ray/_private/worker.py print_worker_logs, ray_logging LogDeduplicator
    ("(TrainWorker pid=815, ip=10.0.0.3) KeyError: 1", {"pid": 815, "ip": "10.0.0.3", "relayed": True}),
    ("(pid=815) KeyError: 1", {"pid": 815, "relayed": True}),
    ("(RolloutWorker(rank=1, gpu) pid=815, ip=fe80::1) x", {"pid": 815, "ip": "fe80::1", "relayed": True}),
    ("(raylet, ip=10.0.0.3) Spilled", {"ip": "10.0.0.3", "relayed": True}),
    ("(raylet) Spilled", {"relayed": True}),
    (
        "(W pid=1, ip=10.0.0.3) x [repeated 3x across cluster] (Ray deduplicates logs by default. Set)",
        {"pid": 1, "ip": "10.0.0.3", "others": 2, "relayed": True},
    ),
    # DeepSpeed deepspeed/launcher/multinode_runner.py (pdsh), deepspeed/utils/logging.py log_dist
    ("a02: [2026-06-04 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 8] x", None),
    ("10.0.0.3: [rank8]: KeyError: 1", {"ip": "10.0.0.3", "rank": 8, "relayed": True}),
    # UCX src/ucs/debug/log.c: the pid is padded to five
    ("[1764931201.744682] [a02:815  :0]      ib_device.c:468  UCX  WARN  x", {"node": "a02", "pid": 815}),
    # Megatron-LM megatron/training/utils.py report_memory; accelerate src/accelerate/logging.py; NeMo; absl
    ("[Rank 4] (after 10 iterations) memory (MB) | allocated: 1", {"rank": 4, "in_group": True}),
    ("06/04/2026 10:00:00 - INFO - __main__ - [RANK 3] Loading", {"rank": 3}),
    ("[NeMo W 2026-06-04 10:00:00 nemo_logging:349] x", {}),
    ("I0604 10:00:00.123456 140737 distributed.py:106] Starting", {}),
    # the kernel by syslog(3) and journalctl
    ("Jun  4 10:22:30 a03 kernel: NVRM: Xid (PCI:0000:9b:00): 79", {"node": "a03"}),
    ("2026-06-04T10:00:00+0000 a03 kernel: NVRM: Xid (PCI:0000:9b:00): 79", {"node": "a03"}),
]
PREFIXED_AND = {"node": "a02", "rank": 8, "in_group": True, "relayed": True}


@pytest.mark.parametrize(("line", "expected"), PREFIXED, ids=[line for line, _ in PREFIXED])
def test_prefixes(line: str, expected: dict[str, object] | None) -> None:
    assert told(line) == (PREFIXED_AND if expected is None else expected)


NO_PREFIXES = [
    '{"prompt": "x", "rank": 3, "host": "a02", "traceback": "KeyError: 1"}',
    "train/1 loss 3.1",
    "loop/2 [3, 4]",
    "ERROR rank 3: unreachable",
    "ERROR rank=3 host=a02 lost",
    "WARNING rank 3: RuntimeError: x",
    "OSError: [Errno 28] No space left on device",
    "12:30:01 loss 3.1",
    "10.0.0.3: ssh exited with exit code 1",
    "1:2 is no label",
    "P1: pipeline stage",
    "[train.py:33] loading",
    "[api.py:525] [default] Starting worker group",
    "[launch.py:256:main] process 815 spawned",
    "[W socket.cpp:752] [c10d] The client socket has failed to connect",
    "[10:22] chat",
    "[0]:",
    "[5] plain",
    "[1, 5] a list",
    "[1,5] no stream",
    "[epoch3]: loss 1",
    "[gpu3]: 40 C",
    "[trainer]: x",
    "[rank]: x",
    "[rank3 of 8]",
    "[Rank -1] x",
    "INFO: [rank zero]",
    "INFO: [2026-06-04 10:00:00,123] x",
    "torch.distributed.elastic: [Errno 2]",
    "http://a01:8080:1 [x]",
    "10.0.0.1:815:900 [0] x",
    "(see pid=x) x",
    "(ip=10.0.0.3) x",
    "frame #0: c10::Error::Error + 0x57",
    "x [repeated 3x across cluster",
    "/job:jax_worker/replica:0/task:3 is lost",
    "[[1,2],[3,4]]",
    "[[61437,0],5] a daemon",
]


@pytest.mark.parametrize("line", NO_PREFIXES)
def test_lines_that_look_like_a_prefix_and_are_none(line: str) -> None:
    assert told(line) == {}


TIMES = [
    ("[Thu Jan  1 00:01:00 1970] NVRM: x", 60.0, False),  # dmesg -T
    ("kern  :warn  : 1970-01-01T01:01:00,500000+01:00 NVRM: x", 60.5, True),  # dmesg --time-format iso -x
    ("1970-01-01T00:01:00,123456+00:00 NVRM: x", 60.123456, True),  # dmesg --time-format iso
    ("1970-01-01T00:01:00.123456-05:30 NVRM: x", 19860.123456, True),
    ("1970-01-01T00:01:00+0000 a03 kernel: x", 60.0, True),  # journalctl -o short-iso
    ("1970-01-01 00:01:00,250 ERROR x", 60.25, False),  # Python logging
    ("1970-01-01 00:01:00.250 | INFO     | __main__:main:65 - x", 60.25, False),  # loguru
    ("1970-01-01T00:01:00.250000Z [info     ] x", 60.25, True),  # structlog
    ("1970-01-01 00:01:00.250000: E external/xla/xla/tsl/x.cc:1] x", 60.25, False),  # XLA tsl/platform/default/logging
    ("[1970-01-01 00:01:00,250] [INFO] [launch.py:256:main] x", 60.25, False),  # DeepSpeed
    ("[1970-01-01 00:01:00,250 E 815 815] core_worker.cc:1: x", 60.25, False),  # Ray src/ray/util/logging.cc
    ("[1970-01-01 00:01:00] a01:1:2 [0] NCCL WARN x", 60.0, False),  # NCCL_DEBUG_TIMESTAMP_FORMAT
    (" [1970-01-01 00:01:00] iteration  10/ 100 | x", 60.0, False),  # Megatron-LM megatron/training/training.py
    ("[NeMo I 1970-01-01 00:01:00 nemo_logging:393] x", 60.0, False),  # NeMo nemo/utils/formatters/base.py
    ("01/01/1970 00:01:00 - INFO - __main__ - x", 60.0, False),  # Hugging Face examples
    ("I19700101 00:01:00.250000 815 x.cc:1] x", 60.25, False),  # glog 0.5 and later
    ("Thu Jan  1 00:01:00 1970[1,5]<stdout>:x", 60.0, False),  # Open MPI 4 --timestamp-output
    ("[1970-01-01T00:01:00.250] error: x", 60.25, False),  # slurmd
    ("[1780567200.500000] [a05:1:0] x.c:1  UCX  ERROR x", 1780567200.5, False),  # UCX
    ("3: 1970-01-01 00:01:00,250 x", 60.25, False),
    ("[ 4711.100200] NVRM: x", None, False),
    ("[Thu Jan 99 00:01:00 1970] NVRM: x", None, False),
    ("9999-99-99 99:99:99 x", None, False),
    ("31/12/1970 00:01:00 - INFO - x", None, False),
    ("01/02/1970 00:01:00 whatever order", None, False),
    ("I19709999 00:01:00.250000 815 x.cc:1] x", None, False),
]


@pytest.mark.parametrize(("line", "when", "zoned"), TIMES, ids=[line for line, _, _ in TIMES])
def test_times(line: str, when: float | None, zoned: bool) -> None:
    found = frame(line)
    assert (found.time, found.zoned) == (when, zoned)


YEARLESS = [
    ("E1203 10:11:12.5  815 x.cc:1] x", Yearless(12, 3, 36672.5)),  # glog, absl
    ("[rank3]:[E1203 10:11:12.500000000 ProcessGroupNCCL.cpp:607] x", Yearless(12, 3, 36672.5)),  # c10d
    ("[rank0]:[W225 00:01:00.362072967 ProcessGroupNCCL.cpp:4561] x", Yearless(2, 25, 60.362072967)),
    ("E0512 22:14:40.000000 301 torch/distributed/elastic/x.py:874] x", Yearless(5, 12, 80080.0)),
    ("INFO 02-05 00:01:00 model_runner.py:1118] x", Yearless(2, 5, 60.0)),  # vLLM
    ("Jun  4 00:01:00 a03 kernel: x", Yearless(6, 4, 60.0)),  # syslog
    ("E1303 10:11:12.5  815 x.cc:1] x", None),
    ("E1200 10:11:12.5  815 x.cc:1] x", None),
    ("E1203 24:11:12.5  815 x.cc:1] x", None),
    ("[Errno 28] x", None),
    ("[E ProcessGroupNCCL.cpp:737] x", None),
    ("Foo  4 00:01:00 a03 kernel: x", None),
]


@pytest.mark.parametrize(("line", "when"), YEARLESS, ids=[line for line, _ in YEARLESS])
def test_a_date_without_its_year_is_no_time(line: str, when: Yearless | None) -> None:
    found = frame(line)
    assert (found.time, found.yearless) == (None, when)


def test_a_year_comes_from_another_time() -> None:
    new_year = 1767225600.0  # 2026-01-01
    assert in_year(Yearless(1, 1, 0.0), new_year) == new_year
    assert in_year(Yearless(12, 31, 86399.0), new_year + 60) == new_year - 1
    assert in_year(Yearless(2, 29, 0.0), new_year) is None
    assert in_year(Yearless(1, 1, 0.0), 1e30) is None


def test_the_text_is_what_follows_the_prefixes() -> None:
    assert frame(" 9: [rank9]: 2026-03-02 10:00:02,771 ERROR gone").text == "ERROR gone"
    assert frame("[ 4711.100200] NVRM: Xid").text == "NVRM: Xid"
    assert frame("[rank3]:[E1203 10:11:12.1 ProcessGroupNCCL.cpp:607] x").text.startswith("[E1203 ")
    assert frame("[Rank 4] (after 10 iterations)").text == "[Rank 4] (after 10 iterations)"


def test_the_text_of_a_loggers_record_is_its_exceptions_last_line() -> None:
    begin = '{"level": "error", "rank": 3, "host": "a02", "msg": "uncaught", '
    value = 'Traceback (most recent call last):\\n  File \\"x.py\\", line 1\\nKeyError: \\"a\\"'
    for end in ('"}', '\\n"}', '\\n\\n", "step": 7}'):
        assert frame(f'{begin}"exc": "{value}{end}').text == f'KeyError: \\"a\\"{end}'
    assert frame(f'{begin}"err": "KeyError: 1"}}').text == 'KeyError: 1"}'
    cut = f'{begin}"exc": "{value}"}}'.ljust(100)[:100] + ' ... line 1\\nKeyError: 1"}'
    assert frame(cut)[:1] == ('KeyError: 1"}',)
    assert frame('{"level": "info", "exc": "KeyError: 1"}').text.startswith("{")


def test_a_time_within_the_line() -> None:
    assert any_time("*** JOB 1 ON a CANCELLED AT 1970-01-01T00:01:00 DUE TO TIME LIMIT ***") == 60.0
    assert any_time("no time at all") is None


def test_srun_says_how_tasks_ended() -> None:
    end = task_end("srun: error: a[03-04]: tasks 16-17,19: Killed")
    assert end is not None
    assert (end.hosts, end.how) == (("a03", "a04"), "Killed")
    assert (end.tasks, end.count, end.first, end.only) == ((range(16, 18), range(19, 20)), 3, 16, None)


@pytest.mark.parametrize(
    "text", ["n[1-99999999]", "n[1-9999][1-9999]", "n[1-", "@all", "", "a b", "n" * 5000, "n[5-1]"]
)
def test_host_lists_that_are_none_or_too_many(text: str) -> None:
    assert hosts(text) == ()


@pytest.mark.parametrize("text", ["1-x", "", ",", "-", "1" * 50, "5-1", "٣"])
def test_task_lists_that_are_none(text: str) -> None:
    assert tasks(text) == ()


@given(st.text(max_size=300))
def test_nothing_raises(text: str) -> None:
    frame(text)
    hosts(text)
    tasks(text)
    task_end(f"srun: error: {text}: tasks 1-{text}: {text}")
    any_time(text)


@given(st.text(alphabet="0123456789[]-,n.@*!&^%", max_size=60))
def test_nothing_that_looks_like_a_host_list_raises(text: str) -> None:
    assert len(hosts(text)) <= 16384


HOSTILE = [
    '{"level": "error", "exc": "' + "\\n" * 4000,
    '{"level": "error", "exc": "' + '\\"' * 4000,
    '{"' + '"level": "' * 900,
    "ERROR rank=1 host=" + "a." * 4000,
    "ERROR rank 1: " + "a." * 4000,
    "a" * 4000 + "/1 [rank",
    "a/1 " + "x" * 4000,
    *("[" * 8000, "(" * 8000, " " * 8000, "9" * 8000, "a" * 8000, "a." * 4000, "[a:" * 2700, "(x pid=" * 1100),
    *("[rank1]" * 1100, "[Rank " * 1300, "[PG ID 0 " * 900, "1: " * 2700, "a:1:1 [1] " * 800, "٣: [rank٣]: ٣" * 600),
    *("[1,1]<stdout>:" * 570, "2026-06-04 10:00:00 " * 400, "[0.1] " * 1300, "[repeated 3x across cluster]" * 280),
    *("2026-06-04T10:00:00+99:99 x", "[999999999999.9] x", "[0000000000000000000.1] x", "E9999 99:99:99.9 1 x"),
    *("Jun 31 23:59:60 a kernel: x", "0001-01-01 00:00:00+23:59 x", "9999-12-31 23:59:59-23:59 x"),
]


@pytest.mark.parametrize("line", HOSTILE, ids=[line[:28] for line in HOSTILE])
def test_hostile_lines_cost_little(line: str) -> None:
    start = time.process_time()
    for _ in range(100):
        found = frame(line)
    assert time.process_time() - start < 1.0  # below 50 microseconds each on one core of 2024
    assert line.endswith(found.text)
    assert len(line) - len(found.text) <= 200 * (MOST_PREFIXES + 1)
