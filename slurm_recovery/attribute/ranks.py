"""Which rank a piece of evidence belongs to, and which node that rank ran on.

Owns the difference between a task and a rank, and between a node that the log names and one that is only counted.
Evidence first: a line's own host, srun's lines, failure tables, bootstrap lines (layout.py compares them). Counting
is the last resort, only for plain srun tasks, and only where no evidence contradicts it. Where two sources disagree,
no node is named, and `where` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slurm_recovery.attribute.layout import Layout, layout
from slurm_recovery.attribute.statements import Nodes, said
from slurm_recovery.detect.frame import Frame, frame
from slurm_recovery.detect.srun_words import MOST_HOSTS, TaskEnd, task_end
from slurm_recovery.records import Attempt, Evidence, Source

# slurm src/slurmd/slurmstepd/task.c: printed without srun's label; the task exits with the errno (ENOENT, EACCES)
_OF_STEPD = ("slurmstepd: error: execve(): ", "slurmstepd: error: couldn't chdir")
_NOT_EXECUTED = ("Exited with exit code 2", "Exited with exit code 13")
_BY_PID = " pid="  # Ray's own prefix, see detect/prefixes.py
MOST_NAME = 128  # characters of a node's name


class Where(NamedTuple):
    """A node, or None where it is not certain; and in both cases why."""

    node: str | None
    because: str


@dataclass(frozen=True)
class Places:
    """What the evidence of one attempt says about its ranks and nodes."""

    layout: Layout
    by_line: Mapping[str, TaskEnd]  # what srun said of tasks, in order
    _names: Nodes
    _heads: Mapping[str, Frame]

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.layout.nodes

    @property
    def per_node(self) -> int | None:
        return self.layout.per_node

    @property
    def ends(self) -> tuple[TaskEnd, ...]:
        return tuple(self.by_line.values())

    @property
    def tasks_are_ranks(self) -> bool:
        """Whether each of srun's tasks is a rank of its own; with one task a node they are launchers, or may be."""
        return self.layout.tasks_are_ranks

    @property
    def world(self) -> int | None:
        """The number of ranks, where it is known."""
        return self.layout.world

    @property
    def of_task(self) -> Mapping[int, str]:
        """The node of each of srun's tasks, by evidence alone."""
        return self.layout.of_task

    def known(self, name: str | None) -> str | None:
        """The job's node of this name, also if it is written with its domain."""
        return self._names.known(name)

    def rank(self, evidence: Evidence) -> int | None:
        """The global rank that the evidence comes from."""
        head, task = self._head(evidence.line), self._task(evidence.line)
        as_rank = task if self.tasks_are_ranks else None
        if evidence.rank is not None:
            doubtful = head.in_group and head.rank == evidence.rank and not self.layout.believe_groups
            return as_rank if doubtful else evidence.rank
        if as_rank is not None:
            return as_rank
        end = self.by_line.get(evidence.line)
        if self.tasks_are_ranks and end is not None and end.only is not None:
            return end.only
        return self._by_process(head) if head.pid is not None else self._by_local_rank(evidence, head)

    def _by_process(self, head: Frame) -> int | None:
        """Ray's workers by address and process, NCCL's by node; on the driver's own node Ray leaves the address out."""
        if (node := self.known(head.node)) is not None and head.pid is not None and head.local_rank is not None:
            return self.layout.of_device.get((node, head.pid, head.local_rank))
        known = self.layout.of_process.items()
        alike = {rank for (ip, pid), rank in known if pid == head.pid and head.ip in (None, ip)}
        return alike.pop() if len(alike) == 1 and not head.others else None

    def _by_local_rank(self, evidence: Evidence, head: Frame) -> int | None:
        """A local rank names a global one on a single node, or where one statement alone has it."""
        if evidence.local_rank is None or evidence.node is not None:
            return None
        if len(self.nodes) == 1:
            return evidence.local_rank
        task = self._task(evidence.line)
        node = self.layout.task_node(task) if task is not None else None
        ranks = {
            rank
            for (home, local), rank in self.layout.of_local.items()
            if local == evidence.local_rank and node in (None, home)
        }
        return ranks.pop() if len(ranks) == 1 else None

    def node(self, evidence: Evidence) -> str | None:
        """The node that the evidence comes from; None where that is not certain enough to name one."""
        return self.where(evidence).node

    def where(self, evidence: Evidence) -> Where:
        """The node that the evidence comes from, and why it is that one or none."""
        head = self._head(evidence.line)
        if len(self.nodes) == 1 and evidence.source is not Source.KERNEL_LOG:
            return Where(self.nodes[0], "the job's only node")
        if head.others:
            return Where(None, f"Ray printed one line for {head.others + 1}")
        if (node := self.known(evidence.node)) is not None:
            return Where(node, "the line names it")
        if evidence.node is not None and (node := self.layout.of_address.get(evidence.node)) is not None:
            return Where(node, f"the line names its address {evidence.node}")
        if evidence.source is Source.KERNEL_LOG:
            return Where(None, "a kernel log of no node of the job")
        if (node := self._speaker(head)) is not None:
            return Where(node, "the line begins with its name")
        if head.relayed and _BY_PID in evidence.line[:MOST_NAME] and (node := self._driver(head)) is not None:
            return Where(node, "the driver's own node, and srun saw a task fail there alone")
        if head.ip is not None:
            node = self.layout.of_address.get(head.ip)
            return Where(node, f"{'the' if node else 'no node is known by the'} address {head.ip}")
        task = self._task(evidence.line)
        if task is not None:
            return self._of_task(task)
        if evidence.line.startswith(_OF_STEPD) and (node := self._only_host_that_failed()) is not None:
            return Where(node, "srun saw tasks end with that error on it alone")
        rank = self.rank(evidence)
        return self._of_rank(rank) if rank is not None else Where(None, "the line tells neither host, task nor rank")

    def _driver(self, head: Frame) -> str | None:
        """The node of the only task that failed by itself, where each node has one: Ray's driver, or vLLM's."""
        ends = [end for end in self.ends if end.how.startswith("Exited")]
        alone = len(ends) == 1 and ends[0].only is not None and self.per_node == 1 and head.ip is None
        return self.known(ends[0].hosts[0]) if alone else None

    def _only_host_that_failed(self) -> str | None:
        """The one host on which tasks could not be executed: slurmstepd's exit code is then the errno."""
        hosts = {self.known(host) for end in self.ends if end.how in _NOT_EXECUTED for host in end.hosts}
        return hosts.pop() if len(hosts) == 1 else None

    def _speaker(self, head: Frame) -> str | None:
        """The node whose name pdsh or clush put before the line."""
        name, colon, _ = head.text[:MOST_NAME].partition(": ")
        return self.known(name) if colon else None

    def of_node(self, rank: int) -> str | None:
        """The node of a global rank."""
        return self._of_rank(rank).node

    def _of_task(self, task: int) -> Where:
        if task in self.layout.of_task:
            return Where(self.layout.of_task[task], f"task {task} ran there")
        if self.layout.blocks:
            return Where(None, f"no line tells where task {task} ran, and {self.layout.blocks}")
        node = self.layout.task_node(task)
        return Where(node, f"task {task}, {self.per_node} on each node in Slurm's order")

    def _of_rank(self, rank: int) -> Where:
        if len(self.nodes) == 1:
            return Where(self.nodes[0], "the job's only node")
        if rank in self.layout.of_rank:
            return Where(self.layout.of_rank[rank], f"rank {rank} ran there")
        if rank in self.layout.disputed:
            return Where(None, f"rank {rank} was seen on {', '.join(self.layout.disputed[rank][:4])}")
        if not self.tasks_are_ranks:
            return Where(None, f"no line tells where rank {rank} ran, and tasks are not known to be ranks")
        return self._of_task(rank)

    def _task(self, line: str) -> int | None:
        """srun's label, where it is that of the process that printed the line."""
        head = self._head(line)
        return None if head.relayed or head.component is not None else head.task

    def _head(self, line: str) -> Frame:
        return self._heads[line] if line in self._heads else frame(line)


def places(attempt: Attempt, evidence: Iterable[Evidence]) -> Places:
    """Reads the places out of all the evidence of an attempt."""
    evidence = tuple(evidence)
    names = Nodes(attempt.nodes)
    heads = {line: frame(line) for line in dict.fromkeys(one.line for one in evidence)}
    by_line = _ends(evidence)
    found = said(((one, heads[one.line]) for one in evidence), names)
    return Places(layout(attempt, by_line.values(), found, names), by_line, names, heads)


def _ends(evidence: Iterable[Evidence]) -> dict[str, TaskEnd]:
    """What srun said of tasks, by line; no more than MOST_HOSTS hosts in all, for the lines are the user's."""
    found: dict[str, TaskEnd] = {}
    named = 0
    for line in dict.fromkeys(one.line for one in evidence if one.source is Source.JOB_LOG):
        if named < MOST_HOSTS and (end := task_end(line)) is not None:
            found[line] = end
            named += len(end.hosts)
    return found
