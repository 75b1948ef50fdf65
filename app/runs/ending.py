"""How a run ends: the outcome is recorded first, then the thread is told, then the record is closed."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from agent_scripts.errors import AgentErrorCode
from app.errors import ErrorCode
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.model import Run, RunResult, RunState
from app.runs.patience import patiently
from app.runs.policy import MAX_ATTEMPTS, RunPolicy
from app.runs.ports import Advance, AgainIn, Clock, Done, ReplySink, RunTrace, Tracer
from app.runs.run_store import RunChanges, RunFileKind, RunFiles, RunStore

SLACK_RETRY_S = 10.0
DELIVERY_PATIENCE = timedelta(minutes=15)
"""An outage of Slack may outlast a run by this much without losing its answer."""

LIMIT_DETAILS: Mapping[AgentErrorCode, str] = {
    AgentErrorCode.TURN_LIMIT: "this took all the steps that I may take for one request",
    AgentErrorCode.OUTPUT_LIMIT: "this gave more output than I may handle for one request",
    AgentErrorCode.DISK_LIMIT: "its files took more space than my workspace has",
    AgentErrorCode.PROCESS_LIMIT: "this started more processes than my workspace allows",
}
"""Which limit it was, for the person who asked."""
TOLD_WITH_DETAIL = (
    ErrorCode.BUDGET_EXCEEDED,
    ErrorCode.LIMIT_EXCEEDED,
    ErrorCode.INTERRUPTED,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.REPO_UNAVAILABLE,
    ErrorCode.REQUEST_INVALID,
)
"""Codes of an attempt whose detail is for the person who asked."""

_log = get_logger(__name__)


class Ending:
    """Ends runs; a crash at any line repeats only the telling."""

    def __init__(
        self,
        *,
        store: RunStore,
        files: RunFiles,
        replies: ReplySink,
        tracer: Tracer,
        policy: RunPolicy,
        clock: Clock,
        mask: Callable[[str], str],
    ) -> None:
        self._store = store
        self._files = files
        self._mask = mask
        self._replies = replies
        self._tracer = tracer
        self._policy = policy
        self._clock = clock

    async def finish(
        self,
        run: Run,
        result: RunResult,
        *,
        trace: RunTrace | None = None,
        attempt: Attempt | None = None,
    ) -> Advance:
        """Record the outcome and tell the thread; `trace` is the running attempt's, if there was one."""
        changes: RunChanges = {
            "state": RunState.ANSWERING,
            "outcome": result.outcome,
            "answer": result.answer,
            "duration_s": result.duration_s,
            "steps": result.steps,
            "error_code": result.error_code,
        }
        if result.detail:
            changes["error_detail"] = result.detail
        if attempt is not None:
            changes["usage"] = attempt.usage
            changes["sandbox_id"] = attempt.sandbox_id
            changes["event_offset"] = attempt.event_offset
            changes["error_detail"] = attempt.detail
            changes["changes"] = result.changes
            changes["cost_usd"] = attempt.cost_usd
            changes["resumed"] = attempt.resumed
            await self._keep_files(run, attempt)
        run = await patiently(lambda: self._store.update(run.id, **changes))
        return await self.deliver(run, result, resumed=False, trace=trace)

    async def _keep_files(self, run: Run, attempt: Attempt) -> None:
        """Before the outcome is recorded: who finds that finds them."""
        log = await asyncio.to_thread(attempt.transcript.text, self._mask)
        if log:
            await patiently(lambda: self._files.save(run.id, RunFileKind.LOG, log))
        if attempt.difference is not None and attempt.difference.patch:
            patch = await asyncio.to_thread(self._mask, attempt.difference.patch)
            await patiently(lambda: self._files.save(run.id, RunFileKind.PATCH, patch))

    async def deliver(
        self, run: Run, result: RunResult, *, resumed: bool, trace: RunTrace | None = None
    ) -> Advance:
        """Tell the thread a recorded outcome; `resumed` when an earlier process may have begun to."""
        if trace is None:
            with self._tracer.trace(run) as own_trace:
                if not resumed:
                    trace_waiting(run, own_trace, now=self._clock.now())
                return await self.deliver(run, result, resumed=resumed, trace=own_trace)
        with trace.step("slack-update") as step:
            delivery = await self._replies.finish(run, result, resumed=resumed)
            if delivery.failure:
                step.fail("delivery_failed", delivery.failure)
            step.set(parts=1 + len(delivery.part_ts))
            if run.changes is not None and not delivery.failure:
                await self._attach_patch(run, resumed=resumed)
        if delivery.may_pass and self._clock.now() - run.created_at < self._delivery_window():
            return AgainIn(seconds=SLACK_RETRY_S)
        run = await self._store.update(
            run.id,
            state=result.outcome,
            delivery=delivery.text,
            part_ts=delivery.part_ts,
            ended_at=self._clock.now(),
        )
        trace.finish(result, usage=run.usage, delivery=delivery.text)
        threshold_s = self._policy.announce_after_s
        if threshold_s and result.duration_s > threshold_s and not delivery.failure:
            await self._replies.announce(run, result)
        _log_end(run, result)
        return Done()

    async def _attach_patch(self, run: Run, *, resumed: bool) -> None:
        patch = await patiently(lambda: self._files.load(run.id, RunFileKind.PATCH))
        if patch:
            await self._replies.attach(
                run, name=f"changes-{run.id}.patch", content=patch, resumed=resumed
            )

    def _delivery_window(self) -> timedelta:
        """How long after its acceptance a run may still be told; then the record says that it was not."""
        longest_s = self._policy.queue_timeout_s + MAX_ATTEMPTS * self._policy.run_timeout_s
        return timedelta(seconds=longest_s) + DELIVERY_PATIENCE


def trace_waiting(run: Run, trace: RunTrace, *, now: datetime) -> None:
    """What came before the first attempt, as steps that are over."""
    if run.attempt > 1:
        return
    if run.placed_at is not None:
        trace.past_step("place-message", started_at=run.created_at, ended_at=run.placed_at)
    trace.past_step("queue-wait", started_at=run.created_at, ended_at=run.started_at or now)


def failure(code: ErrorCode) -> RunResult:
    """The result of a run that failed without an agent's word."""
    return RunResult(outcome=RunState.FAILED, error_code=code)


def waited_too_long(run: Run, policy: RunPolicy, *, now: datetime) -> RunResult:
    """The result of a run whose turn did not come in time."""
    return RunResult(
        outcome=RunState.FAILED,
        error_code=ErrorCode.QUEUE_FULL,
        detail=f"this one waited longer than {policy.queue_timeout_s:g} s for its turn",
        duration_s=(now - run.created_at).total_seconds(),
    )


def recorded_result(run: Run) -> RunResult:
    """The result as its record has it."""
    is_for_asker = run.attempt == 0 or run.error_code in TOLD_WITH_DETAIL
    return RunResult(
        outcome=run.outcome or RunState.FAILED,
        answer=run.answer,
        error_code=run.error_code,
        detail=run.error_detail if is_for_asker else "",
        stopped_by=run.stop_requested_by if run.outcome is RunState.STOPPED else None,
        changes=run.changes,
        resumed=run.resumed,
        tokens=run.usage.tokens,
        cost_usd=run.cost_usd,
        duration_s=run.duration_s,
        steps=run.steps,
    )


def _log_end(run: Run, result: RunResult) -> None:
    events = {RunState.SUCCEEDED: "run.finished", RunState.STOPPED: "run.stopped"}
    log = _log.warning if result.outcome is RunState.FAILED else _log.info
    log(
        events.get(result.outcome, "run.failed"),
        code=result.error_code or "",
        duration_s=round(result.duration_s, 3),
        attempt=run.attempt,
        delivery=run.delivery,
        trace_id=run.trace_id,
    )
