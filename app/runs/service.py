"""The steps of a run, resumable from its record: `place` makes the thinking message, `advance` makes the answer."""

import asyncio
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from weakref import WeakValueDictionary

import structlog
from typing_extensions import Unpack

from app.aio import retry_store
from app.errors import ErrorCode
from app.log import get_logger
from app.runs.approvals import ApprovalDesk
from app.runs.attempt import Begun, execute, open_attempt, read_conversation
from app.runs.commands import answer_without_agent, effective_settings, read_memory, tell_change
from app.runs.delivery import Ending, make_expired, make_failure, trace_waiting
from app.runs.follow_ups import FollowUpFigures, FollowUpFilter
from app.runs.history import Conversation
from app.runs.model import WAITING_STATES, Outcome, QueuePosition, QueueStats, Run, RunState
from app.runs.policy import (
    MAX_ATTEMPTS,
    RunPolicy,
    decision_entry,
    find_invalid,
    find_refusal,
    is_given_up,
    why_no_change,
)
from app.runs.ports import Advance, AgainIn, Dispatcher, Done, RunChanges, RunPorts
from app.runs.progress import LiveLogs
from app.runs.request import Addressing, RunId, RunRequest, Thread
from app.runs.runners import Runners
from app.runs.selection import Choice, choose_for, decode_choice
from app.runs.stop import RunStoppedError, StopRequest, Stops, StopSignals

_log = get_logger(__name__)

HEARD_BEFORE = "I was told this while I was at the message before it: the answer above is to both."


class RunService:
    """Does what a dispatcher calls for. Everything it knows of a run between two calls is in the run record."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        dispatcher: Dispatcher,
        runners: Runners,
        live_logs: LiveLogs,
        signals: StopSignals,
        desk: ApprovalDesk,
        policy: RunPolicy,
    ) -> None:
        self._desk = desk
        self._ports = ports
        self._dispatcher = dispatcher
        self._runners = runners
        self._signals = signals
        self._policy = policy
        self._catalog = runners.catalog
        self._live_logs = live_logs
        self._hand_over = asyncio.Event()
        self._ending = Ending(ports, policy=policy)
        stops = Stops(ports, dispatcher=dispatcher, signals=signals, policy=policy)
        self._placing = Placing(ports, dispatcher=dispatcher, stops=stops, policy=policy)

    async def place(self, run: Run, *, resumed: bool) -> None:
        await self._placing.place(run, resumed=resumed)

    @property
    def follow_ups(self) -> FollowUpFigures:
        """Returns how candidates were decided."""
        return self._placing.follow_ups.figures

    def hand_over(self) -> None:
        """Ends the slice of each run that another process can go on with, from now on: as soon as its agent works. For who drains."""
        self._hand_over.set()

    async def advance(self, run_id: RunId, *, until: datetime | None = None) -> Advance:
        """Brings a run to its end, or a slice further. May be repeated, also after a crash at any line.

        Without `until` a slice takes `LimitSettings.slice_s`, if that is set.
        """
        if until is None and self._policy.slice_s:
            until = self._ports.clock.now() + timedelta(seconds=self._policy.slice_s)
        run = await retry_store(lambda: self._ports.store.get(run_id))
        if run is None or run.state.is_final:
            return Done()
        with structlog.contextvars.bound_contextvars(run_id=run.id, thread=run.thread.key):
            if run.outcome is not None:
                return await self._tell(run, resumed=True)
            try:
                run = await self._placing.ensure(run)
            except ConnectionError:
                if not self._has_waited_too_long(run):
                    return AgainIn(seconds=self._policy.timings.slack_retry_s)
            if run.state.is_final:
                return Done()
            result = await self._result_without_agent(run)
            if result is None:
                return await self._run(run, until)
            again = await self._end_without_running(run, result)
            if run.stop_requested_by is not None:
                await self._placing.refresh(run.thread)
            return again

    async def _result_without_agent(self, run: Run) -> Outcome | None:
        """Returns how the run ends if no agent is asked."""
        result = self._result_without_running(run)
        if result is None and run.attempt == 0:
            result = (
                self._invalid(run)
                or await self._answer_of_before(run)
                or await answer_without_agent(run, self._ports, self._policy, self._catalog)
            )
            if result is not None and result.state is RunState.SUCCEEDED:
                await tell_change(run, self._ports)
        return result

    async def _answer_of_before(self, run: Run) -> Outcome | None:
        """Returns how an urgent message ends that was told to the agent which was at work then, and has answered."""
        if not run.request.is_urgent:
            return None
        runs = await retry_store(lambda: self._ports.store.of_thread(run.thread))
        was_heard = any(run.id in one.result.heard for one in runs)
        return Outcome(state=RunState.SUCCEEDED, answer=HEARD_BEFORE) if was_heard else None

    def _has_waited_too_long(self, run: Run) -> bool:
        waited_s = (self._ports.clock.now() - run.created_at).total_seconds()
        return run.attempt == 0 and waited_s > self._policy.queue_timeout_s

    def _result_without_running(self, run: Run) -> Outcome | None:
        """Returns how the run ends if it must not start any more."""
        result = self._end_before_start(run)
        if result is None and run.reply_ts is None:
            # Nobody would see the answer: the thread is deleted, its channel archived, or Orion no member of it.
            result = Outcome(
                state=RunState.FAILED,
                error_code=ErrorCode.NOT_ALLOWED,
                detail="Slack lets me write nothing in this thread",
            )
        return result

    def _end_before_start(self, run: Run) -> Outcome | None:
        """Returns what keeps a run from starting once and for all; nothing keeps an agent that works from being followed."""
        if run.checkpoint is not None:
            return None
        if run.stop_requested_by is not None:
            return Outcome(state=RunState.STOPPED, stopped_by=run.stop_requested_by)
        if run.failures >= MAX_ATTEMPTS or is_given_up(run):
            return make_failure(ErrorCode.INTERRUPTED)
        if self._has_waited_too_long(run):
            return make_expired(run, self._policy, now=self._ports.clock.now())
        return None

    def _invalid(self, run: Run) -> Outcome | None:
        """Returns how it ends if its message is none to run. What came so was refused when it was placed; since then it may have been edited."""
        code, problem = ErrorCode.REQUEST_INVALID, find_invalid(run.request, self._policy)
        if not problem:
            code = ErrorCode.NOT_ALLOWED
            problem = why_no_change(run.request, self._policy)
        if not problem:
            return None
        return Outcome(state=RunState.FAILED, error_code=code, detail=problem)

    async def _run(self, run: Run, until: datetime | None) -> Advance:
        """Does one slice of an attempt, or all of it."""
        # Before the record is changed, which tells whether a stop came earlier.
        with self._signals.watch(run.id) as stop, ExitStack() as ending, ExitStack() as log:
            begun = await self._begin_slice(run, until, stop)
            if not isinstance(begun, Begun):
                return begun
            run, is_first = begun.run, begun.checkpoint is None
            trace = ending.enter_context(self._ports.tracer.trace(run))
            log.callback(self._live_logs.remove, run.id)
            if is_first:
                trace_waiting(run, trace, now=self._ports.clock.now())
            with self._live_logs.record(run.id, goes_on=not is_first) as tell:
                # Where work is done in slices there may be nobody else who listens.
                is_alone = begun.slice_s is not None
                async with (
                    self._signals.listening(self._ports.store) if is_alone else nullcontext(),
                    open_attempt(self._ports, begun, trace=trace, tell=tell) as attempt,
                ):
                    result = await execute(
                        attempt, self._runners, model=begun.choice.model, mask=self._ports.mask
                    )
            if isinstance(result, Outcome):
                return await self._ending.finish(run, result, trace=trace, attempt=attempt)
            trace.pause()
            if result is None:  # the sandbox is gone: the next call begins another attempt
                _log.warning("run.slice_lost", attempt=run.attempt)
                return AgainIn(seconds=0)
            log.pop_all()  # it goes on
            await self._record(
                run,
                checkpoint=replace(result, left_by=self._dispatcher.process),
                event_offset=attempt.event_offset,
                sandbox_id=attempt.sandbox_id,
            )
            is_stuck = result is begun.checkpoint
            return AgainIn(seconds=self._policy.timings.ending_retry_s if is_stuck else 0)

    async def _begin_slice(
        self, run: Run, until: datetime | None, stop: StopRequest
    ) -> Begun | AgainIn:
        """Begins an attempt of `run` as it was checked (edited since then, it does not begin), or takes up one that a slice has left."""
        checkpoint, conversation = run.checkpoint, Conversation(request=run.request)
        memory = await read_memory(run.request, self._ports, self._policy)
        if checkpoint is None:
            choice = await choose_for(run, self._ports, self._catalog)
            try:
                # Before it counts as an attempt: a process that dies while it waits for Slack has not tried to answer.
                async with stop.interrupt_on_stop():
                    conversation = await read_conversation(run, self._ports)
            except RunStoppedError:
                return AgainIn(seconds=0)
            now = self._ports.clock.now()
            run = await self._begin(run, choice, conversation.request, now)
        else:
            choice, now = decode_choice(checkpoint.choice), self._ports.clock.now()
            if await retry_store(partial(self._dispatcher.has_ended, checkpoint.left_by)):
                checkpoint = replace(checkpoint, was_handed_over=True)
            # Taken: whoever dies with it has tried, and that counts.
            run = await self._record(run, checkpoint=None)
        if run.state in WAITING_STATES:  # it was edited just before: looked at anew
            return AgainIn(seconds=0)
        if run.state is not RunState.RUNNING:  # it was ended while it waited
            return AgainIn(seconds=self._policy.timings.ending_retry_s)
        if run.stop_requested_by is not None:
            stop.set(run.stop_requested_by)
        if run.attempt == 1 and checkpoint is None:
            _log.info("run.started", retry_of=run.request.retry_of)
        return Begun(
            run=run,
            choice=choice,
            conversation=conversation,
            stop=stop,
            started_at=now,
            slice_s=None if until is None else max(0.0, (until - now).total_seconds()),
            checkpoint=checkpoint,
            about_channel=memory.render_for_agent(),
            hand_over=self._hand_over,
            approvals=self._desk.of(run),
        )

    async def _begin(self, run: Run, choice: Choice, request: RunRequest, now: datetime) -> Run:
        who = self._runners.assign(run, choice)
        begin = partial(
            self._ports.store.begin,
            run,
            request=request,
            started_at=run.started_at or now,
            deadline_at=now + timedelta(seconds=self._policy.run_timeout_s),
            agent=who.agent,
            model=who.model,
            provider=who.provider,
            effective=run.effective
            or effective_settings(request, choice, self._ports.ledger.budgets, self._policy),
        )
        async with self._placing.lock_of(run):
            return await retry_store(begin)

    async def _record(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        return await retry_store(lambda: self._ports.store.update(run.id, **changes))

    async def _end_without_running(self, run: Run, result: Outcome) -> Advance:
        """Ends it with what its attempts have spent, none of which came to its end; not if it has begun or ended meanwhile."""
        if run.attempt:
            await self._ports.may_act()
            await self._runners.abandon(run)
            spent = await retry_store(lambda: self._ports.ledger.load_spending(run))
            if spent.usage.model_calls:
                result = replace(result, usage=spent.usage, cost_usd=spent.cost_usd)
        async with self._placing.lock_of(run):
            now = await retry_store(lambda: self._ports.store.get(run.id))
            if now is None or now.outcome is not None or now.attempt != run.attempt:
                return AgainIn(seconds=self._policy.timings.ending_retry_s)
            return await self._ending.finish(now, result)

    async def _tell(self, run: Run, *, resumed: bool) -> Advance:
        """Tells what was decided, unless somebody else has told it meanwhile. `resumed`: others may have begun to."""
        async with self._placing.lock_of(run):
            now = await retry_store(lambda: self._ports.store.get(run.id))
            if now is None or now.state.is_final or now.outcome is None:
                return Done()
            if now.is_refused:
                await self._placing.tell_refusal(now)
                return Done()
            return await self._ending.deliver(now, now.outcome, resumed=resumed)

    async def end(self, run_id: RunId, code: ErrorCode) -> None:
        """Ends a run of this process that cannot be brought to its end."""
        run = await retry_store(lambda: self._ports.store.get(run_id))
        if run is None or run.state.is_final:
            return
        with structlog.contextvars.bound_contextvars(run_id=run.id, thread=run.thread.key):
            if run.outcome is not None:
                await self._tell(run, resumed=True)
                return
            with suppress(ConnectionError):
                run = await self._placing.ensure(run)
            if not run.state.is_final:
                await self._end_without_running(run, make_failure(code))


class Placing:
    """Places runs, one at a time of each thread."""

    def __init__(
        self, ports: RunPorts, *, dispatcher: Dispatcher, stops: Stops, policy: RunPolicy
    ) -> None:
        self._ports = ports
        self._dispatcher = dispatcher
        self._stops = stops
        self._policy = policy
        self.follow_ups = FollowUpFilter(ports, policy=policy)
        self._entry = partial(decision_entry, policy=policy, mask=ports.mask)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def place(self, run: Run, *, resumed: bool) -> None:
        """Lets the thinking message of an accepted run stand, and schedules it; one that is not for Orion is gone then.

        `resumed`: an earlier process may have begun to. Raises: UnreadThreadError: it cannot be seen now whether it is.
        """
        with structlog.contextvars.bound_contextvars(run_id=run.id, thread=run.thread.key):
            # `advance` waits for the thinking message.
            async with self.lock_of(run):
                if resumed:
                    known = await retry_store(lambda: self._ports.store.get(run.id))
                    if known is None or known.state is not RunState.ACCEPTED:
                        return
                    run = await self._record(run.id, place_attempt=known.place_attempt + 1)
                    if is_given_up(run) and not run.request.is_candidate:
                        await retry_store(lambda: self._dispatcher.schedule(run))
                        return
                certain = await self._settle(run)
                if certain is not None:
                    await self._place(certain, resumed=resumed)

    async def _settle(self, run: Run) -> Run | None:
        """Returns the run once it is certain that it is for Orion; None: it was not, or its message was deleted meanwhile, and it is gone."""
        found: Run | None = run
        if await self.follow_ups.is_deleted(run.request) and await self._discard(run):
            return None
        # More than once only where its author edits it meanwhile.
        while found is not None and found.request.is_candidate:
            found = await self._settle_once(found)
        return found

    async def _settle_once(self, run: Run) -> Run | None:
        decision = await self.follow_ups.decide(run)
        if not decision.is_answered and await self._discard(run):
            self.follow_ups.count(decision)
            return None
        if decision.is_answered:
            now = await self._find_accepted(run)
            if now is None or now.stop_requested_by is not None:  # deleted: decided anew
                return now
            # On record before anybody sees it: after a crash nothing is decided otherwise of what stands in the thread.
            for_orion = partial(_for_orion, run.request)
            await retry_store(lambda: self._ports.store.amend(run.id, for_orion))
        found = await self._find_accepted(run)
        if decision.is_answered and found is not None and not found.request.is_candidate:
            self.follow_ups.count(decision)
        return found

    async def _find_accepted(self, run: Run) -> Run | None:
        found = await retry_store(lambda: self._ports.store.get(run.id))
        return found if found is not None and found.state is RunState.ACCEPTED else None

    async def _discard(self, run: Run) -> bool:
        return await retry_store(lambda: self._dispatcher.discard(run))

    async def _place(self, run: Run, *, resumed: bool) -> None:
        async with self.lock_of(run.thread):  # its next message waits for this one's
            queue_stats = await self._queue_stats(run)
            if await self._refuse(run, queue_stats):
                return
            if run.request.is_urgent and not run.request.is_command:
                await retry_store(lambda: self._stops.make_way(run.request, user=run.request.user))
            changes: RunChanges = {}
            with suppress(ConnectionError):  # `advance` tries again
                changes = await self._post(run, queue_stats.position, maybe_posted=resumed)
            entry = self._entry(run, at=self._ports.clock.now())
            await retry_store(lambda: self._dispatcher.schedule(run, entry=entry, **changes))
            _log_placed(changes)
            await self._settle_question(run)

    async def _settle_question(self, run: Run) -> None:
        """Shows where it was asked which repository is meant that this run follows, if it does."""
        earlier = run.request.retry_of
        asking = await retry_store(lambda: self._ports.store.get(earlier)) if earlier else None
        if asking is not None and asking.result.candidates:
            await self._ports.replies.settle_question(asking, run)

    async def ensure(self, run: Run) -> Run:
        """Returns the run with its thinking message in Slack; `reply_ts` stays None when Slack refuses for good.

        Raises:
            ConnectionError: Slack cannot be reached now.
        """
        if run.reply_ts is not None:
            return run
        async with self.lock_of(run):
            run = await self._ports.store.get(run.id) or run
            if run.reply_ts is not None or run.state.is_final:
                return run
            position = (await self._queue_stats(run)).position
            changes = await self._post(run, position, maybe_posted=True)
            if changes:
                run = await self._record(run.id, **changes)
                _log_placed(changes)
            return run

    async def refresh(self, thread: Thread) -> None:
        """Tells those that wait in a thread how many are before them now; where Slack does not take it, it stays as it was."""
        waiting = [
            run
            for run in await retry_store(lambda: self._ports.store.of_thread(thread))
            if run.state is RunState.QUEUED and run.stop_requested_by is None
        ]
        for one in waiting:
            # Nobody begins or ends it meanwhile, so that this never comes after its progress or its answer.
            async with self._dispatcher.borrow(one.id) as run:
                if run is not None and run.state is RunState.QUEUED and run.reply_ts:
                    position = (await self._queue_stats(run)).position
                    with suppress(ConnectionError):
                        await self._ports.replies.place(run, position=position, maybe_posted=False)

    async def _queue_stats(self, run: Run) -> QueueStats:
        since = self._ports.clock.now() - timedelta(hours=1)
        return await retry_store(
            lambda: self._ports.store.queue_stats(run, since=since, capacity=self._policy.capacity)
        )

    async def _refuse(self, run: Run, queue_stats: QueueStats) -> bool:
        """Whether it is refused. Decided first, told then, closed last: a crash in between only tells it again."""
        if run.outcome is None:
            excess = await self._excess(run)
            run = await self._complete(run)
            refusal = find_refusal(
                run.request,
                self._policy,
                bot_turns=await self._bot_turns(run),
                runs_last_hour=queue_stats.runs_of_user,
                unfinished=queue_stats.unfinished,
                is_going=run.request.retry_of is not None and await self._is_going(run),
                excess=excess,
            )
            if refusal is None:
                return False
            _log.info("event.rejected", code=refusal.code)
            run = await self._record(
                run.id,
                outcome=Outcome(
                    state=RunState.FAILED, error_code=refusal.code, detail=refusal.detail
                ),
            )
        try:
            await self.tell_refusal(run, within_s=self._policy.timings.refuse_within_s)
        except TimeoutError:
            # `advance` tells it, which may wait for Slack's limits: few messages are placed at once, and others are behind this one.
            await retry_store(lambda: self._dispatcher.schedule(run))
        return True

    async def tell_refusal(self, run: Run, *, within_s: float | None = None) -> None:
        """Tells who asked what was decided, and closes the run. May be repeated.

        Raises:
            TimeoutError: Slack's limits let nobody be told in time.
        """
        code, now = run.result.error_code or ErrorCode.INTERNAL, self._ports.clock.now()
        entry = self._entry(run, at=now, refused=run.result.detail or code)
        await retry_store(lambda: self._ports.audit.add(entry))
        async with asyncio.timeout(within_s):
            if not run.request.is_bot:  # which would not understand it, or answer
                await self._ports.replies.refuse(run.request, code, detail=run.result.detail)
        await self._record(run.id, state=RunState.FAILED, ended_at=now)

    async def _complete(self, run: Run) -> Run:
        """Asks Slack what a message holds of which it is told what was not taken: the event that told of it may lack its files."""
        if not (run.request.is_empty or run.request.memory_command):
            return run
        view = await self._ports.reader.read(run.request)
        await retry_store(lambda: self._ports.store.amend(run.id, view.request.completing))
        return await retry_store(lambda: self._ports.store.get(run.id)) or run

    async def _bot_turns(self, run: Run) -> int:
        if not run.request.is_bot:
            return 0
        runs = await retry_store(lambda: self._ports.store.of_thread(run.thread))
        return sum(one.request.is_bot for one in runs)

    async def _excess(self, run: Run) -> str:
        """Returns the budget that is used up; whether one counts for people with keys of their own is seen when they are used."""
        request = run.request
        excess = self._ports.ledger.find_excess(request)
        if excess is None:
            return ""
        keys = await retry_store(lambda: self._ports.own_keys.of(request.team, request.user))
        return "" if keys else excess.sentence

    async def _is_going(self, run: Run) -> bool:
        """Whether an earlier run of the same message is not finished yet."""
        return any(
            other.request.message_ts == run.request.message_ts
            and not other.state.is_final
            and (other.created_at, other.id) < (run.created_at, run.id)
            for other in await self._ports.store.of_thread(run.thread)
        )

    async def _post(self, run: Run, position: QueuePosition, *, maybe_posted: bool) -> RunChanges:
        """Posts the thinking message; returns what has to be recorded: nothing when Slack refuses for good.

        Raises:
            ConnectionError: Slack cannot be reached now.
        """
        reply_ts = await self._ports.replies.place(
            run, position=position, maybe_posted=maybe_posted
        )
        if reply_ts is None:
            return {}
        placed = RunState.QUEUED if position.is_waiting else RunState.PLACED
        return {
            "reply_ts": reply_ts,
            "placed_at": self._ports.clock.now(),
            "state": placed if run.state is RunState.ACCEPTED else run.state,
        }

    async def _record(self, run_id: RunId, **changes: Unpack[RunChanges]) -> Run:
        return await retry_store(lambda: self._ports.store.update(run_id, **changes))

    def lock_of(self, owner: Run | Thread) -> asyncio.Lock:
        """Returns the lock of a run or a thread. Whoever places a run holds the run's, so that its message is posted once; and the thread's, so that its messages come in order."""
        key = owner.id if isinstance(owner, Run) else owner.key
        return self._locks.setdefault(key, asyncio.Lock())


def _for_orion(decided: RunRequest, request: RunRequest) -> RunRequest:
    """Returns a request as certain to be for Orion; as it is if it was edited since that was decided."""
    if (request.text, request.content) != (decided.text, decided.content):
        return request
    return request.model_copy(update={"addressing": Addressing.CLEAR})


def _log_placed(changes: RunChanges) -> None:
    if "reply_ts" in changes:
        is_queued = changes["state"] is RunState.QUEUED
        _log.info("run.placed", message_ts=changes["reply_ts"], queued=is_queued)
