"""The first step of a run: its record, its place in the queue, and the thinking message that stands for it."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from weakref import WeakValueDictionary

import structlog
from typing_extensions import Unpack

from app.errors import ErrorCode
from app.log import get_logger
from app.runs.budgets import Ledger
from app.runs.model import QueuePosition, Run, RunId, RunRequest, RunState, Standing, Thread
from app.runs.own_keys import OwnKeyStore
from app.runs.patience import patiently
from app.runs.policy import RunPolicy, find_refusal
from app.runs.ports import Clock, Dispatcher, ReplySink, Tracer
from app.runs.run_store import RunChanges, RunStore

_log = get_logger(__name__)


class Placing:
    """Places runs; holds nothing of them in between."""

    def __init__(
        self,
        *,
        store: RunStore,
        dispatcher: Dispatcher,
        replies: ReplySink,
        tracer: Tracer,
        ledger: Ledger,
        own_keys: OwnKeyStore,
        policy: RunPolicy,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._own_keys = own_keys
        self._store = store
        self._dispatcher = dispatcher
        self._replies = replies
        self._tracer = tracer
        self._policy = policy
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def place(self, request: RunRequest) -> None:
        """Make the run record, queue the run and let the thinking message stand. May be repeated."""
        with structlog.contextvars.bound_contextvars(
            run_id=request.run_id, thread=request.thread.key
        ):
            accepted = Run(
                id=request.run_id,
                request=request,
                created_at=request.received_at,
                trace_id=self._tracer.trace_id(request.run_id),
            )
            # `advance` waits for the thinking message, and the thread's next message for this one's.
            async with self._lock_of(accepted), self._lock_of(accepted.thread):
                run, is_new = await patiently(lambda: self._store.add(accepted))
                if run.state.is_final:
                    return
                standing = await self._standing(run)
                if run.state is RunState.ACCEPTED and await self._refuse(run, standing):
                    return
                await self._dispatcher.schedule(run)
                if run.reply_ts is None:
                    with suppress(ConnectionError):  # `advance` tries again
                        await self._place(run, standing.position, maybe_posted=not is_new)

    async def ensure(self, run: Run) -> Run:
        """The run with its thinking message in Slack; `reply_ts` stays None when Slack refuses for good.

        Raises:
            ConnectionError: Slack cannot be reached now.
        """
        if run.reply_ts is not None:
            return run
        async with self._lock_of(run):
            run = await self._store.get(run.id) or run
            if run.reply_ts is not None or run.state.is_final:
                return run
            position = (await self._standing(run)).position
            return await self._place(run, position, maybe_posted=True)

    async def _standing(self, run: Run) -> Standing:
        since = self._clock.now() - timedelta(hours=1)
        return await patiently(
            lambda: self._store.standing(run, since=since, capacity=self._policy.capacity)
        )

    async def _refuse(self, run: Run, standing: Standing) -> bool:
        """Whether it is refused. Decided first, told then, closed last: a crash in between only tells it again."""
        if run.outcome is None:
            excess = await self._excess(run)
            refusal = find_refusal(
                run.request,
                self._policy,
                runs_last_hour=standing.runs_of_user,
                unfinished=standing.unfinished,
                is_going=run.request.retry_of is not None and await self._is_going(run),
                excess=excess,
            )
            if refusal is None:
                return False
            _log.info("event.rejected", code=refusal.code)
            run = await self._record(
                run.id,
                outcome=RunState.FAILED,
                error_code=refusal.code,
                error_detail=refusal.detail,
            )
        code = run.error_code or ErrorCode.INTERNAL
        await self._replies.refuse(run.request, code, detail=run.error_detail)
        await self._record(run.id, state=RunState.FAILED, ended_at=self._clock.now())
        return True

    async def _excess(self, run: Run) -> str:
        """The budget that is used up; whether one counts for people with keys of their own is seen when they are used."""
        request = run.request
        excess = self._ledger.excess(request)
        if excess is None:
            return ""
        keys = await patiently(lambda: self._own_keys.of(request.team, request.user))
        return "" if keys else excess.sentence

    async def _is_going(self, run: Run) -> bool:
        """Whether an earlier wish to answer the same message is not finished yet."""
        return any(
            other.request.message_ts == run.request.message_ts
            and not other.state.is_final
            and (other.created_at, other.id) < (run.created_at, run.id)
            for other in await self._store.of_thread(run.thread)
        )

    async def _place(self, run: Run, position: QueuePosition, *, maybe_posted: bool) -> Run:
        reply_ts = await self._replies.place(run, position=position, maybe_posted=maybe_posted)
        if reply_ts is None:
            return run
        placed = RunState.QUEUED if position.is_waiting else RunState.PLACED
        run = await self._record(
            run.id,
            reply_ts=reply_ts,
            placed_at=self._clock.now(),
            state=placed if run.state is RunState.ACCEPTED else run.state,
        )
        _log.info("run.placed", message_ts=reply_ts, queued=position.is_waiting)
        return run

    async def _record(self, run_id: RunId, **changes: Unpack[RunChanges]) -> Run:
        return await patiently(lambda: self._store.update(run_id, **changes))

    def _lock_of(self, owner: Run | Thread) -> asyncio.Lock:
        """Whoever places a run holds the run's, so that its message is posted once; and the thread's, so that its messages come in order."""
        key = owner.id if isinstance(owner, Run) else owner.key
        return self._locks.setdefault(key, asyncio.Lock())
