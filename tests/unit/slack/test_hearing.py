"""Since when this process hears, by Slack's clock: over HTTP, over a socket that closes or goes deaf, and where the database is sick."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import SecretStr
from slack_bolt.async_app import AsyncApp

from app.runs.testing import RunRequest, run_id_for
from app.slack.connection import SlackConnection
from app.slack.hearing import Hearing
from app.slack.socket_mode import open_socket_mode
from app.slack.transport import EntryOptions, open_entry
from tests.unit.slack.building import (
    IDENTITY,
    NOWHERE,
    RecordingIntake,
    deliver_json,
    make_app,
    mention,
)
from tests.unit.slack.conftest import SlackServer
from tests.unit.slack.socket_server import SocketServer, open_socket_server
from tests.waiting import until

SECOND = timedelta(seconds=1)


def _now() -> datetime:
    return datetime.now(UTC)


async def test_slacks_clock_counts(slack: SlackConnection, slack_server: SlackServer) -> None:
    """Whatever this machine's says: three hours ahead, before any answer the machine's own; scopes are told the same way."""
    assert abs(slack.hearing.now() - _now()) < SECOND
    assert slack.scopes == frozenset()
    ahead = _now() + timedelta(hours=3)
    slack_server.headers = {
        "Date": format_datetime(ahead, usegmt=True),
        "x-oauth-scopes": "chat:write, im:read",
    }
    await slack.identify()
    slack.hearing.begin()
    assert slack.hearing.since is not None
    assert abs(slack.hearing.since - ahead) < 2 * SECOND
    assert abs(slack.hearing.until - ahead) < 2 * SECOND
    assert slack.scopes == {"chat:write", "im:read"}
    slack_server.headers = {"Date": "yesterday"}
    await slack.identify()
    assert abs(slack.hearing.now() - ahead) < 3 * SECOND


@pytest.mark.parametrize(
    ("since_s", "waited_s", "missed_s"),
    [(5, 60, 60), (5, 7, 0), (100, 60, 0), (11, 12, 0), (8, 12, 12)],
)
async def test_what_slack_tells_again(
    intake: RecordingIntake, since_s: int, waited_s: int, missed_s: int
) -> None:
    """It says how late it is, where nobody heard when it was said; Slack's clock may be three seconds off, and a start may take some."""
    now = datetime.now(UTC).replace(microsecond=0)
    moments = [now - timedelta(seconds=since_s)]
    hearing = Hearing(lambda: moments[-1])
    hearing.begin()
    moments.append(now)
    said_at = now - timedelta(seconds=waited_s)
    event = mention(ts=f"{said_at.timestamp():.6f}")
    assert (await deliver_json(make_app(intake, hearing=hearing), event))[0] == 200
    (request,) = intake.heard
    assert isinstance(request, RunRequest)
    assert request.late_s == missed_s


async def test_what_was_taken_back_slack_may_tell_again(intake: RecordingIntake) -> None:
    """While nobody heard: its question, and the stop behind it, which comes as late."""
    hearing = Hearing(_now)
    app = make_app(intake, hearing=hearing)
    withdrawn, other = (mention(ts=f"1800000000.{number:06}") for number in (100, 200))
    hearing.withdraw(run_id_for(team="T1", channel="C1", message_ts="1800000000.000100"))
    for event in (withdrawn, other):
        assert (await deliver_json(app, event))[0] == 200
    (request,) = intake.heard
    assert isinstance(request, RunRequest)
    assert request.message_ts == "1800000000.000200"


async def test_over_http_it_hears_from_the_start(intake: RecordingIntake) -> None:
    hearing = Hearing(_now)
    options = EntryOptions(
        signing_secret=SecretStr("s"), bot_token=SecretStr("xoxb-1"), base_url=NOWHERE
    )
    assert (hearing.since, hearing.unanswered_s) == (None, None)
    entry = open_entry(options, identity=lambda: IDENTITY, intake=intake, hearing=hearing)
    async with entry:
        assert hearing.since is not None
        assert _now() - hearing.until < SECOND


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [(OSError("disk full"), True), (TimeoutError(), True), (ValueError("a bug"), False)],
)
async def test_what_was_not_durable_may_be_lost(
    intake: RecordingIntake, error: Exception, *, is_lost: bool
) -> None:
    """Slack gives up after its third attempt; what fails each time is not looked for again and again."""
    hearing = Hearing(_now)
    app = make_app(intake, hearing=hearing)
    intake.error = error
    assert (await deliver_json(app, mention()))[0] == 500
    assert (hearing.since is not None) == is_lost


@pytest.fixture
def server_bolt(intake: RecordingIntake) -> AsyncApp:
    return make_app(intake)


async def _connected(hearing: Hearing, server: SocketServer, count: int) -> datetime:
    await until(lambda: len(server.sockets) >= count)
    await hearing.change(within_s=9)
    assert hearing.since is not None
    return hearing.since


async def test_a_new_socket_hears_anew(server_bolt: AsyncApp) -> None:
    """After one was closed, and after one went deaf: each connection is a beginning."""
    hearing = Hearing(_now)
    async with (
        open_socket_server() as server,
        open_socket_mode(
            server_bolt,
            app_token="xapp-1",
            base_url=server.url,
            ping_interval_s=0.2,
            deaf_after_s=0.5,
            hearing=hearing,
        ),
    ):
        first = await _connected(hearing, server, 1)
        await server.sockets[0].close()
        second = await _connected(hearing, server, 2)
        assert second > first
        server.answers_pings = False
        assert await _connected(hearing, server, 3) > second
        # New sockets do not answer either: that shows, however often they are replaced.
        await until(lambda: (hearing.unanswered_s or 0) > 1.0)
        server.answers_pings = True
        await until(lambda: (hearing.unanswered_s or 9) < 0.5)


async def test_a_quiet_socket_is_replaced(server_bolt: AsyncApp) -> None:
    """It answers every ping, but nothing has come; meanwhile nothing is known to be heard, and what comes is a sign."""
    hearing = Hearing(_now)
    async with (
        open_socket_server() as server,
        open_socket_mode(
            server_bolt,
            app_token="xapp-1",
            base_url=server.url,
            ping_interval_s=5,
            quiet_after_s=1.0,
            hearing=hearing,
        ),
    ):
        first = await _connected(hearing, server, 1)
        heard = hearing.until
        await until(lambda: hearing.silent_s > 0.5)
        assert hearing.until - heard < SECOND / 4
        await server.send("e1", mention())
        await until(lambda: hearing.silent_s < 0.5)
        assert len(server.sockets) == 1
        assert await _connected(hearing, server, 2) > first


def test_a_deaf_socket_is_told() -> None:
    """For as long as it answers nothing; over HTTP there is none."""
    hearing = Hearing(_now)
    assert "over HTTP" in hearing.probe()
    hearing.watch(lambda: time.time() - 5)
    assert hearing.probe() == "Slack's socket answered 5 s ago"
    hearing.watch(lambda: time.time() - 61)
    with pytest.raises(OSError, match="answered nothing for 61 s"):
        hearing.probe()
