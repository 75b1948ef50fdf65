"""Modals: what all have in common, the one that asks what was wrong with an answer, and the one for an agent's question."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.approvals.questions import MAX_TEXT_CHARS
from app.log import get_logger
from app.runs.approvals import Press
from app.runs.intake import Intake
from app.runs.request import RunId
from app.slack.api import SlackApi, SlackFault, within
from app.slack.cards import section
from app.slack.fields import object_of, text_of
from app.slack.signature import is_id

OPEN_TIMEOUT_S: Final = 2.0
"""For all that comes before the acknowledgement: after 3 s the click has failed, and its trigger is dead.

Source: Slack, "Modals", `trigger_id`, read 2026-11.
"""
TELL_TIMEOUT_S: Final = 0.5
"""For telling that a modal did not open, before the acknowledgement too."""
NOT_OPENED: Final = "Slack did not open the form in time. Please try it again."
FEEDBACK_VIEW: Final = "orion_feedback_reason"
MAX_REASON_CHARS: Final = 500
_REASON: Final = "reason"
ANSWER_VIEW: Final = "orion_answer"
_ANSWER: Final = "answer"
_log = get_logger(__name__)


class Modal(Protocol):
    """Takes what a person has written into one modal of Orion's."""

    async def save(self, body: Mapping[str, Any]) -> Mapping[str, str]:
        """Makes it durable; returns what is wrong instead, by block ids, for the person to correct.

        Raises:
            TimeoutError: the database is sick; nothing is acknowledged, and the person sees that it did not work.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Somebody of the workspace, in whose team Orion is."""

    team: str
    id: str


class FeedbackModal:
    """Asks whoever pressed a thumb down why."""

    def __init__(
        self, api: SlackApi, *, intake: Intake, open_timeout_s: float = OPEN_TIMEOUT_S
    ) -> None:
        self._api = api
        self._intake = intake
        self._open_timeout_s = open_timeout_s

    async def show(self, body: Mapping[str, Any], run_id: RunId) -> None:
        """Opens the modal; the thumb counts without it, too."""
        element = {
            "type": "plain_text_input",
            "action_id": _REASON,
            "max_length": MAX_REASON_CHARS,
        }
        view = {
            "type": "modal",
            "callback_id": FEEDBACK_VIEW,
            "private_metadata": run_id,
            "title": plain("What was wrong?"),
            "submit": plain("Send"),
            "close": plain("Skip"),
            "blocks": [input_block(_REASON, "In a line, for whoever runs Orion", element)],
        }
        await open_modal(self._api, body, view, timeout_s=self._open_timeout_s)

    async def save(self, body: Mapping[str, Any]) -> Mapping[str, str]:
        member, run_id = member_of(body), text_of(object_of(body, "view"), "private_metadata")
        reason = values_of(body).get(_REASON, {}).get(_REASON, {}).get("value")
        if member is not None and is_id(run_id) and isinstance(reason, str) and reason.strip():
            await self._intake.feedback(
                RunId(run_id),
                user=member.id,
                is_positive=False,
                comment=reason.strip()[:MAX_REASON_CHARS],
            )
        return {}


class AnswerModal:
    """Takes what a person answers an agent's question in their own words."""

    def __init__(
        self, api: SlackApi, *, intake: Intake, open_timeout_s: float = OPEN_TIMEOUT_S
    ) -> None:
        self._api = api
        self._intake = intake
        self._open_timeout_s = open_timeout_s

    async def show(self, body: Mapping[str, Any]) -> None:
        """Opens the modal for whoever pressed the button of a question."""
        actions = body.get("actions")
        pressed = actions[0] if isinstance(actions, list) and actions else None
        approval_id = text_of(pressed, "value") if isinstance(pressed, dict) else ""
        if not is_id(approval_id):
            return
        element = {
            "type": "plain_text_input",
            "action_id": _ANSWER,
            "multiline": True,
            "max_length": MAX_TEXT_CHARS,
        }
        view = {
            "type": "modal",
            "callback_id": ANSWER_VIEW,
            "private_metadata": approval_id,
            "title": plain("Your answer"),
            "submit": plain("Answer"),
            "close": plain("Cancel"),
            "blocks": [
                *_question_above(body),
                input_block(_ANSWER, "In your words", element) | {"optional": False},
            ],
        }
        await open_modal(self._api, body, view, timeout_s=self._open_timeout_s)

    async def save(self, body: Mapping[str, Any]) -> Mapping[str, str]:
        view, user = object_of(body, "view"), text_of(object_of(body, "user"), "id")
        approval_id = text_of(view, "private_metadata")
        written = values_of(body).get(_ANSWER, {}).get(_ANSWER, {}).get("value")
        if not isinstance(written, str) or not written.strip():
            return {_ANSWER: "Please write an answer."}
        if is_id(approval_id) and is_id(user):
            press = Press(
                approval_id=approval_id,
                user=user,
                is_allowed=True,
                text=written.strip()[:MAX_TEXT_CHARS],
                is_external=member_of(body) is None,
            )
            if problem := await self._intake.press(press):
                return {_ANSWER: problem}
        return {}


def _question_above(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the question that stands in the message of the button; nothing where that is in the Home tab."""
    blocks = object_of(body, "message").get("blocks")
    first = blocks[0] if isinstance(blocks, list) and blocks else None
    asked = text_of(object_of(first, "text"), "text") if isinstance(first, dict) else ""
    return [section(asked)] if asked else []


async def open_modal(
    api: SlackApi, body: Mapping[str, Any], view: Mapping[str, Any], *, timeout_s: float
) -> None:
    """Opens a modal for the person of a click, in an attempt that takes so long at most; a failure is logged, and told to them alone where they clicked in a channel."""
    try:
        async with within(timeout_s):
            await api.once("views.open", {"trigger_id": text_of(body, "trigger_id"), "view": view})
    except SlackFault as exc:
        _log.warning("slack.update_failed", operation="modal", error=exc.word)
        await _tell_not_opened(api, body)


async def _tell_not_opened(api: SlackApi, body: Mapping[str, Any]) -> None:
    channel, user = (text_of(object_of(body, name), "id") for name in ("channel", "user"))
    if channel and user:
        told = {"channel": channel, "user": user, "text": NOT_OPENED}
        with suppress(SlackFault):
            async with within(TELL_TIMEOUT_S):
                await api.once("chat.postEphemeral", told)


def plain(text: str) -> Mapping[str, str]:
    """Returns a text object."""
    return {"type": "plain_text", "text": text}


def input_block(block_id: str, label: str, element: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a block that may be left empty."""
    return {
        "type": "input",
        "block_id": block_id,
        "optional": True,
        "label": plain(label),
        "element": element,
    }


def member_of(body: Mapping[str, Any]) -> Member | None:
    """Returns who clicked or sent; None for people of other companies, as Orion's requests know them by its own workspace only, and `team` says."""
    user, team = object_of(body, "user"), object_of(body, "team")
    # Slack's own example of a shortcut leaves it out. Source: docs.slack.dev, shortcuts payloads, read 2026-11.
    is_member = user.get("team_id") in (None, team.get("id"))
    if not is_member or not is_id(user.get("id")) or not is_id(team.get("id")):
        return None
    return Member(team=str(team["id"]), id=str(user["id"]))


def values_of(body: Mapping[str, Any]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Returns what was written, by block ids and action ids; without what is no object."""
    blocks = object_of(object_of(object_of(body, "view"), "state"), "values")
    return {
        block: {name: one for name, one in actions.items() if isinstance(one, dict)}
        for block, actions in blocks.items()
        if isinstance(actions, dict)
    }
