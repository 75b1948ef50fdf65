"""Versions of the tables, on both databases: made, refused, raised in one transaction; and a real old file."""

import asyncio
import gzip
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.errors import ErrorCode, MustEndError
from app.runs.testing import (
    AgentMemory,
    Defaults,
    Run,
    RunFileKind,
    RunId,
    RunState,
    Session,
    SessionStatus,
    SpentCall,
    Thread,
    Usage,
)
from app.store.engine import IDLE_TIMEOUT_S, UnreadableStoreError, open_engine
from app.store.migrations import VERSIONS, migrate_store, newest_version, prepare
from app.store.runs import SqlRunStore, open_store
from app.store.tables import metadata
from tests.building import make_run

OLD_FILE = Path("tests/data/store/version-6.db.gz")
"""By the Orion whose newest tables were those, from an `orion serve` that answered and was stopped; some rows by its stores alone."""
SEALED_WITH = "an-own-keys-secret-for-tests-only-0123456789"
NEWEST = newest_version()
TOMORROW = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{NEWEST + 1}", "{NEWEST}"


def upgrade() -> None:
    op.add_column("orion_runs", sa.Column("mood", sa.String(16)))
    op.create_table("orion_moods", sa.Column("id", sa.Integer))
"""
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


class Database:
    """One database, reached by the store and by hand."""

    def __init__(self, location: Path | str) -> None:
        self._location = location

    def open(self) -> AbstractAsyncContextManager[SqlRunStore]:
        return open_store(self._location)

    def prepare(self, *, versions: Path = VERSIONS) -> None:
        """As opening it does, for an Orion with these migrations."""
        with open_engine(self._location) as engine:
            prepare(engine, "the store", versions=versions)

    def migrate(self, *, versions: Path = VERSIONS) -> tuple[int, int]:
        return migrate_store(self._location, versions=versions)

    def execute(self, *statements: str) -> None:
        with open_engine(self._location) as engine, engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def versions(self) -> Sequence[int]:
        with open_engine(self._location) as engine, engine.connect() as connection:
            return connection.scalars(sa.text("SELECT version FROM orion_schema")).all()

    def columns(self) -> Mapping[str, Mapping[str, bool]]:
        """Of each table of ours, and whether they may be null."""
        with open_engine(self._location) as engine:
            inspector = sa.inspect(engine)
            return {
                table: {one["name"]: one["nullable"] for one in inspector.get_columns(table)}
                for table in inspector.get_table_names()
                if table.startswith("orion_")
            }

    def indexes(self) -> Mapping[str, tuple[Sequence[str | None], bool]]:
        with open_engine(self._location) as engine:
            inspector = sa.inspect(engine)
            return {
                str(index["name"]): (index["column_names"], bool(index["unique"]))
                for table in inspector.get_table_names()
                if table.startswith("orion_")
                for index in inspector.get_indexes(table)
            }


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(tmp_path / "orion.db")
    return Database(str(request.getfixturevalue("postgres_url")))


@pytest.fixture
def tomorrow(tmp_path: Path) -> Path:
    """The migrations of an Orion whose tables have one more column, and one more table."""
    folder = tmp_path / "tomorrow"
    shutil.copytree(VERSIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / f"v{NEWEST + 1}_moods.py").write_text(TOMORROW)
    return folder


async def _open(database: Database) -> None:
    async with database.open():
        pass


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
        await _open(database)
        assert set(database.columns()) == set(metadata.tables)
        assert database.versions() == [NEWEST]


def test_a_start_needs_no_alembic(tmp_path: Path) -> None:
    """It costs a fifth of a second to import: only where tables are raised."""
    program = (
        "import asyncio, pathlib, sys\nfrom app.store.runs import open_store\n"
        "async def start():\n    async with open_store(pathlib.Path(sys.argv[1])): pass\n"
        "asyncio.run(start())\nprint('alembic' in sys.modules)"
    )
    for _ in range(2):  # a new database, and one that is there
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "orion.db")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "False\n"


async def test_the_first_tables_become_the_newest(database: Database, tmp_path: Path) -> None:
    """After `migrate` a database of the first days has the columns and indexes of a new one, and keeps runs."""
    database.execute(*FIRST_TABLES)
    assert await asyncio.to_thread(database.migrate) == (1, NEWEST)
    new = Database(tmp_path / "new.db")
    await _open(new)
    assert database.columns() == new.columns()
    assert database.indexes() == new.indexes()
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
        await _open(database)
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


def _say_it_only_adds(tomorrow: Path) -> None:
    path = tomorrow / f"v{NEWEST + 1}_moods.py"
    path.write_text(path.read_text() + "\n\nis_additive = True\n")


async def test_while_something_is_only_added_today_goes_on(
    database: Database, tomorrow: Path
) -> None:
    """Today's Orion is at work while tomorrow's tables are made, and works and starts on them; a later change ends that."""
    _say_it_only_adds(tomorrow)
    async with database.open() as store:
        await store.leases.join()
        assert await asyncio.to_thread(database.migrate, versions=tomorrow) == (NEWEST, NEWEST + 1)
        await store.add(make_run())
        assert await store.get(make_run().id) == make_run()
        await store.leases.leave()
    await _open(database)
    assert await asyncio.to_thread(database.migrate) == (NEWEST + 1, NEWEST + 1)
    await asyncio.to_thread(database.prepare, versions=tomorrow)
    (tomorrow / f"v{NEWEST + 2}_tastes.py").write_text(
        TOMORROW.replace("mood", "taste")
        .replace(f'"{NEWEST}"', f'"{NEWEST + 1}"')
        .replace(
            f'revision, down_revision = "{NEWEST + 1}"', f'revision, down_revision = "{NEWEST + 2}"'
        )
    )
    await asyncio.to_thread(database.migrate, versions=tomorrow)
    with pytest.raises(UnreadableStoreError, match="newer Orion"):
        await _open(database)


@pytest.mark.postgresql
async def test_what_changes_tables_waits_for_the_end_of_all_processes(
    postgres_url: str, tomorrow: Path
) -> None:
    """They are named, and nothing has changed."""
    database = Database(postgres_url)
    async with database.open() as store:
        await store.leases.join()
        name = store.leases.process.name
        with pytest.raises(UnreadableStoreError, match=f"is at work .{name}.*stop these"):
            await asyncio.to_thread(database.migrate, versions=tomorrow)
        assert database.versions() == [NEWEST]
        await store.leases.leave()
    assert await asyncio.to_thread(database.migrate, versions=tomorrow) == (NEWEST, NEWEST + 1)


@pytest.mark.postgresql
@pytest.mark.parametrize("only_adds", [True, False])
async def test_who_was_away_while_tables_were_raised_asks_for_their_version(
    postgres_url: str, tomorrow: Path, *, only_adds: bool
) -> None:
    """It was taken for dead, and comes back: it goes on where something was added, and else ends as it would not have started."""
    if only_adds:
        _say_it_only_adds(tomorrow)
    database = Database(postgres_url)
    async with database.open() as store:
        await store.leases.join()
        database.execute("UPDATE orion_processes SET alive_until = 1")
        await asyncio.to_thread(database.migrate, versions=tomorrow)
        if only_adds:
            assert await store.leases.renew() == 1
            await store.leases.join()
            return
        assert await store.leases.renew() == 0
        with pytest.raises(MustEndError, match=r"newer Orion .*update Orion"):
            await store.leases.join()
        assert await store.leases.living() == []


async def test_what_says_that_it_only_adds_does(database: Database, tomorrow: Path) -> None:
    """Every migration that says so: tables and columns are as before, and new columns need no value of who does not know them."""
    _say_it_only_adds(tomorrow)
    await _open(database)
    before = database.columns()
    await asyncio.to_thread(database.migrate, versions=tomorrow)
    assert _not_only_added(before, database.columns()) == []
    database.execute("DROP TABLE orion_defaults")
    assert _not_only_added(before, database.columns()) == ["orion_defaults"]
    for path in VERSIONS.glob("v*.py"):
        calls = set(re.findall(r"op\.(\w+)\(", path.read_text()))
        if "is_additive = True" in path.read_text().splitlines():
            # An index is no promise: what reads without it, reads the same.
            assert calls <= {"add_column", "create_table", "create_index", "drop_index"}, path.name
            # A table that nobody else knows may want whatever it likes.
            is_new = "add_column" not in calls or "nullable=False" not in path.read_text()
            assert is_new or "server_default" in path.read_text()


def _not_only_added(
    before: Mapping[str, Mapping[str, bool]], after: Mapping[str, Mapping[str, bool]]
) -> list[str]:
    """Tables that lack something, or want a value that was not there."""
    return [
        table
        for table, columns in before.items()
        if table not in after
        or any(after[table].get(name) is not is_null for name, is_null in columns.items())
        or not all(after[table][name] for name in set(after[table]) - set(columns))
    ]


async def test_a_migration_is_whole_or_nothing(database: Database, tomorrow: Path) -> None:
    """When a later step fails, the earlier ones are undone, and the store works as before."""
    await _open(database)
    before = database.columns()
    (tomorrow / f"v{NEWEST + 2}_taste.py").write_text(WRONG)
    with pytest.raises(UnreadableStoreError, match="nowhere"):
        await asyncio.to_thread(database.migrate, versions=tomorrow)
    assert (database.columns(), database.versions()) == (before, [NEWEST])
    await _open(database)


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
    await _open(database)


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
    await _open(database)
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


async def test_sums_of_days_begin_with_what_was_spent(database: Database) -> None:
    """Of yesterday and today: a budget that was used up stays so; keys of people and unknown costs count for none."""
    now = datetime.now(UTC)
    calls = [
        SpentCall(
            id=f"{number}",
            run_id=RunId("run_1"),
            agent="claude",
            model="m",
            team="T1",
            user=user,
            channel="C1",
            at=now - timedelta(days=age),
            usage=Usage(),
            cost=cost,
            is_own_key=is_own_key,
        )
        for number, (user, age, cost, is_own_key) in enumerate(
            [
                ("U1", 0, 5, False),
                ("U2", 0, 7, False),
                ("U1", 0, None, False),
                ("U1", 0, 9, True),
                ("U1", 30, 11, False),
            ]
        )
    ]
    async with database.open() as store:
        await store.spending.add(calls)
    kept = ("by", "until", "environment")
    added = (
        *("spent_days", "grants", "grant_calls", "installation"),
        *(
            "welcomes",
            "muted_threads",
            "channel_notes",
            "heard",
            "approvals",
            "approval_hits",
            "accounts",
            "account_codes",
            "pull_requests",
            "slack_facts",
            "audit",
        ),
    )
    database.execute(
        *(f"DROP TABLE orion_{name}" for name in added),
        "ALTER TABLE orion_runs DROP COLUMN checkpoint",
        "ALTER TABLE orion_runs DROP COLUMN drained",
        "ALTER TABLE orion_runs DROP COLUMN effective",
        *(f"DROP INDEX ix_orion_runs_{name}" for name in ("created", "delivery")),
        *(f"ALTER TABLE orion_processes DROP COLUMN {name}" for name in ("settings", "host")),
        *(f"ALTER TABLE orion_sessions DROP COLUMN kept_{name}" for name in kept),
        "ALTER TABLE orion_schema DROP COLUMN oldest",
        "UPDATE orion_schema SET version = 10",
    )
    assert database.migrate() == (10, newest_version())
    async with database.open() as store:
        assert await store.spending.sums(now.date()) == {
            ("user", "T1", "U1"): 5,
            ("user", "T1", "U2"): 7,
            ("channel", "T1", "C1"): 12,
            ("all", "", ""): 12,
        }
        assert not await store.spending.sums((now - timedelta(days=30)).date())


@pytest.fixture
def old(tmp_path: Path) -> Database:
    """A database that an older Orion has worked with."""
    path = tmp_path / "orion.db"
    path.write_bytes(gzip.decompress(OLD_FILE.read_bytes()))
    return Database(path)


async def test_an_old_file_is_brought_along(old: Database) -> None:
    """It waits for `migrate`; then all that was in it is there, and people go on where they were."""
    with pytest.raises(UnreadableStoreError, match=r"older Orion .*version 6.*`orion migrate`"):
        await _open(old)
    assert await asyncio.to_thread(old.migrate) == (6, NEWEST)
    async with old.open() as store:
        await store.examine()
        runs = {run.request.text: run for run in await store.recent(limit=100)}
        _assert_runs_are_there(runs)
        answered = runs["run: echo kept > notes.txt"]
        assert "echo kept" in await store.files.load(answered.id, RunFileKind.LOG)
        assert "+kept" in await store.files.load(answered.id, RunFileKind.PATCH)
        calls = await store.spending.of_run(answered.id)
        assert len(calls) == answered.result.usage.model_calls == 2
        (call,) = await store.spending.of_run(runs["fix the build again"].id)
        assert (call.cost, call.is_own_key, call.usage.output_tokens) == (250_000, True, 4)
        wanted = Defaults(
            agent="claude",
            model="opus",
            model_agent="claude",
            sandbox="docker",
            repo="acme/api",
            branch="main",
        )
        assert await store.defaults.get("T0PLAY", "U0OLD") == wanted
        keys = await store.own_keys([SEALED_WITH]).of("T0PLAY", "U0OLD")
        assert keys == {"anthropic": "sk-ant-a-key-of-a-person"}
        _assert_sessions_are_there({one.name: one for one in await store.sessions.all()})


@pytest.mark.parametrize(
    "change",
    ["UPDATE orion_runs SET cost_usd = 9e999", "UPDATE orion_runs SET cost_usd = -1.0"],
)
async def test_a_cost_of_an_old_file_that_is_no_money_is_unknown(
    old: Database, change: str
) -> None:
    """An agent's word was once taken as it came."""
    old.execute(change)
    await asyncio.to_thread(old.migrate)
    async with old.open() as store:
        runs = await store.recent(limit=100)
        assert {run.result.cost_usd for run in runs} == {None}
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        assert {one.cost for one in await store.spending.of_runs(long_ago)} == {None}


def _assert_runs_are_there(runs: Mapping[str, Run]) -> None:
    states = {text: run.state for text, run in runs.items()}
    assert states == {
        "what is the weather?": RunState.SUCCEEDED,
        "run: echo kept > notes.txt": RunState.SUCCEEDED,
        "!context": RunState.FAILED,
        "settings model=opus": RunState.SUCCEEDED,
        "fix the build \x00 now": RunState.PLACED,
        "fix the build again": RunState.FAILED,
    }
    assert runs["!context"].result.error_code is ErrorCode.MODEL_CONTEXT_EXCEEDED
    assert "offline model" in runs["what is the weather?"].result.answer
    assert runs["run: echo kept > notes.txt"].result.steps == 1
    failed = runs["fix the build again"]
    assert (failed.result.error_code, failed.part_ts) == (ErrorCode.AGENT_IDLE, ("1.1", "1.2"))
    assert failed.result.usage == Usage(input_tokens=3, output_tokens=4)
    assert (failed.result.cost_usd, failed.revision) == (0.25, 0)


def _assert_sessions_are_there(sessions: Mapping[str, Session]) -> None:
    moved = sessions["patient-heron"]
    assert moved.thread == Thread(team="T0PLAY", channel="C0OLD", thread_ts="1795302364.000100")
    assert (moved.provider, moved.status) == ("vercel", SessionStatus.RUNNING)
    assert moved.elsewhere == {"docker": "image-1"}
    assert moved.snapshots == {"docker": "image-1", "vercel": "snap_2"}
    assert (moved.detached, moved.detached_environment) == ("env_3", "env_3")
    assert (moved.base_branch, moved.chosen_model) == ("main", "opus")
    assert moved.memory == AgentMemory(
        session_id="11111111-2222-4333-8444-555555555555", until_ts="1795302365.000200"
    )
    # What was heard by another memory than the one that is kept says nothing of it.
    assert sessions["sudden-lynx"].memory == AgentMemory(
        session_id="bbbbbbbb-2222-4333-8444-555555555555"
    )
    (kept,) = (one for one in sessions.values() if one.provider == "local" and one.snapshot_slug)
    assert kept.memory.is_unnamed
    assert (kept.elsewhere, kept.detached, kept.base_branch) == ({}, "", "")


async def test_an_old_file_is_written_on(old: Database) -> None:
    """A waiting run begins, a session is changed, a new one is added."""
    await asyncio.to_thread(old.migrate)
    async with old.open() as store:
        (waiting,) = await store.unfinished()
        (claimed,) = await store.leases.claim(slots=1, waits_s=1e9)
        assert claimed == waiting
        begun = await store.begin(waiting, agent="claude")
        assert (begun.state, begun.attempt, begun.agent) == (RunState.RUNNING, 1, "claude")
        (session,) = await store.sessions.find("patient-heron")
        changed = await store.sessions.update(session.id, detached="", elsewhere={})
        assert changed is not None
        assert (changed.detached_environment, changed.elsewhere) == ("", {})
        await store.add(make_run())
        assert await store.get(make_run().id) == make_run()
