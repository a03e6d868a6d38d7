"""The ledger of nodes, alike on SQLite and MariaDB: what is kept, what is found, and what no failure takes away."""

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
from typing import Any

import pytest
import structlog
from sqlalchemy import text, update

from slurm_recovery.records import NodeAction, NodeEvent, Run, Stage
from slurm_recovery.store import ledger as ledger_module
from slurm_recovery.store import schema
from slurm_recovery.store.errors import StoreBusy, StoreCorrupt, StoreFull, StoreReadOnly, StoreUnreachable
from slurm_recovery.store.ledger import Exposure, Ledger
from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_incident
from tests.store.conftest import Clock
from tests.store.mariadb import Server

ODD = "n\0ö\udc80\U0001f600 'x' \"; DROP TABLE run; --\n"


def a_run(job_id: int = 7, end: float = 2000.0, **more: Any) -> Run:
    given = {"cluster": "mars", "label": str(job_id), "start_time": 1000.0, "user": "ada", "partition": "train"}
    return Run.model_validate({**given, "job_id": job_id, "end_time": end, "nodes": ("n1", "n2"), **more})


def an_event(node: str = "n1", time: float = 2000.0, action: NodeAction = NodeAction.FAULT, **more: Any) -> NodeEvent:
    return NodeEvent.model_validate({"cluster": "mars", "node": node, "time": time, "action": action, **more})


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return store.ledger


# -- runs ----------------------------------------------------------------------------------------


def test_a_run_comes_back_as_it_was(ledger: Ledger) -> None:
    whole = a_run(restart_count=3, good=False, reason="gpu_fell_off_bus", blamed=("n2",), end=2000.25)
    bare = Run(cluster="mars", job_id=1, label="1", end_time=3000.0)
    good = a_run(4711, 4000.0, label="4700_11", good=True)
    for run in (whole, bare, good):
        ledger.save_run(run)
    assert ledger.runs("mars", 0) == [whole, bare, good]


@pytest.mark.parametrize("start", [1000.0, None])
def test_the_same_attempt_is_replaced(ledger: Ledger, start: float | None) -> None:
    ledger.save_run(a_run(start_time=start))
    judged = a_run(start_time=start, end=2001.0, reason="nccl_timeout", nodes=("n1",), blamed=("n1",))
    ledger.save_run(judged)
    assert ledger.runs("mars", 0) == [judged]


def test_other_attempts_are_others(ledger: Ledger) -> None:
    runs = [
        a_run(),
        a_run(end=2001, restart_count=1),
        a_run(end=2002, start_time=1001.0),
        a_run(end=2003, start_time=None),
        a_run(8, 2004),
    ]
    for run in (*runs, a_run(cluster="venus")):
        ledger.save_run(run)
    assert ledger.runs("mars", 0) == runs
    assert [run.cluster for run in ledger.runs("venus", 0)] == ["venus"]


def test_start_times_are_kept_in_whole_seconds(ledger: Ledger) -> None:
    ledger.save_run(a_run(start_time=1000.2))
    ledger.save_run(a_run(start_time=1000.9, good=True))
    assert ledger.runs("mars", 0) == [a_run(start_time=1000.0, good=True)]


def test_the_newest_runs_are_returned_oldest_first(ledger: Ledger) -> None:
    for end in (5, 1, 3, 2, 4):
        ledger.save_run(a_run(end, end * 1000.0))
    assert [run.job_id for run in ledger.runs("mars", 0)] == [1, 2, 3, 4, 5]
    assert [run.job_id for run in ledger.runs("mars", 3000.0)] == [3, 4, 5]
    assert [run.job_id for run in ledger.runs("mars", 0, limit=2)] == [4, 5]
    assert [run.job_id for run in ledger.runs("mars", 2000.0, limit=1)] == [5]
    assert ledger.runs("mars", 5000.1) == ledger.runs("venus", 0) == []


def test_ten_thousand_nodes(ledger: Ledger) -> None:
    nodes = tuple(f"gpu-cluster-node-{number:05}.example.org" for number in range(10_000))
    run = a_run(nodes=nodes, blamed=nodes[::2])
    ledger.save_run(run)
    assert ledger.runs("mars", 0) == [run]


def test_what_is_read_at_once_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 6):
        ledger.save_run(a_run(number, number * 1000.0, nodes=tuple(f"n{one:03}" for one in range(100))))
    monkeypatch.setattr(ledger_module, "MOST_BYTES", 2 * 100 * len('"n000", '))
    assert [run.job_id for run in ledger.runs("mars", 0)] == [4, 5]
    monkeypatch.setattr(ledger_module, "MOST_BYTES", 10)
    assert [run.job_id for run in ledger.runs("mars", 0)] == [5]


def test_runs_of_one_job(ledger: Ledger) -> None:
    ends = (3000.0, 1000.0, 2000.0)
    mine = [a_run(7, end, restart_count=number, good=number == 2) for number, end in enumerate(ends)]
    for run in (*mine, a_run(8, 2500.0), a_run(7, 2500.0, cluster="venus")):
        ledger.save_run(run)
    assert ledger.runs_of_job("mars", 7, 0) == sorted(mine, key=lambda run: run.end_time)
    assert ledger.runs_of_job("mars", 7, 1500.0) == [mine[2], mine[0]]
    assert ledger.runs_of_job("mars", 7, 0, limit=1) == [mine[1]]
    assert ledger.runs_of_job("mars", 9, 0) == []


def test_exposures_are_summed_up_by_partition_and_day(ledger: Ledger) -> None:
    day = ledger_module.DAY
    for when, seconds in ((10 * day, 100.0), (10 * day + 80_000, 50.5), (12 * day, 7.0)):
        ledger.expose("mars", "train", when, seconds)
    ledger.expose("mars", "Train", 11 * day, 1.0)
    ledger.expose("venus", ODD * 100, 11 * day, 2.0)
    here = {("mars", "train"): Exposure(3, 157.5, 10 * day), ("mars", "Train"): Exposure(1, 1.0, 11 * day)}
    assert ledger.exposures(0, "mars") == ledger.exposures(10 * day + 3600, "mars") == here
    assert ledger.exposures(11 * day, "mars")["mars", "train"] == Exposure(1, 7.0, 12 * day)
    assert len(ledger.exposures(0)) == 3
    assert ledger.exposures(13 * day) == {}
    ledger.purge(11.5 * day)
    assert ledger.exposures(0, "mars") == {
        ("mars", "train"): Exposure(1, 7.0, 12 * day),
        ("mars", "Train"): Exposure(1, 1.0, 11 * day),
    }


def test_odd_text_of_a_run(ledger: Ledger) -> None:
    ledger.save_run(a_run(user=ODD, reason=ODD, partition=ODD * 100, label=ODD, nodes=(ODD,), blamed=(ODD,)))
    (found,) = ledger.runs("mars", 0)
    assert found.nodes == found.blamed == (ODD,)
    assert found.user == ODD.replace("\0", "").replace("\udc80", "\\udc80")
    assert len(found.partition) == 255


@pytest.mark.parametrize("nodes", ["{", "{}", '"n1"', "[1]", "null", "[" * 10_000])
def test_a_run_that_cannot_be_read_is_left_out_and_logged(
    store: Store, capsys: pytest.CaptureFixture[str], nodes: str
) -> None:
    quiet = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(), wrapper_class=structlog.BoundLogger)
    try:
        for number in (1, 2, 3):
            store.ledger.save_run(a_run(number, number * 1000.0))
        with store._database.engine.begin() as connection:
            connection.execute(update(schema.run).where(schema.run.c.job_id == 2).values(nodes=nodes))
        assert [run.job_id for run in store.ledger.runs("mars", 0)] == [1, 3]
        assert "the run of job 2 cannot be read" in capsys.readouterr().out
    finally:
        structlog.configure(**quiet)


# -- events --------------------------------------------------------------------------------------


def test_an_event_gets_a_number_and_comes_back(ledger: Ledger) -> None:
    first = ledger.add(
        an_event(
            action=NodeAction.DRAIN,
            result="done",
            reason="gpu_fell_off_bus",
            user="ada",
            job="120_3",
            incident_id=12,
            boot_id="6b0d9b6e-4a30-4ac5-b5c5-1d8ee52a8f0e",
            detail="Xid 79; Slurm shows IDLE+DRAIN",
        )
    )
    second = ledger.add(an_event("", 2001.5, NodeAction.ALERT, detail="n1,n2"))
    assert 0 < first.id < second.id
    assert ledger.events("mars") == [second, first]


def test_many_events_at_once(ledger: Ledger) -> None:
    added = ledger.add_all([an_event(f"n{number}") for number in range(64)])
    assert [event.node for event in added] == [f"n{number}" for number in range(64)]
    assert ledger.events("mars") == added[::-1]
    assert ledger.add_all([]) == []


def test_events_are_chosen(ledger: Ledger) -> None:
    fault, drain, other, clean = ledger.add_all(
        [
            an_event("n1", 1000, NodeAction.FAULT),
            an_event("n1", 3000, NodeAction.DRAIN),
            an_event("N1", 2000, NodeAction.DRAIN),
            an_event("n1", 2500, NodeAction.CLEAN),
        ]
    )
    ledger.add(an_event("n1", 4000, cluster="venus"))
    assert ledger.events("mars") == [drain, clean, other, fault]
    assert ledger.events("mars", node="n1") == [drain, clean, fault]
    assert ledger.events("mars", node="N1") == [other]
    assert ledger.events("mars", actions=[NodeAction.DRAIN]) == [drain, other]
    assert ledger.events("mars", actions=()) == []
    assert ledger.events("mars", since=2500) == [drain, clean]
    assert ledger.events("mars", limit=1) == [drain]
    both = {NodeAction.FAULT, NodeAction.CLEAN}
    assert ledger.events("mars", node="n1", actions=both, since=1000, limit=1) == [clean]
    assert ledger.events("mars", node="n2") == ledger.events("mercury") == []


def test_the_latest_of_each_node(ledger: Ledger) -> None:
    added = ledger.add_all(
        [
            an_event("n1", 3000, NodeAction.DRAIN, result="intent"),
            an_event("n1", 3000, NodeAction.DRAIN, result="done"),
            an_event("n1", 9000, NodeAction.CLEAN),
            an_event("n2", 5000, NodeAction.RESUME),
            an_event("n2", 4000, NodeAction.DRAIN),
            an_event("N2", 1000, NodeAction.DRAIN),
            an_event("", 1000, NodeAction.ALERT),
        ]
    )
    ledger.add(an_event("n1", 9999, NodeAction.DRAIN, cluster="venus"))
    _, done, clean, resume, _, other, alert = added
    deeds = [NodeAction.DRAIN, NodeAction.RESUME]
    assert ledger.latest("mars", deeds) == {"n1": done, "n2": resume, "N2": other}
    assert ledger.latest("mars", [NodeAction.CLEAN]) == {"n1": clean}
    assert ledger.latest("mars", {NodeAction.ALERT}) == {"": alert}
    assert ledger.latest("mars", []) == ledger.latest("mercury", deeds) == {}


def test_odd_text_of_an_event(ledger: Ledger) -> None:
    given = ledger.add(an_event(ODD, user=ODD, reason=ODD, job=ODD, boot_id=ODD, detail=ODD * 20_000))
    assert given.detail == ODD * 20_000
    (found,) = ledger.events("mars", node=ODD)
    assert found.node == found.user == ODD.replace("\0", "").replace("\udc80", "\\udc80")
    assert len(found.detail) > 300_000


def test_an_event_of_a_later_release_is_left_out(store: Store) -> None:
    first, second, third = store.ledger.add_all(an_event(time=float(number)) for number in range(3))
    with store._database.engine.begin() as connection:
        table = schema.node_event
        connection.execute(update(table).where(table.c.id == second.id).values(action="beamed_up"))
    assert store.ledger.events("mars") == [third, first]


def test_the_clusters_on_record(ledger: Ledger) -> None:
    assert ledger.clusters() == []
    ledger.save_run(a_run())
    ledger.add(an_event())
    ledger.add(an_event(cluster="venus"))
    ledger.save_run(a_run(cluster="jupiter"))
    assert ledger.clusters() == ["jupiter", "mars", "venus"]


# -- purging -------------------------------------------------------------------------------------


def test_purging_leaves_the_newest_of_each_action(ledger: Ledger) -> None:
    old, last, boot, other, fresh = ledger.add_all(
        [
            an_event("n1", 1000, NodeAction.DRAIN, result="intent"),
            an_event("n1", 1000, NodeAction.DRAIN, result="done"),
            an_event("n1", 500, NodeAction.BOOT),
            an_event("n1", 900, NodeAction.DRAIN, cluster="venus"),
            an_event("n2", 6000, NodeAction.FAULT),
        ]
    )
    before = ledger.latest("mars", list(NodeAction))
    for number in range(1, 5):
        ledger.save_run(a_run(number, number * 1000.0))
    assert ledger.purge(3000.0) == 3
    assert ledger.events("mars") == [fresh, last, boot]
    assert ledger.events("venus") == [other]
    assert [run.job_id for run in ledger.runs("mars", 0)] == [3, 4]
    assert ledger.latest("mars", list(NodeAction)) == before
    assert ledger.purge(3000.0) == 0
    newer = ledger.add(an_event("n1", 7000, NodeAction.DRAIN))
    assert ledger.purge(3000.0) == 1
    assert last not in ledger.events("mars")
    assert newer in ledger.events("mars")
    assert old.id < last.id


def test_purging_many(ledger: Ledger) -> None:
    ledger.add_all(an_event(time=float(number)) for number in range(2500))
    assert ledger.purge(1e9) == 2499
    assert [event.time for event in ledger.events("mars")] == [2499.0]


def test_the_store_purges_both_and_counts_incidents(store: Store, clock: Clock) -> None:
    store.save(an_incident(stage=Stage.LEFT))
    store.ledger.save_run(a_run())
    kept = store.ledger.add_all([an_event(), an_event(time=2001)])[1:]
    clock.now += 100
    assert store.purge(clock.now) == 1
    assert store.ledger.runs("mars", 0) == []
    assert store.ledger.events("mars") == kept


# -- several processes ---------------------------------------------------------------------------

WRITE = """
import sys
from slurm_recovery.store.store import Store
from tests.store.test_ledger import a_run, an_event
number = int(sys.argv[2])
with Store.open(sys.argv[1], timeout=30) as store:
    for job in range(20):
        store.ledger.save_run(a_run(job, reason=f"reason_{number}"))
        store.ledger.add_all([an_event(f"n{number}", float(job)), an_event("shared", float(job))])
"""


def test_many_write_the_same_attempts_at_once(url: str) -> None:
    with Store.open(url) as store:
        writers = [subprocess.Popen([sys.executable, "-c", WRITE, url, str(number)]) for number in range(4)]
        assert [writer.wait(120) for writer in writers] == [0] * 4
        runs = store.ledger.runs("mars", 0)
        assert sorted(run.job_id for run in runs) == list(range(20))
        assert {run.reason for run in runs} <= {f"reason_{number}" for number in range(4)}
        assert len(store.ledger.events("mars", node="shared")) == 80
        latest = store.ledger.latest("mars", list(NodeAction))
        assert {node: event.time for node, event in latest.items()} == dict.fromkeys(
            ("n0", "n1", "n2", "n3", "shared"), 19.0
        )


# -- failures, SQLite ----------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path) -> Store:
    return Store.open(f"sqlite:///{path}", timeout=1.0)


@contextmanager
def seconds(least: float, most: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert least <= time.monotonic() - begin <= most


def test_a_lock_held_too_long_is_busy_and_nothing_is_written(path: Path) -> None:
    with opened(path) as store:
        store.ledger.save_run(a_run())
        rival = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        rival.execute("BEGIN EXCLUSIVE")
        for write in (lambda: store.ledger.save_run(a_run(good=True)), lambda: store.ledger.add(an_event())):
            with seconds(0.7, 2.0), pytest.raises(StoreBusy):
                write()
        with seconds(0, 0.6):  # reading goes on
            assert store.ledger.runs("mars", 0) == [a_run()]
            assert store.ledger.latest("mars", list(NodeAction)) == {}
        timer = threading.Timer(0.4, rival.rollback)
        timer.start()
        with seconds(0.3, 1.5):  # a lock that is given up in time is waited for
            store.ledger.add(an_event())
        timer.join()
        rival.close()
        assert len(store.ledger.events("mars")) == 1


def test_a_file_opened_read_only_can_be_read_not_written(path: Path) -> None:
    with opened(path) as store:
        store.ledger.save_run(a_run())
        event = store.ledger.add(an_event())
    with Store.open(f"sqlite:///file:{path}?mode=ro&uri=true") as reader:
        assert reader.ledger.runs("mars", 0) == [a_run()]
        assert reader.ledger.events("mars") == [event]
        with pytest.raises(StoreReadOnly):
            reader.ledger.save_run(a_run())
        with pytest.raises(StoreReadOnly):
            reader.ledger.add(an_event())
        with pytest.raises(StoreReadOnly):
            reader.ledger.purge(1e9)


def fill(ledger: Ledger, nodes: tuple[str, ...]) -> int:
    """Save until there is no more room. Returns how many runs were saved."""
    for job_id in range(1, 1000):
        try:
            ledger.save_run(a_run(job_id, job_id * 10.0, nodes=nodes))
        except StoreFull:
            return job_id - 1
    raise AssertionError("never full")


def test_a_full_disk_keeps_what_was_written_and_works_again_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    nodes = tuple(f"node-{number:06}" for number in range(3000))
    with opened(small_disk / "store.db") as store:
        saved = fill(store.ledger, nodes)
        room = os.statvfs(small_disk)
        (small_disk / "rest").write_bytes(bytes(room.f_bavail * room.f_frsize))
        with pytest.raises(StoreFull):
            store.ledger.add_all([an_event(detail="x" * 50_000), an_event(detail="y" * 50_000)])
        assert 0 < saved == len(store.ledger.runs("mars", 0))
        assert store.ledger.events("mars") == []
        ballast.unlink()
        store.ledger.save_run(a_run(saved + 1, nodes=nodes))
        store.ledger.add(an_event(detail="x" * 50_000))
        assert len(store.ledger.runs("mars", 0)) == saved + 1
        assert len(store.ledger.events("mars")) == 1


def test_tables_that_are_gone(path: Path) -> None:
    with opened(path) as store:
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE run")
            connection.execute("DROP TABLE node_event")
        with pytest.raises(StoreCorrupt, match="no such table: run"):
            store.ledger.runs("mars", 0)
        with pytest.raises(StoreCorrupt, match="no such table: node_event"):
            store.ledger.add(an_event())
        store.save(an_incident(), a_step())  # jobs go on


# -- failures, MariaDB ---------------------------------------------------------------------------


def test_a_locked_row_or_table_is_busy_in_mariadb(mariadb: Server, mariadb_url: str) -> None:
    with Store.open(mariadb_url, timeout=1.0) as store:
        store.ledger.save_run(a_run())
        rival = mariadb.connection("store")
        rival.cursor().execute("SELECT * FROM run FOR UPDATE")
        with seconds(0, 3), pytest.raises(StoreBusy):
            store.ledger.save_run(a_run(good=True))
        rival.close()
        rival = mariadb.connection("store")
        rival.cursor().execute("LOCK TABLES node_event WRITE")
        with seconds(0, 3), pytest.raises(StoreBusy):
            store.ledger.add(an_event())
        rival.close()
        assert store.ledger.runs("mars", 0) == [a_run()]
        assert store.ledger.events("mars") == []


def test_a_user_who_may_only_read_in_mariadb(mariadb: Server, mariadb_url: str) -> None:
    with Store.open(mariadb_url) as store:
        store.ledger.save_run(a_run())
    mariadb.execute("CREATE OR REPLACE USER ada@localhost", "GRANT SELECT ON store.* TO ada@localhost")
    with Store.open(mariadb.url("store", "ada")) as reader:
        assert reader.ledger.runs("mars", 0) == [a_run()]
        with pytest.raises(StoreReadOnly, match="GRANT"):
            reader.ledger.save_run(a_run())
        with pytest.raises(StoreReadOnly, match="GRANT"):
            reader.ledger.add(an_event())


def test_a_write_greater_than_mariadb_takes_is_all_or_nothing(mariadb: Server, mariadb_url: str) -> None:
    Store.open(mariadb_url).close()
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with Store.open(mariadb_url, timeout=1) as store:
            with pytest.raises((StoreFull, StoreUnreachable), match="max_allowed_packet"):
                store.ledger.add_all([an_event(), an_event("n2", detail="x" * 2_000_000)])
            assert store.ledger.events("mars") == []
            store.ledger.add(an_event())
    finally:
        mariadb.execute("SET GLOBAL max_allowed_packet = 16777216")


def test_a_missing_table_in_mariadb(mariadb: Server, mariadb_url: str) -> None:
    with Store.open(mariadb_url) as store:
        mariadb.execute("DROP TABLE store.node_event")
        with pytest.raises(StoreCorrupt, match="doesn't exist"):
            store.ledger.events("mars")
        store.ledger.save_run(a_run())


def test_indexes_serve_the_questions(path: Path) -> None:
    """A ledger of years is asked on every turn: no question reads a whole table."""
    with opened(path) as store, store._database.engine.connect() as connection:
        for question in (
            "SELECT * FROM run WHERE cluster = 'm' AND end_time >= 1 ORDER BY end_time DESC, id DESC LIMIT 9",
            "DELETE FROM run WHERE end_time < 1",
            "SELECT * FROM node_event WHERE cluster = 'm' AND node = 'n' ORDER BY time DESC LIMIT 9",
            "SELECT * FROM node_event WHERE cluster = 'm' AND action IN ('drain') AND time > 1",
            "SELECT id FROM node_event AS e WHERE time < 1 AND EXISTS (SELECT * FROM node_event AS l WHERE "
            "l.cluster = e.cluster AND l.node = e.node AND l.action = e.action AND l.time > e.time)",
        ):
            plan = [row.detail for row in connection.execute(text(f"EXPLAIN QUERY PLAN {question}"))]
            assert not [step for step in plan if step.startswith("SCAN")], plan
            assert not [step for step in plan if "TEMP B-TREE" in step], plan
