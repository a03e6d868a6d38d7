"""Every failure of MariaDB surfaces as its own error, in time, and never shows the password."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_recovery.records import Incident, Observation
from slurm_recovery.store.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreachable,
)
from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_attempt, an_incident
from tests.store.mariadb import Server


@pytest.fixture
def store(mariadb_url: str) -> Iterator[Store]:
    with Store.open(mariadb_url, timeout=1.0) as opened:
        yield opened


@contextmanager
def within(most: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin <= most


def heavy(job_id: int, size: int) -> Incident:
    attempt = an_attempt(job_id)
    return Incident(attempt=attempt, observation=Observation(attempt=attempt, log_tail="x" * size))


def test_a_locked_row_is_busy(store: Store, mariadb: Server) -> None:
    saved = store.save(an_incident())
    rival = mariadb.connection("store")
    rival.cursor().execute("SELECT * FROM incident FOR UPDATE")
    with within(3), pytest.raises(StoreBusy, match="Lock wait timeout exceeded"):
        store.save(saved, a_step())
    assert store.get(saved.id) == saved
    rival.close()
    store.save(saved, a_step())
    assert len(store.steps(saved.id)) == 1


def test_a_locked_table_is_busy(store: Store, mariadb: Server) -> None:
    rival = mariadb.connection("store")
    rival.cursor().execute("LOCK TABLES incident WRITE")
    with within(3), pytest.raises(StoreBusy):
        store.list()
    rival.close()


def test_an_upgrade_that_another_process_is_at_is_waited_for_then_busy(mariadb: Server, mariadb_url: str) -> None:
    rival = mariadb.connection("store")
    rival.cursor().execute("SELECT GET_LOCK('slurm_recovery.store', 1)")
    with within(3), pytest.raises(StoreBusy):
        Store.open(mariadb_url, timeout=1.0)
    rival.close()
    Store.open(mariadb_url, timeout=1.0).close()


def test_too_many_connections_is_busy(store: Store, mariadb: Server, mariadb_url: str) -> None:
    mariadb.execute(
        "CREATE OR REPLACE USER few@localhost WITH MAX_USER_CONNECTIONS 1", "GRANT ALL ON store.* TO few@localhost"
    )
    url = mariadb.url("store", "few")
    with Store.open(url, timeout=1.0) as first:
        held = first._database.engine.connect()
        with pytest.raises(StoreBusy):
            Store.open(url, timeout=1.0)
        held.close()


def test_a_wrong_password(mariadb: Server, mariadb_url: str) -> None:
    mariadb.execute("CREATE OR REPLACE USER ada@localhost IDENTIFIED BY 'right'")
    with pytest.raises(StoreUnreachable, match="Access denied") as caught:
        Store.open(mariadb.url("store", "ada", "s3cret"))
    assert "s3cret" not in str(caught.value)
    assert "ada:***@localhost/store" in str(caught.value)


def test_a_user_without_rights_on_the_database(mariadb: Server, mariadb_url: str) -> None:
    mariadb.execute("CREATE OR REPLACE USER ada@localhost")
    with pytest.raises(StoreUnreachable, match="Access denied"):
        Store.open(mariadb.url("store", "ada"))


def test_a_user_who_may_only_read(store: Store, mariadb: Server) -> None:
    saved = store.save(an_incident())
    mariadb.execute("CREATE OR REPLACE USER ada@localhost", "GRANT SELECT ON store.* TO ada@localhost")
    with Store.open(mariadb.url("store", "ada")) as reader:
        assert reader.get(saved.id) == saved
        with pytest.raises(StoreReadOnly, match="GRANT"):
            reader.save(saved)


def test_a_read_only_server(store: Store, mariadb: Server) -> None:
    saved = store.save(an_incident())
    mariadb.execute("CREATE OR REPLACE USER ada@localhost", "GRANT ALL ON store.* TO ada@localhost")
    mariadb.execute("SET GLOBAL read_only = 1")
    try:
        with Store.open(mariadb.url("store", "ada")) as reader, pytest.raises(StoreReadOnly, match="replica"):
            reader.save(saved)
    finally:
        mariadb.execute("SET GLOBAL read_only = 0")


def test_no_such_database(mariadb: Server) -> None:
    with pytest.raises(StoreUnreachable, match="CREATE DATABASE"):
        Store.open(mariadb.url("none"))


def test_no_such_socket(tmp_path: Path) -> None:
    with within(1.5), pytest.raises(StoreUnreachable):
        Store.open(f"mysql+pymysql://root@localhost/store?unix_socket={tmp_path}/none", timeout=1)


def test_a_refused_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"mysql+pymysql://root:s3cret@127.0.0.1:{unused.getsockname()[1]}/store"
        with within(1.5), pytest.raises(StoreUnreachable, match="refused") as caught:
            Store.open(url, timeout=1)
    assert "s3cret" not in str(caught.value)


def test_a_server_that_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"mysql+pymysql://root@127.0.0.1:{silent.getsockname()[1]}/store"
        with within(3), pytest.raises(StoreUnreachable):
            Store.open(url, timeout=1)


def test_a_record_greater_than_the_server_takes(store: Store, mariadb: Server, mariadb_url: str) -> None:
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with (
            Store.open(mariadb_url, timeout=1) as fresh,
            pytest.raises((StoreFull, StoreUnreachable), match="max_allowed_packet"),
        ):
            fresh.save(heavy(1, 2_000_000))
    finally:
        mariadb.execute("SET GLOBAL max_allowed_packet = 16777216")


def test_a_missing_table(store: Store, mariadb: Server) -> None:
    mariadb.execute("DROP TABLE store.step")
    with pytest.raises(StoreCorrupt, match="doesn't exist"):
        store.steps(1)


def test_a_schema_of_a_later_release(store: Store, mariadb: Server, mariadb_url: str) -> None:
    mariadb.execute("UPDATE store.alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew):
        Store.open(mariadb_url)


@pytest.mark.parametrize("url", ["mariadb+pymysql", "mysql", "mariadb", "mysql+mysqldb"])
def test_other_names_of_the_same_server(store: Store, mariadb_url: str, url: str) -> None:
    saved = store.save(an_incident())
    with Store.open(mariadb_url.replace("mysql+pymysql", url)) as other:
        assert other.list() == [saved]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="store-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_server_that_dies_and_comes_back(folder: Path) -> None:
    with Server(folder) as server, Store.open(server.new_database("store"), timeout=1) as store:
        saved = store.save(an_incident())
        server.stop(kill=True)
        with within(2), pytest.raises(StoreUnreachable):
            store.save(saved)
        server.start()
        assert store.save(saved) == saved


def test_a_tablespace_that_cannot_grow_is_full(folder: Path) -> None:
    """As on a full disk; with a disk that is really full, MariaDB 10.11 may abort, and then it is unreachable."""
    small = ("--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:12M:autoextend:max:20M")
    with Server(folder, *small) as server, Store.open(server.new_database("store"), timeout=5) as store:
        saved = fill(store)
        assert saved
        assert len(store.list(limit=1000)) == saved


def fill(store: Store) -> int:
    """Save until there is no more room. Returns how many incidents were saved."""
    for job_id in range(1, 2000):
        try:
            store.save(heavy(job_id, 50_000), a_step())
        except StoreFull:
            return job_id - 1
    raise AssertionError("never full")
