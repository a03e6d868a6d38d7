"""A private MariaDB server in a scratch folder: own socket, no network, ended by its own pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pymysql

PROGRAMS = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def program(name: str) -> str:
    found = shutil.which(name, path=PROGRAMS)
    assert found, f"{name} is missing: apt-get install mariadb-server"
    return found


class Server:
    """`with Server(folder) as server:` has it running. Root of the database has no password."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.socket = folder / "sock"
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        user = ["--user=root"] if os.geteuid() == 0 else []
        scratch = self.folder / "tmp"  # of its own: servers that are installed side by side in /tmp take each other's
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders = [f"--datadir={self.folder}/data", f"--tmpdir={scratch}"]
        self._common = ["--no-defaults", *folders, *user, *self.options]
        install = [program("mariadb-install-db"), *self._common, "--auth-root-authentication-method=normal"]
        done = subprocess.run([*install, "--skip-test-db"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        names = [f"--socket={self.socket}", f"--pid-file={self.folder}/pid", f"--log-error={self.folder}/log.err"]
        self.process = subprocess.Popen([program("mariadbd"), *self._common, *names, "--skip-networking"])
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.execute("SELECT 1")
            except pymysql.Error:
                gone = self.process.poll() is not None or time.monotonic() > deadline
                assert not gone, (self.folder / "log.err").read_text()
                time.sleep(0.05)

    def stop(self, *, kill: bool = False) -> None:
        if self.process:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait(60)
            self.process = None

    def connection(self, database: str | None = None) -> pymysql.Connection:  # type: ignore[type-arg]
        return pymysql.connect(unix_socket=str(self.socket), user="root", database=database, read_timeout=30)

    def execute(self, *statements: str) -> None:
        connection = self.connection()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()
        finally:
            connection.close()

    def url(self, database: str, user: str = "root", password: str = "") -> str:
        return f"mysql+pymysql://{user}:{password}@localhost/{database}?unix_socket={self.socket}"

    def new_database(self, name: str) -> str:
        """An empty database. Whoever is still connected, from a test that failed, is thrown out: it may hold locks."""
        connection = self.connection()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'"
            )
            for (other,) in cursor.fetchall():
                with contextlib.suppress(pymysql.Error):  # gone by itself
                    cursor.execute(f"KILL {other}")
        connection.close()
        # latin1, as a careless CREATE DATABASE may leave it: the tables must bring utf8mb4 along.
        self.execute(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} CHARACTER SET latin1")
        return self.url(name)
