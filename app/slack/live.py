"""Shows a run's progress on its thinking message: coalesced, throttled, and silent before the answer comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from app.log import get_logger
from app.runs.model import Progress, Run
from app.slack.api import SlackFault, SlackRefusal
from sandbox_runtime.task_group import open_task_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """When updates are sent; tests shorten it."""

    first_after_s: float = 0.5
    interval_s: float = 3.0
    """Source: field reports on chat.update, one per message in about three seconds, read 2026-11."""
    refresh_after_s: float = 15.0
    """When nothing but the elapsed time changed."""


class UpdateBudget:
    """A token bucket for the updates of all runs of a workspace: at most `burst` + 60 · `per_s` in any minute.

    Ten at once and one every two seconds make 40 a minute; chat.update takes 50, and answers need the rest.
    Source: Slack Web API rate limits, tier 3, read 2026-11.
    """

    def __init__(self, *, burst: int = 10, per_s: float = 0.5) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._tokens = float(burst)
        self._turn = asyncio.Lock()
        self._counted_at: float | None = None

    async def take(self) -> None:
        """Returns when an update may go, in the order of asking. Only the first in line has a timer."""
        async with self._turn:
            if (wait_s := (1 - self._grown()) / self._per_s) > 0:
                await asyncio.sleep(wait_s)
            self._tokens = self._grown() - 1

    def _grown(self) -> float:
        """The tokens there are now."""
        now = asyncio.get_running_loop().time()
        if self._counted_at is not None:
            grown = self._tokens + (now - self._counted_at) * self._per_s
            self._tokens = min(grown, self._burst)
        self._counted_at = now
        return self._tokens


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


class Publisher:
    """The LiveReply of one run. `send` is one attempt; `pause_s` says how long Slack wants to be left alone."""

    def __init__(
        self,
        run: Run,
        *,
        send: Callable[[Progress], Awaitable[None]],
        pause_s: Callable[[], float],
        budget: UpdateBudget,
        rhythm: Rhythm,
    ) -> None:
        self._run = run
        self._send = send
        self._pause_s = pause_s
        self._budget = budget
        self._rhythm = rhythm
        self._latest: Progress | None = None
        self._offered_at = 0.0
        self._sent: Progress | None = None
        self._sent_at = float("-inf")
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()
        self._in_line: asyncio.Timeout | None = None
        self._log = get_logger(__name__)

    def show(self, progress: Progress) -> None:
        self._latest = progress
        self._offered_at = asyncio.get_running_loop().time()
        self._news.set()

    def close(self) -> None:
        """Send no more; `publish` returns when the call in flight is over."""
        if self._in_line is not None and not self._closing.is_set():
            self._in_line.reschedule(self._now())
        self._closing.set()
        self._news.set()

    async def closed(self) -> None:
        """Returns when nothing is in flight any more; a call takes no longer than its own timeout."""
        await self._closed.wait()

    async def publish(self) -> None:
        """Send what is worth it until closed."""
        try:
            await self._publish()
        finally:
            self._closed.set()

    async def _publish(self) -> None:
        await self._rest(self._rhythm.first_after_s)
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
        """Seconds until the newest progress is worth an update; None while there is none."""
        if self._latest is None:
            return None
        is_news = (
            self._sent is None
            or self._sent.substance != self._latest.substance
            or self._sent.text != self._latest.text
        )
        spacing_s = self._rhythm.interval_s if is_news else self._rhythm.refresh_after_s
        due_at = max(self._sent_at + spacing_s, self._now() + self._pause_s())
        return max(due_at - self._now(), 0.0)

    async def _update(self) -> bool:
        """Whether to go on."""
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
        """Whether the budget allowed an update before this was closed, and there is still one that is due."""
        try:
            async with asyncio.timeout(None) as self._in_line:
                await self._budget.take()
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
