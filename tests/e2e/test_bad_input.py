"""Whatever arrives at the door or stands in a message: an answer or a refusal, never a stack."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Mapping

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import YOU, JsonObject
from sandbox_runtime.task_group import open_task_group
from tests.e2e.harness import Stage, has_retry_button, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

MEBIBYTE = 1024 * 1024
THREAD_MESSAGES = 1000
ODD_VALUES: tuple[object, ...] = (None, 7, [], {}, ["x"])


def _signed(
    stage: Stage, body: bytes, *, at: float | None = None, kind: str = "application/json"
) -> dict[str, str]:
    """Source: Slack, "Verifying requests from Slack", version v0, read 2026-11."""
    timestamp = str(int(time.time() if at is None else at))
    base = b"v0:" + timestamp.encode() + b":" + body
    secret = stage.world.config.signing_secret.encode()
    return {
        "content-type": kind,
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": "v0=" + hmac.new(secret, base, hashlib.sha256).hexdigest(),
    }


def _event(**changes: object) -> JsonObject:
    event = {
        "type": "app_mention",
        "user": YOU,
        "text": "<@U0ORION> hi",
        "ts": "1700000000.000100",
        "channel": "C0GENERAL",
        "event_ts": "1700000000.000100",
    }
    return {
        "type": "event_callback",
        "team_id": "T0PLAYGROUND",
        "api_app_id": "A0ORION",
        "event_id": "Ev1",
        "event_time": 1_700_000_000,
        "event": event | changes,
        "authorizations": [{"team_id": "T0PLAYGROUND", "user_id": "U0ORION", "is_bot": True}],
    }


async def _post(stage: Stage, body: bytes, headers: Mapping[str, str | bytes]) -> int:
    raw = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in headers.items()
    ]
    answer = await stage.world.http.post(
        f"{stage.orion.url}/slack/events", content=body, headers=raw
    )
    assert "Traceback" not in answer.text
    return answer.status_code


async def test_forged_and_stale_signatures_are_refused(shared: Stage) -> None:
    """Wrong, missing, old, future, non-ASCII and non-numeric ones: 401, and nothing is run."""
    body = json.dumps(_event(ts="1700000001.000100")).encode()
    good = _signed(shared, body)
    bad: list[dict[str, str | bytes]] = [
        {**good, "x-slack-signature": "v0=" + "0" * 64},
        {**good, "x-slack-signature": good["x-slack-signature"].upper()},
        {**good, "x-slack-signature": "v0=é".encode("latin-1")},
        {**good, "x-slack-signature": "v0=ключ".encode()},
        {**good, "x-slack-signature": ""},
        {**good, "x-slack-request-timestamp": "soon"},
        {**good, "x-slack-request-timestamp": "-1"},
        {**good, "x-slack-request-timestamp": "9" * 40},
        {**good, "x-slack-request-timestamp": "१७०००००००००".encode()},
        dict(_signed(shared, body, at=time.time() - 3600)),
        dict(_signed(shared, body, at=time.time() + 3600)),
        dict(_signed(shared, body + b" ")),
        {"content-type": "application/json"},
        {name: value for name, value in good.items() if name != "x-slack-signature"},
        {name: value for name, value in good.items() if name != "x-slack-request-timestamp"},
    ]
    assert [await _post(shared, body, headers) for headers in bad] == [401] * len(bad)
    assert await shared.orion.run(shared.run_id("1700000001.000100")) is None


async def test_bodies_that_are_no_events_are_refused(shared: Stage) -> None:
    """Signed, but not JSON, cut off, too large, too deep, of the wrong shape: 4xx."""
    whole = json.dumps(_event()).encode()
    bodies = [
        *(b"", b"null", b"[]", b"1", b'"text"', b"{", b"not json", whole[:-20], b"\xff\xfe{}"),
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"type": NaN}', b'{"type": 7}', b"{}"),
        b'{"type":"event_callback"}',
        b'{"type":"event_callback","event":[]}',
        b'{"type":"event_callback","event":{"type":7}}',
        json.dumps(_event() | {"authorizations": "all of them"}).encode(),
        json.dumps(_event() | {"team_id": ["T"]}).encode(),
        json.dumps(_event() | {"padding": "x" * 5 * MEBIBYTE}).encode(),
        json.dumps(_event(text="\ud800")).encode(),
    ]
    statuses = [await _post(shared, body, _signed(shared, body)) for body in bodies]
    assert all(400 <= status < 500 for status in statuses), statuses


async def test_events_of_odd_content_are_acknowledged_or_refused(shared: Stage) -> None:
    """Unknown events, and known ones with fields of the wrong kind: never a 5xx, which Slack would repeat."""
    odd: list[JsonObject] = [
        _event(type="reaction_added"),
        _event(type="a_new_event_of_2027"),
        _event(type="message", subtype="message_changed"),
        _event(type="agent_session_stopped"),
        *(
            _event(**{"type": "message", "text": "not addressed", name: value})
            for name in ("user", "text", "ts", "channel", "files", "bot_id", "thread_ts")
            for value in ODD_VALUES
        ),
        {"type": "app_rate_limited", "team_id": "T0PLAYGROUND", "minute_rate_limited": 1},
        {"type": "block_actions", "actions": []},
        {"type": "view_submission"},
    ]
    for payload in odd:
        body = json.dumps(payload).encode()
        assert await _post(shared, body, _signed(shared, body)) in {200, 400}, payload


async def test_other_paths_and_methods_do_not_exist(shared: Stage) -> None:
    """GET on the events path is no 5xx; everything unknown is 404; nothing describes the API."""
    http = shared.world.http
    assert (await http.get(f"{shared.orion.url}/slack/events")).status_code in {404, 405}
    for path in (
        "/",
        "/docs",
        "/openapi.json",
        "/redoc",
        "/admin",
        "/slack",
        "/../etc/passwd",
        "/%00",
    ):
        assert (await http.get(f"{shared.orion.url}{path}")).status_code == 404, path
    assert (await http.get(f"{shared.orion.url}/healthz")).text == "ok"
    # Nothing reaches the broker there but clouds' sandboxes, and there are none.
    broker = f"{shared.orion.url}/broker/anthropic/v1/messages"
    assert (await http.post(broker, json={"model": "claude-sonnet-5-5"})).status_code == 404


async def test_an_upload_that_breaks_off_is_no_error_of_ours(shared: Stage) -> None:
    """A client that goes away in the middle of its body leaves no stack in the log."""
    _, writer = await asyncio.open_connection("127.0.0.1", shared.orion.port)
    writer.write(b"POST /slack/events HTTP/1.1\r\nhost: orion\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.3)
    assert shared.orion.tracebacks() == []


async def test_nothing_but_a_mention_is_no_question(shared: Stage) -> None:
    """An empty mention, or one with only invisible characters, is refused to the asker alone, without a sandbox."""
    for text in ("@Orion", "@Orion \u200b\u2060\ufeff ", "@Orion @Orion"):
        ts = await shared.client.say(text)
        record = await shared.ended(ts)
        assert (record.result.error_code, record.attempt) == (ErrorCode.REQUEST_INVALID, 0)
        assert await shared.client.replies(ts) == []
        shown = [m for m in await shared.client.messages() if m["is_bot"] and m["ts"] > ts]
        assert [message["ephemeral_to"] for message in shown] == [YOU]
        assert "no question in it" in shown[0]["text"]
    ts = await shared.client.say("@Orion use anthropic:")
    assert (await shared.ended(ts)).result.detail == (
        "your message has no question in it; to be answered so from now on, write settings agent=anthropic"
    )


async def test_what_a_word_for_orion_lacks_is_told_to_who_wrote_it(shared: Stage) -> None:
    """`mute` at the top of a channel, `forget` alone: to the asker alone, without an agent. What is refused later has no Retry either."""
    for text, told in (("@Orion mute", "as a reply in a thread"), ("@Orion forget", "the number")):
        ts = await shared.client.say(text)
        record = await shared.ended(ts)
        assert (record.result.error_code, record.attempt) == (ErrorCode.REQUEST_INVALID, 0)
        assert await shared.client.replies(ts) == []
        shown = [m for m in await shared.client.messages() if m["is_bot"] and m["ts"] > ts]
        assert [message["ephemeral_to"] for message in shown] == [YOU]
        assert told in shown[0]["text"]
    long = f"@Orion remember {'x' * 2000}"
    for text, told in (
        ("@Orion forget 99", "by the number 99"),
        (long, "more than I can remember"),
        ("@Orion branch=main hello", "needs its repository"),
    ):
        message = await shared.answer(await shared.client.say(text))
        assert told in text_of(message)
        assert not has_retry_button(message)


async def test_texts_of_all_kinds_reach_the_model_as_they_were_meant(shared: Stage) -> None:
    """40,000 characters, right-to-left, code fences, quotes, and Slack's control sequences, spelled out."""
    texts = {
        "long " + "x" * 39_900: "x" * 39_900,
        "مرحبا كيف الحال؟ \u202eabc": "مرحبا كيف الحال؟ \u202eabc",
        "```python\nif a < b && c:\n    print('$(rm -rf /)')\n```": "if a < b && c:\n    print('$(rm -rf /)')",
        'tell <!channel> & <@U0SAM> in <#C0RANDOM|random>; "; DROP TABLE runs; --': '@channel & @Sam in #random; "; DROP TABLE runs; --',
    }
    async with open_task_group() as group:
        asked = {text: group.create_task(shared.ask(text[:40_000], channel=YOU)) for text in texts}
    requests = [str(request["body"]["messages"]) for request in await shared.world.model_requests()]
    for text, meant in texts.items():
        assert "You wrote" in asked[text].result()
        assert any(repr(meant)[1:-1] in request or meant in request for request in requests), text
    answer = asked[next(text for text in texts if "<!channel>" in text)].result()
    assert "<!channel>" not in answer


@pytest.mark.long
async def test_a_thread_of_a_thousand_messages_is_answered(shared: Stage) -> None:
    """Its root and its newest messages reach the model; what lies between may be left out, and is said to be."""
    fake_slack = shared.world.fake_slack
    url, fake_slack.events_url = fake_slack.events_url, None
    try:
        say = fake_slack.workspace.say
        root = say(user=YOU, channel_ref="random", typed="ROOT of the long thread")
        for number in range(THREAD_MESSAGES):
            text = f"message {number} " + "word " * 60
            say(user=YOU, channel_ref="random", typed=text, thread_ts=root.ts)
        await asyncio.sleep(0.5)
    finally:
        fake_slack.events_url = url
    answer = await shared.ask("@Orion summarise this", channel="random", thread_ts=root.ts)
    assert "You wrote" in answer
    request = (await shared.world.model_requests())[-1]
    seen = str(request["body"]["messages"])
    assert "ROOT of the long thread" in seen
    assert f"message {THREAD_MESSAGES - 1} " in seen
    assert "left out" in seen
    assert "summarise this" in str(request["body"]["messages"][-1])


async def test_the_log_holds_no_stack_and_no_text_of_people(shared: Stage) -> None:
    """After bad input of all kinds in this session."""
    ts = await shared.client.say("@Orion zanzibar-7731 run: exit 3")
    assert "exit code 3" in text_of(await shared.answer(ts))
    assert "Traceback" not in shared.orion.log
    assert "zanzibar-7731" not in shared.orion.log
    assert ErrorCode.INTERNAL not in shared.orion.log
