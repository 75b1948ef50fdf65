"""Markdown by its elements: headings, rules, fences, tables and the text between, found line by line in one pass. Pure.

A line is what ends with a line feed. CommonMark with tables, but for what only matters inside text. Source: CommonMark 0.31
and GitHub Flavored Markdown, sections on blocks and tables, read 2026-11.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

MAX_CLOSING_CHARS: Final = 60
"""A fence whose closing line would be longer is neither closed nor opened again; a longer mark is none."""
_CODE_INDENT: Final = 4
"""So many columns more than its container: a line is code, and opens nothing."""

_MARKER: Final = r"(?:[-*+]|\d{1,9}[.)])"
_LINE: Final = re.compile(
    rf"""\n(?:
      [ ]{{0,3}}(?P<rule>(?:-[ \t]*+)++|(?:\*[ \t]*+){{3,}}+|(?:_[ \t]*+){{3,}}+|=++[ \t]*+)(?=\n|\Z)
    | (?P<lead>(?:[ \t>]|(?P<marker>{_MARKER})(?:[ \t]|(?=\n|\Z)))*+)
      (?:(?P<fence>`{{3,{MAX_CLOSING_CHARS}}}+(?=[^`\n]*+(?:\n|\Z))|~{{3,{MAX_CLOSING_CHARS}}}+(?!~))
         (?P<info>[^\n]*+)
        |(?P<heading>\#{{1,6}})(?=[ \t\n]|\Z)
        |(?P<delimiter>[|:-][-:|\ \t]*+)(?=\n|\Z)
        |(?(marker)|(?!)))
    | (?=[ \t]*+\n(?P<text>(?!{_MARKER}[ \t]|`{{3}}|~{{3}})[^\s>\#|]))
    )""",
    re.VERBOSE,
)
"""Lines that begin something. Nothing in it is tried twice, so that it is linear."""
_ROWS: Final = re.compile(
    rf"(?:\n(?![ ]{{0,3}}(?:#{{1,6}}[ \t]|>|`{{3}}|~{{3}}|{_MARKER}[ \t]))[^\n|]*+\|[^\n]*+)*+"
)
_CONTAINER: Final = re.compile(rf"[ \t]*+(?:>|{_MARKER}(?=\s|\Z))")
_INDENTED: Final = re.compile(r"\n(?P<indent>[ \t]*+)\S")
_BAR: Final = re.compile(r"(?<!\\)\|")


class Kind(StrEnum):
    TEXT = "text"
    """A run of paragraphs, lists and quotes; each blank line before a paragraph ends one, as does another element."""
    HEADING = "heading"
    RULE = "rule"
    FENCE = "fence"
    TABLE = "table"


class Element(NamedTuple):
    """A stretch of a text, with the blank lines after it. Offsets count characters; the elements of a text, joined, are the text."""

    kind: Kind
    start: int
    end: int
    content_start: int = 0
    """Of a fence: after its opening line. Of a table: after head and delimiter row."""
    content_end: int = 0
    """Before the closing line of a fence that has one."""
    opening: str = ""
    """What makes a later stretch of a fence or a table stand alone, with its line feed."""
    closing: str = ""
    """What ends an earlier stretch of a fence; empty for all else."""
    is_closed: bool = True
    """Not so: a fence that ends with the text, or with the list or quote around it."""

    def is_parted_at(self, offset: int) -> bool:
        """Whether a cut there parts its content, so that the rest must be opened again."""
        return self.content_start <= offset < self.content_end and bool(self.opening)


def scan(text: str) -> Sequence[Element]:
    """Returns the elements of a text, in order and without gaps. In time that grows with the length alone."""
    return _Scanner(text).elements()


def closed(text: str) -> str:
    """Returns the text, with the fence closed that is open at its end."""
    elements = scan(text)
    last = elements[-1] if elements else None
    if last is None or last.is_closed or not last.closing or last.content_end < len(text):
        return text
    return f"{text.removesuffix(chr(10))}\n{elements[-1].closing}"


def cells(row: str) -> list[str]:
    """Returns the cells of a table's row, without the space around them."""
    row = row.strip().removeprefix("|")
    parts = _BAR.split(row)
    if parts[-1].strip() == "" and len(parts) > 1:
        parts.pop()
    return [part.strip().replace(r"\|", "|") for part in parts]


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        # Every line has its line feed before it; the offset of that is the offset of the line in the text.
        self._source = "\n" + text
        self._elements: list[Element] = []
        self._at = 0
        """Where the last element ends."""
        self._columns: list[int] = []
        """Where the content of the list items around begins, outer ones first."""

    def elements(self) -> Sequence[Element]:
        at = 0
        while line := _LINE.search(self._source, at):
            at = self._read(line)
        self._add_text(until=len(self._text))
        return self._elements

    def _read(self, line: re.Match[str]) -> int:
        """Takes what begins in a line; returns from where in the source to go on."""
        if line["text"]:
            self._columns.clear()
            self._add_text(until=line.start("text") - 1)
            return line.end()
        if line["rule"]:
            return self._rule(line)
        column = self._enter(line)
        if column is None:
            return line.end()
        if line["fence"]:
            return self._fence(line, column)
        if line["heading"]:
            self._add(Element(Kind.HEADING, line.start(), self._after_line(line.end())))
        elif line["delimiter"]:
            return self._table(line)
        return line.end()

    def _enter(self, line: re.Match[str]) -> int | None:
        """Returns where the content of the line's container begins; none where the line is code."""
        lead = line["lead"].expandtabs(_CODE_INDENT)
        indent = len(lead) - len(lead.lstrip(" "))
        if line["marker"] and lead[-1] != " ":
            self._enter_empty(line, indent=indent, column=len(lead) + 1)
            return None
        self._leave(indent)
        if line["marker"]:
            self._columns.append(len(lead))
        column = self._columns[-1] if self._columns else 0
        is_code = indent - column >= _CODE_INDENT and not line["marker"]
        return None if is_code else column

    def _enter_empty(self, line: re.Match[str], *, indent: int, column: int) -> None:
        """Enters a list item whose text begins in the next line, if it does; it does not part a paragraph."""
        self._leave(indent)
        text = _INDENTED.match(self._source, line.end())
        is_inside = text is not None and len(text["indent"].expandtabs(_CODE_INDENT)) >= column
        if is_inside and self._paragraph_before(line.start()) is None:
            self._columns.append(column)

    def _leave(self, indent: int) -> None:
        """Leaves the list items whose content begins further right."""
        while self._columns and self._columns[-1] > indent:
            self._columns.pop()

    def _rule(self, line: re.Match[str]) -> int:
        """A rule, or what makes a heading of the line before."""
        head = self._paragraph_before(line.start())
        mark = line["rule"].strip()
        if head is not None and set(mark) in ({"-"}, {"="}):
            self._add(Element(Kind.HEADING, head, self._after_line(line.end())))
        elif len(mark) > 2 and mark[0] != "=":  # noqa: PLR2004 - three make a rule
            self._add(Element(Kind.RULE, line.start(), self._after_line(line.end())))
        elif mark == "-":
            indent = line.start("rule") - line.start() - 1
            self._enter_empty(line, indent=indent, column=indent + 2)
        return line.end()

    def _fence(self, line: re.Match[str], column: int) -> int:
        lead, mark, info = line["lead"], line["fence"], line["info"].strip()
        is_quoted = ">" in lead
        end = _end_of_fence(mark[0], len(mark), 0 if is_quoted else column, is_quoted=is_quoted)
        found = end.search(self._source, line.end())
        is_closed = found is not None and found["close"] is not None
        # A list's marker must not be repeated, a quote's must.
        indent = re.sub(r"[^\s>]", " ", lead)
        is_short = len(indent) + len(mark) <= MAX_CLOSING_CHARS
        if len(indent) + len(mark) + len(info) > MAX_CLOSING_CHARS:
            info = ""
        # Four spaces would make the fence itself code once it stands outside its list.
        reopening = indent if is_quoted or len(indent) < _CODE_INDENT else ""
        content_end = len(self._text) if found is None else found.start()
        after = len(self._text) if found is None else found.start()
        if found is not None and is_closed:
            after = self._after_line(found.end())
        elif outside := _INDENTED.match(self._source, after):
            self._leave(len(outside["indent"].expandtabs(_CODE_INDENT)))
        self._add(
            Element(
                Kind.FENCE,
                line.start(),
                after,
                content_start=self._after_line(line.end()),
                content_end=content_end,
                opening=f"{reopening}{mark}{info}\n" if is_short else "",
                closing=indent + mark if is_short else "",
                is_closed=is_closed,
            )
        )
        return after

    def _table(self, line: re.Match[str]) -> int:
        head = self._line_before(line.start())
        rule = line["delimiter"]
        if head is None or "|" not in rule or "-" not in rule:
            return line.end()
        if len(cells(self._text[head : line.start()])) != len(cells(rule)):
            return line.end()
        rows = _ROWS.match(self._source, line.end())
        end = self._after_line(rows.end() if rows else line.end())
        rows_start = self._after_line(line.end())
        self._add(
            Element(
                Kind.TABLE,
                head,
                end,
                content_start=rows_start,
                content_end=end,
                opening=self._text[head:rows_start],
            )
        )
        return end

    def _line_before(self, start: int) -> int | None:
        """Returns where the line before begins; none if it is blank, or part of an element."""
        if start == 0:
            return None
        before = self._source.rfind("\n", 0, start)
        if before < self._at or not self._text[before:start].strip():
            return None
        return before

    def _paragraph_before(self, start: int) -> int | None:
        """Returns where the line before begins, if it is a paragraph's; none also if a list item or a quote begins in it."""
        before = self._line_before(start)
        if before is None or _CONTAINER.match(self._text, before):
            return None
        return before

    def _after_line(self, end: int) -> int:
        """Returns where the line after one begins that goes on there in the source."""
        after = self._source.find("\n", end)
        return len(self._text) if after < 0 else after

    def _add(self, element: Element) -> None:
        self._add_text(until=element.start)
        self._elements.append(element)
        self._at = element.end

    def _add_text(self, *, until: int) -> None:
        if until <= self._at:
            return
        if self._elements and self._text[self._at : until].isspace():
            self._elements[-1] = self._elements[-1]._replace(end=until)
        else:
            self._elements.append(Element(Kind.TEXT, self._at, until))
        self._at = until


@lru_cache(maxsize=64)
def _end_of_fence(mark: str, length: int, column: int, *, is_quoted: bool) -> re.Pattern[str]:
    """Returns the pattern of a fence's closing line, or of the first line outside the list item or quote around it."""
    close = rf"(?P<close>{mark}{{{length},}}+[ \t]*+(?=\n|\Z))"
    if is_quoted:
        return re.compile(rf"\n(?:(?=[ ]{{0,3}}>)[ \t>]*+{close}|(?![ ]{{0,3}}>))")
    if column:
        inside = rf"(?:[ ]{{{column},{column + 3}}}|\t[ ]{{0,3}})"
        return re.compile(rf"\n(?:{inside}{close}|[ ]{{0,{column - 1}}}(?=[^\s]))")
    return re.compile(rf"\n[ ]{{0,3}}{close}")
