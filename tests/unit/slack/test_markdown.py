"""Splitting and neutralising Markdown."""

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.runs.delivery import shorten
from app.runs.testing import bare_word
from app.slack.markdown import (
    escape,
    neutralise,
    plain_fallback,
    readable,
    split_markdown,
    split_pieces,
    tail_markdown,
    with_boxes,
)
from tests.gallery.oracle import has_open_fence, visible_text
from tests.long import long_but

if TYPE_CHECKING:
    from _typeshed import TraceFunction

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
@example("-\n  ```\n\n1", 500, 2)
@example("> q\n -\n    ```\n\nx", 500, 2)
@example("1.\n    ```\n*\n  x", 500, 2)
@example("> ```\n\n", 500, 2)
@example("-\n0\n  ```\n\n1", 500, 2)
@example("-\n  ```\n0\n  ```\n\n1", 500, 2)
@example("1\n\n1\n\n-\n  ```\n\n1", 500, 3)
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


def test_headings_go_with_what_is_below_them() -> None:
    """Wherever the limit falls, no part ends in them."""
    section = "# Heading\n\n## And another\n\n" + "word " * 40
    for max_chars in range(600, 1_300, 10):
        for part in split_markdown("\n\n".join([section] * 9), max_chars=max_chars)[:-1]:
            assert not part.splitlines()[-1].startswith("#")
    for part in split_markdown("# Heading\n\nwords\n\n" * 60 + "# End"):
        assert not part.splitlines()[-1].startswith("# Heading")


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


PARAGRAPHS = st.one_of(
    st.lists(st.text(alphabet="abcXYZ09é", min_size=1, max_size=12), min_size=1, max_size=60).map(
        " ".join
    ),
    st.just("x" * 1_200),
)
WHOLE = st.one_of(
    PARAGRAPHS,
    PARAGRAPHS.map(lambda text: f"- [ ] {text}\n- [x] {text}"),
    PARAGRAPHS.map(lambda text: f"## {text[:80]}"),
    PARAGRAPHS.map(lambda text: f"> {text}"),
    PARAGRAPHS.map(lambda text: f"```py\n{text.replace(' ', chr(10))}\n```"),
    PARAGRAPHS.map(lambda text: f"- item\n  ~~~\n  {text}\n  ~~~\n- item"),
    PARAGRAPHS.map(lambda text: "| |\n|---|\n" + "".join(f"| {w[:300]} |\n" for w in text.split())),
    st.just("```\nopen"),
)


@given(st.lists(WHOLE, max_size=10), st.sampled_from(["\n\n", "\r\n\r\n"]), st.integers(500, 1_500))
@settings(max_examples=150, deadline=None)
def test_what_is_read_in_the_parts_is_what_is_read_in_the_text(
    elements: list[str], gap: str, max_chars: int
) -> None:
    """Character by character, as a parser of Markdown sees them; whatever is cut, closed and opened again."""
    text = gap.join(elements)
    parts = split_markdown(text, max_chars=max_chars)
    assert "".join(map(visible_text, parts)) == visible_text(with_boxes(text))


def test_what_is_joined_is_not_cut() -> None:
    """Neither escapes nor families and tones of emoji nor accents are parted in a line without spaces."""
    for unit in ("&amp;", "\U0001f469\u200d\U0001f467", "\U0001f44b\U0001f3fd", "e\u0301"):
        parts = split_markdown(unit * 900, max_chars=500)
        assert len(parts) > 2
        assert "".join(parts) == unit * 900
        assert all(part.startswith(unit) and part.endswith(unit) for part in parts)


def test_task_lists_have_boxes() -> None:
    """Slack refuses them; in code and elsewhere brackets are brackets."""
    text = (
        "- [ ] a\n  1. [X] b\n> - [x] c\n- [x](u)\n[ ] d\n```\n- [ ] e\n```\n- - [ ] f\n- `[ ] g`"
    )
    assert with_boxes(text) == (
        "- ☐ a\n  1. ☑ b\n> - ☑ c\n- [x](u)\n[ ] d\n```\n- [ ] e\n```\n- - ☐ f\n- `[ ] g`"
    )
    assert with_boxes("a\r\nb\rc\n") == "a\nb\nc\n"


@pytest.mark.parametrize("mark", ["```", "~~~~", "> ```", "- ```"])
def test_a_fallback_that_is_cut_closes_its_fence(mark: str) -> None:
    """Notifications end outside code, too; what is whole stays as it is."""
    lead = mark[: mark.index(mark.strip("-> ")[0])].replace("-", " ")
    text = f"Look:\n\n{mark}\n" + f"{lead}x < y && z\n" * 500
    short = plain_fallback(text)
    assert len(short) <= 2_900
    assert short.endswith(f"…\n{lead}{mark.strip('-> ')}".replace(">", "&gt;"))
    assert plain_fallback("```\nopen") == "```\nopen"
    assert len(plain_fallback(">" * 50 + "```\n" + (">" * 50 + "x\n") * 500)) <= 2_900


ADVERSARIES = (
    *("[", "`", "` ", ">", "> ", "|", "|\n", "*", "* ", "\n", "<", "<!subteam^", "<@U", "@", "@channel", "- "),
    *("```\n", "~~~", "1. ", "#\n", "| a |\n|---|\n", "  - x\n", "\\", "![](", "_", "x", "x\n", "<!channel|"),
    *("\r\n", "&", "-\n", "---\n", "\t", " ", " \n", "> ```\n", "- ```\n", "- [ ] ", "- [ ] x\n", "a|b\n-|-\n"),
    *("<mailto:", "\u200d", "&amp", "- - ", "1", "1)\n", "   `", "`" * 9 + "\n", "stop ", "=\n", "\x00"),
)  # fmt: skip


def render_all(text: str) -> None:
    split_markdown(escape(neutralise(text)), max_chars=3_000)
    split_markdown(neutralise(text))
    tail_markdown(text, max_chars=3_000)
    plain_fallback(text)
    readable(text, bot_user_id="UB")
    bare_word(text)


def lines_run(work: Callable[[str], object], text: str) -> int:
    """Lines of Python, not what patterns do in themselves."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("piece", long_but(ADVERSARIES, ADVERSARIES[::4].__contains__), ids=repr)
def test_work_grows_with_the_length_alone(piece: str) -> None:
    """Twice the text is at most twice the lines of code that are run, and a few for another part."""
    once, twice = (piece * (length // len(piece)) for length in (8_000, 16_000))
    lines_run(render_all, once)  # patterns are compiled
    assert lines_run(render_all, twice) <= 2 * lines_run(render_all, once) + 200


@pytest.mark.parametrize("piece", ["```\n", "| a |\n|---|\n", "x\n", "x"], ids=repr)
def test_work_to_shorten_grows_with_the_length_alone(piece: str) -> None:
    """From where it begins to work at all."""
    once, twice = (piece * (length // len(piece)) for length in (32_000, 64_000))
    lines_run(shorten, once)  # patterns are compiled
    assert lines_run(shorten, twice) <= 2 * lines_run(shorten, once) + 200


@pytest.mark.parametrize(
    "piece", long_but(ADVERSARIES, ("<", "\t", "`", "| a |\n|---|\n").__contains__)
)
@pytest.mark.timeout(300)
def test_a_megabyte_of_anything_is_rendered(piece: str) -> None:
    """A pattern that tries twice what it tried before would need hours for it, and it has minutes."""
    text = piece * (1_000_000 // len(piece))
    render_all(text)
    shorten(text)
