"""Markdown as Slack takes it, in parts that it takes; and Slack's control sequences and escapes, to and from text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from app.runs.options import INVISIBLE

_TOKEN: Final = re.compile(r"<([@#!]?)([^<>|\n]*)(?:\|([^<>\n]*))?>")
_INVISIBLE: Final = re.compile(f"[{INVISIBLE}]")
_ANY_MENTION: Final = re.compile(r"<(?:@[UW]|!subteam\^|!here|!channel|!everyone)[^<>\n]*>")
"""Source: Slack, "Formatting text for app surfaces", tokens in angle brackets, read 2026-11."""
_BARE_WORD: Final = re.compile(r"\W*(stop|mute|unmute)\W*", re.IGNORECASE)


def readable(text: str, *, bot_user_id: str) -> str:
    """Returns text as its author meant it: the bot's mention removed, tokens spelled out, escapes undone.

    Source: Slack, "Formatting text for app surfaces", tokens in angle brackets and the three escapes, read 2026-11.
    """
    text = text.replace("\x00", "")
    if bot_user_id:
        mention = _mention_of(bot_user_id)
        text = re.sub(rf"(?m)^[ \t]*{mention}[:,]?[ \t]*", "", text)
        text = re.sub(rf"[ \t]*{mention}", "", text)
    return unescape(_TOKEN.sub(_spell_out, text)).strip()


def unescape(text: str) -> str:
    """Undoes Slack's three escapes."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def escape(text: str) -> str:
    """Writes Slack's three escapes, for mrkdwn and text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bare_word(text: str) -> str:
    """Returns `stop`, `mute` or `unmute` where a readable text is nothing else, in any case, with or without punctuation; else nothing."""
    found = _BARE_WORD.fullmatch(_INVISIBLE.sub("", text))
    return found[1].lower() if found else ""


def mentions(text: str, *, user_id: str) -> bool:
    """Whether raw text mentions that user."""
    return bool(user_id) and re.search(_mention_of(user_id), text) is not None


def mentions_anybody(text: str) -> bool:
    """Whether raw text mentions a person, a group of people, or all of a channel."""
    return _ANY_MENTION.search(text) is not None


def _mention_of(user_id: str) -> str:
    """Returns the pattern of its token, with or without a label."""
    return rf"<@{re.escape(user_id)}(?:\|[^<>\n]*)?>"


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
    """Returns lines with their ends; joined, they are the text."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def starts_of(tokens: Sequence[Token]) -> Mapping[int, str]:
    """Returns the kind of each top-level element by its line."""
    return {token.map[0]: token.type for token in tokens if token.level == 0 and token.map}


def regions_of(tokens: Sequence[Token], lines: Sequence[str]) -> Mapping[int, Region]:
    """Returns the fence or table that each line belongs to; nested ones too."""
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
    """Parses CommonMark with tables."""
    # The parser takes a carriage return for a line end; here only line feeds count.
    return _PARSER.parse(text.replace("\r", " ").replace("\x00", " "))


def balanced(text: str) -> str:
    """Returns the text, with the fence closed that is open at its end."""
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


MAX_PART_CHARS: Final = 10_000
"""A message takes about 13,200 rendered characters. Source: field reports on Slack's markdown block, read 2026-11."""
MAX_PART_ELEMENTS: Final = 35
"""Each heading, fence or table becomes a block of its own, and more than 50 blocks fail. Source: as above."""

_HEADING_COST_CHARS: Final = 100
"""What a heading adds to the rendered size. Source: as above."""
_CLOSING_RESERVE_CHARS: Final = 2 * MAX_CLOSING_CHARS + 2
_MIN_PART_CHARS: Final = 500
_MAX_PARSED_TAIL_CHARS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of the input and the repair before it. The bodies of all pieces, joined, are the input."""

    prefix: str = ""
    body: str = field(repr=False)

    @property
    def part(self) -> str:
        """Returns it fit to stand alone."""
        return balanced((self.prefix + self.body).strip("\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A line, or a bit of one that is too long."""

    text: str = field(repr=False)
    element: str = ""
    """Kind of the top-level element that starts here, or empty."""
    repair: str = ""
    """What a cut before it must repeat."""
    closes_fence: bool = False

    @property
    def cost(self) -> int:
        return len(self.text) + (_HEADING_COST_CHARS if self.element == "heading_open" else 0)


def split_markdown(
    text: str, *, max_chars: int = MAX_PART_CHARS, max_elements: int = MAX_PART_ELEMENTS
) -> tuple[str, ...]:
    """Returns parts in order, each within both limits and none empty. `max_chars` is at least 500."""
    pieces = split_pieces(text, max_chars=max_chars, max_elements=max_elements)
    return tuple(piece.part for piece in pieces if piece.body.strip())


def split_pieces(text: str, *, max_chars: int, max_elements: int) -> tuple[Piece, ...]:
    """Returns the parts with their repairs apart."""
    if max_chars < _MIN_PART_CHARS:
        message = f"parts of {max_chars} characters are too small to repair"
        raise ValueError(message)
    stretches = _stretches(text, max_chars=max_chars)
    pieces: list[Piece] = []
    start = 0
    while start < len(stretches):
        end = _end_of_part(
            stretches, start, budget=max_chars - _CLOSING_RESERVE_CHARS, max_elements=max_elements
        )
        body = "".join(stretch.text for stretch in stretches[start:end])
        pieces.append(Piece(prefix=stretches[start].repair if start else "", body=body))
        start = end
    return tuple(pieces)


def tail_markdown(text: str, *, max_chars: int) -> str:
    """Returns the end of an answer that is being written, fit to stand alone."""
    if len(text) > _MAX_PARSED_TAIL_CHARS:
        text = text[-_MAX_PARSED_TAIL_CHARS:].partition("\n")[2] or text[-_MAX_PARSED_TAIL_CHARS:]
    if len(text) > max_chars - MAX_CLOSING_CHARS:
        stretches = _stretches(text, max_chars=max_chars)
        room = max_chars - 2 * MAX_CLOSING_CHARS
        start = len(stretches)
        while start > 0 and room >= len(stretches[start - 1].text):
            start -= 1
            room -= len(stretches[start].text)
        repair = stretches[start].repair if start < len(stretches) else ""
        repair = repair if len(repair) <= room + MAX_CLOSING_CHARS else ""
        text = repair + "".join(stretch.text for stretch in stretches[start:])
    return balanced(text.strip("\n"))


def _end_of_part(
    stretches: Sequence[_Stretch], start: int, *, budget: int, max_elements: int
) -> int:
    """Returns the index after the last stretch of the part that begins at `start`."""
    cost = len(stretches[start].repair)
    elements = 1
    last_element = start
    for index in range(start, len(stretches)):
        stretch = stretches[index]
        if index > start and stretch.element:
            elements += 1
            last_element = index
        if elements > max_elements:
            return index
        cost += stretch.cost
        if cost > budget and index > start and not stretch.closes_fence:
            return _best_cut(stretches, start, last_element, index, budget=budget)
    return len(stretches)


def _best_cut(
    stretches: Sequence[_Stretch], start: int, element: int, overflow: int, *, budget: int
) -> int:
    """Cuts before the element that overflows, if that fills the part well enough or keeps the element whole."""
    if element == start:
        return overflow
    filled = sum(stretch.cost for stretch in stretches[start:element])
    if filled * 3 >= budget or _fits(stretches, element, budget=budget):
        return element
    return overflow


def _fits(stretches: Sequence[_Stretch], element: int, *, budget: int) -> bool:
    cost = 0
    for index in range(element, len(stretches)):
        if index > element and stretches[index].element:
            break
        cost += stretches[index].cost
        if cost > budget:
            return False
    return True


def _stretches(text: str, *, max_chars: int) -> list[_Stretch]:
    lines = lines_of(text)
    tokens = parse(text)
    starts, regions = starts_of(tokens), regions_of(tokens, lines)
    stretches: list[_Stretch] = []
    for number, line in enumerate(lines):
        region = regions.get(number)
        for index, stretch in enumerate(_short(line, max_chars=max_chars // 3)):
            stretches.append(
                _Stretch(
                    text=stretch,
                    element=starts.get(number, "") if index == 0 else "",
                    repair=_repair(region, number, is_within_line=index > 0, max_chars=max_chars),
                    closes_fence=region is not None
                    and number > region.last_content
                    and len(line) <= MAX_CLOSING_CHARS,
                )
            )
    return stretches


def _repair(region: Region | None, number: int, *, is_within_line: bool, max_chars: int) -> str:
    if region is None or len(region.opening) > max_chars // 4:
        return ""
    if is_within_line:
        # The rest of a table's row is no row any more.
        return region.opening if region.closing else ""
    return region.opening if region.parted_before(number) else ""


def _short(line: str, *, max_chars: int) -> list[str]:
    stretches: list[str] = []
    while len(line) > max_chars:
        cut = line.rfind(" ", max_chars // 2, max_chars) + 1 or max_chars
        stretches.append(line[:cut])
        line = line[cut:]
    return [*stretches, line]


__all__ = ["neutralise", "plain_fallback", "split_markdown", "tail_markdown"]

_ZERO_WIDTH: Final = "\u200b"
_BROADCAST_TOKEN: Final = re.compile(
    r"<!(channel|here|everyone|group|subteam\^[^<>|\s]*)(?:\|@?([^<>\n]*))?>", re.IGNORECASE
)
_BROADCAST_WORD: Final = re.compile(r"(?<!\w)@(channel|here|everyone|group)\b", re.IGNORECASE)
_USER_TOKEN: Final = re.compile(r"<@([UW][A-Z0-9]*)(?:\|[^<>\n]*)?>")


def neutralise(text: str, *, asker: str = "") -> str:
    """Returns a text that is the same to read, but pings nobody except the asker.

    Slack's tokens work in markdown blocks, in code too. Source: Slack, "Formatting text", broadcast tokens, read 2026-11.
    """
    text = _BROADCAST_TOKEN.sub(_quiet_token, text)
    text = _BROADCAST_WORD.sub(rf"@{_ZERO_WIDTH}\1", text)
    return _USER_TOKEN.sub(lambda token: _quiet_mention(token, asker=asker), text)


def plain_fallback(text: str, *, max_chars: int = 2_900) -> str:
    """Returns short escaped text for notifications and for clients without blocks."""
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
