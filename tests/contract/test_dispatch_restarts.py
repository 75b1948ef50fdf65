"""What a dispatcher promises whose memory outlives its process."""

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa
from typing_extensions import override

from app.runs.testing import Run, RunState
from tests.building import make_request
from tests.contract.building import POSTGRESQL, Handlers, started_on
from tests.waiting import until


@pytest.fixture(params=["sqlite", POSTGRESQL])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Of the database."""
    if request.param == "sqlite":
        return tmp_path / "orion.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.long
async def test_who_only_waited_is_never_given_up(location: Path | str) -> None:
    """A run that waited for a slot through many restarts is begun in the end."""
    both = make_request(ts="1795302360.000100"), make_request(ts="1795302370.000100")
    run_ids = {request.run_id for request in both}
    for restart in range(7):
        async with started_on(location, capacity=1, grace_s=0, may_end=False) as handlers:
            if restart == 0:
                for request in both:
                    await handlers.submit(request)
                await until(lambda: len(handlers.placed) == 2)
            await until(lambda: handlers.running == 1)
            assert len(handlers.started) == 1
    async with started_on(location, capacity=1) as last:
        await until(lambda: set(last.ended) == run_ids)


async def test_what_was_cut_off_goes_on(location: Path | str) -> None:
    """A run that was going when the process stopped is advanced again by the next start; finished ones are not."""
    request, done = make_request(), make_request(ts="1795302399.000100")
    async with started_on(location) as first:
        await first.submit(done)
        await until(lambda: first.ended == [done.run_id])
        first.hold = lambda _run_id: 60.0
        await first.submit(request)
        await until(lambda: request.run_id in first.started)
    async with started_on(location) as second:
        await until(lambda: second.ended == [request.run_id])
        await second.submit(done)
        await asyncio.sleep(0.5)
        assert second.started == [request.run_id]


async def test_the_disk_is_waited_for_at_acceptances_only(tmp_path: Path) -> None:
    """A commit that is synced is one of an acceptance: of all others none stands in front of the next acknowledgement."""
    synced: list[bool] = []

    def note(connection: sa.Connection) -> None:
        level = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
        synced.append(level >= 2)  # FULL

    requests = [make_request(ts=f"179530236{n}.000100") for n in range(3)]
    async with started_on(tmp_path / "orion.db") as handlers:
        sa.event.listen(sa.Engine, "commit", note)
        try:
            for request in requests:
                await handlers.submit(request)
            await until(lambda: len(handlers.ended) == len(requests))
        finally:
            sa.event.remove(sa.Engine, "commit", note)
    assert synced.count(True) == len(requests)
    assert synced.count(False) >= 2 * len(requests)


class Broken(Handlers):
    """Places nothing."""

    @override
    async def place(self, run: Run, *, resumed: bool) -> None:
        self.placed.append((run.id, resumed))
        raise ValueError(f"cannot place {run.id}")


async def test_what_was_accepted_and_not_placed_is_placed_by_the_next_start(
    location: Path | str,
) -> None:
    """A placement that fails moves nothing, and leaves the run accepted."""
    request = make_request()
    async with started_on(location, handlers_of=Broken, grace_s=0) as broken:
        await broken.submit(request)
        await until(lambda: broken.placed == [(request.run_id, False)])
        run = await broken.store.get(request.run_id)
        assert run is not None
        assert run.state is RunState.ACCEPTED
    async with started_on(location) as next_start:
        await until(lambda: next_start.ended == [request.run_id])
        assert next_start.placed == [(request.run_id, True)]
