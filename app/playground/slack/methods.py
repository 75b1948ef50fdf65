"""What each method of the Web API does, but for those that read conversations (`conversations`)."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.playground.slack.block_kit import (
    MARKDOWN_BLOCK_MAX,
    POST_TEXT_MAX,
    UPDATE_TEXT_MAX,
    check_blocks,
)
from app.playground.slack.interactions import Modals
from app.playground.slack.types import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    Channel,
    FakeSlackConfig,
    JsonObject,
    Message,
    SlackError,
)
from app.playground.slack.workspace import Workspace


class Args:
    """Arguments from any dialect: forms and query strings hold JSON and booleans as text."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) not in (None, "")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    args: Args
    workspace: Workspace
    config: FakeSlackConfig
    tickets: set[str]
    """One-use tickets of Socket Mode addresses."""
    modals: Modals
    host: str

    def channel(self, name: str = "channel", *, writing: bool = False) -> Channel:
        """Returns the channel the call names, where the bot must be a member."""
        found = self.workspace.channel(self.args.required(name, error="channel_not_found"))
        if BOT_USER_ID not in found.members:
            raise SlackError("not_in_channel")
        if writing and found.is_archived:
            raise SlackError("is_archived")
        return found

    @property
    def base_url(self) -> str:
        return f"http://{self.host}"

    def existing_root(self, channel: Channel) -> str:
        """Returns the `thread_ts` the call names, which must be a message that is no reply."""
        thread_ts = self.args.required("thread_ts", error="invalid_thread_ts")
        message = self.workspace.messages[channel.id].get(thread_ts)
        if message is None or message.deleted or message.thread_ts:
            raise SlackError("invalid_thread_ts")
        return thread_ts

    def own_message(self, channel: Channel, *, error: str) -> Message:
        """Returns the message the call names. Source: docs.slack.dev, chat.update: only the app's own, read 2026-11."""
        ts = self.args.required("ts", error="message_not_found")
        message = self.workspace.message(channel.id, ts)
        if not message.is_bot:
            raise SlackError(error)
        return message

    def refuse_open_stream(self, message: Message, *, error: str) -> None:
        """Refuses what is not possible while a message is being streamed."""
        self.workspace.seal(message, lifetime_s=self.config.stream_lifetime_s)
        if message.stream is not None and message.stream.state == "in_progress":
            raise SlackError(error)

    def content(self) -> tuple[str, list[JsonObject] | None]:
        """Returns text and blocks of a message; without blocks in the call, None.

        Raises:
            SlackError: they are not as Slack wants them, or there is nothing to show.
        """
        blocks = _blocks(self.args)
        text = self.args.text("text")[:POST_TEXT_MAX]
        if not text.strip() and not blocks:
            raise SlackError("no_text")
        return text, blocks

    def post(self, channel: Channel, text: str, **fields: Any) -> Message:  # noqa: ANN401 - those of Message
        """Posts as the app, in the thread that the call names."""
        thread_ts = self.args.text("thread_ts") or None
        message = Message(
            ts="", channel=channel.id, user=BOT_USER_ID, text=text, thread_ts=thread_ts, **fields
        )
        return self.workspace.post(channel, message)


Handler = Callable[[Call], JsonObject]


@dataclass(frozen=True, slots=True)
class Rate:
    per_minute: float
    burst: int


# Source: docs.slack.dev, "Rate limits": tier 1: 1+, 2: 20+, 3: 50+, 4: 100+ a minute, bursts tolerated, 429 with Retry-After
# in seconds; chat.postMessage about 1/s a channel plus a workspace cap of several hundred a minute. Read 2026-11. The size
# of a tolerated burst is not published; these are cautious, and of several hundred posts 300 fit into any minute.
TIER_2, TIER_3, TIER_4 = Rate(20, 20), Rate(50, 20), Rate(100, 40)
POST_PER_CHANNEL, POST_PER_WORKSPACE = Rate(60, 5), Rate(180, 120)
SPECIAL = Rate(600, 100)


Caller = Literal["bot", "app", "config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    handler: Handler
    scopes: tuple[str, ...]
    """Any one of these suffices."""
    rate: Rate
    caller: Caller = "bot"
    """Whose token it takes."""


METHODS: dict[str, Method] = {}
POST_MESSAGE = "chat.postMessage"


def method(
    name: str, *scopes: str, rate: Rate = SPECIAL, caller: Caller = "bot"
) -> Callable[[Handler], Handler]:
    """Puts a handler into METHODS. Source: docs.slack.dev, "Required scopes" and tier of each method page, read 2026-11."""

    def register(handler: Handler) -> Handler:
        METHODS[name] = Method(handler=handler, scopes=scopes, rate=rate, caller=caller)
        return handler

    return register


# Source: docs.slack.dev, agents.sessions.setStatus, `status`, read 2026-11.
# Source: docs.slack.dev, assistant.threads.setSuggestedPrompts, `prompts`, read 2026-11.
PROMPTS_MAX = 4
SESSION_STATUSES = frozenset({"processing", "active", "suspended", "closed"})
LOADING_MESSAGES_MAX = 10


@method("api.test")
def _api_test(call: Call) -> JsonObject:
    """Echoes an error on request."""
    if call.args.text("error"):
        raise SlackError(call.args.text("error"))
    return {}


@method("auth.test")
def _auth_test(call: Call) -> JsonObject:
    """Tells who the bot token belongs to."""
    return {
        "url": f"{call.base_url}/",
        "team": "Playground",
        "user": "orion",
        "team_id": TEAM_ID,
        "user_id": BOT_USER_ID,
        "bot_id": BOT_ID,
        "is_enterprise_install": False,
    }


@method("bots.info", "users:read", rate=TIER_3)
def _bot_info(call: Call) -> JsonObject:
    if call.args.text("bot") != BOT_ID:
        raise SlackError("bot_not_found")
    return {"bot": {"id": BOT_ID, "deleted": False, "name": "orion", "app_id": APP_ID}}


@method("apps.manifest.export", rate=TIER_3, caller="config")
def _export_manifest(call: Call) -> JsonObject:
    """Source: Slack Web API, apps.manifest.export, read 2026-11."""
    if call.args.text("app_id") != APP_ID:
        raise SlackError("app_not_found")
    return {"manifest": dict(call.config.manifest)}


@method("apps.connections.open", rate=Rate(20, 20), caller="app")
def _open_connection(call: Call) -> JsonObject:
    """Returns a one-use Socket Mode address."""
    ticket = secrets.token_urlsafe(16)
    call.tickets.add(ticket)
    return {"url": f"ws://{call.host}/socket-mode?ticket={ticket}&app_id={APP_ID}"}


@method(POST_MESSAGE, "chat:write", rate=POST_PER_WORKSPACE)
def _post_message(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    text, blocks = call.content()
    metadata, client_msg_id = metadata_of(call.args), call.args.text("client_msg_id") or None
    message = call.post(
        channel, text, blocks=blocks or [], metadata=metadata, client_msg_id=client_msg_id
    )
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "message": rendered}


@method("chat.update", "chat:write", rate=TIER_3)
def _update(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    message = call.own_message(channel, error="cant_update_message")
    call.refuse_open_stream(message, error="streaming_state_conflict")
    if len(call.args.text("text")) > UPDATE_TEXT_MAX:
        raise SlackError("msg_too_long")
    text, blocks = call.content()
    if "metadata" in call.args:
        message.metadata = metadata_of(call.args)
    # Text without blocks removes the old blocks, and only such an edit is labelled "(edited)".
    # Source: docs.slack.dev, chat.update, "Updating blocks"; the label as measured by integrators. Read 2026-11.
    call.workspace.edit(
        message, text=text, blocks=blocks or [], by=BOT_USER_ID, label=blocks is None
    )
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "text": text, "message": rendered}


@method("chat.delete", "chat:write", rate=TIER_3)
def _delete(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    message = call.own_message(channel, error="cant_delete_message")
    call.refuse_open_stream(message, error="cant_delete_message")
    call.workspace.delete(message, by=BOT_USER_ID)
    return {"channel": channel.id, "ts": message.ts}


@method("chat.postEphemeral", "chat:write", rate=TIER_4)
def _post_ephemeral(call: Call) -> JsonObject:
    """Posts a message that one person sees."""
    channel = call.channel(writing=True)
    user = call.args.required("user", error="user_not_in_channel")
    # Source: docs.slack.dev, chat.postEphemeral: the user must be in the channel, read 2026-11.
    if user not in channel.members:
        raise SlackError("user_not_in_channel")
    text, blocks = call.content()
    message = call.post(channel, text, blocks=blocks or [], ephemeral_to=user)
    return {"message_ts": message.ts}


@method("reactions.add", "reactions:write", rate=TIER_3)
def _add_reaction(call: Call) -> JsonObject:
    channel = call.channel()
    ts = call.args.required("timestamp", error="no_item_specified")
    name = call.args.required("name", error="invalid_name").strip(":")
    message = call.workspace.message(channel.id, ts)
    users = message.reactions.setdefault(name, [])
    if BOT_USER_ID in users:
        raise SlackError("already_reacted")
    call.workspace.react(message, name=name, user=BOT_USER_ID)
    return {}


def _blocks(args: Args) -> list[JsonObject] | None:
    """Returns the blocks of a call; None when it carries none."""
    raw = args.structure("blocks", error="invalid_blocks_format")
    markdown = args.text("markdown_text")
    if markdown:
        # Source: docs.slack.dev, chat.postMessage, `markdown_text`: 12,000 characters, not with text or blocks, read 2026-11.
        if raw or args.text("text"):
            raise SlackError("markdown_text_conflict")
        if len(markdown) > MARKDOWN_BLOCK_MAX:
            raise SlackError("msg_too_long")
        raw = [{"type": "markdown", "text": markdown}]
    return check_blocks(raw) if raw else None


def metadata_of(args: Args) -> JsonObject | None:
    """Returns the metadata of a call. Raises: SlackError: they are not as Slack wants them."""
    raw = args.structure("metadata", error="invalid_metadata_format")
    if raw is None:
        return None
    # Source: docs.slack.dev, "Message metadata": {event_type, event_payload}, both required, read 2026-11.
    if (
        not isinstance(raw, dict)
        or not isinstance(raw.get("event_type"), str)
        or not isinstance(raw.get("event_payload"), dict)
    ):
        raise SlackError("invalid_metadata_format")
    return raw


@method("usergroups.users.list", "usergroups:read", rate=TIER_2)
def _usergroup_members(call: Call) -> JsonObject:
    group = call.args.required("usergroup", error="no_such_subteam")
    if group not in call.workspace.usergroups:
        raise SlackError("no_such_subteam")
    return {"users": call.workspace.usergroups[group]}


@method("users.info", "users:read", rate=TIER_4)
def _user_info(call: Call) -> JsonObject:
    person = call.workspace.person(call.args.required("user", error="user_not_found"))
    user = {
        "id": person.id,
        "team_id": person.team_id,
        "name": person.name.lower(),
        "real_name": person.real_name,
        "deleted": False,
        "is_bot": person.is_bot,
        "is_stranger": person.team_id != TEAM_ID,
        "tz": "Etc/UTC",
        "profile": {
            "display_name": person.name,
            "real_name": person.real_name,
            "team": person.team_id,
        },
    }
    return {"user": user}


@method("files.getUploadURLExternal", "files:write", rate=TIER_4)
def _upload_url(call: Call) -> JsonObject:
    """Gives the address for the first of an upload's two calls. Source: docs.slack.dev, "Working with files" (upload), read 2026-11."""
    name = call.args.required("filename", error="invalid_arguments")
    size = call.args.number("length", default=0)
    if size < 1:
        raise SlackError("invalid_arguments")
    stored = call.workspace.files.reserve(name=name, size=size)
    return {"upload_url": f"{call.base_url}/upload/{stored.id}", "file_id": stored.id}


@method("files.info", "files:read", rate=TIER_4)
def _file_info(call: Call) -> JsonObject:
    """Tells all of a file; what it holds is fetched by its address."""
    stored = call.workspace.files.get(call.args.required("file", error="file_not_found"))
    if stored is None:
        raise SlackError("file_not_found")
    return {"file": stored.render(base_url=call.base_url)}


@method("files.completeUploadExternal", "files:write", rate=TIER_4)
def _complete_upload(call: Call) -> JsonObject:
    """Shares what was uploaded."""
    listed = call.args.structure("files", error="invalid_arguments")
    if not isinstance(listed, list) or not listed:
        raise SlackError("invalid_arguments")
    rendered = []
    for item in listed:
        stored = call.workspace.files.get(str(item.get("id"))) if isinstance(item, dict) else None
        if stored is None or stored.content is None:
            raise SlackError("file_not_found")
        rendered.append(stored.render(base_url=call.base_url))
    if "channel_id" in call.args:
        channel = call.channel("channel_id", writing=True)
        call.post(channel, call.args.text("initial_comment"), files=rendered)
    # The message's ts is not part of the answer: Slack shares files asynchronously.
    return {"files": [{"id": item["id"], "title": item["title"]} for item in rendered]}
