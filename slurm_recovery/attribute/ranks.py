"""Which rank a piece of evidence belongs to, and which node that rank ran on.

Owns the difference between a task and a rank, and between a node that the log names and one that is only
counted. Evidence first: srun's lines, failure tables, lines that carry host and rank. Arithmetic is the last
resort and only for plain srun tasks. Where two sources disagree, no node is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_recovery.detect.frame import MOST_HOSTS, TaskEnd, frame, task_end
from slurm_recovery.records import Attempt, Evidence, Source

MOST_TASKS = 4096  # on one host


@dataclass(frozen=True)
class Places:
    """What the evidence of one attempt says about its ranks and nodes."""

    nodes: tuple[str, ...]
    per_node: int | None
    by_line: dict[str, TaskEnd]  # what srun said of tasks, in order
    of_rank: dict[int, str]  # by evidence
    of_task: dict[int, str]  # by srun's own lines
    entries: tuple[tuple[str, int, int], ...]  # of torchrun's tables: node, rank, local rank

    @property
    def ends(self) -> tuple[TaskEnd, ...]:
        return tuple(self.by_line.values())

    @property
    def tasks_are_ranks(self) -> bool:
        """With one task a node the tasks are launchers, or at least may be."""
        return self.per_node is not None and self.per_node > 1

    @property
    def world(self) -> int | None:
        """The number of ranks, where each is a task of its own."""
        return len(self.nodes) * self.per_node if self.per_node and self.tasks_are_ranks else None

    def known(self, name: str | None) -> str | None:
        """The job's node of this name, also if it is written with its domain."""
        if not name:
            return None
        return next((node for node in self.nodes if node == name or node.split(".")[0] == name.split(".")[0]), None)

    def rank(self, evidence: Evidence) -> int | None:
        if evidence.rank is not None:
            return evidence.rank
        if self.tasks_are_ranks:
            if (task := frame(evidence.line).task) is not None:
                return task
            if (end := self.by_line.get(evidence.line)) is not None and end.only is not None:
                return end.only
        return self._by_local_rank(evidence)

    def _by_local_rank(self, evidence: Evidence) -> int | None:
        """A local rank names a global one on a single node, or where one table entry has it."""
        if evidence.local_rank is None or evidence.node is not None:
            return None
        if len(self.nodes) == 1:
            return evidence.local_rank
        ranks = {rank for _, rank, local in self.entries if local == evidence.local_rank}
        return ranks.pop() if len(ranks) == 1 else None

    def node(self, evidence: Evidence) -> str | None:
        """The node that the evidence comes from; None where that is not certain enough to name one."""
        if evidence.node is not None and (node := self.known(evidence.node)) is not None:
            return node
        if evidence.source is Source.KERNEL_LOG:
            return None
        if len(self.nodes) == 1:
            return self.nodes[0]
        task = frame(evidence.line).task
        if task is not None:
            return self.of_task.get(task) or self._counted(task)
        rank = self.rank(evidence)
        return self.of_node(rank) if rank is not None else None

    def of_node(self, rank: int) -> str | None:
        """The node of a global rank."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        if rank in self.of_rank:
            return self.of_rank[rank]
        if not self.tasks_are_ranks:
            return None
        return self.of_task.get(rank) or self._counted(rank)

    def _counted(self, task: int) -> str | None:
        """Slurm's default: tasks in blocks, over the nodes in Slurm's order."""
        index = task // self.per_node if self.per_node else len(self.nodes)
        return self.nodes[index] if index < len(self.nodes) else None


def places(attempt: Attempt, evidence: Iterable[Evidence]) -> Places:
    """Reads the places out of all the evidence of an attempt."""
    evidence = tuple(evidence)
    by_line = _ends(evidence)
    bare = Places(attempt.nodes, attempt.ntasks_per_node, by_line, {}, {}, ())
    told = [(found.rank, bare.known(found.node)) for found in evidence if found.rank is not None and found.node]
    by_task = [(task, bare.known(end.hosts[0])) for end in _on_one_host(by_line) for span in end.tasks for task in span]
    return Places(
        attempt.nodes,
        attempt.ntasks_per_node,
        by_line,
        _agreed(told),
        _agreed(by_task),
        tuple(
            (found.node, found.rank, found.local_rank)
            for found in evidence
            if found.signature == "torchrun_table"
            and found.node
            and found.rank is not None
            and found.local_rank is not None
        ),
    )


def _ends(evidence: Iterable[Evidence]) -> dict[str, TaskEnd]:
    """What srun said of tasks, by line; no more than MOST_HOSTS hosts in all, for the lines are the user's."""
    found: dict[str, TaskEnd] = {}
    named = 0
    for line in dict.fromkeys(one.line for one in evidence):
        if named < MOST_HOSTS and (end := task_end(line)) is not None:
            found[line] = end
            named += len(end.hosts)
    return found


def _on_one_host(by_line: dict[str, TaskEnd]) -> list[TaskEnd]:
    return [end for end in by_line.values() if len(end.hosts) == 1 and end.count <= MOST_TASKS]


def _agreed(pairs: Iterable[tuple[int | None, str | None]]) -> dict[int, str]:
    """The numbers that were always given the same node."""
    found: dict[int, set[str]] = {}
    for number, node in pairs:
        if number is not None and node is not None:
            found.setdefault(number, set()).add(node)
    return {number: nodes.pop() for number, nodes in found.items() if len(nodes) == 1}
