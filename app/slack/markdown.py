"""Standard Markdown made harmless for Slack: pings nobody, and has a short plain form."""

import re
from typing import Final

from app.slack.splitting import split_markdown, tail_markdown
from app.slack.text import escape

__all__ = ["neutralise", "plain_fallback", "split_markdown", "tail_markdown"]

_ZERO_WIDTH: Final = "\u200b"
_BROADCAST_TOKEN: Final = re.compile(
    r"<!(channel|here|everyone|group|subteam\^[^<>|\s]*)(?:\|@?([^<>\n]*))?>", re.IGNORECASE
)
_BROADCAST_WORD: Final = re.compile(r"(?<!\w)@(channel|here|everyone|group)\b", re.IGNORECASE)
_USER_TOKEN: Final = re.compile(r"<@([UW][A-Z0-9]*)(?:\|[^<>\n]*)?>")


def neutralise(text: str, *, asker: str = "") -> str:
    """The same to read, but it pings nobody except the asker.

    Slack's tokens work in markdown blocks, in code too. Source: Slack, "Formatting text", broadcast tokens, read 2026-11.
    """
    text = _BROADCAST_TOKEN.sub(_quiet_token, text)
    text = _BROADCAST_WORD.sub(rf"@{_ZERO_WIDTH}\1", text)
    return _USER_TOKEN.sub(lambda token: _quiet_mention(token, asker=asker), text)


def plain_fallback(text: str, *, max_chars: int = 2_900) -> str:
    """Short escaped text for notifications and for clients without blocks."""
    # Five characters at the most come of one.
    escaped = escape(text.strip()[: max_chars + 1])
    if len(escaped) <= max_chars:
        return escaped
    # An escape must not be cut in two.
    return re.sub(r"&[a-z]{0,3}$", "", escaped[: max_chars - 1]).rstrip() + "…"


def _quiet_token(token: re.Match[str]) -> str:
    name = (token[2] or token[1]).split("^")[0]
    return f"@{_ZERO_WIDTH}{name}"


def _quiet_mention(token: re.Match[str], *, asker: str) -> str:
    return f"<@{asker}>" if asker and token[1] == asker else f"@{token[1]}"
