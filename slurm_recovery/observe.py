"""Gathers what is known of an attempt: from the hook's event, from Slurm, from the job's log, from its nodes.

Reads only. Whatever cannot be had becomes a Gap in the observation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from slurm_recovery.attribute.dump_rows import may_speak
from slurm_recovery.config.settings import Settings
from slurm_recovery.detect.readings import evidence_of, gaps_of
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature
from slurm_recovery.detect.steps import Span, Steps, StepWatch, likeliest, placed
from slurm_recovery.evidence.joblog import NO_FORMER, Bounds, Former, JobLog, mark_of, marked, open_log
from slurm_recovery.evidence.node_reports import LogPiece, Reports, log_pieces, read_reports
from slurm_recovery.evidence.paths import log_paths
from slurm_recovery.evidence.pieces import ahead, side_by_side
from slurm_recovery.evidence.trace_dumps import Traces, read_traces
from slurm_recovery.hooks.spool import Event
from slurm_recovery.hostlist import HostlistError, expand
from slurm_recovery.job_options import SPANK, JobOptions
from slurm_recovery.node_report import NodeReport, SavedCheckpoint
from slurm_recovery.records import (
    Attempt,
    Checkpoint,
    Evidence,
    Gap,
    Incident,
    LogEnd,
    Observation,
    PassedOver,
    Progress,
    Role,
    Source,
)
from slurm_recovery.slurm.port import Job, Node

EVIDENCE_BYTES = 1 << 20  # of one attempt's evidence on record
REPORT_BYTES = 1 << 30  # of all reports of one attempt's nodes
LOG_TAIL = 1 << 20  # of a log's end: read first, for whatever lies before it may take too long
TEXT = 4096  # characters of a user's text on record
EARLIER = 8  # checkpoints on record before the newest; of those passed over as many

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


NO_OPTIONS = JobOptions()


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
        options: JobOptions = NO_OPTIONS,
    ) -> Observation:
        """`gone_down`: hosts that strigger reported; `earlier`: the job's former incidents, newest first."""
        evidence: list[Evidence] = []
        gaps: list[Gap] = list(reports.gaps)
        for report in reports.reports:
            evidence += evidence_of(report, self.signatures)
            gaps += gaps_of(report)
        sent = [piece for report in reports.reports for piece in log_pieces(report)]
        gaps += [piece for piece in sent if isinstance(piece, Gap)]
        logs: list[JobLog | LogPiece] = []
        watches: list[StepWatch] = []
        for path in log_paths(attempt, options.log) if attempt.batch else ():
            watches.append(watch := StepWatch())
            with self._open(path, attempt, earlier) as log:
                if isinstance(log, Gap):
                    pieces = [piece for piece in sent if isinstance(piece, LogPiece) and piece.path == path]
                    for piece in (_of_this_run(piece, path, earlier) for piece in pieces):
                        evidence += self._scan(path, piece.offset, watch.over([piece.data]))
                    gaps.append(_sent(log, pieces))
                    logs += pieces[-1:]
                    continue
                evidence += self._scanned(log, watch)
                gaps += log.gaps
                logs.append(log)
        if may_speak(evidence, gaps):
            traces = self._traces(attempt)
            evidence += traces.evidence
            gaps += traces.gaps
        gaps += _not_looked_at(attempt, options, reports)
        first = logs[0] if logs else None
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
            other_logs=tuple(
                LogEnd(path=log.path, end=log.size, inode=log.inode, mark=_mark(log)) for log in logs[1:]
            ),
            boots={report.node: report.boot_id for report in reports.reports if report.boot_id},
            progress=_with_steps(_progress(reports), likeliest(watch.steps() for watch in watches), attempt),
        )
        return self.consult(seen)

    def checkpoints(self, attempt: Attempt) -> Progress | None:
        """What the batch node of an attempt that ended well saw in its folder of checkpoints."""
        folder = self.settings.evidence_dir
        if folder is None:
            return None
        timeout = self.settings.evidence_timeout
        return _progress(read_reports(folder, attempt, attempt.nodes[:1], most=REPORT_BYTES, timeout=timeout))

    def steps(
        self, attempt: Attempt, earlier: Sequence[Incident], options: JobOptions, beyond: int, most: int
    ) -> tuple[Steps, bool]:
        """The step lines of an attempt that may still run, of `most` bytes of each log; and whether that is all of it.

        `earlier`: as for `observe`; `beyond`: the step of which the first line that passes it is wanted.
        """
        found, whole = [], True
        for path in log_paths(attempt, options.log) if attempt.batch else ():
            watch = StepWatch(beyond)
            with self._open(path, attempt, earlier, most) as log:
                if isinstance(log, Gap):
                    continue
                for part in log.parts():
                    for _ in watch.over(part.pieces):
                        pass
                whole = whole and not log.gaps
            found.append(watch.steps())
        return likeliest(found), whole

    def _open(
        self, path: str, attempt: Attempt, earlier: Sequence[Incident], most: int | None = None
    ) -> AbstractContextManager[JobLog | Gap]:
        before = _former(path, earlier)
        bytes_read = self.settings.log_bytes if most is None else min(most, self.settings.log_bytes)
        bounds = Bounds(bytes_read, self.settings.log_timeout, max(self.settings.snapshot_bytes, LOG_TAIL))
        return open_log(
            path,
            attempt.user_id,
            bounds,
            Former(before.end, before.inode, before.mark, attempt.start_time) if before else NO_FORMER,
        )

    def _traces(self, attempt: Attempt) -> Traces:
        """The flight recorder's dumps, once all that writes them has ended."""
        if attempt.state in ("", "COMPLETED"):
            return Traces()
        most, timeout = self.settings.trace_bytes, self.settings.trace_timeout
        return read_traces(attempt, log_paths(attempt) if attempt.batch else (), most=most, timeout=timeout)

    def _scanned(self, log: JobLog, watch: StepWatch) -> list[Evidence]:
        return [
            found
            for part in log.parts()
            for found in self._scan(log.path, part.offset, ahead(watch.over(part.pieces)))
        ]

    def _scan(self, path: str, offset: int, pieces: Iterable[bytes]) -> tuple[Evidence, ...]:
        return scan(
            pieces,
            signatures=self.signatures,
            source=Source.JOB_LOG,
            path=_short(path),
            offset=offset,
            each=side_by_side,
        )


def _former(path: str, earlier: Sequence[Incident]) -> LogEnd | None:
    """What the last attempt that wrote this log left of it."""
    ends = (end for incident in earlier if incident.observation for end in _ends(incident.observation))
    return next((end for end in ends if end.path == path), None)


def _ends(seen: Observation) -> tuple[LogEnd, ...]:
    first = LogEnd(path=seen.log_path, end=seen.log_end, inode=seen.log_inode, mark=seen.log_mark)
    return (first, *seen.other_logs)


def _of_this_run(piece: LogPiece, path: str, earlier: Sequence[Incident]) -> LogPiece:
    """The piece without what earlier attempts wrote into the same file."""
    before = _former(path, earlier)
    if before is None or before.inode != piece.inode or before.end > piece.size:
        return piece
    old = before.end - piece.offset
    first = old - marked(before.mark)
    if piece.size == before.end or first < 0 or mark_of(piece.data[first:old]) != before.mark:
        return piece
    return piece._replace(offset=before.end, data=piece.data[old:])


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


def _progress(reports: Reports) -> Progress | None:
    """How far the attempt had come, by what its batch node saw in its folder of checkpoints."""
    report = _looked(reports)
    if report is None or report.checkpoints is None:
        return None
    seen = report.checkpoints
    return Progress(
        folder=seen.folder,
        newest=_checkpoint(seen.newest) if seen.newest else None,
        earlier=tuple(_checkpoint(saved) for saved in seen.earlier[:EARLIER]),
        passed=tuple(PassedOver(path=one.path, why=one.why) for one in seen.passed[:EARLIER]),
    )


def _with_steps(progress: Progress | None, found: Steps, attempt: Attempt) -> Progress | None:
    """And by the step lines of its log."""
    end = float("inf") if attempt.end_time is None else attempt.end_time
    found = placed(found, Span(attempt.start_time or 0.0, end, zones(end)))
    if found.first is None or found.last is None:
        return progress
    told = {
        "first_log_step": found.first.number,
        "first_log_step_time": found.first.time,
        "log_step": found.last.number,
        "log_step_time": found.last.time,
    }
    return (progress or Progress()).model_copy(update=told)


def zones(when: float) -> tuple[float, float]:
    """In which zones a log may tell times without one, in seconds ahead of UTC: its nodes' are mostly ours."""
    try:
        return 0.0, float(time.localtime(when).tm_gmtoff)
    except (ValueError, OverflowError, OSError):
        return 0.0, 0.0


def _looked(reports: Reports) -> NodeReport | None:
    """The report of the node that looked at the checkpoints: the newest, where there are several."""
    looked = [report for report in reports.reports if report.checkpoints is not None]
    return max(looked, key=lambda report: report.time, default=None)


def without_checkpoints(reports: Reports) -> Reports:
    """For a job that may not say where its checkpoints are."""
    kept = (report.model_copy(update={"checkpoints": None}) for report in reports.reports)
    return reports._replace(reports=tuple(kept))


def _checkpoint(saved: SavedCheckpoint) -> Checkpoint:
    return Checkpoint(**saved.model_dump())


def _not_looked_at(attempt: Attempt, options: JobOptions, reports: Reports) -> tuple[Gap, ...]:
    if not options.checkpoint or _looked(reports):
        return ()
    why = f"not looked at: no word of it from {attempt.nodes[0] if attempt.nodes else 'its batch node'}"
    return (Gap(source=Source.CHECKPOINT, what=_short(options.checkpoint), why=why),)


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
