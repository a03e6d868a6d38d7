"""The errors of the store, one line each: where, what, hint.

    StoreError
    ├── StoreBusy         somebody else holds the lock, and held it until the timeout
    ├── StoreReadOnly     it can be read, not written
    ├── StoreFull         no room left
    ├── StoreUnreachable  no connection: refused, wrong password, no such folder, silence
    ├── StoreTooNew       its schema was written by a later release
    ├── StoreCorrupt      what is there cannot be read
    └── StoreConflict     the record to be written is not the one that is there

Owns the tree and the standing hints. Which of SQLite's and MariaDB's errors becomes which of these is
`translate.py`'s.
"""

from __future__ import annotations

from typing import ClassVar


class StoreError(Exception):
    """`where` (a path, or a URL without its password), `what` went wrong, and a `hint` for the operator."""

    standing_hint: ClassVar[str] = "see StoreUrl in recovery.conf"

    def __init__(self, where: str, what: str, hint: str = "") -> None:
        super().__init__(where, what, hint)
        self.where = where
        self.what = " ".join(what.split())
        self.hint = hint or self.standing_hint

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.hint})"


class StoreBusy(StoreError):
    standing_hint = "another process holds the lock; try again, or raise the timeout"


class StoreReadOnly(StoreError):
    standing_hint = "run as the store's owner (SlurmUser), and see that file, folder and file system can be written"


class StoreFull(StoreError):
    standing_hint = "make room on the disk, or purge old incidents"


class StoreUnreachable(StoreError):
    standing_hint = "does the folder exist, does the server run, are user and password right?"


class StoreTooNew(StoreError):
    standing_hint = "install the release of slurm_recovery that last used this store, or a later one"


class StoreCorrupt(StoreError):
    standing_hint = "move it away and restore a backup; an empty store is made by itself"


class StoreConflict(StoreError):
    standing_hint = "read the incident again with find() and go on from there"
