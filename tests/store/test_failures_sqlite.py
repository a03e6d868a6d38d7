"""Every failure of SQLite surfaces as its own error, in time."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_recovery.records import Incident, Observation
from slurm_recovery.store.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreachable,
)
from slurm_recovery.store.schema import HEAD
from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_attempt, an_incident

# Needs the database for itself alone, and says whether it got it.
ALONE = """
import sqlite3, sys
try:
    print(*sqlite3.connect(sys.argv[1], timeout=0).execute("PRAGMA journal_mode = DELETE").fetchone())
except sqlite3.OperationalError as error:
    print(error)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with opened(path) as store:
        yield store


def opened(path: Path, timeout: float = 1.0) -> Store:
    return Store.open(f"sqlite:///{path}", timeout=timeout)


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    rival = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN EXCLUSIVE")
    yield rival
    if rival.in_transaction:
        rival.rollback()
    rival.close()


@contextmanager
def seconds(least: float, most: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert least <= time.monotonic() - begin <= most


def heavy(job_id: int, size: int) -> Incident:
    attempt = an_attempt(job_id)
    return Incident(attempt=attempt, observation=Observation(attempt=attempt, log_tail="x" * size))


def fill(store: Store, size: int = 50_000) -> int:
    """Save until there is no more room. Returns how many incidents were saved."""
    for job_id in range(1, 1000):
        try:
            store.save(heavy(job_id, size))
        except StoreFull:
            return job_id - 1
    raise AssertionError("never full")


def test_a_lock_held_too_long_is_busy_within_the_timeout(store: Store, path: Path) -> None:
    saved = store.save(an_incident())
    with locked(path), seconds(0.7, 2.0), pytest.raises(StoreBusy, match=r"store\.db: database is locked \(another"):
        store.save(saved, a_step())
    assert store.steps(saved.id) == []


def test_reading_goes_on_beside_a_writer(store: Store, path: Path) -> None:
    saved = store.save(an_incident())
    with locked(path), seconds(0, 0.6):
        assert store.find(saved.attempt) == saved
        with opened(path) as another:
            assert another.list() == [saved]


def test_a_lock_that_is_given_up_in_time_is_waited_for(store: Store, path: Path) -> None:
    with locked(path) as rival:
        timer = threading.Timer(0.4, rival.rollback)
        timer.start()
        with seconds(0.3, 1.5):
            store.save(an_incident())
        timer.join()


def test_a_new_file_that_is_locked_is_busy(path: Path) -> None:
    with locked(path), seconds(0.5, 2.0), pytest.raises(StoreBusy):
        opened(path)


def test_a_file_opened_read_only_can_be_read_not_written(store: Store, path: Path) -> None:
    saved = store.save(an_incident())
    with Store.open(f"sqlite:///file:{path}?mode=ro&uri=true") as reader:
        assert reader.get(saved.id) == saved
        with pytest.raises(StoreReadOnly, match="readonly database"):
            reader.save(saved)


def test_a_read_only_file_system(read_only_disk: tuple[Path, Path]) -> None:
    folder, there = read_only_disk
    with pytest.raises(StoreReadOnly, match=r"disk/new\.db: Read-only file system"):
        opened(there / "new.db")
    opened(folder / "store.db").close()
    with pytest.raises(StoreReadOnly):
        opened(there / "store.db")


def test_a_full_disk_keeps_what_was_saved_and_works_again_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    with opened(small_disk / "store.db") as store:
        saved = fill(store)
        assert saved > 0
        assert len(store.list()) == saved
        with pytest.raises(StoreFull, match="make room"):
            store.save(heavy(saved + 1, 50_000), a_step())
        ballast.unlink()
        last = store.save(heavy(saved + 1, 50_000), a_step())
        assert len(store.list()) == saved + 1
        assert len(store.steps(last.id)) == 1


def test_a_store_on_a_full_disk_is_not_opened(small_disk: Path) -> None:
    opened(small_disk / "store.db").close()
    room = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))
    with pytest.raises(StoreFull):
        opened(small_disk / "store.db")
    with pytest.raises(StoreFull):
        opened(small_disk / "new.db")


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(StoreCorrupt, match="file is not a database"):
        opened(path)


def test_a_damaged_page(path: Path) -> None:
    with opened(path) as store:
        for job in range(1, 50):
            store.save(heavy(job, 2000))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(StoreCorrupt), opened(path) as store:
        store.list()


def test_a_file_cut_short(path: Path) -> None:
    with opened(path) as store:
        for job in range(1, 50):
            store.save(heavy(job, 2000))
    os.truncate(path, 40_000)
    with pytest.raises(StoreCorrupt), opened(path) as store:
        store.list()


def test_a_table_that_is_gone(store: Store, path: Path) -> None:
    saved = store.save(an_incident())
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE step")
    with pytest.raises(StoreCorrupt, match="no such table: step"):
        store.steps(saved.id)


@pytest.mark.parametrize("record", ["{", "[]", "{}", '{"attempt": 1}'])
def test_one_record_that_cannot_be_read_does_not_hide_the_others(store: Store, path: Path, record: str) -> None:
    bad, good = store.save(an_incident(1)), store.save(an_incident(2))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE incident SET record = ? WHERE id = ?", (record, bad.id))
    assert store.list() == store.open_incidents("mars") == [good]
    with pytest.raises(StoreCorrupt, match=f"the record of incident {bad.id} cannot be read"):
        store.get(bad.id)
    assert store.history(an_attempt(1, start=2000, restarts=1)) == []


def test_a_schema_of_a_later_release(store: Store, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match=f"its schema is 9999, this release knows schemas up to {HEAD}"):
        opened(path)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match=r"none/store\.db: No such file or directory \(does the folder exist"):
        opened(tmp_path / "none" / "store.db")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match="Is a directory"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://u:secret@h:port/d", "oracle://u:secret@h/d", "postgresql://h/d?password=secret"]
)
def test_a_url_that_is_none_of_ours_is_told_without_its_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "mysql+pymysql" in caught.value.hint


def test_the_file_is_for_its_owner_only(store: Store, path: Path) -> None:
    store.save(an_incident())
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == {
        "store.db": "0o600",
        "store.db-shm": "0o600",
        "store.db-wal": "0o600",
    }


def test_the_mode_that_an_administrator_gave_is_left(path: Path) -> None:
    opened(path).close()
    path.chmod(0o640)
    opened(path).close()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_made_by_root_belongs_to_the_folders_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 54321)
    with opened(tmp_path / "store.db") as store:
        store.save(an_incident())
        assert {(file.stat().st_uid, file.stat().st_gid) for file in tmp_path.iterdir()} == {(12345, 54321)}


def test_the_file_is_kept_safe(path: Path, store: Store) -> None:
    connection = store._database.engine.raw_connection()
    asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    found = [connection.cursor().execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    connection.close()
    assert found == ["wal", 2, 1, 250]


def test_a_store_in_memory() -> None:
    with Store.open("sqlite://") as store:
        saved = store.save(an_incident(), a_step())
        assert store.list() == [saved]


def test_errors_survive_a_process_boundary() -> None:
    import pickle

    error = StoreBusy("here", "two\nlines")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.hint) == (StoreBusy, str(error), error.hint)
    assert "\n" not in str(error)


def test_a_second_store_of_the_process_leaves_the_first_ones_locks(store: Store, path: Path) -> None:
    """To close any descriptor of a file drops what its process holds on it, fcntl(2): others would be let in."""
    store.save(an_incident())
    with opened(path) as second:
        second.save(an_incident(2))
    command = [sys.executable, "-c", ALONE, str(path)]
    other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert other.stdout.strip() == "database is locked"
