"""Progress in the thread over real HTTP: how often it is told, that nothing of it comes after the answer, and that runs share Slack's limit."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from app.runs.testing import Progress, Run, Surface
from app.slack.limits import Bucket, Rate
from app.slack.live import Publisher, UpdateTiming, publishing
from sandbox_runtime.task_group import open_task_group
from tests.unit.slack.placing import DONE, place
from tests.waiting import until

if TYPE_CHECKING:
    from app.slack.connection import SlackConnection
    from tests.unit.slack.conftest import Answer, SlackServer


async def test_no_progress_is_in_flight_after_leaving(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """Leaving waits for the update that Slack is still working on, so the answer comes after it."""
    placed = await place(slack, run)
    slack_server.fail("chat.update", answer(delay_s=0.25, accepts=True))
    async with slack.replies.live(placed) as reply:
        reply.show(Progress(phase="Thinking", elapsed_s=1))
        await asyncio.sleep(0.15)
        assert slack_server.in_flight["chat.update"] == 1
    assert slack_server.in_flight["chat.update"] == 0
    await slack.replies.finish(placed, DONE, resumed=False)
    await asyncio.sleep(0.4)
    (message,) = slack_server.messages.values()
    assert message["blocks"][0]["text"] == "The answer."


async def test_progress_is_coalesced_and_throttled(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """A hundred shows in 0.75 s become at most three updates an interval apart, the last one the newest."""
    placed = await place(slack, run)
    started = time.monotonic()
    async with slack.replies.live(placed) as reply:
        for step in range(100):
            reply.show(Progress(phase="Working", elapsed_s=0, steps=step))
            await asyncio.sleep(0.005)
        await asyncio.sleep(max(0.75 - (time.monotonic() - started), 0.35))
    times = slack_server.times("chat.update")
    assert 2 <= len(times) <= 4
    assert all(later - earlier >= 0.28 for earlier, later in pairwise(times))
    assert "99 steps" in str(slack_server.arguments("chat.update")[-1]["blocks"])


async def test_unchanged_progress_is_refreshed_seldom_with_the_time_that_passed(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """With nothing new, the next update comes after the refresh time and shows more seconds."""
    placed = await place(slack, run)
    async with slack.replies.live(placed) as reply:
        reply.show(Progress(phase="Working", elapsed_s=10))
        await asyncio.sleep(0.8)
        assert len(slack_server.arguments("chat.update")) == 1
        await asyncio.sleep(0.5)
    first, second = slack_server.arguments("chat.update")
    assert "10 s" in str(first["blocks"])
    assert "11 s" in str(second["blocks"])


async def test_a_rate_limit_drops_progress_but_not_the_answer(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """While Slack wants a pause no progress is sent; the answer waits it out and arrives."""
    placed = await place(slack, run)
    slack_server.fail("chat.update", answer(status=429, error="ratelimited", retry_after="1"))
    async with slack.replies.live(placed) as reply:
        for step in range(6):
            reply.show(Progress(phase="Working", elapsed_s=0, steps=step))
            await asyncio.sleep(0.1)
    assert len(slack_server.arguments("chat.update")) == 1
    assert (await slack.replies.finish(placed, DONE, resumed=False)).text == "sent"
    first, second = slack_server.times("chat.update")
    assert second - first >= 0.95


async def test_an_error_of_the_run_passes_through_the_live_reply(
    slack: SlackConnection, run: Run
) -> None:
    """What the block raises comes out as it is, not inside a group."""

    async def fail() -> None:
        async with slack.replies.live(run):
            raise KeyError("x")

    with pytest.raises(KeyError):
        await fail()


async def test_cancellation_passes_through_the_live_reply(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """A deadline around the block ends it as a timeout, and no call is left in flight."""
    placed = await place(slack, run)
    slack_server.fail("chat.update", answer(delay_s=0.2, accepts=True))

    async def overrun() -> None:
        async with asyncio.timeout(0.15), slack.replies.live(placed) as reply:
            reply.show(Progress(phase="Working", elapsed_s=0))
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        await overrun()
    assert slack_server.in_flight["chat.update"] == 0


@pytest.mark.alone
async def test_updates_of_all_runs_share_a_budget() -> None:
    """A burst is granted, then one update per period, in the order of asking; who gives up makes room."""
    budget = Bucket(Rate(burst=3, per_s=20))
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    granted: list[tuple[int, float]] = []

    async def ask(number: int) -> None:
        await budget.take()
        granted.append((number, loop.time() - begun_at))

    async with asyncio.timeout(2), open_task_group() as group:
        asking = [group.create_task(ask(number)) for number in range(7)]
        await asyncio.sleep(0.01)
        assert [number for number, _ in granted] == [0, 1, 2]
        asking[4].cancel()
    assert [number for number, _ in granted[3:]] == [3, 5, 6]
    for turn, (_, after_s) in enumerate(granted[3:], start=1):
        assert after_s >= 0.9 * turn / 20


async def test_a_run_that_waits_for_the_budget_ends_at_once(run: Run) -> None:
    """Leaving gives its place in line up: nothing more is sent, and the next in line is served in time."""
    budget = Bucket(Rate(burst=1, per_s=10))
    sent: list[Progress] = []

    class Recording:
        timing = UpdateTiming(first_after_s=0)

        def __init__(self, budget: Bucket) -> None:
            self._budget = budget

        async def turn(self, *, is_urgent: bool) -> None:
            await self._budget.take(is_urgent=is_urgent)

        def pause_s(self) -> float:
            return 0.0

        async def send(self, shown: Progress) -> None:
            sent.append(shown)

        async def leave(self) -> None:
            raise AssertionError("it never refuses")

    def publisher(*, budget: Bucket) -> Publisher:
        return Publisher(run, [Recording(budget)])

    slow = Bucket(Rate(burst=1, per_s=0.01))
    await slow.take()
    async with asyncio.timeout(5):
        async with publishing(publisher(budget=slow)) as reply:
            reply.show(Progress(phase="Working", elapsed_s=1))
            await asyncio.sleep(0.05)
        assert sent == []
        await budget.take()
        async with publishing(publisher(budget=budget)) as reply:
            reply.show(Progress(phase="Working", elapsed_s=1))
            await asyncio.sleep(0.3)
    assert [progress.phase for progress in sent] == ["Working"]


async def test_a_conversation_is_titled_once(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """In direct messages, with the first status that is set; also when all is over before one could be."""
    dm = run.request.model_copy(update={"surface": Surface.DM, "text": "why is that"})
    first = await place(slack, replace(run, request=dm))
    async with slack.replies.live(first):
        pass
    await slack.replies.finish(first, DONE, resumed=False)
    method = "agents.sessions.setStatus"
    await until(lambda: _is_active(slack_server))
    titles = [one.get("title") for one in slack_server.arguments(method)]
    assert titles[0] == "why is that"
    assert set(titles[1:]) <= {None}


def _is_active(server: SlackServer) -> bool:
    set_last = server.arguments("agents.sessions.setStatus")[-1:]
    return bool(set_last and set_last[0]["status"] == "active")
