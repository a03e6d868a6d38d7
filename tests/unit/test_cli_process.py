"""srecover as a process of its own: start-up, broken pipes, odd terminals, errors of the first hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.unit.cli_site import HOSTILE, STEPS, Answer, Site, recovered, run

SRECOVER = [sys.executable, "-m", "slurm_recovery.cli.main"]


def start(*words: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    given = {**os.environ, "SRECOVER_CONF": "", "SLURM_CONF": "", **(env or {})}
    return subprocess.run([*SRECOVER, *words], env=given, input=stdin, capture_output=True, check=False, timeout=60)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    with site.store() as store:
        store.save(recovered(name="Prüfung " + HOSTILE), *STEPS)
    return site


def test_help_is_there_in_a_moment() -> None:
    """0.3 s on an idle machine; the fastest of five, and twice that, where tests run beside it."""
    taken = []
    for _ in range(5):
        begin = time.monotonic()
        assert start("--help").returncode == 0
        taken.append(time.monotonic() - begin)
    assert min(taken) < 2  # 0.25 s on an idle core of 2024


def test_help_imports_neither_the_database_nor_the_rules() -> None:
    program = (
        "import sys; from slurm_recovery.cli import main; sys.argv[1:] = ['--help']\n"
        "try: main.main()\nexcept SystemExit: pass\n"
        "print(sorted({'sqlalchemy', 'alembic', 'tenacity', 'slurm_recovery.attribute.engine', "
        "'slurm_recovery.store.store'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("words", [["explain", "--rules"], ["--help"], ["manual"]])
def test_a_reader_that_goes_away_is_no_accident(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*SRECOVER, *words], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (1, 141)


@pytest.mark.parametrize("coding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_will_do(site: Site, coding: str) -> None:
    done = start("--conf", str(site.conf), "show", "120", env={"PYTHONIOENCODING": coding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\nDecision:") == 1


def test_no_colours_and_no_control_characters(site: Site) -> None:
    for words in (["show", "120"], ["list"], ["show", "99"], ["show"]):
        done = start("--conf", str(site.conf), *words, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
        assert not set(done.stdout + done.stderr) & (set(range(32)) - {10}), words


def test_json_stays_json_beside_a_warning(site: Site) -> None:
    import sqlite3

    with sqlite3.connect(site.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE incident SET record = '{}'")
    done = start("--conf", str(site.conf), "list", "--json")
    assert json.loads(done.stdout) == []
    assert b"incident left out" in done.stderr


def test_a_full_output_is_one_line(site: Site) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*SRECOVER, "--conf", str(site.conf), "list"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == b"srecover: error: [Errno 28] No space left on device\n"


def test_an_ordinary_user_is_told_who_may_read_the_store() -> None:
    if os.geteuid() != 0:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o700)
        site = Site(folder, f"StateDir={folder}/state\n")
        assert site.run("list").status == 0
        answers = [as_nobody(lambda words=words: site.run(*words)) for words in (["list"], ["show", "1", "--log"])]
        assert as_nobody(lambda: site.run("config")) == "0 "
        site.conf.chmod(0o600)
        answers.append(as_nobody(lambda: site.run("list")))
        refused = as_nobody(lambda: site.run("config"))
    only = "only SlurmUser and root can read the record (StateDir); ask your administrator\n"
    denied = f"1 srecover: error: {site.conf}: Permission denied"
    assert answers == [f"1 srecover: error: {only}"] * 2 + [f"{denied}; {only}"]
    assert refused == f"{denied}\n"


def as_nobody(command: Callable[[], Answer]) -> str:
    """The status and the errors of a command that runs without any rights. What it imports is imported already."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            answer = command()
            os.write(writing, f"{answer.status} {answer.err}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def test_usage_errors_are_2_and_help_and_version_are_0() -> None:
    assert run("-h").out == run("--help").out
    assert [run(*words).status for words in (["--help"], ["-h"], ["--version"], ["nonsense"], ["--nonsense"], [])] == [
        0,
        0,
        0,
        2,
        2,
        2,
    ]


def test_replay_gives_the_same_bytes_whatever_the_order_and_the_hash_seed() -> None:
    corpus = Path(__file__).parents[1] / "corpus"
    cases = sorted(str(path.parent) for path in corpus.glob("*/case.json"))[::4]
    told = []
    for seed, order in (("0", cases), ("1", cases), ("77", cases[::-1])):
        done = start("replay", "--json", *order, env={"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        told.append(sorted(done.stdout.splitlines()))
    assert len(told[0]) == len(cases)
    assert told[0] == told[1] == told[2]
