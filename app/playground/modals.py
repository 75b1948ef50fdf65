"""Modals: opened by the app with the trigger of a press, filled in and sent by the person who pressed."""

from dataclasses import dataclass

from app.playground.limits import check_modal
from app.playground.slack_state import Workspace
from app.playground.slack_types import APP_ID, BOT_ID, TEAM_ID, JsonObject, SlackError, new_id

TRIGGER_LIFETIME_S = 3.0
"""Source: docs.slack.dev, "Modals", trigger_id: three seconds, exchanged once, read 2026-11."""


@dataclass(slots=True, kw_only=True)
class _Trigger:
    user: str
    expires_at_s: float
    view_id: str = ""
    """What it was exchanged for."""


class Modals:
    """What is open on people's screens."""

    def __init__(self, *, workspace: Workspace) -> None:
        self._workspace = workspace
        self._triggers: dict[str, _Trigger] = {}
        self._views: dict[str, tuple[str, JsonObject]] = {}
        """By their ids, with the person before whom they stand."""

    def trigger(self, user: str) -> str:
        """An id with which the app can open one modal for that person."""
        self._forget_old()
        trigger_id = f"{new_id('')}.{new_id('')}"
        self._triggers[trigger_id] = _Trigger(
            user=user, expires_at_s=self._now_s() + TRIGGER_LIFETIME_S
        )
        return trigger_id

    def open(self, trigger_id: str, view: object) -> JsonObject:
        """A modal for the person whose trigger that is.

        Raises:
            SlackError: the trigger or the view is not good.
        """
        checked = check_modal(view)
        trigger = self._triggers.get(trigger_id)
        if trigger is None:
            raise SlackError("invalid_trigger_id")
        if trigger.view_id:
            raise SlackError("exchanged_trigger_id")
        if self._now_s() > trigger.expires_at_s:
            raise SlackError("expired_trigger_id")
        trigger.view_id = new_id("V")
        opened = checked | {
            "id": trigger.view_id,
            "team_id": TEAM_ID,
            "app_id": APP_ID,
            "bot_id": BOT_ID,
            "state": {"values": {}},
            "hash": new_id(""),
            "root_view_id": trigger.view_id,
        }
        self._views[trigger.view_id] = (trigger.user, opened)
        return opened

    def opened_by(self, trigger_id: str) -> JsonObject | None:
        """The modal that the app has opened with that trigger."""
        trigger = self._triggers.get(trigger_id)
        found = self._views.get(trigger.view_id) if trigger else None
        return found[1] if found else None

    def submit(self, view_id: str, values: JsonObject, *, user: str) -> JsonObject:
        """The payload of a modal that is sent.

        Raises:
            SlackError: it is not open for that person, or is not filled in as Slack's clients see to.
        """
        owner, view = self._views.get(view_id, ("", {}))
        if not view or owner != user:
            raise SlackError("view_not_found")
        person = self._workspace.person(user)
        return {
            "type": "view_submission",
            "team": {"id": TEAM_ID, "domain": "playground"},
            "user": {"id": user, "username": person.name.lower(), "team_id": person.team_id},
            "api_app_id": APP_ID,
            "trigger_id": self.trigger(user),
            "view": view | {"state": {"values": _state(view, values)}},
            "response_urls": [],
        }

    def close(self, view_id: str) -> None:
        """It was sent, and the app has taken it."""
        self._views.pop(view_id, None)

    def _now_s(self) -> float:
        return self._workspace.now().timestamp()

    def _forget_old(self) -> None:
        """Triggers of an hour ago, with what they opened."""
        for key, trigger in list(self._triggers.items()):
            if self._now_s() - trigger.expires_at_s > 3600:  # noqa: PLR2004 - seconds of an hour
                self._views.pop(trigger.view_id, None)
                del self._triggers[key]


def _state(view: JsonObject, values: JsonObject) -> JsonObject:
    """By block and action, as the app is told; what a person left empty is there, too."""
    return {
        block["block_id"]: {
            block["element"]["action_id"]: _element_state(block, values.get(block["block_id"]))
        }
        for block in view["blocks"]
        if block["type"] == "input"
    }


def _element_state(block: JsonObject, written: object) -> JsonObject:
    element = block["element"]
    if element["type"] == "checkboxes":
        chosen = written if isinstance(written, list) else []
        found = [one for one in element["options"] if one["value"] in chosen]
        return {"type": "checkboxes", "selected_options": found}
    text = written if isinstance(written, str) else ""
    if len(text) > element.get("max_length", 3000) or not (text or block.get("optional")):
        raise SlackError("invalid_value")
    return {"type": element["type"], "value": text or None}
