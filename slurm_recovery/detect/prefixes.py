"""The prefixes that launchers, libraries and the kernel put before a line, as rows.

Owns their forms, each with where it is printed and an example. Which of them a line has is read in frame.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Prefix(NamedTuple):
    """One prefix. Its groups rank, local_rank, node, ip and pid say who printed what follows it.

    It is tried only on lines that begin with `opens` and then one of `then`: a line is read for every candidate of a
    log of gigabytes. One that `relays` stands before what a launcher brought from other nodes: what is left of it
    (srun's label, a host) says where the launcher ran.
    """

    opens: str
    then: str
    pattern: str
    source: str
    example: str
    relays: bool = False


_DIGITS, _LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORD = _LETTERS + _DIGITS
# A host's name has a letter in it; and what a logger prints as `file.py:33` is none. Possessive, so linear.
_NAME = (
    r"(?=[0-9.-]{0,60}+[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{0,121}+"
    r"(?<!\.py)(?<!\.pyx)(?<!\.cc)(?<!\.cpp)(?<!\.cu)(?<!\.[chR])"
)
_HOST = rf"(?P<node>{_NAME})"
_RANK, _LOCAL, _PID = r"(?P<rank>\d{1,7})", r"(?P<local_rank>\d{1,7})", r"(?P<pid>\d{1,10})"
_N = r"\d{1,10}"
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"
_STREAM = r"<std(?:out|err|diag)>: ?"

# What a logger prints of an exception: `RuntimeError: ...`, `torch.OutOfMemoryError: ...`
_RAISED = r"(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,80}(?:Error|Exception): "

PREFIXES: tuple[Prefix, ...] = (
    Prefix(
        "[",
        "r",
        rf"\[rank{_RANK}\]:? ?",
        "PyTorch c10/util/Logging.cpp; torch/distributed/distributed_c10d.py _distributed_excepthook",
        "[rank3]: KeyError: 1",
    ),
    Prefix(
        "[",
        "r",
        rf"\[rank: ?{_RANK}\] ?",
        "Lightning lightning_utilities/core/rank_zero.py rank_prefixed_message",
        "[rank: 3] Received SIGTERM: 15",
    ),
    Prefix(
        "[",
        "r",
        rf"\[rank {_RANK}/\d{{1,7}}\] ?",
        "common wording of training scripts",
        "[rank 3/16] KeyError: 1",
    ),
    Prefix(
        "",
        "EC",
        # Only before an exception: a rank in a message may be another's than the printer's.
        rf"(?:ERROR|CRITICAL):? {{1,5}}(?:[|:-] {{0,2}})?\[?rank[ =]{_RANK}(?:/\d{{1,7}})?"
        rf"(?:\]|:| (?:host|hostname|node)={_HOST}(?= ))?:? (?={_RAISED})",
        "Python logging, where scripts put their own rank and host before the message",
        "ERROR rank=3 host=a02 KeyError: 1",
    ),
    Prefix(
        "",
        _LETTERS,
        # A role and a replica, only before what a rank or its launcher prints: many a line begins with a path.
        r"[A-Za-z_][\w.-]{0,60}/\d{1,5} (?=\[(?:rank|default)\d|[IWEF]\d{4} |[=-]{8}|\S{1,200} FAILED$|Failures:"
        r"|Root Cause \(|\[\d{1,5}\]:$|  (?:<NO_OTHER_FAILURES>|[a-z_]{4,10} {1,6}: ))",
        "torchx torchx/runner/api.py, cli/cmd_log.py: role/replica; NeMo-Run nemo_run/run/logs.py",
        "i.pretrain/0 [default3]:[rank3]: KeyError: 1",
    ),
    Prefix(
        "[",
        "dt",
        rf"\[(?:default|trainer){_LOCAL}\]: ?",  # another role's name cannot be told from a user's own word
        "PyTorch torch/distributed/elastic/multiprocessing/tail_log.py",
        "[default3]:KeyError: 1",
    ),
    Prefix(
        "[",
        _WORD,
        rf"\[(?:[\w.-]{{1,120}}+@)?{_N},{_RANK}\](?:\[(?:unknown|{_HOST}):(?:unknown|{_PID})\])?{_STREAM}",
        "Open MPI 4 orte/mca/iof/base/iof_base_output.c; PMIx src/common/pmix_iof.c tag, tag-detailed, tag-fullname",
        "[prterun-a01-4711@1,3][a02:815]<stderr>: KeyError: 1",
        relays=True,
    ),
    Prefix(
        "[",
        _DIGITS,
        rf"\[{_RANK}\]{_STREAM}",
        "PMIx src/common/pmix_iof.c rank",
        "[3]<stdout>: step 1",
        relays=True,
    ),
    Prefix(
        "[",
        _WORD,
        rf"\[{_HOST}\](?=\[\[{_N},)",
        "Open MPI opal/mca/btl/base/btl_base_error.h",
        "[a02][[61437,1],3][btl_tcp_endpoint.c:649:recv_blocking] recv(17) failed: Connection reset by peer (104)",
    ),
    Prefix(
        "[",
        "[",
        rf"\[\[{_N},[1-9]\d{{0,6}}\],{_RANK}\] ?",  # [[family,job],rank]; job 0 are the daemons
        "Open MPI OPAL_NAME_PRINT, ORTE_NAME_PRINT",
        "[[61437,1],3] ORTE_ERROR_LOG: Timeout",
    ),
    Prefix(
        "[",
        _WORD,
        rf"\[{_HOST}:mpi_rank_{_RANK}\]",
        "MVAPICH2 error_sighandler",
        "[a02:mpi_rank_3][error_sighandler] Caught error: Segmentation fault (signal 11)",
    ),
    Prefix(
        "[",
        _WORD,
        rf"\[{_HOST}:{_PID} {{0,4}}(?::{_N}){{0,3}}\] {{1,8}}",
        "Open MPI opal/util/output.c [host:pid]; UCX ucs/debug/log.c [host:pid  :thread], the pid padded to five",
        "[a02:00815] *** Process received signal ***",
    ),
    Prefix(
        "[",
        "pm",
        rf"\[(?:proxy:{_N}(?::{_N})?|mpiexec)@{_HOST}\] ",
        "MPICH src/pm/hydra/lib/utils/dbg.c",
        "[proxy:0:1@a02] HYD_pmcd_pmip_control_cmd_cb: assert (!closed) failed",
    ),
    Prefix(
        "",
        "<",
        _STREAM,
        "Open MPI 4, PMIx: where only a time stands before it",
        "<stdout>: step 1",
        relays=True,
    ),
    Prefix(
        "",
        "(",
        rf"\((?:[^\n]{{1,120}}? )?(?:raylet|pid={_PID})(?:, ip=(?P<ip>[0-9A-Fa-f.:]{{2,45}}))?\) ?",
        "Ray python/ray/_private/worker.py print_worker_logs; no ip where it is the driver's own",
        "(TrainWorker pid=815, ip=10.0.0.3) KeyError: 1",
        relays=True,
    ),
    Prefix(
        "",
        _WORD,
        rf"{_HOST}:{_PID}:{_N} (?:\[{_LOCAL}\] ?|(?=NCCL ))",
        "NCCL src/debug.cc host:pid:tid [device]",
        "a02:815:900 [3] NCCL WARN Cuda failure",
    ),
    Prefix(
        "",
        _WORD,
        rf"{_HOST} kernel: ",
        "syslog(3), journalctl(1) -o short, after the time",
        "a02 kernel: NVRM: Xid",
    ),
    Prefix(
        "",
        _WORD,
        # Only before another prefix, for many a line begins with a word and a colon.
        rf"(?![A-Z]{{2,12}}:){_HOST}: (?=\[(?:rank ?:? ?\d|default\d|\d{{1,7}},|20\d\d-\d\d-))",
        "pdsh(1) (DeepSpeed's launcher), clush(1)",
        "a02: [2026-06-04 10:00:00,123] [INFO] [launch.py:256:main] Process 815 exits successfully.",
        relays=True,
    ),
    Prefix(
        "",
        _DIGITS,
        rf"(?P<ip>{_ADDRESS}): (?=\[(?:rank ?:? ?\d|default\d|\d{{1,7}},|20\d\d-\d\d-))",
        "pdsh(1), where DeepSpeed's hostfile lists addresses",
        "10.0.0.3: [rank3]: KeyError: 1",
        relays=True,
    ),
)


def _by_beginning() -> dict[str, tuple[tuple[re.Pattern[str], bool], ...]]:
    found: dict[str, list[tuple[re.Pattern[str], bool]]] = {}
    for row in PREFIXES:
        pattern = re.compile(row.pattern, re.ASCII)
        for char in row.then:
            found.setdefault(row.opens + char, []).append((pattern, row.relays))
    return {begin: tuple(patterns) for begin, patterns in found.items()}


_PATTERNS = _by_beginning()


def prefix(line: str) -> tuple[re.Match[str], bool] | None:
    """The prefix at the line's very start, and whether it relays."""
    for pattern, relays in _PATTERNS.get(line[:2] if line[:1] == "[" else line[:1], ()):
        if (match := pattern.match(line)) is not None:
            return match, relays
    return None
