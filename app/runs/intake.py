"""Accepts and stops work; what happens before Slack is acknowledged, and nothing more."""

from app.log import get_logger
from app.runs.model import RunId, RunRequest, Thread
from app.runs.policy import RunPolicy, may_stop
from app.runs.ports import Clock, Dispatcher, RunStore, Tracer
from app.runs.stops import StopSignals


class Intake:
    """Called by every surface; each call is one durable write."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        store: RunStore,
        signals: StopSignals,
        tracer: Tracer,
        policy: RunPolicy,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._signals = signals
        self._tracer = tracer
        self._policy = policy
        self._clock = clock
        self._log = get_logger(__name__)

    async def accept(self, request: RunRequest) -> None:
        """Hand a message over as work, durably; the same message twice is one run.

        Raises:
            OSError: not durable; do not acknowledge, so that Slack delivers again.
        """
        await self._dispatcher.submit(request)
        self._log.info("event.accepted", run_id=request.run_id, thread=request.thread.key)

    async def stop_run(self, run_id: RunId, *, user: str) -> bool:
        """Record that a run shall stop. False: unknown, over, asked before, or `user` may not."""
        if not may_stop(user, self._policy):
            return False
        is_new = await self._store.request_stop(run_id, user=user, at=self._clock.now())
        if is_new:
            self._signals.notify(run_id, user)
        return is_new

    async def stop_thread(self, thread: Thread, *, user: str) -> bool:
        """Stop the run that is going in a thread (the oldest unfinished one); those behind it go on."""
        for run in await self._store.of_thread(thread):
            if not run.state.is_final and run.outcome is None and run.stop_requested_by is None:
                return await self.stop_run(run.id, user=user)
        return False

    async def feedback(self, run_id: RunId, *, user: str, is_positive: bool) -> None:
        """Turn a person's thumb into a score of the run's trace."""
        if await self._store.get(run_id) is not None:
            self._tracer.score(run_id, user=user, is_positive=is_positive)
