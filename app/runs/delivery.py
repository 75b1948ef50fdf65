"""How a run ends: the outcome is recorded first, then the thread is told, then the record is closed."""

import asyncio
from datetime import datetime, timedelta

from app.aio import retry_store
from app.errors import ErrorCode
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.model import Outcome, Run, RunFileKind, RunState
from app.runs.policy import MAX_ATTEMPTS, RunPolicy
from app.runs.ports import Advance, AgainIn, Done, RunChanges, RunPorts, RunTrace

_log = get_logger(__name__)


class Ending:
    """Ends runs; a crash at any line repeats only the telling."""

    def __init__(self, ports: RunPorts, *, policy: RunPolicy) -> None:
        self._ports = ports
        self._policy = policy

    async def finish(
        self,
        run: Run,
        outcome: Outcome,
        *,
        trace: RunTrace | None = None,
        attempt: Attempt | None = None,
    ) -> Advance:
        """Records the outcome and tells the thread; `trace` is the running attempt's, if there was one."""
        changes: RunChanges = {"state": RunState.ANSWERING, "outcome": outcome}
        if attempt is not None:
            changes["sandbox_id"] = attempt.sandbox_id
            changes["event_offset"] = attempt.event_offset
            await self._keep_files(run, attempt)
        run = await retry_store(lambda: self._ports.store.update(run.id, **changes))
        return await self.deliver(run, outcome, resumed=False, trace=trace)

    async def _keep_files(self, run: Run, attempt: Attempt) -> None:
        """Stores log and patch before the outcome is recorded: who finds that finds them."""
        log = await asyncio.to_thread(attempt.transcript.text, self._ports.mask)
        if log:
            await retry_store(lambda: self._ports.files.save(run.id, RunFileKind.LOG, log))
        if attempt.difference is not None and attempt.difference.patch:
            patch = await asyncio.to_thread(self._ports.mask, attempt.difference.patch)
            await retry_store(lambda: self._ports.files.save(run.id, RunFileKind.PATCH, patch))

    async def deliver(
        self, run: Run, outcome: Outcome, *, resumed: bool, trace: RunTrace | None = None
    ) -> Advance:
        """Tells the thread a recorded outcome; `resumed` when an earlier process may have begun to."""
        if trace is None:
            with self._ports.tracer.trace(run) as own_trace:
                if not resumed:
                    trace_waiting(run, own_trace, now=self._ports.clock.now())
                return await self.deliver(run, outcome, resumed=resumed, trace=own_trace)
        with trace.step("slack-update") as step:
            delivery = await self._ports.replies.finish(run, outcome, resumed=resumed)
            if delivery.failure:
                step.fail("delivery_failed", delivery.failure)
            step.set(parts=1 + len(delivery.part_ts))
            if outcome.changes is not None and not delivery.failure:
                await self._attach_patch(run, resumed=resumed)
        if delivery.may_pass and self._ports.clock.now() - run.created_at < self._delivery_window():
            return AgainIn(seconds=self._policy.timings.slack_retry_s)
        run = await self._ports.store.update(
            run.id,
            state=outcome.state,
            delivery=delivery.text,
            reply_ts=delivery.reply_ts or run.reply_ts or "",
            part_ts=delivery.part_ts,
            ended_at=self._ports.clock.now(),
        )
        trace.finish(outcome, delivery=delivery.text)
        threshold_s = self._policy.announce_after_s
        is_waited_for = not run.request.is_bot and not delivery.failure
        if threshold_s and outcome.duration_s > threshold_s and is_waited_for:
            await self._ports.replies.announce(run, outcome)
        _log_end(run, outcome)
        return Done()

    async def _attach_patch(self, run: Run, *, resumed: bool) -> None:
        patch = await retry_store(lambda: self._ports.files.load(run.id, RunFileKind.PATCH))
        if patch:
            await self._ports.replies.attach(
                run, name=f"changes-{run.id}.patch", content=patch, resumed=resumed
            )

    def _delivery_window(self) -> timedelta:
        """Returns how long after its acceptance a run may still be told; then the record says that it was not."""
        longest_s = self._policy.queue_timeout_s + MAX_ATTEMPTS * self._policy.run_timeout_s
        return timedelta(seconds=longest_s) + self._policy.timings.delivery_grace


def trace_waiting(run: Run, trace: RunTrace, *, now: datetime) -> None:
    """Tells the trace what came before the first attempt, as steps that are over."""
    if run.attempt > 1:
        return
    if run.placed_at is not None:
        trace.past_step("place-message", started_at=run.created_at, ended_at=run.placed_at)
    trace.past_step("queue-wait", started_at=run.created_at, ended_at=run.started_at or now)


def make_failure(code: ErrorCode) -> Outcome:
    """Returns the outcome of a run that failed without an agent's word."""
    return Outcome(state=RunState.FAILED, error_code=code)


def make_expired(run: Run, policy: RunPolicy, *, now: datetime) -> Outcome:
    """Returns the outcome of a run whose turn did not come in time."""
    return Outcome(
        state=RunState.FAILED,
        error_code=ErrorCode.QUEUE_FULL,
        detail=f"this one waited longer than {policy.queue_timeout_s:g} s for its turn",
        duration_s=(now - run.created_at).total_seconds(),
    )


def _log_end(run: Run, outcome: Outcome) -> None:
    events = {RunState.SUCCEEDED: "run.finished", RunState.STOPPED: "run.stopped"}
    log = _log.warning if outcome.state is RunState.FAILED else _log.info
    log(
        events.get(outcome.state, "run.failed"),
        code=outcome.error_code or "",
        duration_s=round(outcome.duration_s, 3),
        attempt=run.attempt,
        delivery=run.delivery,
        trace_id=run.trace_id,
    )
