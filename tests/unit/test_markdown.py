"""Elements of Markdown, against a library that parses it whole."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.markdown import Kind, cells, closed, scan
from tests.gallery.oracle import elements, has_open_fence

WORDS = st.text(alphabet="abc XYZ.,é", min_size=1, max_size=60).map(str.strip).filter(bool)
LINES = st.lists(WORDS, min_size=1, max_size=6)


def fence(mark: str, info: str, lines: list[str], indent: str = "") -> str:
    return "".join(f"{indent}{line}\n" for line in (mark + info, *lines, mark)).rstrip("\n")


FENCES = st.builds(
    fence, st.sampled_from(["```", "~~~", "`````"]), st.sampled_from(["", "py", " a b"]), LINES
)
ELEMENTS = st.one_of(
    WORDS,
    FENCES,
    LINES.map("\n".join),
    st.builds(lambda level, text: f"{'#' * level} {text}", st.integers(1, 6), WORDS),
    st.builds(lambda text, mark: f"{text}\n{mark}", WORDS, st.sampled_from(["===", "---"])),
    st.sampled_from(["---", "* * *", "___", "#", "#hash", "####### seven", "|", "a | b"]),
    LINES.map(lambda rows: "\n".join(["| a | b |", "|---|:-:|", *(f"| {row} | x |" for row in rows)])),
    LINES.map(lambda rows: "\n".join(["a | b", "--- | ---", *(f"{row} | \\| x" for row in rows)])),
    st.just("| a | b |\n|---|\n| not | a table |"),
    LINES.map(lambda items: "\n".join(f"- {item}" for item in items)),
    LINES.map(lambda lines: "\n".join(f"> {line}" for line in lines)),
    FENCES.map(lambda text: re.sub("(?m)^", "> ", text)),
    FENCES.map(lambda text: f"- item\n{re.sub('(?m)^', '  ', text)}"),
    FENCES.map(lambda text: f"10. item\n\n{re.sub('(?m)^', '    ', text)}\n\n    more"),
    FENCES.map(lambda text: f"- item\n  - item\n\n{re.sub('(?m)^', '    ', text)}"),
    LINES.map(lambda lines: "para\n\n    ```\n" + "".join(f"    {line}\n" for line in lines)),
    st.just("- ```\n  in\n- out"),
    st.just("> ```\n> in\nout"),
    st.just("- # heading\n\n> ## quoted"),
)  # fmt: skip
TEXTS = st.lists(ELEMENTS, max_size=8).map("\n\n".join)


@given(TEXTS, st.sampled_from(["", "\n\n```\nopen", "\n\n~~~ py"]))
@settings(max_examples=300, deadline=None)
def test_elements_are_those_that_a_parser_finds(text: str, end: str) -> None:
    """Kind and lines of each; nothing lies between them, and an open fence is told and closed."""
    text += end
    found = scan(text)
    assert "".join(text[one.start : one.end] for one in found) == text
    first_lines = {
        (one.kind.value, text.count("\n", 0, one.start)) for one in found if one.kind != Kind.TEXT
    }
    assert first_lines == {(kind, start) for kind, start, _ in elements(text)}
    assert not has_open_fence(closed(text))
    assert (closed(text) != text) == has_open_fence(text)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("| a | b |", ["a", "b"]),
        ("a | b", ["a", "b"]),
        (r"| a \| b | |", ["a | b", ""]),
        ("|a|", ["a"]),
        ("a", ["a"]),
        ("| | x", ["", "x"]),
        ("", [""]),
    ],
)
def test_cells(row: str, found: list[str]) -> None:
    """Bars at the ends are none between cells, and a bar after a backslash is text."""
    assert cells(row) == found
