"""The steps of a run, resumable from its record: `place` makes the thinking message, `advance` makes the answer."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial

import structlog

from app.errors import ErrorCode
from app.log import get_logger
from app.runs.attempting import Attempting
from app.runs.budgets import Ledger
from app.runs.choosing import Choosing
from app.runs.defaults import DefaultStore
from app.runs.ending import (
    SLACK_RETRY_S,
    Ending,
    failure,
    recorded_result,
    trace_waiting,
    waited_too_long,
)
from app.runs.live_log import LiveLogs
from app.runs.model import (
    BEGINNING_STATES,
    WAITING_STATES,
    Run,
    RunId,
    RunRequest,
    RunResult,
    RunState,
)
from app.runs.options import Wishes
from app.runs.own_keys import OwnKeyStore
from app.runs.patience import patiently
from app.runs.placing import Placing
from app.runs.policy import MAX_ATTEMPTS, RunPolicy, find_invalid
from app.runs.ports import (
    Advance,
    AgainIn,
    Clock,
    Dispatcher,
    Done,
    ReplySink,
    ThreadReader,
    Tracer,
    Turn,
)
from app.runs.run_store import RunFiles, RunStore
from app.runs.runners import Runners
from app.runs.session import SessionStore
from app.runs.stops import StopSignals

ENDING_RETRY_S = 1.0

_log = get_logger(__name__)


class RunService:
    """What a dispatcher calls. Everything it knows of a run between two calls is in the run record."""

    def __init__(
        self,
        *,
        store: RunStore,
        files: RunFiles,
        dispatcher: Dispatcher,
        replies: ReplySink,
        reader: ThreadReader,
        tracer: Tracer,
        runners: Runners,
        defaults: DefaultStore,
        sessions: SessionStore,
        channels: Mapping[str, Wishes],
        live_logs: LiveLogs,
        signals: StopSignals,
        policy: RunPolicy,
        ledger: Ledger,
        own_keys: OwnKeyStore,
        clock: Clock,
        mask: Callable[[str], str],
    ) -> None:
        """`channels`: what the operator's file says of them, by their ids."""
        self._store = store
        self._dispatcher = dispatcher
        self._replies = replies
        self._tracer = tracer
        self._runners = runners
        self._signals = signals
        self._policy = policy
        self._clock = clock
        self._choosing = Choosing(
            store=store,
            defaults=defaults,
            own_keys=own_keys,
            sessions=sessions,
            channels=channels,
            offers=runners.offers,
        )
        self._attempting = Attempting(
            store=store,
            replies=replies,
            reader=reader,
            runners=runners,
            live_logs=live_logs,
            ledger=ledger,
            own_keys=own_keys,
            clock=clock,
            mask=mask,
        )
        self._ending = Ending(
            store=store,
            files=files,
            replies=replies,
            tracer=tracer,
            policy=policy,
            clock=clock,
            mask=mask,
        )
        self._placing = Placing(
            store=store,
            dispatcher=dispatcher,
            replies=replies,
            tracer=tracer,
            ledger=ledger,
            own_keys=own_keys,
            policy=policy,
            clock=clock,
        )

    async def place(self, request: RunRequest) -> None:
        """Make the run record, queue the run and let the thinking message stand. May be repeated."""
        await self._placing.place(request)

    # -- advance -------------------------------------------------------------------------------------------------------

    async def turn(self, run_id: RunId) -> Turn | None:
        """Whose turn it waits for; None when there is only something to tell, or nothing at all."""
        run = await self._store.get(run_id)
        if run is None or run.state.is_final or run.outcome is not None:
            return None
        if self._end_before_start(run) is not None or run.request.options.command is not None:
            return None
        return Turn(user=run.request.user, order=run.request.order)

    async def advance(self, run_id: RunId) -> Advance:
        """Bring a run to its end. May be repeated, also after a crash at any line."""
        run = await self._store.get(run_id)
        if run is None or run.state.is_final:
            return Done()
        with structlog.contextvars.bound_contextvars(run_id=run.id, thread=run.thread.key):
            if run.outcome is not None:
                return await self._ending.deliver(run, recorded_result(run), resumed=True)
            try:
                run = await self._placing.ensure(run)
            except ConnectionError:
                if not self._has_waited_too_long(run):
                    return AgainIn(seconds=SLACK_RETRY_S)
            if run.state.is_final:
                return Done()
            result = self._result_without_running(run)
            if result is None and run.attempt == 0:
                result = self._invalid(run) or await self._choosing.answer(run)
            if result is not None:
                if run.attempt:
                    await self._runners.abandon(run)
                return await self._ending.finish(run, result)
            return await self._run(run)

    def _has_waited_too_long(self, run: Run) -> bool:
        waited_s = (self._clock.now() - run.created_at).total_seconds()
        return run.attempt == 0 and waited_s > self._policy.queue_timeout_s

    def _result_without_running(self, run: Run) -> RunResult | None:
        """How the run ends if it must not start any more."""
        if run.reply_ts is None:
            # Nobody would see the answer.
            return failure(ErrorCode.INTERNAL)
        return self._end_before_start(run)

    def _end_before_start(self, run: Run) -> RunResult | None:
        """What keeps a run from starting once and for all."""
        if run.stop_requested_by is not None:
            return RunResult(outcome=RunState.STOPPED, stopped_by=run.stop_requested_by)
        if run.attempt >= MAX_ATTEMPTS:
            return failure(ErrorCode.INTERRUPTED)
        if self._has_waited_too_long(run):
            return waited_too_long(run, self._policy, now=self._clock.now())
        return None

    def _invalid(self, run: Run) -> RunResult | None:
        """How it ends if its message is none to run. What came so was refused when it was placed; since then it may have been edited."""
        problem = find_invalid(run.request, self._policy)
        if not problem:
            return None
        return RunResult(
            outcome=RunState.FAILED, error_code=ErrorCode.REQUEST_INVALID, detail=problem
        )

    async def _run(self, run: Run) -> Advance:
        """`run` as it was checked; edited since then, it does not begin."""
        now, checked = self._clock.now(), run.request.text
        choice = await self._choosing.choose(run)
        agent, model, provider = self._runners.identity(run, choice)
        with self._signals.watch(
            run.id
        ) as stop:  # before the update, which tells of an earlier wish
            begin = partial(
                self._store.update,
                run.id,
                while_in=BEGINNING_STATES,
                state=RunState.RUNNING,
                attempt=run.attempt + 1,
                started_at=run.started_at or now,
                deadline_at=now + timedelta(seconds=self._policy.run_timeout_s),
                agent=agent,
                model=model,
                provider=provider,
            )
            run = await patiently(begin)
            if run.state is not RunState.RUNNING:  # it was ended while it waited
                return AgainIn(seconds=ENDING_RETRY_S)
            if run.request.text != checked:  # by an edit just before it began
                unbegin = partial(
                    self._store.update,
                    run.id,
                    while_in={RunState.RUNNING},
                    state=RunState.PLACED,
                    attempt=run.attempt - 1,
                )
                await patiently(unbegin)
                return AgainIn(seconds=0)
            if run.stop_requested_by is not None:
                stop.set(run.stop_requested_by)
            if run.attempt == 1:
                _log.info("run.started", retry_of=run.request.retry_of)
            with self._tracer.trace(run) as trace:
                trace_waiting(run, trace, now=self._clock.now())
                result, attempt = await self._attempting.execute(
                    run, trace, stop, choice, started_at=now
                )
                return await self._ending.finish(run, result, trace=trace, attempt=attempt)

    async def end_stopped(self, run: Run) -> None:
        """End a run that was told to stop while it waits, without letting it wait for its turn. May be repeated."""
        with structlog.contextvars.bound_contextvars(run_id=run.id, thread=run.thread.key):
            is_resumed = run.outcome is not None
            run = await self._store.update(
                run.id,
                while_in=WAITING_STATES,
                state=RunState.ANSWERING,
                outcome=RunState.STOPPED,
            )
            while run.state is RunState.ANSWERING and run.attempt == 0:
                # As recorded: its time to wait may have run out at the same moment, and that came first.
                again = await self._ending.deliver(run, recorded_result(run), resumed=is_resumed)
                if isinstance(again, Done):
                    self._dispatcher.wake(run.id)
                    return
                await self._clock.sleep(again.seconds)
                is_resumed = True

    # -- the end -------------------------------------------------------------------------------------------------------

    async def end(self, run: Run, code: ErrorCode) -> None:
        """End a run that nothing else will end (the reconciler's call); what cannot be told now is told in a later round.

        QUEUE_FULL means that it waited too long.
        """
        with structlog.contextvars.bound_contextvars(run_id=run.id, thread=run.thread.key):
            if run.outcome is not None:
                await self._ending.deliver(run, recorded_result(run), resumed=True)
                return
            with suppress(ConnectionError):
                run = await self._placing.ensure(run)
            if not run.state.is_final:
                if run.attempt:
                    await self._runners.abandon(run)
                result = failure(code)
                if code is ErrorCode.QUEUE_FULL:
                    result = waited_too_long(run, self._policy, now=self._clock.now())
                await self._ending.finish(run, result)
            self._dispatcher.wake(run.id)
