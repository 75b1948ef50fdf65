"""chat.* and reactions.add."""

from app.playground.limits import MARKDOWN_BLOCK_MAX, check_blocks, check_update_text, posted_text
from app.playground.slack_call import Args, Call
from app.playground.slack_types import BOT_USER_ID, JsonObject, Message, SlackError


def post_message(call: Call) -> JsonObject:
    """chat.postMessage."""
    channel = call.channel(writing=True)
    blocks = _blocks(call.args)
    text = posted_text(call.args.text("text"))
    if not text.strip() and not blocks:
        raise SlackError("no_text")
    message = call.workspace.post(
        channel,
        Message(
            ts="",
            channel=channel.id,
            user=BOT_USER_ID,
            text=text,
            blocks=blocks or [],
            thread_ts=call.args.text("thread_ts") or None,
            metadata=_metadata(call.args),
            client_msg_id=call.args.text("client_msg_id") or None,
        ),
    )
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "message": rendered}


def update(call: Call) -> JsonObject:
    """chat.update."""
    channel = call.channel(writing=True)
    message = call.workspace.message(
        channel.id, call.args.required("ts", error="message_not_found")
    )
    # Source: docs.slack.dev, chat.update: only the app's own messages, read 2026-11.
    if message.user != BOT_USER_ID:
        raise SlackError("cant_update_message")
    text = call.args.text("text")
    check_update_text(text)
    blocks = _blocks(call.args)
    if not text.strip() and not blocks:
        raise SlackError("no_text")
    if "metadata" in call.args:
        message.metadata = _metadata(call.args)
    # Text without blocks removes the old blocks, and only such an edit is labelled "(edited)".
    # Source: docs.slack.dev, chat.update, "Updating blocks"; the label as measured by integrators. Read 2026-11.
    call.workspace.edit(
        message, text=text, blocks=blocks or [], by=BOT_USER_ID, label=blocks is None
    )
    rendered = call.workspace.render(message, with_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "text": text, "message": rendered}


def delete(call: Call) -> JsonObject:
    """chat.delete."""
    channel = call.channel(writing=True)
    message = call.workspace.message(
        channel.id, call.args.required("ts", error="message_not_found")
    )
    if message.user != BOT_USER_ID:
        raise SlackError("cant_delete_message")
    call.workspace.delete(message, by=BOT_USER_ID)
    return {"channel": channel.id, "ts": message.ts}


def post_ephemeral(call: Call) -> JsonObject:
    """chat.postEphemeral: one person sees it."""
    channel = call.channel(writing=True)
    user = call.args.required("user", error="user_not_in_channel")
    # Source: docs.slack.dev, chat.postEphemeral: the user must be in the channel, read 2026-11.
    if user not in channel.members:
        raise SlackError("user_not_in_channel")
    blocks = _blocks(call.args)
    text = posted_text(call.args.text("text"))
    if not text.strip() and not blocks:
        raise SlackError("no_text")
    message = call.workspace.post(
        channel,
        Message(
            ts="",
            channel=channel.id,
            user=BOT_USER_ID,
            text=text,
            blocks=blocks or [],
            thread_ts=call.args.text("thread_ts") or None,
            ephemeral_to=user,
        ),
    )
    return {"message_ts": message.ts}


def add_reaction(call: Call) -> JsonObject:
    """reactions.add."""
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
    """None when the call carries no blocks."""
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
