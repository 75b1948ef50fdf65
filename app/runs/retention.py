"""Removes what is old and over: run records, the engine's rows, what threads saved.

Leftovers of sandboxes go at the provider's start.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from app.log import get_logger
from app.runs.ports import Clock, Dispatcher
from app.runs.run_store import RunStore

START_DELAY_S = 15.0
"""The runs that a start resumes go first."""
INTERVAL_S = 3600.0
ROUND_LIMIT = 10_000
"""Records, and engine's rows, in one round: 240,000 a day."""

_log = get_logger(__name__)


class Retention:
    """`kept_for` is two days or more: Slack delivers an event again for hours, and what is removed would run again.

    A message is known by its record and by the engine's row, which is never younger; either alone keeps it from running twice.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        dispatcher: Dispatcher,
        remove_sessions: Callable[[datetime], Awaitable[int]],
        kept_for: timedelta,
        clock: Clock,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._remove_sessions = remove_sessions
        self._kept_for = kept_for
        self._clock = clock

    async def run_forever(self) -> None:
        await self._clock.sleep(START_DELAY_S)
        while True:
            try:
                await self.remove_old()
            except Exception:  # noqa: BLE001 - must outlive a sick database; the next round is an hour away
                _log.exception("retention.failed")
            await self._clock.sleep(INTERVAL_S)

    async def remove_old(self) -> tuple[int, int, int]:
        """One round; returns how many run records, engine's rows and sessions it removed."""
        before = self._clock.now() - self._kept_for
        unfinished = [run.id for run in await self._store.unfinished()]
        rows = await self._dispatcher.forget(before=before, limit=ROUND_LIMIT, keep=unfinished)
        runs = await self._store.remove_ended(before=before, limit=ROUND_LIMIT)
        sessions = await self._remove_sessions(before)
        if runs or rows or sessions:
            _log.info(
                "retention.removed",
                runs=runs,
                engine_rows=rows,
                sessions=sessions,
                before=before.isoformat(),
            )
        return runs, rows, sessions
