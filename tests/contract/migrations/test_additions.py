"""Tables raised while processes are at work: what only adds lets today's go on, all else waits for their end."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.errors import MustEndError
from app.store.engine import UnreadableStoreError
from app.store.migrations import VERSIONS
from tests.building import make_run
from tests.contract.migrations.database import NEWEST, TOMORROW, Database, open_once


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
    await open_once(database)
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
        await open_once(database)


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
    await open_once(database)
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
