"""What goes on in the background: runs that hang are ended, old records are removed."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta

from app.audit.records import AuditLog
from app.errors import ErrorCode
from app.log import get_logger
from app.runs.model import Clock
from app.runs.policy import RunPolicy
from app.runs.ports import RunStore
from app.runs.runners import ENDING_S, ProviderRuntime
from app.runs.service import RunService
from app.runs.stop import StopSignals

_log = get_logger(__name__)


async def repeat_forever(
    work: Callable[[], Awaitable[object]],
    *,
    clock: Clock,
    pause_s: Callable[[], float],
    failed: str,
    delay_s: float = 0,
) -> None:
    """Does a piece of background work again and again, for the first time after `delay_s`; `failed` is the event of a failure."""
    if delay_s:
        await clock.sleep(delay_s)
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - must outlive a sick database and a bug; the next round may do better
            _log.exception(failed)
        await clock.sleep(pause_s())


def maintain_runtime(
    runtime: ProviderRuntime, *, clock: Clock, policy: RunPolicy
) -> Sequence[Coroutine[None, None, None]]:
    """Returns what has to go on as long as a provider's runtime is open."""
    interval_s = policy.timings.close_interval_s
    return (
        repeat_forever(
            runtime.workspaces.destroy_overdue,
            clock=clock,
            pause_s=lambda: interval_s,
            failed="sandbox.close_failed",
            delay_s=interval_s,
        ),
        runtime.pool.fill_forever(runtime.runner.spec_to_wait),
    )


WATCH_INTERVAL_S = 10.0
OVERDUE_GRACE_S = 60.0 + ENDING_S
"""A run past its deadline by this much has lost whoever should have ended it."""


class Watchdog:
    """Ends runs at which this process has been for longer than a run may take: their own deadline has failed."""

    def __init__(
        self, *, service: RunService, policy: RunPolicy, signals: StopSignals, clock: Clock
    ) -> None:
        self._service = service
        self._limit_s = policy.run_timeout_s + policy.max_still_s + OVERDUE_GRACE_S
        self._signals = signals
        self._clock = clock

    async def run_forever(self) -> None:
        await repeat_forever(
            self.look,
            clock=self._clock,
            pause_s=lambda: WATCH_INTERVAL_S,
            failed="watchdog.failed",
        )

    async def look(self) -> int:
        """Returns how many runs it ended. One that cannot be ended is logged, and tried again."""
        ended = 0
        for run_id, going_s in self._signals.going().items():
            if going_s > self._limit_s:
                try:
                    await self._service.end(run_id, ErrorCode.SANDBOX_TIMEOUT)
                    ended += 1
                except Exception:  # noqa: BLE001 - one run that cannot be ended must not leave all others dangling; it is tried again
                    _log.exception("watchdog.run_failed", run_id=run_id)
        return ended


START_DELAY_S = 15.0
"""The runs that a start resumes go first."""
RETENTION_INTERVAL_S = 3600.0
ROUND_LIMIT = 10_000
"""Records in one round: 240,000 a day."""


class Retention:
    """`leads`: whether this process does it for all. `keep_for` is two days or more: Slack delivers an event again for hours, and what is removed would run again."""

    def __init__(
        self,
        *,
        store: RunStore,
        audit: AuditLog,
        leads: Callable[[], Awaitable[bool]],
        remove_sessions: Callable[[datetime], Awaitable[int]],
        keep_for: timedelta,
        keep_audit_for: timedelta,
        clock: Clock,
    ) -> None:
        self._store = store
        self._audit = audit
        self._keep_audit_for = keep_audit_for
        self._leads = leads
        self._remove_sessions = remove_sessions
        self._keep_for = keep_for
        self._clock = clock

    async def run_forever(self) -> None:
        await repeat_forever(
            self._remove_if_leading,
            clock=self._clock,
            pause_s=lambda: RETENTION_INTERVAL_S,
            failed="retention.failed",
            delay_s=START_DELAY_S,
        )

    async def _remove_if_leading(self) -> None:
        if await self._leads():
            await self.remove_old()

    async def remove_old(self) -> tuple[int, int]:
        """Removes what is old; returns how many run records and sessions."""
        now = self._clock.now()
        before = now - self._keep_for
        runs = await self._store.remove_ended(before=before, limit=ROUND_LIMIT)
        sessions = await self._remove_sessions(before)
        entries = await self._audit.remove(before=now - self._keep_audit_for, limit=ROUND_LIMIT)
        if entries:
            _log.info("retention.audit_removed", entries=entries)
        if runs or sessions:
            _log.info("retention.removed", runs=runs, sessions=sessions, before=before.isoformat())
        return runs, sessions
