"""What every dispatcher promises."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typing_extensions import override

from app.dispatch.durable import DurableDispatcher
from app.dispatch.inline import InlineDispatcher
from app.runs.model import Run, RunId, RunRequest
from app.runs.ports import Advance, AgainIn, Dispatcher, Done, EngineState, Turn
from tests.building import T0, make_request

CAPACITY = 4
WAIT_S = 20.0


class Handlers:
    """Places by scheduling, advances by a scripted wait; keeps a journal."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.placed: list[RunId] = []
        self.requests: dict[RunId, RunRequest] = {}
        self.asked: list[RunId] = []
        self.needless: set[RunId] = set()
        self.started: list[RunId] = []
        self.ended: list[RunId] = []
        self.running = 0
        self.most_running = 0
        self.hold: Callable[[RunId], float] = lambda _run_id: 0.0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.again: set[RunId] = set()
        self.schedules = True

    async def place(self, request: RunRequest) -> None:
        self.placed.append(request.run_id)
        self.requests[request.run_id] = request
        if self.schedules:
            run = Run(id=request.run_id, request=request, created_at=T0)
            await self.dispatcher.schedule(run)

    async def turn(self, run_id: RunId) -> Turn | None:
        self.asked.append(run_id)
        if run_id in self.needless:
            return None
        request = self.requests[run_id]
        return Turn(user=request.user, order=request.order)

    async def advance(self, run_id: RunId) -> Advance:
        self.started.append(run_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.may_end.wait()
            await asyncio.sleep(self.hold(run_id))
        finally:
            self.running -= 1
        if run_id in self.again:
            self.again.discard(run_id)
            return AgainIn(seconds=0.05)
        self.ended.append(run_id)
        return Done()


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.postgresql)


@pytest.fixture(params=["sqlite", POSTGRESQL])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Of the engine's database."""
    if request.param == "sqlite":
        return tmp_path / "engine.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["inline", "sqlite", POSTGRESQL])
def dispatcher(request: pytest.FixtureRequest, tmp_path: Path) -> Dispatcher:
    match request.param:
        case "inline":
            return InlineDispatcher(capacity=CAPACITY)
        case "sqlite":
            return DurableDispatcher(tmp_path / "engine.db", capacity=CAPACITY)
        case _:
            return DurableDispatcher(request.getfixturevalue("postgres_url"), capacity=CAPACITY)


@asynccontextmanager
async def started(
    dispatcher: Dispatcher, *, placed: Sequence[RunRequest] = (), grace_s: float = 1
) -> AsyncIterator[Handlers]:
    """`placed`: by an earlier process."""
    handlers = Handlers(dispatcher)
    handlers.requests = {request.run_id: request for request in placed}
    await dispatcher.start(handlers)
    try:
        yield handlers
    finally:
        await dispatcher.stop(grace_s=grace_s)


@pytest.fixture
async def handlers(dispatcher: Dispatcher) -> AsyncIterator[Handlers]:
    async with started(dispatcher) as handlers:
        yield handlers


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_submitted_run_is_placed_and_advanced(handlers: Handlers) -> None:
    """What is accepted comes to its end."""
    request = make_request()
    await handlers.dispatcher.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    assert handlers.placed == [request.run_id]


async def test_a_repeated_submit_changes_nothing(handlers: Handlers) -> None:
    """Deliveries of one message, at once or after the end, are one run."""
    request = make_request()
    for _ in range(3):
        await handlers.dispatcher.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    await handlers.dispatcher.submit(request)
    other = make_request(ts="1795302365.000100")
    await handlers.dispatcher.submit(other)
    await until(lambda: other.run_id in handlers.ended)
    assert handlers.ended.count(request.run_id) == 1
    assert handlers.placed.count(request.run_id) == 1


async def test_a_thread_runs_one_at_a_time_oldest_first(handlers: Handlers) -> None:
    """Messages of one thread wait for each other, and the oldest waiting one is next, whatever the order of arrival."""
    handlers.hold = lambda _run_id: 0.3
    root = make_request(ts="1795302364.000100")
    await handlers.dispatcher.submit(root)
    await until(lambda: root.run_id in handlers.started)
    replies = [
        make_request(ts=f"179530236{n}.000100", thread_ts=root.message_ts) for n in (7, 5, 6)
    ]
    for reply in replies:
        await handlers.dispatcher.submit(reply)
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
        await handlers.dispatcher.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: len(handlers.ended) == CAPACITY + 3)
    assert handlers.most_running == CAPACITY


async def test_placing_does_not_wait_for_running(handlers: Handlers) -> None:
    """With all places and the thread busy, a new message is placed all the same."""
    handlers.hold = lambda _run_id: 5.0
    root = make_request(ts="1795302360.000100")
    for n in range(CAPACITY + 1):
        await handlers.dispatcher.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await handlers.dispatcher.submit(
        make_request(ts="1795302390.000100", thread_ts=root.message_ts)
    )
    async with asyncio.timeout(2.0):
        while len(handlers.placed) < CAPACITY + 2:
            await asyncio.sleep(0.01)
    assert len(handlers.ended) == 0


async def test_again_means_again(handlers: Handlers) -> None:
    """A run that asks to be called again is."""
    request = make_request()
    handlers.again = {request.run_id}
    await handlers.dispatcher.submit(request)
    await until(lambda: handlers.ended == [request.run_id])
    assert handlers.started == [request.run_id, request.run_id]


async def test_engine_states(handlers: Handlers) -> None:
    """The engine tells what it still moves from what it has ended."""
    handlers.hold = lambda _run_id: 0.6
    request = make_request()
    await handlers.dispatcher.submit(request)
    await until(lambda: handlers.started == [request.run_id])
    states = await handlers.dispatcher.engine_states([request.run_id])
    assert states[request.run_id] is EngineState.MOVING
    await until(lambda: handlers.ended == [request.run_id])
    async with asyncio.timeout(WAIT_S):
        while (await handlers.dispatcher.engine_states([request.run_id]))[
            request.run_id
        ] is EngineState.MOVING:
            await asyncio.sleep(0.02)


async def test_stop_is_bounded_and_idempotent(handlers: Handlers) -> None:
    """Stopping gives a long run its grace, cancels it, and may be repeated."""
    handlers.hold = lambda _run_id: 60.0
    await handlers.dispatcher.submit(make_request())
    await until(lambda: handlers.running == 1)
    async with asyncio.timeout(10):
        await handlers.dispatcher.stop(grace_s=1)
        await handlers.dispatcher.stop(grace_s=1)
    assert handlers.running == 0


async def test_people_take_turns(handlers: Handlers) -> None:
    """While one person's many threads wait for a place, another person's only message is next."""
    handlers.may_end.clear()
    many = [make_request(ts=f"17953023{60 + n}.000100", user="U1") for n in range(3 * CAPACITY)]
    for request in many:
        await handlers.dispatcher.submit(request)
    await until(lambda: len(handlers.asked) == len(many) and handlers.running == CAPACITY)
    only = make_request(ts="1795302399.000100", user="U2")
    await handlers.dispatcher.submit(only)
    await until(lambda: only.run_id in handlers.asked)
    handlers.may_end.set()
    await until(lambda: len(handlers.ended) == len(many) + 1)
    assert handlers.started[CAPACITY] == only.run_id
    assert handlers.most_running == CAPACITY


async def test_a_persons_oldest_message_is_next(handlers: Handlers) -> None:
    """Of one person's threads that wait for a place, the one with the oldest message goes first."""
    handlers.may_end.clear()
    for n in range(CAPACITY):
        await handlers.dispatcher.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: handlers.running == CAPACITY)
    waiting = [make_request(ts=f"17953023{80 + n}.000100") for n in (3, 1, 4, 0, 2)]
    for request in waiting:
        await handlers.dispatcher.submit(request)
    await until(lambda: len(handlers.asked) == CAPACITY + len(waiting))
    handlers.may_end.set()
    await until(lambda: len(handlers.ended) == CAPACITY + len(waiting))
    in_order = sorted(waiting, key=lambda request: request.message_ts)
    assert handlers.started[CAPACITY:] == [request.run_id for request in in_order]


async def test_what_needs_no_place_waits_for_none(handlers: Handlers) -> None:
    """With all places taken, a run that is over goes through at once, also when it becomes so while it waits."""
    handlers.hold = lambda run_id: 0.0 if run_id in handlers.needless else 60.0
    for n in range(CAPACITY):
        await handlers.dispatcher.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: handlers.running == CAPACITY)
    over = make_request(ts="1795302380.000100")
    handlers.needless = {over.run_id}
    await handlers.dispatcher.submit(over)
    await until(lambda: handlers.ended == [over.run_id])
    waiting = make_request(ts="1795302390.000100")
    await handlers.dispatcher.submit(waiting)
    await until(lambda: waiting.run_id in handlers.asked)
    handlers.dispatcher.wake(waiting.run_id)
    handlers.dispatcher.wake(RunId("unknown"))
    await until(lambda: handlers.asked.count(waiting.run_id) == 2)
    assert waiting.run_id not in handlers.started
    handlers.needless.add(waiting.run_id)
    handlers.dispatcher.wake(waiting.run_id)
    await until(lambda: waiting.run_id in handlers.ended)


async def test_what_waits_for_a_place_does_not_delay_a_stop(handlers: Handlers) -> None:
    """Draining waits for what runs; nothing that waits is begun meanwhile."""
    handlers.hold = lambda _run_id: 1.5
    for n in range(2 * CAPACITY):
        await handlers.dispatcher.submit(make_request(ts=f"17953023{60 + n}.000100"))
    await until(lambda: len(handlers.asked) == 2 * CAPACITY and handlers.running == CAPACITY)
    async with asyncio.timeout(10):
        await handlers.dispatcher.stop(grace_s=30)
    assert len(handlers.started) == CAPACITY
    assert sorted(handlers.ended) == sorted(handlers.started)


async def test_durable_never_gives_up_who_only_waited(tmp_path: Path) -> None:
    """A run that waited for a place through many restarts is begun in the end."""
    path = tmp_path / "engine.db"
    both = make_request(ts="1795302360.000100"), make_request(ts="1795302370.000100")
    run_ids = {request.run_id for request in both}
    for restart in range(7):
        dispatcher = DurableDispatcher(path, capacity=1)
        async with started(dispatcher, placed=both, grace_s=0) as handlers:
            handlers.may_end.clear()
            if restart == 0:
                for request in both:
                    await dispatcher.submit(request)
            await until(lambda: set(handlers.asked) == run_ids and handlers.running == 1)
            assert len(handlers.started) == 1
    async with started(DurableDispatcher(path, capacity=1), placed=both) as last:
        await until(lambda: set(last.ended) == run_ids)


async def test_durable_resumes_what_was_cut_off(location: Path | str) -> None:
    """A run that was going when the process stopped is advanced again by the next start; finished ones are not."""
    request, done = make_request(), make_request(ts="1795302399.000100")
    async with started(DurableDispatcher(location, capacity=CAPACITY)) as first:
        await first.dispatcher.submit(done)
        await until(lambda: first.ended == [done.run_id])
        first.hold = lambda _run_id: 60.0
        await first.dispatcher.submit(request)
        await until(lambda: request.run_id in first.started)
    resumed = DurableDispatcher(location, capacity=CAPACITY)
    async with started(resumed, placed=[request, done]) as second:
        await until(lambda: second.ended == [request.run_id])
        await second.dispatcher.submit(done)
        await asyncio.sleep(0.5)
        assert second.started == [request.run_id]


async def test_durable_gives_up_a_placement_that_cannot_work(location: Path | str) -> None:
    """A placement that fails is told to the reconciler, with its request."""

    class Broken(Handlers):
        @override
        async def place(self, request: RunRequest) -> None:
            raise ValueError(f"cannot place {request.run_id}")

    dispatcher = DurableDispatcher(location, capacity=CAPACITY)
    await dispatcher.start(Broken(dispatcher))
    try:
        request = make_request()
        await dispatcher.submit(request)
        async with asyncio.timeout(WAIT_S):
            while not (lost := await dispatcher.lost_placements()):
                await asyncio.sleep(0.05)
        assert list(lost) == [request]
        assert (await dispatcher.engine_states([request.run_id]))[
            request.run_id
        ] is EngineState.ENDED
    finally:
        await dispatcher.stop(grace_s=1)


async def test_durable_refuses_tables_that_it_cannot_use(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It names the database and what to do, without a stack; put right, it starts in the same process."""
    path = tmp_path / "engine.db"
    async with started(DurableDispatcher(path, capacity=CAPACITY)):
        pass
    for old, new in (("workflow_status", "gone"), ("gone", "workflow_status")):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
        if new == "gone":
            with pytest.raises(OSError, match=r"engine\.db cannot be used .*no such table.*a copy"):
                async with started(DurableDispatcher(path, capacity=CAPACITY)):
                    pass
    assert "Traceback" not in capfd.readouterr().err
    async with started(DurableDispatcher(path, capacity=CAPACITY)) as handlers:
        await handlers.dispatcher.submit(make_request())
        await until(lambda: handlers.ended == [make_request().run_id])


async def test_durable_forgets_what_is_old_and_over(location: Path | str) -> None:
    """Old rows go, as many as were asked for; young, kept and moving ones stay; what stays is not accepted again."""
    old, kept, moving, young = (make_request(ts=f"179530236{n}.000100") for n in range(4))
    async with started(DurableDispatcher(location, capacity=CAPACITY)) as handlers:
        engine = handlers.dispatcher
        handlers.hold = lambda run_id: 60.0 if run_id == moving.run_id else 0.0
        for request in (old, kept, moving):
            await engine.submit(request)
        await until(lambda: moving.run_id in handlers.started and len(handlers.ended) == 2)
        await _until_over(engine, old, kept)
        await asyncio.sleep(2.1)  # the engine counts in seconds
        before = datetime.now(UTC) - timedelta(seconds=1)
        await engine.submit(young)
        await _until_over(engine, young)
        keep = [kept.run_id, moving.run_id]
        assert await engine.forget(before=before - timedelta(days=1), limit=10, keep=keep) == 0
        assert await engine.forget(before=before, limit=1, keep=keep) == 1
        assert await engine.forget(before=before, limit=10, keep=keep) == 1
        assert await engine.forget(before=before, limit=10, keep=keep) == 0
        # With its placement's row gone, too, a run that moves goes on.
        assert await engine.forget(before=before, limit=10, keep=[kept.run_id]) == 1
        assert (await engine.engine_states([moving.run_id]))[moving.run_id] is EngineState.MOVING
        handlers.schedules = False
        for request in (old, kept, young):
            await engine.submit(request)
        await until(lambda: handlers.placed.count(old.run_id) == 2)
        assert handlers.placed.count(kept.run_id) == handlers.placed.count(young.run_id) == 1


async def _until_over(engine: Dispatcher, *requests: RunRequest) -> None:
    """The engine notes the end of a run a moment after the run."""
    async with asyncio.timeout(WAIT_S):
        while (
            EngineState.MOVING
            in (await engine.engine_states([request.run_id for request in requests])).values()
        ):
            await asyncio.sleep(0.02)
