"""Pressing what a message offers, filling in the modals that open, and the response_url that comes with it."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.playground.slack.block_kit import check_blocks, check_home, check_modal
from app.playground.slack.types import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    Change,
    Channel,
    JsonObject,
    Message,
    Person,
    SlackError,
    new_id,
)
from app.playground.slack.workspace import Workspace


@dataclass(slots=True, kw_only=True)
class _Trigger:
    user: str
    expires_at_s: float
    view_id: str = ""
    """What it was exchanged for."""


class Modals:
    """Keeps the modals that are open on people's screens."""

    def __init__(self, *, workspace: Workspace, trigger_lifetime_s: float) -> None:
        self._trigger_lifetime_s = trigger_lifetime_s
        self._workspace = workspace
        self._triggers: dict[str, _Trigger] = {}
        self._views: dict[str, tuple[str, JsonObject]] = {}
        """By their ids, with the person before whom they stand."""

    def trigger(self, user: str) -> str:
        """Returns an id with which the app can open one modal for that person."""
        self._forget_old()
        trigger_id = f"{new_id('')}.{new_id('')}"
        self._triggers[trigger_id] = _Trigger(
            user=user, expires_at_s=self._now_s() + self._trigger_lifetime_s
        )
        return trigger_id

    def open(self, trigger_id: str, view: object) -> JsonObject:
        """Opens a modal for the person whose trigger that is.

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

    def publish(self, user: str, view: object) -> JsonObject:
        """Gives a person a home tab in place of the one before.

        Raises:
            SlackError: there is no such person, or the view is not good.
        """
        person = self._workspace.person(user)
        ids = {"id": new_id("V"), "team_id": TEAM_ID, "app_id": APP_ID, "bot_id": BOT_ID}
        published = check_home(view) | ids | {"state": {"values": {}}, "hash": new_id("")}
        self._workspace.homes[person.id] = published
        self._workspace.tell(Change(kind="home", channel=self._workspace.channel(user).id))
        return published

    def opened_by(self, trigger_id: str) -> JsonObject | None:
        """Returns the modal that the app has opened with that trigger."""
        trigger = self._triggers.get(trigger_id)
        found = self._views.get(trigger.view_id) if trigger else None
        return found[1] if found else None

    def submit(self, view_id: str, values: JsonObject, *, user: str) -> JsonObject:
        """Returns the payload of a modal that is sent.

        Raises:
            SlackError: it is not open for that person, or is not filled in as Slack's clients see to.
        """
        owner, view = self._views.get(view_id, ("", {}))
        if not view or owner != user:
            raise SlackError("view_not_found")
        return {
            "type": "view_submission",
            **_origin(self._workspace.person(user)),
            "trigger_id": self.trigger(user),
            "view": view | {"state": {"values": _state(view, values)}},
            "response_urls": [],
        }

    def close(self, view_id: str) -> None:
        """Closes a modal that was sent, and that the app has taken."""
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
    """Returns the values by block and action, as the app is told; what a person left empty is there, too."""
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


# Source: docs.slack.dev, "Handling user interaction", response_url: five uses within 30 minutes, read 2026-11.
RESPONSE_USES = 5
RESPONSE_LIFETIME_S = 30 * 60


@dataclass(slots=True, kw_only=True)
class ResponseUrl:
    channel: str
    user: str
    message_ts: str
    expires_at_s: float
    uses: int = 0


class Interactions:
    def __init__(self, *, workspace: Workspace, modals: Modals) -> None:
        self._workspace = workspace
        self._modals = modals
        self._urls: dict[str, ResponseUrl] = {}

    def press(
        self, *, message: Message, action_id: str, value: str | None, user: str, base_url: str
    ) -> JsonObject:
        """Returns the payload of a pressed element.

        Raises:
            SlackError: the message has no such element, or the person cannot see it.
        """
        channel = self._workspace.channels[message.channel]
        if user not in channel.members or message.ephemeral_to not in {None, user}:
            raise SlackError("message_not_found")
        action = _find_action(message.blocks, action_id, value)
        container: JsonObject = {
            "type": "message",
            "message_ts": message.ts,
            "channel_id": channel.id,
            "is_ephemeral": message.ephemeral_to is not None,
        }
        if message.thread_ts:
            container["thread_ts"] = message.thread_ts
        payload: JsonObject = {
            "type": "block_actions",
            **_origin(self._workspace.person(user)),
            "container": container,
            "trigger_id": self._modals.trigger(user),
            "channel": _named(channel),
            "response_url": self._url(channel, user=user, ts=message.ts, base_url=base_url),
            "state": {"values": {}},
            "actions": [action | {"action_ts": self._workspace.next_ts()}],
        }
        if message.ephemeral_to is None:
            payload["message"] = self._workspace.render(message)
        return payload

    def press_home(self, *, action_id: str, user: str) -> JsonObject:
        """Returns the payload of an element that is pressed in a person's home tab. Source: docs.slack.dev, block_actions of views, read 2026-11.

        Raises:
            SlackError: there is none.
        """
        view = self._workspace.homes.get(user)
        action = _find_action(view["blocks"] if view else [], action_id, None)
        return {
            "type": "block_actions",
            **_origin(self._workspace.person(user)),
            "container": {"type": "view", "view_id": view["id"] if view else ""},
            "trigger_id": self._modals.trigger(user),
            "view": view,
            "actions": [action | {"action_ts": self._workspace.next_ts()}],
        }

    def choose_shortcut(
        self, *, message: Message, callback_id: str, user: str, base_url: str
    ) -> JsonObject:
        """Returns the payload of a message shortcut, which there is in every channel of the person's, be the app a member or not.

        Source: docs.slack.dev, shortcuts payloads, `message_action`, read 2026-11.

        Raises:
            SlackError: the person cannot see the message.
        """
        channel = self._workspace.channels[message.channel]
        if user not in channel.members or message.ephemeral_to:
            raise SlackError("message_not_found")
        return {
            "type": "message_action",
            "callback_id": callback_id,
            **_origin(self._workspace.person(user)),
            "trigger_id": self._modals.trigger(user),
            "action_ts": self._workspace.next_ts(),
            "message_ts": message.ts,
            "channel": _named(channel),
            "message": self._workspace.render(message),
            "response_url": self._url(channel, user=user, ts=message.ts, base_url=base_url),
        }

    def command(self, *, channel: Channel, typed: str, user: str, base_url: str) -> JsonObject:
        """Returns the form of a slash command. Source: docs.slack.dev, "Slash commands", the payload, read 2026-11.

        Raises:
            SlackError: the person is not in the channel.
        """
        if user not in channel.members:
            raise SlackError("not_in_channel")
        person = self._workspace.person(user)
        command, _, text = typed.partition(" ")
        return {
            "token": "deprecated",
            "team_id": person.team_id,
            "team_domain": "playground",
            "channel_id": channel.id,
            "channel_name": _named(channel)["name"],
            "user_id": user,
            "user_name": person.name.lower(),
            "command": command,
            "text": text.strip(),
            "api_app_id": APP_ID,
            "is_enterprise_install": "false",
            "response_url": self._url(channel, user=user, ts="", base_url=base_url),
            "trigger_id": self._modals.trigger(user),
        }

    def _url(self, channel: Channel, *, user: str, ts: str, base_url: str) -> str:
        key = new_id("R")
        self._urls[key] = ResponseUrl(
            channel=channel.id,
            user=user,
            message_ts=ts,
            expires_at_s=self._workspace.now().timestamp() + RESPONSE_LIFETIME_S,
        )
        return f"{base_url}/respond/{key}"

    def respond(self, key: str, body: JsonObject) -> None:
        """Takes what the app posts to a response_url."""
        url = self._urls.get(key)
        if url is None or self._workspace.now().timestamp() > url.expires_at_s:
            raise SlackError("expired_url", status=404)
        url.uses += 1
        if url.uses > RESPONSE_USES:
            raise SlackError("used_url", status=404)
        message = self._workspace.messages[url.channel][url.message_ts]
        if body.get("delete_original"):
            self._workspace.delete(message, by=BOT_USER_ID)
            return
        text = str(body.get("text") or "")
        blocks = check_blocks(body["blocks"]) if body.get("blocks") else []
        if not text and not blocks:
            raise SlackError("no_text", status=400)
        if body.get("replace_original"):
            self._workspace.edit(message, text=text, blocks=blocks, by=BOT_USER_ID, label=False)
            return
        private = body.get("response_type") != "in_channel"
        self._workspace.post(
            self._workspace.channels[url.channel],
            Message(
                ts="",
                channel=url.channel,
                user=BOT_USER_ID,
                text=text,
                blocks=blocks,
                thread_ts=body.get("thread_ts") or message.thread_ts,
                ephemeral_to=url.user if private else None,
            ),
        )


def _named(channel: Channel) -> JsonObject:
    name = "directmessage" if channel.im_user else channel.name
    return {"id": channel.id, "name": name}


def _find_action(blocks: Sequence[JsonObject], action_id: str, value: str | None) -> JsonObject:
    for block in blocks:
        accessory = block.get("accessory")
        for element in [*(block.get("elements") or []), *([accessory] if accessory else [])]:
            if not isinstance(element, dict) or element.get("action_id") != action_id:
                continue
            kind = element["type"]
            action = {"type": kind, "action_id": action_id, "block_id": block["block_id"]}
            if kind != "feedback_buttons":
                return action | {"value": element.get("value"), "text": element.get("text")}
            offered = [
                element[name].get("value") for name in ("positive_button", "negative_button")
            ]
            if value not in offered:
                raise SlackError("invalid_value")
            return action | {"value": value}
    raise SlackError("action_not_found")


def _origin(person: Person) -> JsonObject:
    """Returns who acts, and for which app."""
    user = {"id": person.id, "username": person.name.lower(), "team_id": person.team_id}
    team = {"id": TEAM_ID, "domain": "playground"}
    return {"user": user, "team": team, "api_app_id": APP_ID}
