"""The methods of the Web API that tell where the app is, and what was said there."""

import base64
from collections.abc import Sequence

from app.playground.slack.methods import TIER_3, Args, Call, method
from app.playground.slack.types import BOT_USER_ID, Channel, JsonObject, Message, SlackError

_HISTORY = ("channels:history", "groups:history", "im:history", "mpim:history")
_READ = ("channels:read", "groups:read", "im:read", "mpim:read")


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


# Source: docs.slack.dev, conversations.replies and conversations.history, `limit`, read 2026-11.
# Source: docs.slack.dev, "Rate limit changes for non-Marketplace apps": 15 objects, once a minute, read 2026-11.
REPLIES_DEFAULT, REPLIES_MAX = 1000, 1000
HISTORIES, DISTRIBUTED_ITEMS = frozenset({"conversations.history", "conversations.replies"}), 15
HISTORY_DEFAULT, HISTORY_MAX = 100, 999


@method("conversations.replies", *_HISTORY, rate=TIER_3)
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


@method("conversations.history", *_HISTORY, rate=TIER_3)
def _history(call: Call) -> JsonObject:
    """Returns a channel's messages, newest first, without replies."""
    channel = call.channel()
    messages = _between(call.workspace.top_level(channel.id), call.args)[::-1]
    offset = _offset(call.args)
    end = offset + _history_limit(call, default=HISTORY_DEFAULT, maximum=HISTORY_MAX)
    return _page(call, messages[offset:end], next_offset=end if end < len(messages) else None)


@method("conversations.info", *_READ, rate=TIER_3)
def _info(call: Call) -> JsonObject:
    """Needs no membership."""
    found = call.workspace.channel(call.args.required("channel", error="channel_not_found"))
    # Of direct messages between others an app knows nothing. Source: docs.slack.dev, conversations.info, read 2026-11.
    if found.im_user and BOT_USER_ID not in found.members:
        raise SlackError("channel_not_found")
    return {"channel": _channel_json(found)}


# Source: docs.slack.dev, users.conversations, `types` and the scope of each, `limit`, read 2026-11.
_TYPE_SCOPES = {
    "public_channel": "channels:read",
    "private_channel": "groups:read",
    "mpim": "mpim:read",
    "im": "im:read",
}
LIST_DEFAULT, LIST_MAX = 100, 999


@method("users.conversations", *_READ, rate=TIER_3)
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


@method("conversations.open", "im:write", rate=TIER_3)
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
