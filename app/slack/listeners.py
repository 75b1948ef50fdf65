"""Slack's way in: parses what it sends, lets intake make it durable, and acknowledges; nothing else before the 200.

Over HTTP, or over a websocket (`socket_mode`).
"""

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import SecretStr
from slack_bolt.async_app import AsyncAck, AsyncApp, AsyncBoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.middleware.async_middleware import AsyncMiddleware
from slack_bolt.response import BoltResponse
from slack_sdk.web.async_client import AsyncWebClient
from typing_extensions import override

from app.log import get_logger
from app.runs.intake import Intake
from app.slack.actions import KEYS_ACTION, Feedback, parse_click
from app.slack.api import BotIdentity
from app.slack.fields import object_of, text_of
from app.slack.hearing import Hearing
from app.slack.key_modal import KEYS_VIEW, KeyModal
from app.slack.message_events import MessageEvents
from app.slack.modals import FEEDBACK_VIEW, FeedbackModal, Modal
from app.slack.payloads import Ignored, from_event, session_stopped
from app.slack.signature import bad_field, check_request, media_type
from app.slack.socket_mode import OnAck, count_nothing, open_socket_mode

_log = get_logger(__name__)

_HANDLED: Final = frozenset(
    {"event_callback", "block_actions", "url_verification", "view_submission"}
)
VIEWS: Final = (KEYS_VIEW, FEEDBACK_VIEW)
"""Of Orion's modals, by their callback ids."""
_ROUTINE: Final = frozenset({"own_message", "subtype", "not_addressed", "unchanged"})
"""Every message of a busy channel, and each of Orion's own edits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What Slack, or whoever says to be it, is answered."""

    status: int
    headers: Mapping[str, str]
    body: str


class _Listeners:
    def __init__(
        self,
        *,
        messages: MessageEvents,
        intake: Intake,
        keys: KeyModal | None,
        feedback: FeedbackModal | None,
        hearing: Hearing | None,
    ) -> None:
        self._messages = messages
        self._intake = intake
        self._hearing = hearing
        self._keys = keys
        self._feedback = feedback
        self.modals: Mapping[str, Modal] = {
            name: modal for name, modal in ((KEYS_VIEW, keys), (FEEDBACK_VIEW, feedback)) if modal
        }
        """By their callback ids."""
        self._log = get_logger(__name__)

    async def message(self, body: dict[str, Any]) -> None:
        intent = self._messages.read(body, received_at=datetime.now(UTC))
        if isinstance(intent, Ignored):
            self._ignored(body, intent)
        else:
            await self._messages.act(intent)

    async def session_stopped(self, body: dict[str, Any]) -> None:
        intent = session_stopped(body)
        if isinstance(intent, Ignored):
            self._ignored(body, intent)
        else:
            await self._messages.act(intent)

    async def action(self, body: dict[str, Any], ack: AsyncAck) -> None:
        click = parse_click(body)
        if isinstance(click, Ignored):
            self._ignored(body, click)
        else:
            action, intent = click
            await action.handle(self._intake, intent)
            if isinstance(intent, Feedback) and not intent.is_positive and self._feedback:
                await self._feedback.show(body, intent.run_id)
        await ack()

    async def keys(self, body: dict[str, Any], ack: AsyncAck) -> None:
        if self._keys is not None:
            await self._keys.show(body)
        await ack()

    async def view(self, body: dict[str, Any], ack: AsyncAck) -> None:
        modal = self.modals.get(text_of(object_of(body, "view"), "callback_id"))
        problems = await modal.save(body) if modal is not None else {}
        if problems:
            await ack(response_action="errors", errors=dict(problems))
        else:
            await ack()

    async def other_event(self, body: dict[str, Any]) -> None:
        # Bolt answers 404 to what has no listener, and Slack would deliver it again.
        self._ignored(body, Ignored(reason="other_event"))

    async def failed(self, error: Exception) -> BoltResponse:
        """Answers that it is not durable, so not acknowledged: Slack delivers it again."""
        self._log.error("event.rejected", reason="not_durable", error=type(error).__name__)
        if self._hearing is not None and isinstance(error, OSError):  # TimeoutError is one
            self._hearing.begin()  # after its third attempt it delivers no more
        return BoltResponse(status=500, body="")

    def _ignored(self, body: Mapping[str, Any], ignored: Ignored) -> None:
        event = body.get("event")
        kind = event.get("type") if isinstance(event, dict) else body.get("type")
        level = logging.DEBUG if ignored.reason in _ROUTINE else logging.INFO
        self._log.log(
            level, "event.ignored", reason=ignored.reason, type=kind, event_id=body.get("event_id")
        )


class _PayloadFilter(AsyncMiddleware):
    """Acknowledges what no listener is for, and keeps malformed payloads of a socket from them."""

    def __init__(self) -> None:
        self._log = get_logger(__name__)

    @override
    async def async_process(
        self,
        *,
        req: AsyncBoltRequest,
        resp: BoltResponse,
        next: Callable[[], Awaitable[BoltResponse]],
    ) -> BoltResponse | None:
        kind = req.body.get("type")
        # Bolt reads the kind of a view without looking whether there is one. Source: slack-bolt 1.30, payload_utils, read 2026-11.
        view = req.body.get("view") or {}
        is_view = kind == "view_submission"
        is_ours = not is_view or (view.get("type") == "modal" and view.get("callback_id") in VIEWS)
        if kind not in _HANDLED or not is_ours:
            self._log.info("event.ignored", reason="other_payload", type=kind)
            return BoltResponse(status=200, body="")
        if req.mode != "http" and (field := bad_field(req.body)):
            self._log.warning("event.rejected", reason="malformed", field=field)
            return BoltResponse(status=200, body="")
        return await next()


def create_bolt_app(
    *,
    bot_token: str,
    base_url: str,
    identity: Callable[[], BotIdentity | None],
    intake: Intake,
    keys: KeyModal | None = None,
    feedback: FeedbackModal | None = None,
    allowed_bots: Collection[str] = frozenset(),
    hearing: Hearing | None = None,
) -> AsyncApp:
    """Creates a Bolt app that makes no network call of its own, and takes each request for one of Slack's: `handle_http` looks first.

    `hearing` is told of what could not be taken in.

    Everything is passed explicitly: SLACK_* variables would otherwise switch Bolt to other tokens or to OAuth.
    """

    async def authorize(enterprise_id: str | None, team_id: str | None) -> AuthorizeResult:
        # By default Bolt calls auth.test inside Slack's 3 s, and loses the event when that is refused.
        # Source: slack-bolt 1.30, single-team authorization, run 2026-11.
        known = identity()
        return AuthorizeResult(
            enterprise_id=enterprise_id,
            team_id=team_id,
            bot_token=bot_token,
            bot_id=known.bot_id if known else None,
            bot_user_id=known.bot_user_id if known else None,
        )

    # Bolt logs whole bodies at INFO.
    logger = logging.getLogger("app.slack.bolt")
    # At construction it warns of SLACK_BOT_TOKEN, which it rightly leaves unused.
    logger.setLevel(logging.ERROR)
    app = AsyncApp(
        name="orion",
        logger=logger,
        process_before_response=True,
        client=AsyncWebClient(base_url=base_url, logger=logger),
        authorize=authorize,
        # `handle_http` has done so, or Slack is at the other end of a socket.
        request_verification_enabled=False,
        # An old-style unsigned check of slash command URLs.
        ssl_check_enabled=False,
        # payloads.py decides whose messages are ignored, also while the identity is unknown.
        ignoring_self_events_enabled=False,
        attaching_function_token_enabled=False,
        attaching_conversation_kwargs_enabled=False,
    )
    logger.setLevel(logging.WARNING)
    listeners = _Listeners(
        messages=MessageEvents(intake, identity=identity, allowed_bots=allowed_bots),
        intake=intake,
        keys=keys,
        feedback=feedback,
        hearing=hearing,
    )
    app.middleware(_PayloadFilter())
    app.event("app_mention")(listeners.message)
    app.event("message")(listeners.message)
    app.event("agent_session_stopped")(listeners.session_stopped)
    app.event(re.compile(".*", re.DOTALL))(listeners.other_event)
    app.action(KEYS_ACTION)(listeners.keys)
    app.action(re.compile(".*", re.DOTALL))(listeners.action)
    for name in VIEWS:
        app.view(name)(listeners.view)
    app.error(listeners.failed)
    return app


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
    """Returns the answer to a request for which nothing is to be done: it is not Slack's, or a message that asks nothing; None: something is."""
    secret = options.signing_secret.get_secret_value()
    refusal = refuse_http(signing_secret=secret, headers=headers, body=body)
    if refusal is not None or media_type(headers) != "application/json":
        return refusal
    envelope = json.loads(body)
    if object_of(envelope, "event").get("type") not in ("app_mention", "message"):
        return None
    intent = from_event(
        envelope,
        bot_user_id="",
        received_at=datetime.now(UTC),
        allowed_bots=options.allowed_bots,
    )
    is_nothing = isinstance(intent, Ignored)
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


@asynccontextmanager
async def open_entry(
    options: EntryOptions,
    *,
    identity: Callable[[], BotIdentity | None],
    intake: Intake,
    keys: KeyModal | None = None,
    feedback: FeedbackModal | None = None,
    on_ack: OnAck = count_nothing,
    hearing: Hearing | None = None,
) -> AsyncIterator[EventHandler | None]:
    """Events and clicks reach `intake`, people's own keys `keys`, what was wrong with an answer `feedback`, while the block runs; yields None when they come by a socket.

    `on_ack` hears of each delivery by a socket, as the HTTP route hears of its own; `hearing` of when events are heard.
    """
    secret = options.signing_secret.get_secret_value()
    bolt = create_bolt_app(
        bot_token=options.bot_token.get_secret_value(),
        base_url=options.base_url,
        identity=identity,
        intake=intake,
        keys=keys,
        feedback=feedback,
        allowed_bots=options.allowed_bots,
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
