"""What keeps the records true in the background: runs that nothing moves are ended, old records are removed."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta

from app.errors import ErrorCode
from app.log import get_logger
from app.runs.model import WAITING_STATES, Clock, Run, RunState
from app.runs.policy import RunPolicy, is_given_up
from app.runs.ports import Dispatcher, EngineState, RunStore
from app.runs.runners import ProviderRuntime
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


RECONCILE_INTERVAL_S = 30.0
LEAST_INTERVAL_S = 1.0
"""When a run's time to wait is over sooner, so that it hears so soon."""
OVERDUE_GRACE_S = 60.0
"""A run past its deadline by this much has lost whoever should have ended it."""


class Reconciler:
    def __init__(
        self,
        *,
        store: RunStore,
        dispatcher: Dispatcher,
        service: RunService,
        policy: RunPolicy,
        signals: StopSignals,
        clock: Clock,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._service = service
        self._policy = policy
        self._signals = signals
        self._clock = clock
        self._pause_s = RECONCILE_INTERVAL_S

    async def run_forever(self) -> None:
        await repeat_forever(
            self.reconcile,
            clock=self._clock,
            pause_s=lambda: max(self._pause_s, LEAST_INTERVAL_S),
            failed="reconciler.failed",
        )

    async def reconcile(self) -> int:
        """Ends what nothing else will end; returns how many runs. One that cannot be ended is logged, and the others are."""
        self._pause_s = min(RECONCILE_INTERVAL_S, self._policy.queue_timeout_s)
        ended = 0
        runs = await self._store.unfinished()
        states = await self._dispatcher.engine_states([run.id for run in runs])
        for run in runs:
            code = self._verdict(run, states.get(run.id, EngineState.ENDED))
            if code is not None:
                ended += await self._end(run, code)
            elif run.state in WAITING_STATES:
                self._pause_s = min(self._pause_s, self._wait_left_s(run))
        return ended

    async def _end(self, run: Run, code: ErrorCode) -> bool:
        try:
            await self._service.end(run, code)
        except Exception:  # noqa: BLE001 - one run that cannot be ended must not leave all others dangling; it is tried again
            _log.exception("reconciler.run_failed", run_id=run.id)
            return False
        return True

    def _wait_left_s(self, run: Run) -> float:
        waited_s = (self._clock.now() - run.created_at).total_seconds()
        return self._policy.queue_timeout_s - waited_s

    def _verdict(self, run: Run, engine: EngineState) -> ErrorCode | None:
        now = self._clock.now()
        if engine is EngineState.ENDED:
            # Its placement may begin just now; it has had its chance after the grace.
            is_fresh = now - run.created_at < timedelta(seconds=OVERDUE_GRACE_S)
            may_be_placed = run.state is RunState.ACCEPTED and not is_given_up(run)
            return None if is_fresh and may_be_placed else ErrorCode.INTERRUPTED
        # It reads its thread, and begins then.
        is_at_work = self._signals.going_s(run.id) is not None
        if run.state in WAITING_STATES and self._wait_left_s(run) < 0 and not is_at_work:
            return ErrorCode.QUEUE_FULL
        return ErrorCode.SANDBOX_TIMEOUT if self._is_overdue(run) else None

    def _is_overdue(self, run: Run) -> bool:
        going_s = self._signals.going_s(run.id)
        if going_s is not None:  # the wall clock may have jumped meanwhile
            return going_s > self._policy.run_timeout_s + OVERDUE_GRACE_S
        grace = timedelta(seconds=OVERDUE_GRACE_S)
        return run.deadline_at is not None and self._clock.now() > run.deadline_at + grace


START_DELAY_S = 15.0
"""The runs that a start resumes go first."""
RETENTION_INTERVAL_S = 3600.0
ROUND_LIMIT = 10_000
"""Records, and engine's rows, in one round: 240,000 a day."""


class Retention:
    """`keep_for` is two days or more: Slack delivers an event again for hours, and what is removed would run again."""

    def __init__(
        self,
        *,
        store: RunStore,
        dispatcher: Dispatcher,
        remove_sessions: Callable[[datetime], Awaitable[int]],
        keep_for: timedelta,
        clock: Clock,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._remove_sessions = remove_sessions
        self._keep_for = keep_for
        self._clock = clock

    async def run_forever(self) -> None:
        await repeat_forever(
            self.remove_old,
            clock=self._clock,
            pause_s=lambda: RETENTION_INTERVAL_S,
            failed="retention.failed",
            delay_s=START_DELAY_S,
        )

    async def remove_old(self) -> tuple[int, int, int]:
        """Removes what is old; returns how many run records, engine's rows and sessions."""
        before = self._clock.now() - self._keep_for
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
