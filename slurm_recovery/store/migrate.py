"""Brings a database to the schema of this release, and refuses one of a later release.

Owns the way to alembic, which is imported only where there is something to upgrade: it costs a quarter of a
second. Two processes may open an empty store at once: one upgrades, the other waits and finds it done.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from slurm_recovery.store.database import Database
from slurm_recovery.store.errors import StoreBusy, StoreCorrupt, StoreTooNew
from slurm_recovery.store.schema import HEAD

UPGRADE_TIME = 300.0  # seconds
VERSION_TABLE = "alembic_version"
MIGRATIONS = Path(__file__).parent / "migrations"


def bring_up_to_date(database: Database, patient: Callable[[], Database]) -> None:
    """Raises StoreTooNew where the database's revision is not known here.

    `patient` opens the same MariaDB so that a statement may take UPGRADE_TIME: one that makes an index takes long.
    """
    found = database.run(revision)
    if found == HEAD:
        return
    if found is not None and not found < HEAD:
        raise StoreTooNew(database.where, f"its schema is {found}, this release knows schemas up to {HEAD}")
    upgrading = database if database.is_sqlite else patient()
    try:
        upgrading.run(lambda connection: _upgrade_alone(upgrading, connection), write=True)
    finally:
        if upgrading is not database:
            upgrading.close()
    if database.run(revision) != HEAD:
        raise StoreCorrupt(database.where, f"the upgrade to schema {HEAD} left another one behind")


def revision(connection: Connection) -> str | None:
    """The schema's revision; None in an empty database."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return found


def _upgrade_alone(database: Database, connection: Connection) -> None:
    """SQLite's write lock keeps others out. MariaDB ends a transaction at each CREATE, so there a named lock does."""
    if database.is_sqlite:
        return upgrade(connection)
    lock = {"name": f"slurm_recovery.{connection.engine.url.database}"[:64], "seconds": int(database.timeout)}
    if connection.execute(text("SELECT GET_LOCK(:name, :seconds)"), lock).scalar() != 1:
        raise StoreBusy(database.where, "another process is upgrading the schema")
    try:
        upgrade(connection)
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), lock)


def upgrade(connection: Connection, target: str = "head") -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, target)
