"""Slack's way in for installations that it cannot reach: a websocket, which is watched, because it can go deaf."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import ClientError
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.adapter.socket_mode.async_internals import run_async_bolt_app, send_async_response
from slack_bolt.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from typing_extensions import override

from app.aio import open_task_group
from app.log import get_logger
from app.slack.api import SlackRefusal, SlackUnreachable
from app.slack.connection import create_client
from app.slack.hearing import DEAF_AFTER_S, Hearing

QUIET_AFTER_S: Final = 600.0
"""A socket that answers pings may deliver nothing all the same; one that has delivered nothing for so long is replaced."""
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
    quiet_after_s: float = QUIET_AFTER_S,
    on_ack: OnAck = count_nothing,
    hearing: Hearing | None = None,
) -> AsyncIterator[None]:
    """Events flow into the app while inside. Reconnects by itself. `hearing` is told of each connection, and of all that comes.

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
    hearing = hearing or Hearing(lambda: datetime.now(UTC))
    _tell(hearing, client)
    try:
        await _connect(handler)
        opened_s = time.time()
        hearing.watch(lambda: max(opened_s, client.last_ping_pong_time or 0.0))
        closing = asyncio.Event()
        async with open_task_group() as group:
            group.create_task(
                _watch(
                    client,
                    hearing,
                    closing,
                    deaf_after_s=deaf_after_s,
                    quiet_after_s=quiet_after_s,
                ),
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


def _tell(hearing: Hearing, client: SocketModeClient) -> None:
    async def listen(
        _client: AsyncBaseSocketModeClient, message: Mapping[str, Any], _raw: str | None
    ) -> None:
        hearing.note()
        # The first frame of each connection. Source: Slack, Socket Mode, read 2026-11.
        if message.get("type") == "hello":
            hearing.begin()

    client.message_listeners.append(listen)


async def _connect(handler: AsyncSocketModeHandler) -> None:
    client = handler.client
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            # `connect` alone would try for ever, whatever Slack says of the token.
            client.wss_uri = await client.issue_new_wss_url()
            await client.connect()  # type: ignore[no-untyped-call]  # the SDK has no annotation here
    except SlackApiError as exc:
        raise SlackRefusal(str(exc.response.get("error", "unknown"))) from exc
    except Exception as exc:  # the SDK's own mistakes, too: of an answer that is no JSON, say
        raise SlackUnreachable(type(exc).__name__) from exc


async def _watch(
    client: SocketModeClient,
    hearing: Hearing,
    closing: asyncio.Event,
    *,
    deaf_after_s: float,
    quiet_after_s: float,
) -> None:
    log = get_logger(__name__)
    heard_at = asked_at = time.time()
    while not closing.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(min(deaf_after_s, quiet_after_s) / 6):
                await closing.wait()
        if closing.is_set():
            return
        heard_at = max(heard_at, client.last_ping_pong_time or 0.0)
        silent_s = time.time() - heard_at
        if silent_s >= deaf_after_s:
            log.warning("slack.socket_deaf", silent_s=round(silent_s))
        elif min(hearing.silent_s, time.time() - asked_at) >= quiet_after_s:
            # It stays unknown whether anything was said: what is looked through then begins where something was heard.
            log.info("slack.socket_quiet", silent_s=round(hearing.silent_s))
            asked_at = time.time()
        else:
            continue
        heard_at = time.time()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await client.connect_to_new_endpoint(force=True)
        except Exception as exc:  # noqa: BLE001 - must outlive an answer that the SDK cannot read; it is tried again
            log.warning("slack.socket_reconnect_failed", error=type(exc).__name__)
