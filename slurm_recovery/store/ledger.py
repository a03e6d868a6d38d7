"""The ledger of nodes: where attempts ran and how they ended, and each node's history.

Owns the questions asked of the tables `run`, `exposure` and `node_event`; what follows from the answers is
attribute/suspicion.py's and decide/isolation.py's. Errors, transactions and time limits are as in `store.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate, takewhile
from typing import Any, NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection, Insert, Select, and_, delete, exists, func, insert, or_, select, union
from sqlalchemy.dialects import mysql, sqlite

from slurm_recovery.records import NodeAction, NodeEvent, Run
from slurm_recovery.store import schema
from slurm_recovery.store.database import Database
from slurm_recovery.store.errors import StoreCorrupt
from slurm_recovery.store.rows import column, event_row, run_of, run_row

log = structlog.get_logger(__name__)

T = TypeVar("T", Run, NodeEvent)

RUN = schema.run.c
EVENT = schema.node_event.c
EXPOSURE = schema.exposure.c
RUNS: Select[Any] = select(*(one for one in RUN if one.name != "id"))
EVENTS: Select[Any] = select(schema.node_event)

ATTEMPT = (RUN.cluster, RUN.job_id, RUN.restart_count, RUN.start_time)

MOST_BYTES = 64 << 20  # of lists of nodes read at once: some 5 million names
DAY = 86400.0
AT_ONCE = 900  # keys in one DELETE: SQLite takes 999 parameters before its release 3.32


class Exposure(NamedTuple):
    """What a partition's nodes served without a failure: how many attempts, how many seconds of nodes, since when."""

    runs: int
    node_seconds: float
    since: float


class Ledger:
    """Runs and node events in a Store's database. `Store.ledger` gives it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save_run(self, run: Run) -> None:
        """Insert the run, or replace the one of the same attempt: its nodes' evidence may come in later.

        Start times are kept in whole seconds, as Slurm counts them.
        """
        upsert = _upsert(run_row(run), in_sqlite=self._database.is_sqlite)
        self._database.run(lambda connection: connection.execute(upsert), write=True)

    def runs(self, cluster: str, since: float, limit: int = 5000) -> list[Run]:
        """Runs that ended at `since` or later: the newest `limit`, oldest first.

        Fewer, where their lists of nodes would together take more than MOST_BYTES; the newest one always.
        """
        wanted = (RUN.cluster == column("cluster", cluster), RUN.end_time >= since)
        newest = (RUN.end_time.desc(), RUN.id.desc())
        sizes = select(func.length(RUN.nodes)).where(*wanted).order_by(*newest).limit(limit)

        def read(connection: Connection) -> list[Mapping[str, Any]]:
            count = _fitting(connection.execute(sizes).scalars())
            found = connection.execute(RUNS.where(*wanted).order_by(*newest).limit(count))
            return [dict(row) for row in found.mappings()]

        return list(self._readable(reversed(self._database.run(read)), run_of))

    def runs_of_job(self, cluster: str, job_id: int, since: float, limit: int = 100) -> list[Run]:
        """The job's runs that ended at `since` or later, oldest first."""
        wanted = (RUN.cluster == column("cluster", cluster), RUN.job_id == job_id, RUN.end_time >= since)
        found = RUNS.where(*wanted).order_by(RUN.end_time, RUN.id).limit(limit)
        rows = self._database.run(lambda connection: connection.execute(found).mappings().all())
        return list(self._readable((dict(row) for row in rows), run_of))

    def expose(self, cluster: str, partition: str, when: float, node_seconds: float) -> None:
        """Count one more attempt that ended at `when` without a failure."""
        keys = {"cluster": column("cluster", cluster), "partition": column("partition", partition)}
        values = {**keys, "day": int(when // DAY), "runs": 1, "node_seconds": node_seconds}
        more = {"runs": EXPOSURE.runs + 1, "node_seconds": EXPOSURE.node_seconds + node_seconds}
        if self._database.is_sqlite:
            fresh = sqlite.insert(schema.exposure).values(values)
            add: Insert = fresh.on_conflict_do_update(index_elements=["cluster", "partition", "day"], set_=more)
        else:
            add = mysql.insert(schema.exposure).values(values).on_duplicate_key_update(more)
        self._database.run(lambda connection: connection.execute(add), write=True)

    def exposures(self, since: float, cluster: str | None = None) -> dict[tuple[str, str], Exposure]:
        """{(cluster, partition): what was served since, in whole days}; nothing is known of earlier than that."""
        sums = (func.sum(EXPOSURE.runs), func.sum(EXPOSURE.node_seconds), func.min(EXPOSURE.day))
        wanted = select(EXPOSURE.cluster, EXPOSURE.partition, *sums).where(EXPOSURE.day >= int(since // DAY))
        if cluster is not None:
            wanted = wanted.where(EXPOSURE.cluster == column("cluster", cluster))
        grouped = wanted.group_by(EXPOSURE.cluster, EXPOSURE.partition)
        rows = self._database.run(lambda connection: connection.execute(grouped).all())
        return {(row[0], row[1]): Exposure(int(row[2]), float(row[3]), row[4] * DAY) for row in rows}

    def add(self, event: NodeEvent) -> NodeEvent:
        """Write one line of a node's history. Returns it with its number."""
        return self.add_all([event])[0]

    def add_all(self, events: Iterable[NodeEvent]) -> list[NodeEvent]:
        """Several, all or none."""
        given = list(events)

        def write(connection: Connection) -> list[int]:
            return [_insert(connection, event) for event in given]

        keys = self._database.run(write, write=True) if given else []
        return [event.model_copy(update={"id": key}) for event, key in zip(given, keys, strict=True)]

    def events(
        self,
        cluster: str,
        *,
        node: str | None = None,
        actions: Collection[NodeAction] | None = None,
        since: float | None = None,
        limit: int = 1000,
    ) -> list[NodeEvent]:
        """Lines of nodes' histories, newest first; None does not restrict. `since`: of that time or later."""
        wanted = EVENTS.where(*_of(cluster, actions))
        if node is not None:
            wanted = wanted.where(EVENT.node == column("node", node))
        if since is not None:
            wanted = wanted.where(EVENT.time >= since)
        return self._events(wanted.order_by(EVENT.time.desc(), EVENT.id.desc()).limit(limit))

    def latest(self, cluster: str, actions: Collection[NodeAction]) -> dict[str, NodeEvent]:
        """{node: its newest event among these actions}. An event about several nodes has the node ""."""
        place = func.row_number().over(partition_by=EVENT.node, order_by=(EVENT.time.desc(), EVENT.id.desc()))
        placed = select(schema.node_event, place.label("place")).where(*_of(cluster, actions)).subquery()
        newest = select(*(placed.c[one.name] for one in EVENT)).where(placed.c.place == 1).order_by(placed.c.node)
        return {event.node: event for event in self._events(newest)}

    def clusters(self) -> list[str]:
        """The clusters of which anything is on record, by name."""
        wanted = union(select(RUN.cluster), select(EVENT.cluster)).order_by("cluster")
        return list(self._database.run(lambda connection: connection.execute(wanted).scalars().all()))

    def purge(self, before: float) -> int:
        """Remove runs that ended before that time, and older events. Returns how many.

        The newest event of each action stays with its node: that we have drained it, or its boot_id, counts for as
        long as it is so.
        """
        later = schema.node_event.alias("later")
        same = and_(*(later.c[name] == EVENT[name] for name in ("cluster", "node", "action")))
        newer = or_(later.c.time > EVENT.time, and_(later.c.time == EVENT.time, later.c.id > EVENT.id))
        # MariaDB before 10.3 cannot delete from a table that the condition reads, so the keys are read first.
        outlived = select(EVENT.id).where(EVENT.time < before, exists().where(same, newer))

        def remove(connection: Connection) -> int:
            count = connection.execute(delete(schema.run).where(RUN.end_time < before)).rowcount
            connection.execute(delete(schema.exposure).where(EXPOSURE.day < int(before // DAY)))
            keys = connection.execute(outlived).scalars().all()
            for begin in range(0, len(keys), AT_ONCE):
                connection.execute(delete(schema.node_event).where(EVENT.id.in_(keys[begin : begin + AT_ONCE])))
            return count + len(keys)

        return self._database.run(remove, write=True)

    def _events(self, wanted: Select[Any]) -> list[NodeEvent]:
        rows = self._database.run(lambda connection: connection.execute(wanted).mappings().all())
        return list(self._readable((dict(row) for row in rows), NodeEvent.model_validate))

    def _readable(self, rows: Iterable[Mapping[str, Any]], record: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
        """The rows as records. One that cannot be read is logged and left out."""
        for row in rows:
            try:
                yield record(row)
            except ValueError as error:
                what = f"node event {row['id']}" if "id" in row else f"the run of job {row['job_id']}"
                why = str(error).partition("\n")[0]
                unreadable = StoreCorrupt(self._database.where, f"{what} cannot be read: {why}")
                log.error("left out of the ledger", why=str(unreadable))


def _of(cluster: str, actions: Collection[NodeAction] | None) -> Iterator[Any]:
    yield EVENT.cluster == column("cluster", cluster)
    if actions is not None:
        yield EVENT.action.in_([action.value for action in actions])


def _fitting(sizes: Iterable[int]) -> int:
    """How many of the first texts of these sizes fit into MOST_BYTES; one does in any case."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= MOST_BYTES, accumulate(sizes))))


def _upsert(values: dict[str, Any], *, in_sqlite: bool) -> Insert:
    """One statement, so that two workers that save the same attempt at once do not meet in between."""
    if in_sqlite:
        return sqlite.insert(schema.run).values(values).on_conflict_do_update(index_elements=ATTEMPT, set_=values)
    return mysql.insert(schema.run).values(values).on_duplicate_key_update(values)


def _insert(connection: Connection, event: NodeEvent) -> int:
    done = connection.execute(insert(schema.node_event).values(event_row(event)))
    key: int = done.inserted_primary_key[0]  # type: ignore[index]  # one row was inserted
    return key
