"""Slack's way in: the handler of the HTTP route, or a socket."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pydantic import SecretStr

from app.log import get_logger
from app.runs.intake import Intake
from app.slack.identity import BotIdentity
from app.slack.listeners import HttpAnswer, create_bolt_app, handle_http
from app.slack.own_keys import KeyDesk
from app.slack.socket_mode import open_socket_mode
from app.slack.verification import check_request

_log = get_logger(__name__)

EventHandler = Callable[[Mapping[str, str], bytes], Awaitable[HttpAnswer]]
"""Headers and body of a request to `/slack/events`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOptions:
    """What the way in needs of the settings."""

    signing_secret: SecretStr = field(repr=False)
    bot_token: SecretStr = field(repr=False)
    base_url: str
    app_token: SecretStr | None = field(default=None, repr=False)
    """With it Slack comes by a socket, and not by HTTP."""


@asynccontextmanager
async def open_entry(
    options: EntryOptions,
    *,
    identity: Callable[[], BotIdentity | None],
    intake: Intake,
    keys: KeyDesk | None = None,
) -> AsyncIterator[EventHandler | None]:
    """Events and presses reach `intake`, people's own keys `keys`, while the block runs; yields None when they come by a socket."""
    secret = options.signing_secret.get_secret_value()
    bolt = create_bolt_app(
        signing_secret=secret,
        bot_token=options.bot_token.get_secret_value(),
        base_url=options.base_url,
        identity=identity,
        intake=intake,
        keys=keys,
    )
    if options.app_token is not None:
        app_token = options.app_token.get_secret_value()
        async with open_socket_mode(bolt, app_token=app_token, base_url=options.base_url):
            _log.info("slack.connected", mode="socket")
            yield None
        return

    async def handle(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        rejection = check_request(
            headers=headers, body=body, signing_secret=secret, now=time.time()
        )
        if rejection is not None:
            _log.warning("event.rejected", status=rejection.status, reason=rejection.error)
            return HttpAnswer(
                status=rejection.status,
                headers={"content-type": "application/json"},
                body=json.dumps({"error": rejection.error}),
            )
        return await handle_http(bolt, headers=headers, body=body)

    yield handle
