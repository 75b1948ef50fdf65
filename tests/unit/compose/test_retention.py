"""When old runs are removed, and what survives it."""

from datetime import datetime, timedelta

import pytest
from typing_extensions import override

from app.audit.records import AuditQuery
from app.compose.maintenance import RETENTION_INTERVAL_S, START_DELAY_S, Retention
from app.runs.testing import RunState
from app.store.memory import MemoryRunStore
from tests.building import T0, make_entry, make_request, make_run


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


class SickStore(MemoryRunStore):
    """Fails the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[datetime] = []

    @override
    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        self.asked.append(before)
        if len(self.asked) == 1:
            raise OSError("the database is away")
        return await super().remove_ended(before=before, limit=limit)


async def test_rounds_come_after_the_start_and_hourly_and_outlive_a_failure() -> None:
    """Unfinished runs stay; a failed round removes nothing, the next one does."""
    store, clock = SickStore(), ScriptedClock(rounds=2)
    old, unfinished = (make_run(make_request(ts=f"{n}.000001"), age_s=9 * 86_400) for n in (1, 2))
    for run in (old, unfinished):
        await store.add(run)
    await store.update(old.id, state=RunState.STOPPED)
    for age in (90, 91):
        await store.audit.add(make_entry(id=str(age), at=T0 - timedelta(days=age)))
    asked: list[datetime] = []

    async def remove_sessions(before: datetime) -> int:
        asked.append(before)
        return 1

    async def leads() -> bool:
        return True

    retention = Retention(
        store=store,
        audit=store.audit,
        leads=leads,
        remove_sessions=remove_sessions,
        keep_for=timedelta(days=8),
        keep_audit_for=timedelta(days=90),
        clock=clock,
    )
    with pytest.raises(EndOfTestError):
        await retention.run_forever()
    assert clock.slept == [START_DELAY_S, RETENTION_INTERVAL_S, RETENTION_INTERVAL_S]
    assert store.asked == [T0 - timedelta(days=8)] * 2
    assert [run.id for run in await store.recent(limit=9)] == [unfinished.id]
    assert asked == [T0 - timedelta(days=8)]
    assert [entry.id for entry in await store.audit.find(AuditQuery())] == ["90"]
