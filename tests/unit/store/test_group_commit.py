"""Rows that wait together share a statement, and no fate."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from app.store.engine import accepting_engine
from app.store.group_commit import GroupCommit
from sandbox_runtime.task_group import open_task_group
from tests.waiting import until

TIMEOUT_S = 1.0
names = sa.Table(
    "names",
    sa.MetaData(),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
)
INSERT = insert(names).on_conflict_do_nothing().returning(names.c.id)


@dataclass
class Names:
    """A table of names, whose first transaction waits until it `may_go_on`."""

    engine: sa.Engine
    commits: GroupCommit
    begun: int = 0
    """Transactions."""
    may_go_on: threading.Event = field(default_factory=threading.Event)

    async def add(self, name: str, *, kind: str | None = "") -> bool:
        return await self.commits.add({"id": name, "kind": kind})

    def count(self, _connection: sa.Connection) -> None:
        self.begun += 1
        assert self.may_go_on.wait(10)

    def written(self) -> list[str]:
        with self.engine.begin() as connection:
            return sorted(connection.scalars(sa.select(names.c.id)))


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[Names]:
    engine = accepting_engine(tmp_path / "names.db", timeout_s=1)
    names.create(engine)
    commits = GroupCommit(engine, INSERT, timeout_s=TIMEOUT_S)
    table = Names(engine=engine, commits=commits)
    sa.event.listen(engine, "begin", table.count)
    yield table
    table.may_go_on.set()
    await commits.close()


async def test_those_that_wait_share_the_next_transaction(table: Names) -> None:
    """However many they are."""
    async with open_task_group() as group:
        first = group.create_task(table.add("first"))
        await until(lambda: table.begun == 1)
        others = [group.create_task(table.add(f"other {number}")) for number in range(20)]
        await asyncio.sleep(0)
        table.may_go_on.set()
    assert all(each.result() for each in (first, *others))
    assert table.begun == 2
    assert len(table.written()) == 21


async def test_one_that_fails_fails_alone(table: Names) -> None:
    """The others are stored, and it is told that it is not."""
    async with open_task_group() as group:
        group.create_task(table.add("first"))
        await until(lambda: table.begun == 1)
        others = [group.create_task(table.add(name)) for name in ("second", "third")]
        wrong = group.create_task(_refused(table, "wrong", kind=None))
        await asyncio.sleep(0)
        table.may_go_on.set()
    assert wrong.result()
    assert all(each.result() for each in others)
    assert table.written() == ["first", "second", "third"]


async def _refused(table: Names, name: str, *, kind: str | None = "") -> bool:
    try:
        await table.add(name, kind=kind)
    except OSError:
        return True
    return False


async def test_who_has_given_up_is_not_written(table: Names) -> None:
    """Neither after a cancellation nor after the time that Slack waits; who comes then is."""
    async with open_task_group() as group:
        group.create_task(_refused(table, "first"))  # later than it may
        await until(lambda: table.begun == 1)
        cancelled = group.create_task(table.add("cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            await table.add("late")
        table.may_go_on.set()
        assert await table.add("next")
    assert table.written() == ["first", "next"]


async def test_of_equal_rows_one_is_new(table: Names) -> None:
    """In one statement, and after it."""
    async with open_task_group() as group:
        group.create_task(table.add("first"))
        await until(lambda: table.begun == 1)
        twins = [group.create_task(table.add("twin")) for _ in range(3)]
        await asyncio.sleep(0)
        table.may_go_on.set()
    assert [twin.result() for twin in twins] == [True, False, False]
    assert not await table.add("twin")


async def test_a_locked_database_keeps_nobody_waiting_for_the_others(table: Names) -> None:
    """All of a statement are told once, and who comes when it is free is stored."""
    table.may_go_on.set()
    other = sqlite3.connect(str(table.engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with open_task_group() as group:
        many = [group.create_task(_refused(table, f"name {number}")) for number in range(20)]
    assert all(one.result() for one in many)
    # For those that joined in the last moment: at most one more statement.
    await asyncio.sleep(2 * TIMEOUT_S)
    other.execute("COMMIT")
    other.close()
    assert await table.add("next")
    assert table.written() == ["next"]
