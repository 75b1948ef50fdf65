"""What every dispatcher promises."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typing_extensions import override

from app.dispatch.dispatcher import QUIET_WITHIN_S
from app.runs.ports import Dispatcher, RunStore
from app.runs.testing import Run, RunId, RunState, StoppingError
from app.store.memory import MemoryLeases, MemoryRunStore
from sandbox_runtime.task_group import open_task_group
from tests.building import T0, make_request
from tests.contract.building import (
    CAPACITY,
    POSTGRESQL,
    WAIT_S,
    WAITS_S,
    Handlers,
    started,
    started_on,
)
from tests.waiting import until


@pytest.fixture(
    params=[
        pytest.param("memory", marks=pytest.mark.long),
        "sqlite",
        POSTGRESQL,
    ]
)
async def handlers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Handlers]:
    match request.param:
        case "memory":
            opening = started(MemoryRunStore())
        case "sqlite":
            opening = started_on(tmp_path / "orion.db")
        case _:
            opening = started_on(request.getfixturevalue("postgres_url"))
    async with opening as handlers:
        yield handlers


async def test_a_submitted_run_is_placed_and_advanced(handlers: Handlers) -> None:
    """What is accepted comes to its end."""
    request = make_request()
    await handlers.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    assert handlers.placed == [(request.run_id, False)]


async def test_a_repeated_submit_changes_nothing(handlers: Handlers) -> None:
    """Deliveries of one message, at once or after the end, are one run."""
    request = make_request()
    for _ in range(3):
        await handlers.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    await handlers.submit(request)
    other = make_request(ts="1795302365.000100")
    await handlers.submit(other)
    await until(lambda: other.run_id in handlers.ended)
    assert handlers.ended.count(request.run_id) == 1
    assert handlers.placed.count((request.run_id, False)) == 1


async def test_a_thread_runs_one_at_a_time_oldest_first(handlers: Handlers) -> None:
    """Messages of one thread wait for each other, and the oldest waiting one is next, whatever the order of arrival."""
    handlers.hold = lambda _run_id: 0.3
    root = make_request(ts="1795302364.000100")
    await handlers.submit(root)
    await until(lambda: root.run_id in handlers.started)
    replies = [
        make_request(ts=f"179530236{n}.000100", thread_ts=root.message_ts) for n in (7, 5, 6)
    ]
    for reply in replies:
        await handlers.submit(reply)
    await until(lambda: len(handlers.ended) == 4)
    assert handlers.ended == [
        request.run_id
        for request in sorted([root, *replies], key=lambda request: request.message_ts)
    ]
    assert handlers.most_running == 1


async def test_threads_run_beside_each_other_up_to_the_capacity(handlers: Handlers) -> None:
    """Different threads do not wait for each other, but for a free place."""
    handlers.hold = lambda _run_id: 0.5
    for n in range(CAPACITY + 3):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: len(handlers.ended) == CAPACITY + 3)
    assert handlers.most_running == CAPACITY


async def test_placing_does_not_wait_for_running(handlers: Handlers) -> None:
    """With all slots and the thread busy, a new message is placed all the same."""
    handlers.hold = lambda _run_id: 60.0
    root = make_request(ts="1795302360.000100")
    for n in range(CAPACITY + 1):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await handlers.submit(make_request(ts="1795302390.000100", thread_ts=root.message_ts))
    await until(lambda: len(handlers.placed) == CAPACITY + 2)
    assert handlers.ended == []


async def test_again_means_again(handlers: Handlers) -> None:
    """A run that asks to be called again is."""
    request = make_request()
    handlers.again = {request.run_id}
    await handlers.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    assert handlers.started == [request.run_id, request.run_id]


async def test_a_run_that_cannot_be_advanced_is_ended(handlers: Handlers) -> None:
    """A bug in one run is its end, and nobody else's."""
    request, other = make_request(), make_request(ts="1795302365.000100")
    handlers.broken = {request.run_id}
    await handlers.submit(request)
    await handlers.submit(other)
    await until(lambda: handlers.ended == [other.run_id] and handlers.closed == [request.run_id])
    assert handlers.started.count(request.run_id) == 3
    assert handlers.dispatcher.probe() == "0 runs"


async def test_stop_is_bounded_and_idempotent(handlers: Handlers) -> None:
    """Stopping gives a long run its grace, cancels it, and may be repeated; what comes then is told so."""
    handlers.hold = lambda _run_id: 60.0
    await handlers.submit(make_request())
    await until(lambda: handlers.running == 1)
    async with asyncio.timeout(10):
        await handlers.dispatcher.stop(grace_s=1)
        await handlers.dispatcher.stop(grace_s=1)
    assert (handlers.running, handlers.handed_over) == (0, 1)
    with pytest.raises(StoppingError):
        await handlers.submit(make_request(ts="1795302365.000100"))


async def _until_placed(handlers: Handlers, count: int) -> None:
    """Their messages stand, and whoever can go goes."""
    going = min(CAPACITY, count)
    await until(lambda: len(handlers.placed) == count and handlers.running == going)
    async with asyncio.timeout(WAIT_S):
        while any(run.state is RunState.ACCEPTED for run in await handlers.store.unfinished()):
            await asyncio.sleep(0.01)


async def test_people_take_turns(handlers: Handlers) -> None:
    """While one person's many threads wait for a slot, another person's only message is next."""
    handlers.may_end.clear()
    many = [make_request(ts=f"17953023{60 + n}.000100", user="U1") for n in range(3 * CAPACITY)]
    for request in many:
        await handlers.submit(request)
    await _until_placed(handlers, len(many))
    only = make_request(ts="1795302399.000100", user="U2")
    await handlers.submit(only)
    await _until_placed(handlers, len(many) + 1)
    handlers.may_end.set()
    await until(lambda: len(handlers.ended) == len(many) + 1)
    assert handlers.started[CAPACITY] == only.run_id
    assert handlers.most_running == CAPACITY


async def test_a_persons_oldest_message_is_next(handlers: Handlers) -> None:
    """Of one person's threads that wait for a slot, the one with the oldest message goes first."""
    handlers.may_end.clear()
    for n in range(CAPACITY):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: handlers.running == CAPACITY)
    waiting = [make_request(ts=f"17953023{80 + n}.000100") for n in (3, 1, 4, 0, 2)]
    for request in waiting:
        await handlers.submit(request)
    await _until_placed(handlers, CAPACITY + len(waiting))
    handlers.may_end.set()
    await until(lambda: len(handlers.ended) == CAPACITY + len(waiting))
    in_order = sorted(waiting, key=lambda request: request.message_ts)
    assert handlers.started[CAPACITY:] == [request.run_id for request in in_order]


async def test_what_needs_no_slot_waits_for_none(handlers: Handlers) -> None:
    """With all slots taken: what an agent is not asked for, and what is told to stop while it waits."""
    handlers.hold = lambda run_id: 60.0 if run_id in busy else 0.0
    busy = {make_request(ts=f"17953023{60 + n}.000100").run_id for n in range(CAPACITY)}
    for n in range(CAPACITY):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: handlers.running == CAPACITY)
    command = make_request(ts="1795302380.000100", text="settings")
    await handlers.submit(command)
    await until(lambda: handlers.ended == [command.run_id])
    waiting = make_request(ts="1795302390.000100", thread_ts="1795302360.000100")
    await handlers.submit(waiting)
    await _until_placed(handlers, CAPACITY + 2)
    handlers.dispatcher.wake()
    await asyncio.sleep(0.1)
    assert waiting.run_id not in handlers.started
    await handlers.store.request_stop(waiting.run_id, user="U1", at=T0)
    handlers.dispatcher.wake()
    await until(lambda: waiting.run_id in handlers.ended)


async def test_who_has_waited_too_long_needs_no_slot(handlers: Handlers) -> None:
    """It is over, and hears so although nobody else ends."""
    handlers.hold = lambda run_id: 0.0 if run_id == late.run_id else 60.0
    late = make_request(ts="1795302390.000100")
    for n in range(CAPACITY):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: handlers.running == CAPACITY)
    long_ago = datetime.now(UTC) - timedelta(seconds=WAITS_S + 1)
    await handlers.dispatcher.submit(Run(id=late.run_id, request=late, created_at=long_ago))
    await until(lambda: late.run_id in handlers.ended)


async def test_a_parked_run_gives_its_slot_to_others(handlers: Handlers) -> None:
    """And comes back when one is free, before whoever waits."""
    requests = [make_request(ts=f"17953023{60 + n}.000100") for n in range(CAPACITY + 2)]
    parked, *others = [request.run_id for request in requests]
    going = {run_id: asyncio.Event() for run_id in (parked, *others)}
    handlers.until_end = going
    for request in requests[:CAPACITY]:
        await handlers.submit(request)
    await until(lambda: handlers.running == CAPACITY)
    async with open_task_group() as group:
        async with handlers.dispatcher.parked(parked):
            for request in requests[CAPACITY:]:
                await handlers.submit(request)
            await until(lambda: handlers.running == CAPACITY + 1)
            group.create_task(_end_soon(going[others[0]]))
        assert handlers.ended == [others[0]]
        assert len(handlers.started) == CAPACITY + 1
        for event in going.values():
            event.set()
        await until(lambda: len(handlers.ended) == CAPACITY + 2)


async def _end_soon(event: asyncio.Event) -> None:
    await asyncio.sleep(0.1)
    event.set()


async def test_what_is_borrowed_is_not_advanced(handlers: Handlers) -> None:
    """Only what waits can be borrowed; given back, it goes on."""
    handlers.may_end.clear()
    for n in range(CAPACITY):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: handlers.running == CAPACITY)
    going, waiting = handlers.started[0], make_request(ts="1795302390.000100")
    await handlers.submit(waiting)
    await _until_placed(handlers, CAPACITY + 1)
    async with handlers.dispatcher.borrow(going) as run:
        assert run is None
    async with handlers.dispatcher.borrow(waiting.run_id) as run:
        assert run is not None
        assert run.id == waiting.run_id
        async with handlers.dispatcher.borrow(waiting.run_id) as again:
            assert again is None
        handlers.may_end.set()
        await until(lambda: len(handlers.ended) == CAPACITY)
        assert waiting.run_id not in handlers.started
    await until(lambda: waiting.run_id in handlers.ended)


async def test_what_waits_for_a_slot_does_not_delay_a_stop(handlers: Handlers) -> None:
    """Draining waits for what runs; nothing that waits is begun meanwhile."""
    handlers.hold = lambda _run_id: 1.5
    for n in range(2 * CAPACITY):
        await handlers.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await _until_placed(handlers, 2 * CAPACITY)
    async with asyncio.timeout(10):
        await handlers.dispatcher.stop(grace_s=30)
    assert len(handlers.started) == CAPACITY
    assert sorted(handlers.ended) == sorted(handlers.started)


async def test_what_was_committed_after_its_asker_had_given_up_is_placed(
    handlers: Handlers,
) -> None:
    """Slack tells of it again, and it is there: it is placed as if it were new; once, whatever is told after."""
    request = make_request()
    run = Run(id=request.run_id, request=request, created_at=datetime.now(UTC))
    await handlers.store.add(run)
    await handlers.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    await handlers.submit(request)
    assert handlers.placed == [(request.run_id, False)]


class LateStore(MemoryRunStore):
    """Says that it is too late, and stores a run all the same, a moment later."""

    @override
    async def add(self, run: Run) -> bool:
        asyncio.get_running_loop().call_later(0.5, self._runs.setdefault, run.id, run)
        raise TimeoutError


async def test_what_is_stored_too_late_is_placed_though_nobody_tells_of_it_again() -> None:
    """Its next delivery may come to another process, which leaves it to the one that it belongs to."""
    request = make_request()
    async with started(LateStore()) as handlers:
        with pytest.raises(TimeoutError):
            await handlers.submit(request)
        await until(lambda: handlers.ended == [request.run_id])
        assert handlers.placed == [(request.run_id, False)]


class TogetherStore(MemoryRunStore):
    """Tells two deliveries in the same moment that they are stored, and is slow to say whose a run is."""

    def __init__(self) -> None:
        super().__init__()
        self.may_say = asyncio.Event()
        self._holds = self.leases.holds
        self.leases.holds = self._say_late  # type: ignore[method-assign]

    @override
    async def add(self, run: Run) -> bool:
        is_new = await super().add(run)
        await asyncio.sleep(0)
        return is_new

    async def _say_late(self, run_id: RunId) -> bool:
        is_own = await self._holds(run_id)
        await self.may_say.wait()
        return is_own


@pytest.mark.parametrize("is_stored", [False, True])
async def test_two_deliveries_at_once_are_placed_once(*, is_stored: bool) -> None:
    """Also when whether a run waits to be placed is answered after that was done; `is_stored`: whoever was first had given up."""
    request = make_request()
    store = TogetherStore()
    async with started(store) as handlers, open_task_group() as group:
        if is_stored:
            run = Run(id=request.run_id, request=request, created_at=datetime.now(UTC))
            await handlers.store.add(run)
            store.may_say.set()
        twins = [group.create_task(handlers.submit(request)) for _ in range(2)]
        await until(lambda: handlers.ended == [request.run_id])
        store.may_say.set()
        await asyncio.wait(twins)
        await asyncio.sleep(0.05)
        assert handlers.placed == [(request.run_id, False)]


async def test_a_delivery_beside_a_take_over_places_nothing_again() -> None:
    """What an ended process had accepted is being placed; whose it was is answered after that."""
    request = make_request()
    store = TogetherStore()
    await store.add(Run(id=request.run_id, request=request, created_at=datetime.now(UTC)))

    def held(dispatcher: Dispatcher, runs: RunStore) -> Handlers:
        handlers = Handlers(dispatcher, runs)
        handlers.may_place.clear()
        return handlers

    async with started(store, handlers_of=held) as handlers, open_task_group() as group:
        await until(lambda: len(handlers.placed) == 1)
        group.create_task(handlers.submit(request))
        await asyncio.sleep(0.05)
        handlers.may_place.set()
        await until(lambda: handlers.ended == [request.run_id])
        store.may_say.set()
        await asyncio.sleep(0.05)
        assert handlers.placed == [(request.run_id, True)]


class SlowStore(MemoryRunStore):
    """Stores one message late."""

    def __init__(self, late: RunId) -> None:
        super().__init__()
        self._late = late
        self.may_store = asyncio.Event()

    @override
    async def add(self, run: Run) -> bool:
        if run.id == self._late:
            await self.may_store.wait()
        return await super().add(run)


async def test_while_one_is_accepted_few_are_placed() -> None:
    """An acknowledgement is due sooner than a thinking message: of those that came before it, one is placed meanwhile."""
    late = make_request(ts="1795302365.000100")
    store = SlowStore(late.run_id)
    async with started(store) as handlers, open_task_group() as group:
        group.create_task(handlers.submit(late))
        await asyncio.sleep(0)
        handlers.may_place.clear()
        for number in range(3):
            await handlers.submit(make_request(ts=f"179530236{number}.000200"))
        await until(lambda: len(handlers.placed) == 1)
        await asyncio.sleep(0.05)
        assert len(handlers.placed) == 1
        store.may_store.set()
        await until(lambda: len(handlers.placed) == 4)
        handlers.may_place.set()


async def test_while_one_is_accepted_no_run_begins_for_a_while() -> None:
    """An acknowledgement is due sooner; one that hangs keeps nobody for ever."""
    late, first = make_request(ts="1795302365.000100"), make_request(ts="1795302364.000100")
    store = SlowStore(late.run_id)
    async with started(store) as handlers, open_task_group() as group:
        group.create_task(handlers.submit(late))
        await asyncio.sleep(0)
        await handlers.submit(first)
        await until(lambda: len(handlers.placed) == 1)
        await asyncio.sleep(0.1)
        assert handlers.started == []
        await until(lambda: handlers.started == [first.run_id], timeout_s=2 * QUIET_WITHIN_S)
        store.may_store.set()
        await until(lambda: handlers.started == [first.run_id, late.run_id])


class DeafLeases(MemoryLeases):
    """Does what it is asked, and fails once each then: whoever asks has not waited for the end of it, or was frozen."""

    def __init__(self, store: MemoryRunStore, runs: dict[RunId, Run]) -> None:
        super().__init__(store, runs)
        self.deaf_for = {"claim", "borrow", "give_back"}

    def _hear(self, what: str) -> None:
        if what in self.deaf_for:
            self.deaf_for.discard(what)
            raise TimeoutError

    @override
    async def claim(self, *, slots: int, waits_s: float) -> Sequence[Run]:
        claimed = await super().claim(slots=slots, waits_s=waits_s)
        if claimed:
            self._hear("claim")
        return claimed

    @override
    async def borrow(self, run_id: RunId) -> Run | None:
        run = await super().borrow(run_id)
        self._hear("borrow")
        return run

    @override
    async def give_back(self, run_id: RunId) -> None:
        self._hear("give_back")
        await super().give_back(run_id)


class DeafStore(MemoryRunStore):
    def __init__(self) -> None:
        super().__init__()
        self.deaf = DeafLeases(self, self._runs)

    @property
    @override
    def leases(self) -> DeafLeases:
        return self.deaf


async def test_what_was_claimed_unheard_goes_on() -> None:
    """Nobody else would take it up as long as this process lives."""
    store = DeafStore()
    async with started(store) as handlers:
        requests = [make_request(ts=f"179530236{number}.000100") for number in range(3)]
        for request in requests:
            await handlers.submit(request)
        await until(lambda: len(handlers.ended) == len(requests))
        assert sorted(handlers.started) == sorted(request.run_id for request in requests)
        assert "claim" not in store.deaf.deaf_for


@pytest.mark.parametrize("what", ["borrow", "give_back"])
async def test_what_was_borrowed_unheard_begins(what: str) -> None:
    """Though it was never given back."""
    store = DeafStore()
    store.deaf.deaf_for = {what}
    async with started(store) as handlers:
        going, waiting = (
            make_request(ts=f"179530236{n}.000100", thread_ts="1795302360.000100") for n in (1, 2)
        )
        handlers.until_end = {going.run_id: asyncio.Event()}
        for request in (going, waiting):
            await handlers.submit(request)
        await until(lambda: handlers.running == 1)
        with pytest.raises(TimeoutError):
            async with handlers.dispatcher.borrow(waiting.run_id):
                pass
        handlers.until_end[going.run_id].set()
        await until(lambda: handlers.ended == [going.run_id, waiting.run_id])


async def test_what_is_discarded_may_come_again(handlers: Handlers) -> None:
    """Another event of the message may say that it is for us after all: then it is placed anew, and once."""
    request = make_request()
    handlers.silent.add(request.run_id)
    await handlers.submit(request)
    async with asyncio.timeout(WAIT_S):
        while not handlers.placed or await handlers.store.get(request.run_id) is not None:
            await asyncio.sleep(0.01)
    for _ in range(2):
        await handlers.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    assert handlers.placed == [(request.run_id, False)] * 2
