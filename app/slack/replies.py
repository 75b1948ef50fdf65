"""The ReplySink over Slack's Web API: one thinking message per run, which becomes the answer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from app.errors import ErrorCode
from app.log import get_logger
from app.runs.model import Delivery, Progress, QueuePosition, Run, RunRequest, RunResult
from app.runs.ports import LiveReply
from app.slack.api import SlackApi, SlackFault, SlackRefusal
from app.slack.blocks import MessagePart, plain_result, progress, result, thinking
from app.slack.live import Publisher, Rhythm, UpdateBudget, publishing
from app.slack.messages import ANNOUNCEMENT_PART, REPOST_WORDS, OwnMessages
from app.slack.status import SessionStatus
from app.slack.text import escape
from app.slack.wording import announcement_text, failure_text

WRITE_TIMEOUT_S: Final = 60.0
WHISPER_TIMEOUT_S: Final = 2.0
"""Before the press of a button is acknowledged."""
LOOKALIKE_FENCE: Final = "\u02cb" * 3
_SMALL_PART_CHARS: Final = 3_500
_TOO_LARGE_WORDS: Final = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long"}
)
"""Source: Slack Web API, chat.postMessage and chat.update errors, read 2026-11."""

Rendering = Callable[[Run, RunResult], Sequence[MessagePart]]


class SlackReplies:
    """Implements ReplySink."""

    def __init__(
        self,
        api: SlackApi,
        *,
        messages: OwnMessages,
        status: SessionStatus,
        capacity: int,
        takes_keys: bool,
        rhythm: Rhythm,
        budget: UpdateBudget,
    ) -> None:
        self._api = api
        self._messages = messages
        self._status = status
        self._capacity = capacity
        self._renderings: tuple[Rendering, ...] = (
            partial(result, takes_keys=takes_keys),
            partial(result, takes_keys=takes_keys, max_chars=_SMALL_PART_CHARS),
            plain_result,
        )
        """The next one when Slack finds a message too large or its blocks wrong."""
        self._rhythm = rhythm
        self._budget = budget
        self._log = get_logger(__name__)

    async def place(self, run: Run, *, position: QueuePosition, maybe_posted: bool) -> str | None:
        part = thinking(run, position, capacity=self._capacity)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                ts = await self._place(run, part, maybe_posted=maybe_posted)
        except SlackRefusal as exc:
            self._failed(run, "place", exc)
            return None
        except (SlackFault, TimeoutError) as exc:
            self._failed(run, "place", exc)
            raise ConnectionError("slack cannot be reached") from exc
        self._status.processing(run)
        return ts

    def live(self, run: Run) -> AbstractAsyncContextManager[LiveReply]:
        self._status.processing(run)

        async def send(shown: Progress) -> None:
            if run.reply_ts:
                await self._messages.try_update(
                    run.request, progress(run, shown), number=0, ts=run.reply_ts
                )

        publisher = Publisher(
            run,
            send=send,
            pause_s=lambda: self._api.pause_s("chat.update"),
            budget=self._budget,
            rhythm=self._rhythm,
        )
        return publishing(publisher)

    async def finish(self, run: Run, result: RunResult, *, resumed: bool) -> Delivery:
        known = dict(enumerate(run.part_ts, start=1))
        if run.reply_ts:
            known[0] = run.reply_ts
        failure, may_pass = "", False
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._finish(run, result, known, resumed=resumed)
        except (SlackFault, TimeoutError) as exc:
            self._failed(run, "finish", exc)
            failure = exc.word if isinstance(exc, SlackFault) else "timeout"
            may_pass = not isinstance(exc, SlackRefusal)
        self._status.active(run)
        return Delivery(
            part_ts=tuple(known[number] for number in sorted(known) if number > 0),
            failure=failure,
            may_pass=may_pass,
        )

    async def announce(self, run: Run, result: RunResult) -> None:
        part = MessagePart(blocks=(), text=announcement_text(run, result))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._messages.post(run.request, part, number=ANNOUNCEMENT_PART)
        except (SlackFault, TimeoutError) as exc:
            self._failed(run, "announce", exc)

    async def attach(self, run: Run, *, name: str, content: str, resumed: bool) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._messages.share(
                    run.request, name=name, content=content, maybe_shared=resumed
                )
        except (SlackFault, TimeoutError) as exc:
            self._failed(run, "attach", exc)

    async def whisper(self, request: RunRequest, *, user: str, log: str) -> None:
        fence = "```"
        text = f"{fence}\n{escape(log.replace(fence, LOOKALIKE_FENCE))}\n{fence}"
        arguments = {
            "channel": request.channel,
            "user": user,
            "text": text,
            "thread_ts": request.thread_ts,
        }
        try:
            async with asyncio.timeout(WHISPER_TIMEOUT_S):
                await self._api.once("chat.postEphemeral", arguments)
        except (SlackFault, TimeoutError) as exc:
            word = exc.word if isinstance(exc, SlackFault) else "timeout"
            self._log.warning(
                "slack.update_failed", run_id=request.run_id, operation="whisper", error=word
            )

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
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                # Twice is harmless: one person sees it, until the next reload.
                await self._api.repeated("chat.postEphemeral", arguments)
        except (SlackFault, TimeoutError) as exc:
            word = exc.word if isinstance(exc, SlackFault) else "timeout"
            self._log.warning(
                "slack.update_failed", run_id=request.run_id, operation="refuse", error=word
            )

    async def _place(self, run: Run, part: MessagePart, *, maybe_posted: bool) -> str:
        ts = run.reply_ts
        if ts is None and maybe_posted:
            ts = (await self._messages.find(run.request)).get(0)
        if ts is None:
            return await self._messages.post(run.request, part, number=0)
        return await self._put(run, part, number=0, ts=ts)

    async def _finish(
        self, run: Run, ended: RunResult, known: dict[int, str], *, resumed: bool
    ) -> None:
        if resumed or not run.reply_ts:
            known |= await self._standing(run)
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
            return
        if refusal is not None:
            raise refusal

    async def _standing(self, run: Run) -> Mapping[int, str]:
        """What the record may not know of; a newer message of a part stands for an older one."""
        try:
            found = await self._messages.find(run.request)
        except SlackRefusal as exc:
            # An app that may not read can still edit; without that, posting could be posting twice.
            if not run.reply_ts:
                raise
            self._failed(run, "find", exc)
            return {}
        return {number: ts for number, ts in found.items() if number >= 0}

    async def _deliver(self, run: Run, parts: Sequence[MessagePart], known: dict[int, str]) -> None:
        for number, part in enumerate(parts):
            known[number] = await self._put(run, part, number=number, ts=known.get(number))

    async def _put(self, run: Run, part: MessagePart, *, number: int, ts: str | None) -> str:
        """Make a message of the run show the part; returns its ts."""
        if ts is not None:
            try:
                await self._messages.update(run.request, part, number=number, ts=ts)
            except SlackRefusal as exc:
                if exc.word not in REPOST_WORDS:
                    raise
            else:
                return ts
        return await self._messages.post(run.request, part, number=number)

    def _failed(self, run: Run, operation: str, exc: Exception) -> None:
        word = exc.word if isinstance(exc, SlackFault) else "timeout"
        self._log.warning("slack.update_failed", run_id=run.id, operation=operation, error=word)
