"""squeue's and sinfo's answers as rows in which no user's text can pass for a field.

Job names, comments and paths are chosen by users and may hold anything, newlines too. So each field ends with a word
that is drawn anew for each question, and rows are counted, not split at line ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from subprocess import CompletedProcess
from typing import Protocol

from tests.cluster.errors import ClusterError

Row = dict[str, str]

JOB_FIELDS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "Reason", "RestartCnt",
    "NodeList", "NumNodes", "ReqNodes", "SchedNodes", "SubmitTime", "EligibleTime", "StartTime", "EndTime",
    "PreemptTime", "TimeLimit", "ExitCode", "DerivedEC", "BatchFlag", "Requeue", "PriorityLong", "Partition",
    "UserName", "Dependency", "ExcNodes", "AdminComment", "Comment", "WorkDir", "STDOUT", "STDERR", "Name",
)  # fmt: skip
# squeue's own word, where the key is another.
WORDS = {"ExitCode": "exit_code", "AdminComment": "admin_comment"}
FIELD_WIDTH = 4096  # squeue cuts what is longer
NODE_FIELDS = ("NodeHost", "StateLong", "StateComplete", "Reason", "Timestamp", "User")


class Run(Protocol):
    """How a command of the cluster is run: PrivateCluster.run."""

    def __call__(self, *argv: str, check: bool, env: dict[str, str]) -> CompletedProcess[str]: ...


def job_rows(run: Run, version: tuple[int, ...], *options: str) -> list[Row]:
    """Jobs as JOB_FIELDS, times as epochs, exit codes as scontrol writes them ("3:0"), nothing as "".

    STDOUT and STDERR are what this release's squeue makes of them: from 24.11 on, the pattern as the user wrote it.
    """
    if version >= (24, 11):
        rows = _table(run, "squeue", JOB_FIELDS, *options)
    else:  # has the excluded nodes in its short format only
        excluded = _excluded(run, options)
        rows = _table(run, "squeue", [field for field in JOB_FIELDS if field != "ExcNodes"], *options)
        rows = [row | {"ExcNodes": excluded.get(row["JobID"], "")} for row in rows]
    return [row | {code: _as_code(row[code]) for code in ("ExitCode", "DerivedEC")} for row in rows]


def node_rows(run: Run, *options: str) -> list[Row]:
    """Nodes as NODE_FIELDS."""
    return _table(run, "sinfo", NODE_FIELDS, "--Node", *options)


def _table(run: Run, command: str, fields: Sequence[str], *options: str) -> list[Row]:
    mark = _mark()
    words = ",".join(f"{WORDS.get(field, field)}:{FIELD_WIDTH}{mark}" for field in fields)
    values = _ask(run, mark, command, *options, "-O", words)
    rows = [values[at : at + len(fields)] for at in range(0, len(values), len(fields))]
    return [dict(zip(fields, row, strict=True)) for row in rows]


def _excluded(run: Run, options: Sequence[str]) -> Row:
    mark = _mark()
    values = _ask(run, mark, "squeue", *options, "-o", f"%A{mark}%x{mark}")
    return dict(zip(values[::2], values[1::2], strict=True))


def _ask(run: Run, mark: str, command: str, *options: str) -> list[str]:
    done = run(command, "--noheader", *options, check=False, env={"SLURM_TIME_FORMAT": "%s"})
    if "Invalid job id" in done.stderr:
        return []
    if done.returncode != 0 or "error:" in done.stderr:
        raise ClusterError(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    return [_said(value) for value in done.stdout.split(mark)][:-1]


def _mark() -> str:
    return "x" + secrets.token_hex(8)  # a letter first: it follows the width


def _said(value: str) -> str:
    text = value.strip()
    return "" if text in ("(null)", "N/A") else text


def _as_code(status: str) -> str:
    """A wait status as scontrol writes it: 768 is "3:0", 9 is "0:9"."""
    return f"{int(status) >> 8}:{int(status) & 127}" if status.isdigit() else status
