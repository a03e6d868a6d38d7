"""When evidence counts: minutes around the attempt's end, and of the job's own processes where both are told.

Owns the comparison of times of different clocks and zones, and of the processes that a kernel names with those
that the job's log names. Decides no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.detect.frame import frame
from slurm_recovery.detect.times import in_year
from slurm_recovery.records import Attempt, Category, Evidence, Observation, Source

OF_NODES = (Source.KERNEL_LOG, Source.NVML)  # what a node says of itself
AFTER_END = 15 * 60.0
# A watchdog speaks 10 to 30 minutes after the fault, and may be set higher.
BEFORE_END = 2 * 3600.0
# A time without its zone was taken as UTC: no zone is further away than this.
ZONE_SLACK = 14 * 3600.0
CLOCKS = 2.0  # seconds by which a node's clock and the controller's may differ
# A job in these states may have stood still for long before it ended.
LONG_STATES = ("TIMEOUT", "DEADLINE", "NODE_FAIL")

# NVRM: Xid (PCI:0000:9b:00): 79, pid=2211, name=python, ...
_XID_PID = re.compile(r"NVRM: Xid .{1,80}, pid=(\d{1,10})\b")
_XID = re.compile(r"NVRM: Xid \(")
_OF_DEVICES = (Category.HARDWARE, Category.INTERCONNECT, Category.NODE)
# The same, and: "Killed process 811 (python)"; "Sending SIGBUS to python:811 due to"; "python3[811]: segfault at"
_KERNEL_PID = re.compile(
    r"\bpid=(\d{1,10})\b|Killed process (\d{1,10})\b|Sending SIGBUS to [^:]{1,40}:(\d{1,10})\b|\[(\d{1,10})\]: segfault"
)
# Pids on record in a job's log, by who prints them: NCCL, torchrun's table and its signals, Ray, data loaders.
_PIDS = re.compile(
    r"^\S{1,160}?:(\d{1,10}):\d{1,10} \[|\(pid: (\d{1,10})\)|\b(?:pid|PID)[= ](\d{1,10})\b|\bprocess (\d{1,10})\b"
)
MOST_PIDS = 8  # of one line


def of_this_attempt(observation: Observation) -> tuple[Evidence, ...]:
    """The evidence inside the attempt's window."""
    attempt, evidence = observation.attempt, observation.evidence
    log_end, uptimes = last_time(evidence), _uptimes(evidence)
    return tuple(
        found for found in evidence if _inside(found, attempt, log_end) and not _long_ago(found, attempt, uptimes)
    )


def before_the_start(observation: Observation) -> tuple[Evidence, ...]:
    """The kernel's lines of the hours before the attempt, of nodes that reported: theirs are of the same boot."""
    start = observation.attempt.start_time
    if start is None:
        return ()
    return tuple(
        found
        for found in observation.evidence
        if found.source is Source.KERNEL_LOG
        and found.node in observation.boots
        and found.time is not None
        and frame(found.line).zoned
        and start - BEFORE_END <= found.time < start - CLOCKS
    )


def last_time(evidence: Iterable[Evidence]) -> float | None:
    """The latest time that a job's log tells, in the log's zone."""
    times = [found.time for found in evidence if found.source is Source.JOB_LOG and found.time is not None]
    return max(times) if times else None


def _inside(evidence: Evidence, attempt: Attempt, log_end: float | None) -> bool:
    """Whether a node's evidence belongs to this attempt; a line without a date is given the benefit."""
    if evidence.source is Source.NVML:
        return _read_then(evidence, attempt)
    if evidence.source is not Source.KERNEL_LOG:
        return True
    head = frame(evidence.line)
    end, same_zone = (log_end, not head.zoned) if attempt.end_time is None else (attempt.end_time, head.zoned)
    when = evidence.time
    if when is None and head.yearless is not None and end is not None:
        when = in_year(head.yearless, end)  # syslog's form: the year nearest to the attempt
    if when is None or end is None:
        return True
    slack = 0.0 if same_zone else ZONE_SLACK
    if _before_it(when, attempt, zoned=head.zoned) or _teardown(evidence, when, attempt, zoned=head.zoned):
        return False
    # A log may have fallen silent long before the job's end, and nobody reads kernel logs long after it.
    last = end + AFTER_END + slack if attempt.end_time is not None else when
    return _begin(attempt, end) - slack <= when <= last


def _before_it(when: float, attempt: Attempt, *, zoned: bool) -> bool:
    return attempt.start_time is not None and when < attempt.start_time - (CLOCKS if zoned else ZONE_SLACK)


def _teardown(evidence: Evidence, when: float, attempt: Attempt, *, zoned: bool) -> bool:
    """Whether it is an Xid of a program's own that came when the job was over: ending processes provokes such.

    NVIDIA's Xid catalogue says so of 45; of 13, 31, 43 and their like it says that the application is at fault.
    """
    if attempt.end_time is None or not zoned or when <= attempt.end_time + CLOCKS:
        return False
    of_devices = evidence.reason in REASONS and REASONS[evidence.reason].category in _OF_DEVICES
    return not of_devices and _XID.search(evidence.line, 0, 300) is not None


def _read_then(evidence: Evidence, attempt: Attempt) -> bool:
    """Whether NVML was asked at the end of this attempt."""
    when, start, end = evidence.time, attempt.start_time, attempt.end_time
    early = when is not None and start is not None and when < start - CLOCKS
    return not early and (when is None or end is None or when <= end + AFTER_END)


def _begin(attempt: Attempt, end: float) -> float:
    """From when on evidence counts: a job that ran into its limit may have hung since its start."""
    if attempt.state in LONG_STATES:
        return attempt.start_time if attempt.start_time is not None else end - 24 * 3600.0
    return end - BEFORE_END


def _uptimes(evidence: Iterable[Evidence]) -> dict[str | None, float]:
    """The last time since boot that each node's kernel log tells."""
    read = [(found.node, frame(found.line).uptime) for found in evidence if found.source is Source.KERNEL_LOG]
    return {node: uptime for node, uptime in read if uptime is not None}


def _long_ago(evidence: Evidence, attempt: Attempt, uptimes: dict[str | None, float]) -> bool:
    """Whether the node's own kernel log went on for long after this line, so that it is of an earlier time."""
    if evidence.source is not Source.KERNEL_LOG or attempt.state in LONG_STATES or evidence.node not in uptimes:
        return False
    uptime = frame(evidence.line).uptime
    return uptime is not None and uptimes[evidence.node] - uptime > BEFORE_END


def doubtful(evidence: Sequence[Evidence]) -> frozenset[int]:
    """id() of the Xids without a date of a process that is none of the job's, on nodes whose pids are told.

    Such a line may be of another time, or of another job on the node. It is weaker, not void: in a container the
    job prints other numbers than the kernel.
    """
    undated = [
        (found, match[1])
        for found in evidence
        if found.source is Source.KERNEL_LOG and found.time is None and (match := _XID_PID.search(found.line))
    ]
    if not undated:
        return frozenset()
    ours = _pids(evidence)
    known = frozenset().union(*ours.values())
    return frozenset(id(found) for found, pid in undated if ours.get(_short(found.node)) and pid not in known)


def _pids(evidence: Iterable[Evidence]) -> dict[str, frozenset[str]]:
    """The pids that the job's log tells, by the host that it tells them of."""
    found: dict[str, set[str]] = {}
    for one in evidence:
        if one.source is Source.JOB_LOG:
            found.setdefault(_short(one.node or frame(one.line).node), set()).update(pids(one.line))
    return {host: frozenset(told) for host, told in found.items()}


def pids(line: str) -> tuple[str, ...]:
    """The process ids that a line of a job's log tells."""
    return tuple(next(filter(None, match)) for match in _PIDS.findall(line)[:MOST_PIDS])


def kernel_pid(line: str) -> str | None:
    """The process that a kernel's line is about."""
    match = _KERNEL_PID.search(line, 0, 600)
    return next(filter(None, match.groups())) if match else None


def _short(name: str | None) -> str:
    return (name or "").split(".")[0]
