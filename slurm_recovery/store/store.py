"""The incident store: incidents, each with its whole record, and the audit of what was done about them.

Owns the questions asked of `incident` and `step`; those asked of nodes are `ledger.py`'s. A save is one transaction:
the record and its audit lines are both there or neither. Every call opens and ends its own transaction, so any number
of processes may use one store; keeping two of them off the same incident is the callers' (a lock per incident, see
recover.py). Every failure is an error of `errors.py`, within the timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import structlog
from sqlalchemy import Connection, Row, Select, and_, case, delete, exists, func, insert, select, update

from slurm_recovery.records import Attempt, Incident, Result, Stage, Verdict
from slurm_recovery.store import schema
from slurm_recovery.store.database import Database, connect
from slurm_recovery.store.errors import StoreConflict, StoreCorrupt
from slurm_recovery.store.ledger import Ledger
from slurm_recovery.store.migrate import UPGRADE_TIME, bring_up_to_date
from slurm_recovery.store.rows import column, identity, incident_of, incident_row, step_row
from slurm_recovery.store.schema import NO_START
from slurm_recovery.store.step import Step

log = structlog.get_logger(__name__)

Incidents: TypeAlias = list[Incident]  # inside the class, `list` is a method
Steps: TypeAlias = list[Step]
Keys: TypeAlias = Sequence[int]
Filter: TypeAlias = Any  # a condition of SQLAlchemy

PAGE = 50  # records in memory at once: each holds the end of a log

OPEN = tuple(stage.value for stage in Stage if stage.open)

INCIDENT = schema.incident.c
STEP = schema.step.c
RECORD: Select[Any] = select(INCIDENT.id, INCIDENT.record)


class Store:
    """Incidents in SQLite or MariaDB. `clock` (seconds since the epoch) dates the rows' creation and change."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    def open(cls, url: str, *, timeout: float = 5.0, clock: Callable[[], float] = time.time) -> Self:
        """A store by URL, its schema made or upgraded where needed. `timeout`: seconds for each call.

        Raises StoreTooNew where a later release wrote the schema, and any other StoreError.
        """
        database = connect(url, timeout)
        try:
            bring_up_to_date(database, lambda: connect(url, timeout, answer=UPGRADE_TIME))
        except BaseException:
            database.close()
            raise
        return cls(database, clock=clock)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ledger(self) -> Ledger:
        """The ledger of nodes in the same database."""
        return Ledger(self._database)

    def save(self, incident: Incident, *steps: Step) -> Incident:
        """Write the record and append this transition's audit lines, in one transaction.

        A record without an id is inserted, and returned with the one it was given. Raises StoreConflict where
        another incident has the same attempt (two workers began at once), or where the id is not there.
        """
        values = {**incident_row(incident), "updated": self._clock()}

        def write(connection: Connection) -> int:
            key = self._update(connection, incident.id, values) if incident.id else _insert(connection, values)
            if steps:
                connection.execute(insert(schema.step), [step_row(key, one) for one in steps])
            return key

        return incident.model_copy(update={"id": self._database.run(write, write=True)})

    def find(self, attempt: Attempt) -> Incident | None:
        """The attempt's incident. Start times are compared in whole seconds; None equals None only."""
        return self._one(and_(*_same(identity(attempt))))

    def get(self, incident_id: int) -> Incident | None:
        return self._one(INCIDENT.id == incident_id)

    def of_job(self, cluster: str, label: str) -> Incidents:
        """A job's incidents, newest first. `label` as Attempt.label has it: `123`, or `120_3`.

        The components of a het job share a label, and so does a later job that got the same id.
        """
        wanted = RECORD.where(INCIDENT.cluster == column("cluster", cluster), INCIDENT.label == column("label", label))
        return list(self._records(wanted.order_by(INCIDENT.created.desc(), INCIDENT.id.desc())))

    def open_incidents(self, cluster: str) -> Incidents:
        """What a sweep has to take up, oldest first. A record that cannot be read is logged and left out."""
        wanted = RECORD.where(INCIDENT.cluster == column("cluster", cluster), INCIDENT.stage.in_(OPEN))
        return list(self._records(wanted.order_by(INCIDENT.created, INCIDENT.id), skip=True))

    def history(self, attempt: Attempt) -> Incidents:
        """The incidents of the same job's earlier attempts, newest first.

        Slurm gives job ids again, and not every attempt leaves an incident, so this walks back in time over the
        incidents of this job id and stops where they can no longer be the same job's:
        - after as many as the attempt has restarts (a restart count of 0 has no earlier attempts);
        - before one with a greater restart count than its successor's, for counts never fall within a job. They
          may be equal: requeuing a running job raises the count before the epilog reports it;
        - before one of another user;
        - after one with restart count 0, which was a job's first attempt.
        An attempt without a start time is later than all others of its job: it is being judged now. An incident
        without one is as old as its row.
        """
        earlier = _earlier(attempt)
        rows = self._database.run(lambda connection: connection.execute(earlier).all())
        keys = [row.id for row in _same_job(attempt, rows)]
        found = {one.id: one for one in self._records(RECORD.where(INCIDENT.id.in_(keys)), skip=True)}
        return [found[key] for key in keys if key in found]

    def list(
        self,
        cluster: str | None = None,
        *,
        limit: int = 100,
        user: str | None = None,
        partition: str | None = None,
        since: float | None = None,
        stages: Collection[Stage] | None = None,
        reason: str | None = None,
        verdict: Verdict | None = None,
    ) -> Incidents:
        """Incidents for people, newest first; None does not restrict. `since`: recorded at that time or later.

        A record that cannot be read is logged and left out.
        """
        wanted = _chosen(since, cluster=cluster, user=user, partition=partition, reason=reason, verdict=verdict)
        if stages is not None:
            wanted = wanted.where(INCIDENT.stage.in_([stage.value for stage in stages]))
        newest = wanted.order_by(INCIDENT.created.desc(), INCIDENT.id.desc()).limit(limit)
        return list(self._records(newest, skip=True))

    def each(
        self,
        cluster: str | None = None,
        *,
        user: str | None = None,
        partition: str | None = None,
        since: float | None = None,
    ) -> Iterator[Incident]:
        """All incidents that `list` would find, oldest first, a few of them in memory at once."""
        chosen = _chosen(since, cluster=cluster, user=user, partition=partition)
        keys = self._keys(chosen.with_only_columns(INCIDENT.id).order_by(INCIDENT.id))
        for begin in range(0, len(keys), PAGE):
            page = RECORD.where(INCIDENT.id.in_(keys[begin : begin + PAGE])).order_by(INCIDENT.id)
            yield from self._records(page, skip=True)

    def without_step(self, cluster: str, stage: Stage, actions: Collection[str], since: float) -> Keys:
        """Numbers of the incidents at that stage whose audit has none of the actions, the oldest first.

        `since`: recorded at that time or later.
        """
        told = exists().where(STEP.incident_id == INCIDENT.id, STEP.action.in_(list(actions)))
        wanted = select(INCIDENT.id).where(
            INCIDENT.cluster == column("cluster", cluster),
            INCIDENT.stage == stage.value,
            INCIDENT.created >= since,
            ~told,
        )
        return self._keys(wanted.order_by(INCIDENT.id))

    def steps(self, incident_id: int) -> Steps:
        """An incident's audit, in the order in which it was written."""
        wanted = select(STEP.time, STEP.kind, STEP.action, STEP.detail, STEP.result)
        ordered = wanted.where(STEP.incident_id == incident_id).order_by(STEP.id)
        rows = self._database.run(lambda connection: connection.execute(ordered).mappings().all())
        return [Step.model_validate(dict(row)) for row in rows]

    def restarts_since(self, cluster: str, when: float, *, user: str | None = None) -> int:
        """How many jobs (of that user, or all) we let start again on the cluster at `when` or later, by the audit."""
        deeds = (
            select(func.count())
            .select_from(schema.step.join(schema.incident))
            .where(
                INCIDENT.cluster == column("cluster", cluster),
                STEP.kind == "outcome",
                STEP.action == "release",
                STEP.result == Result.DONE.value,
                STEP.time >= when,
            )
        )
        if user is not None:
            deeds = deeds.where(INCIDENT.user == column("user", user))
        return self._database.run(lambda connection: connection.execute(deeds).scalar_one())

    def purge(self, before: float) -> int:
        """Remove closed incidents last changed before that time, with their audit, and what the ledger has of before.

        Returns how many incidents.
        """
        old = and_(INCIDENT.stage.not_in(OPEN), INCIDENT.updated < before)

        def remove(connection: Connection) -> int:
            connection.execute(delete(schema.step).where(STEP.incident_id.in_(select(INCIDENT.id).where(old))))
            return connection.execute(delete(schema.incident).where(old)).rowcount

        count = self._database.run(remove, write=True)
        self.ledger.purge(before)
        return count

    def _update(self, connection: Connection, key: int, values: dict[str, Any]) -> int:
        changed = connection.execute(update(schema.incident).where(INCIDENT.id == key).values(values))
        if changed.rowcount == 0:
            raise StoreConflict(self._database.where, f"incident {key} is not there", "purged, or of another store?")
        return key

    def _keys(self, wanted: Select[Any]) -> Keys:
        return self._database.run(lambda connection: connection.execute(wanted).scalars().all())

    def _one(self, condition: Filter) -> Incident | None:
        return next(self._records(RECORD.where(condition)), None)

    def _records(self, wanted: Select[Any], *, skip: bool = False) -> Iterator[Incident]:
        for key, record in self._database.run(lambda connection: connection.execute(wanted).all()):
            try:
                yield incident_of(key, record)
            except ValueError as error:
                why = str(error).partition("\n")[0]
                unreadable = StoreCorrupt(self._database.where, f"the record of incident {key} cannot be read: {why}")
                if not skip:
                    raise unreadable from error
                log.error("incident left out", why=str(unreadable))


def _insert(connection: Connection, values: Mapping[str, Any]) -> int:
    done = connection.execute(insert(schema.incident).values({**values, "created": values["updated"]}))
    key: int = done.inserted_primary_key[0]  # type: ignore[index]  # one row was inserted
    return key


def _chosen(since: float | None, **equal: str | None) -> Select[Any]:
    """The records of which each column named has that value; None does not restrict."""
    wanted = RECORD.where(*_same({name: column(name, text) for name, text in equal.items() if text is not None}))
    return wanted if since is None else wanted.where(INCIDENT.created >= since)


def _same(values: Mapping[str, Any]) -> Iterator[Filter]:
    return (INCIDENT[name] == value for name, value in values.items())


def _earlier(attempt: Attempt) -> Select[Any]:
    """Rows of the attempt's job id that began before it, newest first."""
    own = identity(attempt)
    began = case((INCIDENT.start_time == NO_START, INCIDENT.created), else_=INCIDENT.start_time)
    wanted = select(INCIDENT.id, INCIDENT.restart_count, INCIDENT.user).where(
        INCIDENT.cluster == own["cluster"],
        INCIDENT.job_id == own["job_id"],
        began < own["start_time"] if attempt.start_time is not None else ~and_(*_same(own)),
    )
    return wanted.order_by(began.desc(), INCIDENT.restart_count.desc(), INCIDENT.id.desc())


def _same_job(attempt: Attempt, rows: Iterable[Row[Any]]) -> Iterator[Row[Any]]:
    """The walk of Store.history."""
    restarts, user = attempt.restart_count, column("user", attempt.user)
    for row, _ in zip(rows, range(attempt.restart_count), strict=False):
        if row.restart_count > restarts or (user and row.user and row.user != user):
            return
        yield row
        if row.restart_count == 0:
            return
        restarts, user = row.restart_count, user or row.user
