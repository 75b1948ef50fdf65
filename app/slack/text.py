"""Slack's control sequences and escapes, to and from text as a person reads it."""

import re
from typing import Final

from app.runs.options import INVISIBLE

_TOKEN: Final = re.compile(r"<([@#!]?)([^<>|\n]*)(?:\|([^<>\n]*))?>")
_INVISIBLE: Final = re.compile(f"[{INVISIBLE}]")
_STOP: Final = re.compile(r"\W*stop\W*", re.IGNORECASE)


def readable(text: str, *, bot_user_id: str) -> str:
    """Text as its author meant it: the bot's mention removed, tokens spelled out, escapes undone.

    Source: Slack, "Formatting text for app surfaces", tokens in angle brackets and the three escapes, read 2026-11.
    """
    text = text.replace("\x00", "")
    if bot_user_id:
        mention = rf"<@{re.escape(bot_user_id)}(?:\|[^<>\n]*)?>"
        text = re.sub(rf"(?m)^[ \t]*{mention}[:,]?[ \t]*", "", text)
        text = re.sub(rf"[ \t]*{mention}", "", text)
    return unescape(_TOKEN.sub(_spell_out, text)).strip()


def unescape(text: str) -> str:
    """Undo Slack's three escapes."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def escape(text: str) -> str:
    """Slack's three escapes, for mrkdwn and text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def is_stop(text: str) -> bool:
    """The bare word, in any case, with or without punctuation. `text` is readable text."""
    return _STOP.fullmatch(_INVISIBLE.sub("", text)) is not None


def mentions(text: str, *, user_id: str) -> bool:
    """Whether raw text mentions that user."""
    return bool(user_id) and re.search(rf"<@{re.escape(user_id)}(?:\|[^<>\n]*)?>", text) is not None


def _spell_out(token: re.Match[str]) -> str:
    sigil, target, label = token.group(1), token.group(2), token.group(3) or ""
    match sigil:
        case "@":
            return f"@{label or target}"
        case "#":
            return f"#{label or target}"
        case "!":
            # <!here|here>, <!subteam^S1|@group>, <!date^1^{date}|1 Jan>: the label is what Slack shows.
            name = label or target.split("^")[0]
            return name if name.startswith("@") or "^" in target else f"@{name}"
        case _:
            return _spell_out_link(token.group(0), target=target, label=label)


def _spell_out_link(raw: str, *, target: str, label: str) -> str:
    if not re.match(r"[a-z][a-z0-9+.-]*:", target):
        return raw
    if not label or label in (target, target.split(":", 1)[1].lstrip("/")):
        return label or target
    return f"{label} ({target})"
