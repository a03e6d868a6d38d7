"""What an attempt's lines say of tasks, ranks and nodes, collected and not yet compared.

Owns which of them a line may speak for: a launcher's label says nothing of the ranks that it relays, and who accuses
a rank does not run where that rank does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_recovery.attribute.window import OF_NODES
from slurm_recovery.detect.frame import Frame
from slurm_recovery.detect.notes import TABLE
from slurm_recovery.detect.placement import OWN_WORDS, Placement, placements
from slurm_recovery.records import Evidence

Sayings = dict[int, set[str]]  # number -> the nodes that it was said to run on


class Nodes:
    """The job's nodes by name, also where it is written with its domain, or without."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._of: dict[str, set[str]] = defaultdict(set)
        for name in self.names:
            self._of[name.split(".")[0]].add(name)

    def known(self, name: str | None) -> str | None:
        if not name:
            return None
        alike = self._of.get(name.split(".")[0], set())
        if name in alike:
            return name
        return next(iter(alike)) if len(alike) == 1 else None


@dataclass
class Said:
    """What the lines say, before it is compared."""

    tasks: Sayings = field(default_factory=lambda: defaultdict(set))
    ranks: Sayings = field(default_factory=lambda: defaultdict(set))
    groups: Sayings = field(default_factory=lambda: defaultdict(set))
    pairs: set[tuple[int, int]] = field(default_factory=set)  # srun's label, rank
    launched: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)  # srun's label, all ranks of that launcher
    locals: set[tuple[str, int, int]] = field(default_factory=set)  # node, local rank, rank
    processes: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))  # ip and pid -> ranks
    addresses: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # ip -> nodes
    reached: set[tuple[int, str]] = field(default_factory=set)  # srun's label, ip
    worlds: set[int] = field(default_factory=set)
    local_sizes: set[int] = field(default_factory=set)
    devices: dict[int, set[tuple[int, tuple[str, int, int]]]] = field(default_factory=lambda: defaultdict(set))
    members: dict[int, set[tuple[int, str, int | None]]] = field(default_factory=lambda: defaultdict(set))
    grouped: dict[int, set[tuple[int | None, str | None]]] = field(default_factory=lambda: defaultdict(set))
    jax: bool = False  # its processes are srun's tasks: jax/_src/clusters/slurm_cluster.py
    components: bool = False  # labels that count per component of a heterogeneous job
    last_label: int = -1
    last_rank: int = -1


def said(evidence: Iterable[tuple[Evidence, Frame]], nodes: Nodes) -> Said:
    """Reads every statement out of an attempt's lines."""
    found = Said()
    for one, head in evidence:
        if one.source not in OF_NODES:
            _line(found, one, head, nodes)
    return found


def _line(found: Said, one: Evidence, head: Frame, nodes: Nodes) -> None:
    task = None if head.relayed or head.component is not None else head.task
    here = nodes.known(head.node)
    found.components |= head.component is not None
    found.jax |= one.signature.startswith("jax_")
    if task is not None and (one.reason or here is not None or head.rank is not None):
        found.last_label = max(found.last_label, task)  # not of a bare `12: x`, which may be any list
    if task is not None and here is not None:
        found.tasks[task].add(here)
    if head.rank is not None and head.in_group:
        found.grouped[head.rank].add((task, here))
    elif head.rank is not None and not head.others:
        found.last_rank = max(found.last_rank, head.rank)
        _rank_at(found, head.rank, task, here)
    _captured(found, one, head, nodes)
    for placement in placements(head):
        _statement(found, placement, head, task, nodes)


def _rank_at(found: Said, rank: int, task: int | None, node: str | None) -> None:
    if task is not None:
        found.pairs.add((task, rank))
    if node is not None:
        found.ranks[rank].add(node)


def _captured(found: Said, one: Evidence, head: Frame, nodes: Nodes) -> None:
    """A rank and its node that a signature took out of one and the same statement."""
    mixed = one.signature != TABLE and (head.rank is not None or head.node is not None)
    node = nodes.known(one.node)
    if mixed or node is None or one.rank is None:
        return
    found.ranks[one.rank].add(node)
    if one.local_rank is not None:
        found.locals.add((node, one.local_rank, one.rank))


def _statement(found: Said, says: Placement, head: Frame, task: int | None, nodes: Nodes) -> None:
    own = says.own
    task = says.task if says.task is not None else task if own else None
    node = nodes.known(says.node) if says.node else nodes.known(head.node) if own else None
    if says.world is not None:
        found.worlds.add(says.world)
    if says.local_size is not None:
        found.local_sizes.add(says.local_size)
    if says.ip is not None and node is not None:
        found.addresses[says.ip].add(node)
    elif says.ip is not None and task is not None:
        found.reached.add((task, says.ip))
    if task is not None and node is not None:
        found.tasks[task].add(node)
    if says.group is not None and node is not None:
        found.groups[says.group].add(node)
    if says.communicator is not None:
        found.members[says.communicator].update((rank, node, head.pid) for rank in says.ranks if node is not None)
        if node is not None and head.pid is not None and head.local_rank is not None:
            device = node, head.pid, head.local_rank
            found.devices[says.communicator].update((rank, device) for rank in says.ranks)
        return
    if says.form == "torch_ranks":
        found.local_sizes.add(len(says.ranks))
        if task is not None:
            found.launched.add((task, says.ranks))
    elif task is not None and (says.form != OWN_WORDS or says.task is not None):  # a job may call any number a rank
        found.pairs.update((task, rank) for rank in says.ranks)
    if says.ip is not None and says.pid is not None:
        found.processes[says.ip, says.pid].update(says.ranks)
    if node is not None:
        ranks = says.ranks or ((head.rank,) if own and head.rank is not None and not head.in_group else ())
        for rank in ranks:
            found.ranks[rank].add(node)
        found.locals.update((node, local, rank) for local, rank in zip(says.local_ranks, says.ranks, strict=False))
