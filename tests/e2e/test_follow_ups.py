"""Replies without a mention, over both of Slack's ways in: answered in a thread of one person, silence where others talk."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.playground.slack.types import COLLEAGUE, EXTERNAL
from app.runs.testing import JUDGEMENTS, MUTED, UNMUTED
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, run_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(240)]

DECIDED_WITHIN_S = 90.0


@pytest.fixture(params=["http", pytest.param("socket", marks=pytest.mark.long)])
async def via(request: pytest.FixtureRequest, world: World) -> dict[str, str]:
    """The settings of a way in."""
    tokens = {"SLACK_APP_TOKEN": world.config.app_token}
    return {"ORION_LOG_LEVEL": "DEBUG", **(tokens if request.param == "socket" else {})}


TRACED_WITHIN_S = 60.0
"""After an answer: traces are sent in the background."""


@asynccontextmanager
async def unseen(stage: Stage, ts: str, thread_ts: str) -> AsyncIterator[None]:
    """What is said inside as `ts` leaves the thread, its people and the traces as they are."""
    before = await stage.client.replies(thread_ts)
    answers = [one for one in before if one["is_bot"] and not one["ephemeral_to"]]
    async with asyncio.timeout(TRACED_WITHIN_S):
        while (traces := len(await stage.world.traces())) < len(answers):
            await asyncio.sleep(0.05)
    yield
    after = await stage.client.replies(thread_ts)
    assert [one for one in after if one["is_bot"]] == [one for one in before if one["is_bot"]]
    assert await stage.orion.run(stage.run_id(ts)) is None
    assert len(await stage.world.traces()) == traces


async def decided(stage: Stage, count: int) -> tuple[str, str]:
    """Outcome and reason of the newest of so many decisions."""
    await stage.orion.until_logged("follow_up.decided", count, timeout_s=DECIDED_WITHIN_S)
    line = stage.orion.log_lines("follow_up.decided")[-1]
    return line["outcome"], line["reason"]


@pytest.mark.long
async def test_a_thread_of_two_is_a_talk_until_somebody_joins(
    world: World, start_orion: OpenOrion, via: dict[str, str]
) -> None:
    """And again where it is not: `mute` and `unmute` are told once, to who says so."""
    async with start_orion(world, **via) as stage:
        root = await stage.client.say("@Orion hello")
        await stage.answer(root)
        assert "one more thing" in await stage.ask("one more thing", thread_ts=root)
        assert await decided(stage, 1) == ("answered", "two_party")
        await stage.client.say("mute", thread_ts=root)
        told = await stage.client.wait_for_reply(root, lambda one: bool(one["ephemeral_to"]))
        assert told["text"] == MUTED
        silent = await stage.client.say("and this?", thread_ts=root)
        async with unseen(stage, silent, root):
            assert await decided(stage, 2) == ("silent", "muted")
        assert "all the same" in await stage.ask("@Orion all the same", thread_ts=root)
        await stage.client.say("@Orion unmute", thread_ts=root)
        await stage.client.wait_for_reply(root, lambda one: one["text"] == UNMUTED)
        assert "heard again" in await stage.ask("heard again", thread_ts=root)
        joined = await stage.client.say("hi you two", thread_ts=root, user=COLLEAGUE)
        assert await decided(stage, 4) == ("silent", "people")
        alone = await stage.client.say("are we still two?", thread_ts=root)
        async with unseen(stage, alone, root):
            assert await decided(stage, 5) == ("silent", "people")
        assert await stage.orion.run(stage.run_id(joined)) is None
        ephemeral = [one for one in await stage.client.replies(root) if one["ephemeral_to"]]
        assert len(ephemeral) == 2
        assert {entry["status"] for entry in await stage.client.deliveries()} == {200}
        metrics = (await world.http.get(f"{stage.orion.url}/metrics")).text
        assert 'orion_follow_ups{outcome="silent",reason="people"} 2.0' in metrics


@pytest.mark.long
async def test_a_model_judges_in_a_thread_of_more(
    world: World, start_orion: OpenOrion, via: dict[str, str]
) -> None:
    """What it takes for addressed is answered; the rest is as if nobody had read it."""
    async with start_orion(world, ORION_FOLLOW_UPS="judged", **via) as stage:
        root = await stage.client.say("@Orion why is the build red?")
        await stage.answer(root)
        chat = await stage.client.say("lunch at twelve", thread_ts=root, user=COLLEAGUE)
        async with unseen(stage, chat, root):
            assert await decided(stage, 1) == ("silent", "model")
        assert "list the last" in await stage.ask(
            "list the last three red builds", thread_ts=root, user=COLLEAGUE
        )
        assert await decided(stage, 2) == ("answered", "model")
        asked = [
            one["body"] for one in await world.model_requests() if one["body"]["max_tokens"] == 16
        ]
        assert {body["model"] for body in asked} == {"claude-haiku-5-5"}
        assert len(asked) == 2
        assert JUDGEMENTS in (await world.http.get(f"{stage.orion.url}/metrics")).text


async def test_strangers_and_other_places_are_not_looked_at(
    world: World, start_orion: OpenOrion
) -> None:
    """The root of a channel, a thread without Orion, somebody else's mention, another company's people, and a rule of `never`."""
    settings = {"ORION_LOG_LEVEL": "DEBUG", "ORION_FOLLOW_UPS": "judged"}
    async with start_orion(world, **settings) as stage:
        lonely = await stage.client.say("nobody asked Orion")
        root = await stage.client.say("@Orion hello", channel="partners")
        await stage.answer(root, channel="partners")
        said = [
            (lonely, "general"),
            (await stage.client.say("nor here", thread_ts=lonely), "general"),
            (await stage.client.say("mute", thread_ts=lonely), "general"),
            (
                await stage.client.say("@Sam what now?", channel="partners", thread_ts=root),
                "partners",
            ),
            (
                await stage.client.say(
                    "Orion, and me?", channel="partners", thread_ts=root, user=EXTERNAL
                ),
                "partners",
            ),
        ]
        for ts, _ in said:
            await stage.deliveries(ts, at_least=1)
        for ts, channel in said:
            assert await stage.orion.run(stage.run_id(ts, channel=channel)) is None
        assert stage.orion.log_lines("follow_up.decided") == []
        assert stage.orion.log_lines("thread.muted") == []
        replies = await stage.client.replies(root, channel="partners")
        assert {run_of(one) for one in replies if one["is_bot"]} == {
            stage.run_id(root, channel="partners")
        }
