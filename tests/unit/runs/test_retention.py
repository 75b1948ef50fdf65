"""When old runs are removed, and what survives it."""

from collections.abc import Collection
from datetime import datetime, timedelta

import pytest
from typing_extensions import override

from app.dispatch.records import RecordDispatcher
from app.runs.testing import RETENTION_INTERVAL_S, START_DELAY_S, Retention, RunId, RunState
from app.store.memory import MemoryRunStore
from tests.building import T0, make_request, make_run


class EndOfTestError(Exception):
    """The clock's last word."""


class ScriptedClock:
    """Sleeps at once, a number of times."""

    def __init__(self, rounds: int) -> None:
        self.slept: list[float] = []
        self._rounds = rounds

    def now(self) -> datetime:
        return T0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) > self._rounds:
            raise EndOfTestError


class Engine(RecordDispatcher):
    """Notes what it is asked to forget; fails the first time."""

    def __init__(self) -> None:
        super().__init__(MemoryRunStore())
        self.asked: list[tuple[datetime, Collection[RunId]]] = []

    @override
    async def forget(self, *, before: datetime, limit: int, keep: Collection[RunId]) -> int:
        self.asked.append((before, keep))
        if len(self.asked) == 1:
            raise OSError("the database is away")
        return 2


async def test_rounds_come_after_the_start_and_hourly_and_outlive_a_failure() -> None:
    """Unfinished runs are named to the engine as to be kept; a failed round removes nothing, the next one does."""
    store, engine, clock = MemoryRunStore(), Engine(), ScriptedClock(rounds=2)
    old, unfinished = (make_run(make_request(ts=f"{n}.000001"), age_s=9 * 86_400) for n in (1, 2))
    for run in (old, unfinished):
        await store.add(run)
    await store.update(old.id, state=RunState.STOPPED)
    asked: list[datetime] = []

    async def remove_sessions(before: datetime) -> int:
        asked.append(before)
        return 1

    retention = Retention(
        store=store,
        dispatcher=engine,
        remove_sessions=remove_sessions,
        keep_for=timedelta(days=8),
        clock=clock,
    )
    with pytest.raises(EndOfTestError):
        await retention.run_forever()
    assert clock.slept == [START_DELAY_S, RETENTION_INTERVAL_S, RETENTION_INTERVAL_S]
    assert engine.asked == [(T0 - timedelta(days=8), [unfinished.id])] * 2
    assert [run.id for run in await store.recent(limit=9)] == [unfinished.id]
    assert asked == [T0 - timedelta(days=8)]
