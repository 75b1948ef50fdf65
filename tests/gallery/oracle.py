"""What markdown-it-py, which Orion itself does not use, finds in a text."""

from __future__ import annotations

from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")
"""Without HTML: Slack shows it as text."""


def visible_text(text: str) -> str:
    """What a reader sees, in order, without spaces: of paragraphs, code, cells, and the numbers of lists."""
    return "".join("".join(_visible(PARSER.parse(text))).split())


def _visible(tokens: Iterable[Token]) -> Iterable[str]:
    for token in tokens:
        if token.type == "list_item_open":
            yield token.info
        elif token.children:
            yield from _visible(token.children)
        elif token.type == "image" or token.type not in {"inline"}:
            yield token.content


def has_open_fence(text: str) -> bool:
    """Whether a fence reaches the end of the text, and would swallow what comes after it."""
    lines = text.count("\n") + 1
    for token in reversed(PARSER.parse(text)):
        if token.type == "fence" and token.map is not None:
            start, end = token.map
            content = token.content.removesuffix("\n")
            inner = content.count("\n") + 1 if token.content else 0
            return end >= lines and end - start < inner + 2
    return False


def elements(text: str) -> list[tuple[str, int, int]]:
    """Fences, tables, headings and rules, nested ones too: kind, first line, line after the last."""
    kinds = {"fence": "fence", "table_open": "table", "heading_open": "heading", "hr": "rule"}
    return [
        (kinds[token.type], token.map[0], token.map[1])
        for token in PARSER.parse(text)
        if token.type in kinds and token.map is not None
    ]
