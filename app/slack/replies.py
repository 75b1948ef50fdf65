"""The ReplySink over Slack's Web API: one thinking message per run, which becomes the answer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from app.approvals.records import Approval
from app.errors import ErrorCode
from app.log import get_logger
from app.pull_requests.records import NOWHERE, Notice, PullRequest
from app.runs.history import UnreadableFileError
from app.runs.model import (
    ChannelChange,
    Delivery,
    Outcome,
    QueuePosition,
    Run,
    SharedFile,
)
from app.runs.ports import LiveReply
from app.runs.request import RunId, RunRequest, Thread
from app.slack.api import (
    SlackApi,
    SlackFault,
    SlackLeaseLost,
    SlackRefusal,
    SlackUnreachable,
    within,
)
from app.slack.approval_card import render_approval
from app.slack.blocks import (
    MessagePart,
    ReplyStyle,
    announcement_text,
    change_text,
    failure_text,
    render_plain_result,
    render_result,
    render_thinking,
    settled_text,
)
from app.slack.live import (
    LatePosts,
    LiveDriver,
    Publisher,
    Sent,
    UpdateDriver,
    UpdateTiming,
    publishing,
)
from app.slack.markdown import escape
from app.slack.messages import (
    ANNOUNCEMENT_PART,
    CHANGE_PART,
    FIRST_APPROVAL_PART,
    FIRST_NOTICE_PART,
    REPOST_WORDS,
    STREAMING,
    UNSHARED_PART,
    OwnMessages,
)
from app.slack.pull_request_card import render_notice
from app.slack.status import WorkingStatus
from app.slack.streams import Streams

PLACE_WITHIN_S: Final = 1.0
"""A thinking message that Slack's limits hold up for longer is left to the background, and its run begins without it."""
REMEMBERED: Final = 1000
EPHEMERAL_TIMEOUT_S: Final = 2.0
"""Before the click of a button is acknowledged; what Slack takes no sooner is told in the background."""
_SMALL_PART_CHARS: Final = 3_500
_TOO_LARGE_WORDS: Final = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long"}
)
"""Source: Slack Web API, chat.postMessage and chat.update errors, read 2026-11."""

Rendering = Callable[[Run, Outcome], Sequence[MessagePart]]


class SlackReplies:
    """Implements ReplySink."""

    def __init__(
        self,
        api: SlackApi,
        *,
        messages: OwnMessages,
        status: WorkingStatus,
        late: LatePosts,
        streams: Streams,
        style: ReplyStyle,
        timing: UpdateTiming,
    ) -> None:
        self._api = api
        self._messages = messages
        self._status = status
        self._late = late
        self._streams = streams
        self._capacity = style.capacity
        self._renderings: tuple[Rendering, ...] = (
            partial(render_result, style=style),
            partial(render_result, style=style, max_chars=_SMALL_PART_CHARS),
            render_plain_result,
        )
        """The next one when Slack finds a message too large or its blocks wrong."""
        self._timing = timing
        self._sent: dict[RunId, Sent] = {}
        """What slices of runs have shown last, for the next slice to go on from."""
        self._log = get_logger(__name__)

    async def place(self, run: Run, *, position: QueuePosition, maybe_posted: bool) -> str | None:
        part = render_thinking(run, position, capacity=self._capacity)
        is_new = not run.reply_ts and not maybe_posted
        is_late = is_new and self._line_s(run, "chat.postMessage") > PLACE_WITHIN_S
        self._status.processing(run, is_urgent=is_late)
        try:
            async with within(self._api.policy.write_timeout_s):
                may_stream = is_new and not position.is_waiting
                ts = await self._streams.start(run, phase=part.text, may_stream=may_stream)
                if ts is not None:
                    return ts
                if not is_late:
                    return await self._place(run, part, maybe_posted=maybe_posted)
        except SlackRefusal as exc:
            self._failed(run.id, "place", exc)
            self._status.active(run)
            return None
        except SlackLeaseLost:
            raise
        except SlackFault as exc:
            self._failed(run.id, "place", exc)
            raise ConnectionError("slack cannot be reached") from exc
        finally:
            self._status.posted(run.thread)
        self._late.begin(run, part)
        return ""

    @asynccontextmanager
    async def live(self, run: Run) -> AsyncIterator[LiveReply]:
        stream = self._streams.driver(run)
        update = UpdateDriver(
            run,
            self._messages,
            limits=self._api.limits,
            timing=self._timing,
            ts=lambda: run.reply_ts or self._late.ts(run.id),
        )
        is_shown = self._streams.answers.of(run.request.surface) != "final"
        drivers: list[LiveDriver] = [stream] if stream and is_shown else []
        if is_shown:
            drivers.append(update)
        publisher = Publisher(run, drivers, sent=self._sent.pop(run.id, None))
        with self._status.working(run):
            async with publishing(publisher):
                yield publisher
        if publisher.sent is not None:
            self._sent[run.id] = publisher.sent
            if len(self._sent) > REMEMBERED:  # runs that went on in other processes
                del self._sent[next(iter(self._sent))]

    async def finish(self, run: Run, result: Outcome, *, resumed: bool) -> Delivery:
        self._sent.pop(run.id, None)
        known = dict(enumerate(run.part_ts, start=1))
        if run.reply_ts:
            known[0] = run.reply_ts
        failure, may_pass = "", False
        try:
            line_s = self._line_s(run, "chat.update" if known else "chat.postMessage")
            if resumed:  # what stands is read first
                line_s += self._line_s(run, "conversations.replies")
            if self._streams.is_open(run):  # it is ended first
                line_s += self._line_s(run, "chat.stopStream")
            async with within(self._api.policy.write_timeout_s + line_s):
                await self._streams.end(run)
                await self._finish(run, result, known, resumed=resumed)
        except SlackLeaseLost:
            raise
        except SlackFault as exc:
            self._failed(run.id, "finish", exc)
            failure = exc.word
            may_pass = not isinstance(exc, SlackRefusal)
        self._status.active(run, maybe_shown=resumed)
        return Delivery(
            reply_ts=known.get(0, ""),
            part_ts=tuple(known[number] for number in sorted(known) if number > 0),
            failure=failure,
            may_pass=may_pass,
        )

    async def announce(self, run: Run, result: Outcome) -> None:
        part = MessagePart(blocks=(), text=announcement_text(run, result))
        async with self._posting(run, "announce"):
            await self._messages.post(run.request, part, number=ANNOUNCEMENT_PART)

    async def tell_change(self, run: Run, change: ChannelChange, *, resumed: bool) -> None:
        part = MessagePart(blocks=(), text=change_text(change))
        async with self._posting(run, "tell_change"):
            if resumed and CHANGE_PART in await self._messages.find(run.request):
                return
            await self._messages.post(run.request, part, number=CHANGE_PART, in_channel=True)

    async def settle_question(self, asking: Run, follower: Run) -> None:
        if not asking.reply_ts:
            return
        part = MessagePart(blocks=(), text=settled_text(follower))
        async with self._telling(asking.id, "settle_question"):
            await self._messages.update(asking.request, part, number=0, ts=asking.reply_ts)

    async def attach(self, run: Run, *, name: str, content: str, resumed: bool) -> Delivery:
        data = content.encode()
        return await self._deliver_file(
            run, self._messages.attach(run.request, name=name, data=data, maybe_shared=resumed)
        )

    async def share(self, run: Run, files: Sequence[SharedFile], *, resumed: bool) -> Delivery:
        names = {file.id: file.name for file in files}
        return await self._deliver_file(
            run, self._messages.share(run.request, names, maybe_shared=resumed)
        )

    async def tell_unshared(self, run: Run, text: str, *, resumed: bool) -> None:
        part = MessagePart(blocks=(), text=escape(text))
        async with self._posting(run, "tell_unshared"):
            if resumed and UNSHARED_PART in await self._messages.find(run.request):
                return
            await self._messages.post(run.request, part, number=UNSHARED_PART)

    async def show_ephemeral(self, thread: Thread, *, user: str, text: str) -> None:
        arguments = {
            "channel": thread.channel,
            "user": user,
            "text": escape(text),
            "thread_ts": thread.thread_ts,
        }
        try:
            if self._api.limits.line_s("chat.postEphemeral") > EPHEMERAL_TIMEOUT_S:
                raise SlackUnreachable("in_line")
            async with within(EPHEMERAL_TIMEOUT_S):
                await self._api.once("chat.postEphemeral", arguments)
        except (SlackRefusal, SlackLeaseLost) as exc:
            self._log.warning(
                "slack.update_failed",
                thread=thread.key,
                operation="show_ephemeral",
                error=exc.word,
            )
        except SlackFault:
            self._late.tell(arguments)

    async def show_approval(self, run: Run, approval: Approval) -> str | None:
        part, number = render_approval(approval), FIRST_APPROVAL_PART + 1 - approval.number
        async with self._posting(run, "show_approval"):
            try:
                known = approval.card_ts or (await self._messages.find(run.request)).get(number)
                return await self._put(run, part, number=number, ts=known)
            except SlackRefusal as exc:
                self._failed(run.id, "show_approval", exc)
                return NOWHERE
        return None  # a fault was logged

    async def show_notice(
        self, run: Run, pull: PullRequest, notice: Notice, *, maybe_posted: bool
    ) -> str | None:
        part, number = render_notice(pull, notice), FIRST_NOTICE_PART + 1 - notice.number
        async with self._posting(run, "show_notice"):
            try:
                if maybe_posted and (ts := (await self._messages.find(run.request)).get(number)):
                    return ts
                return await self._messages.post(run.request, part, number=number)
            except SlackRefusal as exc:
                self._failed(run.id, "show_notice", exc)
                return NOWHERE
        return None  # a fault was logged

    async def refuse(self, request: RunRequest, code: ErrorCode, *, detail: str) -> None:
        text = escape(failure_text(code, detail))
        # Shown in a thread only when that has replies already.
        # Source: Slack Web API, chat.postEphemeral, thread_ts, read 2026-11.
        is_reply = request.thread_ts != request.message_ts or request.retry_of is not None
        arguments = {
            "channel": request.channel,
            "user": request.user,
            "text": text,
            "thread_ts": request.thread_ts if is_reply else None,
        }
        async with self._telling(request.run_id, "refuse"):
            # Twice is harmless: one person sees it, until the next reload.
            await self._api.repeated("chat.postEphemeral", arguments)

    async def _place(self, run: Run, part: MessagePart, *, maybe_posted: bool) -> str:
        ts = run.reply_ts or self._late.ts(run.id) or None
        if ts is None and maybe_posted:
            ts = (await self._messages.find(run.request)).get(0)
        if ts is None:
            return await self._messages.post(run.request, part, number=0)
        return await self._put(run, part, number=0, ts=ts)

    async def _finish(
        self, run: Run, ended: Outcome, known: dict[int, str], *, resumed: bool
    ) -> None:
        placed = await self._late.settle(run.id)
        if placed:
            known[0] = placed
        if resumed or (not run.reply_ts and placed is None):
            known |= await self._standing(run)
        stood = {ts for ts in (run.reply_ts, known.get(0)) if ts}
        refusal: SlackRefusal | None = None
        for render in self._renderings:
            try:
                await self._deliver(run, render(run, ended), known)
            except SlackRefusal as exc:
                if exc.word not in _TOO_LARGE_WORDS:
                    raise
                refusal = exc
                self._log.warning("slack.update_failed", run_id=run.id, error=exc.word)
                continue
            for ts in stood - {known[0]}:
                self._streams.remove(run, ts)
            return
        if refusal is not None:
            raise refusal

    async def _standing(self, run: Run) -> Mapping[int, str]:
        """Returns what the record may not know of; a newer message of a part stands for an older one."""
        try:
            found = await self._messages.find(run.request)
        except SlackRefusal as exc:
            # An app that may not read can still edit; without that, posting could be posting twice.
            if not run.reply_ts:
                raise
            self._failed(run.id, "find", exc)
            return {}
        return {number: ts for number, ts in found.items() if number >= 0}

    async def _deliver(self, run: Run, parts: Sequence[MessagePart], known: dict[int, str]) -> None:
        for number, part in enumerate(parts):
            ts = known.get(number)
            try:
                known[number] = await self._put(run, part, number=number, ts=ts)
            except SlackRefusal as exc:
                if exc.word != STREAMING:
                    raise
                # Slack does not end it, and no word is lost: the answer is a message of its own.
                self._streams.switch_off(run, exc)
                known[number] = await self._messages.post(
                    run.request, part, number=number, instead_of=ts
                )

    async def _put(self, run: Run, part: MessagePart, *, number: int, ts: str | None) -> str:
        """Makes a message of the run show the part; returns its ts."""
        if ts is not None:
            try:
                await self._messages.update(run.request, part, number=number, ts=ts)
            except SlackRefusal as exc:
                if exc.word not in REPOST_WORDS:
                    raise
            else:
                return ts
        return await self._messages.post(run.request, part, number=number, instead_of=ts)

    async def _deliver_file(self, run: Run, sharing: Awaitable[None]) -> Delivery:
        try:
            async with within(self._api.policy.write_timeout_s):
                await sharing
        except SlackLeaseLost:
            raise
        except SlackFault as exc:
            self._failed(run.id, "share", exc)
            return Delivery(failure=exc.word, may_pass=not isinstance(exc, SlackRefusal))
        except UnreadableFileError as exc:
            self._log.warning(
                "slack.update_failed", run_id=run.id, operation="share", error=exc.reason
            )
            return Delivery(failure=exc.reason, may_pass=exc.may_pass)
        self._status.posted(run.thread)
        return Delivery()

    def _line_s(self, run: Run, method: str) -> float:
        return self._api.limits.line_s(method, run.request.channel)

    @asynccontextmanager
    async def _posting(self, run: Run, operation: str) -> AsyncIterator[None]:
        """As `_telling`, for a message in the run's thread."""
        async with self._telling(run.id, operation):
            yield
        self._status.posted(run.thread)

    @asynccontextmanager
    async def _telling(self, run_id: RunId, operation: str) -> AsyncIterator[None]:
        """Bounds what may fail without anybody waiting for it: a failure is logged."""
        try:
            async with within(self._api.policy.write_timeout_s):
                yield
        except SlackFault as exc:
            self._failed(run_id, operation, exc)

    def _failed(self, run_id: RunId, operation: str, fault: SlackFault) -> None:
        self._log.warning(
            "slack.update_failed", run_id=run_id, operation=operation, error=fault.word
        )
