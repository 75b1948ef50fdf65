"""Slack's native "working" state of a thread, with its own Stop; a nicety that must never delay or fail anything."""

import asyncio
from typing import Final

from app.log import get_logger
from app.runs.model import Run, RunId, Thread
from app.slack.api import SlackApi, SlackFault, SlackRefusal
from sandbox_runtime.task_group import TaskGroup

_TIMEOUT_S: Final = 3.0
_METHOD: Final = "agents.sessions.setStatus"
"""Source: Slack Web API, agents.sessions.setStatus, read 2026-11: needs an app declared as an agent."""
_PASSING_REFUSALS: Final = frozenset({"channel_not_found", "thread_not_found", "is_archived"})
"""About the thread, not about the app."""


class SessionStatus:
    """Sets it in the background, the latest wish of a thread last. Off for good after Slack's first refusal."""

    def __init__(self, api: SlackApi, *, group: TaskGroup) -> None:
        self._api = api
        self._group = group
        self._runs: dict[Thread, set[RunId]] = {}
        """Those of a thread that wait or go."""
        self._wanted: dict[Thread, str] = {}
        self._busy: set[Thread] = set()
        self._is_on = True
        self._log = get_logger(__name__)

    def processing(self, run: Run) -> None:
        """Slack shows a loader and Stop."""
        self._runs.setdefault(run.thread, set()).add(run.id)
        self._want(run.thread, "processing")

    def active(self, run: Run) -> None:
        """Slack takes them away, once no other run of the thread is left."""
        runs = self._runs.get(run.thread, set())
        runs.discard(run.id)
        if not runs:
            self._runs.pop(run.thread, None)
            self._want(run.thread, "active")

    def _want(self, thread: Thread, status: str) -> None:
        if not self._is_on:
            return
        self._wanted[thread] = status
        if thread not in self._busy:
            self._busy.add(thread)
            self._group.create_task(self._fulfil(thread), name="slack-status")

    async def _fulfil(self, thread: Thread) -> None:
        try:
            while (status := self._wanted.pop(thread, None)) and self._is_on:
                await self._set(thread, status)
        finally:
            self._busy.discard(thread)

    async def _set(self, thread: Thread, status: str) -> None:
        arguments = {
            "channel_id": thread.channel,
            "thread_ts": thread.thread_ts,
            "status": status,
        }
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._api.once(_METHOD, arguments)
        except SlackRefusal as exc:
            if exc.word not in _PASSING_REFUSALS:
                self._is_on = False
                self._log.info("slack.native_stop_unavailable", error=exc.word)
        except (SlackFault, TimeoutError) as exc:
            self._log.debug("slack.update_failed", method=_METHOD, error=str(exc))
