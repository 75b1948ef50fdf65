"""What a process may do that was given up for dead, and one whose database is away."""

import asyncio

import pytest

from app.dispatch.lease import SETTLE_S, SURE_S, ProcessLease, open_lease
from app.errors import LeaseLostError
from app.store.memory import MemoryRunStore
from sandbox_runtime.task_group import open_task_group


class Shared:
    """Leases of a database that is away for a while, or has given this process up. The rest is not asked."""

    is_shared = True

    def __init__(self) -> None:
        self.lives = True
        self.failures = 0
        self.late_processes = 0
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def join(self) -> None:
        self.lives = True

    async def leave(self, *, is_brief: bool = False) -> None:
        del is_brief
        self.lives = False

    async def late(self) -> int:
        self.late_processes = max(self.late_processes - 1, 0)
        return self.late_processes

    async def renew(self) -> int:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise OSError("away")
        await self.answers.wait()
        return int(self.lives)


class Late(ProcessLease):
    """Whose last renewal was so long ago that others may have its runs."""

    async def late(self) -> None:
        self._renewed_s -= SURE_S + 1


async def test_what_was_renewed_just_now_is_not_asked_for() -> None:
    """A gate that costs a query for each update of a message would be too dear."""
    leases = Shared()
    lease = Late(leases)  # type: ignore[arg-type]  # as much of Leases as a gate needs
    for _ in range(100):
        await lease.confirm()
    assert leases.asked == 0
    await lease.late()
    await lease.confirm()
    await lease.confirm()
    assert leases.asked == 1


async def test_a_gate_waits_for_a_database_that_is_away() -> None:
    """And lets through when it is back and the lease is still this process's."""
    leases = Shared()
    lease = Late(leases)  # type: ignore[arg-type]
    await lease.late()
    leases.failures = 2
    async with asyncio.timeout(5):
        await lease.confirm()
    assert leases.asked == 3


async def test_who_was_given_up_does_nothing_even_after_it_has_come_back() -> None:
    """Work that began before belongs to another process; what begins after is its own."""
    leases = Shared()
    lease = Late(leases)  # type: ignore[arg-type]
    await lease.join()
    may_go_on = asyncio.Event()
    refused: list[bool] = []

    async def old_work() -> None:
        lease.bind()
        await may_go_on.wait()
        for _ in range(2):
            try:
                await lease.confirm()
            except LeaseLostError:
                refused.append(True)

    async with asyncio.timeout(5), open_task_group() as group:
        group.create_task(old_work())
        await asyncio.sleep(0)
        await lease.late()
        leases.lives = False
        with pytest.raises(LeaseLostError):
            await lease.confirm()
        await lease.join()
        may_go_on.set()
    assert refused == [True, True]
    await lease.confirm()


async def test_who_has_given_all_back_does_nothing_for_it() -> None:
    """Though its lease is not over yet: a task that does not end in time could still be at work. What is not a run's goes on."""
    leases = Shared()
    lease = ProcessLease(leases)  # type: ignore[arg-type]
    await lease.join()
    async with open_task_group() as group:

        async def work() -> bool:
            lease.bind()
            await lease.confirm()
            await lease.leave()
            return await _refused(lease)

        working = group.create_task(work())
    assert working.result()
    await lease.confirm()


async def test_who_starts_waits_for_those_that_are_late() -> None:
    """After an outage of the database they live all the same, and say so soon; not for long, and not who is there for a moment."""
    leases = Shared()
    leases.late_processes = 3
    async with asyncio.timeout(SETTLE_S), open_lease(leases):  # type: ignore[arg-type]
        assert leases.late_processes == 0
    leases.late_processes = 1_000
    async with asyncio.timeout(SETTLE_S), open_lease(leases, is_brief=True):  # type: ignore[arg-type]
        assert leases.late_processes == 1_000
    async with asyncio.timeout(2 * SETTLE_S), open_lease(leases):  # type: ignore[arg-type]
        assert 0 < leases.late_processes < 1_000


async def test_who_asks_while_it_comes_back_is_refused_too() -> None:
    """The answer is then that of the process which it is now."""
    leases = Shared()
    lease = Late(leases)  # type: ignore[arg-type]
    await lease.join()
    lease.bind()
    await lease.late()
    leases.lives = False
    leases.answers.clear()
    async with asyncio.timeout(5), open_task_group() as group:
        old_work = group.create_task(_refused(lease))
        await asyncio.sleep(0)
        group.create_task(lease.join())
        await asyncio.sleep(0)
        leases.answers.set()
    assert old_work.result()


async def _refused(lease: ProcessLease) -> bool:
    try:
        await lease.confirm()
    except LeaseLostError:
        return True
    return False


async def test_where_nobody_else_can_be_there_is_no_gate() -> None:
    """SQLite's one process."""
    lease = Late(MemoryRunStore().leases)
    await lease.late()
    await lease.confirm()
