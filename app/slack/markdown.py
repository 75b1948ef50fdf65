"""Markdown as Slack takes it, in parts that it takes; and Slack's control sequences and escapes, to and from text."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.markdown import MAX_CLOSING_CHARS, Element, Kind, closed, scan

_TOKEN: Final = re.compile(r"<([@#!]?)([^<>|\n]*)(?:\|([^<>\n]*))?>")
_ANY_MENTION: Final = re.compile(r"<(?:@[UW]|!subteam\^|!here|!channel|!everyone)[^<>\n]*>")
"""Source: Slack, "Formatting text for app surfaces", tokens in angle brackets, read 2026-11."""


def readable(text: str, *, bot_user_id: str) -> str:
    """Returns text as its author meant it: the bot's mention removed, tokens spelled out, escapes undone.

    Source: Slack, "Formatting text for app surfaces", tokens in angle brackets and the three escapes, read 2026-11.
    """
    text = text.replace("\x00", "")
    if bot_user_id:
        mention = _mention_of(bot_user_id)
        text = re.sub(rf"(?m)^[ \t]*{mention}[:,]?[ \t]*", "", text)
        text = re.sub(rf"(?<![ \t])[ \t]*+{mention}", "", text)
    return unescape(_TOKEN.sub(_spell_out, text)).strip()


def unescape(text: str) -> str:
    """Undoes Slack's three escapes."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def escape(text: str) -> str:
    """Writes Slack's three escapes, for mrkdwn and text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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


MAX_PART_CHARS: Final = 10_000
"""A message takes about 13,200 rendered characters. Source: field reports on Slack's markdown block, read 2026-11."""
MAX_PART_ELEMENTS: Final = 35
"""Each heading, rule, fence or table becomes a block of its own, and more than 50 blocks fail. Source: as above."""

_HEADING_COST_CHARS: Final = 100
"""What a heading adds to the rendered size. Source: as above."""
_CLOSING_RESERVE_CHARS: Final = 2 * MAX_CLOSING_CHARS + 2
_MIN_PART_CHARS: Final = 500
_MAX_HELD_CHARS: Final = 16
"""How long what must not be cut in two may be."""

_TASK: Final = re.compile(
    r"(?m)^([ \t>]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t][ \t>]*+)++)\[([ xX])\](?=[ \t])"
)
_BOXES: Final = {" ": "\u2610", "x": "\u2611", "X": "\u2611"}
_ESCAPE: Final = re.compile(r"&#?\w{0,7}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of the input and the repair before it. The bodies of all pieces, joined, are the input."""

    prefix: str = ""
    body: str = field(repr=False)

    @property
    def part(self) -> str:
        """Returns it fit to stand alone: a fence may be open at its end that the list around it has ended, of which it has no more than the end."""
        return closed((self.prefix + self.body).strip("\n"))


def split_markdown(
    text: str, *, max_chars: int = MAX_PART_CHARS, max_elements: int = MAX_PART_ELEMENTS
) -> tuple[str, ...]:
    """Returns parts in order, each within both limits and none empty. `max_chars` is at least 500.

    Lines end with line feeds in them, and items of task lists begin with boxes.
    """
    pieces = split_pieces(with_boxes(text), max_chars=max_chars, max_elements=max_elements)
    return tuple(piece.part for piece in pieces if piece.body.strip())


def with_boxes(text: str) -> str:
    """Returns a text with boxes for `[ ]` and `[x]` at the start of list items, and line feeds for all other line ends.

    Source: slackapi/node-slack-sdk issue 2390, messages with task lists were refused, read 2026-11.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not _TASK.search(text):
        return text
    return "".join(
        stretch if kind is Kind.FENCE else _TASK.sub(_box, stretch)
        for kind, stretch in ((one.kind, text[one.start : one.end]) for one in scan(text))
    )


def _box(task: re.Match[str]) -> str:
    return task[1] + _BOXES[task[2]]


def split_pieces(text: str, *, max_chars: int, max_elements: int) -> tuple[Piece, ...]:
    """Returns the parts with their repairs apart, in order; a text of other line ends is cut at line feeds alone.

    Raises:
        ValueError: parts of `max_chars` would be too small to repair (below 500).
    """
    if max_chars < _MIN_PART_CHARS:
        message = f"parts of {max_chars} characters are too small to repair"
        raise ValueError(message)
    elements = scan(text)
    pieces: list[Piece] = []
    at, index = 0, 0
    while at < len(text):
        prefix = _repair(elements[index], text, at, max_chars=max_chars)
        room = max_chars - _CLOSING_RESERVE_CHARS
        part = _Part(text, elements[index : index + max_elements], at, room=room - len(prefix))
        end = part.end(whole=room)
        while elements[index].end < end:
            index += 1
        pieces.append(Piece(prefix=prefix, body=text[at:end]))
        at, index = end, index + (end == elements[index].end)
    return tuple(pieces)


def tail_markdown(text: str, *, max_chars: int) -> str:
    """Returns the end of an answer that is being written, of no more elements than a part has, fit to stand alone."""
    text = with_boxes(text)
    elements = scan(text)[-MAX_PART_ELEMENTS:]
    room = max_chars - 2 * MAX_CLOSING_CHARS
    start = elements[0].start if elements else 0
    repair = ""
    if len(text) - start > room:
        start = len(text) - room
        start = text.find("\n", start - 1, start + room // 2) + 1 or start
        element = next(element for element in elements if element.end > start)
        repair = _repair(element, text, start, max_chars=max_chars)
        if len(repair) + len(text) - start > room + MAX_CLOSING_CHARS:
            repair = ""
    return closed((repair + text[start:]).strip("\n"))


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a part ends that begins at an offset in the first of some elements."""

    text: str = field(repr=False)
    elements: Sequence[Element] = field(repr=False)
    """As many as a part may have."""
    at: int
    room: int

    def end(self, *, whole: int) -> int:
        """Before the element that overflows, if that fills the part well enough or keeps the element whole; `whole`: what a part has room for."""
        filled = 0
        for number, element in enumerate(self.elements):
            start = max(element.start, self.at)
            cost = element.end - start
            cost += _HEADING_COST_CHARS if element.kind is Kind.HEADING else 0
            if filled + cost > self.room:
                if number and (filled * 3 >= self.room or cost <= whole):
                    return self._end(number)
                return self._cut(element, start, start + self.room - filled)
            filled += cost
        is_rest = self.elements[-1].end == len(self.text)
        return len(self.text) if is_rest else self._end(len(self.elements))

    def _end(self, number: int) -> int:
        """Returns where so many elements end, without the headings at their end, unless they are nothing else."""
        kept = number
        while kept and self.elements[kept - 1].kind is Kind.HEADING:
            kept -= 1
        return self.elements[(kept or number) - 1].end

    def _cut(self, element: Element, start: int, limit: int) -> int:
        """Returns the best place to cut an element in two: after its beginning, at the limit or before."""
        marks = ("\n\n", "\n", " ") if element.kind is Kind.TEXT else ("\n", " ")
        for mark in marks:
            cut = self.text.rfind(mark, start + (limit - start) // 3, limit) + len(mark)
            if cut >= len(mark):
                break
        else:
            cut = _held(self.text, start, limit)
        if element.kind is Kind.FENCE and cut >= element.content_end:
            # What would be left is the closing line.
            after = self.text.find("\n", element.content_end) + 1 or element.end
            return after if after - cut <= MAX_CLOSING_CHARS else cut
        return cut


def _held(text: str, start: int, limit: int) -> int:
    """Returns the limit, or a little before it: escapes, and characters that are joined to one, are not cut in two."""
    if escape_ := _ESCAPE.search(text, max(start + 1, limit - _MAX_HELD_CHARS), limit):
        return escape_.start()
    for cut in range(limit, max(start, limit - _MAX_HELD_CHARS), -1):
        if not (_joins(text[cut : cut + 1]) or text[cut - 1] == "\u200d"):
            return cut
    return limit


def _joins(character: str) -> bool:
    """Whether it changes the one before: marks, joiners, variants and skin tones."""
    return unicodedata.category(character or " ").startswith("M") or (
        character in {"\u200d", *map(chr, range(0x1F3FB, 0x1F400))}
    )


def _repair(element: Element, text: str, at: int, *, max_chars: int) -> str:
    """Returns what a part that begins there must repeat."""
    if not element.is_parted_at(at) or len(element.opening) > max_chars // 4:
        return ""
    # The rest of a table's row is no row any more.
    return element.opening if element.kind is Kind.FENCE or text[at - 1] == "\n" else ""


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
    """Returns short escaped text for notifications and for clients without blocks; where it is cut, its fence is closed."""
    # Five characters at the most come of one.
    escaped = escape(text.strip()[: max_chars + 1])
    if len(escaped) <= max_chars:
        return escaped
    # An escape must not be cut in two, and each character of the closing line may be one.
    room = max_chars - 4 * MAX_CLOSING_CHARS - 2
    begun = re.sub(r"&[a-z]{0,3}$", "", escaped[:room]).rstrip()
    return escape(closed(f"{unescape(begun)}…"))


def _quiet_token(token: re.Match[str]) -> str:
    name = (token[2] or token[1]).split("^")[0]
    return f"@{_ZERO_WIDTH}{name}"


def _quiet_mention(token: re.Match[str], *, asker: str) -> str:
    return f"<@{asker}>" if asker and token[1] == asker else f"@{token[1]}"
