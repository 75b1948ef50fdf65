"""Shows that a run goes on: progress on its thinking message, coalesced and throttled, silent before the answer comes.

By a driver, as long as Slack takes it, then by the next one; also that message late, where limits hold it up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from app.aio import TaskGroup, open_task_group
from app.log import get_logger
from app.runs.model import Progress, Run
from app.runs.request import RunId
from app.slack.api import SlackApi, SlackFault, SlackRefusal, within
from app.slack.blocks import MessagePart, render_progress
from app.slack.limits import CallLimits
from app.slack.messages import OwnMessages

TOLD_LATE_WITHIN_S: Final = 75.0
"""What one person alone is told: Slack's longest pause, and some calls behind it."""
NO_MESSAGE_PAUSE_S: Final = 1.0
"""Before the next look whether there is one by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTiming:
    """When updates are sent; tests shorten it."""

    first_after_s: float = 0.5
    interval_s: float = 3.0
    """Source: field reports on chat.update, one per message in about three seconds, read 2026-11."""
    refresh_after_s: float = 15.0
    """When nothing but the elapsed time changed."""
    is_first_text_hurried: bool = False
    """It waits neither for the interval nor behind what can wait."""


class DriverSpent(SlackRefusal):
    """A driver's own no, as was planned: the next one goes on, and nothing has failed."""


class LiveDriver(Protocol):
    """One way to show progress."""

    @property
    def timing(self) -> UpdateTiming: ...

    async def turn(self, *, is_urgent: bool) -> None:
        """Returns when a call may go, as Slack's limits have it."""
        ...

    def pause_s(self) -> float:
        """Returns how long there can be no call."""
        ...

    async def send(self, shown: Progress) -> None:
        """Shows it, in one attempt whose turn has come.

        Raises:
            SlackRefusal: nothing more can be shown in this way.
            SlackFault: this was not shown; a later one may be.
        """
        ...

    async def leave(self) -> None:
        """Gives the message up to the next driver. Never raises."""
        ...


class UpdateDriver:
    """Edits the thinking message; `ts` tells where it stands by now, empty = nowhere."""

    def __init__(
        self,
        run: Run,
        messages: OwnMessages,
        *,
        limits: CallLimits,
        timing: UpdateTiming,
        ts: Callable[[], str],
    ) -> None:
        self.timing = timing
        self._run = run
        self._messages = messages
        self._limits = limits
        self._ts = ts

    async def turn(self, *, is_urgent: bool) -> None:
        del is_urgent  # all that can wait does: the answer comes in the same line
        channel = self._run.request.channel
        await self._limits.turn("chat.update", channel, is_urgent=False)

    def pause_s(self) -> float:
        if not self._ts():
            return NO_MESSAGE_PAUSE_S
        return self._limits.pause_s("chat.update", self._run.request.channel)

    async def send(self, shown: Progress) -> None:
        part = render_progress(self._run, shown)
        await self._messages.try_update(self._run.request, part, number=0, ts=self._ts())

    async def leave(self) -> None:
        """The message is as good as any."""


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
    """The LiveReply of one run, by the first of its drivers that can."""

    def __init__(
        self, run: Run, drivers: Sequence[LiveDriver], *, sent: Sent | None = None
    ) -> None:
        """`sent`: what an earlier slice of the run has shown last. Without drivers nothing is shown."""
        self._run = run
        self._drivers = list(drivers)
        self._latest: Progress | None = None
        self._offered_at = 0.0
        self._sent = sent.progress if sent else None
        self._sent_at = sent.at_s if sent else float("-inf")
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()
        self._in_line: asyncio.Timeout | None = None
        self._is_patient = False
        """In line, behind what is urgent."""
        self._log = get_logger(__name__)

    def show(self, progress: Progress) -> None:
        self._latest = progress
        self._offered_at = asyncio.get_running_loop().time()
        self._news.set()
        if self._in_line is not None and self._is_patient and self._is_hurried:
            with suppress(RuntimeError):  # it has expired by itself
                self._in_line.reschedule(self._now())  # in line again, before others

    @property
    def sent(self) -> Sent | None:
        """Returns what it has shown last."""
        return Sent(progress=self._sent, at_s=self._sent_at) if self._sent else None

    def close(self) -> None:
        """Sends no more; `publish` returns when the call in flight is over."""
        if self._in_line is not None and not self._closing.is_set():
            with suppress(RuntimeError):  # it has expired by itself
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
        if self._drivers:
            await self._rest(self._drivers[0].timing.first_after_s)
        while self._drivers and not self._closing.is_set():
            wait_s = self._due_in_s()
            if wait_s is None:
                await self._news.wait()
            elif wait_s > 0:
                await self._rest(wait_s, until_news=True)
            else:
                await self._update(self._drivers[0])
            self._news.clear()

    def _due_in_s(self) -> float | None:
        """Returns seconds until the newest progress is worth an update; None while there is none."""
        if self._latest is None:
            return None
        driver, timing = self._drivers[0], self._drivers[0].timing
        is_news = (
            self._sent is None
            or self._sent.substance != self._latest.substance
            or self._sent.text != self._latest.text
        )
        spacing_s = timing.interval_s if is_news else timing.refresh_after_s
        if self._is_hurried:
            spacing_s = 0.0
        due_at = max(self._sent_at + spacing_s, self._now() + driver.pause_s())
        return max(due_at - self._now(), 0.0)

    @property
    def _is_hurried(self) -> bool:
        """Whether the agent begins to write, and the driver hurries then."""
        latest, sent = self._latest, self._sent
        is_first_text = latest is not None and bool(latest.text) and not latest.before
        return (
            self._drivers[0].timing.is_first_text_hurried
            and is_first_text
            and not (sent and sent.text)
        )

    async def _update(self, driver: LiveDriver) -> None:
        """Sends the newest progress if it still may, and goes on to the next driver where this one cannot."""
        latest = self._latest if await self._may_send(driver) else None
        if latest is None:
            return
        since_s = self._now() - self._offered_at
        self._sent, self._sent_at = latest, self._now()
        try:
            await driver.send(replace(latest, elapsed_s=latest.elapsed_s + since_s))
        except SlackFault as exc:
            if isinstance(exc, DriverSpent):
                self._log.info("slack.stream_left", run_id=self._run.id, reason=exc.word)
            else:
                self._log.warning("slack.update_failed", run_id=self._run.id, error=exc.word)
            self._sent = None  # the next one makes up for it
            if isinstance(exc, SlackRefusal):
                await driver.leave()
                self._drivers.remove(driver)
                self._sent_at = float("-inf")

    async def _may_send(self, driver: LiveDriver) -> bool:
        """Whether its turn came before this was closed, and there is still an update that is due."""
        try:
            async with asyncio.timeout(None) as self._in_line:
                self._is_patient = not self._is_hurried
                await driver.turn(is_urgent=self._is_hurried)
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
            with suppress(RuntimeError):  # it has expired by itself
                self.in_line.reschedule(asyncio.get_running_loop().time())


IsOver = Callable[[RunId], Awaitable[bool]]
"""Whether it is decided how a run ended, at whichever process."""


async def nobody_else(run_id: RunId) -> bool:
    """Is `IsOver` where no other process ends runs."""
    del run_id
    return False


class LatePosts:
    """Posts and tells in the background; a run whose process ends before its message was posted gets its answer alone."""

    def __init__(
        self, api: SlackApi, messages: OwnMessages, *, group: TaskGroup, is_over: IsOver
    ) -> None:
        self._api = api
        self._messages = messages
        self._group = group
        self._is_over = is_over
        self._posts: dict[RunId, _LatePost] = {}
        self._tellings: set[asyncio.Timeout] = set()
        self._is_closed = False
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
        """Posts nothing more that is still in line, and tells nothing more."""
        self._is_closed = True
        for post in self._posts.values():
            post.withdraw()
        for telling in self._tellings:
            with suppress(RuntimeError):  # it has expired by itself
                telling.reschedule(asyncio.get_running_loop().time())

    def tell(self, arguments: Mapping[str, Any]) -> None:
        """Tells one person alone by `chat.postEphemeral`, as soon as Slack takes it; twice is harmless."""
        self._group.create_task(self._tell(arguments), name="slack-late-word")

    async def _tell(self, arguments: Mapping[str, Any]) -> None:
        telling = asyncio.timeout(0 if self._is_closed else TOLD_LATE_WITHIN_S)
        try:
            async with telling:
                self._tellings.add(telling)
                await self._api.repeated("chat.postEphemeral", arguments)
        except (SlackFault, TimeoutError) as exc:
            error = exc.word if isinstance(exc, SlackFault) else "timeout"
            self._log.warning("slack.update_failed", operation="tell_late", error=error)
        finally:
            self._tellings.discard(telling)

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
        """Whether its turn came before it was withdrawn, and before another process has an answer."""
        if post.is_withdrawn:
            return False
        try:
            async with asyncio.timeout(None) as post.in_line:
                await self._api.limits.turn("chat.postMessage", run.request.channel)
        except TimeoutError:
            return False
        finally:
            post.in_line = None
        with suppress(Exception):  # the database may be away
            if await self._is_over(run.id):
                return False
        return not post.is_withdrawn
