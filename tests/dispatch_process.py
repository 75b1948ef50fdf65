"""A process that places and advances runs of a PostgreSQL database until SIGTERM: `python -m … URL JOURNAL CAPACITY HOLD_S`.

Each line of the journal: time, process, what, run. An effect is written as a call to Slack is made: after the lease was confirmed.
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from app.aio import retry_store
from app.dispatch.dispatcher import RunDispatcher
from app.dispatch.lease import ProcessLease, open_lease
from app.errors import ErrorCode
from app.runs.testing import Advance, AgainIn, Done, Run, RunId, RunState
from app.store.runs import SqlRunStore, open_store


class JournalHandlers:
    def __init__(
        self, store: SqlRunStore, dispatcher: RunDispatcher, lease: ProcessLease, journal: Path
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._lease = lease
        self._journal = journal
        self.hold_s = 0.0
        self._handed_over = asyncio.Event()

    def note(self, what: str, run_id: str = "-") -> None:
        with self._journal.open("a") as file:
            file.write(f"{time.time():.3f} {os.getpid()} {what} {run_id}\n")

    async def place(self, run: Run, *, resumed: bool) -> None:
        del resumed
        await self._dispatcher.schedule(run, state=RunState.PLACED)

    async def advance(self, run_id: RunId, *, until: datetime | None = None) -> Advance:
        del until
        self.note("start", run_id)
        run = await retry_store(lambda: self._store.get(run_id))
        assert run is not None
        await retry_store(lambda: self._store.begin(run))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.hold_s):
                await self._handed_over.wait()
                return AgainIn(seconds=0)
        await self._lease.confirm()
        self.note("effect", run_id)
        await retry_store(lambda: self._store.update(run_id, state=RunState.SUCCEEDED))
        return Done()

    def hand_over(self) -> None:
        """What still goes is another process's."""
        self._handed_over.set()

    async def end(self, run_id: RunId, code: ErrorCode) -> None:
        self.note(f"end-{code}", run_id)


async def main(url: str, journal: Path, capacity: int, hold_s: float) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with open_store(url) as store, open_lease(store.leases) as lease:
        dispatcher = RunDispatcher(store, store.leases, lease, capacity=capacity, waits_s=1000)
        handlers = JournalHandlers(store, dispatcher, lease, journal)
        handlers.hold_s = hold_s
        await dispatcher.start(handlers)
        handlers.note("ready")
        await end.wait()
        await dispatcher.stop(grace_s=0.5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
