"""Events and button presses as the app receives them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest
from fastapi import Response
from slack_sdk.signature import SignatureVerifier

from app.playground.slack.types import EXTERNAL, GENERAL, YOU, FakeSlackConfig
from tests.fake_slack_client import FakeSlackError

if TYPE_CHECKING:
    from tests.unit.playground.conftest import Playground, StartPlayground

QUICK = FakeSlackConfig(
    rate_limits="off",
    send_bot_events=False,
    mention_gap_s=0.01,
    ack_timeout_s=0.3,
    retry_delays_s=(0.0, 0.05, 0.05),
)
BUTTON = {
    "type": "button",
    "action_id": "stop_run",
    "value": "r1",
    "style": "danger",
    "text": {"type": "plain_text", "text": "Stop"},
}
FEEDBACK = {
    "type": "feedback_buttons",
    "action_id": "feedback",
    "positive_button": {"text": {"type": "plain_text", "text": "Good"}, "value": "good"},
    "negative_button": {"text": {"type": "plain_text", "text": "Bad"}, "value": "bad"},
}
BLOCKS = [
    {"type": "actions", "elements": [BUTTON]},
    {"type": "context_actions", "elements": [FEEDBACK]},
]


async def test_deliveries_are_signed_as_slack_signs(playground: Playground) -> None:
    """The SDK's own verifier accepts event and action bodies, and rejects another secret."""
    await playground.client.say("@Orion hello")
    ts = (await playground.web.chat_postMessage(channel=GENERAL, text="x", blocks=BLOCKS))["ts"]
    await playground.client.press({"channel": GENERAL, "ts": ts}, "stop_run")
    await playground.receiver.wait(3)
    for headers, body in playground.receiver.requests:
        assert SignatureVerifier("playground-signing-secret").is_valid_request(body, headers)
        assert not SignatureVerifier("another").is_valid_request(body, headers)


@pytest.mark.parametrize(
    ("order", "types"),
    [("message_first", ["message", "app_mention"]), ("mention_first", ["app_mention", "message"])],
)
async def test_a_mention_is_delivered_twice(
    start: StartPlayground, order: Literal["message_first", "mention_first"], types: list[str]
) -> None:
    """One mention makes a message and an app_mention event with the same ts and different event ids."""
    playground = await start(replace(QUICK, mention_order=order, mention_gap_s=0.2))
    ts = await playground.client.say("@Orion a < b")
    first, second = await playground.receiver.wait(2)
    assert [first["event"]["type"], second["event"]["type"]] == types
    assert first["event"]["ts"] == second["event"]["ts"] == ts
    assert first["event_id"] != second["event_id"]
    assert first["event"]["text"] == "<@U0ORION> a &lt; b"
    mention = first if order == "mention_first" else second
    assert "channel_type" not in mention["event"]


async def test_the_envelope_is_slacks(playground: Playground) -> None:
    """Team, app, authorizations and event time are where the service looks for them."""
    await playground.client.say("no mention")
    (payload,) = await playground.receiver.wait(1)
    assert payload["type"] == "event_callback"
    assert (payload["team_id"], payload["api_app_id"]) == ("T0PLAYGROUND", "A0ORION")
    assert payload["authorizations"][0]["user_id"] == "U0ORION"
    assert payload["is_ext_shared_channel"] is False
    event = payload["event"]
    assert (event["channel"], event["channel_type"], event["user"]) == (GENERAL, "channel", YOU)
    assert "thread_ts" not in event


async def test_a_direct_message_is_a_message_only(playground: Playground) -> None:
    """In a DM even a mention yields one event, top-level, with channel_type im."""
    await playground.client.say("@Orion hello", channel=YOU)
    await playground.client.say("then this", channel=YOU)
    first, second = await playground.receiver.wait(2)
    assert {first["event"]["type"], second["event"]["type"]} == {"message"}
    assert first["event"]["channel_type"] == "im"
    assert "thread_ts" not in first["event"]


async def test_a_reply_names_its_thread(playground: Playground) -> None:
    """A thread reply carries thread_ts and the author of the root."""
    root = (await playground.web.chat_postMessage(channel=GENERAL, text="root"))["ts"]
    await playground.client.say("reply", thread_ts=root)
    (payload,) = await playground.receiver.wait(1)
    assert payload["event"]["thread_ts"] == root
    assert payload["event"]["parent_user_id"] == "U0ORION"


async def test_an_external_author_is_marked(playground: Playground) -> None:
    """In a shared channel the author's own team stands beside the workspace's; elsewhere they cannot write."""
    await playground.client.say("hello", channel="partners", user=EXTERNAL)
    (payload,) = await playground.receiver.wait(1)
    assert payload["is_ext_shared_channel"] is True
    assert payload["event"]["user_team"] == "T0ACMEPARTNER" != payload["team_id"]
    with pytest.raises(FakeSlackError, match="not_in_channel"):
        await playground.client.say("hello", user=EXTERNAL)


async def test_files_come_with_their_subtype(playground: Playground) -> None:
    """A message with a file is file_share, and the file can be fetched with the token."""
    await playground.client.say("see", files={"a.txt": b"content"})
    (payload,) = await playground.receiver.wait(1)
    assert payload["event"]["subtype"] == "file_share"
    headers = {"Authorization": "Bearer xoxb-playground-bot"}
    address = payload["event"]["files"][0]["url_private_download"]
    assert (await playground.http.get(address, headers=headers)).content == b"content"


async def test_edits_and_deletions_are_events(playground: Playground) -> None:
    """A person's edit is message_changed with both versions; a deletion names the deleted ts."""
    ts = await playground.client.say("one")
    await playground.receiver.wait(1)
    await playground.client.edit(ts, "two")
    await playground.receiver.wait(2)
    await playground.client.delete(ts)
    _, changed, deleted = [payload["event"] for payload in await playground.receiver.wait(3)]
    assert changed["subtype"] == "message_changed"
    assert (changed["previous_message"]["text"], changed["message"]["text"]) == ("one", "two")
    assert (deleted["subtype"], deleted["deleted_ts"]) == ("message_deleted", ts)


async def test_the_app_hears_itself(start: StartPlayground) -> None:
    """The app's own posts and updates come back to it with its bot id, as Slack does it."""
    playground = await start(replace(QUICK, send_bot_events=True))
    ts = (await playground.web.chat_postMessage(channel=GENERAL, text="<@U0ORION> me"))["ts"]
    await playground.receiver.wait(1)
    await playground.web.chat_update(channel=GENERAL, ts=ts, text="again")
    posted, changed = [payload["event"] for payload in await playground.receiver.wait(2)]
    assert (posted["type"], posted["bot_id"]) == ("message", "B0ORION")
    assert (changed["subtype"], changed["message"]["bot_id"]) == ("message_changed", "B0ORION")


async def test_failures_are_retried_with_headers(start: StartPlayground) -> None:
    """A 500 and a late answer are each tried again: same event id and body, counted, with the reason."""
    playground = await start(QUICK)
    playground.receiver.answers += [Response(status_code=500), 0.6]
    await playground.client.say("hello")
    await playground.receiver.wait(3)
    headers = [headers for headers, _ in playground.receiver.requests]
    assert [header.get("x-slack-retry-num") for header in headers] == [None, "1", "2"]
    assert [header.get("x-slack-retry-reason") for header in headers] == [
        None,
        "http_error",
        "http_timeout",
    ]
    assert len({body for _, body in playground.receiver.requests}) == 1


async def test_three_retries_are_the_last(start: StartPlayground) -> None:
    """An app that never acknowledges gets four deliveries, all in the log."""
    playground = await start(QUICK)
    playground.receiver.answers += [Response(status_code=404)] * 10
    await playground.client.say("hello")
    await playground.receiver.wait(4)
    await asyncio.sleep(0.3)
    assert len(playground.receiver.requests) == 4
    log = await playground.client.deliveries()
    assert [(entry["attempt"], entry["status"], entry["reason"]) for entry in log] == [
        (attempt, 404, "http_error") for attempt in (3, 2, 1, 0)
    ]


async def test_no_retry_is_honoured(start: StartPlayground) -> None:
    """A failure with X-Slack-No-Retry is final."""
    playground = await start(QUICK)
    playground.receiver.answers.append(Response(status_code=500, headers={"X-Slack-No-Retry": "1"}))
    await playground.client.say("hello")
    await playground.receiver.wait(1)
    await asyncio.sleep(0.2)
    assert len(playground.receiver.requests) == 1


async def test_a_past_event_can_come_again(playground: Playground) -> None:
    """A redelivery repeats the body, with the retry header or without it."""
    await playground.client.say("hello")
    (payload,) = await playground.receiver.wait(1)
    await playground.client.redeliver(payload["event_id"], with_header=False)
    await playground.receiver.wait(2)
    assert "x-slack-retry-num" not in playground.receiver.requests[1][0]
    assert playground.receiver.payloads()[1] == payload


async def test_an_outage_loses_events(playground: Playground) -> None:
    """What happens while Slack is down is not replayed."""
    await playground.client.switches(outage=True)
    await playground.client.say("lost")
    await playground.client.switches(outage=False)
    ts = await playground.client.say("heard")
    (payload,) = await playground.receiver.wait(1)
    assert payload["event"]["ts"] == ts


async def test_a_pressed_button_is_a_block_action(playground: Playground) -> None:
    """The form's payload names the action, the person, the message and its thread."""
    root = await playground.client.say("root")
    await playground.receiver.wait(1)
    await playground.web.chat_postMessage(channel=GENERAL, text="x", thread_ts=root, blocks=BLOCKS)
    reply = await playground.client.wait_for_reply(root)
    assert (await playground.client.press(reply, "stop_run"))["ok"] is True
    assert (await playground.client.press(reply, "feedback", value="bad"))["ok"] is True
    _, stop, feedback = await playground.receiver.wait(3)
    assert stop["type"] == "block_actions"
    assert stop["actions"][0]["value"] == "r1"
    assert stop["user"]["id"] == YOU
    assert stop["container"]["thread_ts"] == stop["message"]["thread_ts"] == root
    assert stop["actions"][0]["block_id"] == stop["message"]["blocks"][0]["block_id"]
    assert (feedback["actions"][0]["type"], feedback["actions"][0]["value"]) == (
        "feedback_buttons",
        "bad",
    )
    with pytest.raises(FakeSlackError, match="action_not_found"):
        await playground.client.press(reply, "no_such_button")


async def test_a_failed_press_is_told_and_not_retried(start: StartPlayground) -> None:
    """The person sees the failure; Slack does not press again."""
    playground = await start(QUICK)
    ts = (await playground.web.chat_postMessage(channel=GENERAL, text="x", blocks=BLOCKS))["ts"]
    playground.receiver.answers.append(0.6)
    outcome = await playground.client.press({"channel": GENERAL, "ts": ts}, "stop_run")
    assert (outcome["ok"], outcome["reason"]) == (False, "http_timeout")
    await asyncio.sleep(0.2)
    assert len(playground.receiver.requests) == 1


async def test_the_response_url_answers_the_person(playground: Playground) -> None:
    """It posts an ephemeral message, replaces the original, and ends after five uses."""
    ts = (await playground.web.chat_postMessage(channel=GENERAL, text="x", blocks=BLOCKS))["ts"]
    await playground.client.press({"channel": GENERAL, "ts": ts}, "stop_run")
    (payload,) = await playground.receiver.wait(1)
    url = payload["response_url"]
    await playground.http.post(url, json={"text": "only you"})
    await playground.http.post(url, json={"text": "replaced", "replace_original": True})
    first, second = await playground.client.messages()
    assert (first["text"], first.get("blocks")) == ("replaced", None)
    assert (second["text"], second["ephemeral_to"]) == ("only you", YOU)
    statuses = [(await playground.http.post(url, json={"text": "x"})).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 404]


async def test_the_native_stop_needs_a_processing_session(playground: Playground) -> None:
    """Stop is refused outside `processing` and is an agent_session_stopped event within it."""
    root = await playground.client.say("root")
    await playground.receiver.wait(1)
    with pytest.raises(FakeSlackError, match="session_not_processing"):
        await playground.client.stop(root)
    await playground.web.agents_sessions_setStatus(
        channel_id=GENERAL, thread_ts=root, status="processing"
    )
    await playground.client.stop(root)
    event = (await playground.receiver.wait(2))[1]["event"]
    assert (event["type"], event["thread_ts"], event["user"]) == (
        "agent_session_stopped",
        root,
        YOU,
    )
