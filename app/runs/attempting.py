"""One attempt of a run, told as it goes: what the agent is given, its progress in the thread, and what comes of it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial

from app.errors import FROM_AGENT, ErrorCode, OrionError
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.budgets import Ledger
from app.runs.choice import Choice, Chosen, Source, no_such_model
from app.runs.ending import LIMIT_DETAILS, TOLD_WITH_DETAIL
from app.runs.history import Conversation
from app.runs.live_log import LiveLogs
from app.runs.model import Run, RunResult, RunState
from app.runs.own_keys import HOW_TO_CHANGE, OwnKeyStore
from app.runs.patience import patiently
from app.runs.ports import Clock, ReplySink, RunTrace, ThreadReader
from app.runs.progress import ProgressTracker
from app.runs.run_store import RunStore
from app.runs.runners import Runners
from app.runs.stops import RunStoppedError, StopRequest
from app.runs.transcript import Transcript
from sandbox_runtime.task_group import open_task_group

REFRESH_INTERVAL_S = 10.0
"""How often the elapsed time is offered to the sink, which decides what is sent.

More often would say nothing new (it sends the time alone every 15 s), and with 1,000 runs took 4 % of a core.
"""

_OWN_KEY_REFUSED: Mapping[ErrorCode, str] = {
    ErrorCode.MODEL_AUTH_FAILED: f"the model did not accept your own key; {HOW_TO_CHANGE}",
    ErrorCode.MODEL_BILLING: f"the account of your own key has no credit left; {HOW_TO_CHANGE}",
}
"""For the person whose key it is: the operator can do nothing about it."""

_log = get_logger(__name__)


class Attempting:
    """Holds nothing of a run in between."""

    def __init__(
        self,
        *,
        store: RunStore,
        replies: ReplySink,
        reader: ThreadReader,
        runners: Runners,
        live_logs: LiveLogs,
        ledger: Ledger,
        own_keys: OwnKeyStore,
        clock: Clock,
        mask: Callable[[str], str],
    ) -> None:
        self._store = store
        self._replies = replies
        self._reader = reader
        self._runners = runners
        self._live_logs = live_logs
        self._ledger = ledger
        self._own_keys = own_keys
        self._clock = clock
        self._mask = mask

    async def execute(
        self,
        run: Run,
        trace: RunTrace,
        stop: StopRequest,
        choice: Choice,
        *,
        started_at: datetime,
    ) -> tuple[RunResult, Attempt]:
        """Whatever goes wrong is in the result; the agent is dead, and its progress is told no more.

        Raises:
            Exception: of a store or Slack's reader, before anything was started.
        """
        with self._live_logs.writing(run.id) as tell:
            return await self._execute(run, trace, stop, choice, started_at=started_at, tell=tell)

    async def _execute(
        self,
        run: Run,
        trace: RunTrace,
        stop: StopRequest,
        choice: Choice,
        *,
        started_at: datetime,
        tell: Callable[[str], None],
    ) -> tuple[RunResult, Attempt]:
        async with self._replies.live(run) as live:
            attempt = Attempt(
                run=run,
                conversation=await self._conversation(run),
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
                is_branch_said=choice.branch.source is Source.MESSAGE,
                chosen_model=choice.chosen_model,
                wants_pull_request=bool(run.request.options.pr),
                spending=await self._ledger.spending(run),
                own_keys=await patiently(
                    lambda: self._own_keys.of(run.request.team, run.request.user)
                ),
            )
            attempt.on_effect = partial(self._note_effect, attempt)
            async with _refreshing(attempt, self._clock):
                result = await self._attempt(attempt, stop, choice.model)
        return result, attempt

    async def _attempt(self, attempt: Attempt, stop: StopRequest, model: Chosen) -> RunResult:
        """The attempt's result: whatever goes wrong is part of it."""
        answer, detail, code = "", "", None
        try:
            finished = await self._runners.execute(attempt)
            answer, detail = finished.text, finished.detail
            attempt.notes.extend(finished.notes)
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
        if code is ErrorCode.MODEL_NOT_FOUND:
            detail = no_such_model(model)
        if attempt.own_key_protocol and code in _OWN_KEY_REFUSED:
            code, detail = ErrorCode.REQUEST_INVALID, _OWN_KEY_REFUSED[code]
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

    async def _conversation(self, run: Run) -> Conversation:
        request = run.request
        if request.thread_ts == request.message_ts:
            return Conversation(request=request)
        thread = await self._reader.read(run.thread, before_ts=request.message_ts)
        records = await self._store.of_thread(run.thread)
        return Conversation(request=request, records=records, thread=thread)


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
