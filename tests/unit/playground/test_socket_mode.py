"""Socket Mode with the real Bolt handler on the other end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncAck, AsyncApp
from slack_sdk.web.async_client import AsyncWebClient
from websockets.asyncio.client import ClientConnection, connect

from app.playground.slack.types import GENERAL, FakeSlackConfig
from tests.waiting import until

if TYPE_CHECKING:
    from tests.unit.playground.conftest import Playground, StartPlayground

WAIT_S = 10.0
DEFAULTS = FakeSlackConfig()


class Heard:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.actions: list[dict[str, Any]] = []

    async def wait(self, events: int = 0, actions: int = 0) -> None:
        await until(lambda: len(self.events) >= events and len(self.actions) >= actions)


@asynccontextmanager
async def _bolt(playground: Playground) -> AsyncIterator[Heard]:
    heard = Heard()
    web = AsyncWebClient(token=DEFAULTS.bot_token, base_url=f"{playground.url}/api/")
    app = AsyncApp(client=web, signing_secret=DEFAULTS.signing_secret, process_before_response=True)

    async def on_event(event: dict[str, Any]) -> None:
        heard.events.append(event)

    async def on_action(ack: AsyncAck, action: dict[str, Any]) -> None:
        await ack()
        heard.actions.append(action)

    app.event("message")(on_event)
    app.event("app_mention")(on_event)
    app.action("go")(on_action)
    handler = AsyncSocketModeHandler(app, DEFAULTS.app_token, ping_interval=0.2)
    await handler.connect_async()  # type: ignore[no-untyped-call]  # slack_bolt does not annotate it
    try:
        await until(lambda: playground.fake_slack.sockets.count > 0)
        yield heard
    finally:
        await handler.close_async()  # type: ignore[no-untyped-call]  # slack_bolt does not annotate it


async def test_bolt_receives_events_and_actions_over_its_socket(playground: Playground) -> None:
    """With a socket connected nothing goes over HTTP, and Bolt's acknowledgements count."""
    async with _bolt(playground) as heard:
        await playground.client.say("@Orion hello")
        await heard.wait(events=2)
        button = {"type": "button", "action_id": "go", "text": {"type": "plain_text", "text": "Go"}}
        blocks = [{"type": "actions", "elements": [button]}]
        ts = (await playground.web.chat_postMessage(channel=GENERAL, text="x", blocks=blocks))["ts"]
        outcome = await playground.client.press({"channel": GENERAL, "ts": ts}, "go")
        assert outcome["ok"] is True
        await heard.wait(actions=1)
        log = await playground.client.deliveries()
    assert {entry["via"] for entry in log} == {"socket"}
    assert {entry["status"] for entry in log} == {200}
    assert playground.receiver.requests == []


async def test_bolt_reconnects_when_told(playground: Playground) -> None:
    """After a refresh the handler opens a new socket and goes on hearing events."""
    async with _bolt(playground) as heard:
        assert await playground.client.disconnect_sockets("refresh_requested") == 1
        await until(lambda: playground.fake_slack.sockets.count > 0)
        await playground.client.say("after")
        await heard.wait(events=1)
    assert heard.events[0]["text"] == "after"


async def test_an_unacknowledged_envelope_comes_again(start: StartPlayground) -> None:
    """Without an acknowledgement in time the event is redelivered in a new envelope that says so."""
    config = FakeSlackConfig(ack_timeout_s=0.2, retry_delays_s=(0.0,), send_bot_events=False)
    playground = await start(config)
    async with connect(await _socket_url(playground), proxy=None) as socket:
        hello = await _frame(socket)
        assert hello["type"] == "hello"
        await playground.client.say("hello")
        first, second = await _frame(socket), await _frame(socket)
        assert first["payload"] == second["payload"]
        assert first["envelope_id"] != second["envelope_id"]
        assert (first["retry_attempt"], second["retry_attempt"]) == (0, 1)
        assert second["retry_reason"] == "timeout"


async def test_each_event_goes_to_one_of_the_sockets(playground: Playground) -> None:
    """Two sockets share the events; a ticket opens one socket only."""
    url = await _socket_url(playground)
    async with (
        connect(url, proxy=None) as one,
        connect(await _socket_url(playground), proxy=None) as two,
    ):
        await _frame(one)
        await _frame(two)
        await playground.client.say("a")
        await playground.client.say("b")
        texts = {
            (await _frame(one))["payload"]["event"]["text"],
            (await _frame(two))["payload"]["event"]["text"],
        }
        assert texts == {"a", "b"}
        async with connect(url, proxy=None) as used:
            await used.wait_closed()
            assert used.close_code == 1008


async def test_only_an_app_token_opens_a_socket(playground: Playground) -> None:
    """The bot token gets no address."""
    headers = {"Authorization": "Bearer xoxb-playground-bot"}
    answer: httpx.Response = await playground.http.post(
        "/api/apps.connections.open", headers=headers
    )
    assert answer.json()["error"] == "not_allowed_token_type"


async def _socket_url(playground: Playground) -> str:
    opened = await playground.web.apps_connections_open(app_token=DEFAULTS.app_token)
    return str(opened["url"])


async def _frame(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        frame: dict[str, Any] = json.loads(await socket.recv())
    return frame


async def test_a_deaf_socket_delivers_nothing(start: StartPlayground) -> None:
    """It stays open; what comes over the next one is delivered, with what was tried in vain before."""
    config = FakeSlackConfig(
        rate_limits="off", ack_timeout_s=0.3, retry_delays_s=(0.3,) * 30, send_bot_events=False
    )
    playground = await start(config)
    async with _bolt(playground) as heard:
        assert playground.fake_slack.sockets.deafen() == 1
        await playground.client.say("into the void")
        await until(lambda: len(playground.fake_slack.deliverer.log()) > 0)
        assert (heard.events, playground.fake_slack.sockets.count) == ([], 1)
        await playground.fake_slack.sockets.disconnect("refresh_requested")
        await heard.wait(events=1)
