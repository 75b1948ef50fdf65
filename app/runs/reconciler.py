"""Ends what nothing else will end: runs whose engine has given them up, and runs that waited too long."""

from collections.abc import Awaitable
from datetime import timedelta

from app.errors import ErrorCode
from app.log import get_logger
from app.runs.model import WAITING_STATES, Run, RunId, RunRequest, RunState
from app.runs.policy import RunPolicy
from app.runs.ports import Clock, Dispatcher, EngineState
from app.runs.run_store import RunStore
from app.runs.stops import StopSignals
from app.runs.workflow import RunService

INTERVAL_S = 30.0
LEAST_INTERVAL_S = 1.0
"""When a run's time to wait is over sooner, so that it hears so soon."""
OVERDUE_GRACE_S = 60.0
"""A run past its deadline by this much has lost whoever should have ended it."""

_log = get_logger(__name__)


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
        self._pause_s = INTERVAL_S

    async def run_forever(self) -> None:
        while True:
            try:
                await self.reconcile()
            except Exception:  # noqa: BLE001 - must outlive a sick database; the next round is 30 s away
                _log.exception("reconciler.failed")
            await self._clock.sleep(max(self._pause_s, LEAST_INTERVAL_S))

    async def reconcile(self) -> int:
        """One round; returns how many runs it ended. One that cannot be ended is logged, and the others are."""
        self._pause_s = min(INTERVAL_S, self._policy.queue_timeout_s)
        ended = 0
        for request in await self._dispatcher.lost_placements():
            ended += await self._try(request.run_id, self._end_unplaced(request))
        runs = await self._store.unfinished()
        states = await self._dispatcher.engine_states([run.id for run in runs])
        for run in runs:
            code = self._verdict(run, states.get(run.id, EngineState.ENDED))
            if code is not None:
                ended += await self._try(run.id, self._end(run, code))
            elif run.state in WAITING_STATES:
                self._pause_s = min(self._pause_s, self._patience_s(run))
        return ended

    async def _end_unplaced(self, request: RunRequest) -> bool:
        """Whether it was not at its end."""
        run, _ = await self._store.add(
            Run(id=request.run_id, request=request, created_at=request.received_at)
        )
        return not run.state.is_final and await self._end(run, ErrorCode.INTERRUPTED)

    async def _end(self, run: Run, code: ErrorCode) -> bool:
        await self._service.end(run, code)
        return True

    async def _try(self, run_id: RunId, ending: Awaitable[bool]) -> bool:
        try:
            return await ending
        except Exception:  # noqa: BLE001 - one run that cannot be ended must not leave all others dangling; it is tried again
            _log.exception("reconciler.run_failed", run_id=run_id)
            return False

    def _patience_s(self, run: Run) -> float:
        """How much longer a waiting run may wait."""
        waited_s = (self._clock.now() - run.created_at).total_seconds()
        return self._policy.queue_timeout_s - waited_s

    def _verdict(self, run: Run, engine: EngineState) -> ErrorCode | None:
        now = self._clock.now()
        if engine is EngineState.ENDED:
            # A placement may be between its record and its schedule; it has had its chance after the grace.
            is_fresh = now - run.created_at < timedelta(seconds=OVERDUE_GRACE_S)
            return None if is_fresh and run.state is RunState.ACCEPTED else ErrorCode.INTERRUPTED
        if run.state in WAITING_STATES and self._patience_s(run) < 0:
            return ErrorCode.QUEUE_FULL
        return ErrorCode.SANDBOX_TIMEOUT if self._is_overdue(run) else None

    def _is_overdue(self, run: Run) -> bool:
        going_s = self._signals.going_s(run.id)
        if going_s is not None:  # the wall clock may have jumped meanwhile
            return going_s > self._policy.run_timeout_s + OVERDUE_GRACE_S
        grace = timedelta(seconds=OVERDUE_GRACE_S)
        return run.deadline_at is not None and self._clock.now() > run.deadline_at + grace
