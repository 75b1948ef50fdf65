"""Streams of the fake Slack, through the real SDK: what is taken, what is refused, and when one is sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from slack_sdk.errors import SlackApiError

from app.playground.slack.types import TEAM_ID, YOU, FakeSlackConfig
from tests.unit.playground.test_rates import HandClock

if TYPE_CHECKING:
    from tests.unit.playground.conftest import Playground, StartPlayground

DM = "D0YOU"
TASK = {"type": "task_update", "id": "1", "title": "Read", "status": "in_progress"}


async def begin(playground: Playground, **more: Any) -> tuple[str, str]:
    root = await playground.client.say("hi", channel=DM)
    answer = await playground.web.chat_startStream(
        channel=DM, thread_ts=root, chunks=[TASK], **more
    )
    return root, str(answer["ts"])


async def refusal(call: Any) -> str:
    with pytest.raises(SlackApiError) as refused:
        await call
    return str(refused.value.response["error"])


async def test_a_stream_grows_and_becomes_a_message(playground: Playground) -> None:
    """Text is joined, a task's state is replaced and its details grow, and after the stop it may be edited."""
    root, ts = await begin(playground, task_display_mode="plan")
    web = playground.web
    await web.chat_appendStream(channel=DM, ts=ts, markdown_text="Hello ")
    done = TASK | {"status": "complete", "details": "a"}
    await web.chat_appendStream(
        channel=DM, ts=ts, chunks=[{"type": "markdown_text", "text": "there"}, done]
    )
    (reply,) = await playground.client.replies(root, channel=DM)
    assert reply["streaming_state"] == "in_progress"
    plan, text = reply["blocks"]
    assert (plan["type"], plan["title"]) == ("plan", "Read")
    (task,) = plan["tasks"]
    assert (task["task_id"], task["status"], task["details"]) == ("1", "complete", "a")
    assert text["text"] == "Hello there"
    assert await refusal(web.chat_update(channel=DM, ts=ts, text="x")) == "streaming_state_conflict"
    assert await refusal(web.chat_delete(channel=DM, ts=ts)) == "cant_delete_message"
    metadata = {"event_type": "t", "event_payload": {"a": 1}}
    await web.chat_stopStream(channel=DM, ts=ts, metadata=metadata)
    await web.chat_update(channel=DM, ts=ts, text="The end")
    (reply,) = await playground.client.replies(root, channel=DM)
    assert (reply["text"], reply["streaming_state"]) == ("The end", "completed")
    not_streaming = "message_not_in_streaming_state"
    late = web.chat_appendStream(channel=DM, ts=ts, markdown_text="x")
    assert await refusal(late) == not_streaming
    assert await refusal(web.chat_stopStream(channel=DM, ts=ts)) == not_streaming


@pytest.mark.parametrize(
    ("chunk", "word"),
    [
        ({"type": "nothing"}, "invalid_chunks"),
        (TASK | {"title": "x" * 257}, "invalid_chunks"),
        (TASK | {"status": "finished"}, "invalid_chunks"),
        (TASK | {"id": ""}, "invalid_chunks"),
        ({"type": "markdown_text", "text": "x" * 12_001}, "msg_too_long"),
        ({"type": "blocks", "blocks": [{"type": "divider"}] * 51}, "msg_blocks_too_long"),
    ],
)
async def test_what_no_stream_takes(
    playground: Playground, chunk: dict[str, Any], word: str
) -> None:
    """A bad chunk is refused, and nothing of its call is shown."""
    root, ts = await begin(playground)
    text = {"type": "markdown_text", "text": "before"}
    call = playground.web.chat_appendStream(channel=DM, ts=ts, chunks=[text, chunk])
    assert await refusal(call) == word
    (reply,) = await playground.client.replies(root, channel=DM)
    assert "before" not in str(reply["blocks"])


async def test_a_whole_stream_is_bounded(playground: Playground) -> None:
    """A message of a stream holds no more than any other."""
    _, ts = await begin(playground)
    web = playground.web
    await web.chat_appendStream(channel=DM, ts=ts, markdown_text="x" * 12_000)
    more = web.chat_appendStream(channel=DM, ts=ts, markdown_text="x" * 2_000)
    assert await refusal(more) == "msg_too_long"


async def test_in_channels_the_recipient_is_named(playground: Playground) -> None:
    """Outside DMs a stream without recipient is refused."""
    root = await playground.client.say("hi")
    at: dict[str, Any] = {"channel": "C0GENERAL", "thread_ts": root}
    web = playground.web
    assert await refusal(web.chat_startStream(**at)) == "missing_recipient_user_id"
    half = web.chat_startStream(**at, recipient_user_id=YOU)
    assert await refusal(half) == "missing_recipient_team_id"
    whole = await web.chat_startStream(**at, recipient_user_id=YOU, recipient_team_id=TEAM_ID)
    assert whole["ok"]


async def test_a_stream_is_sealed_five_minutes_after_its_start(start: StartPlayground) -> None:
    """However often something was appended; then it looks broken until it is edited."""
    playground = await start(FakeSlackConfig(rate_limits="off", send_bot_events=False))
    clock = HandClock()
    playground.fake_slack.workspace.clock = clock
    root, ts = await begin(playground)
    for _ in range(6):
        await clock.sleep(50)
        await playground.web.chat_appendStream(channel=DM, ts=ts, markdown_text="more ")
    await clock.sleep(7)
    late = playground.web.chat_appendStream(channel=DM, ts=ts, markdown_text="lost")
    assert await refusal(late) == "message_not_in_streaming_state"
    (reply,) = await playground.client.replies(root, channel=DM)
    assert reply["streaming_state"] == "errored"
    await playground.web.chat_update(channel=DM, ts=ts, text="repaired")


async def test_the_native_stop_seals_the_streams_of_its_thread(playground: Playground) -> None:
    """The event names them, and whoever appends is told who stopped it."""
    root, ts = await begin(playground)
    at = {"channel_id": DM, "thread_ts": root}
    await playground.web.api_call("agents.sessions.setStatus", json={**at, "status": "processing"})
    await playground.client.stop(root, channel=DM)
    payloads = await playground.receiver.wait(2)
    (event,) = [p["event"] for p in payloads if p["event"]["type"] == "agent_session_stopped"]
    assert event["streaming_message_ts"] == [ts]
    late = playground.web.chat_appendStream(channel=DM, ts=ts, markdown_text="x")
    assert await refusal(late) == "stopped_by_user"
