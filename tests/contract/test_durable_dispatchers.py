"""What a dispatcher promises whose memory outlives its process."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from dbos import DBOSClient, EnqueueOptions
from typing_extensions import override

from app.dispatch.durable import DurableDispatcher, JsonSerializer
from app.runs.testing import Dispatcher, EngineState, Run, RunRequest
from app.store.runs import open_store
from tests.building import make_request
from tests.contract.building import (
    CAPACITY,
    POSTGRESQL,
    WAIT_S,
    Handlers,
    started_durable,
)
from tests.waiting import until


@pytest.fixture(params=["sqlite", POSTGRESQL])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Of the engine's database."""
    if request.param == "sqlite":
        return tmp_path / "engine.db"
    return str(request.getfixturevalue("postgres_url"))


async def test_durable_never_gives_up_who_only_waited(tmp_path: Path) -> None:
    """A run that waited for a slot through many restarts is begun in the end."""
    path = tmp_path / "engine.db"
    both = make_request(ts="1795302360.000100"), make_request(ts="1795302370.000100")
    run_ids = {request.run_id for request in both}
    for restart in range(7):
        async with started_durable(
            path, capacity=1, placed=both, grace_s=0, may_end=False
        ) as handlers:
            if restart == 0:
                for request in both:
                    await handlers.submit(request)
            await until(lambda: set(handlers.asked) == run_ids and handlers.running == 1)
            assert len(handlers.started) == 1
    async with started_durable(path, capacity=1, placed=both) as last:
        await until(lambda: set(last.ended) == run_ids)


async def test_durable_resumes_what_was_cut_off(location: Path | str) -> None:
    """A run that was going when the process stopped is advanced again by the next start; finished ones are not."""
    request, done = make_request(), make_request(ts="1795302399.000100")
    async with started_durable(location) as first:
        await first.submit(done)
        await until(lambda: first.ended == [done.run_id])
        first.hold = lambda _run_id: 60.0
        await first.submit(request)
        await until(lambda: request.run_id in first.started)
    async with started_durable(location, placed=[request, done]) as second:
        await until(lambda: second.ended == [request.run_id])
        await second.submit(done)
        await asyncio.sleep(0.5)
        assert second.started == [request.run_id]


async def test_durable_waits_for_the_disk_at_acceptances_only(tmp_path: Path) -> None:
    """A commit that is synced is one of an acceptance: of all others none stands in front of the next acknowledgement."""
    synced: list[bool] = []

    def note(connection: sa.Connection) -> None:
        level = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
        synced.append(level >= 2)  # FULL

    requests = [make_request(ts=f"179530236{n}.000100") for n in range(3)]
    async with started_durable(tmp_path / "engine.db") as handlers:
        sa.event.listen(sa.Engine, "commit", note)
        try:
            for request in requests:
                await handlers.submit(request)
            await until(lambda: len(handlers.ended) == len(requests))
        finally:
            sa.event.remove(sa.Engine, "commit", note)
    assert synced.count(True) == len(requests)
    assert synced.count(False) >= 2 * len(requests)


async def test_what_was_accepted_and_not_placed_is_placed_by_the_next_start(tmp_path: Path) -> None:
    """A placement that fails moves nothing, and leaves the run accepted."""

    class Broken(Handlers):
        @override
        async def place(self, run: Run, *, resumed: bool) -> None:
            self.placed.append((run.id, resumed))
            raise ValueError(f"cannot place {run.id}")

    path, request = tmp_path / "engine.db", make_request()
    async with open_store(path) as store:
        dispatcher = DurableDispatcher(path, store, capacity=CAPACITY)
        broken = Broken(dispatcher)
        await dispatcher.start(broken)
        await broken.submit(request)
        await until(lambda: broken.placed != [])
        async with asyncio.timeout(WAIT_S):
            while EngineState.MOVING in (await dispatcher.engine_states([request.run_id])).values():
                await asyncio.sleep(0.02)
        await dispatcher.stop(grace_s=1)
    async with started_durable(path) as next_start:
        await until(lambda: next_start.ended == [request.run_id])
        assert next_start.placed == [(request.run_id, True)]


async def test_what_an_older_version_had_accepted_is_placed(tmp_path: Path) -> None:
    """It kept in the engine what had no record yet."""
    path, request = tmp_path / "engine.db", make_request()
    async with started_durable(path):
        pass  # makes the tables
    client = DBOSClient(system_database_url=f"sqlite:///{path}", serializer=JsonSerializer())
    client.enqueue(
        EnqueueOptions(
            workflow_name="orion.place", queue_name="orion-place", workflow_id=request.run_id
        ),
        request.model_dump(mode="json"),
    )
    client.destroy()
    async with started_durable(path) as handlers:
        await until(lambda: handlers.ended == [request.run_id])
        assert handlers.placed == [(request.run_id, True)]


async def test_durable_refuses_tables_that_it_cannot_use(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It names the database and what to do, without a stack; put right, it starts in the same process."""
    path = tmp_path / "engine.db"
    async with started_durable(path):
        pass
    for old, new in (("workflow_status", "gone"), ("gone", "workflow_status")):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
        if new == "gone":
            with pytest.raises(OSError, match=r"engine\.db cannot be used .*no such table.*a copy"):
                async with started_durable(path):
                    pass
    assert "Traceback" not in capfd.readouterr().err
    async with started_durable(path) as handlers:
        await handlers.submit(make_request())
        await until(lambda: handlers.ended == [make_request().run_id])


async def test_durable_forgets_what_is_old_and_over(location: Path | str) -> None:
    """Old rows go, as many as were asked for; young, kept and moving ones stay."""
    old, older, kept, moving, young = (make_request(ts=f"179530236{n}.000100") for n in range(5))
    async with started_durable(location) as handlers:
        engine = handlers.dispatcher
        handlers.hold = lambda run_id: 60.0 if run_id == moving.run_id else 0.0
        for request in (old, older, kept, moving):
            await handlers.submit(request)
        await until(lambda: moving.run_id in handlers.started and len(handlers.ended) == 3)
        await _until_over(engine, old, older, kept)
        await asyncio.sleep(2.1)  # the engine counts in seconds
        before = datetime.now(UTC) - timedelta(seconds=1)
        await handlers.submit(young)
        await until(lambda: young.run_id in handlers.ended)
        await _until_over(engine, young)
        keep = [kept.run_id]
        assert await engine.forget(before=before - timedelta(days=1), limit=10, keep=keep) == 0
        assert await engine.forget(before=before, limit=1, keep=keep) == 1
        assert await engine.forget(before=before, limit=10, keep=keep) == 1
        assert await engine.forget(before=before, limit=10, keep=keep) == 0
        assert (await engine.engine_states([moving.run_id]))[moving.run_id] is EngineState.MOVING


async def _until_over(engine: Dispatcher, *requests: RunRequest) -> None:
    """The engine notes the end of a run a moment after the run."""
    async with asyncio.timeout(WAIT_S):
        while (
            EngineState.MOVING
            in (await engine.engine_states([request.run_id for request in requests])).values()
        ):
            await asyncio.sleep(0.02)
