"""Splitting and neutralising Markdown."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.slack.markdown import (
    MAX_PART_CHARS,
    neutralise,
    plain_fallback,
    readable,
    split_markdown,
    split_pieces,
    tail_markdown,
    with_boxes,
)
from tests.gallery.oracle import has_open_fence, visible_words

WORDS = st.text(alphabet="abc XYZ.,*_`~|#>-1é\t", min_size=1, max_size=120)
ELEMENTS = st.one_of(
    WORDS,
    st.builds(lambda level, text: f"{'#' * level} {text}", st.integers(1, 6), WORDS),
    st.builds(
        lambda mark, info, lines: "\n".join([mark + info, *lines, mark]),
        st.sampled_from(["```", "~~~", "````"]),
        st.sampled_from(["", "py", "text title=x"]),
        st.lists(WORDS, max_size=30),
    ),
    st.builds(
        lambda rows: "\n".join(["| a | b |", "|---|---|", *(f"| {row} | x |" for row in rows)]),
        st.lists(st.text(alphabet="abc ", max_size=40), max_size=40),
    ),
    st.builds(lambda items: "\n".join(f"- {item}" for item in items), st.lists(WORDS, max_size=10)),
    st.builds(lambda lines: "\n".join(f"> {line}" for line in lines), st.lists(WORDS, max_size=10)),
    st.builds(
        lambda lines: "- item\n\n  ```py\n" + "".join(f"  {line}\n" for line in lines) + "  ```",
        st.lists(WORDS, max_size=30),
    ),
    st.text(max_size=1500),
    st.just("x" * 1700),
)
TEXTS = st.lists(ELEMENTS, max_size=12).map("\n\n".join)


@given(TEXTS, st.integers(500, 2_000), st.integers(1, 10))
@settings(max_examples=150, deadline=None)
def test_splitting_loses_nothing_and_keeps_the_limits(
    text: str, max_chars: int, max_elements: int
) -> None:
    """Joined bodies are the input; every part is within both limits, not empty, and its fences are closed."""
    pieces = split_pieces(text, max_chars=max_chars, max_elements=max_elements)
    assert "".join(piece.body for piece in pieces) == text
    for part in split_markdown(text, max_chars=max_chars, max_elements=max_elements):
        assert part.strip()
        assert len(part) <= max_chars
        assert not has_open_fence(part)


@given(TEXTS, st.integers(500, 3_000))
@settings(max_examples=100, deadline=None)
def test_tail_is_bounded_and_balanced(text: str, max_chars: int) -> None:
    """The tail of a growing answer is within its bound, and its fences are closed."""
    tail = tail_markdown(text, max_chars=max_chars)
    assert len(tail) <= max_chars
    assert not has_open_fence(tail)


def test_short_text_is_one_untouched_part() -> None:
    """What fits is not changed."""
    text = "# Title\n\n```py\nx = 1\n```\n\n| a |\n|---|\n| 1 |"
    assert split_markdown(text) == (text,)
    assert split_markdown(" \n\n") == ()


def test_a_long_fence_is_closed_and_reopened_with_its_info() -> None:
    """Each part of a parted fence is a fence of the same language, and no code line is lost or doubled."""
    code = [f"line_{n} = {n}" for n in range(300)]
    parts = split_markdown(
        "Intro\n\n```python\n" + "\n".join(code) + "\n```\n\nEnd", max_chars=1_000
    )
    assert len(parts) > 3
    assert all(part.count("```") == 2 for part in parts)
    assert all(part.startswith("```python\n") for part in parts[1:])
    assert re.findall(r"line_\d+ = \d+", "\n".join(parts)) == code
    assert parts[-1].endswith("End")


def test_a_long_table_repeats_its_head() -> None:
    """Every part of a parted table is a table with the same head."""
    rows = [f"| {n} | value {n} |" for n in range(200)]
    parts = split_markdown("\n".join(["| n | v |", "|---|---|", *rows]), max_chars=900)
    assert len(parts) > 3
    assert all(part.startswith("| n | v |\n|---|---|\n|") for part in parts)
    assert [line for part in parts for line in part.split("\n")[2:]] == rows


def test_cuts_fall_between_paragraphs_where_possible() -> None:
    """No paragraph or fence that fits a part is cut."""
    blocks = [f"Paragraph {n} " + "word " * 40 for n in range(30)]
    blocks.insert(10, "```\n" + "code\n" * 60 + "```")
    parts = split_markdown("\n\n".join(blocks), max_chars=1_000)
    assert [block.strip() for part in parts for block in part.split("\n\n")] == [
        b.strip() for b in blocks
    ]


def test_elements_are_counted() -> None:
    """A text of many small elements is cut by their number."""
    parts = split_markdown("\n\n".join(f"# {n}" for n in range(100)), max_elements=35)
    assert [part.count("#") for part in parts] == [35, 35, 30]


def test_an_unclosed_fence_is_closed() -> None:
    """An answer that was cut off inside a fence does not swallow what comes after it."""
    (part,) = split_markdown("Look:\n\n```sh\nls -la")
    assert part == "Look:\n\n```sh\nls -la\n```"
    assert not has_open_fence(part)


@pytest.mark.parametrize(
    "ping",
    ["<!channel>", "<!here>", "<!everyone>", "<!channel|@channel>", "<!subteam^S123>", "<!subteam^S123|@team>",
     "@channel", "@here", "@everyone", "`<!here>`", "<!HERE>", "<!group>", "(@channel)", "<!<!here>here>"],
)  # fmt: skip
def test_broadcasts_do_not_ping(ping: str) -> None:
    """Neither Slack's tokens nor the bare words survive, in code or outside it, and they stay readable."""
    quiet = neutralise(f"Hello {ping}, all")
    assert not re.search(r"<!(?:channel|here|everyone|group|subteam)[>|^]", quiet, re.IGNORECASE)
    assert not re.search(r"@(?:channel|here|everyone|group)\b", quiet, re.IGNORECASE)
    assert re.search(r"channel|here|everyone|subteam|team|group", quiet, re.IGNORECASE)


@given(st.text(alphabet="<!@>|^channeliryvosubtmS1 `", max_size=200))
def test_no_arrangement_of_tokens_pings(text: str) -> None:
    """Removing one token never makes another."""
    quiet = neutralise(text)
    assert not re.search(r"<!(?:channel|here|everyone)(?:\|[^<>\n]*)?>", quiet)
    assert neutralise(quiet) == quiet


def test_only_the_asker_may_be_mentioned() -> None:
    """Other people's mentions become plain text."""
    assert (
        neutralise("<@U1> and <@U2|bob> at a@here.org", asker="U1") == "<@U1> and @U2 at a@here.org"
    )


@given(st.text(max_size=6_000))
def test_fallback_is_short_and_escaped(text: str) -> None:
    """The fallback is bounded, has no bare angle bracket, and no escape is cut."""
    short = plain_fallback(text)
    assert len(short) <= 2_900
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", short)
