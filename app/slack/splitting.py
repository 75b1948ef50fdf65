"""Cuts a Markdown text into parts that a Slack message takes, closing and reopening fences, repeating table heads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.slack.structure import (
    MAX_CLOSING_CHARS,
    Region,
    balanced,
    lines_of,
    parse,
    regions_of,
    starts_of,
)

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
        """Fit to stand alone."""
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
    """Parts in order, each within both limits and none empty. `max_chars` is at least 500."""
    pieces = split_pieces(text, max_chars=max_chars, max_elements=max_elements)
    return tuple(piece.part for piece in pieces if piece.body.strip())


def split_pieces(text: str, *, max_chars: int, max_elements: int) -> tuple[Piece, ...]:
    """The parts with their repairs apart."""
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
    """The end of an answer that is being written, fit to stand alone."""
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
    """The index after the last stretch of the part that begins at `start`."""
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
    """Before the element that overflows, if that fills the part well enough or keeps the element whole."""
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
