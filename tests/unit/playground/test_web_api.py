"""The Web API over real HTTP, through the SDK the service uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.slack.types import COLLEAGUE, EXTERNAL, GENERAL, RANDOM, YOU, FakeSlackConfig

if TYPE_CHECKING:
    from tests.unit.playground.conftest import Playground, StartPlayground

DEFAULTS = FakeSlackConfig()
SECTION = {"type": "section", "text": {"type": "mrkdwn", "text": "hello"}}


async def _error(call: Awaitable[object]) -> str:
    with pytest.raises(SlackApiError) as caught:
        await call
    return str(caught.value.response["error"])


async def _post(playground: Playground, **fields: Any) -> str:
    answer = await playground.web.chat_postMessage(channel=GENERAL, **fields)
    return str(answer["ts"])


async def test_auth_test_names_the_bot(playground: Playground) -> None:
    """The token's owner is the bot user with its bot id."""
    answer = await playground.web.auth_test()
    assert (answer["user_id"], answer["bot_id"]) == ("U0ORION", "B0ORION")


@pytest.mark.parametrize(
    ("token", "error"),
    [
        (None, "not_authed"),
        ("xoxb-wrong", "invalid_auth"),
        ("xapp-playground-app", "not_allowed_token_type"),
    ],
)
async def test_a_wrong_token_is_refused(
    playground: Playground, token: str | None, error: str
) -> None:
    """Missing, unknown and app-level tokens each get Slack's own error."""
    web = AsyncWebClient(token=token, base_url=f"{playground.url}/api/")
    assert await _error(web.chat_postMessage(channel=GENERAL, text="x")) == error


async def test_an_unknown_method_is_named(playground: Playground) -> None:
    """What is not offered is unknown, as Slack says it."""
    assert await _error(playground.web.api_call("chat.scheduleMessage")) == "unknown_method"


async def test_a_missing_scope_is_named(start: StartPlayground) -> None:
    """Without chat:write a post says what is needed and what was provided."""
    playground = await start(FakeSlackConfig(scopes=frozenset({"users:read"})))
    with pytest.raises(SlackApiError) as caught:
        await playground.web.chat_postMessage(channel=GENERAL, text="x")
    assert caught.value.response["needed"] == "chat:write"
    assert caught.value.response["provided"] == "users:read"


async def test_all_three_dialects_reach_the_same_method(playground: Playground) -> None:
    """A JSON body, a form and a query string post the same message."""
    headers = {"Authorization": "Bearer xoxb-playground-bot"}
    fields = {"channel": GENERAL, "text": "same"}
    url = "/api/chat.postMessage"
    answers = [
        await playground.http.post(url, json=fields, headers=headers),
        await playground.http.post(url, data=fields, headers=headers),
        await playground.http.post(url, params=fields, headers=headers),
        await playground.http.get(url, params=fields, headers=headers),
    ]
    assert [answer.json()["message"]["text"] for answer in answers] == ["same"] * 4


async def test_a_long_post_is_truncated(playground: Playground) -> None:
    """Over 40,000 characters the post succeeds and the rest is gone."""
    ts = await _post(playground, text="x" * 40_001)
    history = await playground.web.conversations_history(channel=GENERAL, latest=ts, inclusive=True)
    assert len(history["messages"][0]["text"]) == 40_000


async def test_an_update_holds_4000_characters(playground: Playground) -> None:
    """4,000 pass, 4,001 are msg_too_long, and the message stays as it was."""
    ts = await _post(playground, text="before")
    await playground.web.chat_update(channel=GENERAL, ts=ts, text="x" * 4000)
    too_long = playground.web.chat_update(channel=GENERAL, ts=ts, text="x" * 4001)
    assert await _error(too_long) == "msg_too_long"


async def test_an_update_without_blocks_removes_them(playground: Playground) -> None:
    """A text-only update drops the blocks and labels the message as edited; one with blocks does not."""
    ts = await _post(playground, text="t", blocks=[SECTION])
    with_blocks = await playground.web.chat_update(
        channel=GENERAL, ts=ts, text="u", blocks=[SECTION]
    )
    assert with_blocks["message"]["blocks"][0]["type"] == "section"
    assert "edited" not in with_blocks["message"]
    text_only = await playground.web.chat_update(channel=GENERAL, ts=ts, text="v")
    assert "blocks" not in text_only["message"]
    assert "edited" in text_only["message"]


async def test_invalid_blocks_say_where(playground: Playground) -> None:
    """A refused block is named with its place in response_metadata."""
    with pytest.raises(SlackApiError) as caught:
        await playground.web.chat_postMessage(channel=GENERAL, text="x", blocks=[{"type": "nope"}])
    assert caught.value.response["error"] == "invalid_blocks"
    assert caught.value.response["response_metadata"]["messages"] == [
        "[ERROR] unsupported type: nope [json-pointer:/blocks/0/type]"
    ]


async def test_what_cannot_be_written_is_refused(playground: Playground) -> None:
    """Each refusal carries Slack's own word."""
    web = playground.web
    mine = await playground.client.say("hello")
    assert await _error(web.chat_postMessage(channel="C0NOWHERE", text="x")) == "channel_not_found"
    headers = {"Authorization": "Bearer xoxb-playground-bot"}
    empty = await playground.http.post(
        "/api/chat.postMessage", json={"channel": GENERAL}, headers=headers
    )
    assert empty.json()["error"] == "no_text"
    nowhere = web.chat_postMessage(channel=GENERAL, text="x", thread_ts="1.000001")
    assert await _error(nowhere) == "thread_not_found"
    assert (
        await _error(web.chat_update(channel=GENERAL, ts=mine, text="x")) == "cant_update_message"
    )
    assert await _error(web.chat_delete(channel=GENERAL, ts=mine)) == "cant_delete_message"
    assert await _error(web.chat_update(channel=GENERAL, ts="1.1", text="x")) == "message_not_found"
    both = web.chat_postMessage(channel=GENERAL, text="x", markdown_text="x")
    assert await _error(both) == "markdown_text_conflict"
    await playground.client.channel("general", bot_member=False)
    assert await _error(web.chat_postMessage(channel=GENERAL, text="x")) == "not_in_channel"
    await playground.client.channel("general", bot_member=True, archived=True)
    assert await _error(web.chat_postMessage(channel=GENERAL, text="x")) == "is_archived"


async def test_a_reply_is_no_thread_root(playground: Playground) -> None:
    """Only a root's ts opens a thread."""
    root = await playground.client.say("root")
    reply = await playground.client.say("reply", thread_ts=root)
    to_reply = playground.web.chat_postMessage(channel=GENERAL, text="x", thread_ts=reply)
    assert await _error(to_reply) == "thread_not_found"


async def test_a_deleted_message_is_gone(playground: Playground) -> None:
    """After chat.delete the message can be neither read nor updated."""
    ts = await _post(playground, text="x")
    await playground.web.chat_delete(channel=GENERAL, ts=ts)
    assert (
        await _error(playground.web.chat_update(channel=GENERAL, ts=ts, text="y"))
        == "message_not_found"
    )
    assert (
        await _error(playground.web.conversations_replies(channel=GENERAL, ts=ts))
        == "thread_not_found"
    )


async def test_metadata_comes_back_only_when_asked_for(playground: Playground) -> None:
    """conversations.replies leaves metadata out unless include_all_metadata is set."""
    root = await playground.client.say("root")
    metadata = {"event_type": "orion", "event_payload": {"run_id": "r1"}}
    await _post(playground, text="x", thread_ts=root, metadata=metadata)
    without = await playground.web.conversations_replies(channel=GENERAL, ts=root)
    assert "metadata" not in without["messages"][1]
    asked = await playground.web.conversations_replies(
        channel=GENERAL, ts=root, include_all_metadata=True
    )
    assert asked["messages"][1]["metadata"] == metadata


async def test_replies_page_through_a_thread(playground: Playground) -> None:
    """Pages hold every reply once, oldest first, each page led by the root."""
    root = await playground.client.say("root")
    sent = [await playground.client.say(str(number), thread_ts=root) for number in range(7)]
    seen: list[str] = []
    pages, cursor = 0, ""
    while pages == 0 or cursor:
        page = await playground.web.conversations_replies(
            channel=GENERAL, ts=root, limit=3, cursor=cursor
        )
        assert page["messages"][0]["ts"] == root
        seen += [message["ts"] for message in page["messages"][1:]]
        cursor = page["response_metadata"]["next_cursor"]
        assert page["has_more"] is bool(cursor)
        pages += 1
    assert seen == sent
    assert pages == 3


async def test_oldest_and_latest_bound_a_thread(playground: Playground) -> None:
    """Bounds exclude their own message unless inclusive; the root is always there."""
    root = await playground.client.say("root")
    a, b, c = [await playground.client.say(word, thread_ts=root) for word in "abc"]
    replies = playground.web.conversations_replies
    between = await replies(channel=GENERAL, ts=root, oldest=a, latest=c)
    assert [message["ts"] for message in between["messages"]] == [root, b]
    inclusive = await replies(channel=GENERAL, ts=root, oldest=a, latest=b, inclusive=True)
    assert [message["ts"] for message in inclusive["messages"]] == [root, a, b]


async def test_history_is_newest_first_without_replies(playground: Playground) -> None:
    """conversations.history shows roots with their reply count."""
    first = await playground.client.say("first")
    await playground.client.say("reply", thread_ts=first)
    second = await playground.client.say("second")
    history = await playground.web.conversations_history(channel=GENERAL, limit=1)
    assert [message["ts"] for message in history["messages"]] == [second]
    cursor = history["response_metadata"]["next_cursor"]
    older = await playground.web.conversations_history(channel=GENERAL, limit=1, cursor=cursor)
    assert [(message["ts"], message["reply_count"]) for message in older["messages"]] == [
        (first, 1)
    ]
    assert (
        await _error(playground.web.conversations_history(channel=GENERAL, cursor="?"))
        == "invalid_cursor"
    )


async def test_people_and_channels_can_be_read(playground: Playground) -> None:
    """users.info marks strangers; conversations.info marks direct messages; conversations.open finds them."""
    stranger = await playground.web.users_info(user=EXTERNAL)
    assert stranger["user"]["is_stranger"] is True
    assert (await playground.web.users_info(user=YOU))["user"]["is_stranger"] is False
    assert await _error(playground.web.users_info(user="U0NOBODY")) == "user_not_found"
    opened = await playground.web.conversations_open(users=COLLEAGUE)
    info = await playground.web.conversations_info(channel=opened["channel"]["id"])
    assert (info["channel"]["is_im"], info["channel"]["user"]) == (True, COLLEAGUE)


async def test_places_are_listed_by_their_kind(start: StartPlayground) -> None:
    """users.conversations tells where the bot is, in pages; each kind takes a scope of its own, archived ones are left out."""
    config = FakeSlackConfig(rate_limits="off", scopes=FakeSlackConfig().scopes - {"groups:read"})
    playground = await start(config)
    list_places = playground.web.users_conversations
    page = await list_places(types="public_channel,im", limit=2)
    assert [one["id"] for one in page["channels"]] == [GENERAL, RANDOM]
    cursor = page["response_metadata"]["next_cursor"]
    rest = await list_places(types="public_channel,im", limit=20, cursor=cursor)
    assert [one.get("is_im", False) for one in rest["channels"]] == [False, True, True, True]
    assert rest["response_metadata"]["next_cursor"] == ""
    await playground.client.channel("random", archived=True)
    await playground.client.channel("partners", bot_member=False)
    left = await list_places(types="public_channel", exclude_archived=True)
    assert [one["id"] for one in left["channels"]] == [GENERAL]
    assert await _error(list_places(types="private_channel")) == "missing_scope"
    assert await _error(list_places(types="everything")) == "invalid_types"
    assert "im:read" in left.headers["x-oauth-scopes"].split(",")


async def test_a_distributed_app_is_given_little(start: StartPlayground) -> None:
    """Fifteen messages, once a minute, however many it asks for."""
    playground = await start(FakeSlackConfig(is_distributed=True))
    for number in range(20):
        await playground.client.say(f"talk {number}")
    history = playground.web.conversations_history
    assert len((await history(channel=GENERAL, limit=200))["messages"]) == 15
    with pytest.raises(SlackApiError) as refused:
        await history(channel=GENERAL)
    assert refused.value.response.headers["Retry-After"] == "60"


async def test_what_was_said_before_stands_before(playground: Playground) -> None:
    """A message of an earlier moment is listed where it belongs."""
    workspace = playground.fake_slack.workspace
    now = await playground.client.say("now")
    early = workspace.say(user=YOU, channel_ref="general", typed="early", ts="1700000000.000100")
    history = await playground.web.conversations_history(channel=GENERAL)
    assert [one["ts"] for one in history["messages"]] == [now, early.ts]


async def test_an_ephemeral_message_is_for_one_person(playground: Playground) -> None:
    """It is no part of the thread for the API, and only its reader's page gets it."""
    await playground.web.chat_postEphemeral(channel=GENERAL, user=YOU, text="psst")
    assert [message["text"] for message in await playground.client.messages(user=YOU)] == ["psst"]
    assert await playground.client.messages(user=COLLEAGUE) == []
    assert (await playground.web.conversations_history(channel=GENERAL))["messages"] == []
    refused = playground.web.chat_postEphemeral(channel=GENERAL, user=EXTERNAL, text="psst")
    assert await _error(refused) == "user_not_in_channel"


@pytest.mark.parametrize(("field", "status"), [("text", 200), ("channel", 400)])
async def test_half_a_character_from_the_page(
    field: str, status: int, playground: Playground
) -> None:
    """JSON can escape half a surrogate pair; it becomes a question mark, not a failure of the server."""
    body = {"channel": '"general"', "text": '"hello"'} | {field: '"a\\ud800b"'}
    content = "{" + ", ".join(f'"{name}": {value}' for name, value in body.items()) + "}"
    headers = {"Content-Type": "application/json"}
    answer = await playground.http.post("/ui/messages", content=content, headers=headers)
    assert answer.status_code == status
    texts = [message["text"] for message in await playground.client.messages()]
    assert texts == (["a?b"] if field == "text" else [])


async def test_a_status_expires_and_a_post_clears_it(start: StartPlayground) -> None:
    """setStatus shows a line that ends by itself, or with the app's next post in the thread."""
    playground = await start(FakeSlackConfig(status_lifetime_s=0.4, send_bot_events=False))
    root = await playground.client.say("root")

    async def shown() -> str:
        params = {"channel": GENERAL, "thread_ts": root}
        answer = (await playground.http.get("/ui/messages", params=params)).json()
        return str(answer["statuses"][0]["status"])

    async def set_status() -> None:
        await playground.web.assistant_threads_setStatus(
            channel_id=GENERAL, thread_ts=root, status="is thinking"
        )

    await set_status()
    assert await shown() == "is thinking"
    await asyncio.sleep(0.5)
    assert await shown() == ""
    await set_status()
    assert await shown() == "is thinking"
    await _post(playground, text="x", thread_ts=root)
    assert await shown() == ""


async def test_a_reaction_is_added_once(playground: Playground) -> None:
    """The second identical reaction is already_reacted."""
    ts = await playground.client.say("x")
    await playground.web.reactions_add(channel=GENERAL, timestamp=ts, name="eyes")
    again = playground.web.reactions_add(channel=GENERAL, timestamp=ts, name="eyes")
    assert await _error(again) == "already_reacted"


async def test_a_file_is_uploaded_and_shared(playground: Playground) -> None:
    """files_upload_v2 ends in a message with the file, whose bytes need the bot's token."""
    root = await playground.client.say("root")
    await playground.web.files_upload_v2(
        channel=GENERAL, thread_ts=root, filename="a.txt", content="bytes", initial_comment="here"
    )
    (reply,) = await playground.client.replies(root)
    address = reply["files"][0]["url_private_download"]
    headers = {"Authorization": "Bearer xoxb-playground-bot"}
    assert (await playground.http.get(address, headers=headers)).text == "bytes"
    login = await playground.http.get(address)
    assert (login.status_code, login.headers["content-type"]) == (200, "text/html; charset=utf-8")


async def test_too_many_posts_are_rate_limited(start: StartPlayground) -> None:
    """With real limits the sixth post in a second is a 429 with Retry-After."""
    playground = await start(FakeSlackConfig(rate_limits="real", send_bot_events=False))

    async def post_many() -> None:
        for _ in range(20):
            await playground.web.chat_postMessage(channel=GENERAL, text="x")

    with pytest.raises(SlackApiError) as caught:
        await post_many()
    assert caught.value.response.status_code == 429
    assert int(caught.value.response.headers["Retry-After"]) >= 1
    assert len(await playground.client.messages()) >= 5


async def test_faults_happen_as_often_as_planned(playground: Playground) -> None:
    """A planned fault meets its method after `skip` calls, `times` times, and leaves others alone."""
    ts = await _post(playground, text="x")
    await playground.client.faults("chat.update", times=2, skip=1, status=503)
    statuses = []
    for _ in range(4):
        headers = {"Authorization": "Bearer xoxb-playground-bot"}
        body = {"channel": GENERAL, "ts": ts, "text": "y"}
        statuses.append(
            (await playground.http.post("/api/chat.update", json=body, headers=headers)).status_code
        )
    assert statuses == [200, 503, 503, 200]
    await playground.client.faults("chat.postMessage", error="channel_not_found")
    assert (
        await _error(playground.web.chat_postMessage(channel=GENERAL, text="x"))
        == "channel_not_found"
    )


async def test_a_post_can_take_effect_without_an_answer(playground: Playground) -> None:
    """drop_after_accept writes the message and cuts the connection; drop_before_accept writes nothing."""
    web = AsyncWebClient(
        token=DEFAULTS.bot_token, base_url=f"{playground.url}/api/", retry_handlers=[]
    )
    await playground.client.faults("chat.postMessage", drop_after_accept=True)
    with pytest.raises(aiohttp.ClientError):
        await web.chat_postMessage(channel=GENERAL, text="written")
    await playground.client.faults("chat.postMessage", drop_before_accept=True)
    with pytest.raises(aiohttp.ClientError):
        await web.chat_postMessage(channel=GENERAL, text="lost")
    assert [message["text"] for message in await playground.client.messages()] == ["written"]


async def test_the_switches_take_slack_away(playground: Playground) -> None:
    """A revoked token is token_revoked; an outage answers 503; both end."""
    await playground.client.switches(token_revoked=True)
    assert await _error(playground.web.auth_test()) == "token_revoked"
    await playground.client.switches(token_revoked=False, outage=True)
    down: httpx.Response = await playground.http.post("/api/auth.test")
    assert down.status_code == 503
    await playground.client.switches(outage=False)
    assert (await playground.web.auth_test())["ok"]


async def test_every_version_of_a_message_is_kept(playground: Playground) -> None:
    """The history of a message holds each text in order, with its author."""
    root = await playground.client.say("root")
    ts = await _post(playground, text="one", thread_ts=root)
    await playground.web.chat_update(channel=GENERAL, ts=ts, text="two")
    reply = await playground.client.wait_for_reply(root)
    versions = await playground.client.versions(reply)
    assert [(version["kind"], version["text"], version["by"]) for version in versions] == [
        ("posted", "one", "U0ORION"),
        ("changed", "two", "U0ORION"),
    ]
