"""The ways from Slack to the listeners: signed HTTP requests, or else a websocket (`socket_mode`)."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pydantic import SecretStr
from slack_bolt.async_app import AsyncApp, AsyncBoltRequest

from app.aio import open_task_group
from app.log import get_logger
from app.runs.intake import Intake
from app.slack.api import BotIdentity
from app.slack.hearing import Hearing
from app.slack.listeners import NO_SURFACES, Surfaces, create_bolt_app
from app.slack.payloads import asks_nothing
from app.slack.signature import check_request, media_type
from app.slack.socket_mode import OnAck, count_nothing, open_socket_mode

_log = get_logger(__name__)


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
    hearing: Hearing | None = None,
) -> AsyncIterator[EventHandler | None]:
    """Lets what Slack tells reach `intake` and `surfaces` while the block runs; yields None when it comes by a socket.

    `on_ack` hears of each delivery by a socket, as the HTTP route hears of its own; `hearing` of when events are heard.
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
            hearing=hearing,
        )
        if options.app_token is not None:
            app_token = options.app_token.get_secret_value()
            async with open_socket_mode(
                bolt,
                app_token=app_token,
                base_url=options.base_url,
                on_ack=on_ack,
                hearing=hearing,
            ):
                _log.info("slack.connected", mode="socket")
                yield None
            return

        async def handle(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            return await handle_http(bolt, signing_secret=secret, headers=headers, body=body)

        if hearing is not None:
            hearing.begin()
        yield handle
