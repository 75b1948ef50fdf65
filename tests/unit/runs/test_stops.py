"""The wish to stop, as it stands in the records."""

import asyncio
from collections.abc import Mapping, Sequence

from typing_extensions import override

from app.runs.testing import POLL_INTERVAL_S, RunId, StopSignals
from app.store.memory import MemoryRunStore
from sandbox_runtime.task_group import open_task_group
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
    assert POLL_INTERVAL_S <= 0.5
    signals, store, run = StopSignals(), _SickStore(), make_run()
    await store.add(run)
    await store.request_stop(run.id, user="operator", at=T0)
    async with asyncio.timeout(5), open_task_group() as group:
        listening = group.create_task(signals.listen_forever(store))
        with signals.watch(run.id) as stop:
            await stop.wait()
        listening.cancel()
    assert (stop.user, store.failures) == ("operator", 0)
