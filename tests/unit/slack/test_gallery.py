"""The answers of the gallery, rendered: Slack takes every part, and nothing of them is lost."""

from __future__ import annotations

import dataclasses
import re

import pytest

from app.playground.slack.block_kit import UPDATE_TEXT_MAX, check_blocks
from app.playground.slack.types import YOU
from app.runs.delivery import shorten
from app.runs.testing import Outcome, Run, RunRequest, RunState
from app.slack.blocks import MessagePart, render_plain_result, render_result
from app.slack.markdown import neutralise, tail_markdown, with_boxes
from tests.gallery.answers import ANSWERS
from tests.gallery.oracle import has_open_fence, visible_text

NAMES = pytest.mark.parametrize("name", ANSWERS)


def outcome(answer: str) -> Outcome:
    return Outcome(state=RunState.SUCCEEDED, answer=answer, duration_s=12)


@pytest.fixture
def asked(run: Run) -> Run:
    """By the one person who may be mentioned."""
    request = RunRequest.model_validate(run.request.model_dump() | {"user": YOU})
    return dataclasses.replace(run, request=request)


def markdown_of(parts: tuple[MessagePart, ...]) -> list[str]:
    return [block["text"] for part in parts for block in part.blocks if block["type"] == "markdown"]


def test_there_are_sixty() -> None:
    assert len(ANSWERS) == 60
    assert max(map(len, ANSWERS.values())) > 40_000


@NAMES
def test_slack_takes_every_part_at_once(name: str, asked: Run) -> None:
    """Within every limit of a message, with a fallback that an update takes."""
    parts = render_result(asked, outcome(ANSWERS[name]))
    for part in parts:
        check_blocks([dict(block) for block in part.blocks])
        assert 0 < len(part.text) < UPDATE_TEXT_MAX
    assert not any(map(has_open_fence, markdown_of(parts)))


def test_long_headings_count_for_more_than_their_characters(asked: Run) -> None:
    """As many as a part has elements for, of as many characters as it has room for, would be too much."""
    headings = "\n".join(f"# {'x' * 279}" for _ in range(70))
    for part in render_result(asked, outcome(headings)):
        check_blocks([dict(block) for block in part.blocks])


@NAMES
def test_nothing_is_lost(name: str, asked: Run) -> None:
    """What is to be read in the parts is what is to be read in the answer; heads of parted tables come again."""
    source = with_boxes(neutralise(ANSWERS[name], asker=YOU))
    parts = markdown_of(render_result(asked, outcome(ANSWERS[name])))
    seen = "".join(map(visible_text, parts))
    if len(parts) > 1 and "|---|" in source:
        head = visible_text("\n".join(source.splitlines()[:2]))
        seen = head + seen.replace(head, "")
    assert seen == visible_text(source)


@NAMES
def test_plain_text_is_whole_and_closed(name: str, asked: Run) -> None:
    """Without blocks: every part fits into an update and ends outside code; the letters are all there."""
    parts = [part.text for part in render_plain_result(asked, outcome(ANSWERS[name]))]
    assert all(len(part) < UPDATE_TEXT_MAX for part in parts)
    assert not any(map(has_open_fence, parts))
    text = re.sub(r"\n\n12 s\Z", "", "".join(parts)).replace("&lt;", "<").replace("&gt;", ">")
    source = with_boxes(neutralise(ANSWERS[name]))
    letters = re.compile(r"[^\W_]")
    if len(parts) == 1:
        assert letters.findall(text.replace("&amp;", "&")) == letters.findall(source)
    assert len(letters.findall(text)) >= len(letters.findall(source))


@NAMES
def test_growing_answers_are_shown_within_bounds(name: str) -> None:
    """At every length, in steps: the tail fits, is balanced, and Slack takes it."""
    answer = ANSWERS[name]
    for length in {*range(1, len(answer), max(len(answer) // 25, 1)), len(answer)}:
        tail = tail_markdown(neutralise(answer[:length]), max_chars=3_000)
        assert len(tail) <= 3_000
        assert not has_open_fence(tail)
        if tail.strip():
            check_blocks([{"type": "markdown", "text": tail}])


@NAMES
def test_what_is_shortened_is_whole_in_files(name: str) -> None:
    """Long answers are begun in the thread and lie whole in files; their beginnings close their fences."""
    answer = ANSWERS[name]
    short, files = shorten(answer)
    assert not has_open_fence(short) or not files
    if not files:
        assert short == answer
    elif "answer.md" in files:
        assert files["answer.md"] == answer
