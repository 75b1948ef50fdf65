"""The message shortcut "Ask Orion about this": a modal with one input, whose submission is a request in that message's thread.

What the modal needs to know of the message goes with it, so that any process takes the submission, also after a restart.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from app.log import get_logger
from app.runs.intake import Intake
from app.runs.request import MessageContent, RunRequest, Surface, run_id_for
from app.slack.api import BotIdentity, SlackApi, SlackFault, SlackRefusal, within
from app.slack.block_text import joined, quoted
from app.slack.content import content_of
from app.slack.fields import object_of, text_of
from app.slack.markdown import readable
from app.slack.modals import (
    OPEN_TIMEOUT_S,
    input_block,
    member_of,
    open_modal,
    plain,
    values_of,
)
from app.slack.signature import TS, is_id

ASK_VIEW: Final = "orion_ask_about"
MAX_QUESTION_CHARS: Final = 3_000
MAX_TOLD_CHARS: Final = 1_500
"""Of the message in the modal's metadata, which holds 3,000 characters; the agent has the whole of it from the thread.

Source: Slack, modal views, `private_metadata`, read 2026-11.
"""
_MAX_METADATA_CHARS: Final = 3_000
_QUESTION: Final = "question"
_NOT_HERE: Final = (
    "I am not in this conversation, and read nothing where I am not. Invite me (`/invite` and my name), or forward the message "
    "to me in a direct message and ask there."
)
_UNKNOWN: Final = (
    "Slack does not tell me now whether I may answer here. Please try again in a moment."
)
_log = get_logger(__name__)


class AskModal:
    """Opens the modal, and makes a request of what is written into it."""

    def __init__(
        self,
        api: SlackApi,
        *,
        intake: Intake,
        identity: Callable[[], BotIdentity | None],
        mask: Callable[[str], str],
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        """`mask`: what is written into the modal is seen by nobody yet, and shown in the thread."""
        self._api = api
        self._mask = mask
        self._intake = intake
        self._identity = identity
        self._open_timeout_s = open_timeout_s

    async def show(self, body: Mapping[str, Any]) -> None:
        """Opens the modal for whoever chose the shortcut; where Orion is no member, it says so and how to go on."""
        channel, message = text_of(object_of(body, "channel"), "id"), object_of(body, "message")
        ts, asked_ts = text_of(message, "ts"), text_of(body, "action_ts")
        if member_of(body) is None or not is_id(channel) or not TS.fullmatch(ts):
            _log.info("event.ignored", reason="not_for_asking", type="message_action")
            return
        half_s = self._open_timeout_s / 2
        problem = await self._why_not(channel, within_s=half_s)
        metadata = {
            "channel": channel,
            "thread_ts": text_of(message, "thread_ts") or ts,
            # Slack's moment of the click is later than the message, and earlier than all that Orion will post.
            "asked_ts": asked_ts if TS.fullmatch(asked_ts) else ts,
            "about": self._told(message),
        }
        view = _notice(problem) if problem else _question(metadata)
        await open_modal(self._api, body, view, timeout_s=half_s)

    async def save(self, body: Mapping[str, Any]) -> Mapping[str, str]:
        member, view = member_of(body), object_of(body, "view")
        question = values_of(body).get(_QUESTION, {}).get(_QUESTION, {}).get("value")
        metadata = _read(text_of(view, "private_metadata"))
        if member is None:
            return {_QUESTION: "This is for members of this workspace."}
        if not isinstance(question, str) or not question.strip():
            return {_QUESTION: "Please write a question."}
        if metadata is None or not is_id(view.get("id")):
            _log.warning("event.rejected", reason="malformed", field="private_metadata")
            return {
                _QUESTION: "I do not know any more which message this is about. Please choose the shortcut again."
            }
        channel, asked_ts = metadata["channel"], metadata["asked_ts"]
        await self._intake.accept(
            RunRequest(
                # The same modal sent twice is one run.
                run_id=run_id_for(
                    team=member.team, channel=channel, message_ts=asked_ts, click=str(view["id"])
                ),
                team=member.team,
                channel=channel,
                thread_ts=metadata["thread_ts"],
                message_ts=asked_ts,
                user=member.id,
                text=question.strip()[:MAX_QUESTION_CHARS],
                unseen=self._mask(question.strip()),
                surface=Surface.DM if channel.startswith("D") else Surface.CHANNEL,
                content=MessageContent(shared=(metadata["about"],) if metadata["about"] else ()),
                received_at=datetime.now(UTC),
            )
        )
        return {}

    async def _why_not(self, channel: str, *, within_s: float) -> str:
        """Returns why Orion cannot answer in a channel; empty = it can. Asks for the channel alone, never for what is said in it.

        Source: Slack Web API, conversations.info, `is_member`, and its errors where an app is no member, read 2026-11.
        """
        try:
            async with within(within_s):
                answer = await self._api.once(
                    "conversations.info", {"channel": channel}, verb="GET"
                )
        except SlackRefusal as exc:
            _log.info("ask_modal.not_member", channel=channel, error=exc.word)
            return _NOT_HERE
        except SlackFault as exc:
            _log.warning("slack.update_failed", operation="ask_modal", error=exc.word)
            return _UNKNOWN
        found = object_of(answer, "channel")
        is_ours = any(found.get(name) is True for name in ("is_member", "is_im", "is_mpim"))
        return "" if is_ours else _NOT_HERE

    def _told(self, message: Mapping[str, Any]) -> str:
        """Returns the message as a forwarded one is told, cut to what the modal can carry."""
        identity = self._identity()
        said = readable(
            text_of(message, "text"), bot_user_id=identity.bot_user_id if identity else ""
        )
        content = content_of(message)
        names = [f"[file {file.name}]" for file in content.files]
        body = joined([said, *content.shared, *names])
        author = text_of(message, "user") or text_of(message, "username")
        by = f" by @{author}" if author else ""
        head = f"The message{by} that is asked about (the thread has all of it):"
        return quoted(joined([head, body[:MAX_TOLD_CHARS]]))


def _question(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    element = {
        "type": "plain_text_input",
        "action_id": _QUESTION,
        "multiline": True,
        "max_length": MAX_QUESTION_CHARS,
    }
    block = input_block(_QUESTION, "What do you want to know, or have done?", element)
    return {
        "type": "modal",
        "callback_id": ASK_VIEW,
        "private_metadata": _written(metadata),
        "title": plain("Ask Orion about this"),
        "submit": plain("Ask"),
        "close": plain("Cancel"),
        "blocks": [
            block | {"optional": False, "hint": plain("I answer in the message's thread.")},
        ],
    }


def _written(metadata: Mapping[str, str]) -> str:
    """Returns it as JSON that Slack takes: what is told of the message gives way."""
    text = json.dumps(metadata, ensure_ascii=False)
    excess = len(text) - _MAX_METADATA_CHARS
    if excess <= 0:
        return text
    shorter = metadata["about"][: max(len(metadata["about"]) - excess, 0)]
    return json.dumps({**metadata, "about": shorter}, ensure_ascii=False)


def _notice(text: str) -> Mapping[str, Any]:
    return {
        "type": "modal",
        "callback_id": ASK_VIEW,
        "title": plain("Ask Orion about this"),
        "close": plain("Close"),
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": text}}],
    }


def _read(text: str) -> Mapping[str, str] | None:
    """Returns what a modal carries of its message; None when that is nothing of Orion's."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    metadata = {
        name: text_of(found, name) for name in ("channel", "thread_ts", "asked_ts", "about")
    }
    is_whole = (
        is_id(metadata["channel"])
        and TS.fullmatch(metadata["thread_ts"])
        and TS.fullmatch(metadata["asked_ts"])
    )
    return metadata if is_whole else None
