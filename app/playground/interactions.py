"""Pressing what a message offers: block_actions payloads, and the response_url that comes with them."""

from dataclasses import dataclass

from app.playground.limits import check_blocks
from app.playground.modals import Modals
from app.playground.slack_call import channel_json
from app.playground.slack_state import Workspace
from app.playground.slack_types import (
    APP_ID,
    BOT_USER_ID,
    TEAM_ID,
    JsonObject,
    Message,
    SlackError,
    new_id,
)

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
        self,
        *,
        message: Message,
        action_id: str,
        value: str | None,
        user: str,
        base_url: str,
    ) -> JsonObject:
        """The payload of a pressed element.

        Raises:
            SlackError: the message has no such element, or the person cannot see it.
        """
        channel = self._workspace.channels[message.channel]
        if user not in channel.members or message.ephemeral_to not in {None, user}:
            raise SlackError("message_not_found")
        person = self._workspace.person(user)
        action = _find_action(message, action_id, value)
        key = new_id("R")
        now = self._workspace.now().timestamp()
        self._urls[key] = ResponseUrl(
            channel=channel.id,
            user=user,
            message_ts=message.ts,
            expires_at_s=now + RESPONSE_LIFETIME_S,
        )
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
            "user": {"id": user, "username": person.name.lower(), "team_id": person.team_id},
            "api_app_id": APP_ID,
            "team": {"id": TEAM_ID, "domain": "playground"},
            "container": container,
            "trigger_id": self._modals.trigger(user),
            "channel": {
                "id": channel.id,
                "name": channel_json(channel).get("name", "directmessage"),
            },
            "response_url": f"{base_url}/respond/{key}",
            "state": {"values": {}},
            "actions": [action | {"action_ts": self._workspace.next_ts()}],
        }
        if message.ephemeral_to is None:
            payload["message"] = self._workspace.render(message)
        return payload

    def respond(self, key: str, body: JsonObject) -> None:
        """What the app posts to a response_url."""
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


def _find_action(message: Message, action_id: str, value: str | None) -> JsonObject:
    for block in message.blocks:
        accessory = block.get("accessory")
        for element in [*(block.get("elements") or []), *([accessory] if accessory else [])]:
            if not isinstance(element, dict) or element.get("action_id") != action_id:
                continue
            action = {
                "type": element["type"],
                "action_id": action_id,
                "block_id": block["block_id"],
            }
            if element["type"] == "feedback_buttons":
                offered = [
                    element[name].get("value") for name in ("positive_button", "negative_button")
                ]
                if value not in offered:
                    raise SlackError("invalid_value")
                return action | {"value": value}
            return action | {"value": element.get("value"), "text": element.get("text")}
    raise SlackError("action_not_found")
