"""How a database gets its tables: from nothing, half way, by two at once; and that they are the tables of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, insert, inspect, text

from slurm_recovery.records import Stage
from slurm_recovery.store import migrate, schema
from slurm_recovery.store.database import connect
from slurm_recovery.store.rows import incident_row, step_row
from slurm_recovery.store.store import Store
from tests.store.builders import a_step, an_attempt, an_incident
from tests.store.test_ledger import a_run, an_event

CHANGED = {"created": 1100.0, "updated": 1200.0}

OPEN = "import sys; from slurm_recovery.store.store import Store; Store.open(sys.argv[1]).close()"

UNIQUE = {"incident": {"uq_incident_attempt"}, "run": {"uq_run_attempt"}}


def test_migrations_make_the_tables_of_the_code(store: Store) -> None:
    with store._database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []


def test_migrations_make_the_keys_of_the_code(store: Store) -> None:
    """Those that compare_metadata does not look at: names and order of columns in each index and key."""
    found = inspect(store._database.engine)
    for table in schema.metadata.tables.values():
        declared = {index.name: [column.name for column in index.columns] for index in table.indexes}
        unique = {key["name"] for key in found.get_unique_constraints(table.name)}
        indexes = {index["name"]: index["column_names"] for index in found.get_indexes(table.name)}
        assert {name: columns for name, columns in indexes.items() if name not in unique} == declared
        assert unique == UNIQUE.get(table.name, set())


def test_head_is_the_last_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [schema.HEAD]
    for script in scripts.walk_revisions():
        assert Path(script.path).name.startswith(f"{script.revision}_")
        assert script.revision.isdigit()
        assert len(script.revision) == 4


def test_opening_again_changes_nothing_and_does_not_import_alembic(url: str) -> None:
    with Store.open(url) as store:
        saved = store.save(an_incident(), a_step())
    code = OPEN + "; assert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, url], check=True, timeout=60)
    with Store.open(url) as store:
        assert store.list() == [saved]


@pytest.mark.parametrize(
    ("reached", "table", "index"),
    [(None, "step", "ix_incident_user"), ("0001", "node_event", "ix_run_end"), ("0002", "exposure", "")],
)
def test_an_interrupted_upgrade_is_taken_up(url: str, reached: str | None, table: str, index: str) -> None:
    Store.open(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        if reached:
            connection.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": reached})
        else:
            connection.execute(text("DELETE FROM alembic_version"))
        connection.execute(text(f"DROP TABLE {table}"))
        if index:
            connection.execute(text(f"DROP INDEX {index}" + (f" ON {index.split('_')[1]}" if "mysql" in url else "")))
    engine.dispose()
    with Store.open(url) as store:
        test_migrations_make_the_keys_of_the_code(store)
        store.save(an_incident(), a_step())
        store.ledger.save_run(a_run())
        store.ledger.add(an_event())
        store.ledger.expose("mars", "train", 86400.0, 60.0)


# As a release that knows schema 0001 writes them: without what a later one added to a record.
OF_0001 = (
    '{"attempt": {"cluster": "mars", "job_id": 7, "start_time": 1000.0, "user": "ada", "partition": "train"}, '
    '"stage": "requeued", "observation": {"attempt": {"cluster": "mars", "job_id": 7, "start_time": 1000.0, '
    '"user": "ada", "partition": "train"}, "log_tail": "caf\\u00e9 \\udc80"}, "times": {"ended": 1100.0}, '
    '"note": "kept"}'
)


def test_a_database_of_schema_0001_keeps_its_incidents(url: str) -> None:
    database = connect(url, 5.0)
    database.run(lambda connection: migrate.upgrade(connection, "0001"), write=True)
    values = {"id": 41, "record": OF_0001, "stage": "requeued"}
    with database.engine.begin() as connection:
        assert set(inspect(connection).get_table_names()) == {"alembic_version", "incident", "step"}
        connection.execute(insert(schema.incident).values({**incident_row(an_incident()), **values, **CHANGED}))
        connection.execute(insert(schema.step).values(step_row(41, a_step(detail="before"))))
    database.close()
    with Store.open(url) as store:
        incident = store.get(41)
        assert incident is not None
        assert incident.observation is not None
        assert (incident.stage, incident.note) == (Stage.REQUEUED, "kept")
        assert (incident.observation.log_tail, incident.observation.boots) == ("café \udc80", {})
        assert store.find(an_attempt()) == incident
        assert store.open_incidents("mars") == [incident]
        assert [step.detail for step in store.steps(41)] == ["before"]
        assert store.ledger.runs("mars", 0) == store.ledger.events("mars") == []
        assert store.save(an_incident(8)).id == 42
        test_migrations_make_the_keys_of_the_code(store)


@pytest.mark.parametrize("again", range(2))
def test_many_open_an_empty_store_at_once(url: str, again: int) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", OPEN, url]) for _ in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    with Store.open(url) as store:
        store.save(an_incident())


def test_text_columns_take_all_of_unicode_in_mariadb(mariadb_url: str) -> None:
    Store.open(mariadb_url).close()
    engine = create_engine(mariadb_url)
    with engine.connect() as connection:
        tables = connection.execute(text("SHOW TABLE STATUS WHERE Name <> 'alembic_version'")).mappings().all()
        assert {table["Name"] for table in tables} == set(schema.metadata.tables)
        assert {(table["Engine"], table["Collation"]) for table in tables} == {("InnoDB", "utf8mb4_bin")}
    engine.dispose()


def test_importing_the_store_does_not_import_alembic() -> None:
    code = "import sys, slurm_recovery.store.store; assert not {'alembic', 'pymysql'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
