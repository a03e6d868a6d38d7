"""Where tasks and ranks ran, by all that an attempt's lines say together.

Owns the reconciliation: two statements that disagree are no statement, and a count in blocks is used only where
nothing contradicts it. Answers what is certain; attribute/ranks.py asks it for single lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from slurm_recovery.attribute.statements import Nodes, Said, Sayings
from slurm_recovery.detect.srun_words import TaskEnd
from slurm_recovery.records import Attempt

MOST_TASKS = 4096  # on one host
MOST_SAID = 131072  # tasks that srun's lines may name in all: the lines are the user's
MOST_LOCAL = 256  # ranks that one launcher starts
ENOUGH_ALIKE = 3  # tasks that printed their own number as their rank, so that tasks are taken for ranks


@dataclass(frozen=True)
class Layout:
    """Where tasks and ranks ran, as far as it is certain."""

    nodes: tuple[str, ...]
    per_node: int | None
    tasks_are_ranks: bool
    world: int | None
    blocks: str  # why tasks may not be counted out in blocks over the nodes; "" where they may
    of_task: Mapping[int, str]
    of_rank: Mapping[int, str]
    of_local: Mapping[tuple[str, int], int]  # node, local rank -> rank
    of_process: Mapping[tuple[str, int], int]  # ip, pid -> rank
    of_device: Mapping[tuple[str, int, int], int]  # node, pid, NCCL's device -> rank
    of_address: Mapping[str, str]
    disputed: Mapping[int, tuple[str, ...]]  # ranks that were said to run on several nodes
    believe_groups: bool  # whether `[Rank 3]` of an unnamed process group may be the global rank

    def task_node(self, task: int) -> str | None:
        """The node of one of srun's tasks: by evidence, else by Slurm's default of blocks."""
        return self.of_task.get(task) or (None if self.blocks else counted(task, self.per_node, self.nodes))


def counted(task: int, per_node: int | None, nodes: tuple[str, ...]) -> str | None:
    """Slurm's default: tasks in blocks, over the nodes in Slurm's order."""
    index = task // per_node if per_node else len(nodes)
    return nodes[index] if index < len(nodes) else None


def layout(attempt: Attempt, ends: Iterable[TaskEnd], found: Said, nodes: Nodes) -> Layout:
    """Compares all that was said."""
    ends, per_node = tuple(ends), attempt.ntasks_per_node
    apart = attempt.het_job_id is not None or found.components
    if not apart:  # srun's own lines count a component's tasks from 0, its labels do not: src/srun/launch.c
        for task, node in _ended_on(ends, nodes):
            found.tasks[task].add(node)
    of_task = _agreed(found.tasks)
    are_ranks = _tasks_are_ranks(attempt, found, apart=apart)
    proven = Layout(nodes.names, per_node, are_ranks, None, "not yet asked", of_task, {}, {}, {}, {}, {}, {}, True)
    _follow(found, proven)
    blocks = _no_blocks(attempt, ends, found, nodes, apart=apart, are_ranks=are_ranks)
    _follow(found, replace(proven, blocks=blocks))
    of_local: dict[tuple[str, int], set[int]] = defaultdict(set)
    for node, local, rank in found.locals:
        of_local[node, local].add(rank)
    return Layout(
        nodes.names,
        per_node,
        are_ranks,
        _world(attempt, found, are_ranks=are_ranks),
        blocks,
        of_task,
        _agreed(found.ranks),
        {key: min(ranks) for key, ranks in of_local.items() if len(ranks) == 1},
        {key: min(ranks) for key, ranks in found.processes.items() if len(ranks) == 1},
        _devices_of_world(found, proven),
        {**_named_by_address(nodes), **{ip: min(said) for ip, said in found.addresses.items() if len(said) == 1}},
        {rank: tuple(sorted(said)) for rank, said in found.ranks.items() if len(said) > 1},
        _groups_agree(found, are_ranks=are_ranks),
    )


def _follow(found: Said, where: Layout) -> None:
    """What follows from the statements: a launcher's node is that of its ranks."""
    for task, rank in found.pairs:
        if (node := where.task_node(task)) is not None:
            found.ranks[rank].add(node)
    for task, ip in found.reached:
        if (node := where.task_node(task)) is not None:
            found.addresses[ip].add(node)
    for task, ranks in found.launched:
        if (node := where.task_node(task)) is not None:
            for local, rank in enumerate(ranks):
                found.ranks[rank].add(node)
                found.locals.add((node, local, rank))
    if len(found.local_sizes) == 1:  # torch counts ranks in the order of groups: elastic/agent/server/api.py
        size = min(found.local_sizes)
        for group, node in _agreed(found.groups).items():
            for local in range(min(size, MOST_LOCAL)):
                found.ranks[group * size + local].add(node)
                found.locals.add((node, local, group * size + local))
    for rank, node in _members_of_world(found, where):
        found.ranks[rank].add(node)


def _devices_of_world(found: Said, where: Layout) -> dict[tuple[str, int, int], int]:
    """The ranks that NCCL's own processes and devices have, in a communicator of the whole world."""
    if not any(True for _ in _members_of_world(found, where)):
        return {}
    ranks: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    for rank, device in found.devices[max(found.members)]:
        ranks[device].add(rank)
    return {device: min(said) for device, said in ranks.items() if len(said) == 1}


def _members_of_world(found: Said, where: Layout) -> Iterator[tuple[int, str]]:
    """NCCL's ranks are global ones in a communicator of the whole world only, where each is one process."""
    if not found.members:
        return
    largest = max(found.members)
    world = max(found.worlds, default=None)
    if world is None and where.tasks_are_ranks and where.per_node:
        world = len(where.nodes) * where.per_node
    homes: dict[int, set[tuple[str, int | None]]] = defaultdict(set)
    for rank, node, pid in found.members[largest]:
        homes[rank].add((node, pid))
    if any(len(home) > 1 for home in homes.values()):
        return
    everybody = {(node, pid) for members in found.members.values() for _, node, pid in members}
    whole = {node for node, _ in everybody} == set(where.nodes) and everybody == {min(home) for home in homes.values()}
    if largest == world or (world is None and whole):
        yield from ((rank, min(home)[0]) for rank, home in sorted(homes.items()))


def _tasks_are_ranks(attempt: Attempt, found: Said, *, apart: bool) -> bool:
    """With one task a node the tasks are launchers, or may be, unless they print their own number as their rank."""
    per_node = attempt.ntasks_per_node
    world = min(found.worlds) if len(found.worlds) == 1 else None
    tasks = len(attempt.nodes) * per_node if per_node else None
    if apart or found.launched or any(task != rank for task, rank in found.pairs):
        return False
    if tasks is not None and max(world or 0, found.last_rank + 1) > tasks:
        return False
    if found.jax or (per_node is not None and per_node > 1):
        return True
    alike = len(found.pairs)
    return alike >= ENOUGH_ALIKE or (alike > 1 and tasks is not None and world == tasks)


def _world(attempt: Attempt, found: Said, *, are_ranks: bool) -> int | None:
    """The number of ranks: as stated, else one for each task where tasks are ranks."""
    if len(found.worlds) == 1:
        return min(found.worlds)
    apart = attempt.het_job_id is not None or found.components
    per_node = attempt.ntasks_per_node
    return len(attempt.nodes) * per_node if per_node and are_ranks and not apart else None


def _no_blocks(
    attempt: Attempt, ends: Iterable[TaskEnd], found: Said, nodes: Nodes, *, apart: bool, are_ranks: bool
) -> str:
    """Why tasks may not be counted out in blocks over the nodes: any evidence against it is enough."""
    per_node, names = attempt.ntasks_per_node, nodes.names
    if apart:
        return "the job is heterogeneous"
    if not per_node:
        return "the number of tasks per node is not known"
    if found.last_label >= len(names) * per_node:
        return f"a line is labelled {found.last_label}, and the job has {len(names) * per_node} tasks"
    said = {**found.tasks} if not are_ranks else {**found.ranks, **found.tasks}
    for task, where in sorted(said.items()):
        if where != {counted(task, per_node, names)}:
            return f"task {task} ran on {', '.join(sorted(where))}"
    for task, rank in sorted(found.pairs):
        if (node := counted(task, per_node, names)) is not None and found.ranks.get(rank, {node}) != {node}:
            return f"rank {rank} of task {task} ran on {', '.join(sorted(found.ranks[rank]))}"
    for end in ends:
        hosts = {nodes.known(host) for host in end.hosts}
        if None not in hosts and hosts != _blocks_of(end, per_node, names):
            return f"tasks {end.first} and more ran on {', '.join(end.hosts[:4])}"
    return ""


def _blocks_of(end: TaskEnd, per_node: int, names: tuple[str, ...]) -> set[str | None]:
    indexes: set[int] = set()
    for span in end.tasks:
        last = min((span.stop - 1) // per_node, len(names))
        if len(indexes) > len(names):
            break
        indexes.update(range(min(span.start // per_node, len(names)), last + 1))
    return {names[index] if index < len(names) else None for index in indexes}


def _groups_agree(found: Said, *, are_ranks: bool) -> bool:
    """Whether no number of an unnamed process group was printed by two processes, or by a task of another number."""
    for rank, printers in found.grouped.items():
        tasks = {task for task, _ in printers if task is not None}
        hosts = {node for _, node in printers if node is not None}
        if len(tasks) > 1 or len(hosts) > 1 or (are_ranks and tasks - {rank}):
            return False
    return True


def _ended_on(ends: Iterable[TaskEnd], nodes: Nodes) -> Iterator[tuple[int, str]]:
    """The tasks that srun named on one host of the job."""
    room = MOST_SAID
    for end in ends:
        node = nodes.known(end.hosts[0]) if len(end.hosts) == 1 and end.count <= min(MOST_TASKS, room) else None
        if node is not None:
            room -= end.count
            yield from ((task, node) for span in end.tasks for task in span)


def _agreed(said: Sayings) -> dict[int, str]:
    """The numbers that were always given the same node."""
    return {number: min(nodes) for number, nodes in said.items() if len(nodes) == 1}


def _named_by_address(nodes: Nodes) -> dict[str, str]:
    """Nodes whose very name is their address, as EC2 names them: ip-10-0-0-3."""
    named = (name for name in nodes.names if name.startswith("ip-"))
    parts = ((name, name.split(".")[0].removeprefix("ip-").split("-")) for name in named)
    return {".".join(part): name for name, part in parts if len(part) == 4 and all(one.isdecimal() for one in part)}
