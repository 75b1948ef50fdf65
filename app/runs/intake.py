"""Accepts and stops work; what happens before Slack is acknowledged, and nothing more."""

import asyncio
from dataclasses import dataclass, field

from app.log import get_logger
from app.runs.model import WAITING_STATES, RunId, RunRequest, RunState, Thread, run_id_for
from app.runs.policy import RunPolicy, may_stop
from app.runs.ports import Clock, Dispatcher, ReplySink, Tracer
from app.runs.run_store import RunFileKind, RunFiles, RunStore
from app.runs.stops import StopSignals
from app.runs.transcript import last_lines

WRITE_TIMEOUT_S = 2.0
"""The store waits longer for a sick database, but Slack's acknowledgement is due after 3 s."""
SHOWN_LOG_CHARS = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWish:
    """A person wants a failed run's turn tried again."""

    run_id: RunId
    """The failed one."""
    user: str
    press: str
    """Of this press of the button: the same press is the same run."""
    is_external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """The author changed a message, or took it back."""

    run_id: RunId
    """Of the message, whether it was ever a request or not."""
    user: str
    text: str | None = field(repr=False)
    """None: deleted."""


class Intake:
    """Called by every surface; each call is one durable write."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        store: RunStore,
        files: RunFiles,
        replies: ReplySink,
        signals: StopSignals,
        tracer: Tracer,
        policy: RunPolicy,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._files = files
        self._replies = replies
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

    async def retry(self, wish: RetryWish) -> None:
        """Accept a failed run's turn once more, as a run of its own. Nothing happens if that run did not fail.

        Raises:
            OSError: not durable.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            failed = await self._store.get(wish.run_id)
        if failed is None or failed.state is not RunState.FAILED:
            self._log.info("event.ignored", reason="nothing_to_retry", run_id=wish.run_id)
            return
        request = failed.request
        run_id = run_id_for(
            team=request.team,
            channel=request.channel,
            message_ts=request.message_ts,
            press=wish.press,
        )
        changes = {
            "run_id": run_id,
            "user": wish.user,
            "is_external": wish.is_external,
            "retry_of": failed.id,
            "received_at": self._clock.now(),
        }
        await self.accept(request.model_copy(update=changes))

    async def revise(self, revision: Revision) -> bool:
        """Follow an edit or a deletion of a message whose run has not begun; later ones change nothing.

        Raises:
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._store.get(revision.run_id)
            if run is None or run.state not in WAITING_STATES:
                return False
            if revision.text is None:
                return await self.stop_run(run.id, user=revision.user)
            is_amended = await self._store.amend(run.id, text=revision.text)
        if is_amended:
            self._log.info("run.amended", run_id=run.id, thread=run.thread.key)
        return is_amended

    async def stop_run(self, run_id: RunId, *, user: str) -> bool:
        """Record that a run shall stop. False: unknown, over, asked before, or `user` may not.

        Raises:
            TimeoutError: the database is sick; the wish may still be recorded later.
        """
        if not may_stop(user, self._policy):
            return False
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            is_new = await self._store.request_stop(run_id, user=user, at=self._clock.now())
        if is_new:
            self._signals.notify(run_id, user)
        return is_new

    async def stop_thread(self, thread: Thread, *, user: str) -> bool:
        """Stop the run that is going in a thread (the oldest unfinished one); those behind it go on."""
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            for run in await self._store.of_thread(thread):
                if not run.state.is_final and run.outcome is None and run.stop_requested_by is None:
                    return await self.stop_run(run.id, user=user)
        return False

    async def show_log(self, run_id: RunId, *, user: str) -> None:
        """Show a person how a run's log ends, or else what its record says went wrong.

        Raises:
            TimeoutError: the database is sick.
        """
        if not may_stop(user, self._policy):
            return
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._store.get(run_id)
            if run is None:
                return
            log = await self._files.load(run_id, RunFileKind.LOG)
        shown = last_lines(log, max_chars=SHOWN_LOG_CHARS) or run.error_detail
        await self._replies.whisper(
            run.request, user=user, log=shown[-SHOWN_LOG_CHARS:] or "(nothing was logged)"
        )

    async def feedback(self, run_id: RunId, *, user: str, is_positive: bool) -> None:
        """Turn a person's thumb into a score of the run's trace."""
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._store.get(run_id)
        if run is not None:
            self._tracer.score(run_id, user=user, is_positive=is_positive)
