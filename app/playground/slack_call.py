"""One Web API call as its handler sees it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.playground.file_store import FileStore
from app.playground.modals import Modals
from app.playground.slack_state import Workspace
from app.playground.slack_types import BOT_USER_ID, Channel, JsonObject, LookalikeConfig, SlackError


class Args:
    """Arguments from any dialect: forms and query strings hold JSON and booleans as text."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) not in {None, ""} if self._is_plain(name) else True

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return "" if value is None else str(value)

    def required(self, name: str, *, error: str) -> str:
        value = self.text(name)
        if not value:
            raise SlackError(error)
        return value

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in {"1", "true", "t"}

    def number(self, name: str, *, default: int) -> int:
        value = self.text(name)
        if not value:
            return default
        if not value.lstrip("-").isdigit():
            raise SlackError("invalid_arguments")
        return int(value)

    def structure(self, name: str, *, error: str) -> object:
        value = self._values.get(name)
        if not isinstance(value, str) or not value:
            return value or None
        try:
            parsed: object = json.loads(value)
        except ValueError as exc:
            raise SlackError(error) from exc
        return parsed

    def _is_plain(self, name: str) -> bool:
        return not isinstance(self._values.get(name), list | dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    args: Args
    workspace: Workspace
    config: LookalikeConfig
    files: FileStore
    tickets: set[str]
    """One-use tickets of Socket Mode addresses."""
    modals: Modals
    host: str

    def channel(self, name: str = "channel", *, writing: bool = False) -> Channel:
        """The channel the call names, where the bot must be a member."""
        found = self.workspace.channel(self.args.required(name, error="channel_not_found"))
        if BOT_USER_ID not in found.members:
            raise SlackError("not_in_channel")
        if writing and found.is_archived:
            raise SlackError("is_archived")
        return found

    def base_url(self) -> str:
        return f"http://{self.host}"


def channel_json(channel: Channel) -> JsonObject:
    """A channel as conversations.info shows it."""
    shared = {"is_ext_shared": channel.is_ext_shared, "is_archived": channel.is_archived}
    if channel.im_user:
        return {"id": channel.id, "is_im": True, "user": channel.im_user, **shared}
    return {
        "id": channel.id,
        "name": channel.name,
        "is_channel": True,
        "is_im": False,
        "is_private": False,
        "is_member": BOT_USER_ID in channel.members,
        "num_members": len(channel.members),
        **shared,
    }
