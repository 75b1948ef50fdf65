"""Thinking messages that are streamed: what is told of a run as Slack's chunks, and which messages are streams now.

A stream is a nicety: where Slack refuses one, or the limits have no room for it, the message is posted and edited instead; and
what it says in the end is an edit like any other, so that nothing hangs on it.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from app.aio import TaskGroup
from app.log import get_logger
from app.runs.model import Progress, Run, StepState
from app.runs.request import RunId, Surface, slack_microseconds
from app.slack.api import (
    SlackApi,
    SlackFault,
    SlackLeaseLost,
    SlackRateLimit,
    SlackRefusal,
    SlackUnreachable,
    within,
)
from app.slack.blocks import duration_text, render_stop, tool_text
from app.slack.limits import CallLimits
from app.slack.live import DriverSpent, UpdateTiming
from app.slack.markdown import neutralise
from app.slack.messages import Chunk, OwnMessages
from app.slack.status import PASSING_REFUSALS

LiveAnswer = Literal["stream", "update", "final"]

ROLL_AFTER_S: Final = 220.0
"""A stream that is older is given up for edits, at its next refresh: Slack seals one about 306 s after its start, whatever is
appended. Source: python-slack-sdk issue 1859 and others, read 2026-11."""
SEALED_AFTER_S: Final = 310.0
STREAM_TIMING: Final = UpdateTiming(
    first_after_s=0.0, interval_s=1.0, refresh_after_s=45.0, is_first_text_hurried=True
)
MAX_TITLE_CHARS: Final = 250
"""Source: Slack Web API, chat.appendStream: about 256 a chunk, as measured by integrators, read 2026-11."""
MAX_TEXT_CHARS: Final = 9_000
"""Of a stream; then it is given up for edits, which show the end of a long text. A message takes about 13,200, and each heading
costs a hundred more. Source: as above."""
MAX_TASKS: Final = 40
MAX_NOTED: Final = 1_000
_IDLE_S: Final = 30.0
"""A stream that this process has started, and whose run it has not begun to work on, is another process's by then."""
_START: Final = "chat.startStream"
_APPEND: Final = "chat.appendStream"
_STOP: Final = "chat.stopStream"
_ENDED_WITHIN_S: Final = 10.0
_STATUSES: Final = {
    StepState.PENDING: "pending",
    StepState.RUNNING: "in_progress",
    StepState.DONE: "complete",
    StepState.FAILED: "error",
}
_WHOLE_WORDS: Final = re.compile(r".*[\s\u0080-\U0010ffff]", re.DOTALL)
"""No Slack token, and no secret that would be masked, is cut: neither has white space or letters beyond ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAnswers:
    """How answers are shown while they come."""

    dm: LiveAnswer = "stream"
    channel: LiveAnswer = "update"

    def of(self, surface: Surface) -> LiveAnswer:
        return self.dm if surface is Surface.DM else self.channel


_Mark = tuple[str, dict[str, tuple[str, str]], str]


class StreamContent:
    """What a stream shows, and what has to be added for it to show the newest progress. Pure."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._text = ""
        self._tasks: dict[str, tuple[str, str]] = {}
        """Titles and Slack's statuses, by ids."""
        self._title = ""

    def begin(self, phase: str) -> Sequence[Chunk]:
        """Returns what a stream is started with: Stop, and a task by which its run is known."""
        blocks = [dict(block) for block in render_stop(self._run)]
        return [
            {"type": "blocks", "blocks": blocks},
            *self._update_plan(phase),
            *self._update_task(self._run.id, phase, StepState.RUNNING),
        ]

    def add(self, shown: Progress) -> Sequence[Chunk]:
        """Returns what is new, and takes it as appended.

        Raises:
            DriverSpent: it cannot be shown by adding.
        """
        text = self._rest(shown)
        phase = shown.phase.rstrip(".… ")
        head = f"{phase}… {duration_text(shown.elapsed_s)}"
        tasks = [
            chunk
            for task_id, (title, state) in self._wanted(shown, phase).items()
            for chunk in self._update_task(task_id, title, state)
        ]
        chunks = [*self._update_plan(head), *tasks]
        if text:
            self._text += text
            chunks.append({"type": "markdown_text", "text": text})
        return chunks

    def mark(self) -> "_Mark":
        """Returns how it stands, for `restore`."""
        return self._text, dict(self._tasks), self._title

    def restore(self, mark: "_Mark") -> None:
        """Forgets what was added since."""
        self._text, self._tasks, self._title = mark

    def end(self) -> Sequence[Chunk]:
        """Returns what leaves nothing that seems to go on."""
        return [
            chunk
            for task_id, (title, status) in list(self._tasks.items())
            if status == _STATUSES[StepState.RUNNING]
            for chunk in self._update_task(task_id, title, StepState.DONE)
        ]

    def _wanted(self, shown: Progress, phase: str) -> Mapping[str, tuple[str, StepState]]:
        tasks: dict[str, tuple[str, StepState]] = {}
        tasks[self._run.id] = (f"{phase}…", StepState.RUNNING)
        for number, step in enumerate(shown.plan, start=1):
            tasks[f"plan-{number}"] = (step.title, step.state)
        for tool in shown.tools:
            task_id = f"tool-{tool.number}"
            is_room = task_id in self._tasks or len(self._tasks.keys() | tasks) < MAX_TASKS
            # What comes then shares one line.
            tasks[task_id if is_room else "more"] = (tool_text(tool), tool.state)
        for task_id, (title, status) in self._tasks.items():
            if task_id not in tasks and status != _STATUSES[StepState.FAILED]:
                tasks[task_id] = (title, StepState.DONE)  # its end was not told
        return tasks

    def _update_task(self, task_id: str, title: str, state: StepState) -> Iterator[Chunk]:
        task = (_cut(title), _STATUSES[state])
        if self._tasks.get(task_id) != task:
            self._tasks[task_id] = task
            yield {"type": "task_update", "id": task_id, "title": task[0], "status": task[1]}

    def _update_plan(self, title: str) -> Iterator[Chunk]:
        if title != self._title:
            self._title = title
            yield {"type": "plan_update", "title": _cut(title)}

    def _rest(self, shown: Progress) -> str:
        """Returns the text that is to be added. Raises: DriverSpent: what was added is not what it says now, or is all a message takes."""
        whole = shown.before + shown.text
        words = _WHOLE_WORDS.match(whole)
        text = neutralise(words[0] if words else "", asker=self._run.request.user)
        if self._text.startswith(text):
            return ""
        if not text.startswith(self._text):
            raise DriverSpent("text_changed")
        if len(text) > MAX_TEXT_CHARS:
            raise DriverSpent("text_too_long")
        return text[len(self._text) :]


@dataclass(slots=True, kw_only=True)
class Stream:
    """A message that is being streamed by this process. Implements LiveDriver."""

    run: Run
    ts: str
    content: StreamContent
    messages: OwnMessages
    limits: CallLimits
    started_at_s: float
    """On the loop's clock."""
    timing: UpdateTiming = STREAM_TIMING
    is_open: bool = True
    is_driven: bool = False
    """This process works on its run."""

    @property
    def age_s(self) -> float:
        return asyncio.get_running_loop().time() - self.started_at_s

    async def turn(self, *, is_urgent: bool) -> None:
        await self.limits.turn(_APPEND, is_urgent=is_urgent)

    def pause_s(self) -> float:
        return self.limits.pause_s(_APPEND)

    async def send(self, shown: Progress) -> None:
        if self.age_s > ROLL_AFTER_S:
            raise DriverSpent("stream_rolled_over")
        mark = self.content.mark()
        chunks = self.content.add(shown)
        if not chunks:
            return
        try:
            await self.messages.append(self.run.request, chunks, ts=self.ts)
        except SlackUnreachable as exc:
            # To add it again could be to say it twice.
            raise SlackRefusal(exc.word) from exc
        except SlackRateLimit:
            self.content.restore(mark)
            raise

    async def leave(self) -> None:
        """Ends it, so that it may be edited; if that fails, the edit does so."""
        if not self.is_open:
            return
        self.is_open = False
        with suppress(SlackFault):
            async with within(_ENDED_WITHIN_S):
                await self.messages.end_stream(
                    self.run.request, ts=self.ts, chunks=self.content.end()
                )


class Streams:
    """Starts streams where people want them and Slack takes them, and knows those that are open."""

    def __init__(
        self, api: SlackApi, messages: OwnMessages, *, answers: LiveAnswers, group: TaskGroup
    ) -> None:
        self._api = api
        self._messages = messages
        self._group = group
        self._closed = asyncio.Event()
        self.answers = answers
        self._open: dict[RunId, Stream] = {}
        self._posted: dict[RunId, None] = {}
        """Runs whose messages are none, as this process has posted them."""
        self._refused: set[Surface] = set()
        """Where Slack takes none from this app."""
        self._log = get_logger(__name__)

    async def start(self, run: Run, *, phase: str, may_stream: bool) -> str | None:
        """Starts the thinking message of a run as a stream; returns its ts, or None where it is to be posted: there is none.

        Raises:
            SlackLeaseLost: nothing was sent.
            SlackUnreachable: nobody knows whether it is there.
        """
        ts = await self._start(run, phase) if may_stream and self._may_start(run) else None
        if ts is None:
            self._note_posted(run)
        return ts

    async def _start(self, run: Run, phase: str) -> str | None:
        content = StreamContent(run)
        started_at_s = asyncio.get_running_loop().time()
        try:
            ts = await self._messages.start_stream(run.request, content.begin(phase))
        except (SlackLeaseLost, SlackUnreachable):
            raise
        except SlackRefusal as exc:
            if exc.word not in PASSING_REFUSALS:
                self.switch_off(run, exc)
            return None
        except SlackRateLimit:
            return None
        if not ts:
            return None
        self._open[run.id] = self._stream(run, ts, content, started_at_s=started_at_s)
        return ts

    def driver(self, run: Run) -> Stream | None:
        """Returns the stream that stands at the ts of the run's record, as far as is known; whoever appends hears if it is none.

        One that another process has started is known as long as nothing was added to it: before the first attempt's first slice.
        """
        stream = self._open.get(run.id)
        if stream is None and run.reply_ts and run.id not in self._posted:
            is_untouched = run.attempt <= 1 and not run.event_offset
            if is_untouched and self._is_wanted(run):
                stream = self._adopt(run, run.reply_ts)
        if stream is None or not stream.is_open or stream.ts != run.reply_ts:
            return None
        stream.is_driven = True
        return stream

    def is_open(self, run: Run) -> bool:
        """Whether this process has a stream of the run's to end."""
        return run.id in self._open and self._open[run.id].is_open

    async def end(self, run: Run) -> None:
        """Makes the run's stream, if there is one, a message that may be edited. Never raises."""
        self._posted.pop(run.id, None)
        stream = self._open.pop(run.id, None)
        if stream is not None:
            await stream.leave()

    def switch_off(self, run: Run, refusal: SlackRefusal) -> None:
        """Begins no more where the run was asked: Slack refuses this app to begin one there, or to end it."""
        surface = run.request.surface
        if surface not in self._refused:
            self._refused.add(surface)
            self._log.info("slack.streams_unavailable", surface=str(surface), error=refusal.word)

    def remove(self, run: Run, ts: str) -> None:
        """Takes away, in the background, a message in whose place the run's answer stands as another one."""
        self._group.create_task(self._remove(run, ts), name="slack-stream")

    def close(self) -> None:
        """Waits no more for streams to be sealed."""
        self._closed.set()

    async def _remove(self, run: Run, ts: str) -> None:
        """Tries at once, and again when Slack has sealed the stream that it may be."""
        for after_s in (0.0, max(SEALED_AFTER_S - _age_s(ts), 0.0)):
            with suppress(TimeoutError):
                async with asyncio.timeout(after_s):
                    await self._closed.wait()
                return
            try:
                async with within(self._api.policy.write_timeout_s):
                    await self._messages.delete(run.request, ts=ts)
            except SlackFault as exc:
                self._log.info(
                    "slack.update_failed", run_id=run.id, operation="remove", error=exc.word
                )
                if exc.word == "message_not_found":
                    return
            else:
                return

    def _adopt(self, run: Run, ts: str) -> Stream:
        started_at_s = asyncio.get_running_loop().time() - _age_s(ts)
        content = StreamContent(run)
        content.begin("")  # what was shown there is shown again, in the same places
        stream = self._open[run.id] = self._stream(run, ts, content, started_at_s=started_at_s)
        return stream

    def _stream(self, run: Run, ts: str, content: StreamContent, *, started_at_s: float) -> Stream:
        return Stream(
            run=run,
            ts=ts,
            content=content,
            messages=self._messages,
            limits=self._api.limits,
            started_at_s=started_at_s,
        )

    def _note_posted(self, run: Run) -> None:
        self._posted[run.id] = None
        if len(self._posted) > MAX_NOTED:
            del self._posted[next(iter(self._posted))]

    def _is_wanted(self, run: Run) -> bool:
        request = run.request
        if self.answers.of(request.surface) != "stream" or request.surface in self._refused:
            return False
        # Slack wants to know who will read it: a person of this workspace.
        return run.needs_slot and not request.is_bot and not request.is_external

    def _may_start(self, run: Run) -> bool:
        """Whether Slack takes one now, and its end can follow at once, whenever all that are open end."""
        limits = self._api.limits
        if not self._is_wanted(run):
            return False
        self._open = {
            run_id: stream
            for run_id, stream in self._open.items()
            if stream.is_open and stream.age_s < (SEALED_AFTER_S if stream.is_driven else _IDLE_S)
        }
        return limits.spare(_START) > 0 and limits.spare(_STOP) > len(self._open)


def _age_s(ts: str) -> float:
    return max(time.time() - slack_microseconds(ts) / 1e6, 0.0)


def _cut(title: str) -> str:
    """Returns a title as a line that pings nobody, and that Slack takes."""
    line = " ".join(neutralise(title).split()) or "…"
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1]}…"
