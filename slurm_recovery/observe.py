"""Gathers what is known of an attempt: from the hook's event, from Slurm, from the job's log, from its nodes.

Reads only. Whatever cannot be had becomes a Gap in the observation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from slurm_recovery.attribute.dump_rows import may_speak
from slurm_recovery.config.settings import Settings
from slurm_recovery.detect.readings import evidence_of, gaps_of
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature
from slurm_recovery.evidence.joblog import NO_FORMER, Bounds, Former, JobLog, mark_of, marked, open_log
from slurm_recovery.evidence.node_reports import LogPiece, Reports, log_pieces, read_reports
from slurm_recovery.evidence.paths import log_paths
from slurm_recovery.evidence.pieces import ahead, side_by_side
from slurm_recovery.evidence.trace_dumps import Traces, read_traces
from slurm_recovery.hooks.spool import Event
from slurm_recovery.hostlist import HostlistError, expand
from slurm_recovery.job_options import SPANK
from slurm_recovery.records import Attempt, Evidence, Gap, Incident, Observation, Role, Source
from slurm_recovery.slurm.port import Job, Node

EVIDENCE_BYTES = 1 << 20  # of one attempt's evidence on record
REPORT_BYTES = 1 << 30  # of all reports of one attempt's nodes
LOG_TAIL = 1 << 20  # of a log's end: read first, for whatever lies before it may take too long
TEXT = 4096  # characters of a user's text on record

# slurm.h: the reason that slurmctld gives a node whose prolog failed, "Prolog error"; 23.11 and later may
# also say "batch job complete failure" for a launch that failed on the node.
PROLOG_REASONS = ("prolog error", "prolog failed", "prolog_failed", "launch failed", "batch job complete failure")


def same_attempt(event: Event, job: Job) -> bool:
    """Whether the job, as Slurm shows it now, is still the attempt whose end the event tells of."""
    if not (job.completing or job.ended) or job.start_time is None:
        return False
    told = event.number("SLURM_JOB_START_TIME")  # from 23.02 on
    if told is not None:
        return int(job.start_time) == told
    return job.start_time <= event.time and job.restart_count == (event.number("SLURM_JOB_RESTART_COUNT") or 0)


def attempt_of(event: Event, job: Job | None, components: Iterable[Job], cluster: str) -> Attempt:
    """The attempt that an event tells of; what Slurm shows is used where it is still the same attempt."""
    same = job is not None and same_attempt(event, job)
    told = _told(event, cluster)
    if job is None or not same:
        known = {} if job is None else _lasting(job)
        return told.model_copy(update=known)
    parts = [job, *components]
    worst = _worst(parts)
    # While COMPLETING, Slurm takes each node off the list as its epilog ends: the hook's list is whole.
    nodes = tuple(dict.fromkeys([*told.nodes, *(node for part in parts for node in part.nodes)]))
    return told.model_copy(
        update=_lasting(job)
        | {
            "restart_count": job.restart_count,
            "start_time": job.start_time,
            "end_time": max((p.end_time for p in parts if p.end_time), default=told.end_time),
            "nodes": nodes,
            "ntasks_per_node": _tasks_per_node(parts, len(nodes)),
            "state": worst.state if worst.ended else "",
            "reason": worst.reason,
            "exit_code": worst.exit_code or told.exit_code,
            "signal": worst.signal or told.signal,
            "derived_exit_code": worst.derived_exit_code,
            "excluded_nodes": job.excluded_nodes,
        }
    )


def _tasks_per_node(parts: Sequence[Job], nodes: int) -> int | None:
    """How many tasks each node was given, where that is the same for all and certain.

    Without --ntasks-per-node Slurm deals tasks out by free processors, but no node goes without one.
    """
    job = parts[0]
    if len(parts) > 1 or job.het_job_id is not None:
        return None
    if job.ntasks_per_node:
        return job.ntasks_per_node
    return job.num_tasks // max(nodes, 1) if nodes == 1 or job.num_tasks == nodes else None


def _worst(parts: Sequence[Job]) -> Job:
    """The het component that failed, or the job itself."""
    return next((part for part in parts if part.ended and part.state != "COMPLETED"), parts[0])


def _told(event: Event, cluster: str) -> Attempt:
    """What the hook's environment alone says. prolog_epilog.html, "environment variables"."""
    told = event.variables
    code, _, signal = told.get("SLURM_JOB_EXIT_CODE2", "0:0").partition(":")
    return Attempt(
        cluster=cluster,
        job_id=event.number("SLURM_HET_JOB_ID") or event.job_id,
        array_job_id=event.number("SLURM_ARRAY_JOB_ID"),
        array_task_id=event.number("SLURM_ARRAY_TASK_ID"),
        het_job_id=event.number("SLURM_HET_JOB_ID"),
        restart_count=event.number("SLURM_JOB_RESTART_COUNT") or 0,
        start_time=event.number("SLURM_JOB_START_TIME"),
        end_time=event.number("SLURM_JOB_END_TIME") or int(event.time),
        user_id=event.number("SLURM_JOB_UID") or 0,
        user=told.get("SLURM_JOB_USER", ""),
        name=told.get("SLURM_JOB_NAME", "")[:TEXT],
        partition=told.get("SLURM_JOB_PARTITION", ""),
        nodes=hosts(told.get("SLURM_HET_JOB_NODELIST") or told.get("SLURM_JOB_NODELIST", "")),
        exit_code=int(code) if code.isdigit() else 0,
        signal=int(signal) if signal.isdigit() else 0,
        work_dir=told.get("SLURM_JOB_WORK_DIR", ""),
        stdout=told.get("SLURM_JOB_STDOUT", ""),
        comment=told.get("SLURM_JOB_COMMENT", "")[:TEXT],
        spank={name: told[name][:TEXT] for name in SPANK.values() if told.get(name)},
    )


def _lasting(job: Job) -> dict[str, object]:
    """What does not change between the attempts of a job."""
    names = (
        "array_job_id array_task_id het_job_id user_id user name partition batch requeue expedited "
        "required_nodes work_dir stdout stderr comment"
    ).split()
    texts = {"name": job.name[:TEXT], "comment": job.comment[:TEXT]}
    return {name: getattr(job, name) for name in names} | texts


def hosts(text: str) -> tuple[str, ...]:
    """The hosts of a list that Slurm gave; none where it is no list."""
    try:
        return expand(text)
    except HostlistError:
        return ()


@dataclass(frozen=True)
class Observer:
    """Reads the evidence of an attempt, under the site's bounds."""

    settings: Settings
    signatures: tuple[Signature, ...]
    consult: Callable[[Observation], Observation] = lambda observation: observation  # asks others, at the end

    def reports(self, attempt: Attempt, down: Collection[str]) -> Reports:
        """What the attempt's nodes wrote down. Those that are down, or had nothing to write, are not missed."""
        folder = self.settings.evidence_dir
        if folder is None or not _told_of_failure(attempt):
            return Reports()
        nodes = [node for node in attempt.nodes if node not in down]
        return read_reports(folder, attempt, nodes, most=REPORT_BYTES, timeout=self.settings.evidence_timeout)

    def observe(
        self,
        attempt: Attempt,
        nodes: Mapping[str, Node],
        gone_down: frozenset[str],
        earlier: Sequence[Incident],
        reports: Reports,
    ) -> Observation:
        """`gone_down`: hosts that strigger reported; `earlier`: the job's former incidents, newest first."""
        evidence: list[Evidence] = []
        gaps: list[Gap] = list(reports.gaps)
        for report in reports.reports:
            evidence += evidence_of(report, self.signatures)
            gaps += gaps_of(report)
        sent = [piece for report in reports.reports for piece in log_pieces(report)]
        gaps += [piece for piece in sent if isinstance(piece, Gap)]
        first: JobLog | LogPiece | None = None
        for path in log_paths(attempt) if attempt.batch else ():
            with self._open(path, attempt, earlier) as log:
                if isinstance(log, Gap):
                    pieces = [piece for piece in sent if isinstance(piece, LogPiece) and piece.path == path]
                    for piece in (_of_this_run(piece, path, earlier) for piece in pieces):
                        evidence += self._scan(path, piece.offset, [piece.data])
                    gaps.append(_sent(log, pieces))
                    first = first or (pieces[-1] if pieces else None)
                    continue
                evidence += self._scanned(log)
                gaps += log.gaps
                first = first or log
        if may_speak(evidence, gaps):
            traces = self._traces(attempt)
            evidence += traces.evidence
            gaps += traces.gaps
        down = (node for node in attempt.nodes if node in gone_down or (node in nodes and nodes[node].down))
        seen = Observation(
            attempt=attempt,
            evidence=within(evidence, EVIDENCE_BYTES),
            gaps=tuple(gaps),
            down_nodes=tuple(down),
            prolog_failed_nodes=tuple(node for node in attempt.nodes if _prolog_failed(nodes.get(node))),
            log_path=first.path if first else "",
            log_tail=snapshot(_tail(first), self.settings.snapshot_bytes) if first else "",
            log_end=first.size if first else 0,
            log_inode=first.inode if first else 0,
            log_mark=_mark(first) if first else "",
            boots={report.node: report.boot_id for report in reports.reports if report.boot_id},
        )
        return self.consult(seen)

    def _open(
        self, path: str, attempt: Attempt, earlier: Sequence[Incident]
    ) -> AbstractContextManager[JobLog | Gap]:
        before = _former(path, earlier)
        bounds = Bounds(self.settings.log_bytes, self.settings.log_timeout, max(self.settings.snapshot_bytes, LOG_TAIL))
        return open_log(
            path,
            attempt.user_id,
            bounds,
            Former(before.log_end, before.log_inode, before.log_mark, attempt.start_time) if before else NO_FORMER,
        )

    def _traces(self, attempt: Attempt) -> Traces:
        """The flight recorder's dumps, once all that writes them has ended."""
        if attempt.state in ("", "COMPLETED"):
            return Traces()
        most, timeout = self.settings.trace_bytes, self.settings.trace_timeout
        return read_traces(attempt, log_paths(attempt) if attempt.batch else (), most=most, timeout=timeout)

    def _scanned(self, log: JobLog) -> list[Evidence]:
        return [found for part in log.parts() for found in self._scan(log.path, part.offset, ahead(part.pieces))]

    def _scan(self, path: str, offset: int, pieces: Iterable[bytes]) -> tuple[Evidence, ...]:
        return scan(
            pieces,
            signatures=self.signatures,
            source=Source.JOB_LOG,
            path=_short(path),
            offset=offset,
            each=side_by_side,
        )


def _former(path: str, earlier: Sequence[Incident]) -> Observation | None:
    """What the last attempt that wrote this log left of it."""
    return next((i.observation for i in earlier if i.observation and i.observation.log_path == path), None)


def _of_this_run(piece: LogPiece, path: str, earlier: Sequence[Incident]) -> LogPiece:
    """The piece without what earlier attempts wrote into the same file."""
    before = _former(path, earlier)
    if before is None or before.log_inode != piece.inode or before.log_end > piece.size:
        return piece
    old = before.log_end - piece.offset
    first = old - marked(before.log_mark)
    if piece.size == before.log_end or first < 0 or mark_of(piece.data[first:old]) != before.log_mark:
        return piece
    return piece._replace(offset=before.log_end, data=piece.data[old:])


def _tail(log: JobLog | LogPiece) -> bytes:
    return log.data if isinstance(log, LogPiece) else log.tail


def _mark(log: JobLog | LogPiece) -> str:
    return mark_of(log.data) if isinstance(log, LogPiece) else log.mark


def _sent(gap: Gap, pieces: Sequence[LogPiece]) -> Gap:
    """A log that cannot be read here: how much of it the batch node has sent."""
    if not pieces:
        return gap
    sent = sum(len(piece.data) for piece in pieces)
    return gap.model_copy(update={"why": f"{gap.why}; its node sent {sent} of {pieces[-1].size} bytes"})


def _told_of_failure(attempt: Attempt) -> bool:
    """Whether node hooks were told so, and wrote something: they see exit codes, but no time limit."""
    return bool(attempt.exit_code or attempt.signal) or attempt.derived_exit_code not in ("", "0:0")


def _prolog_failed(node: Node | None) -> bool:
    return node is not None and node.reason.lower().startswith(PROLOG_REASONS)


def within(evidence: Sequence[Evidence], most: int) -> tuple[Evidence, ...]:
    """As much of the evidence as `most` bytes of a record hold, causes before consequences, in its own order."""
    kept, room = set(), most
    for number in sorted(range(len(evidence)), key=lambda number: list(Role).index(evidence[number].role)):
        room -= _encoded(evidence[number].line) + _encoded(evidence[number].place) + 200
        if room < 0:
            break
        kept.add(number)
    return tuple(one for number, one in enumerate(evidence) if number in kept)


def snapshot(data: bytes, most: int) -> str:
    """The end of a log for the record: at most `most` bytes of it, and not many more as they are stored."""
    text = data[-most:].decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}") if most else ""
    size = _encoded(text)
    return text if size <= 2 * most else text[-(len(text) * 2 * most // size) :]


def _encoded(text: str) -> int:
    """Bytes of a text in a stored record, which is ASCII."""
    return len(json.dumps(text))


def _short(path: str) -> str:
    return path if len(path) <= 200 else "..." + path[-197:]
