"""What a Slack message holds besides its text: of an event, of a history and of a forwarded message alike."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from app.runs.request import AttachedFile, MessageContent
from app.slack.block_text import (
    joined,
    link,
    moment_of,
    quoted,
    text_of_blocks,
    text_of_element,
    text_of_text,
)
from app.slack.fields import Node, object_of, objects_of, text_of
from app.slack.markdown import readable
from app.slack.signature import TS, is_id

MAX_SHARED_CHARS: Final = 40_000
"""Of all that comes with a message: as much as Slack takes as its text. Source: Slack Web API, chat.postMessage, read 2026-11."""
MAX_FILES: Final = 50
MAX_LOOKED_AT: Final = 3
_MAX_DEPTH: Final = 3
"""Of forwarded messages in forwarded messages."""
_NO_PREVIEW: Final = "[no preview available]"
"""Slack's fallback where an attachment's content is elsewhere, or nowhere. Source: Slack, message attachments, seen 2026-11."""
_FORWARDED: Final = ("is_share", "is_msg_unfurl", "is_reply_unfurl")
"""Source: Slack, messages that people share and links to messages, seen 2026-11."""
_SAID: Final = re.compile(r"\w+|[^\w\s*_~`>|\\#]")
"""A word or a sign; without those that style, which blocks write otherwise than a text."""
_LIST_MARK: Final = re.compile(r"^[\s>]*[-•◦▪]\s", re.MULTILINE)
_MENTION: Final = re.compile(r"[@#][UWSC][A-Z0-9]{2,}(?![A-Z0-9])")


def content_of(message: Node) -> MessageContent:
    """Returns what comes with a message and is not in its text, each thing as Markdown of its own; and its files.

    People's messages repeat in blocks what their text says, those of apps often have it in blocks alone, and a table is
    in no text at all.
    """
    text = readable(text_of(message, "text"), bot_user_id="")
    said, unnamed = _line_of(text), _words(_MENTION.sub(" ", text))
    shared = [
        block
        for kind, block in text_of_blocks(message)
        if not (_is_within(block, unnamed) if kind == "rich_text" else _line_of(block) in said)
    ]
    shared += _looked_at(message)
    files = list(_files(message))
    left_out: list[str] = []
    for attachment in objects_of(message, "attachments"):
        shared.append(_attachment(attachment, depth=0))
        files += _files_in(attachment, depth=0)
        if _is_forwarded(attachment) and not _forwarded_body(attachment, depth=0):
            left_out.append(
                joined(
                    ["a forwarded message that Slack does not show here", _source(attachment)], ": "
                )
            )
    return _bounded(list(filter(None, shared)), files, left_out)


_CONTEXT_KINDS: Final = {
    "slack#/types/channel_id": "the channel {name}",
    "slack#/types/canvas_id": "the canvas {name}",
    "slack#/types/list_id": "the list {name}",
    "slack#/types/message_context": "a message in {name}",
}


def _looked_at(message: Node) -> Iterator[str]:
    """Yields what the person had open when they wrote to the app, by name and link; it is never fetched.

    Source: Slack, `app_context` of messages in agent_view, entities ordered by relevance, read 2026-11.
    """
    context = object_of(message, "app_context")
    for entity in objects_of(context, "entities")[:MAX_LOOKED_AT]:
        kind, value = text_of(entity, "type"), text_of(entity, "value")
        at = object_of(entity, "value")
        channel, ts = text_of(at, "channel_id") or value, text_of(at, "message_ts")
        if kind not in _CONTEXT_KINDS or not is_id(channel):
            continue
        is_place = kind.endswith(("channel_id", "message_context"))
        what = _CONTEXT_KINDS[kind].format(name=f"#{channel}" if is_place else channel)
        team = text_of(entity, "team_id")
        yield f"They had open: {link(what, _address(team, channel, ts, is_place=is_place))}"


def _address(team: str, one: str, ts: str, *, is_place: bool) -> str:
    """Returns where Slack's own client shows it; empty where the workspace is not named."""
    if not is_id(team):
        return ""
    if not is_place:
        return f"https://app.slack.com/docs/{team}/{one}"
    thread = f"/thread/{one}-{ts}" if TS.fullmatch(ts) else ""
    return f"https://app.slack.com/client/{team}/{one}{thread}"


def _bounded(
    shared: Sequence[str], files: Sequence[AttachedFile], left_out: Sequence[str]
) -> MessageContent:
    room, kept = MAX_SHARED_CHARS, []
    for text in dict.fromkeys(shared):
        kept.append(text[:room])
        room -= len(kept[-1])
    lost = sum(map(len, dict.fromkeys(shared))) - sum(map(len, kept))
    unique = tuple({file.key: file for file in files}.values())
    return MessageContent(
        shared=tuple(filter(None, kept)),
        files=unique[:MAX_FILES],
        left_out=(
            *left_out,
            *([f"the last {lost:,} characters of what came with the message"] if lost else []),
            *(f"{file.name} (beyond the first {MAX_FILES} files)" for file in unique[MAX_FILES:]),
        ),
    )


def is_repeated(text: str, shared: Sequence[str]) -> bool:
    """Whether what came with a message says each line of its text."""
    said = _line_of("\n".join(shared))
    return all(_line_of(line) in said for line in set(text.splitlines()))


def _is_within(text: str, unnamed: Sequence[str]) -> bool:
    """Whether the words of a text are said in their order, but for mentions, which a rich text writes otherwise."""
    rest = iter(unnamed)
    return all(word in rest for word in _words(_MENTION.sub(" ", text)))


def _line_of(text: str) -> str:
    """Returns the words of a text between single spaces, which begin and end it: what another one may have in it whole."""
    return "".join(f" {word}" for word in _words(text)) + " "


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _SAID.findall(_LIST_MARK.sub("", text))]


# -- attachments -------------------------------------------------------------------------------------------------------


def _attachment(attachment: Node, *, depth: int) -> str:
    """Returns a forwarded message, an app's card or a link's preview as Markdown, quoted: nobody said it in this thread.

    Source: Slack, secondary message attachments, read 2026-11.
    """
    if _is_forwarded(attachment):
        body = _forwarded_body(attachment, depth=depth) or "(Slack does not show it here)"
        return quoted(joined([_forwarded_head(attachment), body]))
    address = text_of(attachment, "title_link") or text_of(attachment, "from_url")
    picture = text_of(attachment, "image_url") or text_of(attachment, "thumb_url")
    fields = (
        joined([text_of_text(field, "title"), text_of_text(field, "value")], ": ")
        for field in objects_of(attachment, "fields")
    )
    card = joined(
        [
            text_of(attachment, "author_name") or text_of(attachment, "service_name"),
            link(text_of_text(attachment, "title"), address),
            text_of_text(attachment, "text"),
            *(text for _, text in text_of_blocks(attachment)),
            *fields,
            f"[image {picture}]" if picture else "",
            joined(map(text_of_element, objects_of(attachment, "actions")), " "),
            joined([text_of_text(attachment, "footer"), moment_of(attachment, "ts")], ", "),
        ]
    )
    return joined([text_of_text(attachment, "pretext"), quoted(card or _fallback(attachment))])


def _is_forwarded(attachment: Node) -> bool:
    return any(attachment.get(name) is True for name in _FORWARDED)


def _forwarded_head(attachment: Node) -> str:
    names = (text_of(attachment, name) for name in ("author_name", "author_subname"))
    author = " / ".join(dict.fromkeys(filter(None, names))) or text_of(attachment, "author_id")
    place = text_of(attachment, "channel_name") or text_of(attachment, "channel_id")
    words = [
        "Forwarded message",
        f"by {author}" if author else "",
        f"in #{place}" if place else "",
        moment_of(attachment, "ts"),
        f"({source})" if (source := _source(attachment)) else "",
    ]
    return f"{joined(words, ' ')}:"


def _forwarded_body(attachment: Node, *, depth: int) -> str:
    messages = (carrier.get("message") for carrier in objects_of(attachment, "message_blocks"))
    said = [
        text
        for message in messages
        if isinstance(message, dict)
        for _, text in text_of_blocks(message)
    ]
    said = said or [text_of_text(attachment, "text")]
    said += (text for _, text in text_of_blocks(attachment) if text not in said)
    if depth < _MAX_DEPTH:
        inner = objects_of(attachment, "attachments")
        said += (_attachment(one, depth=depth + 1) for one in inner)
    said += (f"[file {file.name}]" for file in _files(attachment))
    return joined(said) or _fallback(attachment)


def _fallback(attachment: Node) -> str:
    fallback = text_of_text(attachment, "fallback")
    return "" if fallback == _NO_PREVIEW else fallback


def _source(attachment: Node) -> str:
    return text_of(attachment, "from_url") or text_of(attachment, "original_url")


# -- files -------------------------------------------------------------------------------------------------------------


def _files_in(attachment: Node, *, depth: int) -> Iterator[AttachedFile]:
    yield from _files(attachment)
    if depth < _MAX_DEPTH:
        for inner in objects_of(attachment, "attachments"):
            yield from _files_in(inner, depth=depth + 1)


def _files(carrier: Node) -> Iterator[AttachedFile]:
    for file in objects_of(carrier, "files"):
        name = text_of(file, "name") or text_of(file, "title") or text_of(file, "id")
        size = file.get("size")
        if name:
            yield AttachedFile(
                id=text_of(file, "id"),
                name=name,
                media_type=text_of(file, "mimetype"),
                size=size if isinstance(size, int) and size >= 0 else None,
                url=text_of(file, "url_private_download") or text_of(file, "url_private"),
                mode="" if file.get("file_access") == "check_file_info" else text_of(file, "mode"),
            )
