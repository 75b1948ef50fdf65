"""Accepts and stops work; what happens before Slack is acknowledged, and nothing more."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from app.log import get_logger
from app.runs.approvals import ApprovalDesk, Press
from app.runs.model import SENT, WAITING_STATES, Run, RunFileKind, RunState
from app.runs.policy import RunPolicy, may_stop, why_no_follow_up
from app.runs.ports import Dispatcher, RunPorts
from app.runs.progress import last_lines
from app.runs.repository.watch import Fix, fix_request, why_not_fixed
from app.runs.request import (
    NO_CONTENT,
    Addressing,
    MessageContent,
    RunId,
    RunRequest,
    Thread,
    run_id_for,
    slack_time,
)
from app.runs.selection import PICK_WITHIN, OpenQuestions, follower_id
from app.runs.stop import Stops, StopSignals, may_be_meant

WRITE_TIMEOUT_S = 2.0
"""The store waits longer for a sick database, but Slack's acknowledgement is due after 3 s."""
SAME_STOP = timedelta(seconds=2)
"""Whoever says it again so soon cannot have seen what the first one did, and means the same."""
MUTED = (
    "Muted: in this thread I answer only messages that mention me. Write `unmute` to change that."
)
UNMUTED = "Not muted any more: in this thread I answer replies without a mention again, as far as this channel's rules go."
RECENT_RUNS = 50
"""Of a person, among which open questions are found."""
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
class Pick:
    """A person chose one of the repositories that a run asked about."""

    run_id: RunId
    number: int
    """Among `Outcome.candidates`, from 0."""
    user: str
    click_ts: str
    """Slack's, of the click."""
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
    addressing: Addressing = Addressing.NONE
    """What it says now of for whom it is."""

    def apply(self, request: RunRequest) -> RunRequest:
        addressing = self.addressing if request.is_candidate else request.addressing
        changes = {"text": self.text, "content": self.content, "addressing": addressing}
        return request.model_copy(update=changes)


def retry_request(failed: Run, intent: RetryIntent, *, now: datetime) -> RunRequest:
    """Returns the request of a run that takes up a failed one's turn."""
    request = failed.request
    where = {"team": request.team, "channel": request.channel, "message_ts": request.message_ts}
    changes = {
        "run_id": run_id_for(**where, click=intent.click_ts),
        "user": intent.user,
        "is_external": intent.is_external,
        "late_s": 0,
        "retry_of": failed.id,
        "click_ts": intent.click_ts,
        "received_at": now,
    }
    return request.model_copy(update=changes)


class Intake:
    """Called by every surface; each call is one durable write."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        dispatcher: Dispatcher,
        signals: StopSignals,
        desk: ApprovalDesk,
        policy: RunPolicy,
        skew_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`skew_s`: by which the clock that all go by is ahead of this machine's, by which messages say when they were heard."""
        self._skew_s = skew_s
        self._desk = desk
        self._ports = ports
        self._dispatcher = dispatcher
        self._stops = Stops(ports, dispatcher=dispatcher, signals=signals, policy=policy)
        self._questions = OpenQuestions(ports)
        self._policy = policy
        self._log = get_logger(__name__)

    async def accept(self, request: RunRequest) -> bool:
        """Hands a message over as work, durably; the same message twice is one run. False: it was before.

        One that may be a follow-up is handed over only where there is a run in its thread already.

        Raises:
            OSError: not durable; do not acknowledge, so that Slack delivers again.
            TimeoutError: the same, of what another event of the message lacked, or of its thread.
        """
        if request.is_candidate and not await self._may_follow(request):
            self._log.debug("event.ignored", reason="not_addressed", event_id=request.event_id)
            return False
        run = self._run_of(request)
        is_new = await self._dispatcher.submit(run)  # what is logged is that it is placed
        if not is_new and (request.content or request.addressing is Addressing.EVENT):
            # Of a mention there are two events, either of which may lack what the other one has.
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._ports.store.amend(run.id, request.completing)
        names_one = bool(request.options.repo) and not (request.is_root or request.retry_of)
        if is_new and names_one:
            await self._withdraw_open(request)
        return is_new

    async def _withdraw_open(self, request: RunRequest) -> None:
        """Takes back what waits for its repository in a thread where a message names one: it was asked again, and the thread has that."""
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            runs = await self._ports.store.of_thread(request.thread)
            asked = [run for run in runs if run.request.asked_at < request.asked_at]
            for asking in await self._questions.among(asked):
                await self._withdraw(
                    asking,
                    user=request.user,
                    at=self._ports.clock.now(),
                    is_external=request.is_external,
                )

    def _run_of(self, request: RunRequest) -> Run:
        return Run(
            id=request.run_id,
            request=request,
            created_at=request.received_at + timedelta(seconds=self._skew_s()),
            trace_id=self._ports.tracer.trace_id(request.run_id),
        )

    async def _may_follow(self, request: RunRequest) -> bool:
        if why_no_follow_up(request, self._policy):
            return False
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            return await self._ports.threads.has_run(request.thread)

    async def mute(
        self,
        thread: Thread,
        *,
        user: str,
        ts: str,
        is_muted: bool,
        has_mention: bool,
        is_external: bool = False,
    ) -> bool:
        """Records whether replies in a thread that do not mention Orion are answered; the last word counts, by Slack's clock.

        False: `user` may not say so, the same or a later message has been heard, or it is nothing to Orion: a bare word
        (not `has_mention`) in a thread without a run. `ts`: of the message that says so.

        Raises:
            TimeoutError: the database is sick; do not acknowledge.
        """
        if not self.may_stop(user, is_external=is_external):
            return False
        threads = self._ports.threads
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            if not has_mention and not await threads.has_run(thread):
                return False
            is_new = await threads.mute(thread, user=user, ts=ts, is_muted=is_muted)
        if is_new:
            self._log.info("thread.muted" if is_muted else "thread.unmuted", thread=thread.key)
        return is_new

    async def tell_muted(self, thread: Thread, *, user: str, is_muted: bool) -> None:
        """Tells a person alone that a thread is muted, or is no more. Never raises."""
        text = MUTED if is_muted else UNMUTED
        await self._ports.replies.show_ephemeral(thread, user=user, text=text)

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
        await self.accept(retry_request(failed, intent, now=self._ports.clock.now()))

    async def pick(self, pick: Pick) -> None:
        """Goes on with a question, in the repository that was chosen: once, whoever else clicks; the person is told why not.

        Raises:
            OSError: not durable.
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            asking = await self._ports.store.get(pick.run_id)
        if asking is None or pick.number >= len(asking.result.candidates):
            self._log.info("event.ignored", reason="nothing_to_pick", run_id=pick.run_id)
            return
        request, repo = asking.request, asking.result.candidates[pick.number]
        run_id = follower_id(asking)
        if slack_time(pick.click_ts) - (asking.ended_at or request.asked_at) > PICK_WITHIN:
            await self._tell_pick(pick, run_id, request)
            return
        changes = {
            "run_id": run_id,
            "user": pick.user,
            "is_external": pick.is_external,
            "picked_repo": repo,
            "retry_of": asking.id,
            "click_ts": pick.click_ts,
            "received_at": self._ports.clock.now(),
        }
        if not await self.accept(request.model_copy(update=changes)):
            await self._tell_pick(pick, run_id, request, repo=repo)
            return
        # The thread has it from now on: it is chosen for what else is open there.
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            others = await self._questions.among(await self._ports.store.of_thread(asking.thread))
        for other in others:
            if repo in other.result.candidates:
                number = other.result.candidates.index(repo)
                await self.pick(replace(pick, run_id=other.id, number=number))

    async def fix(self, fix: Fix) -> None:
        """Lets an agent go on in the thread of a pull request: once for each notice, whoever else clicks; the person is told why not.

        Raises:
            OSError: not durable.
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            pull = await self._ports.pull_requests.get(fix.pull_id)
            notice = pull.find(fix.number) if pull is not None else None
            run = await self._ports.store.get(RunId(notice.run_id)) if notice else None
        if pull is None or notice is None or run is None:
            self._log.info("event.ignored", reason="nothing_to_fix", pull_request=fix.pull_id)
            return
        told = why_not_fixed(pull, notice)
        if not told:
            request = fix_request(run, pull, notice, fix, now=self._ports.clock.now())
            if not await self.accept(request):
                told = "This was asked for already; it is in this thread."
        if told:
            await self._ports.replies.show_ephemeral(run.thread, user=fix.user, text=told)

    async def _tell_pick(
        self, pick: Pick, run_id: RunId, request: RunRequest, *, repo: str = ""
    ) -> None:
        """Tells who clicked what became of the question instead; nothing if it goes on with `repo`."""
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            going = await self._ports.store.get(run_id)
        picked = going.request.picked_repo if going is not None else ""
        told = f"This question goes on already, with repo={picked}."
        if going is None:
            told = "This question has waited for too long. Please ask it again."
        elif not picked:
            told = "This question was edited or taken back. What became of it is in its thread."
        if picked != repo or not picked:
            await self._ports.replies.show_ephemeral(request.thread, user=pick.user, text=told)

    async def revise(self, revision: Revision) -> bool:
        """Follows an edit or a deletion of a message whose run has not begun, or has asked for its repository; later ones change nothing.

        Raises:
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(revision.run_id)
            run = run and await self._questions.newest(run)
            if run is not None and self._questions.is_in_time(run):
                return await self._revise_question(run, revision)
            if run is None or run.state not in WAITING_STATES:
                return False
            if revision.text is None:
                return await self.stop_run(run.id, user=revision.user)
            is_amended = await self._ports.store.amend(run.id, revision.apply)
        if is_amended:
            self._log.info("run.amended", run_id=run.id, thread=run.thread.key)
        return is_amended

    async def _revise_question(self, asking: Run, revision: Revision) -> bool:
        if revision.text is None:
            return await self._withdraw(asking, user=revision.user, at=self._ports.clock.now())
        if revision.text == asking.request.text:
            return False
        return await self.accept(self._following(asking, revision.apply(asking.request)))

    async def _withdraw(
        self, asking: Run, *, user: str, at: datetime, is_external: bool = False
    ) -> bool:
        """Has a question for a repository followed by a run that was stopped: no click begins another."""
        run = self._run_of(self._following(asking, asking.request))
        return await self._stops.stop_unborn(run, user=user, at=at, is_external=is_external)

    def _following(self, asking: Run, request: RunRequest) -> RunRequest:
        changes = {
            "run_id": follower_id(asking),
            "retry_of": asking.id,
            "received_at": self._ports.clock.now(),
        }
        return request.model_copy(update=changes)

    async def _questions_of(
        self, team: str, channel: str, user: str, *, before: datetime
    ) -> Sequence[Run]:
        recent = await self._ports.store.recent_of(team, user, limit=RECENT_RUNS)
        asked = [
            run
            for run in recent
            if run.request.channel == channel and run.request.asked_at < before
        ]
        return await self._questions.among(asked)

    def may_stop(self, user: str, *, is_external: bool) -> bool:
        """Whether a stop of this person's counts."""
        return may_stop(user, self._policy, is_external=is_external)

    async def stop_run(
        self, run_id: RunId, *, user: str, at: datetime | None = None, is_external: bool = False
    ) -> bool:
        """Records that a run shall stop. False: unknown, over, asked before, or `user` may not.

        Raises:
            TimeoutError: the database is sick; the request may still be recorded later.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            return await self._stops.stop(run_id, user=user, at=at, is_external=is_external)

    async def press_stop(self, run_id: RunId, *, user: str, is_external: bool = False) -> bool:
        """As `stop_run`; whoever may not use Orion is told so, as they have pressed its button.

        Raises:
            TimeoutError: the database is sick; the request may still be recorded later.
        """
        is_stopped = await self.stop_run(run_id, user=user, is_external=is_external)
        if not self.may_stop(user, is_external=is_external):
            await self._tell_stranger(run_id, user, is_external=is_external)
        return is_stopped

    async def send_now(self, run_id: RunId, *, user: str, is_external: bool = False) -> bool:
        """Makes a waiting message of a thread urgent, and shows that. False: nothing makes way for it; whoever may not is told so.

        Raises:
            TimeoutError: the database is sick; it may be repeated.
        """
        if not self.may_stop(user, is_external=is_external):
            await self._tell_stranger(run_id, user, is_external=is_external)
            return False
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(run_id)
            if run is None or run.state not in WAITING_STATES or run.request.is_root:
                return False
            await self._ports.store.amend(run_id, RunRequest.made_urgent)
            makes_way = await self._stops.make_way(run.request.made_urgent(), user=user)
        if makes_way:
            await self._stops.redraw(run_id)
        return makes_way

    async def _tell_stranger(self, run_id: RunId, user: str, *, is_external: bool) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(run_id)
        if run is not None:
            await self._stops.tell_refused(run, user, is_external=is_external)

    async def stop_thread(
        self, thread: Thread, *, user: str, ts: str, is_external: bool = False
    ) -> bool:
        """Stops the run that is going in a thread (the oldest unfinished one); those behind it go on. Where none is, what waits for its repository.

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
                if run.state.is_final or run.delivery == SENT or run.request.asked_at >= at:
                    continue
                # The oldest is meant, also while it is told how it ended, or stops already: not the one behind it.
                is_same = any(_was_stopped_just_before(earlier, at) for earlier in runs[:number])
                if is_same or run.stop_requested_by is not None:
                    return False
                return await self.stop_run(run.id, user=user, at=at, is_external=is_external)
            if any(_was_stopped_just_before(run, at) for run in runs):
                return False
            asked = await self._questions.among([run for run in runs if run.request.asked_at < at])
            withdraw = partial(self._withdraw, user=user, at=at, is_external=is_external)
            return any([await withdraw(run) for run in asked])

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
                and may_be_meant(run, at)
            ]
            stopped = [await self.stop_run(run_id, user=user, at=at) for run_id in meant]
            asked = await self._questions_of(team, channel, user, before=at)
            stopped += [await self._withdraw(run, user=user, at=at) for run in asked]
        return any(stopped)

    async def stop_own(self, team: str, channel: str, *, user: str) -> Sequence[Run]:
        """Stops all that a person asked in a channel and that goes on or waits there; returns what it stopped.

        Raises:
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            asked = [
                run
                for run in await self._ports.store.unfinished()
                if (run.request.team, run.request.channel) == (team, channel)
                and run.request.user == user
            ]
            stopped = [run for run in asked if await self.stop_run(run.id, user=user)]
            now = self._ports.clock.now()
            questions = await self._questions_of(team, channel, user, before=now)
            return stopped + [
                run for run in questions if await self._withdraw(run, user=user, at=now)
            ]

    async def stop_shown(
        self, team: str, channel: str, *, user: str, reply_ts: str, is_shared: bool = False
    ) -> bool:
        """Stops the run whose thinking message that is, or one of the person's own that asked there for its repository. False: there is none, or `stop_run` says so.

        `is_shared`: the channel is, with another company; whose person that is Slack does not tell there.

        Raises:
            TimeoutError: the database is sick.
        """
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            for run in await self._ports.store.unfinished():
                place = (run.request.team, run.request.channel, run.reply_ts)
                if place == (team, channel, reply_ts):
                    is_external = is_shared and user != run.request.user
                    return await self.stop_run(run.id, user=user, is_external=is_external)
            now = self._ports.clock.now()
            for run in await self._questions_of(team, channel, user, before=now):
                if run.reply_ts == reply_ts:
                    return await self._withdraw(run, user=user, at=now)
        return False

    async def press(self, press: Press) -> str:
        """Counts what a person says to what waits for a yes.

        Returns:
            Why it has changed nothing, a sentence; empty when it has, or nothing like it waits.

        Raises:
            TimeoutError: the database is sick; do not acknowledge.
        """
        return await self._desk.press(press)

    async def show_log(self, run_id: RunId, *, user: str, is_external: bool = False) -> None:
        """Shows a person how a run's log ends, or else what its record says went wrong; whoever may not use Orion is told so.

        Raises:
            TimeoutError: the database is sick.
        """
        if not self.may_stop(user, is_external=is_external):
            await self._tell_stranger(run_id, user, is_external=is_external)
            return
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            run = await self._ports.store.get(run_id)
            if run is None:
                return
            log = await self._ports.files.load(run_id, RunFileKind.LOG)
        shown = last_lines(log, max_chars=SHOWN_LOG_CHARS) or run.result.detail
        shown = shown[-SHOWN_LOG_CHARS:] or "(nothing was logged)"
        text = f"{FENCE}\n{shown.replace(FENCE, LOOKALIKE_FENCE)}\n{FENCE}"
        await self._ports.replies.show_ephemeral(run.thread, user=user, text=text)

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
