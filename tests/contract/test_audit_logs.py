"""What every audit log promises, as two processes have it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.audit.records import Act, AuditLog, AuditQuery
from app.store.memory import MemoryRunStore
from app.store.runs import open_store
from tests.building import T0, make_entry


@dataclass(frozen=True)
class Logs:
    one: AuditLog
    other: AuditLog


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Logs]:
    if request.param == "memory":
        alone = MemoryRunStore()
        yield Logs(alone.audit, alone.audit)
        return
    is_sqlite = request.param == "sqlite"
    where = tmp_path / "orion.db" if is_sqlite else request.getfixturevalue("postgres_url")
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(open_store(where)) for _ in range(2)]
        yield Logs(first.audit, second.audit)


async def test_an_entry_stays_as_it_was_written(logs: Logs) -> None:
    """Whatever comes later under its id, from whichever process."""
    entry = make_entry(target="caf\u00e9 \u6f22", reason="x" * 5_000)
    await logs.one.add(entry)
    await logs.other.add(replace(entry, is_allowed=not entry.is_allowed, reason="changed"))
    assert await logs.other.find(AuditQuery()) == [entry]


async def test_what_is_asked_for_is_found(logs: Logs) -> None:
    """The newest first, so many; by person, place, act, run, time and answer, and by all of them."""
    refused = make_entry(id="b", user="U2", is_allowed=False, at=T0 + timedelta(seconds=1))
    entries = [
        make_entry(id="a"),
        refused,
        make_entry(id="c", act=Act.STOP, channel="C2", at=T0 + timedelta(seconds=2)),
        make_entry(id="d", run_id="run_2", at=T0 + timedelta(seconds=3)),
    ]
    for entry in entries:
        await logs.one.add(entry)
    found = {
        query: [entry.id for entry in await logs.other.find(query)]
        for query in (
            AuditQuery(),
            AuditQuery(limit=2),
            AuditQuery(user="U2"),
            AuditQuery(channel="C2"),
            AuditQuery(act=Act.STOP),
            AuditQuery(run_id="run_2"),
            AuditQuery(run_id="run%"),
            AuditQuery(run_id="run"),
            AuditQuery(is_allowed=False),
            AuditQuery(since=T0 + timedelta(seconds=2)),
            AuditQuery(user="U2", is_allowed=False, act=Act.ASK),
            AuditQuery(user="U2", is_allowed=True),
        )
    }
    assert list(found.values()) == [
        ["d", "c", "b", "a"],
        ["d", "c"],
        ["b"],
        ["c"],
        ["c"],
        ["d"],
        [],
        ["d", "c", "b", "a"],
        ["b"],
        ["d", "c"],
        ["b"],
        [],
    ]
    assert (await logs.other.find(AuditQuery(user="U2")))[0] == refused


async def test_the_oldest_are_removed(logs: Logs) -> None:
    """So many at once, and what is younger stays."""
    for number in range(5):
        await logs.one.add(make_entry(id=str(number), at=T0 + timedelta(days=number)))
    before = T0 + timedelta(days=4)
    removed = [await logs.other.remove(before=before, limit=3) for _ in range(3)]
    assert removed == [3, 1, 0]
    assert [entry.id for entry in await logs.one.find(AuditQuery())] == ["4"]
