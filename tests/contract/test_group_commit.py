"""Rows that wait together share a statement, and no fate; on both databases."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from typing_extensions import override

from app.store.engine import (
    accepting_connection,
    accepting_engine,
    limits_of,
    postgres_engine,
    sqlite_engine,
)
from app.store.group_commit import GroupCommit, Outcome, Row, Writer
from app.store.writers import PostgresWriter, SqliteWriter
from sandbox_runtime.task_group import TaskGroup, open_task_group
from tests.contract.building import POSTGRESQL
from tests.waiting import until

TIMEOUT_S = 1.0
names = sa.Table(
    "names",
    sa.MetaData(),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
)


@dataclass
class Gate(Writer):
    """Lets its first rows wait until they may go on."""

    writer: Writer
    begun: int = 0
    """Batches."""
    is_open: bool = False
    held: list[tuple[Sequence[Row], Callable[[Sequence[Outcome]], None]]] = field(
        default_factory=list
    )

    @override
    def begin(self, rows: Sequence[Row], tell: Callable[[Sequence[Outcome]], None]) -> None:
        self.begun += 1
        if self.is_open:
            self.writer.begin(rows, tell)
        else:
            self.held.append((rows, tell))

    def open(self) -> None:
        self.is_open = True
        while self.held:
            self.writer.begin(*self.held.pop())

    @override
    async def close(self) -> None:
        await self.writer.close()


@dataclass
class Names:
    """A table of names."""

    engine: sa.Engine
    gate: Gate
    commits: GroupCommit

    async def add(self, name: str, *, kind: str | None = "") -> bool:
        return await self.commits.add({"id": name, "kind": kind})

    def written(self) -> list[str]:
        with self.engine.begin() as connection:
            return sorted(connection.scalars(sa.select(names.c.id)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Somebody else has what a writer needs."""
        if self.engine.dialect.name == "sqlite":
            database = str(self.engine.url.database)
            with closing(sqlite3.connect(database, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                yield
        else:
            with self.engine.begin() as other:
                other.exec_driver_sql(
                    "SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE names"
                )
                yield


def _writer_on(engine: sa.Engine, group: TaskGroup) -> Writer:
    if engine.dialect.name == "sqlite":
        accepting = accepting_engine(Path(str(engine.url.database)))
        return SqliteWriter(accepting, names, timeout_s=TIMEOUT_S)
    return PostgresWriter(
        accepting_connection(engine, timeout_s=TIMEOUT_S),
        names,
        dialect=engine.dialect,
        group=group,
        limit=limits_of(statement_timeout=TIMEOUT_S),
    )


@pytest.fixture(params=["sqlite", POSTGRESQL])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Names]:
    engine = (
        sqlite_engine(tmp_path / "names.db")
        if request.param == "sqlite"
        else postgres_engine(request.getfixturevalue("postgres_url"))
    )
    names.create(engine)
    async with open_task_group() as group:
        gate = Gate(_writer_on(engine, group))
        yield Names(engine=engine, gate=gate, commits=GroupCommit(gate, timeout_s=TIMEOUT_S))
        gate.open()
        await gate.close()
    engine.dispose()


async def test_those_that_wait_share_the_next_transaction(table: Names) -> None:
    """However many they are."""
    async with open_task_group() as group:
        first = group.create_task(table.add("first"))
        await until(lambda: table.gate.begun == 1)
        others = [group.create_task(table.add(f"other {number}")) for number in range(20)]
        await asyncio.sleep(0)
        table.gate.open()
    assert all(each.result() for each in (first, *others))
    assert table.gate.begun == 2
    assert len(table.written()) == 21


async def test_one_that_fails_fails_alone(table: Names) -> None:
    """The others are stored, and it is told that it is not."""
    async with open_task_group() as group:
        group.create_task(table.add("first"))
        await until(lambda: table.gate.begun == 1)
        others = [group.create_task(table.add(name)) for name in ("second", "third")]
        wrong = group.create_task(_refused(table, "wrong", kind=None))
        await asyncio.sleep(0)
        table.gate.open()
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
        await until(lambda: table.gate.begun == 1)
        cancelled = group.create_task(table.add("cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            await table.add("late")
        table.gate.open()
        assert await table.add("next")
    assert table.written() == ["first", "next"]


async def test_of_equal_rows_one_is_new(table: Names) -> None:
    """In one statement, and after it."""
    async with open_task_group() as group:
        group.create_task(table.add("first"))
        await until(lambda: table.gate.begun == 1)
        twins = [group.create_task(table.add("twin")) for _ in range(3)]
        await asyncio.sleep(0)
        table.gate.open()
    assert [twin.result() for twin in twins] == [True, False, False]
    assert not await table.add("twin")


async def test_a_locked_database_keeps_nobody_waiting_for_the_others(table: Names) -> None:
    """All of a statement are told once, and who comes when it is free is stored."""
    table.gate.open()
    with table.locked():
        async with open_task_group() as group:
            many = [group.create_task(_refused(table, f"name {number}")) for number in range(20)]
        assert all(one.result() for one in many)
        # For those that joined in the last moment: at most one more statement.
        await asyncio.sleep(2 * TIMEOUT_S)
    assert await table.add("next")
    assert table.written() == ["next"]
