"""The one place where errors of SQLite, MariaDB and the file system become the store's own.

Owns the rows below. SQLite's codes: sqlite.org/rescode.html. MariaDB's: the Error Codes page of its manual;
those from 2000 on are the client's.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from slurm_recovery.store.errors import (
    StoreBusy,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

# An extended code is looked up first, then its primary code (the low byte).
SQLITE: dict[int, type[StoreError]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_IOERR_SHMSIZE: StoreFull,  # the shared-memory file beside the database cannot grow
    sqlite3.SQLITE_IOERR: StoreUnreachable,
    sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_CONSTRAINT: StoreConflict,
}

MARIADB: dict[int, type[StoreError]] = {
    1020: StoreBusy,  # record has changed since last read (11.6 and later)
    1040: StoreBusy,  # too many connections
    1203: StoreBusy,  # this user has too many connections
    1226: StoreBusy,  # this user has used up max_user_connections or another allowance
    1205: StoreBusy,  # lock wait timeout
    1213: StoreBusy,  # deadlock
    1969: StoreBusy,  # max_statement_time
    1036: StoreReadOnly,  # table is read only
    1142: StoreReadOnly,  # INSERT command denied to user
    1290: StoreReadOnly,  # the server runs with --read-only
    1792: StoreReadOnly,  # READ ONLY transaction
    1021: StoreFull,  # disk full
    1114: StoreFull,  # the table is full
    1153: StoreFull,  # bigger than max_allowed_packet
    1044: StoreUnreachable,  # access denied to database
    1045: StoreUnreachable,  # access denied, wrong password
    1049: StoreUnreachable,  # unknown database
    1053: StoreUnreachable,  # server shutdown in progress
    1130: StoreUnreachable,  # host not allowed
    1317: StoreUnreachable,  # query interrupted
    1698: StoreUnreachable,  # access denied, unix_socket
    1927: StoreUnreachable,  # connection was killed
    2002: StoreUnreachable,  # no socket
    2003: StoreUnreachable,  # connection refused, timed out
    2005: StoreUnreachable,  # unknown host
    2006: StoreUnreachable,  # server has gone away
    2013: StoreUnreachable,  # lost connection, or no answer in time
    2026: StoreUnreachable,  # TLS
    1034: StoreCorrupt,
    1035: StoreCorrupt,
    1054: StoreCorrupt,  # unknown column
    1146: StoreCorrupt,  # no such table
    1194: StoreCorrupt,  # table is marked as crashed
    1195: StoreCorrupt,
    1712: StoreCorrupt,  # index is corrupted
    1932: StoreCorrupt,  # table does not exist in engine
    1062: StoreConflict,  # duplicate entry
    1452: StoreConflict,  # foreign key
}

# The server says 1153, or just closes the connection while a statement too long for it is being sent.
BIG = "raise max_allowed_packet on the server, for records greater than that"

HINTS: dict[int, str] = {
    1049: "CREATE DATABASE it, with CHARACTER SET utf8mb4",
    1142: "GRANT SELECT, INSERT, UPDATE, DELETE on the database to this user, and all privileges for an upgrade",
    1153: BIG,
    1290: "the server is read-only: a replica?",
    2006: f"does the server run? If it does: {BIG}",
    2013: f"does the server run? If it does: {BIG}",
}

FILES: dict[int, type[StoreError]] = {
    errno.EROFS: StoreReadOnly,
    errno.EACCES: StoreReadOnly,
    errno.EPERM: StoreReadOnly,
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
}


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Whatever SQLAlchemy, a driver or the file system raises inside leaves as a StoreError."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError, ModuleNotFoundError) as error:
        raise translate(error, where) from error


def translate(error: Exception, where: str) -> StoreError:
    if isinstance(error, DBAPIError) and isinstance(error.orig, Exception):
        return translate(error.orig, where)
    if isinstance(error, sqlite3.Error):
        return _of_sqlite(error, where)
    if isinstance(error, OSError):
        return FILES.get(error.errno or 0, StoreUnreachable)(where, error.strerror or str(error))
    if isinstance(error, PoolTimeout):
        return StoreBusy(where, "all connections of this process are in use")
    if isinstance(error, ModuleNotFoundError):
        return StoreError(where, str(error), "pip install 'slurm_recovery[mariadb]'")
    if isinstance(error, NoSuchModuleError):
        return StoreError(where, str(error), "write sqlite:// or mysql+pymysql://")
    if error.args and isinstance(error.args[0], int):
        return _of_mariadb(error, where)
    return StoreError(where, str(error))


def _of_sqlite(error: sqlite3.Error, where: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_ERROR and "no such" in str(error):
        return StoreCorrupt(where, str(error))
    kind = SQLITE.get(code) or SQLITE.get(code & 0xFF) or StoreError
    return kind(where, str(error))


def _of_mariadb(error: Exception, where: str) -> StoreError:
    code, what = error.args[0], str(error.args[-1])
    no_space = re.search(rf"\berr(?:or|no):? {errno.ENOSPC}\b", what)  # 1030, 3, 1026: Got error 28 from …
    kind = StoreFull if no_space else MARIADB.get(code, StoreError)
    return kind(where, f"{what} [{code}]", HINTS.get(code, ""))
