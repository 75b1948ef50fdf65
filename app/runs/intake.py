"""Accepts and stops work; what happens before Slack is acknowledged, and nothing more."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from app.log import get_logger
from app.runs.model import WAITING_STATES, Run, RunFileKind, RunState
from app.runs.policy import RunPolicy, may_stop
from app.runs.ports import Dispatcher, RunPorts
from app.runs.request import (
    NO_CONTENT,
    MessageContent,
    RunId,
    RunRequest,
    Thread,
    run_id_for,
    slack_time,
)
from app.runs.stop import StopSignals
from app.runs.transcript import last_lines

WRITE_TIMEOUT_S = 2.0
"""The store waits longer for a sick database, but Slack's acknowledgement is due after 3 s."""
SAME_STOP = timedelta(seconds=2)
"""Whoever says it again so soon cannot have seen what the first one did, and means the same."""
SHOWN_LOG_CHARS = 800
FENCE = "```"
LOOKALIKE_FENCE = "\u02cb" * 3
"""What a log has in place of a fence, which would end its block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryIntent:
    """A person wants a failed run's turn tried again."""

    run_id: RunId
    """The failed one."""
    user: str
    click_ts: str
    """Slack's, of the click: the same click is the same run."""
    is_external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """The author changed a message, or took it back."""

    run_id: RunId
    """Of the message, whether it was ever a request or not."""
    user: str
    text: str | None = field(repr=False)
    """None: deleted."""
    content: MessageContent = NO_CONTENT
    """What comes with it now."""

    def apply(self, request: RunRequest) -> RunRequest:
        return request.model_copy(update={"text": self.text, "content": self.content})


class Intake:
    """Called by every surface; each call is one durable write."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        dispatcher: Dispatcher,
        signals: StopSignals,
        policy: RunPolicy,
    ) -> None:
        self._ports = ports
        self._dispatcher = dispatcher
        self._signals = signals
        self._policy = policy
        self._log = get_logger(__name__)

    async def accept(self, request: RunRequest) -> bool:
        """Hands a message over as work, durably; the same message twice is one run. False: it was accepted before.

        Raises:
            OSError: not durable; do not acknowledge, so that Slack delivers again.
            TimeoutError: the same, of what another event of the message lacked.
        """
        run = Run(
            id=request.run_id,
            request=request,
            created_at=request.received_at,
            trace_id=self._ports.tracer.trace_id(request.run_id),
        )
        is_new = await self._dispatcher.submit(run)  # what is logged is that it is placed
        if not is_new and request.content:
            # Of a mention there are two events, either of which may lack what the other one has.
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._ports.store.amend(run.id, request.completing)
        return is_new

    async def retry(self, intent: RetryIntent) -> None:
        """Accepts a failed run's turn once more, as a run of its own. Nothing happens if that run did not fail.

        Raises:
            OSError: not durable.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            failed = await self._ports.store.get(intent.run_id)
        if failed is None or failed.state is not RunState.FAILED:
            self._log.info("event.ignored", reason="nothing_to_retry", run_id=intent.run_id)
            return
        request = failed.request
        run_id = run_id_for(
            team=request.team,
            channel=request.channel,
            message_ts=request.message_ts,
            click=intent.click_ts,
        )
        changes = {
            "run_id": run_id,
            "user": intent.user,
            "is_external": intent.is_external,
            "late_s": 0,
            "retry_of": failed.id,
            "click_ts": intent.click_ts,
            "received_at": self._ports.clock.now(),
        }
        await self.accept(request.model_copy(update=changes))

    async def revise(self, revision: Revision) -> bool:
        """Follows an edit or a deletion of a message whose run has not begun; later ones change nothing.

        Raises:
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(revision.run_id)
            if run is None or run.state not in WAITING_STATES:
                return False
            if revision.text is None:
                return await self.stop_run(run.id, user=revision.user)
            is_amended = await self._ports.store.amend(run.id, revision.apply)
        if is_amended:
            self._log.info("run.amended", run_id=run.id, thread=run.thread.key)
        return is_amended

    def may_stop(self, user: str) -> bool:
        """Whether a stop of this person's counts."""
        return may_stop(user, self._policy)

    async def stop_run(self, run_id: RunId, *, user: str, at: datetime | None = None) -> bool:
        """Records that a run shall stop. False: unknown, over, asked before, or `user` may not.

        Raises:
            TimeoutError: the database is sick; the request may still be recorded later.
        """
        if not self.may_stop(user):
            return False
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            is_new = await self._ports.store.request_stop(
                run_id, user=user, at=at or self._ports.clock.now()
            )
        if is_new:
            self._signals.notify(run_id, user)
            self._dispatcher.wake()
        return is_new

    async def stop_thread(self, thread: Thread, *, user: str, ts: str) -> bool:
        """Stops the run that is going in a thread (the oldest unfinished one); those behind it go on.

        `ts`: of the message that says so. What was asked after it goes on, and the same message stops only once: Slack
        tells of a mention by two events some 250 ms apart, and may tell of each again. So does another one within two seconds.

        Raises:
            TimeoutError: the database is sick.
        """
        at = slack_time(ts)
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            runs = await self._ports.store.of_thread(thread)
            if any(run.stop_requested_at == at for run in runs):
                return False
            for number, run in enumerate(runs):
                if run.state.is_final or run.request.asked_at >= at:
                    continue
                # The oldest is meant, also while it is told how it ended, or stops already: not the one behind it.
                is_same = any(_was_stopped_just_before(earlier, at) for earlier in runs[:number])
                if is_same or not _may_be_meant(run, at):
                    return False
                return await self.stop_run(run.id, user=user, at=at)
        return False

    async def stop_channel(self, team: str, channel: str, *, user: str, ts: str) -> bool:
        """Stops all that goes on or waits in a direct message, if it was asked before the message `ts`.

        Raises:
            TimeoutError: the database is sick.
        """
        at = slack_time(ts)
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            meant = [
                run.id
                for run in await self._ports.store.unfinished()
                if (run.request.team, run.request.channel) == (team, channel)
                and _may_be_meant(run, at)
            ]
            stopped = [await self.stop_run(run_id, user=user, at=at) for run_id in meant]
        return any(stopped)

    async def show_log(self, run_id: RunId, *, user: str) -> None:
        """Shows a person how a run's log ends, or else what its record says went wrong.

        Raises:
            TimeoutError: the database is sick.
        """
        if not self.may_stop(user):
            return
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(run_id)
            if run is None:
                return
            log = await self._ports.files.load(run_id, RunFileKind.LOG)
        shown = last_lines(log, max_chars=SHOWN_LOG_CHARS) or run.result.detail
        shown = shown[-SHOWN_LOG_CHARS:] or "(nothing was logged)"
        text = f"{FENCE}\n{shown.replace(FENCE, LOOKALIKE_FENCE)}\n{FENCE}"
        await self._ports.replies.show_ephemeral(run.request, user=user, text=text)

    async def feedback(
        self, run_id: RunId, *, user: str, is_positive: bool, comment: str = ""
    ) -> None:
        """Turns a person's thumb into a score of the run's trace; the later one of a person counts, with what they say of it."""
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(run_id)
        if run is not None:
            self._ports.tracer.score(run_id, user=user, is_positive=is_positive, comment=comment)


def _was_stopped_just_before(run: Run, at: datetime) -> bool:
    stopped_at = run.stop_requested_at
    return stopped_at is not None and abs(at - stopped_at) < SAME_STOP


def _may_be_meant(run: Run, at: datetime) -> bool:
    """Whether a stop of this moment may end the run: it was asked before, is not over, and not stopped yet."""
    is_going = not run.state.is_final and run.outcome is None
    return is_going and run.stop_requested_by is None and run.request.asked_at < at
