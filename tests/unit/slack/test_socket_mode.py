"""The real Socket Mode client against a websocket server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from slack_bolt.async_app import AsyncApp

from app.runs.testing import RunRequest
from app.slack.api import BotIdentity, SlackRefusal, SlackUnreachable
from app.slack.listeners import create_bolt_app
from app.slack.socket_mode import open_socket_mode
from tests.unit.slack.building import RecordingIntake
from tests.unit.slack.socket_server import SocketServer, open_socket_server
from tests.waiting import until

APP = "xapp-1"
BOT = "xoxb-1"
PAYLOAD = {
    "type": "event_callback",
    "team_id": "T1",
    "event_id": "Ev1",
    "event": {
        "type": "app_mention",
        "user": "U1",
        "text": "<@UBOT> hi",
        "ts": "1800000000.000100",
        "channel": "C1",
    },
}


@pytest.fixture
async def server() -> AsyncIterator[SocketServer]:
    async with open_socket_server() as slack:
        yield slack


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
def bolt(server: SocketServer, intake: RecordingIntake) -> AsyncApp:
    identity = BotIdentity(team_id="T1", bot_id="BBOT", bot_user_id="UBOT")
    return create_bolt_app(
        bot_token=BOT,
        base_url=server.url,
        identity=lambda: identity,
        intake=intake,
    )


async def test_events_are_acknowledged_when_durable(
    server: SocketServer, bolt: AsyncApp, intake: RecordingIntake
) -> None:
    """A taken-in event is acknowledged, one that intake refused is not, a malformed one is dropped; each is measured."""
    told: list[int] = []
    async with open_socket_mode(
        bolt,
        app_token=APP,
        base_url=server.url,
        on_ack=lambda status, seconds: told.append(status if 0 < seconds < 3 else 0),
    ):
        await server.send("e1", PAYLOAD)
        await until(lambda: server.acknowledged == ["e1"])
        assert [request.text for request in intake.heard if isinstance(request, RunRequest)] == [
            "hi"
        ]
        intake.error = OSError("disk full")
        await server.send("e2", PAYLOAD)
        await server.send("e3", {"type": "event_callback", "event": {"type": "message", "text": 5}})
        await until(lambda: "e3" in server.acknowledged)
        assert server.acknowledged == ["e1", "e3"]
        await until(lambda: len(told) == 3)
        assert sorted(told) == [200, 200, 500]


async def test_a_closed_socket_is_replaced(
    server: SocketServer, bolt: AsyncApp, intake: RecordingIntake
) -> None:
    """After Slack closes the socket, events arrive over a new one."""
    async with open_socket_mode(bolt, app_token=APP, base_url=server.url, ping_interval_s=0.2):
        await server.sockets[0].close()
        await until(lambda: len(server.sockets) > 1)
        await server.send("e1", PAYLOAD)
        await until(lambda: len(intake.heard) == 1)


async def test_a_deaf_socket_is_replaced(server: SocketServer, bolt: AsyncApp) -> None:
    """A socket that answers no ping is given up, though it looks connected."""
    server.answers_pings = False
    async with open_socket_mode(
        bolt, app_token=APP, base_url=server.url, ping_interval_s=5, deaf_after_s=0.5
    ):
        await until(lambda: len(server.sockets) > 1, timeout_s=9)


async def test_an_answer_that_the_sdk_cannot_read_ends_nothing(
    server: SocketServer, bolt: AsyncApp
) -> None:
    """A proxy's word in plain text, while a socket is to be replaced: it is when Slack is back."""
    server.answers_pings = False
    async with open_socket_mode(
        bolt, app_token=APP, base_url=server.url, ping_interval_s=5, deaf_after_s=0.5
    ):
        server.nonsense = True
        await asyncio.sleep(1.5)
        assert len(server.sockets) == 1
        server.nonsense = False
        await until(lambda: len(server.sockets) > 1, timeout_s=9)


async def test_such_an_answer_at_the_start_is_slack_that_cannot_be_reached(
    server: SocketServer, bolt: AsyncApp
) -> None:
    server.nonsense = True
    with pytest.raises(SlackUnreachable):
        async with open_socket_mode(bolt, app_token=APP, base_url=server.url):
            pass


async def test_a_refused_token_is_said_at_once(server: SocketServer, bolt: AsyncApp) -> None:
    """A wrong app token fails the start with Slack's word instead of trying for ever."""
    server.refusal = "invalid_auth"
    with pytest.raises(SlackRefusal, match="invalid_auth"):
        async with open_socket_mode(bolt, app_token=APP, base_url=server.url):
            pass
