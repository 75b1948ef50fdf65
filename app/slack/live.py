"""Shows that a run goes on: progress on its thinking message, coalesced and throttled, silent before the answer comes.

Also that message late, where limits hold it up; and Slack's native "working" state of a thread, with its own Stop: a nicety
that must never delay or fail anything.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from app.aio import TaskGroup, open_task_group
from app.log import get_logger
from app.runs.model import Progress, Run
from app.runs.request import RunId, Thread
from app.slack.api import SlackApi, SlackFault, SlackRefusal, within
from app.slack.blocks import MessagePart
from app.slack.messages import OwnMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTiming:
    """When updates are sent; tests shorten it."""

    first_after_s: float = 0.5
    interval_s: float = 3.0
    """Source: field reports on chat.update, one per message in about three seconds, read 2026-11."""
    refresh_after_s: float = 15.0
    """When nothing but the elapsed time changed."""


@asynccontextmanager
async def publishing(publisher: "Publisher") -> AsyncIterator["Publisher"]:
    """Lets a publisher work while inside; on leaving, its call in flight is over. The block's errors pass through."""
    async with open_task_group() as group:
        group.create_task(publisher.publish(), name="slack-progress")
        try:
            yield publisher
        finally:
            # Not cancelled: a call that was cut off could still be carried out after the answer's.
            publisher.close()
            await publisher.closed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An update that stands in Slack."""

    progress: Progress
    at_s: float
    """On the loop's clock."""


class Publisher:
    """The LiveReply of one run. `send` is one attempt, `turn` comes before it; `pause_s` is how long there can be none."""

    def __init__(
        self,
        run: Run,
        *,
        send: Callable[[Progress], Awaitable[None]],
        turn: Callable[[], Awaitable[None]],
        pause_s: Callable[[], float],
        timing: UpdateTiming,
        sent: Sent | None = None,
    ) -> None:
        """`sent`: what an earlier slice of the run has shown last."""
        self._run = run
        self._send = send
        self._turn = turn
        self._pause_s = pause_s
        self._timing = timing
        self._latest: Progress | None = None
        self._offered_at = 0.0
        self._sent = sent.progress if sent else None
        self._sent_at = sent.at_s if sent else float("-inf")
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()
        self._in_line: asyncio.Timeout | None = None
        self._log = get_logger(__name__)

    def show(self, progress: Progress) -> None:
        self._latest = progress
        self._offered_at = asyncio.get_running_loop().time()
        self._news.set()

    @property
    def sent(self) -> Sent | None:
        """Returns what it has shown last."""
        return Sent(progress=self._sent, at_s=self._sent_at) if self._sent else None

    def close(self) -> None:
        """Sends no more; `publish` returns when the call in flight is over."""
        if self._in_line is not None and not self._closing.is_set():
            self._in_line.reschedule(self._now())
        self._closing.set()
        self._news.set()

    async def closed(self) -> None:
        """Returns when nothing is in flight any more; a call takes no longer than its own timeout."""
        await self._closed.wait()

    async def publish(self) -> None:
        """Sends what is worth it until closed."""
        try:
            await self._publish()
        finally:
            self._closed.set()

    async def _publish(self) -> None:
        await self._rest(self._timing.first_after_s)
        while not self._closing.is_set():
            wait_s = self._due_in_s()
            if wait_s is None:
                await self._news.wait()
            elif wait_s > 0:
                await self._rest(wait_s, until_news=True)
            elif not await self._update():
                return
            self._news.clear()

    def _due_in_s(self) -> float | None:
        """Returns seconds until the newest progress is worth an update; None while there is none."""
        if self._latest is None:
            return None
        is_news = (
            self._sent is None
            or self._sent.substance != self._latest.substance
            or self._sent.text != self._latest.text
        )
        spacing_s = self._timing.interval_s if is_news else self._timing.refresh_after_s
        due_at = max(self._sent_at + spacing_s, self._now() + self._pause_s())
        return max(due_at - self._now(), 0.0)

    async def _update(self) -> bool:
        """Sends the newest progress if it still may; returns whether to go on."""
        latest = self._latest if await self._may_send() else None
        if latest is None:
            return True
        since_s = self._now() - self._offered_at
        self._sent, self._sent_at = latest, self._now()
        try:
            await self._send(replace(latest, elapsed_s=latest.elapsed_s + since_s))
        except SlackRefusal as exc:
            self._log.warning("slack.update_failed", run_id=self._run.id, error=exc.word)
            return False
        except SlackFault as exc:
            # The next one makes up for it.
            self._log.warning("slack.update_failed", run_id=self._run.id, error=exc.word)
            self._sent = None
        return True

    async def _may_send(self) -> bool:
        """Whether its turn came before this was closed, and there is still an update that is due."""
        try:
            async with asyncio.timeout(None) as self._in_line:
                await self._turn()
        except TimeoutError:
            return False
        finally:
            self._in_line = None
        return not self._closing.is_set() and self._due_in_s() == 0

    async def _rest(self, seconds: float, *, until_news: bool = False) -> None:
        try:
            async with asyncio.timeout(seconds):
                await (self._news if until_news else self._closing).wait()
        except TimeoutError:
            pass

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(slots=True, kw_only=True)
class _LatePost:
    ts: str | None = ""
    """Empty: nothing stands. None: nobody knows."""
    is_withdrawn: bool = False
    in_line: asyncio.Timeout | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def withdraw(self) -> None:
        """Leaves the line; a post that is on its way goes on."""
        self.is_withdrawn = True
        if self.in_line is not None:
            self.in_line.reschedule(asyncio.get_running_loop().time())


class LatePosts:
    """Posts in the background; a run whose process ends before its message was posted gets its answer alone."""

    def __init__(self, api: SlackApi, messages: OwnMessages, *, group: TaskGroup) -> None:
        self._api = api
        self._messages = messages
        self._group = group
        self._posts: dict[RunId, _LatePost] = {}
        self._log = get_logger(__name__)

    def begin(self, run: Run, part: MessagePart) -> None:
        post = self._posts[run.id] = _LatePost()
        self._group.create_task(self._post(run, part, post), name="slack-late-post")

    def ts(self, run_id: RunId) -> str:
        """Returns where it stands by now; empty when it does not."""
        post = self._posts.get(run_id)
        return post.ts or "" if post else ""

    async def settle(self, run_id: RunId) -> str | None:
        """Returns its ts, or empty when none stands and none will; None when nobody knows, or there was none to post here."""
        post = self._posts.get(run_id)
        if post is None:
            return None
        post.withdraw()
        await post.done.wait()
        self._posts.pop(run_id, None)
        return post.ts

    def close(self) -> None:
        """Posts nothing more that is still in line."""
        for post in self._posts.values():
            post.withdraw()

    async def _post(self, run: Run, part: MessagePart, post: _LatePost) -> None:
        try:
            if await self._has_turn(run, post):
                post.ts = None
                async with within(self._api.policy.write_timeout_s):
                    post.ts = await self._messages.post(run.request, part, number=0, has_turn=True)
        except SlackFault as exc:
            if isinstance(exc, SlackRefusal):
                post.ts = ""
            self._log.warning(
                "slack.update_failed", run_id=run.id, operation="place", error=exc.word
            )
        finally:
            post.done.set()

    async def _has_turn(self, run: Run, post: _LatePost) -> bool:
        """Whether its turn came before it was withdrawn."""
        if post.is_withdrawn:
            return False
        try:
            async with asyncio.timeout(None) as post.in_line:
                await self._api.limits.turn("chat.postMessage", run.request.channel)
        except TimeoutError:
            return False
        finally:
            post.in_line = None
        return not post.is_withdrawn


_STATUS_TIMEOUT_S: Final = 3.0
_STATUS_METHOD: Final = "agents.sessions.setStatus"
"""Source: Slack Web API, agents.sessions.setStatus, read 2026-11: needs an app declared as an agent."""
_PASSING_REFUSALS: Final = frozenset({"channel_not_found", "thread_not_found", "is_archived"})
"""About the thread, not about the app."""


class SessionStatus:
    """Sets it in the background, what a thread asked for last, in the order of asking as Slack's limit allows.

    Off for good after Slack's first refusal.
    """

    def __init__(self, api: SlackApi, *, group: TaskGroup) -> None:
        self._api = api
        self._group = group
        self._runs: dict[Thread, set[RunId]] = {}
        """Those of a thread that wait or go."""
        self._wanted: dict[Thread, str] = {}
        self._shown: dict[Thread, str] = {}
        """Where Slack shows another than `active`, as far as is known."""
        self._busy: set[Thread] = set()
        self._in_line: set[asyncio.Timeout] = set()
        self._is_on = True
        self._log = get_logger(__name__)

    def processing(self, run: Run, *, is_urgent: bool = False) -> None:
        """Has Slack show a loader and Stop. `is_urgent`: nothing else will show soon that Orion is at work."""
        self._runs.setdefault(run.thread, set()).add(run.id)
        self._want(run.thread, "processing", is_urgent=is_urgent)

    def active(self, run: Run) -> None:
        """Has Slack take them away, once no other run of the thread is left."""
        runs = self._runs.get(run.thread, set())
        runs.discard(run.id)
        if not runs:
            self._runs.pop(run.thread, None)
            self._want(run.thread, "active", is_urgent=False)

    def close(self) -> None:
        """Sets nothing more; a call in flight goes on."""
        self._is_on = False
        for in_line in self._in_line:
            in_line.reschedule(asyncio.get_running_loop().time())

    def _want(self, thread: Thread, status: str, *, is_urgent: bool) -> None:
        if not self._is_on:
            return
        self._wanted[thread] = status
        if thread not in self._busy and status != self._shown.get(thread, "active"):
            self._busy.add(thread)
            self._group.create_task(self._fulfil(thread, is_urgent=is_urgent), name="slack-status")

    async def _fulfil(self, thread: Thread, *, is_urgent: bool) -> None:
        try:
            while self._wanted.get(thread) and await self._has_turn(is_urgent=is_urgent):
                status = self._wanted.pop(thread)
                if status != self._shown.get(thread, "active"):
                    await self._set(thread, status)
        finally:
            self._busy.discard(thread)

    async def _has_turn(self, *, is_urgent: bool) -> bool:
        """Whether its turn came before this was closed or switched off."""
        in_line = asyncio.timeout(None)
        try:
            async with in_line:
                self._in_line.add(in_line)
                await self._api.limits.turn(_STATUS_METHOD, is_urgent=is_urgent)
        except TimeoutError:
            return False
        finally:
            self._in_line.discard(in_line)
        return self._is_on

    async def _set(self, thread: Thread, status: str) -> None:
        arguments = {
            "channel_id": thread.channel,
            "thread_ts": thread.thread_ts,
            "status": status,
        }
        try:
            async with within(_STATUS_TIMEOUT_S):
                self._shown[thread] = status  # if it fails, nobody knows
                await self._api.once(_STATUS_METHOD, arguments, has_turn=True)
            if status == "active":
                del self._shown[thread]
        except SlackRefusal as exc:
            if exc.word not in _PASSING_REFUSALS:
                self._is_on = False
                self._log.info("slack.native_stop_unavailable", error=exc.word)
        except SlackFault as exc:
            self._log.debug("slack.update_failed", method=_STATUS_METHOD, error=exc.word)
