"""The Bolt app: parses what Slack sends, lets intake make it durable, and acknowledges; nothing else before the 200."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from slack_bolt.async_app import AsyncAck, AsyncApp, AsyncBoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.middleware.async_middleware import AsyncMiddleware
from slack_bolt.response import BoltResponse
from slack_sdk.web.async_client import AsyncWebClient
from typing_extensions import override

from app.log import get_logger
from app.runs.intake import RetryWish, Revision
from app.runs.model import RunId, RunRequest, Thread
from app.slack.identity import BotIdentity
from app.slack.own_keys import KEYS_ACTION, KEYS_VIEW, KeyDesk
from app.slack.payloads import (
    FEEDBACK_ACTION,
    LOG_ACTION,
    RETRY_ACTION,
    STOP_ACTION,
    Feedback,
    Ignored,
    ShowLog,
    StopRun,
    StopThread,
    from_action,
    from_event,
    session_stopped,
)
from app.slack.shapes import bad_field
from app.slack.verification import media_type

_HANDLED: Final = frozenset(
    {"event_callback", "block_actions", "url_verification", "view_submission"}
)
_ROUTINE: Final = frozenset({"own_message", "subtype", "not_addressed", "unchanged"})
"""Every message of a busy channel, and each of Orion's own edits."""


class Intake(Protocol):
    """Makes durable what a person wants. Each call is one durable write; an exception means: do not acknowledge."""

    async def accept(self, request: RunRequest) -> None: ...

    async def retry(self, wish: RetryWish) -> None: ...

    async def revise(self, revision: Revision) -> bool: ...

    async def stop_run(self, run_id: RunId, *, user: str) -> bool: ...

    async def stop_thread(self, thread: Thread, *, user: str) -> bool: ...

    async def show_log(self, run_id: RunId, *, user: str) -> None: ...

    async def feedback(self, run_id: RunId, *, user: str, is_positive: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What goes back over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: str


class _Listeners:
    """One method per kind of delivery."""

    def __init__(
        self, *, identity: Callable[[], BotIdentity | None], intake: Intake, keys: KeyDesk | None
    ) -> None:
        self._identity = identity
        self._intake = intake
        self._keys = keys
        self._log = get_logger(__name__)

    async def message(self, body: dict[str, Any]) -> None:
        identity = self._identity()
        wish = from_event(
            body,
            bot_user_id=identity.bot_user_id if identity else "",
            received_at=datetime.now(UTC),
        )
        match wish:
            case RunRequest():
                await self._intake.accept(wish)
            case Revision():
                await self._intake.revise(wish)
            case StopThread():
                await self._intake.stop_thread(wish.thread, user=wish.user)
            case Ignored():
                self._ignored(body, wish)

    async def session_stopped(self, body: dict[str, Any]) -> None:
        wish = session_stopped(body)
        if isinstance(wish, Ignored):
            self._ignored(body, wish)
        else:
            await self._intake.stop_thread(wish.thread, user=wish.user)

    async def action(self, body: dict[str, Any], ack: AsyncAck) -> None:
        wish = from_action(body)
        match wish:
            case StopRun():
                await self._intake.stop_run(wish.run_id, user=wish.user)
            case RetryWish():
                await self._intake.retry(wish)
            case ShowLog():
                await self._intake.show_log(wish.run_id, user=wish.user)
            case Feedback():
                await self._intake.feedback(
                    wish.run_id, user=wish.user, is_positive=wish.is_positive
                )
            case Ignored():
                self._ignored(body, wish)
        await ack()

    async def keys(self, body: dict[str, Any], ack: AsyncAck) -> None:
        if self._keys is not None:
            await self._keys.show(body)
        await ack()

    async def view(self, body: dict[str, Any], ack: AsyncAck) -> None:
        problems = await self._keys.save(body) if self._keys is not None else {}
        if problems:
            await ack(response_action="errors", errors=dict(problems))
        else:
            await ack()

    async def other_event(self, body: dict[str, Any]) -> None:
        # Bolt answers 404 to what has no listener, and Slack would deliver it again.
        self._ignored(body, Ignored(reason="other_event"))

    async def failed(self, error: Exception) -> BoltResponse:
        """Not durable, so not acknowledged: Slack delivers it again."""
        self._log.error("event.rejected", reason="not_durable", error=type(error).__name__)
        return BoltResponse(status=500, body="")

    def _ignored(self, body: Mapping[str, Any], ignored: Ignored) -> None:
        event = body.get("event")
        kind = event.get("type") if isinstance(event, dict) else body.get("type")
        level = logging.DEBUG if ignored.reason in _ROUTINE else logging.INFO
        self._log.log(
            level, "event.ignored", reason=ignored.reason, type=kind, event_id=body.get("event_id")
        )


class _Doorkeeper(AsyncMiddleware):
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
        is_ours = not is_view or (view.get("type"), view.get("callback_id")) == ("modal", KEYS_VIEW)
        if kind not in _HANDLED or not is_ours:
            self._log.info("event.ignored", reason="other_payload", type=kind)
            return BoltResponse(status=200, body="")
        if req.mode != "http" and (field := bad_field(req.body)):
            self._log.warning("event.rejected", reason="malformed", field=field)
            return BoltResponse(status=200, body="")
        return await next()


def create_bolt_app(
    *,
    signing_secret: str,
    bot_token: str,
    base_url: str,
    identity: Callable[[], BotIdentity | None],
    intake: Intake,
    keys: KeyDesk | None = None,
) -> AsyncApp:
    """A Bolt app that makes no network call of its own. An empty signing secret is for Socket Mode only.

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
    logger.setLevel(
        logging.ERROR
    )  # at construction it warns of SLACK_BOT_TOKEN, which it rightly leaves unused
    app = AsyncApp(
        name="orion",
        logger=logger,
        process_before_response=True,
        signing_secret=signing_secret,
        client=AsyncWebClient(base_url=base_url, logger=logger),
        authorize=authorize,
        # An old-style unsigned check of slash command URLs.
        ssl_check_enabled=False,
        # payloads.py decides whose messages are ignored, also while the identity is unknown.
        ignoring_self_events_enabled=False,
        attaching_function_token_enabled=False,
        attaching_conversation_kwargs_enabled=False,
    )
    logger.setLevel(logging.WARNING)
    listeners = _Listeners(identity=identity, intake=intake, keys=keys)
    app.middleware(_Doorkeeper())
    app.event("app_mention")(listeners.message)
    app.event("message")(listeners.message)
    app.event("agent_session_stopped")(listeners.session_stopped)
    app.event(re.compile(".*", re.DOTALL))(listeners.other_event)
    app.action(STOP_ACTION)(listeners.action)
    app.action(RETRY_ACTION)(listeners.action)
    app.action(LOG_ACTION)(listeners.action)
    app.action(FEEDBACK_ACTION)(listeners.action)
    app.action(KEYS_ACTION)(listeners.keys)
    app.action(re.compile(".*", re.DOTALL))(listeners.action)
    app.view(KEYS_VIEW)(listeners.view)
    app.error(listeners.failed)
    return app


async def handle_http(app: AsyncApp, *, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
    """Bolt's answer to a request that `check_request` let pass."""
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
