"""Versions of the tables, on both databases: made, refused, raised in one transaction."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.store import schema
from app.store.engines import postgres_engine, sqlite_engine
from app.store.schema import UnreadableStoreError
from app.store.sql import SqlRunStore, migrate_store, open_postgres_store, open_sqlite_store
from tests.building import make_run

ADDED: tuple[int, Sequence[str]] = (
    2,
    ("ALTER TABLE orion_runs ADD COLUMN mood VARCHAR(16)", "CREATE TABLE orion_moods (id INTEGER)"),
)
WRONG = (
    3,
    ("ALTER TABLE orion_runs ADD COLUMN taste VARCHAR(16)", "ALTER TABLE nowhere ADD x INT"),
)


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


class Database:
    """One database, reached by the store and by hand."""

    def __init__(self, location: Path | str) -> None:
        self._location = location

    def engine(self) -> sa.Engine:
        if isinstance(self._location, Path):
            return sqlite_engine(self._location)
        return postgres_engine(self._location)

    def open(self) -> AbstractAsyncContextManager[SqlRunStore]:
        if isinstance(self._location, Path):
            return open_sqlite_store(self._location)
        return open_postgres_store(self._location)

    def migrate(self) -> tuple[int, int]:
        return migrate_store(self.engine(), "the store")

    def execute(self, *statements: str) -> None:
        engine = self.engine()
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))
        engine.dispose()

    def facts(self) -> tuple[set[str], set[str], Sequence[int]]:
        """Tables, columns of the runs, versions."""
        engine = self.engine()
        with engine.connect() as connection:
            inspector = sa.inspect(connection)
            tables = set(inspector.get_table_names())
            columns = (
                {column["name"] for column in inspector.get_columns("orion_runs")}
                if "orion_runs" in tables
                else set()
            )
            versions = (
                connection.scalars(sa.text("SELECT version FROM orion_schema")).all()
                if "orion_schema" in tables
                else []
            )
        engine.dispose()
        return tables, columns, versions


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(tmp_path / "orion.db")
    return Database(str(request.getfixturevalue("postgres_url")))


@pytest.fixture
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Orion whose first tables are its newest."""
    monkeypatch.setattr(schema, "MIGRATIONS", ())


@pytest.fixture
def _tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Orion whose tables have one more column, and one more table."""
    monkeypatch.setattr(schema, "MIGRATIONS", (ADDED,))


async def _open(database: Database) -> None:
    async with database.open():
        pass


async def test_new_tables_have_the_newest_version(database: Database) -> None:
    """The runs and their version are there after the first opening, and the second changes nothing."""
    for _ in range(2):
        await _open(database)
        tables, _columns, versions = database.facts()
        assert tables == set(schema.metadata.tables)
        assert versions == [schema.newest_version()]


async def test_the_first_tables_become_the_newest(database: Database, tmp_path: Path) -> None:
    """After `migrate` a database of the first days has the columns of a new one, and keeps runs."""
    database.execute(*FIRST_TABLES)
    assert await asyncio.to_thread(database.migrate) == (1, schema.newest_version())
    new = Database(tmp_path / "new.db")
    await _open(new)
    assert database.facts() == new.facts()
    async with database.open() as store:
        await store.add(make_run())
        assert await store.get(make_run().id) == make_run()
    numbers = [version for version, _statements in schema.MIGRATIONS]
    assert numbers == list(range(2, schema.newest_version() + 1))


async def test_tables_are_made_together_or_not_at_all(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last statement fails, nothing of the first ones is there."""
    monkeypatch.setattr(schema, "newest_version", lambda: "no number")
    with pytest.raises(UnreadableStoreError):
        await _open(database)
    assert database.facts()[0] == set()


@pytest.mark.usefixtures("_tomorrow")
async def test_an_older_store_is_raised_by_migrate_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening refuses it untouched; `migrate` keeps its runs and may be repeated; today's Orion then refuses it as newer."""
    run = make_run()
    with monkeypatch.context() as today:
        today.setattr(schema, "MIGRATIONS", ())
        async with database.open() as store:
            await store.add(run)
    database.execute("DROP TABLE orion_schema")  # as it was before there were versions
    before = database.facts()
    with pytest.raises(UnreadableStoreError, match=r"older Orion .*version 1.*`orion migrate`"):
        await _open(database)
    assert database.facts() == before
    assert await asyncio.to_thread(database.migrate) == (1, 2)
    assert await asyncio.to_thread(database.migrate) == (2, 2)
    async with database.open() as store:
        assert await store.get(run.id) == run
    tables, columns, versions = database.facts()
    assert ("orion_moods" in tables, "mood" in columns, versions) == (True, True, [2])
    monkeypatch.setattr(schema, "MIGRATIONS", ())
    for use in (database.migrate, lambda: asyncio.run(_open(database))):
        with pytest.raises(UnreadableStoreError, match=r"newer Orion .*update Orion"):
            await asyncio.to_thread(use)


@pytest.mark.usefixtures("_today")
async def test_a_migration_is_whole_or_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a later step fails, the earlier ones are undone, and the store works as before."""
    await _open(database)
    before = database.facts()
    with monkeypatch.context() as tomorrow:
        tomorrow.setattr(schema, "MIGRATIONS", (ADDED, WRONG))
        with pytest.raises(UnreadableStoreError, match="nowhere"):
            await asyncio.to_thread(database.migrate)
    assert database.facts() == before
    await _open(database)


async def test_migrating_an_empty_database_makes_its_tables(database: Database) -> None:
    """As opening it would: a start that died right after making the file is no obstacle."""
    assert database.facts()[0] == set()
    newest = schema.newest_version()
    assert await asyncio.to_thread(database.migrate) == (newest, newest)
    assert database.facts()[2] == [newest]
    await _open(database)


@pytest.mark.usefixtures("_today")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (("DELETE FROM orion_schema",), "version is missing"),
        (("INSERT INTO orion_schema VALUES (7)",), "version is missing"),
        (("DROP TABLE orion_runs",), "version is missing"),
        (("DROP TABLE orion_sessions",), "no table orion_sessions"),
        (("ALTER TABLE orion_runs DROP COLUMN trace_id",), "no column trace_id"),
        (("ALTER TABLE orion_runs DROP COLUMN trace_id", "DROP TABLE orion_schema"), "trace_id"),
        (("DROP TABLE orion_schema", "CREATE TABLE orion_schema (x INTEGER)"), "version"),
    ],
)
async def test_half_made_stores_are_refused(
    database: Database, damage: Sequence[str], reason: str
) -> None:
    """By opening and by `migrate` alike, and left as they are."""
    await _open(database)
    database.execute(*damage)
    before = sorted(database.facts()[0]) if "(x INTEGER)" not in damage[-1] else None
    for use in (database.migrate, lambda: asyncio.run(_open(database))):
        with pytest.raises(UnreadableStoreError, match=reason) as refusal:
            await asyncio.to_thread(use)
        assert "\n" not in str(refusal.value)
    if before is not None:
        assert sorted(database.facts()[0]) == before


@pytest.mark.postgresql
async def test_a_postgresql_that_cannot_be_used_is_named_without_its_password(
    postgres_url: str,
) -> None:
    """Nobody listens, or the database is not there."""
    base = postgres_url.replace("orion@", "orion:secret-3141@").rpartition("/")[0]
    for url in (f"{base}/no_such_database", "postgresql://orion:secret-3141@127.0.0.1:1/orion"):
        with pytest.raises(UnreadableStoreError, match=r"cannot be used \(.+\): check") as refusal:
            async with open_postgres_store(url):
                pass
        assert "127.0.0.1" in str(refusal.value)
        assert "3141" not in str(refusal.value)
