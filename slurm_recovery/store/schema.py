"""The five tables, as they are now.

Owns names, types and indexes; `migrations/` says how a database gets there, and a test holds the two together.
`incident.record` is the whole record as JSON. Every other column of `incident` is there to be searched, cut to
its length. `step` is the audit: rows are added, never changed, and go only when their incident is purged.
`run` and `node_event` are the ledger of nodes. They name incidents by number only, and outlive them. `exposure` sums up
the attempts that did not fail, for nobody needs a row of each.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.mysql import LONGTEXT

# The last revision in migrations/versions. Revisions are four digits, and grow.
HEAD = "0003"

# In the identity, no start time is a value too: NULL is not equal to NULL, so a unique key would not bind.
NO_START = -1

LENGTHS = {
    "cluster": 64,
    "label": 64,
    "stage": 16,
    "user": 128,
    "partition": 255,
    "reason": 64,
    "verdict": 32,
    "node": 255,
    "action": 32,
    "result": 32,
    "boot_id": 64,
}

# utf8mb4_bin: upper and lower case differ in MariaDB, as they do in SQLite.
MARIADB: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

Key = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts only an INTEGER up by itself
Long = Text().with_variant(LONGTEXT(), "mysql", "mariadb")

metadata = MetaData()

incident = Table(
    "incident",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("cluster", String(LENGTHS["cluster"]), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("restart_count", Integer, nullable=False),
    Column("start_time", BigInteger, nullable=False),
    Column("label", String(LENGTHS["label"]), nullable=False),
    Column("stage", String(LENGTHS["stage"]), nullable=False),
    Column("user", String(LENGTHS["user"]), nullable=False),
    Column("partition", String(LENGTHS["partition"]), nullable=False),
    Column("reason", String(LENGTHS["reason"]), nullable=False),
    Column("verdict", String(LENGTHS["verdict"]), nullable=False),
    Column("created", Double, nullable=False),
    Column("updated", Double, nullable=False),
    Column("record", Long, nullable=False),
    UniqueConstraint("cluster", "job_id", "restart_count", "start_time", name="uq_incident_attempt"),
    Index("ix_incident_label", "cluster", "label"),
    Index("ix_incident_stage", "stage", "cluster"),
    Index("ix_incident_user", "user"),
    Index("ix_incident_partition", "partition"),
    Index("ix_incident_reason", "reason"),
    Index("ix_incident_verdict", "verdict"),
    Index("ix_incident_created", "created"),
    Index("ix_incident_updated", "updated"),
    sqlite_autoincrement=True,  # a purged incident's number is not given again: AdminComments cite it
    **MARIADB,
)

step = Table(
    "step",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("incident_id", Key, ForeignKey("incident.id", name="fk_step_incident"), nullable=False),
    Column("time", Double, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("action", String(64), nullable=False),
    Column("result", String(32), nullable=False),
    Column("detail", Long, nullable=False),
    Index("ix_step_incident", "incident_id"),
    Index("ix_step_action", "action", "time"),
    sqlite_autoincrement=True,
    **MARIADB,
)

run = Table(
    "run",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("cluster", String(LENGTHS["cluster"]), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("restart_count", Integer, nullable=False),
    Column("start_time", BigInteger, nullable=False),
    Column("end_time", Double, nullable=False),
    Column("label", String(LENGTHS["label"]), nullable=False),
    Column("user", String(LENGTHS["user"]), nullable=False),
    Column("partition", String(LENGTHS["partition"]), nullable=False),
    Column("good", Boolean, nullable=False),
    Column("reason", String(LENGTHS["reason"]), nullable=False),
    Column("nodes", Long, nullable=False),  # JSON, a list of names; so is `blamed`
    Column("blamed", Long, nullable=False),
    UniqueConstraint("cluster", "job_id", "restart_count", "start_time", name="uq_run_attempt"),
    Index("ix_run_end", "cluster", "end_time"),
    Index("ix_run_old", "end_time"),  # for purging, which asks for no cluster
    **MARIADB,
)

exposure = Table(
    "exposure",
    metadata,
    Column("cluster", String(LENGTHS["cluster"]), primary_key=True),
    Column("partition", String(LENGTHS["partition"]), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),  # of the attempts' ends, since 1970 (UTC)
    Column("runs", BigInteger, nullable=False),
    Column("node_seconds", Double, nullable=False),
    **MARIADB,
)

node_event = Table(
    "node_event",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("cluster", String(LENGTHS["cluster"]), nullable=False),
    Column("node", String(LENGTHS["node"]), nullable=False),
    Column("time", Double, nullable=False),
    Column("action", String(LENGTHS["action"]), nullable=False),
    Column("result", String(LENGTHS["result"]), nullable=False),
    Column("reason", String(LENGTHS["reason"]), nullable=False),
    Column("user", String(LENGTHS["user"]), nullable=False),
    Column("job", String(LENGTHS["label"]), nullable=False),
    Column("incident_id", BigInteger, nullable=False),
    Column("boot_id", String(LENGTHS["boot_id"]), nullable=False),
    Column("detail", Long, nullable=False),
    Index("ix_node_event_node", "cluster", "node", "time"),
    Index("ix_node_event_action", "cluster", "action", "time"),
    Index("ix_node_event_old", "time"),
    sqlite_autoincrement=True,
    **MARIADB,
)
