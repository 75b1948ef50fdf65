"""The wish to stop, as it stands in the records."""

import asyncio
from collections.abc import Mapping, Sequence

from typing_extensions import override

from app.runs import stops
from app.runs.clock import SystemClock
from app.runs.model import RunId
from app.runs.stops import StopSignals
from app.store.memory import MemoryRunStore
from tests.building import T0, make_run


class _SickStore(MemoryRunStore):
    """Whose first answer does not come."""

    failures = 1

    @override
    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        if self.failures > 0:
            self.failures -= 1
            raise TimeoutError
        return await super().stop_requested(run_ids)


async def test_a_sick_database_does_not_end_the_listening() -> None:
    """A store that fails costs one look, not the service."""
    assert stops.POLL_INTERVAL_S <= 0.5
    signals, store, run = StopSignals(), _SickStore(), make_run()
    await store.add(run)
    await store.request_stop(run.id, user="operator", at=T0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        listening = group.create_task(signals.poll_forever(store, SystemClock()))
        with signals.watch(run.id) as stop:
            await stop.wait()
        listening.cancel()
    assert (stop.user, store.failures) == ("operator", 0)
