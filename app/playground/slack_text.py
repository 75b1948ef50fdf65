"""What a person types, as Slack stores and sends it: escaped, with mentions and links as tokens."""

import re

from app.playground.slack_types import JsonObject

# Source: docs.slack.dev, "Formatting message text": exactly these three characters are escaped, read 2026-11.
_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))

_TOKEN = re.compile(r"<(?:@[UW][A-Z0-9]+|#C[A-Z0-9]+(?:\|[^<>|]*)?|!(?:here|channel|everyone))>")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_URL = re.compile(r"https?://[^\s<>|]+[^\s<>|.,;:!?)\]}'\"]")
_PIECE = re.compile(r"<@([UW][A-Z0-9]+)>|<(https?://[^|>]+)(?:\|([^>]*))?>")


def escape(text: str) -> str:
    """Slack's three entities."""
    for char, entity in _ESCAPES:
        text = text.replace(char, entity)
    return text


def as_sent(typed: str, names: dict[str, str]) -> str:
    """The `text` Slack makes of what was typed; `names` maps display names to user ids for `@Name`.

    Tokens such as `<@U0ORION>` pass through, addresses become `<https://...>` outside code.
    """
    out: list[str] = []
    end = 0
    for match in _CODE.finditer(typed):
        out += (_prose(typed[end : match.start()], names), escape(match.group()))
        end = match.end()
    out.append(_prose(typed[end:], names))
    return "".join(out)


def _prose(text: str, names: dict[str, str]) -> str:
    out: list[str] = []
    end = 0
    for match in _TOKEN.finditer(text):
        out += (_plain(text[end : match.start()], names), match.group())
        end = match.end()
    out.append(_plain(text[end:], names))
    return "".join(out)


def _plain(text: str, names: dict[str, str]) -> str:
    # Addresses are found before escaping, so that "&" inside one is escaped once and ends nothing.
    text = _URL.sub(
        lambda match: f"\x00{match.group()}\x01", text.replace("\x00", "").replace("\x01", "")
    )
    text = escape(text).replace("\x00", "<").replace("\x01", ">")
    for name, user in names.items():
        text = re.sub(rf"(?<![\w<])@{re.escape(name)}\b", f"<@{user}>", text, flags=re.IGNORECASE)
    return text


def rich_text(text: str) -> list[JsonObject]:
    """The `blocks` of a person's message, as Slack's own composer writes them (plain sections only)."""
    elements: list[JsonObject] = []
    end = 0
    for match in _PIECE.finditer(text):
        elements += _text_element(text[end : match.start()])
        if match.group(1):
            elements.append({"type": "user", "user_id": match.group(1)})
        else:
            elements.append({"type": "link", "url": unescape(match.group(2))})
        end = match.end()
    elements += _text_element(text[end:])
    section = {"type": "rich_text_section", "elements": elements}
    return [{"type": "rich_text", "block_id": "person", "elements": [section]}]


def _text_element(text: str) -> list[JsonObject]:
    return [{"type": "text", "text": unescape(text)}] if text else []


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    for char, entity in reversed(_ESCAPES):
        text = text.replace(entity, char)
    return text
