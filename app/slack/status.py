"""Slack's own signs that Orion is at work in a thread: the session's "processing", with its Stop, and the line below a channel's thread.

Niceties that must never delay or fail anything: set in the background, in the order of asking as Slack's limits allow, and off
for good after Slack's first refusal. To take one away is tried again until it has worked, or too often.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from app.aio import TaskGroup
from app.log import get_logger
from app.runs.model import Run
from app.runs.request import RunId, RunRequest, Surface, Thread
from app.slack.api import SlackApi, SlackFault, SlackRefusal, within

_TIMEOUT_S: Final = 3.0
_CLEARED_WITHIN_S: Final = 2.0
"""When Orion ends."""
MAX_CLEARINGS: Final = 10
"""In a row that may fail, each after Slack's pause; then the next question of the thread clears it."""
_MAX_LEFT: Final = 1_000
SESSION_METHOD: Final = "agents.sessions.setStatus"
"""Source: Slack Web API, agents.sessions.setStatus, read 2026-11: needs an app declared as an agent."""
LINE_METHOD: Final = "assistant.threads.setStatus"
"""Source: Slack Web API, assistant.threads.setStatus, read 2026-11: in threads of channels, too, with `chat:write`."""
LINE: Final = "is working on it…"
LINE_LASTS_S: Final = 75.0
"""It goes out by itself after two minutes. Source: as above."""
PASSING_REFUSALS: Final = frozenset(
    {"channel_not_found", "invalid_thread_ts", "is_archived", "not_in_channel", "thread_not_found"}
)
"""About the thread, not about the app."""


MAX_TITLE_CHARS: Final = 60
"""Slack takes 200. Source: Slack Web API, agents.sessions.setStatus, `title`, read 2026-11."""


def title_of(request: RunRequest) -> str:
    """Returns the title of the conversation that a message begins in a direct message: its question, shortened; empty when it begins none."""
    if not (request.is_root and request.surface is Surface.DM):
        return ""
    words = " ".join(request.options.prompt.split())
    return words if len(words) <= MAX_TITLE_CHARS else f"{words[: MAX_TITLE_CHARS - 1]}…"


class WorkingStatus:
    """Shows that Orion works in a thread for as long as a run of it waits or goes."""

    def __init__(
        self, api: SlackApi, *, group: TaskGroup, line_lasts_s: float = LINE_LASTS_S
    ) -> None:
        self._runs: dict[Thread, set[RunId]] = {}
        """Those of a thread that wait or go."""
        self._session = _Sign(api, SESSION_METHOD, group=group, off="active")
        self._line = _Sign(api, LINE_METHOD, group=group, off="", lasts_s=line_lasts_s)

    def processing(self, run: Run, *, is_urgent: bool = False) -> None:
        """Has Slack show a loader and Stop. `is_urgent`: nothing else will show soon that Orion is at work."""
        self._runs.setdefault(run.thread, set()).add(run.id)
        self._session.want(
            run.thread, "processing", is_urgent=is_urgent, title=title_of(run.request)
        )

    @contextmanager
    def working(self, run: Run) -> Iterator[None]:
        """Has Slack show, besides, the line below the thread of a channel while inside, and keeps it there."""
        self.processing(run)
        if run.request.surface is not Surface.CHANNEL:
            yield
            return
        self._line.want(run.thread, LINE)
        try:
            yield
        finally:
            self._line.want(run.thread, "")

    def posted(self, thread: Thread) -> None:
        """Shows the line again, which a post of the app takes away. Source: as above."""
        self._line.doubt(thread)

    def active(self, run: Run, *, maybe_shown: bool = False) -> None:
        """Has Slack take all of it away, once no other run of the thread is left. `maybe_shown`: another process may have shown it."""
        runs = self._runs.get(run.thread, set())
        runs.discard(run.id)
        if runs:
            return
        self._runs.pop(run.thread, None)
        self._session.want(run.thread, "active", is_doubtful=maybe_shown)
        if maybe_shown and run.request.surface is Surface.CHANNEL:
            self._line.want(run.thread, "", is_doubtful=True)

    def close(self) -> None:
        """Sets nothing more but takes the lines away; a call in flight goes on."""
        self._session.close()
        self._line.close(is_cleared=True)


@dataclass(slots=True, kw_only=True)
class _Shown:
    wanted: str
    shown: str
    """As far as is known."""
    is_doubtful: bool = False
    is_urgent: bool = False
    title: str = ""
    """Of the thread, for the list of a person's conversations; told once."""
    failures: int = 0
    """To take it away, in a row."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    calling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """So that no call overtakes an earlier one."""


class _Sign:
    """One status of Slack's by threads."""

    def __init__(
        self,
        api: SlackApi,
        method: str,
        *,
        group: TaskGroup,
        off: str,
        lasts_s: float | None = None,
    ) -> None:
        """`off`: what there is by itself. `lasts_s`: how long another one is there before it is set again."""
        self._api = api
        self._method = method
        self._group = group
        self._off = off
        self._lasts_s = lasts_s
        self._threads: dict[Thread, _Shown] = {}
        """Where another than `off` is shown or wanted."""
        self._left: dict[Thread, None] = {}
        """Where another may be shown for good, as taking it away has failed too often."""
        self._waits: set[asyncio.Timeout] = set()
        self._is_on = True
        self._log = get_logger(__name__)

    def want(
        self,
        thread: Thread,
        status: str,
        *,
        is_urgent: bool = False,
        is_doubtful: bool = False,
        title: str = "",
    ) -> None:
        """Has Slack show it. `is_doubtful`: set it even where it seems to be shown."""
        if not self._is_on:
            return
        known = self._threads.get(thread)
        if known is None:
            is_doubtful |= thread in self._left
            if status == self._off and not is_doubtful:
                return
            self._left.pop(thread, None)
            known = self._threads[thread] = _Shown(
                wanted=status,
                shown=self._off,
                title=title,
                is_doubtful=bool(title),  # told also where the run is over by then
            )
            self._group.create_task(self._keep(thread, known), name="slack-status")
        known.wanted = status
        known.is_urgent |= is_urgent
        known.is_doubtful |= is_doubtful
        known.news.set()

    def doubt(self, thread: Thread) -> None:
        """Sets again what is shown: it may be there no more."""
        known = self._threads.get(thread)
        if known is not None and known.wanted != self._off:
            known.is_doubtful = True
            known.news.set()

    def close(self, *, is_cleared: bool = False) -> None:
        """Sets nothing more. `is_cleared`: but `off`, where another is shown."""
        self._is_on = self._is_on and is_cleared
        for thread, known in list(self._threads.items()):
            if self._is_on and known.shown != self._off:
                self._group.create_task(self._clear(thread, known), name="slack-status")
            known.news.set()
        self._is_on = False
        for wait in self._waits:
            with suppress(RuntimeError):  # it has expired by itself
                wait.reschedule(asyncio.get_running_loop().time())

    async def _keep(self, thread: Thread, known: _Shown) -> None:
        """Works until what is shown, and wanted, is `off`."""
        try:
            while self._is_on and known.failures < MAX_CLEARINGS:
                if known.wanted != known.shown or known.is_doubtful:
                    if not await self._has_turn(is_urgent=known.is_urgent):
                        return
                    if known.wanted != known.shown or known.is_doubtful:
                        await self._set(thread, known)
                    if known.failures:
                        await self._rest(known)
                elif known.wanted == self._off:
                    return
                else:
                    await self._until_news(known, self._lasts_s)
        finally:
            if self._threads.get(thread) is known:
                del self._threads[thread]
                if known.failures:
                    self._left[thread] = None
                    if len(self._left) > _MAX_LEFT:
                        del self._left[next(iter(self._left))]

    async def _rest(self, known: _Shown) -> None:
        """Tries nothing for a time, besides what Slack asks for, unless another status is wanted."""
        policy = self._api.policy
        if known.wanted == self._off:
            pause_s = policy.first_wait_s * 2.0 ** (known.failures - 1)
            await self._until_news(known, min(pause_s, policy.max_wait_s))

    async def _until_news(self, known: _Shown, within_s: float | None) -> None:
        known.news.clear()
        try:
            async with asyncio.timeout(within_s):
                await known.news.wait()
        except TimeoutError:
            known.is_doubtful = True

    async def _has_turn(self, *, is_urgent: bool) -> bool:
        """Whether its turn came before this was closed or switched off."""
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                await self._api.limits.turn(self._method, is_urgent=is_urgent)
        except TimeoutError:
            return False
        finally:
            self._waits.discard(wait)
        return self._is_on

    async def _set(self, thread: Thread, known: _Shown) -> None:
        # If it fails, nobody knows what is shown; the next wish, or the next time, sets it again.
        before = known.shown
        known.shown, known.is_doubtful, known.is_urgent = known.wanted, False, False
        is_off = known.shown == self._off
        failures, known.failures = known.failures, 0
        try:
            await self._call(thread, known)
        except SlackRefusal as exc:
            if exc.word not in PASSING_REFUSALS:
                self.close()
                self._log.info("slack.status_unavailable", method=self._method, error=exc.word)
        except SlackFault as exc:
            self._log.debug("slack.update_failed", method=self._method, error=exc.word)
            if is_off:  # there would be no next time
                known.shown, known.is_doubtful, known.failures = before, True, failures + 1
                known.is_urgent = True

    async def _clear(self, thread: Thread, known: _Shown) -> None:
        try:
            async with within(_CLEARED_WITHIN_S), known.calling:
                known.shown = self._off
                await self._api.once(
                    self._method, self._arguments(thread, self._off), has_turn=True
                )
        except SlackFault as exc:
            self._log.debug("slack.update_failed", method=self._method, error=exc.word)

    async def _call(self, thread: Thread, known: _Shown) -> None:
        arguments = self._arguments(thread, known.shown)
        if known.title:
            arguments["title"] = known.title
        async with within(_TIMEOUT_S), known.calling:
            await self._api.once(self._method, arguments, has_turn=True)
        known.title = ""

    def _arguments(self, thread: Thread, status: str) -> dict[str, str]:
        return {"channel_id": thread.channel, "thread_ts": thread.thread_ts, "status": status}
