"""Connections: how SQLite and MariaDB are opened, locked, timed out and tried again.

Owns everything in which the two differ. Knows no table.

A call ends within its timeout, in seconds. Waiting for a lock is cut in four: the database waits a quarter of
the timeout, then the call is tried anew, because some locks are refused at once without waiting (two processes
switching a new file to WAL, deadlocks). MariaDB counts lock waits in whole seconds, so there a timeout below 4
may be exceeded by one second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from slurm_recovery.store.errors import StoreBusy, StoreError
from slurm_recovery.store.translate import translated

T = TypeVar("T")

URL_HINT = "sqlite:////folder/file or mysql+pymysql://user:password@host/database"


@dataclass(frozen=True)
class Database:
    """An engine, its name for error messages, and how long a call may take."""

    engine: Engine
    where: str
    timeout: float

    def run(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """`work` in one transaction: all of it or nothing. It may be called again after StoreBusy."""
        retrying = Retrying(
            retry=retry_if_exception_type(StoreBusy),
            stop=stop_after_delay(self.timeout * 3 / 4),
            wait=wait_random(0.005, 0.05),
            reraise=True,
        )
        result: T = retrying(self._once, work, write)
        return result

    def _once(self, work: Callable[[Connection], T], write: bool) -> T:
        with translated(self.where), self.engine.connect() as connection:
            connection.execution_options(write=write)
            with connection.begin():
                return work(connection)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def close(self) -> None:
        self.engine.dispose()


def connect(text: str, timeout: float, *, answer: float = 0.0) -> Database:
    """A database by URL. SQLite's file is made here; MariaDB is not spoken to before the first `run`.

    `answer`: seconds that one statement of MariaDB may take, where that is more than the timeout.
    """
    url = _parsed(text)
    if url.get_backend_name() == "sqlite":
        where, build = url.database or ":memory:", _sqlite
    else:
        where, build = url.set(query={}).render_as_string(), partial(_mariadb, answer=answer)
    with translated(where):
        return Database(build(url, timeout), where, timeout)


def _parsed(text: str) -> URL:
    """The URL. An error shows neither its password nor its query, which may hold one."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError(text.rpartition("@")[2].partition("?")[0], "not a database URL", URL_HINT) from None
    if url.get_backend_name() not in ("sqlite", "mysql", "mariadb"):
        raise StoreError(url.set(query={}).render_as_string(), f"{url.drivername} is not supported", URL_HINT)
    return url


def _sqlite(url: URL, timeout: float) -> Engine:
    in_memory = url.database in (None, "", ":memory:")
    as_uri = (url.database or "").startswith("file:")
    if not in_memory and not as_uri:
        _make_private_file(str(url.database))
    engine = create_engine(url, connect_args={"timeout": timeout / 4}, hide_parameters=True)
    event.listen(engine, "connect", _set_up_read_only if as_uri and "mode" in url.query else _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _make_private_file(path: str) -> None:
    """An empty file is an empty database. Made by root, it belongs to the folder's owner, who must write it too."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        # A sound one is not opened: to close it drops all locks that this process has on it, fcntl(2).
        if not (os.path.isfile(path) and os.access(path, os.W_OK)):
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))  # says EROFS, which SQLite would call "unable to open"
        return
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(os.path.abspath(path)))
        os.fchown(file, owner.st_uid, owner.st_gid)
    os.close(file)


def _set_up(connection: Any, _record: Any) -> None:
    _run_at_once(connection, "foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL")


def _set_up_read_only(connection: Any, _record: Any) -> None:
    _run_at_once(connection, "foreign_keys = ON")


def _run_at_once(connection: Any, *pragmas: str) -> None:
    connection.isolation_level = None  # or the driver begins transactions as it sees fit
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()  # the pool does not know it yet
        raise


def _begin(connection: Connection) -> None:
    # A reader that turns writer is refused at once when somebody wrote in between: take the lock first.
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _mariadb(url: URL, timeout: float, answer: float) -> Engine:
    seconds = max(1, int(timeout / 4))
    settings = f"innodb_lock_wait_timeout={seconds}, lock_wait_timeout={seconds}, sql_mode='TRADITIONAL'"
    return create_engine(
        url.set(drivername="mysql+pymysql").update_query_dict({"charset": "utf8mb4"}),
        connect_args={
            "connect_timeout": max(timeout, 0.1),
            "read_timeout": max(timeout, seconds + 1, answer),
            "write_timeout": max(timeout, 0.1),
            "init_command": f"SET SESSION {settings}",
        },
        pool_pre_ping=True,
        pool_timeout=timeout,
        hide_parameters=True,
    )
