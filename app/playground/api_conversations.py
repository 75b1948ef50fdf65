"""conversations.* and users.info: reading what was said, a page at a time."""

import base64
from collections.abc import Sequence

from app.playground.slack_call import Args, Call, channel_json
from app.playground.slack_types import TEAM_ID, JsonObject, Message, Person, SlackError

# Source: docs.slack.dev, conversations.replies and conversations.history, `limit`, read 2026-11.
REPLIES_DEFAULT, REPLIES_MAX = 1000, 1000
HISTORY_DEFAULT, HISTORY_MAX = 100, 999


def replies(call: Call) -> JsonObject:
    """Oldest first; the root leads every page, the later ones too (Source: integrators' reports, read 2026-11)."""
    channel = call.channel()
    ts = call.args.required("ts", error="thread_not_found")
    thread = call.workspace.thread(channel.id, ts)
    if not thread:
        raise SlackError("thread_not_found")
    root, rest = thread[0], _between(thread[1:], call.args)
    limit = _limit(call.args, default=REPLIES_DEFAULT, maximum=REPLIES_MAX)
    offset = _offset(call.args)
    # The root counts on the first page only.
    end = offset + (limit - 1 if offset == 0 else limit)
    return _page(call, [root, *rest[offset:end]], next_offset=end if end < len(rest) else None)


def history(call: Call) -> JsonObject:
    """Newest first, without replies."""
    channel = call.channel()
    messages = _between(call.workspace.top_level(channel.id), call.args)[::-1]
    offset = _offset(call.args)
    end = offset + _limit(call.args, default=HISTORY_DEFAULT, maximum=HISTORY_MAX)
    return _page(call, messages[offset:end], next_offset=end if end < len(messages) else None)


def info(call: Call) -> JsonObject:
    """conversations.info; needs no membership."""
    found = call.workspace.channel(call.args.required("channel", error="channel_not_found"))
    return {"channel": channel_json(found)}


def open_dm(call: Call) -> JsonObject:
    """conversations.open for one person."""
    ref = call.args.text("channel") or call.args.text("users")
    if "," in ref:
        raise SlackError("method_not_supported_for_channel_type")
    channel = call.workspace.channel(ref) if ref else None
    if channel is None or channel.im_user is None:
        raise SlackError("users_list_not_supplied" if not ref else "user_not_found")
    body = channel_json(channel) if call.args.flag("return_im") else {"id": channel.id}
    return {"channel": body}


def user_info(call: Call) -> JsonObject:
    """users.info."""
    return {
        "user": _user(call.workspace.person(call.args.required("user", error="user_not_found")))
    }


def _user(person: Person) -> JsonObject:
    return {
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


def _page(call: Call, messages: Sequence[Message], *, next_offset: int | None) -> JsonObject:
    with_metadata = call.args.flag("include_all_metadata")
    cursor = (
        "" if next_offset is None else base64.b64encode(f"next:{next_offset}".encode()).decode()
    )
    return {
        "messages": [call.workspace.render(item, with_metadata=with_metadata) for item in messages],
        "has_more": next_offset is not None,
        "response_metadata": {"next_cursor": cursor},
    }


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
