"""Slack's limits are kept on this side: who goes when, and what a 429 holds up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from app.aio import open_task_group
from app.runs.testing import Run, RunId, RunRequest
from app.slack.api import SlackFault
from app.slack.connection import open_slack
from app.slack.limits import CHANNEL_RATES, METHOD_RATES, Bucket, CallLimits, Rate
from tests.building import make_request
from tests.unit.slack.placing import DONE, FREE, place

if TYPE_CHECKING:
    from app.slack.connection import SlackConnection, SlackOptions
    from tests.unit.slack.conftest import Answer, SlackServer

BURST = CHANNEL_RATES["chat.postMessage"].burst


def in_channel(run: Run, channel: str, number: int = 0) -> Run:
    request = run.request
    changes = {"channel": channel, "run_id": f"{request.run_id}-{channel}-{number}"}
    moved = RunRequest.model_validate(request.model_dump() | changes)
    return dataclasses.replace(run, id=moved.run_id, request=moved)


async def until_late(slack: SlackConnection, run: Run) -> tuple[int, Run]:
    """Places runs in a channel until it takes no more: how many were posted, and the one that was not."""
    for number in range(4 * BURST):
        late = in_channel(run, "C1", number)
        if not await slack.replies.place(late, position=FREE, maybe_posted=False):
            return number, dataclasses.replace(late, reply_ts="")
    raise AssertionError("nothing holds up a burst")


async def test_a_429_in_one_channel_holds_up_no_other(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """Slack limits posts by channel: while one waits as long as Slack says, another one is told at once."""
    slack_server.fail("chat.postMessage", answer(status=429, error="ratelimited", retry_after="2"))
    async with asyncio.timeout(10), open_task_group() as group:
        held = group.create_task(place(slack, in_channel(run, "C1")))
        while not slack_server.arguments("chat.postMessage"):
            await asyncio.sleep(0.01)
        await place(slack, in_channel(run, "C2"))
        assert not held.done()
    first, other, again = slack_server.times("chat.postMessage")
    assert other - first < 1
    assert again - first >= 1.95


async def test_a_burst_in_one_channel_waits_here_and_not_at_slack(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """What a channel does not take now is left to the background; other channels do not wait for it."""
    posted, _ = await until_late(slack, run)
    assert len(slack_server.messages) == posted >= BURST
    await place(slack, in_channel(run, "C2"))
    async with asyncio.timeout(10):
        while len(slack_server.messages) < posted + 2:
            await asyncio.sleep(0.05)


async def test_the_status_comes_before_the_post(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """While a post takes its time, Slack shows already that Orion is at work."""
    slack_server.fail("chat.postMessage", answer(delay_s=0.2, accepts=True))
    await place(slack, run)
    (status,) = slack_server.times("agents.sessions.setStatus")
    assert status - slack_server.times("chat.postMessage")[0] < 0.15


async def test_an_answer_that_is_there_first_is_posted_instead_of_the_placeholder(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """One post, no update, and nothing to look for; the thinking message never comes after it."""
    _, late = await until_late(slack, run)
    delivery = await slack.replies.finish(late, DONE, resumed=False)
    assert delivery.text == "sent"
    await asyncio.sleep(1.2)
    own = [
        message
        for message in slack_server.messages.values()
        if message["metadata"]["event_payload"]["run_id"] == late.id
    ]
    assert [message["blocks"][0]["text"] for message in own] == ["The answer."]
    assert own[0]["ts"] == delivery.reply_ts
    assert slack_server.arguments("chat.update") == []
    assert slack_server.arguments("conversations.replies") == []


async def test_a_placeholder_that_was_late_becomes_the_answer(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """Once posted it is updated like any other."""
    posted, late = await until_late(slack, run)
    async with asyncio.timeout(10):
        while len(slack_server.messages) < posted + 1:
            await asyncio.sleep(0.05)
    await slack.replies.finish(late, DONE, resumed=False)
    assert len(slack_server.messages) == posted + 1
    assert list(slack_server.messages.values())[-1]["blocks"][0]["text"] == "The answer."


async def test_a_placeholder_is_not_posted_after_another_processs_answer(
    slack_options: SlackOptions, slack_server: SlackServer, run: Run
) -> None:
    """Who accepts a message may be another process than who answers it, which posts the answer without waiting in this one's line."""
    looked: list[RunId] = []

    async def is_over(run_id: RunId) -> bool:
        looked.append(run_id)
        return True

    async with (
        open_slack(slack_options, is_over=is_over) as front,
        open_slack(slack_options) as worker,
    ):
        posted, late = await until_late(front, run)
        assert (await worker.replies.finish(late, DONE, resumed=False)).text == "sent"
        async with asyncio.timeout(10):
            while late.id not in looked:
                await asyncio.sleep(0.05)
        await front.replies.finish(
            late, DONE, resumed=True
        )  # its turn has come, and nothing was posted
    own = [
        message
        for message in slack_server.messages.values()
        if message["metadata"]["event_payload"]["run_id"] == late.id
    ]
    assert [message["blocks"][0]["text"] for message in own] == ["The answer."]
    assert len(slack_server.messages) == posted + 1


async def test_a_placeholder_is_not_forgotten_by_who_gave_up_waiting_for_it(
    slack: SlackConnection, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """Slack takes long over it, and who would tell the answer is cut off meanwhile: the next try finds it, and posts none beside it."""
    posted, late = await until_late(slack, run)
    slack_server.fail("chat.postMessage", answer(delay_s=0.25, accepts=True))
    async with asyncio.timeout(10):
        while len(slack_server.arguments("chat.postMessage")) == posted:
            await asyncio.sleep(0.01)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await slack.replies.finish(late, DONE, resumed=False)
    await slack.replies.finish(late, DONE, resumed=False)
    own = [
        message
        for message in slack_server.messages.values()
        if message["metadata"]["event_payload"]["run_id"] == late.id
    ]
    assert [message["blocks"][0]["text"] for message in own] == ["The answer."]


async def test_a_late_placeholder_that_slack_never_takes_keeps_the_answer_from_nobody(
    slack_options: SlackOptions, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """Its post is given up when a write's time is over, and the answer posted in its place."""
    policy = dataclasses.replace(slack_options.policy, write_timeout_s=0.4, call_timeout_s=60)
    async with open_slack(dataclasses.replace(slack_options, policy=policy)) as slack:
        posted, late = await until_late(slack, run)
        slack_server.fail("chat.postMessage", answer(delay_s=20))
        async with asyncio.timeout(10):
            while len(slack_server.arguments("chat.postMessage")) == posted:
                await asyncio.sleep(0.01)
            while (await slack.replies.finish(late, DONE, resumed=False)).failure:
                pass
        assert slack_server.in_flight["chat.postMessage"] == 1


async def test_an_answer_waits_in_line_for_what_it_reads_first(
    slack_options: SlackOptions, slack_server: SlackServer, run: Run, answer: type[Answer]
) -> None:
    """Told again after a crash, it looks for what stands there; Slack's limit on reading is no part of a write's time."""
    policy = dataclasses.replace(slack_options.policy, write_timeout_s=1)
    async with open_slack(dataclasses.replace(slack_options, policy=policy)) as slack:
        placed = await place(slack, run)
        limited = answer(status=429, error="ratelimited", retry_after="2")
        slack_server.fail("conversations.replies", limited)
        assert (await slack.replies.finish(placed, DONE, resumed=True)).failure == "timeout"
        assert not (await slack.replies.finish(placed, DONE, resumed=True)).failure


@pytest.mark.long
async def test_the_wait_in_line_costs_no_history(
    slack: SlackConnection, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """A read that must wait for longer than a read may take is not cut off for that."""
    slack_server.pages["all"] = [{"ts": "1799000000.000000", "user": "UALICE", "text": "hi"}]
    limited = answer(status=429, error="ratelimited", retry_after="12")
    slack_server.fail("conversations.replies", limited)
    request = make_request(ts="1799900000.000000", thread_ts="1799000000.000000")
    async with asyncio.timeout(40), open_task_group() as group:
        group.create_task(slack.reader.read(request))
        while not slack_server.arguments("conversations.replies"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert (await slack.reader.read(request)).messages


async def test_a_status_that_slack_shows_already_is_not_set_again(
    slack: SlackConnection, slack_server: SlackServer, run: Run
) -> None:
    """A run sets it when it is placed, and again when it starts; Slack hears of it once, and once of the end."""
    placed = await place(slack, run)
    async with slack.replies.live(placed):
        await asyncio.sleep(0.05)
    await slack.replies.finish(placed, DONE, resumed=False)
    await asyncio.sleep(0.1)
    calls = slack_server.arguments("agents.sessions.setStatus")
    assert [call["status"] for call in calls] == ["processing", "active"]


@pytest.mark.alone
async def test_urgent_calls_go_first() -> None:
    """An answer passes progress that was in line before it, and has a reserve that progress may not use."""
    bucket = Bucket(Rate(burst=3, per_s=20, reserve=2))
    granted: list[str] = []

    async def ask(name: str, *, is_urgent: bool) -> None:
        await bucket.take(is_urgent=is_urgent)
        granted.append(name)

    async with asyncio.timeout(5), open_task_group() as group:
        for name in ("progress 1", "progress 2", "progress 3"):
            group.create_task(ask(name, is_urgent=False))
        await asyncio.sleep(0.01)
        assert granted == ["progress 1"]
        for name in ("answer 1", "answer 2", "answer 3"):
            group.create_task(ask(name, is_urgent=True))
        await asyncio.sleep(0.01)
        assert granted == ["progress 1", "answer 1", "answer 2"]
    assert granted[3:] == ["answer 3", "progress 2", "progress 3"]


async def test_a_pause_is_kept_to_the_second() -> None:
    """After a 429 nobody goes before the time that Slack named, and then one by one."""
    bucket = Bucket(Rate(burst=5, per_s=10))
    await bucket.take()
    bucket.pause(0.5)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await bucket.take()
    first = loop.time() - began_at
    await bucket.take()
    second = loop.time() - began_at
    assert first >= 0.49
    assert second >= 0.59


async def test_processes_share_what_a_workspace_may() -> None:
    """Two keep to half of a method's rate each, and one that is alone again to all of it."""
    limits = CallLimits(methods={"chat.update": Rate(burst=4, per_s=20, reserve=2)}, channels={})
    await limits.turn("chat.update")
    limits.share(2)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for _ in range(4):
        await limits.turn("chat.update")
    assert loop.time() - began_at >= 0.19  # two at once, then ten a second
    limits.share(1)
    began_at = loop.time()
    for _ in range(2):
        await limits.turn("chat.update")
    assert 0.09 <= loop.time() - began_at < 0.19
    assert Rate(burst=15, per_s=0.8, reserve=5).shared_by(20).burst == 1


@pytest.mark.parametrize("rate", METHOD_RATES.values(), ids=METHOD_RATES)
def test_however_many_processes_there_are_the_patient_get_their_turn(rate: Rate) -> None:
    """What only urgent calls may use is less than there ever is."""
    for processes in range(1, 65):
        shared = rate.shared_by(processes)
        assert 0 <= shared.reserve < shared.burst


async def test_who_left_the_line_is_not_counted_in_it() -> None:
    """The wait that is told is that of the calls before, served and cancelled ones no more."""
    bucket = Bucket(Rate(burst=1, per_s=0.1))
    await bucket.take()
    before_s = bucket.line_s
    async with open_task_group() as group:
        waiting = [group.create_task(bucket.take()) for _ in range(3)]
        await asyncio.sleep(0)
        assert bucket.line_s == pytest.approx(before_s + 30, abs=1)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        assert bucket.line_s == pytest.approx(before_s, abs=1)


async def test_calls_are_counted_by_what_became_of_them(
    slack_options: SlackOptions, slack_server: SlackServer, answer: type[Answer]
) -> None:
    """Each attempt by itself."""
    told: list[tuple[str, str]] = []
    faults = [
        answer(status=429, error="ratelimited", retry_after="0"),
        answer(status=500, error=""),
        answer(error="channel_not_found"),
    ]
    slack_server.fail("auth.test", *faults)
    async with open_slack(slack_options, on_call=lambda *call: told.append(call)) as slack:
        for _ in faults:
            with contextlib.suppress(SlackFault):
                await slack.identify()
        await slack.identify()
    assert {method for method, _ in told} == {"auth.test"}
    assert [result for _, result in told] == ["limited", "unreachable", "refused", "ok"]
