"""What a line says of where ranks run: bootstrap lines of NCCL, agents of torchrun, launchers of MPI, Ray, DeepSpeed.

Owns those forms, as rows. Says only what one line says; what all lines of an attempt say together, and whether they
agree, is attribute/layout.py's. Log text is hostile: every function is bounded and none raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from slurm_recovery.detect.frame import Frame

OWN_WORDS = "own_words"  # the form of what a job itself prints


class Placement(NamedTuple):
    """One statement. What is None was not said. `ranks` run where `node`, `ip` or the line's own printer is."""

    form: str
    ranks: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()  # of the same processes, in the same order
    node: str | None = None
    ip: str | None = None
    pid: int | None = None
    task: int | None = None
    group: int | None = None  # the place of a launcher among all launchers, by torch's rendezvous
    local_size: int | None = None  # ranks that one launcher starts
    world: int | None = None
    communicator: int | None = None  # the size of the NCCL communicator that the rank counts in
    own: bool = True  # the printer speaks of itself


class Form(NamedTuple):
    """One form. Its groups are fields of Placement; `literal` is in every line that it can match."""

    name: str
    literal: str
    pattern: str
    source: str
    example: str
    own: bool = True  # whether the printer speaks of itself


_HOST = r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,121})"
_RANK, _LOCAL, _WORLD = r"(?P<rank>\d{1,7})", r"(?P<local_rank>\d{1,4})", r"(?P<world>\d{1,7})"
_PID, _IP = r"(?P<pid>\d{1,10})", r"(?P<ip>\d{1,3}(?:\.\d{1,3}){3})"
_MANY = r"\d{1,7}(?:, \d{1,7}){0,255}"

FORMS: tuple[Form, ...] = (
    Form(
        "nccl_rank",
        " nranks ",
        rf"\brank {_RANK} nranks (?P<communicator>\d{{1,7}})\b",
        "NCCL src/init.cc: Init START, Init COMPLETE, Destroy COMPLETE",
        "a02:815:900 [1] NCCL INFO comm 0x55 rank 9 nranks 16 cudaDev 1 busId 18000 - Init COMPLETE",
    ),
    Form(
        "nccl_address",
        "Bootstrap",
        rf"\bBootstrap ?: Using \S{{1,40}}:{_IP}<",
        "NCCL src/bootstrap.cc",
        "a02:815:900 [1] NCCL INFO Bootstrap : Using ib0:10.0.0.3<0>",
    ),
    Form(
        "torch_ranks",
        "global_ranks=[",
        rf"\bglobal_ranks=\[(?P<ranks>{_MANY})\]",
        "PyTorch torch/distributed/elastic/agent/server/api.py: Rendezvous complete for workers",
        "  global_ranks=[8, 9, 10, 11]",
    ),
    Form(
        "torch_world",
        "global_world_sizes=[",
        rf"\bglobal_world_sizes=\[{_WORLD}[,\]]",
        "PyTorch torch/distributed/elastic/agent/server/api.py: Rendezvous complete for workers",
        "  global_world_sizes=[16, 16, 16, 16]",
    ),
    Form(
        "torch_joined",
        " has joined round ",
        rf"\bThe node '{_HOST}_\d{{1,10}}_\d{{1,4}}' has joined round \d{{1,7}} of the rendezvous '[^']{{0,200}}' "
        r"as rank (?P<group>\d{1,7}) in a world of size \d{1,7}",
        "PyTorch torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        "The node 'a02_815_0' has joined round 0 of the rendezvous '77' as rank 1 in a world of size 2.",
    ),
    Form(
        "torch_group",
        "group_rank=",
        r"\bgroup_rank=(?P<group>\d{1,7})\b(?:.{0,80}?\blocal_world_size=(?P<local_size>\d{1,4})\b)?",
        "PyTorch torch/distributed/elastic/agent/server/api.py",
        "  group_rank=1",
    ),
    Form(
        "mpi_exited",
        " noticed that process rank ",
        rf"\bnoticed that process rank {_RANK} with PID \d{{1,10}} on node {_HOST} exited on",
        "Open MPI 4 orte/tools/orterun/help-orterun.txt; PRRTE src/mca/schizo/prte/help-prun.txt",
        "mpirun noticed that process rank 9 with PID 815 on node a02 exited on signal 9 (Killed).",
        own=False,
    ),
    Form(
        "mpi_reported",
        "reported by process [",
        rf"\breported by process \[\d{{1,12}},{_RANK}\]",
        "Open MPI ompi/errhandler/help-mpi-errors.txt",
        "[a02:00815] *** reported by process [3960668161,9]",
    ),
    Form(
        "hydra_exited",
        " RUNNING AT ",
        rf"\bRANK {_RANK} PID \d{{1,10}} RUNNING AT {_HOST}",
        "Intel MPI's Hydra, after MPICH src/pm/hydra/mpiexec/pmiserv_cb.c, which tells no rank",
        "=   RANK 9 PID 815 RUNNING AT a02",
        own=False,
    ),
    Form(
        "cray_rank",
        "MPICH ERROR [Rank ",
        rf"MPICH ERROR \[Rank {_RANK}\] \[job id [^\]]{{1,40}}\] \[[^\]]{{1,40}}\] \[{_HOST}\]",
        "Cray MPICH",
        "MPICH ERROR [Rank 9] [job id 77.0] [Thu Jul  9 13:56:00 2026] [a02] - Abort(1) (rank 9 in comm 0): x",
    ),
    Form(
        "megatron_rank",
        ", node ",
        rf"\bRank {_RANK}, node {_HOST}, device \d{{1,4}}, iteration",
        "Megatron-LM megatron/core/rerun_state_machine.py",
        "Rank 9, node a02, device 1, iteration #7: Possible transient error!",
    ),
    Form(
        "deepspeed_rank",
        "settings of world_rank=",
        rf"\bsettings of world_rank={_RANK}, local_rank={_LOCAL}, world_size={_WORLD}\b",
        "DeepSpeed deepspeed/comm/comm.py",
        "Discovered MPI settings of world_rank=9, local_rank=1, world_size=16, master_addr=10.0.0.2, master_port=29500",
    ),
    Form(
        "ray_rank",
        ") world_rank=",
        rf"\bip={_IP}, pid={_PID}\) world_rank={_RANK}, local_rank={_LOCAL}\b",
        "Ray python/ray/train/_internal/backend_executor.py: Started distributed worker processes",
        "- (node_id=4c934ab2, ip=10.0.0.3, pid=815) world_rank=9, local_rank=1, node_rank=1",
        own=False,
    ),
    Form(
        "ray_address",
        "Local node IP: ",
        rf"\bLocal node IP: {_IP}\b",
        "Ray python/ray/scripts/scripts.py start",
        "Local node IP: 10.0.0.3",
    ),
    Form(
        "lightning_rank",
        "GLOBAL_RANK: ",
        rf"\bGLOBAL_RANK: {_RANK}, MEMBER: \d{{1,7}}/{_WORLD}\b",
        "Lightning lightning/fabric/utilities/distributed.py",
        "Initializing distributed: GLOBAL_RANK: 9, MEMBER: 10/16",
    ),
    Form(
        "deepspeed_world",
        "dist_world_size=",
        rf"\bdist_world_size={_WORLD}\b",
        "DeepSpeed deepspeed/launcher/launch.py",
        "[2026-06-04 10:00:00,123] [INFO] [launch.py:164:main] dist_world_size=16",
    ),
    Form(
        "environment_world",
        "WORLD_SIZE=",
        rf"(?<![A-Z_])WORLD_SIZE={_WORLD}\b",
        "env(1); PyTorch docs/source/distributed.rst Environment variable initialization",
        "WORLD_SIZE=16",
    ),
)
_COMPILED = tuple((row, re.compile(row.pattern, re.ASCII)) for row in FORMS)
_NUMBERS = ("pid", "group", "local_size", "world", "communicator")

# DeepSpeed deepspeed/launcher/launch.py: global_rank_mapping=defaultdict(<class 'list'>, {'a01': [0, 1], ...})
_MAPPING = "global_rank_mapping="
_MAPPED = re.compile(rf"(?a)'{_HOST}': \[(?P<ranks>{_MANY})\]")
LITERALS = (*(row.literal for row in FORMS), _MAPPING)  # one is in every line that says something, but for own words
# A job's own words: `host=a02 rank=9`, `rank 9 of 16 on a02`. A key stands at the start, after punctuation or after
# another key's value (`master host: a01` is no key), and no word makes the line a report of another process. Or it
# says which address a host has: `worker a02 at 10.0.0.3`, `a02/10.0.0.3`.
_BEFORE = r"(?:^|[,;:({\[|-] ?|[=:] ?[\w.-]{1,121}+ )"
_HOST_KEY = re.compile(rf"(?a){_BEFORE}(?i:hostname|host|nodename|node|slurmd_nodename) ?[=:] ?{_HOST}")
_RANK_KEY = re.compile(rf"(?a){_BEFORE}(?i:(?:global[_ ]|world[_ ])?rank) ?[=:] ?{_RANK}\b")
_TASK_KEY = re.compile(rf"(?a){_BEFORE}SLURM_PROCID ?[=:] ?(?P<task>\d{{1,7}})\b")
_RANK_ON = re.compile(
    rf"(?a)(?:^|[,;:({{\[|-] ?|\bfrom )[Rr]ank {_RANK}(?:/\d{{1,7}}| (?:out )?of \d{{1,7}})?,? (?:running )?on "
    rf"(?:host |node )?{_HOST}"
)
_ADDRESS_OF = re.compile(rf"(?a)(?<![\w./-]){_HOST}(?: at |/| ?\(){_IP}(?![\w.])")
# A list of hosts: `==> a02 worker 10.0.0.3`, `a02: 10.0.0.3:6379`; /etc/hosts: `10.0.0.3 a02`
_LISTED = re.compile(
    rf"(?a)(?:^|^[=>*# -]{{1,8}}){_HOST}(?: ?[:=] ?| (?!addr|master)[a-z]{{1,12}}[ :=] ?){_IP}(?::\d{{1,5}})?$"
)
_HOSTS_LINE = re.compile(rf"(?a)^{_IP}[ \t]{{1,16}}{_HOST}(?:[ \t]{{1,16}}[\w.-]{{1,121}})?$")
_OF_ANOTHER = re.compile(
    r"(?i)peer|remote|fail|lost|error|timeout|timed|unreach|refus|abort|dead|kill|exit|from(?! rank)|wait|miss|connect"
    r"|send|recv|receiv|stuck|hang"
)
MOST_MAPPED = 1024
WITHIN = 4096  # characters of a line
OWN_WORDS_WITHIN = 500


def placements(head: Frame) -> tuple[Placement, ...]:
    """Everything that one line says of places."""
    text = head.text[:WITHIN]
    found = [
        _placement(row, match)
        for row, pattern in _COMPILED
        if row.literal in text and (match := pattern.search(text)) is not None
    ]
    if _MAPPING in text:
        found.extend(_mapped(text))
    if not found and (own := _own_words(head)) is not None:
        found.append(own)
    return tuple(found)


def _placement(row: Form, match: re.Match[str]) -> Placement:
    said = {name: value for name, value in match.groupdict().items() if value is not None}
    ranks = _ranks(said.get("ranks") or said.get("rank") or "")
    local = (int(said["local_rank"]),) if "local_rank" in said else ()
    return Placement(
        form=row.name,
        ranks=ranks,
        local_ranks=tuple(range(len(ranks))) if "ranks" in said else local,
        node=said.get("node"),
        ip=said.get("ip"),
        own=row.own,
        **{name: int(said[name]) for name in _NUMBERS if name in said},
    )


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(", ")) if text else ()


def _mapped(text: str) -> Iterator[Placement]:
    for match in islice(_MAPPED.finditer(text), MOST_MAPPED):
        ranks = _ranks(match["ranks"])
        yield Placement("deepspeed_mapping", ranks, tuple(range(len(ranks))), match["node"], own=False)


def _own_words(head: Frame) -> Placement | None:
    """Where the printer says that it runs."""
    text = head.text[:OWN_WORDS_WITHIN]
    if _OF_ANOTHER.search(text):
        return None
    if match := _RANK_ON.search(text):
        return Placement(OWN_WORDS, _ranks(match["rank"]), node=match["node"])
    if match := _ADDRESS_OF.search(text) or _LISTED.match(text) or _HOSTS_LINE.match(text):
        return Placement(OWN_WORDS, node=match["node"], ip=match["ip"], own=False)
    host, rank, task = _HOST_KEY.search(text), _RANK_KEY.search(text), _TASK_KEY.search(text)
    known = rank or task or head.rank is not None or head.task is not None
    if not (host and known) and not (rank and task):
        return None
    return Placement(
        OWN_WORDS,
        _ranks(rank["rank"]) if rank else (),
        node=host["node"] if host else None,
        task=int(task["task"]) if task else None,
    )
