"""Where a Markdown text may be cut: its top-level elements, and the fences and tables that need a repair when parted."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_CLOSING_CHARS: Final = 60
"""Longer fences are not repaired."""

_PARSER: Final = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Lines of a fence or a table, and what makes a later stretch of them stand alone."""

    start: int
    end: int
    """After the last line."""
    opening: str
    """Goes before a later stretch."""
    closing: str
    """Goes after an earlier stretch; empty for tables."""
    last_content: int
    """A cut after this line would part nothing but the closing line."""

    def parted_before(self, number: int) -> bool:
        """Whether a cut before that line needs the repair. The head of a table cannot be repeated in itself."""
        head_lines = 1 if self.closing else 2
        return self.start + head_lines <= number < self.end


def lines_of(text: str) -> list[str]:
    """Lines with their ends; joined, they are the text."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def starts_of(tokens: Sequence[Token]) -> Mapping[int, str]:
    """Line to kind of each top-level element."""
    return {token.map[0]: token.type for token in tokens if token.level == 0 and token.map}


def regions_of(tokens: Sequence[Token], lines: Sequence[str]) -> Mapping[int, Region]:
    """Line to the fence or table it belongs to; nested ones too."""
    regions: dict[int, Region] = {}
    for token in tokens:
        if token.map is None or token.map[0] >= len(lines):
            continue
        region = None
        if token.type == "fence":
            region = _fence(token, lines)
        elif token.type == "table_open":
            region = _table(token, lines)
        if region is not None:
            regions.update(dict.fromkeys(range(region.start, region.end), region))
    return regions


def parse(text: str) -> list[Token]:
    """CommonMark with tables."""
    # The parser takes a carriage return for a line end; here only line feeds count.
    return _PARSER.parse(text.replace("\r", " ").replace("\x00", " "))


def balanced(text: str) -> str:
    """The text, with the fence closed that is open at its end."""
    lines = lines_of(text)
    for token in reversed(parse(text)):
        if token.type != "fence" or token.map is None or token.map[1] < len(lines):
            continue
        region = _fence(token, lines)
        if region is None or _is_closed(token):
            return text
        return f"{text.removesuffix(chr(10))}\n{region.closing}"
    return text


def _is_closed(fence: Token) -> bool:
    start, end = fence.map or (0, 0)
    content = fence.content
    content_lines = content.count("\n") + (1 if content and not content.endswith("\n") else 0)
    return end - start >= content_lines + 2


def _fence(token: Token, lines: Sequence[str]) -> Region | None:
    start, end = token.map or (0, 0)
    column = lines[start].find(token.markup)
    if column < 0 or column + len(token.markup) > MAX_CLOSING_CHARS:
        return None
    # A list's marker must not be repeated, a quote's must.
    indent = re.sub(r"[^\s>]", " ", lines[start][:column])
    info = token.info.strip()
    if column + len(token.markup) + len(info) > MAX_CLOSING_CHARS:
        info = ""
    # Four spaces would make the fence itself code once it stands outside its list.
    reopening_indent = indent if ">" in indent or len(indent) < 4 else ""  # noqa: PLR2004
    return Region(
        start=start,
        end=end,
        opening=f"{reopening_indent}{token.markup}{info}\n",
        closing=indent + token.markup,
        last_content=end - 2 if _is_closed(token) else end - 1,
    )


def _table(token: Token, lines: Sequence[str]) -> Region:
    start, end = token.map or (0, 0)
    head = "".join(lines[start : start + 2])
    return Region(start=start, end=end, opening=head, closing="", last_content=end - 1)
