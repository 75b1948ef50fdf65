"""The two ways from Slack to the listeners: signed HTTP requests, and a websocket for installations that Slack cannot reach.

The websocket is watched, because it can go deaf.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from aiohttp import ClientError
from pydantic import SecretStr
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.adapter.socket_mode.async_internals import run_async_bolt_app, send_async_response
from slack_bolt.async_app import AsyncApp, AsyncBoltRequest
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from typing_extensions import override

from app.aio import open_task_group
from app.log import get_logger
from app.runs.intake import Intake
from app.slack.api import BotIdentity, SlackRefusal, SlackUnreachable
from app.slack.connection import create_client
from app.slack.listeners import NO_SURFACES, Surfaces, create_bolt_app
from app.slack.payloads import asks_nothing
from app.slack.signature import check_request, media_type

_log = get_logger(__name__)

DEAF_AFTER_S: Final = 60.0
"""The client pings every 10 s; a socket that answers none looks connected and delivers nothing."""
PING_INTERVAL_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 5.0


OnAck = Callable[[int, float], None]
"""Hears of a delivery how it was answered, as a status of HTTP, and after how many seconds."""


def count_nothing(status: int, seconds: float) -> None:
    """Counts no acknowledgement."""
    del status, seconds


class _Handler(AsyncSocketModeHandler):
    """Bolt's, which tells of each delivery how long it took; one without a 200 is not acknowledged, and delivered again."""

    on_ack: OnAck = staticmethod(count_nothing)

    @override
    async def handle(self, client: AsyncBaseSocketModeClient, req: SocketModeRequest) -> None:
        began_s, status = time.perf_counter(), 500
        try:
            response = await run_async_bolt_app(self.app, req)
            status = response.status
            await send_async_response(client, req, response, time.time())
        finally:
            self.on_ack(status, time.perf_counter() - began_s)


@asynccontextmanager
async def open_socket_mode(
    app: AsyncApp,
    *,
    app_token: str,
    base_url: str,
    ping_interval_s: float = PING_INTERVAL_S,
    deaf_after_s: float = DEAF_AFTER_S,
    on_ack: OnAck = count_nothing,
) -> AsyncIterator[None]:
    """Events flow into the app while inside. Reconnects by itself.

    Raises:
        SlackFault: no first connection: refused, or none within 20 s.
    """
    handler = _Handler(
        app,
        app_token,
        web_client=create_client(token=None, base_url=base_url, session=None),
        ping_interval=ping_interval_s,
    )
    handler.on_ack = on_ack
    client = handler.client
    try:
        await _connect(handler)
        closing = asyncio.Event()
        async with open_task_group() as group:
            group.create_task(
                _watch(client, closing, deaf_after_s=deaf_after_s),
                name="slack-socket-watch",
            )
            try:
                yield
            finally:
                closing.set()
    finally:
        # The client may hang on a dead socket.
        with suppress(TimeoutError, ClientError, OSError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await handler.client.close()  # type: ignore[no-untyped-call]  # the SDK has no annotation here


async def _connect(handler: AsyncSocketModeHandler) -> None:
    client = handler.client
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            # `connect` alone would try for ever, whatever Slack says of the token.
            client.wss_uri = await client.issue_new_wss_url()
            await client.connect()  # type: ignore[no-untyped-call]  # the SDK has no annotation here
    except SlackApiError as exc:
        raise SlackRefusal(str(exc.response.get("error", "unknown"))) from exc
    except (TimeoutError, ClientError, OSError) as exc:
        raise SlackUnreachable(type(exc).__name__) from exc


async def _watch(client: SocketModeClient, closing: asyncio.Event, *, deaf_after_s: float) -> None:
    log = get_logger(__name__)
    heard_at = time.time()
    while not closing.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(deaf_after_s / 6):
                await closing.wait()
        if closing.is_set():
            return
        heard_at = max(heard_at, client.last_ping_pong_time or 0.0)
        silent_s = time.time() - heard_at
        if silent_s < deaf_after_s:
            continue
        log.warning("slack.socket_deaf", silent_s=round(silent_s))
        heard_at = time.time()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await client.connect_to_new_endpoint(force=True)
        except (SlackApiError, ClientError, TimeoutError, OSError) as exc:
            log.warning("slack.socket_reconnect_failed", error=type(exc).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What Slack, or whoever says to be it, is answered."""

    status: int
    headers: Mapping[str, str]
    body: str


def refuse_http(
    *, signing_secret: str, headers: Mapping[str, str], body: bytes
) -> HttpAnswer | None:
    """Returns why a request is not taken for one of Slack's; None: it is one."""
    rejection = check_request(
        headers=headers, body=body, signing_secret=signing_secret, now=time.time()
    )
    if rejection is None:
        return None
    _log.warning("event.rejected", status=rejection.status, reason=rejection.error)
    return HttpAnswer(
        status=rejection.status,
        headers={"content-type": "application/json"},
        body=json.dumps({"error": rejection.error}),
    )


def answer_alone(
    options: "EntryOptions", *, headers: Mapping[str, str], body: bytes
) -> HttpAnswer | None:
    """Returns the answer to a request for which nothing is to be done: it is not Slack's, or asks nothing; None: something is."""
    secret = options.signing_secret.get_secret_value()
    refusal = refuse_http(signing_secret=secret, headers=headers, body=body)
    if refusal is not None or media_type(headers) != "application/json":
        return refusal
    is_nothing = asks_nothing(
        json.loads(body), allowed_bots=options.allowed_bots, follows_up=options.follows_up
    )
    return HttpAnswer(status=200, headers={}, body="") if is_nothing else None


async def handle_http(
    app: AsyncApp, *, signing_secret: str, headers: Mapping[str, str], body: bytes
) -> HttpAnswer:
    """Returns Bolt's answer to a request of Slack's, and why it is not taken to any other."""
    refusal = refuse_http(signing_secret=signing_secret, headers=headers, body=body)
    if refusal is not None:
        return refusal
    plain = {name.lower(): value for name, value in headers.items()}
    # Bolt compares the content type by case.
    request = AsyncBoltRequest(
        body=body.decode(), headers={**plain, "content-type": media_type(headers)}
    )
    response = await app.async_dispatch(request)
    return HttpAnswer(
        status=response.status,
        headers={name: value[0] for name, value in response.headers.items() if value},
        body=response.body,
    )


EventHandler = Callable[[Mapping[str, str], bytes], Awaitable[HttpAnswer]]
"""Headers and body of a request to `/slack/events`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOptions:
    signing_secret: SecretStr = field(repr=False)
    bot_token: SecretStr = field(repr=False)
    base_url: str
    app_token: SecretStr | None = field(default=None, repr=False)
    """With it Slack comes by a socket, and not by HTTP."""
    allowed_bots: Collection[str] = frozenset()
    """Of other apps whose posts may ask."""
    follows_up: bool = True
    """Somewhere replies without a mention are answered."""


@asynccontextmanager
async def open_entry(
    options: EntryOptions,
    *,
    identity: Callable[[], BotIdentity | None],
    intake: Intake,
    surfaces: Surfaces = NO_SURFACES,
    on_ack: OnAck = count_nothing,
) -> AsyncIterator[EventHandler | None]:
    """Lets what Slack tells reach `intake` and `surfaces` while the block runs; yields None when it comes by a socket.

    `on_ack` hears of each delivery by a socket, as the HTTP route hears of its own.
    """
    secret = options.signing_secret.get_secret_value()
    async with open_task_group() as group:
        bolt = create_bolt_app(
            bot_token=options.bot_token.get_secret_value(),
            base_url=options.base_url,
            identity=identity,
            intake=intake,
            surfaces=surfaces,
            allowed_bots=options.allowed_bots,
            group=group,
        )
        if options.app_token is not None:
            app_token = options.app_token.get_secret_value()
            async with open_socket_mode(
                bolt, app_token=app_token, base_url=options.base_url, on_ack=on_ack
            ):
                _log.info("slack.connected", mode="socket")
                yield None
            return

        async def handle(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            return await handle_http(bolt, signing_secret=secret, headers=headers, body=body)

        yield handle
