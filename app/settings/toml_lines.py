"""Where in a TOML file something stands, which its parser does not tell: the file is taken apart into its statements, each of which that parser reads alone."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Location = Sequence[str | int]
"""Keys, and numbers in lists, from the top: `("approvals", 0, "tool")`."""
_ENDS = ("]", "}", '"""', "'''")
"""One of them is in the last line of a value of several lines."""


def place_of(path: Path, location: Location) -> str:
    """Returns `orion.toml: line 12:`, where something stands in a file; without its line where that is not found."""
    try:
        line = find_line(path.read_text("utf-8"), location)
    except (OSError, ValueError):  # it has changed meanwhile
        line = 0
    return f"{path}: line {line}:" if line else f"{path}:"


def find_line(text: str, location: Location) -> int:
    """Returns the line, from 1, of the key or the table's head that a location names, or else of the nearest one around it; 0 = of none.

    Args:
        text: TOML without a mistake.
        location: what is looked for; it need not be there.
    """
    best = found = 0
    for line, table, values in _statements(text):
        depth = _depth(location, table, values)
        if depth > best:
            best, found = depth, line
    return found


def _depth(location: Location, table: Location, values: Any) -> int:  # noqa: ANN401 - any TOML
    """Returns how many steps of a location lead to a statement."""
    depth = 0
    for step, known in zip(location, table, strict=False):
        if step != known:
            return depth
        depth += 1
    for step in location[depth:]:
        is_there = isinstance(step, str) and isinstance(values, Mapping) and step in values
        is_in_list = isinstance(step, int) and isinstance(values, list) and step < len(values)
        if not is_there and not is_in_list:
            break
        values = values[step]
        depth += 1
    return depth


def _statements(text: str) -> Iterator[tuple[int, Location, Mapping[str, Any]]]:
    """Yields the line of each head and each key, the table that it is of, and of a key its value."""
    lines = text.replace("\r\n", "\n").split("\n")
    table: Location = ()
    lengths: dict[Location, int] = {}
    start = 0
    while start < len(lines):
        end, said = _statement(lines, start)
        if lines[start].lstrip().startswith("["):
            table = _table(said, lengths)
            yield start + 1, table, {}
        elif said:
            yield start + 1, table, said
        start = end


def _statement(lines: Sequence[str], start: int) -> tuple[int, Mapping[str, Any]]:
    """Returns where the statement ends that begins at a line, and what it says alone."""
    for end in range(start + 1, len(lines) + 1):
        if end > start + 1 and not any(one in lines[end - 1] for one in _ENDS):
            continue
        try:
            return end, tomllib.loads("\n".join(lines[start:end]))
        except tomllib.TOMLDecodeError:  # it goes on
            continue
    return len(lines), {}


def _table(said: Mapping[str, Any], lengths: dict[Location, int]) -> Location:
    """Returns which table a head begins; `lengths`, of the lists of tables so far, by their locations, is kept."""
    table: tuple[str | int, ...] = ()
    rest: Any = said
    while rest:
        (key, rest), *_ = rest.items()
        table = (*table, key)
        if isinstance(rest, list):
            lengths[table] = lengths.get(table, 0) + 1
            rest = {}
        if table in lengths:
            table = (*table, lengths[table] - 1)
    return table
