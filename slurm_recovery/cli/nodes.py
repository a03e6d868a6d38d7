"""`srecover nodes`: nodes that have anything to say, how far each is suspected, and their histories.

Reads the ledger and asks nobody, so that it works while slurmctld is away. How a node stands is node_standing.py's.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import CommandError, Json, NoHeader, common_of
from slurm_recovery.cli.list_ import folded
from slurm_recovery.cli.tables import Column
from slurm_recovery.cli.times import short, shown

if TYPE_CHECKING:
    from slurm_recovery.attribute.suspicion import Suspicion
    from slurm_recovery.cli.node_standing import Standing
    from slurm_recovery.config.settings import Settings
    from slurm_recovery.records import NodeAction, NodeEvent
    from slurm_recovery.store.ledger import Ledger
    from slurm_recovery.store.store import Store

LEAST = 0.1  # suspicion from which on a node without any event is listed
ALERT_AGE = 86400.0

COLUMNS = (
    Column("NODE", 0),
    Column("STATE", 0),
    Column("SUSPICION", 0, right=True),
    Column("FAILED", 0, right=True),
    Column("GOOD", 0, right=True),
    Column("USERS", 0, right=True),
    Column("LAST_FAULT", 0),
    Column("SINCE", 0),
    Column("WAITS_FOR", 0),
)
LONG_COLUMNS = (
    Column("CLUSTER", 0),
    *COLUMNS[:5],
    Column("BLAMED", 0, right=True),
    Column("JOBS", 0, right=True),
    *COLUMNS[5:],
    Column("INCIDENT", 0, right=True),
    Column("DETAIL", 0),
)
HISTORY = (
    Column("TIME", 0),
    Column("NODE", 0),
    Column("ACTION", 0),
    Column("RESULT", 0),
    Column("REASON", 0),
    Column("USER", 0),
    Column("JOB", 0),
    Column("INCIDENT", 0, right=True),
    Column("DETAIL", 0),
)


class Row(NamedTuple):
    """A node of the table. `suspicion` is None where no failed attempt counts against it."""

    cluster: str
    node: str
    standing: Standing
    suspicion: Suspicion | None
    good: int
    since: float | None

    @property
    def posterior(self) -> float:
        return self.suspicion.posterior if self.suspicion else 0.0


def nodes(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NODE", help="Only these nodes; host lists such as n[1-4] will do.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Print what is on record of the nodes instead, oldest first.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="All nodes on record, also those with nothing to say.")] = (
        False
    ),
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-M", metavar="NAME", help="Only nodes of this cluster.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="NUMBER", help="With --history: at most so many lines, the newest.")
    ] = 1000,
    long: Annotated[bool, typer.Option("--long", "-l", help="All columns, and all of each.")] = False,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """List nodes that are drained, watched or suspected, and the numbers behind.

    STATE is what we did last: drained, drain begun (nothing says how it ended), resumed, overruled (an administrator
    resumed the node, or gave it a reason of his own), released (by srecover release) or watched (it told of a fault
    it is not drained for, or restarts avoid it because its SUSPICION has reached SuspicionExclude). SUSPICION is the
    probability that the node spoils the attempts that it serves, by the FAILED and GOOD attempts that count, and by how
    many USERS had failed ones; see SuspicionHalfLife. LAST_FAULT is a reason; SINCE says when STATE began, or when the
    last such attempt failed. WAITS_FOR is what must be seen before a drained node is resumed by us. Slurm is not asked:
    sinfo -R shows what it says now.

    Below the table stand the alerts of the last day: several nodes, or several jobs, with one cause.
    """
    if history and every:
        raise typer.BadParameter("it lists what is on record of all nodes anyway", param_hint="--all")
    if limit < 1:
        raise typer.BadParameter(f"{limit} lines cannot be listed; give 1 or more", param_hint="--limit")
    wanted = named(names or ())
    common = common_of(ctx)
    now = time.time()
    with common.store() as store:
        ledger = store.ledger
        clusters = [cluster] if cluster is not None else ledger.clusters()
        if history:
            events = _history(ledger, clusters, wanted, limit)
            _say_history(events, long=long, header=not noheader, as_json=as_json)
            return
        settings = common.config().settings
        rows = [row for one in clusters for row in _rows(store, one, settings, now)]
        alerts = [] if wanted else _alerts(ledger, clusters, now)
    rows = _chosen(rows, wanted) if wanted else [row for row in rows if every or _speaks(row, settings, now)]
    if as_json:
        tables.say_json({"nodes": [summary(row) for row in rows], "alerts": [_alert(one) for one in alerts]})
        return
    cells = [_long_cells(row) if long else _cells(row) for row in rows]
    tables.say_table(tables.fitted(LONG_COLUMNS if long else COLUMNS, cells), cells, header=not noheader)
    for event in alerts:
        tables.say(_alert_line(event))


def named(names: Sequence[str]) -> tuple[str, ...]:
    """The nodes of these host lists, in their order."""
    from slurm_recovery.hostlist import HostlistError, expand

    try:
        return expand(",".join(names))
    except HostlistError as error:
        raise typer.BadParameter(f"{tables.harmless(str(error))}; write n1,n2 or n[1-4]", param_hint="NODE") from None


def on_record(ledger: Ledger, cluster: str, settings: Settings, now: float) -> set[str]:
    """The nodes of which the ledger knows an attempt that still counts, or any event."""
    from slurm_recovery.records import NodeAction

    runs = ledger.runs(cluster, _oldest(settings, now))
    return {node for run in runs for node in run.nodes} | ledger.latest(cluster, list(NodeAction)).keys() - {""}


def _oldest(settings: Settings, now: float) -> float:
    """What ended before that counts no longer."""
    from slurm_recovery.attribute.suspicion import HALF_LIVES

    return now - HALF_LIVES * settings.suspicion_half_life


# -- the table -----------------------------------------------------------------------------------


def _rows(store: Store, cluster: str, settings: Settings, now: float) -> Iterator[Row]:
    """Every node on record, the most suspected first."""
    from slurm_recovery.cli.node_standing import standing
    from slurm_recovery.suspects import suspected

    runs = store.ledger.runs(cluster, _oldest(settings, now))
    events = latest_of(store.ledger, cluster)
    found = {one.node: one for one in suspected(store, cluster, runs, now, settings.suspicion_half_life)}
    good = Counter(node for run in runs if run.good for node in run.nodes)
    ran = {node for run in runs for node in run.nodes}
    rows = []
    for node in ran | events.keys() | found.keys():
        suspicion = found.get(node)
        stands = _watched(standing(events.get(node, {})), suspicion, settings)
        since = stands.event.time if stands.event else suspicion.last if suspicion else None
        rows.append(Row(cluster, node, stands, suspicion, suspicion.good if suspicion else good[node], since))
    yield from sorted(rows, key=lambda row: (-row.posterior, row.node))


def latest_of(ledger: Ledger, cluster: str) -> dict[str, dict[NodeAction, NodeEvent]]:
    """{node: its newest event of each action}."""
    from slurm_recovery.cli.node_standing import TELLING

    found: dict[str, dict[NodeAction, NodeEvent]] = defaultdict(dict)
    for action in TELLING:
        for node, event in ledger.latest(cluster, [action]).items():
            if node:
                found[node][action] = event
    return dict(found)


def _watched(stands: Standing, suspicion: Suspicion | None, settings: Settings) -> Standing:
    """A node that restarts avoid for its suspicion alone is watched, unless it is drained."""
    from slurm_recovery.cli.node_standing import State

    if suspicion is None or suspicion.posterior < settings.suspicion_exclude:
        return stands
    if stands.state in (State.DRAINED, State.BEGUN, State.WATCHED):
        return stands
    return stands._replace(state=State.WATCHED, event=None)


def _speaks(row: Row, settings: Settings, now: float) -> bool:
    """Whether a node has anything to say: it is drained, is suspected, or something was done to it of late."""
    from slurm_recovery.cli.node_standing import State

    if row.suspicion and row.posterior >= min(LEAST, settings.suspicion_exclude):
        return True
    if row.standing.state in (State.DRAINED, State.BEGUN):
        return True
    return row.standing.state is not State.NONE and (row.since or 0.0) >= _oldest(settings, now)


def _chosen(rows: Sequence[Row], wanted: Collection[str]) -> list[Row]:
    _all_known(wanted, {row.node for row in rows})
    return [row for row in rows if row.node in set(wanted)]


def _all_known(wanted: Collection[str], known: Collection[str]) -> None:
    if unknown := [node for node in wanted if node not in known]:
        raise CommandError(f"nothing is on record of {folded(unknown)}; hint: srecover nodes --all lists all")


def _cells(row: Row) -> tuple[object, ...]:
    stands, suspicion = row.standing, row.suspicion
    return (
        row.node,
        stands.state.value,
        f"{row.posterior:.0%}",
        suspicion.failed if suspicion else 0,
        row.good,
        suspicion.users if suspicion else 0,
        stands.fault,
        short(row.since) if row.since is not None else "",
        stands.waits_for,
    )


def _long_cells(row: Row) -> tuple[object, ...]:
    *head, users, fault, _, waits_for = _cells(row)
    event, suspicion = row.standing.event, row.suspicion
    return (
        row.cluster,
        *head,
        suspicion.blamed if suspicion else 0,
        suspicion.jobs if suspicion else 0,
        users,
        fault,
        shown(row.since) if row.since is not None else "",
        waits_for,
        event.incident_id or "" if event else "",
        event.detail if event else "",
    )


def summary(row: Row) -> dict[str, Any]:
    """A node as data."""
    from slurm_recovery.cli.node_standing import State

    stands, suspicion = row.standing, row.suspicion
    return {
        "cluster": row.cluster,
        "node": row.node,
        "state": stands.state.value if stands.state is not State.NONE else None,
        "suspicion": row.posterior,
        "failed": suspicion.failed if suspicion else 0,
        "good": row.good,
        "blamed": suspicion.blamed if suspicion else 0,
        "jobs": suspicion.jobs if suspicion else 0,
        "users": suspicion.users if suspicion else 0,
        "last_fault": stands.fault or None,
        "since": row.since,
        "waits_for": stands.waits_for or None,
        "event": stands.event.model_dump(mode="json") if stands.event else None,
    }


# -- alerts --------------------------------------------------------------------------------------


def _alerts(ledger: Ledger, clusters: Sequence[str], now: float) -> list[NodeEvent]:
    """Those of the last day, oldest first."""
    from slurm_recovery.records import NodeAction

    found = [e for one in clusters for e in ledger.events(one, actions=[NodeAction.ALERT], since=now - ALERT_AGE)]
    return sorted(found, key=lambda event: (event.time, event.id))


def _alert(event: NodeEvent) -> dict[str, Any]:
    return event.model_dump(mode="json")


def _alert_line(event: NodeEvent) -> str:
    reason = ", ".join(part for part in (event.reason, event.node) if part)
    return f"Alert {short(event.time)}: " + ": ".join(part for part in (reason, event.detail) if part)


# -- histories -----------------------------------------------------------------------------------


def _history(ledger: Ledger, clusters: Sequence[str], wanted: Sequence[str], limit: int) -> list[NodeEvent]:
    """The newest lines, oldest first."""
    found = []
    for one in clusters:
        for node in wanted or (None,):
            found += ledger.events(one, node=node, limit=limit)
    _all_known(wanted, {event.node for event in found})
    return sorted(found, key=lambda event: (event.time, event.id))[-limit:]


def _say_history(events: Sequence[NodeEvent], *, long: bool, header: bool, as_json: bool) -> None:
    if as_json:
        tables.say_json([event.model_dump(mode="json") for event in events])
        return
    rows = [_line(event, long=long) for event in events]
    columns = (Column("CLUSTER", 0), Column("BOOT_ID", 0), *HISTORY) if long else HISTORY
    tables.say_table(tables.fitted(columns, rows), rows, header=header)


def _line(event: NodeEvent, *, long: bool) -> tuple[object, ...]:
    return (
        *((event.cluster, event.boot_id) if long else ()),
        shown(event.time),
        event.node or "-",
        event.action.value,
        event.result,
        event.reason,
        event.user,
        event.job,
        event.incident_id or "",
        event.detail,
    )
