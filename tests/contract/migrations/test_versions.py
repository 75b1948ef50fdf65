"""Versions of the tables, on both databases: made, refused, raised in one transaction."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.store.engine import IDLE_TIMEOUT_S, UnreadableStoreError
from app.store.migrations import VERSIONS
from app.store.tables import metadata
from tests.building import make_run
from tests.contract.migrations.database import NEWEST, Database, open_once

WRONG = f"""
from alembic import op

revision, down_revision = "{NEWEST + 2}", "{NEWEST + 1}"


def upgrade() -> None:
    op.execute("ALTER TABLE orion_runs ADD COLUMN taste VARCHAR(16)")
    op.execute("ALTER TABLE nowhere ADD x INT")
"""
FIRST_TABLES = (
    """CREATE TABLE orion_runs (
        id VARCHAR(64) NOT NULL PRIMARY KEY, thread_key VARCHAR(128) NOT NULL, team VARCHAR(32) NOT NULL,
        "user" VARCHAR(32) NOT NULL, message_ts VARCHAR(32) NOT NULL, request JSON NOT NULL, state VARCHAR(16) NOT NULL,
        created_at DOUBLE PRECISION NOT NULL, placed_at DOUBLE PRECISION, started_at DOUBLE PRECISION,
        deadline_at DOUBLE PRECISION, ended_at DOUBLE PRECISION, reply_ts VARCHAR(32), part_ts JSON NOT NULL,
        attempt INTEGER NOT NULL, agent VARCHAR(32) NOT NULL, model VARCHAR(128) NOT NULL, provider VARCHAR(32) NOT NULL,
        sandbox_id VARCHAR(128), event_offset INTEGER NOT NULL, stop_requested_by VARCHAR(32),
        stop_requested_at DOUBLE PRECISION, outcome VARCHAR(16), answer TEXT NOT NULL, error_code VARCHAR(64),
        error_detail TEXT NOT NULL, delivery VARCHAR(64) NOT NULL, usage JSON NOT NULL, trace_id VARCHAR(32) NOT NULL
    )""",
    "CREATE INDEX ix_orion_runs_thread ON orion_runs (thread_key, message_ts)",
    'CREATE INDEX ix_orion_runs_user ON orion_runs (team, "user", created_at)',
    "CREATE INDEX ix_orion_runs_state ON orion_runs (state)",
)
"""As they were before there were versions; never changed here."""


def test_the_newest_version_is_the_end_of_one_line() -> None:
    """Each migration names the one before, and its file's name is what it leads to."""
    found = sorted(VERSIONS.glob("v*.py"), key=lambda path: int(path.name[1:].partition("_")[0]))
    for number, path in enumerate(found, start=1):
        before = f'"{number - 1}"' if number > 1 else "None"
        assert f'revision, down_revision = "{number}", {before}\n' in path.read_text()
        assert re.fullmatch(rf"v{number}_\w+\.py", path.name)
    assert len(found) == NEWEST


async def test_new_tables_have_the_newest_version(database: Database) -> None:
    """The runs and their version are there after the first opening, and the second changes nothing."""
    for _ in range(2):
        await open_once(database)
        assert set(database.columns()) == set(metadata.tables)
        assert database.versions() == [NEWEST]


def test_a_start_needs_neither_alembic_nor_the_other_database(tmp_path: Path) -> None:
    """The one costs a fifth of a second to import, PostgreSQL's drivers some hundredths: only where tables are raised, and where it is used."""
    program = (
        "import asyncio, pathlib, sys\nfrom app.store.runs import open_store\n"
        "async def start():\n    async with open_store(pathlib.Path(sys.argv[1])): pass\n"
        "asyncio.run(start())\nprint(sys.modules.keys() & {'alembic', 'sqlalchemy.dialects.postgresql'})"
    )
    for _ in range(2):  # a new database, and one that is there
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "orion.db")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "set()\n"


async def test_the_first_tables_become_the_newest(database: Database, tmp_path: Path) -> None:
    """After `migrate` a database of the first days has the columns and indexes of a new one, and keeps runs."""
    database.execute(*FIRST_TABLES)
    assert await asyncio.to_thread(database.migrate) == (1, NEWEST)
    new = Database(tmp_path / "new.db")
    await open_once(new)
    assert database.columns() == new.columns()
    assert database.indexes() == new.indexes()
    assert database.indexes()["ix_orion_runs_due"] == (["due_at"], False, True)
    assert database.versions() == [NEWEST]
    async with database.open() as store:
        await store.add(make_run())
        assert await store.get(make_run().id) == make_run()


async def test_tables_are_made_together_or_not_at_all(database: Database) -> None:
    """When the last statement fails, nothing of the first ones is there."""
    database.execute(
        "CREATE TABLE another (x INTEGER)", "CREATE INDEX ix_orion_sessions_used ON another (x)"
    )
    with pytest.raises(UnreadableStoreError):
        await open_once(database)
    assert database.columns() == {}


async def test_an_older_store_is_raised_by_migrate_alone(
    database: Database, tomorrow: Path
) -> None:
    """Opening refuses it untouched; `migrate` keeps its runs and may be repeated; today's Orion then refuses it as newer."""
    run = make_run()
    async with database.open() as store:
        await store.add(run)
    before = database.columns()
    refused = rf"older Orion .*version {NEWEST}.*`orion migrate`"
    with pytest.raises(UnreadableStoreError, match=refused):
        await asyncio.to_thread(database.prepare, versions=tomorrow)
    assert (database.columns(), database.versions()) == (before, [NEWEST])
    for version in (NEWEST, NEWEST + 1):
        raised = await asyncio.to_thread(database.migrate, versions=tomorrow)
        assert raised == (version, NEWEST + 1)
    await asyncio.to_thread(database.prepare, versions=tomorrow)
    assert database.versions() == [NEWEST + 1]
    assert "orion_moods" in database.columns()
    assert "mood" in database.columns()["orion_runs"]
    for use in (database.migrate, database.prepare):
        with pytest.raises(UnreadableStoreError, match=r"newer Orion .*update Orion"):
            await asyncio.to_thread(use)


async def test_a_migration_is_whole_or_nothing(database: Database, tomorrow: Path) -> None:
    """When a later step fails, the earlier ones are undone, and the store works as before."""
    await open_once(database)
    before = database.columns()
    (tomorrow / f"v{NEWEST + 2}_taste.py").write_text(WRONG)
    with pytest.raises(UnreadableStoreError, match="nowhere"):
        await asyncio.to_thread(database.migrate, versions=tomorrow)
    assert (database.columns(), database.versions()) == (before, [NEWEST])
    await open_once(database)


async def test_tables_are_made_however_slow_the_machine_is(database: Database) -> None:
    """Between two statements it may think for longer than a transaction may idle otherwise."""

    def think(*_: object, **__: object) -> None:
        time.sleep(IDLE_TIMEOUT_S + 0.5)

    sa.event.listen(metadata.tables["orion_heard"], "before_create", think, once=True)
    database.prepare()
    assert database.versions() == [NEWEST]


async def test_migrating_an_empty_database_makes_its_tables(database: Database) -> None:
    """As opening it would: a start that died right after making the file is no obstacle."""
    assert database.columns() == {}
    assert await asyncio.to_thread(database.migrate) == (NEWEST, NEWEST)
    assert database.versions() == [NEWEST]
    await open_once(database)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (("DELETE FROM orion_schema",), "version is missing"),
        (("INSERT INTO orion_schema VALUES (99, NULL)",), "version is missing"),
        (("DROP TABLE orion_runs",), "version is missing"),
        (("DROP TABLE orion_sessions",), "no table orion_sessions"),
        (("ALTER TABLE orion_runs DROP COLUMN trace_id",), "no column trace_id"),
        (("DROP TABLE orion_schema", "CREATE TABLE orion_schema (x INTEGER)"), "version"),
    ],
)
async def test_half_made_stores_are_refused(
    database: Database, damage: Sequence[str], reason: str
) -> None:
    """By opening and by `migrate` alike, and left as they are."""
    await open_once(database)
    database.execute(*damage)
    before = database.columns()
    for use in (database.migrate, database.prepare):
        with pytest.raises(UnreadableStoreError, match=reason) as refusal:
            await asyncio.to_thread(use)
        assert "\n" not in str(refusal.value)
    assert database.columns() == before


async def test_half_made_first_tables_are_refused_by_migrate(database: Database) -> None:
    """Whatever it had changed by then is undone."""
    database.execute(*FIRST_TABLES, "ALTER TABLE orion_runs DROP COLUMN trace_id")
    before = database.columns()
    with pytest.raises(UnreadableStoreError, match="no column trace_id"):
        await asyncio.to_thread(database.migrate)
    assert database.columns() == before
