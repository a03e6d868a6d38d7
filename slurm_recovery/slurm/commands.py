"""The port over Slurm's commands: squeue, sinfo, scontrol, scancel.

Fields are parted by a random word that is new for every call, so that no text which a user chose (job
name, comment, path) can forge a field. Arguments go to the program as they are, never through a shell.
Every process ends within `timeout` seconds.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_recovery.hostlist import expand, fold
from slurm_recovery.records import Size
from slurm_recovery.slurm.errors import Refused, SlurmError, SlurmUnavailable, UnknownJob, UnknownNode, from_text
from slurm_recovery.slurm.port import Job, Node, Queued, drain_reason, job_record

Reader = Callable[[str], object]

_FEW = 1000  # ids that one command line names; squeue itself asks for all jobs where it names more than one
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_EXPEDITE = "enable_expedited_requeue"  # slurm.conf(5) SlurmctldParameters, from 25.11 on


def _text(value: str) -> str:
    return "" if value == "(null)" else value


def _reason(value: str) -> str:
    return "" if value in ("None", "(null)") else value


def _setting(value: str) -> str:
    return "" if value in ("(null)", "N/A") else value


def _number(value: str) -> int | None:
    return int(value) if value.isdigit() else None


def _count(value: str) -> int:
    return int(value) if value.isdigit() else 0


def exit_pair(value: str) -> tuple[int, int]:
    """(exit code, signal) of `3:0` (23.02 and later) or of a wait status, `768` (before)."""
    if ":" in value:
        code, _, signal = value.partition(":")
        return _count(code), _count(signal)
    status = _count(value)
    return status >> 8 & 0xFF, status & 0x7F


# squeue -O's name of a field: our name of it, and how it is read. squeue(1), "--Format".
_FIELDS: Mapping[str, tuple[str, Reader]] = {
    "JobID": ("job_id", int),
    "ArrayJobID": ("array_job_id", _number),
    "ArrayTaskID": ("array_task_id", _number),
    "HetJobID": ("het_job_id", _number),
    "State": ("state", str),
    "Reason": ("reason", _reason),
    "RestartCnt": ("restart_count", _count),
    "SubmitTime": ("submit_time", _number),
    "StartTime": ("start_time", _number),
    "EndTime": ("end_time", _number),
    "exit_code": ("exit_pair", exit_pair),
    "DerivedEC": ("derived_pair", exit_pair),
    "Requeue": ("requeue", "1".__eq__),
    "BatchFlag": ("batch", lambda value: value != "0"),
    "UserID": ("user_id", int),
    "UserName": ("user", str),
    "Partition": ("partition", str),
    "NodeList": ("nodes", expand),
    "ReqNodes": ("required_nodes", expand),
    "NumNodes": ("num_nodes", lambda value: _count(value.partition("-")[0])),
    "NumTasks": ("num_tasks", _count),
    "NTPerNode": ("ntasks_per_node", _count),
    "Feature": ("features", _text),
    "PriorityLong": ("priority", _count),
    "WorkDir": ("work_dir", _text),
    "STDOUT": ("stdout", _text),
    "STDERR": ("stderr", _text),
    "Comment": ("comment", _text),
    "admin_comment": ("admin_comment", _text),
    "Name": ("name", _text),
}


class Commands:
    """Slurm by its command-line programs, found in `bin_dir` or along PATH."""

    def __init__(self, *, timeout: float = 10.0, bin_dir: Path | None = None, slurm_conf: Path | None = None) -> None:
        self._timeout = timeout
        self._bin = bin_dir
        self._environment = {
            "PATH": os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin",
            "LC_ALL": "C.UTF-8",
            "SLURM_TIME_FORMAT": "%s",
        }
        if slurm_conf or os.environ.get("SLURM_CONF"):
            self._environment["SLURM_CONF"] = str(slurm_conf or os.environ["SLURM_CONF"])
        self._expedites: bool | None = None  # whether slurm.conf allows expedited requeues; unknown until asked

    # -- questions -------------------------------------------------------------------------------

    def config(self) -> Mapping[str, str]:
        pairs = (line.partition("=") for line in self._run("scontrol", "show", "config").splitlines() if "=" in line)
        found: dict[str, str] = {}
        for key, _, value in pairs:  # 25.11 and later print a hook that may be given several times as Key[0], Key[1]
            name = key.strip().lower().partition("[")[0]
            found[name] = ",".join(filter(None, (found.get(name), _setting(value.strip()))))
        self._expedites = _EXPEDITE in found.get("slurmctldparameters", "").lower()
        return found

    def jobs(self, ids: Collection[int]) -> Mapping[int, Job]:
        if not ids:
            return {}
        ids = frozenset(ids)
        chosen = ("--states", "all", *_named(ids))
        try:
            rows = self._table("squeue", *chosen, fields=tuple(_FIELDS))
            excluded = {int(row[0]): row[1] for row in self._columns(*chosen, columns=("%A", "%x"))}
        except UnknownJob:
            return {}
        expedited = self.expedited(ids)
        jobs: dict[int, Job] = {}
        for values in _first_tasks(map(_values, rows)):
            number = values["job_id"]
            # One that only the first answer knows has been forgotten in between: its exclusions are not known.
            if number in excluded and _asked(values, ids):
                jobs[number] = _job(values, excluded[number], number in expedited)
        return jobs

    def expedited(self, ids: Collection[int]) -> frozenset[int]:
        """Those of the jobs that were submitted with `--requeue=expedite`. sbatch(1), from 25.11 on.

        Asks nothing where slurm.conf does not allow such jobs. Only the JSON output tells them apart: in the text
        that scontrol prints, a job's name can hold the same words.
        """
        if self._expedites is None:
            self.config()
        if not self._expedites or not ids:
            return frozenset()
        try:
            records = self._json(ids)
            return frozenset(record["job_id"] for record in records if "EXPEDITED_REQUEUE" in record["flags"])
        except UnknownJob:
            return frozenset()
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"squeue --json: not what was expected: {error!r}") from error

    def queue(self) -> Sequence[Queued]:
        fields = tuple("JobID ArrayJobID UserID State SubmitTime EligibleTime RestartCnt Dependency Name".split())
        return tuple(
            Queued(
                job_id=int(job),
                array_job_id=_number(array),
                user_id=int(user),
                state=state,
                submit_time=_number(submitted),
                eligible_time=_number(eligible),
                restart_count=_count(restarts),
                dependency=_text(dependency),
                name=_text(name),
            )
            for job, array, user, state, submitted, eligible, restarts, dependency, name in self._table(
                "squeue", "--states", "all", fields=fields
            )
        )

    def request(self, job: Job) -> Size | None:
        # Only JSON tells it: squeue's NumNodes and TRES of a job that was requeued after its end are those that it had.
        try:
            records = [record for record in self._json([job.job_id]) if record["job_id"] == job.job_id]
            return _size(records[0]) if records else None
        except SlurmUnavailable:
            raise
        except (SlurmError, ValueError, LookupError, TypeError, AttributeError):  # a squeue without JSON, for instance
            return None

    def nodes(self) -> Mapping[str, Node]:
        fields = ("NodeList", "StateComplete", "Partition", "features", "Reason", "UserLong", "Timestamp")
        nodes: dict[str, Node] = {}
        for name, state, partition, features, reason, user, when in self._table("sinfo", "--Node", fields=fields):
            known = nodes.get(name)
            nodes[name] = Node(
                name=name,
                state=node_state(state),
                reason="" if reason == "none" else reason,
                reason_user=user.rpartition("(")[0],  # `root(0)`, or Unknown
                reason_time=_number(when),
                partitions=frozenset({partition.rstrip("*")}) | (known.partitions if known else frozenset()),
                features=frozenset(filter(None, _text(features).split(","))),
            )
        return nodes

    # -- deeds -----------------------------------------------------------------------------------

    def requeue_hold(self, job: Job, *, special_exit: bool = False) -> None:
        self._run("scontrol", "requeuehold", *(["State=SpecialExit"] if special_exit else []), job.label)

    def update(
        self,
        job: Job,
        *,
        excluded: Sequence[str] | None = None,
        start_in: float | None = None,
        admin_comment: str | None = None,
        size: Size | None = None,
    ) -> None:
        changes = []
        if excluded is not None:
            changes.append(f"ExcNodeList={fold(excluded)}")
        if start_in is not None:
            changes.append("StartTime=now" + (f"+{round(start_in)}" if start_in >= 1 else ""))
        if admin_comment is not None:
            changes.append(f"AdminComment={admin_comment}")
        if size is not None:  # all of it: 26.05 works out wrong CPUs by itself, 22.05 keeps the former ones; and of a
            # single number both keep the former one as the most
            nodes = f"NumNodes={size.nodes}-{size.nodes}"
            changes += [nodes, f"NumTasks={size.tasks}", f"NumCPUs={size.cpus}"]
        if changes:
            for label in self._parts(job):
                self._run("scontrol", "update", f"JobId={label}", *changes)

    def release(self, job: Job) -> None:
        for label in self._parts(job):
            self._run("scontrol", "release", label)

    def cancel(self, job: Job) -> None:
        self._run("scancel", job.label)

    def drain(self, node: str, reason: str) -> None:
        name, text = one_node(node), given_reason(node, reason)
        self._run("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={text}")

    def resume(self, node: str) -> None:
        # Not RESUME, which also sets a DOWN node IDLE and is an error on one that is not drained (22.05, 26.05).
        self._run("scontrol", "update", f"NodeName={one_node(node)}", "State=UNDRAIN")

    def run_as(self, program: str, *arguments: str, **process: Any) -> str:
        """Any other of Slurm's programs; `process` as for subprocess.run (user, group, extra_groups)."""
        return self._run(program, *arguments, **process)

    def _parts(self, job: Job) -> list[str]:
        """What to address for the whole of a job: a het job's leader alone would be just the first component."""
        if job.het_job_id is None or job.het_job_id != job.job_id:
            return [job.label]
        return [row[0] for row in self._table("squeue", "--states", "all", *_named([job.job_id]), fields=("JobID",))]

    # -- running ---------------------------------------------------------------------------------

    def _run(self, program: str, *arguments: str, **process: Any) -> str:
        path = str(self._bin / program) if self._bin else program
        what = f"{program} {' '.join(arguments[:2])}"
        try:
            done: subprocess.CompletedProcess[bytes] = subprocess.run(
                [path, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout,
                check=False,
                **process,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmUnavailable(f"{what}: no answer within {self._timeout:g} s") from error
        except OSError as error:
            raise SlurmUnavailable(f"{path}: {error.strerror}; hint: SlurmBinDir in recovery.conf") from error
        output = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            raise from_text(what, done.stderr.decode(errors="replace") or output)
        return output

    def _table(self, program: str, *arguments: str, fields: Sequence[str]) -> list[list[str]]:
        """Rows of a -O (--Format) query, one string a field."""
        mark = f"<{secrets.token_hex(8)}>"
        wanted = ",".join(f"{field}:{mark}" for field in fields)
        return _rows(self._run(program, "--noheader", *_ALL[program], *arguments, "-O", wanted), mark, len(fields))

    def _json(self, ids: Collection[int]) -> list[dict[str, Any]]:
        """Of these jobs, and (22.05) of all others, too. Raises ValueError, KeyError or TypeError where it is none."""
        said = self._run("squeue", *_ALL["squeue"], "--states", "all", *_named(ids), "--json")
        return list(json.loads(said, strict=False)["jobs"])

    def _columns(self, *arguments: str, columns: Sequence[str]) -> list[list[str]]:
        """Rows of a squeue -o (--format) query, which knows ExcNodeList; -O does not before 24.05."""
        mark = f"<{secrets.token_hex(8)}>"
        wanted = "".join(f"{column}{mark}" for column in columns)
        return _rows(self._run("squeue", "--noheader", *_ALL["squeue"], *arguments, "-o", wanted), mark, len(columns))


_ALL: Mapping[str, tuple[str, ...]] = {"squeue": ("--all", "--array"), "sinfo": ("--all",)}


def _rows(output: str, mark: str, width: int) -> list[list[str]]:
    cells = output.split(mark)[:-1]
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    return [[row[0].removeprefix("\n"), *row[1:]] for row in rows]


def _named(ids: Collection[int]) -> tuple[str, ...]:
    """The option that names these jobs; none for so many that one command line would not hold them."""
    return ("--jobs", ",".join(map(str, sorted(ids)))) if len(ids) <= _FEW else ()


def _asked(values: Mapping[str, Any], ids: Collection[int]) -> bool:
    return values["job_id"] in ids or values["het_job_id"] in ids


def _values(row: Sequence[str]) -> dict[str, Any]:
    return {name: read(cell) for cell, (name, read) in zip(row, _FIELDS.values(), strict=True)}


def _size(record: Mapping[str, Any]) -> Size | None:
    """Of squeue's JSON, in which the TRES asked for are as `cpu=4,mem=16000M,node=4,billing=4`."""
    if _plain(record["het_job_id"]) or record["tres_per_job"]:
        return None
    told = dict(pair.split("=", 1) for pair in record["tres_req_str"].split(",") if "=" in pair)
    nodes, cpus = _count(told.get("node", "")), _count(told.get("cpu", ""))
    return Size(nodes=nodes, tasks=_plain(record["tasks"]), cpus=cpus) if nodes and cpus else None


def _plain(value: Any) -> int:
    """A number as 22.05 has it, or as later ones do: {"set": true, "number": 4}."""
    return int(value["number"] if isinstance(value, dict) else value or 0)


def _first_tasks(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records; of an array's waiting tasks, which share the array's id until they start, only the first."""
    first: dict[int, dict[str, Any]] = {}
    for values in records:
        known = first.get(values["job_id"])
        if known is None or (values["array_task_id"] or 0) < (known["array_task_id"] or 0):
            first[values["job_id"]] = values
    yield from first.values()


def _job(values: Mapping[str, Any], excluded: str, expedited: bool) -> Job:
    fields = dict(values)
    array = fields["array_task_id"] is not None
    code, signal = fields.pop("exit_pair")
    derived = "{}:{}".format(*fields.pop("derived_pair"))
    return job_record(
        fields
        | {
            "array_job_id": fields["array_job_id"] if array else None,
            "exit_code": code,
            "signal": signal,
            "derived_exit_code": derived,
            "excluded_nodes": expand(excluded),
            "expedited": expedited,
        }
    )


def node_state(text: str) -> frozenset[str]:
    """The words of sinfo's StateComplete; a trailing `*` means not responding."""
    words = text.upper().replace("*", "+NOT_RESPONDING").rstrip("~#!%$@^-").split("+")
    return frozenset(word for word in words if word)


def one_node(name: str) -> str:
    """The name of one node, as it is. Raises UnknownNode.

    Slurm takes a host list, `ALL` and the name of a NodeSet there, too, and of a list with one unknown name it drains
    the others (22.05, 26.05).
    """
    if not _NODE.fullmatch(name) or name.upper() == "ALL":
        raise UnknownNode(f"not the name of one node: {name[:60]!r}")
    return name


def given_reason(node: str, reason: str) -> str:
    """The reason as it is written. Raises Refused for an empty one, as Slurm does."""
    text = drain_reason(reason)
    if not text:
        raise Refused(f"drain of {node}: a drain needs a reason")
    return text
