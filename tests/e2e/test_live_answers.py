"""An answer while it comes, through the whole service: a stream in a DM, edits in a channel, another process that goes on, and a Slack that takes no streams."""

import re

import pytest

from app.playground.slack.types import JsonObject
from app.slack.status import LINE
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, has_stop_button, text_of
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

DM = "D0YOU"
WRITING = "I am Orion's offline model and I write slowly"


def tasks_of(message: JsonObject) -> dict[str, str]:
    """Titles and states of the cards of a message."""
    blocks = message.get("blocks", ())
    return {task["title"]: task["status"] for one in blocks for task in one.get("tasks", ())}


async def calls(stage: Stage, method: str) -> list[JsonObject]:
    found = stage.world.fake_slack.api.calls
    return [call for call in found if call["method"] == method]


@pytest.mark.parametrize("transport", [pytest.param("http", marks=pytest.mark.long), "socket"])
async def test_a_direct_message_is_answered_bit_by_bit(
    world: World, start_orion: OpenOrion, transport: str
) -> None:
    """The thinking message is a stream, with a card for the tool, and words before the last one is written; it becomes the answer."""
    settings = {"SLACK_APP_TOKEN": world.config.app_token} if transport == "socket" else {}
    async with start_orion(world, **settings) as stage:
        tool = await stage.client.say("run: sleep 2; echo hello", channel=DM)
        shown = await stage.client.wait_for_reply(
            tool, lambda reply: "echo hello" in str(tasks_of(reply)), channel=DM
        )
        assert shown["streaming_state"] == "in_progress"
        answer = await stage.answer(tool, channel=DM)
        assert "hello" in text_of(answer)
        assert answer["ts"] == shown["ts"]
        assert tasks_of(answer) == {}
        slow = await stage.client.say("!slow 3", channel=DM)
        written = await stage.client.wait_for_reply(
            slow, lambda reply: bool(re.search("I am", text_of(reply))), channel=DM
        )
        assert written["streaming_state"] == "in_progress"
        assert has_stop_button(written)
        answer = await stage.answer(slow, channel=DM)
        assert WRITING in text_of(answer)
        assert answer["streaming_state"] == "completed"
        assert len(await stage.bot_messages(slow, channel=DM)) == 1
        assert not [call for call in world.fake_slack.api.calls if call["error"]]


@pytest.mark.long
async def test_a_stream_is_stopped_by_slacks_own_stop(world: World, start_orion: OpenOrion) -> None:
    """Slack seals it, and the message says who stopped it."""
    async with start_orion(world) as stage:
        asked = await stage.client.say("!slow 30", channel=DM)
        await stage.client.wait_for_reply(asked, lambda reply: "I am" in text_of(reply), channel=DM)
        await stage.client.stop(asked, channel=DM)
        answer = await stage.answer(asked, channel=DM)
        assert "Stopped by" in text_of(answer)
        assert len(await stage.bot_messages(asked, channel=DM)) == 1


@pytest.mark.long
async def test_an_answer_goes_on_after_a_crash_and_in_slices(
    world: World, start_orion: OpenOrion
) -> None:
    """Killed while it streams, Orion goes on with the same message; so do later slices."""
    async with start_orion(world, ORION_SLICE_S="2") as stage:
        asked = await stage.client.say("!slow 6", channel=DM)
        await stage.client.wait_for_reply(asked, lambda reply: "I am" in text_of(reply), channel=DM)
        stage.orion.kill_group()
        assert await stage.orion.died(timeout_s=10)
        await stage.orion.launch()
        answer = await stage.answer(asked, channel=DM)
        assert WRITING in text_of(answer)
        (only,) = await stage.bot_messages(asked, channel=DM)
        assert only["streaming_state"] == "completed"


@pytest.mark.long
async def test_in_a_channel_the_message_is_edited_below_slacks_line(
    world: World, start_orion: OpenOrion
) -> None:
    """The line is there while the run goes, and gone after it; a Slack without streams is told apart once."""
    async with start_orion(world) as stage:
        await stage.client.faults("chat.startStream", error="unknown_method", times=9)
        dm = await stage.client.say("run: echo hello", channel=DM)
        assert "hello" in text_of(await stage.answer(dm, channel=DM))
        assert "hello" in text_of(
            await stage.answer(await stage.client.say("run: echo hello", channel=DM), channel=DM)
        )
        assert len(await calls(stage, "chat.startStream")) == 1
        asked = await stage.client.say("@Orion !slow 9")
        shown = await stage.client.wait_for_reply(asked, lambda reply: "I am" in text_of(reply))
        assert "streaming_state" not in shown

        def line() -> str:
            workspace = world.fake_slack.workspace
            return str(workspace.status_of(stage.channel_id("general"), asked)["status"])

        await until(lambda: line() == LINE)
        await stage.answer(asked)
        await until(lambda: not line())


@pytest.mark.long
async def test_an_answer_is_whole_where_slack_ends_no_stream(
    world: World, start_orion: OpenOrion
) -> None:
    """Posted below the stream, which stays until Slack seals it, also by a process that takes over; the next question is not streamed."""
    async with start_orion(world) as stage:
        await stage.client.faults("chat.stopStream", error="feature_not_enabled", times=999)
        asked = await stage.client.say("!slow 6", channel=DM)
        stream = await stage.client.wait_for_reply(
            asked, lambda reply: "I am" in text_of(reply), channel=DM
        )
        stage.orion.kill_group()
        assert await stage.orion.died(timeout_s=10)
        await stage.orion.launch()
        run = await stage.ended(asked, channel=DM)
        assert run.delivery == "sent"
        first, answer = await stage.bot_messages(asked, channel=DM)
        assert (first["ts"], run.reply_ts) == (stream["ts"], answer["ts"])
        assert WRITING in text_of(answer)
        assert not has_stop_button(answer)
        again = await stage.client.say("run: echo hello", channel=DM)
        assert "hello" in text_of(await stage.answer(again, channel=DM))
        assert len(await stage.bot_messages(again, channel=DM)) == 1
