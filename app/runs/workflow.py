"""The steps of a run, resumable from its record: `place` makes the thinking message, `advance` makes the answer."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial

import structlog

from agent_scripts.adapter import TurnMessage
from app.errors import FROM_AGENT, ErrorCode, OrionError
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.budgets import Ledger
from app.runs.choice import Choice, Source
from app.runs.choosing import Choosing
from app.runs.defaults import DefaultStore
from app.runs.ending import (
    LIMIT_DETAILS,
    SLACK_RETRY_S,
    TOLD_WITH_DETAIL,
    Ending,
    failure,
    recorded_result,
    trace_waiting,
    waited_too_long,
)
from app.runs.history import build_messages
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
from app.runs.patience import patiently
from app.runs.placing import Placing
from app.runs.policy import MAX_ATTEMPTS, RunPolicy
from app.runs.ports import (
    Advance,
    AgainIn,
    Clock,
    Dispatcher,
    Done,
    ReplySink,
    RunTrace,
    ThreadReader,
    Tracer,
    Turn,
)
from app.runs.progress import ProgressTracker
from app.runs.run_store import RunFiles, RunStore
from app.runs.runners import Runners
from app.runs.stops import RunStoppedError, StopRequest, StopSignals
from app.runs.transcript import Transcript
from sandbox_runtime.task_group import open_task_group

REFRESH_INTERVAL_S = 10.0
"""How often the elapsed time is offered to the sink, which decides what is sent.

More often would say nothing new (it sends the time alone every 15 s), and with 1,000 runs took 4 % of a core.
"""
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
        channels: Mapping[str, Wishes],
        live_logs: LiveLogs,
        signals: StopSignals,
        policy: RunPolicy,
        ledger: Ledger,
        clock: Clock,
        mask: Callable[[str], str],
    ) -> None:
        """`channels`: what the operator's file says of them, by their ids."""
        self._store = store
        self._dispatcher = dispatcher
        self._replies = replies
        self._reader = reader
        self._tracer = tracer
        self._runners = runners
        self._live_logs = live_logs
        self._signals = signals
        self._policy = policy
        self._clock = clock
        self._mask = mask
        self._ledger = ledger
        self._choosing = Choosing(
            store=store, defaults=defaults, channels=channels, offers=runners.offers
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
                result = await self._choosing.answer(run)
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

    async def _run(self, run: Run) -> Advance:
        now = self._clock.now()
        choice = await self._choosing.choose(run)
        agent, model, provider = self._runners.identity(run, choice)
        with self._signals.watch(
            run.id
        ) as stop:  # before the update, which tells of an earlier wish
            run = await self._store.update(
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
            if run.state is not RunState.RUNNING:  # it was ended while it waited
                return AgainIn(seconds=ENDING_RETRY_S)
            if run.stop_requested_by is not None:
                stop.set(run.stop_requested_by)
            if run.attempt == 1:
                _log.info("run.started", retry_of=run.request.retry_of)
            with self._tracer.trace(run) as trace:
                trace_waiting(run, trace, now=self._clock.now())
                return await self._execute(run, trace, stop, choice, started_at=now)

    async def _execute(
        self,
        run: Run,
        trace: RunTrace,
        stop: StopRequest,
        choice: Choice,
        *,
        started_at: datetime,
    ) -> Advance:
        with self._live_logs.writing(run.id) as tell:
            return await self._execute_told(
                run, trace, stop, choice, started_at=started_at, tell=tell
            )

    async def _execute_told(
        self,
        run: Run,
        trace: RunTrace,
        stop: StopRequest,
        choice: Choice,
        *,
        started_at: datetime,
        tell: Callable[[str], None],
    ) -> Advance:
        async with self._replies.live(run) as live:
            attempt = Attempt(
                run=run,
                messages=await self._messages(run),
                deadline_at=run.deadline_at or started_at,
                trace=trace,
                live=live,
                stop=stop,
                tracker=ProgressTracker(self._mask),
                clock=self._clock,
                started_at=started_at,
                transcript=Transcript(tell),
                repo=choice.repo.value,
                is_repo_said=choice.repo.source is Source.MESSAGE,
                branch=choice.branch.value,
                wants_pull_request=bool(run.request.options.pr),
                spending=await self._ledger.spending(run),
            )
            attempt.on_effect = partial(self._note_effect, attempt)
            async with _refreshing(attempt, self._clock):
                result = await self._attempt(attempt, stop)
        return await self._ending.finish(run, result, trace=trace, attempt=attempt)

    async def _attempt(self, attempt: Attempt, stop: StopRequest) -> RunResult:
        """The attempt's result: whatever goes wrong is part of it."""
        answer, detail, code = "", "", None
        try:
            finished = await self._runners.execute(attempt)
            answer, detail = finished.text, finished.detail
            if finished.error is not None:
                code = FROM_AGENT[finished.error]
                detail = LIMIT_DETAILS.get(finished.error, detail)
        except RunStoppedError:
            pass
        except OrionError as exc:
            code, detail = exc.code, str(exc)
        except Exception as exc:  # noqa: BLE001 - the outermost step: a bug must end in a reply too
            _log.exception("run.crashed", code=ErrorCode.INTERNAL)
            code, detail = ErrorCode.INTERNAL, f"{type(exc).__name__}: {exc}"
        if (excess := attempt.excess) is not None:
            code, detail = ErrorCode.BUDGET_EXCEEDED, excess.sentence
        attempt.detail = self._mask(detail)[:4000]
        if stop.user is not None and (code is not None or not answer):
            outcome, code = RunState.STOPPED, None
        else:
            outcome = RunState.SUCCEEDED if code is None else RunState.FAILED
        return RunResult(
            outcome=outcome,
            answer=self._mask("\n\n".join((answer, *attempt.notes)) if answer else answer),
            error_code=code,
            detail=attempt.detail if code in TOLD_WITH_DETAIL else "",
            stopped_by=stop.user if outcome is RunState.STOPPED else None,
            duration_s=attempt.elapsed_s,
            steps=attempt.tracker.steps,
            changes=attempt.difference.changes if attempt.difference else None,
            resumed=attempt.resumed,
            tokens=attempt.usage.tokens,
            cost_usd=attempt.cost_usd,
        )

    async def _note_effect(self, attempt: Attempt) -> None:
        """In the attempt, too: an agent that was attached to and fails after an effect must not be run again."""
        attempt.run = await patiently(
            lambda: self._store.update(attempt.run.id, has_outside_effect=True)
        )

    async def _messages(self, run: Run) -> Sequence[TurnMessage]:
        request = run.request
        if request.thread_ts == request.message_ts:
            return build_messages(request, records=(), thread=())
        thread = await self._reader.read(run.thread, before_ts=request.message_ts)
        return build_messages(
            request, records=await self._store.of_thread(run.thread), thread=thread
        )

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


@asynccontextmanager
async def _refreshing(attempt: Attempt, clock: Clock) -> AsyncIterator[None]:
    """Offers the elapsed time while inside, so that silence of the agent does not look like a hang."""

    async def refresh() -> None:
        while True:
            await clock.sleep(REFRESH_INTERVAL_S)
            attempt.show()

    async with open_task_group() as group:
        ticking = group.create_task(refresh())
        yield
        ticking.cancel()
