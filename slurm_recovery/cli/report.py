"""`srecover report`: what came of recovery over a time, by reason; and how often jobs should save.

Reads the store and asks nobody. Owns the counting of incidents and the tables; the formulas are
decide/checkpoint_interval.py's. Incidents are read one after the other, and only numbers of each are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import Cluster, Json, NoHeader, Partition, User, common_of
from slurm_recovery.cli.tables import Column
from slurm_recovery.cli.times import FORMS, duration, moment

if TYPE_CHECKING:
    from slurm_recovery.decide.checkpoint_interval import Advice, Rate, Saves
    from slurm_recovery.records import Incident, Run
    from slurm_recovery.store.store import Store

STEPS = ("decided", "running", "productive")
SHARES = (0.5, 0.9, 1.0)
ALL = "all"
MOST_RUNS = 200_000

REASONS = (
    Column("REASON", 0),
    Column("INCIDENTS", 0, right=True),
    Column("RESTARTED", 0, right=True),
    Column("STOPPED", 0, right=True),
    Column("PRODUCTIVE", 0, right=True),
    Column("TO_DECIDED", 0, right=True),
    Column("TO_RUNNING", 0, right=True),
    Column("TO_PRODUCTIVE", 0, right=True),
)
CHECKPOINTS = (
    Column("JOBID", 0, right=True),
    Column("PARTITION", 0),
    Column("USER", 0),
    Column("NODES", 0, right=True),
    Column("SEEN", 0, right=True),
    Column("INTERVAL", 0, right=True),
    Column("WRITE", 0, right=True),
    Column("MTBF", 0, right=True),
    Column("YOUNG", 0, right=True),
    Column("DALY", 0, right=True),
    Column("LOST", 0, right=True),
    Column("COULD", 0, right=True),
    Column("NOTE", 0),
)


def report(
    ctx: typer.Context,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Print how often jobs save instead, and how often they should.")
    ] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", help=f"Only what was recorded since then; {FORMS}.")
    ] = "now-30days",
    user: User = None,
    partition: Partition = None,
    cluster: Cluster = None,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """Sum up what came of failed jobs, by reason; or how often jobs save, and should. Drills do not count.

    One line a reason, the commonest first, and one for all. RESTARTED: we let the job start again, and it did. STOPPED:
    another try was useless. PRODUCTIVE: restarted, and since then the job wrote a new checkpoint, or a line of its log
    with a later step than it had begun from, or ended well; sweep looks for that. The last three columns are times from
    the end of the attempt: the median, what nine of ten did not exceed, and the longest.

    With --checkpoints one line a job of which at least two checkpoints of one attempt were seen. INTERVAL is the median
    time from one to the next, WRITE the median time that writing one took, MTBF the mean time between failures of the
    job: hours of nodes for each failure in its partition, by our records, divided by its NODES. Counted are failures
    for which the job itself, its user, the scheduler or its software environment is not to blame; unknown ones are.
    YOUNG and DALY are the intervals by the formulas of J. W. Young (1974) and J. T. Daly (2006), WRITE included.
    LOST are the hours of a day in which the job does not get on, because it writes, restarts or computes again, with
    the INTERVAL that it has; COULD the same with DALY's. A job that computes on while it writes loses less. With fewer
    than ten such failures in the partition nobody knows, and NOTE says so.
    """
    import time

    from slurm_recovery.drill.mark import is_drill

    try:
        begin = moment(since, time.time())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    with common_of(ctx).store() as store:
        found = store.each(cluster, user=user, partition=partition, since=begin)
        incidents = (one for one in found if not is_drill(one.attempt))
        if checkpoints:
            rows = _advised(store, incidents, begin, cluster)
        else:
            sums = _summed(incidents)
    if checkpoints:
        _say(CHECKPOINTS, [row.data() for row in rows], [row.cells() for row in rows], noheader, as_json)
    else:
        _say(REASONS, [one.data() for one in sums], [one.cells() for one in sums], noheader, as_json)


def _say(
    columns: Sequence[Column], data: list[dict[str, Any]], rows: list[tuple[object, ...]], noheader: bool, as_json: bool
) -> None:
    if as_json:
        tables.say_json(data)
    else:
        tables.say_table(tables.fitted(columns, rows), rows, header=not noheader)


# -- by reason -----------------------------------------------------------------------------------


@dataclass
class Sum:
    """What came of the incidents of one reason. `times`: seconds from the end of the attempt to each of STEPS."""

    reason: str
    incidents: int = 0
    restarted: int = 0
    stopped: int = 0
    productive: int = 0
    times: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})

    def add(self, incident: Incident) -> None:
        from slurm_recovery.records import Stage

        self.incidents += 1
        self.restarted += incident.stage is Stage.RUNNING
        self.stopped += incident.stage is Stage.STOPPED
        self.productive += "productive" in incident.times
        ended = incident.times.get("ended")
        for step in STEPS:
            if ended is not None and step in incident.times:
                self.times[step].append(max(0.0, incident.times[step] - ended))

    def data(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("incidents", "restarted", "stopped", "productive")}
        return {"reason": self.reason, **counts, "seconds": {step: _spread(self.times[step]) for step in STEPS}}

    def cells(self) -> tuple[object, ...]:
        counts = (self.incidents, self.restarted, self.stopped, self.productive)
        return self.reason, *counts, *(_shown(_spread(self.times[step])) for step in STEPS)


def _summed(incidents: Iterable[Incident]) -> list[Sum]:
    """The commonest reason first, the sum of all at the end."""
    every, by_reason = Sum(ALL), dict[str, Sum]()
    for incident in incidents:
        reason = incident.attribution.reason if incident.attribution else "not judged"
        by_reason.setdefault(reason, Sum(reason)).add(incident)
        every.add(incident)
    return [*sorted(by_reason.values(), key=lambda one: (-one.incidents, one.reason)), every]


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    from slurm_recovery.decide.checkpoint_interval import quantile

    if not values:
        return None
    return dict(zip(("median", "p90", "max"), (round(quantile(values, share), 2) for share in SHARES), strict=True))


def _shown(spread: Mapping[str, float] | None) -> str:
    return "/".join(_short(seconds) for seconds in spread.values()) if spread else ""


def _short(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)


# -- how often to save ---------------------------------------------------------------------------


class Job(NamedTuple):
    """A job of the table."""

    cluster: str
    label: str
    user: str
    partition: str


class Row(NamedTuple):
    """A job, what was seen of it, and what follows."""

    job: Job
    nodes: int
    seen: Saves
    rate: Rate
    advice: Advice | None

    def note(self) -> str:
        from slurm_recovery.decide.checkpoint_interval import LEAST_FAILURES

        if self.rate.mtbf(self.nodes) is None:
            return f"{self.rate.failures} of {LEAST_FAILURES} failures that are needed are on record"
        return "" if self.seen.write else "when its checkpoints are begun is not known"

    def data(self) -> dict[str, Any]:
        mtbf, advice = self.rate.mtbf(self.nodes), self.advice
        return {
            **dict(zip(("cluster", "job", "user", "partition"), self.job, strict=True)),
            "nodes": self.nodes,
            "checkpoints": self.seen.checkpoints,
            "interval": round(self.seen.interval, 2),
            "write": None if self.seen.write is None else round(self.seen.write, 2),
            "failures": self.rate.failures,
            "node_hours": round(self.rate.node_hours, 2),
            "mtbf": None if mtbf is None else round(mtbf, 1),
            "young": round(advice.young, 1) if advice else None,
            "daly": round(advice.daly, 1) if advice else None,
            "lost_hours_per_day": round(24 * advice.lost, 3) if advice else None,
            "lost_hours_per_day_with_daly": round(24 * advice.could, 3) if advice else None,
            "note": self.note(),
        }

    def cells(self) -> tuple[object, ...]:
        mtbf, advice = self.rate.mtbf(self.nodes), self.advice
        job = (self.job.label, self.job.partition, self.job.user, self.nodes, self.seen.checkpoints)
        write = "" if self.seen.write is None else _short(self.seen.write)
        formulas = (_short(advice.young), _short(advice.daly)) if advice else ("", "")
        hours = (f"{24 * advice.lost:.1f}h", f"{24 * advice.could:.1f}h") if advice else ("", "")
        known = "" if mtbf is None else duration(mtbf)
        return (*job, _short(self.seen.interval), write, known, *formulas, *hours, self.note())


def _advised(store: Store, incidents: Iterable[Incident], since: float, cluster: str | None) -> list[Row]:
    from slurm_recovery.decide.checkpoint_interval import Rate, advise, quantile, saves

    times: dict[Job, list[list[tuple[float, float | None]]]] = defaultdict(list)
    nodes: dict[Job, int] = {}
    restarts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for incident in incidents:
        attempt = incident.attempt
        job = Job(attempt.cluster, attempt.label, attempt.user, attempt.partition)
        nodes[job] = len(attempt.nodes)
        times[job].append(_written(incident))
        if "running" in incident.times and "ended" in incident.times:
            restarts[job.cluster, job.partition].append(incident.times["running"] - incident.times["ended"])
    rates = _rates(store, since, cluster)
    rows = []
    for job, attempts in times.items():
        if (seen := saves(attempts)) is None:
            continue
        where = (job.cluster, job.partition)
        rate, waited = rates.get(where, Rate()), restarts[where]
        mtbf = rate.mtbf(nodes[job])
        restart = max(0.0, quantile(waited, 0.5)) if waited else 0.0
        rows.append(Row(job, nodes[job], seen, rate, advise(seen, mtbf, restart) if mtbf else None))
    return sorted(rows, key=lambda row: (row.advice is None, row.advice.could - row.advice.lost if row.advice else 0))


def _written(incident: Incident) -> list[tuple[float, float | None]]:
    """The checkpoints that this attempt wrote."""
    progress = incident.observation.progress if incident.observation else None
    if progress is None or progress.newest is None:
        return []
    start = incident.attempt.start_time or 0.0
    return [(one.time, one.began) for one in (progress.newest, *progress.earlier) if one.time >= start]


def _rates(store: Store, since: float, cluster: str | None) -> dict[tuple[str, str], Rate]:
    """Each partition's failures, over the hours of its nodes in attempts that failed and in those that did not.

    Both begin where the latter do: an older release counted failures only.
    """
    from slurm_recovery.decide.checkpoint_interval import Rate

    failures: dict[tuple[str, str], int] = defaultdict(int)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    begins: dict[str, float] = {}
    for where, served in store.ledger.exposures(since, cluster).items():
        seconds[where] += served.node_seconds
        begins[where[0]] = max(since, min(served.since, begins.get(where[0], served.since)))
    for run in _failed(store, begins):
        where = (run.cluster, run.partition)
        failures[where] += _strikes(run)
        if run.start_time is not None:
            seconds[where] += max(0.0, run.end_time - run.start_time) * len(run.nodes)
    return {where: Rate(failures[where], seconds[where] / 3600) for where in seconds}


def _failed(store: Store, begins: Mapping[str, float]) -> Iterator[Run]:
    for cluster, since in begins.items():
        yield from (run for run in store.ledger.runs(cluster, since, MOST_RUNS) if not run.good)


def _strikes(run: Run) -> bool:
    """Whether the failure would have struck any job there, and so goes into the rate."""
    from slurm_recovery.attribute.reasons import REASONS
    from slurm_recovery.records import Category

    own = (Category.APPLICATION, Category.USER_OR_SCHEDULER, Category.SOFTWARE_ENV)
    known = REASONS.get(run.reason)
    return known is not None and known.category not in own
