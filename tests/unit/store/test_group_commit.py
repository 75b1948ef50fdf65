"""Writes that wait together share a transaction, and no fate."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.store.engine import accepting_engine
from app.store.group_commit import GroupCommit
from sandbox_runtime.task_group import open_task_group
from tests.waiting import until

TIMEOUT_S = 1.0
INSERT = sa.text("INSERT INTO names VALUES (:name)")


@dataclass
class Names:
    """A table of names, written through a group commit whose first write waits until it `may_go_on`."""

    engine: sa.Engine
    commits: GroupCommit
    begun: int = 0
    """Transactions."""
    may_go_on: threading.Event = field(default_factory=threading.Event)

    async def add(self, name: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            assert self.may_go_on.wait(10)
            connection.execute(INSERT, {"name": name})
            return True

        return await self.commits.commit(work)

    def written(self) -> list[str]:
        with self.engine.begin() as connection:
            return sorted(connection.scalars(sa.text("SELECT name FROM names")))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = accepting_engine(tmp_path / "names.db", timeout_s=1)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE names (name TEXT PRIMARY KEY)")
    yield engine
    engine.dispose()


@pytest.fixture
async def names(engine: sa.Engine) -> AsyncIterator[Names]:
    commits = GroupCommit(engine, timeout_s=TIMEOUT_S)
    names = Names(engine=engine, commits=commits)

    def count(_connection: sa.Connection) -> None:
        names.begun += 1

    sa.event.listen(engine, "begin", count)
    yield names
    names.may_go_on.set()
    await commits.close()


async def test_those_that_wait_share_the_next_transaction(names: Names) -> None:
    """However many they are."""
    async with open_task_group() as group:
        first = group.create_task(names.add("first"))
        await until(lambda: names.begun == 1)
        others = [group.create_task(names.add(f"other {number}")) for number in range(20)]
        await asyncio.sleep(0)
        names.may_go_on.set()
    assert all(each.result() for each in (first, *others))
    assert names.begun == 2
    assert len(names.written()) == 21


async def test_one_that_fails_fails_alone(names: Names) -> None:
    """The others are stored, and it is told that it is not."""
    async with open_task_group() as group:
        group.create_task(names.add("first"))
        await until(lambda: names.begun == 1)
        others = [group.create_task(names.add(name)) for name in ("second", "third")]
        again = group.create_task(_refused(names, "first"))
        await asyncio.sleep(0)
        names.may_go_on.set()
    assert again.result()
    assert all(each.result() for each in others)
    assert names.written() == ["first", "second", "third"]


async def _refused(names: Names, name: str) -> bool:
    try:
        await names.add(name)
    except OSError:
        return True
    return False


async def test_who_has_given_up_is_not_written(names: Names) -> None:
    """Neither after a cancellation nor after the time that Slack waits; who comes then is."""
    async with open_task_group() as group:
        group.create_task(_refused(names, "first"))  # later than it may
        await until(lambda: names.begun == 1)
        cancelled = group.create_task(names.add("cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            await names.add("late")
        names.may_go_on.set()
        assert await names.add("next")
    assert names.written() == ["first", "next"]
