"""What reaches Orion from Slack: parsed, made durable by intake, and acknowledged; nothing else before the 200."""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from slack_bolt.async_app import AsyncAck, AsyncApp, AsyncBoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.middleware.async_middleware import AsyncMiddleware
from slack_bolt.response import BoltResponse
from slack_sdk.web.async_client import AsyncWebClient
from typing_extensions import override

from app.aio import TaskGroup
from app.log import get_logger
from app.runs.intake import Intake
from app.runs.ports import StoppingError
from app.runs.request import RunRequest
from app.slack.actions import KEYS_ACTION, WRITE_ACTION, Feedback, parse_click
from app.slack.api import BotIdentity
from app.slack.ask_modal import ASK_VIEW, AskModal
from app.slack.commands import SlashCommand
from app.slack.fields import object_of, text_of
from app.slack.hearing import Hearing
from app.slack.home import AppHome
from app.slack.key_modal import KEYS_VIEW, KeyModal
from app.slack.manifest import ASK_SHORTCUT, COMMAND
from app.slack.message_events import MessageEvents
from app.slack.modals import ANSWER_VIEW, FEEDBACK_VIEW, AnswerModal, FeedbackModal, Modal
from app.slack.payloads import Ignored, from_reaction, session_stopped
from app.slack.signature import bad_field, is_id

_HANDLED: Final = frozenset({"event_callback", "block_actions", "url_verification"})
"""Each of whose kind has a listener; of the others one is looked for by its name."""
_CLICKED: Final = frozenset({"block_actions", "view_submission", "message_action"})
VIEWS: Final = (KEYS_VIEW, FEEDBACK_VIEW, ANSWER_VIEW, ASK_VIEW)
"""Of Orion's modals, by their callback ids."""
_ROUTINE: Final = frozenset({"own_message", "subtype", "not_addressed", "unchanged", "reaction"})
"""Every message and reaction of a busy channel, and each of Orion's own edits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surfaces:
    """Where people reach Orion besides messages and the buttons below them; None = not here."""

    keys: KeyModal | None = None
    feedback: FeedbackModal | None = None
    answer: AnswerModal | None = None
    ask: AskModal | None = None
    commands: SlashCommand | None = None
    home: AppHome | None = None
    groups: Callable[[str], None] | None = None
    """Told of a user group that has changed, by its id; returns at once."""

    def modal(self, callback_id: str) -> Modal | None:
        """Returns the modal of Orion's that is called so."""
        modals: Mapping[str, Modal | None] = {
            KEYS_VIEW: self.keys,
            FEEDBACK_VIEW: self.feedback,
            ANSWER_VIEW: self.answer,
            ASK_VIEW: self.ask,
        }
        return modals.get(callback_id)


NO_SURFACES: Final = Surfaces()


class _Listeners:
    def __init__(
        self,
        *,
        identity: Callable[[], BotIdentity | None],
        messages: MessageEvents,
        intake: Intake,
        surfaces: Surfaces,
        hearing: Hearing | None,
    ) -> None:
        self._identity = identity
        self._messages = messages
        self._intake = intake
        self._hearing = hearing
        self._surfaces = surfaces
        self._log = get_logger(__name__)

    async def message(self, body: dict[str, Any]) -> None:
        intent = self._messages.read(body, received_at=datetime.now(UTC))
        if isinstance(intent, Ignored):
            self._ignored(body, intent)
            return
        if isinstance(intent, RunRequest) and self._hearing is not None:
            if self._hearing.is_withdrawn(intent.run_id):
                self._ignored(body, Ignored(reason="withdrawn"))
                return
            late_s = self._hearing.missed_s(intent.asked_at)
            intent = intent.model_copy(update={"late_s": late_s})
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
            feedback = self._surfaces.feedback
            if isinstance(intent, Feedback) and not intent.is_positive and feedback:
                await feedback.show(body, intent.run_id)
        await ack()

    async def reaction(self, body: dict[str, Any]) -> None:
        identity = self._identity()
        intent = from_reaction(body, bot_user_id=identity.bot_user_id if identity else "")
        if isinstance(intent, Ignored):
            self._ignored(body, intent)
        else:
            await self._intake.stop_shown(
                intent.team,
                intent.channel,
                user=intent.user,
                reply_ts=intent.ts,
                is_shared=intent.is_shared,
            )

    async def home_opened(self, body: dict[str, Any]) -> None:
        if self._surfaces.home is not None:
            self._surfaces.home.opened(body)

    async def group_changed(self, body: dict[str, Any]) -> None:
        event = object_of(body, "event")
        group = text_of(event, "subteam_id") or text_of(object_of(event, "subteam"), "id")
        if self._surfaces.groups is not None and is_id(group):
            self._surfaces.groups(group)

    async def command(self, body: dict[str, Any], ack: AsyncAck) -> None:
        commands = self._surfaces.commands
        if commands is None:
            await ack()
        else:
            await ack(text=await commands.answer(body), response_type="ephemeral")

    async def shortcut(self, body: dict[str, Any], ack: AsyncAck) -> None:
        if self._surfaces.ask is not None:
            await self._surfaces.ask.show(body)
        await ack()

    async def keys(self, body: dict[str, Any], ack: AsyncAck) -> None:
        if self._surfaces.keys is not None:
            await self._surfaces.keys.show(body)
        await ack()

    async def write_answer(self, body: dict[str, Any], ack: AsyncAck) -> None:
        if self._surfaces.answer is not None:
            await self._surfaces.answer.show(body)
        await ack()

    async def view(self, body: dict[str, Any], ack: AsyncAck) -> None:
        modal = self._surfaces.modal(text_of(object_of(body, "view"), "callback_id"))
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
        if isinstance(error, StoppingError):
            self._log.info("event.rejected", reason="stopping")
        else:
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
    """Acknowledges what no listener is for, and keeps malformed payloads of a socket from them.

    Clicks and modals come to them as from Orion's own workspace, whatever they say: whose member a person is, is judged by it. Theirs is the
    one where somebody is looking. Source: slack-bolt 1.30, `request/internals.py` on `app_installed_team_id`, read 2026-11.
    """

    def __init__(self, identity: Callable[[], BotIdentity | None]) -> None:
        self._log = get_logger(__name__)
        self._identity = identity

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
        match kind:
            case None:
                is_ours = req.body.get("command") == COMMAND
            case "view_submission":
                is_ours = view.get("type") == "modal" and view.get("callback_id") in VIEWS
            case "message_action":
                is_ours = req.body.get("callback_id") == ASK_SHORTCUT
            case _:
                is_ours = kind in _HANDLED
        if not is_ours:
            self._log.info("event.ignored", reason="other_payload", type=kind)
            return BoltResponse(status=200, body="")
        if req.mode != "http" and (field := bad_field(req.body)):
            self._log.warning("event.rejected", reason="malformed", field=field)
            return BoltResponse(status=200, body="")
        if kind in _CLICKED and (known := self._identity()):
            req.body["team"] = {"id": known.team_id}
        return await next()


def create_bolt_app(
    *,
    bot_token: str,
    base_url: str,
    identity: Callable[[], BotIdentity | None],
    intake: Intake,
    surfaces: Surfaces = NO_SURFACES,
    allowed_bots: Collection[str] = frozenset(),
    group: TaskGroup | None = None,
    hearing: Hearing | None = None,
) -> AsyncApp:
    """Creates a Bolt app that makes no network call of its own, and takes each request for one of Slack's: `handle_http` looks first.

    In `group` goes on what is not waited for by an acknowledgement; None = that is left out. `hearing` is told of what could not be taken in.

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
        identity=identity,
        messages=MessageEvents(intake, identity=identity, allowed_bots=allowed_bots, group=group),
        intake=intake,
        surfaces=surfaces,
        hearing=hearing,
    )
    app.middleware(_PayloadFilter(identity))
    app.event("app_mention")(listeners.message)
    app.event("message")(listeners.message)
    app.event("agent_session_stopped")(listeners.session_stopped)
    app.event("reaction_added")(listeners.reaction)
    app.event("app_home_opened")(listeners.home_opened)
    app.event("subteam_members_changed")(listeners.group_changed)
    app.event("subteam_updated")(listeners.group_changed)
    app.event(re.compile(".*", re.DOTALL))(listeners.other_event)
    app.action(KEYS_ACTION)(listeners.keys)
    app.action(WRITE_ACTION)(listeners.write_answer)
    app.action(re.compile(".*", re.DOTALL))(listeners.action)
    app.command(COMMAND)(listeners.command)
    app.message_shortcut(ASK_SHORTCUT)(listeners.shortcut)
    for name in VIEWS:
        app.view(name)(listeners.view)
    app.error(listeners.failed)
    return app
