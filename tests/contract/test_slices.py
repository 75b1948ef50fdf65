"""Invocations that place and advance runs by messages, on a PostgreSQL database: each opens what it needs and leaves nothing going."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from typing_extensions import override

from app.aio import open_task_group
from app.dispatch.lease import open_lease
from app.dispatch.slices import ANYBODY, SliceDispatcher
from app.runs.testing import Dispatcher, Run, RunId, RunState, RunStore
from app.store.runs import open_store
from tests.building import make_request
from tests.contract.building import WAITS_S, Handlers
from tests.waiting import until

pytestmark = pytest.mark.postgresql

SLICE_S = 2.0


@dataclass(kw_only=True)
class Queue:
    """Implements WakeUps in memory: what was sent, each number of a run once."""

    sent: list[tuple[RunId, int, float]] = field(default_factory=list)
    is_broken: bool = False

    async def send(self, run_id: RunId, *, number: int, after_s: float = 0) -> None:
        if self.is_broken:
            raise OSError("the queue does not take a message")
        if (run_id, number) not in [one[:2] for one in self.sent]:
            self.sent.append((run_id, number, after_s))


class SlowHandlers(Handlers):
    """Slack takes its time."""

    @override
    async def place(self, run: Run, *, resumed: bool) -> None:
        self.placed.append((run.id, resumed))
        await asyncio.sleep(30)


@asynccontextmanager
async def invoked(
    url: str,
    queue: Queue,
    *,
    grace_s: float = 2,
    handlers_of: Callable[[Dispatcher, RunStore], Handlers] = Handlers,
) -> AsyncIterator[tuple[SliceDispatcher, Handlers]]:
    async with open_store(url) as store, open_lease(store.leases) as lease:
        dispatcher = SliceDispatcher(
            store, store.leases, lease, wake_ups=queue, waits_s=WAITS_S, slice_s=SLICE_S
        )
        handlers = handlers_of(dispatcher, store)
        await dispatcher.start(handlers)
        try:
            yield dispatcher, handlers
        finally:
            await dispatcher.stop(grace_s=grace_s)


async def _state(url: str, run_id: RunId) -> RunState:
    async with open_store(url) as store:
        run = await store.get(run_id)
        assert run is not None
        return run.state


async def test_from_the_request_to_the_end(postgres_url: str) -> None:
    """Placed before the request is over, whose second delivery changes nothing; two messages; the slice sends the next before it works."""
    queue, request = Queue(), make_request()
    for _ in range(2):
        async with invoked(postgres_url, queue) as (_, handlers):
            await handlers.submit(request)
    assert queue.sent == [(request.run_id, 2, SLICE_S + 2), (request.run_id, 1, 0)]
    assert await _state(postgres_url, request.run_id) is RunState.PLACED
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(request.run_id, number=1)
        assert handlers.ended == [request.run_id]
    assert queue.sent[2:] == [(request.run_id, 3, 2 * (SLICE_S + 2))]
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(request.run_id, number=2)
        assert handlers.started == []
    assert len(queue.sent) == 3


async def test_what_slack_held_up_is_placed_by_the_next_one(postgres_url: str) -> None:
    """The record is durable, so the request is acknowledged; its message has somebody place it, and go on with it."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue, grace_s=0.1, handlers_of=SlowHandlers) as (_, handlers):
        await handlers.submit(request)
    assert queue.sent == [(request.run_id, 0, 0)]
    assert await _state(postgres_url, request.run_id) is RunState.ACCEPTED
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(request.run_id, number=0)
        assert handlers.placed == [(request.run_id, True)]
        assert handlers.ended == [request.run_id]


async def test_a_queue_that_takes_nothing_is_not_acknowledged(postgres_url: str) -> None:
    """The request fails; its repetition sends what was not sent."""
    queue, request = Queue(is_broken=True), make_request()
    with pytest.raises(OSError, match="does not take"):
        async with invoked(postgres_url, queue) as (_, handlers):
            await handlers.submit(request)
    queue.is_broken = False
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
    assert [one[0] for one in queue.sent] == [request.run_id]
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(request.run_id, number=queue.sent[0][1])
        assert handlers.ended == [request.run_id]


async def test_a_slice_that_cannot_send_the_next_message_does_nothing(postgres_url: str) -> None:
    """It fails, so its own message comes again."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
    queue.is_broken = True
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        with pytest.raises(OSError, match="does not take"):
            await dispatcher.work(request.run_id, number=1)
        assert handlers.started == []


async def test_the_same_message_at_once(postgres_url: str) -> None:
    """Two functions have it: one works, and one next message is sent."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
    async with (
        invoked(postgres_url, queue) as (first, of_first),
        invoked(postgres_url, queue) as (second, of_second),
    ):
        of_first.hold = of_second.hold = lambda _run_id: 0.5
        async with open_task_group() as group:
            group.create_task(first.work(request.run_id, number=1))
            group.create_task(second.work(request.run_id, number=1))
        assert of_first.ended + of_second.ended == [request.run_id]
    assert [one[1] for one in queue.sent] == [2, 1, 3]


async def test_the_next_of_a_thread_goes_on_in_the_same_slice(postgres_url: str) -> None:
    """Its own message came while it had to wait: nobody else would look for it soon."""
    queue = Queue()
    first, second = (
        make_request(),
        make_request(ts="1795302365.000100", thread_ts="1795302364.000100"),
    )
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(first)
        await handlers.submit(second)
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(first.run_id, number=1)
        assert handlers.ended == [first.run_id, second.run_id]


async def _a_day_passes(url: str) -> None:
    """Since all that stands in the records."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "UPDATE orion_runs SET created_at = created_at - 86400, due_at = due_at - 86400, ended_at = ended_at - 86400"
        )


async def test_a_message_that_comes_a_day_late_for_what_has_ended(postgres_url: str) -> None:
    """It is taken, whichever of the run's it was: nobody works, no next one is sent, and the record stays as it is."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(request.run_id, number=1)
        assert handlers.ended == [request.run_id]
    await _a_day_passes(postgres_url)
    queue.sent.clear()
    async with open_store(postgres_url) as store:
        before = await store.get(request.run_id)
        for number in (0, 1, 2):
            async with invoked(postgres_url, queue) as (dispatcher, handlers):
                await dispatcher.work(request.run_id, number=number)
                assert (handlers.placed, handlers.started) == ([], [])
        assert await store.get(request.run_id) == before
    assert queue.sent == []


@pytest.mark.parametrize("waits_behind", [False, True])
async def test_a_message_that_comes_a_day_late_for_what_still_waits(
    postgres_url: str, *, waits_behind: bool
) -> None:
    """It has waited for longer than it may, so it is advanced to be told so, once, whoever goes before it in its thread."""
    queue, request = Queue(), make_request()
    later = make_request(ts="1795302365.000100", thread_ts=request.thread.thread_ts)
    late = later if waits_behind else request
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
        if waits_behind:
            await handlers.submit(later)
    async with open_store(postgres_url) as busy:
        if waits_behind:
            await busy.leases.join()
            (going,) = await busy.leases.claim(slots=1, waits_s=2 * 86400)
            assert going.id == request.run_id
        await _a_day_passes(postgres_url)
        for number, begun in ((1, [late.run_id]), (1, []), (2, [])):
            async with invoked(postgres_url, queue) as (dispatcher, handlers):
                await dispatcher.work(late.run_id, number=number)
                assert handlers.started == begun
        assert await _state(postgres_url, late.run_id) is RunState.SUCCEEDED


@pytest.mark.long
async def test_an_invocation_that_is_killed(postgres_url: str) -> None:
    """Nothing is given back by it; the next message comes when it is known to be dead, and works."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
    async with open_store(postgres_url) as dead:
        await dead.leases.join()
        assert [run.id for run in await dead.leases.claim(slots=1, waits_s=WAITS_S)] == [
            request.run_id
        ]
        async with invoked(postgres_url, queue) as (dispatcher, handlers):
            await dispatcher.work(request.run_id, number=1)
            assert handlers.started == []
        assert queue.sent[-1][:2] == (request.run_id, 3)
        await asyncio.sleep(14.5)
        async with invoked(postgres_url, queue) as (dispatcher, handlers):
            await dispatcher.work(request.run_id, number=2)
            assert handlers.ended == [request.run_id]


async def test_a_stop_wakes_somebody(postgres_url: str) -> None:
    """Not for one run: whoever comes looks for what is due."""
    queue = Queue()
    async with invoked(postgres_url, queue) as (dispatcher, _):
        dispatcher.wake()
    assert [one[0] for one in queue.sent] == [ANYBODY]


async def test_a_sweep_wakes_for_those_whose_messages_are_lost(postgres_url: str) -> None:
    """And for nobody who has waited for a moment only."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue) as (_, handlers):
        await handlers.submit(request)
    queue.sent.clear()
    async with invoked(postgres_url, queue) as (dispatcher, _):
        assert await dispatcher.sweep() == 0
        assert await dispatcher.sweep(after_s=0) == 1
    ((run_id, number, _),) = queue.sent
    async with invoked(postgres_url, queue) as (dispatcher, handlers):
        await dispatcher.work(run_id, number=number)
        assert handlers.ended == [request.run_id]


async def test_what_was_never_to_be_wakes_nobody(postgres_url: str) -> None:
    """A reply that is not for Orion is gone before its message was sent."""
    queue, request = Queue(), make_request()
    async with invoked(postgres_url, queue) as (_, handlers):
        handlers.silent.add(request.run_id)
        await handlers.submit(request)
        await until(lambda: handlers.placed)
    assert queue.sent == []
    async with open_store(postgres_url) as store:
        assert await store.get(request.run_id) is None
