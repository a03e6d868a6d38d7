"""Fixtures: a store on SQLite and on MariaDB, and a scratch MariaDB server for the session."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_recovery.store.store import Store
from tests.store.mariadb import Server


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 10_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="store-"))  # short: a socket's path has 107 characters
    try:
        with Server(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def mariadb_url(mariadb: Server) -> str:
    return mariadb.new_database("store")


@pytest.fixture(params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store.open(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    yield from _mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A folder, and the same folder where nothing can be written."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for there in _mounted(tmp_path / "disk", "-o", "bind,ro", str(folder)):
        yield folder, there


def _mounted(there: Path, *how: str) -> Iterator[Path]:
    there.mkdir()
    done = subprocess.run(["mount", *how, str(there)], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"may not mount here: {done.stderr.strip()}")
    try:
        yield there
    finally:
        subprocess.run(["umount", str(there)], check=True)
