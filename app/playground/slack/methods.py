"""What each method of the Web API does."""

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
TIER_3, TIER_4 = Rate(50, 20), Rate(100, 40)
POST_PER_CHANNEL, POST_PER_WORKSPACE = Rate(60, 5), Rate(180, 120)
SPECIAL = Rate(600, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    handler: Handler
    scopes: tuple[str, ...]
    """Any one of these suffices."""
    rate: Rate
    takes_app_token: bool


METHODS: dict[str, Method] = {}
POST_MESSAGE = "chat.postMessage"
_HISTORY = ("channels:history", "groups:history", "im:history", "mpim:history")
_READ = ("channels:read", "groups:read", "im:read", "mpim:read")


def _method(
    name: str, *scopes: str, rate: Rate = SPECIAL, takes_app_token: bool = False
) -> Callable[[Handler], Handler]:
    """Puts a handler into METHODS. Source: docs.slack.dev, "Required scopes" and tier of each method page, read 2026-11."""

    def register(handler: Handler) -> Handler:
        METHODS[name] = Method(
            handler=handler, scopes=scopes, rate=rate, takes_app_token=takes_app_token
        )
        return handler

    return register


def _channel_json(channel: Channel) -> JsonObject:
    """Returns a channel as conversations.info shows it."""
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


# Source: docs.slack.dev, agents.sessions.setStatus, `status`, read 2026-11.
SESSION_STATUSES = frozenset({"processing", "active", "suspended", "closed"})
LOADING_MESSAGES_MAX = 10


@_method("api.test")
def _api_test(call: Call) -> JsonObject:
    """Echoes an error on request."""
    if call.args.text("error"):
        raise SlackError(call.args.text("error"))
    return {}


@_method("auth.test")
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


@_method("apps.connections.open", rate=Rate(20, 20), takes_app_token=True)
def _open_connection(call: Call) -> JsonObject:
    """Returns a one-use Socket Mode address."""
    ticket = secrets.token_urlsafe(16)
    call.tickets.add(ticket)
    return {"url": f"ws://{call.host}/socket-mode?ticket={ticket}&app_id={APP_ID}"}


@_method("assistant.threads.setStatus", "chat:write", "assistant:write")
def _set_thread_status(call: Call) -> JsonObject:
    """The line under a thread; clears itself, see `status_lifetime_s`."""
    channel = call.channel("channel_id", writing=True)
    thread_ts = call.existing_root(channel)
    loading = call.args.structure("loading_messages", error="invalid_arguments")
    if isinstance(loading, list) and len(loading) > LOADING_MESSAGES_MAX:
        raise SlackError("invalid_arguments")
    until = call.workspace.now().timestamp() + call.config.status_lifetime_s
    call.workspace.set_status(channel.id, thread_ts, status=call.args.text("status"), until=until)
    return {}


@_method("agents.sessions.setStatus", "chat:write", rate=TIER_3)
def _set_session_status(call: Call) -> JsonObject:
    """`processing` shows the native Stop."""
    channel = call.channel("channel_id", writing=True)
    status = call.args.required("status", error="invalid_arguments")
    if status not in SESSION_STATUSES:
        raise SlackError("invalid_arguments")
    thread_ts = call.existing_root(channel)
    call.workspace.set_status(channel.id, thread_ts, session=status)
    return {"session": {"channel_id": channel.id, "thread_ts": thread_ts, "status": status}}


@_method(POST_MESSAGE, "chat:write", rate=POST_PER_WORKSPACE)
def _post_message(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    text, blocks = call.content()
    metadata, client_msg_id = _metadata(call.args), call.args.text("client_msg_id") or None
    message = call.post(
        channel, text, blocks=blocks or [], metadata=metadata, client_msg_id=client_msg_id
    )
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "message": rendered}


@_method("chat.update", "chat:write", rate=TIER_3)
def _update(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    message = call.own_message(channel, error="cant_update_message")
    if len(call.args.text("text")) > UPDATE_TEXT_MAX:
        raise SlackError("msg_too_long")
    text, blocks = call.content()
    if "metadata" in call.args:
        message.metadata = _metadata(call.args)
    # Text without blocks removes the old blocks, and only such an edit is labelled "(edited)".
    # Source: docs.slack.dev, chat.update, "Updating blocks"; the label as measured by integrators. Read 2026-11.
    call.workspace.edit(
        message, text=text, blocks=blocks or [], by=BOT_USER_ID, label=blocks is None
    )
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "text": text, "message": rendered}


@_method("chat.delete", "chat:write", rate=TIER_3)
def _delete(call: Call) -> JsonObject:
    channel = call.channel(writing=True)
    message = call.own_message(channel, error="cant_delete_message")
    call.workspace.delete(message, by=BOT_USER_ID)
    return {"channel": channel.id, "ts": message.ts}


@_method("chat.postEphemeral", "chat:write", rate=TIER_4)
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


@_method("reactions.add", "reactions:write", rate=TIER_3)
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


def _metadata(args: Args) -> JsonObject | None:
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


# Source: docs.slack.dev, conversations.replies and conversations.history, `limit`, read 2026-11.
# Source: docs.slack.dev, "Rate limit changes for non-Marketplace apps": 15 objects, once a minute, read 2026-11.
REPLIES_DEFAULT, REPLIES_MAX = 1000, 1000
HISTORIES, DISTRIBUTED_ITEMS = frozenset({"conversations.history", "conversations.replies"}), 15
HISTORY_DEFAULT, HISTORY_MAX = 100, 999


@_method("conversations.replies", *_HISTORY, rate=TIER_3)
def _replies(call: Call) -> JsonObject:
    """Returns a thread's messages, oldest first; the root leads every page, the later ones too (Source: integrators' reports, read 2026-11)."""
    channel = call.channel()
    ts = call.args.required("ts", error="thread_not_found")
    thread = call.workspace.thread(channel.id, ts)
    if not thread:
        raise SlackError("thread_not_found")
    root, rest = thread[0], _between(thread[1:], call.args)
    limit = _history_limit(call, default=REPLIES_DEFAULT, maximum=REPLIES_MAX)
    offset = _offset(call.args)
    # The root counts on the first page only.
    end = offset + (limit - 1 if offset == 0 else limit)
    return _page(call, [root, *rest[offset:end]], next_offset=end if end < len(rest) else None)


@_method("conversations.history", *_HISTORY, rate=TIER_3)
def _history(call: Call) -> JsonObject:
    """Returns a channel's messages, newest first, without replies."""
    channel = call.channel()
    messages = _between(call.workspace.top_level(channel.id), call.args)[::-1]
    offset = _offset(call.args)
    end = offset + _history_limit(call, default=HISTORY_DEFAULT, maximum=HISTORY_MAX)
    return _page(call, messages[offset:end], next_offset=end if end < len(messages) else None)


@_method("conversations.info", *_READ, rate=TIER_3)
def _info(call: Call) -> JsonObject:
    """Needs no membership."""
    found = call.workspace.channel(call.args.required("channel", error="channel_not_found"))
    return {"channel": _channel_json(found)}


# Source: docs.slack.dev, users.conversations, `types` and the scope of each, `limit`, read 2026-11.
_TYPE_SCOPES = {
    "public_channel": "channels:read",
    "private_channel": "groups:read",
    "mpim": "mpim:read",
    "im": "im:read",
}
LIST_DEFAULT, LIST_MAX = 100, 999


@_method("users.conversations", *_READ, rate=TIER_3)
def _conversations(call: Call) -> JsonObject:
    """Lists where the bot is a member, of the types that are asked for."""
    kinds = (call.args.text("types") or "public_channel").split(",")
    for kind in kinds:
        if kind not in _TYPE_SCOPES:
            raise SlackError("invalid_types")
        if _TYPE_SCOPES[kind] not in call.config.scopes:
            provided = ",".join(sorted(call.config.scopes))
            fields = {"needed": _TYPE_SCOPES[kind], "provided": provided}
            raise SlackError("missing_scope", fields=fields)
    found = [
        channel
        for channel in call.workspace.channels.values()
        if BOT_USER_ID in channel.members
        and ("im" if channel.im_user else "public_channel") in kinds
        and not (channel.is_archived and call.args.flag("exclude_archived"))
    ]
    offset = _offset(call.args)
    end = offset + _limit(call.args, default=LIST_DEFAULT, maximum=LIST_MAX)
    return {
        "channels": [_channel_json(channel) for channel in found[offset:end]],
        "response_metadata": {"next_cursor": _cursor(end if end < len(found) else None)},
    }


@_method("conversations.open", "im:write", rate=TIER_3)
def _open_dm(call: Call) -> JsonObject:
    """Opens the DM with one person."""
    ref = call.args.text("channel") or call.args.text("users")
    if "," in ref:
        raise SlackError("method_not_supported_for_channel_type")
    channel = call.workspace.channel(ref) if ref else None
    if channel is None or channel.im_user is None:
        raise SlackError("users_list_not_supplied" if not ref else "user_not_found")
    body = _channel_json(channel) if call.args.flag("return_im") else {"id": channel.id}
    return {"channel": body}


@_method("users.info", "users:read", rate=TIER_4)
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


def _page(call: Call, messages: Sequence[Message], *, next_offset: int | None) -> JsonObject:
    with_metadata = call.args.flag("include_all_metadata")
    return {
        "messages": [call.workspace.render(item, with_metadata=with_metadata) for item in messages],
        "has_more": next_offset is not None,
        "response_metadata": {"next_cursor": _cursor(next_offset)},
    }


def _cursor(next_offset: int | None) -> str:
    return "" if next_offset is None else base64.b64encode(f"next:{next_offset}".encode()).decode()


def _between(messages: Sequence[Message], args: Args) -> list[Message]:
    """`oldest` and `latest` exclude their own ts unless `inclusive`."""
    oldest, latest = args.text("oldest"), args.text("latest")
    inclusive = args.flag("inclusive")
    return [
        message
        for message in messages
        if _after(message.ts, oldest, inclusive=inclusive)
        and (not latest or _after(latest, message.ts, inclusive=inclusive))
    ]


def _after(ts: str, bound: str, *, inclusive: bool) -> bool:
    if bound in {"", "0"}:
        return True
    left, right = _parts(ts), _parts(bound)
    return left > right or (inclusive and left == right)


def _parts(ts: str) -> tuple[int, str]:
    seconds, _, micros = ts.partition(".")
    if not seconds.isdigit() or (micros and not micros.isdigit()):
        raise SlackError("invalid_ts_latest")
    return int(seconds), micros.ljust(6, "0")


def _limit(args: Args, *, default: int, maximum: int) -> int:
    limit = args.number("limit", default=default)
    if not 1 <= limit <= maximum:
        raise SlackError("invalid_limit")
    return limit


def _history_limit(call: Call, *, default: int, maximum: int) -> int:
    limit = _limit(call.args, default=default, maximum=maximum)
    return min(limit, DISTRIBUTED_ITEMS) if call.config.is_distributed else limit


def _offset(args: Args) -> int:
    cursor = args.text("cursor")
    if not cursor:
        return 0
    try:
        word, _, offset = base64.b64decode(cursor, validate=True).decode().partition(":")
        if word != "next":
            raise SlackError("invalid_cursor")
        return int(offset)
    except ValueError as exc:
        raise SlackError("invalid_cursor") from exc


@_method("files.getUploadURLExternal", "files:write", rate=TIER_4)
def _upload_url(call: Call) -> JsonObject:
    """Gives the address for the first of an upload's two calls. Source: docs.slack.dev, "Working with files" (upload), read 2026-11."""
    name = call.args.required("filename", error="invalid_arguments")
    size = call.args.number("length", default=0)
    if size < 1:
        raise SlackError("invalid_arguments")
    stored = call.workspace.files.reserve(name=name, size=size)
    return {"upload_url": f"{call.base_url}/upload/{stored.id}", "file_id": stored.id}


@_method("files.info", "files:read", rate=TIER_4)
def _file_info(call: Call) -> JsonObject:
    """Tells all of a file; what it holds is fetched by its address."""
    stored = call.workspace.files.get(call.args.required("file", error="file_not_found"))
    if stored is None:
        raise SlackError("file_not_found")
    return {"file": stored.render(base_url=call.base_url)}


@_method("files.completeUploadExternal", "files:write", rate=TIER_4)
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


@_method("views.open", rate=TIER_4)
def _open_view(call: Call) -> JsonObject:
    trigger_id = call.args.required("trigger_id", error="invalid_arguments")
    view = call.args.structure("view", error="invalid_arguments")
    return {"view": call.modals.open(trigger_id, view)}
