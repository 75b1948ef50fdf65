"""Slack's size and shape rules, one by one at their edges."""

from typing import Any

import pytest

from app.playground.slack import block_kit
from app.playground.slack.types import SlackError

Block = dict[str, Any]


def _plain(length: int) -> Block:
    return {"type": "plain_text", "text": "x" * length}


def _button(**changes: str | Block) -> Block:
    return {"type": "button", "text": _plain(4), "action_id": "a", "value": "v"} | changes


def _actions(*elements: Block) -> Block:
    return {"type": "actions", "elements": list(elements)}


def _section(length: int) -> Block:
    return {"type": "section", "text": {"type": "mrkdwn", "text": "x" * length}}


def _markdown(text: str) -> Block:
    return {"type": "markdown", "text": text}


def _table(rows: int, columns: int) -> Block:
    return {"type": "table", "rows": [[{"type": "raw_text", "text": "x"}] * columns] * rows}


def _feedback(value: str) -> Block:
    button = {"text": _plain(4), "value": value}
    element = {"type": "feedback_buttons", "positive_button": button, "negative_button": button}
    return {"type": "context_actions", "elements": [element | {"action_id": "f"}]}


@pytest.mark.parametrize(
    ("fits", "too_much"),
    [
        (_section(3000), _section(3001)),
        (_section(1), _section(0)),
        ({"type": "header", "text": _plain(150)}, {"type": "header", "text": _plain(151)}),
        (
            {"type": "context", "elements": [_plain(1)] * 10},
            {"type": "context", "elements": [_plain(1)] * 11},
        ),
        (
            _actions(*(_button(action_id=str(i)) for i in range(25))),
            _actions(*(_button(action_id=str(i)) for i in range(26))),
        ),
        (_actions(_button(text=_plain(75))), _actions(_button(text=_plain(76)))),
        (_actions(_button(value="v" * 2000)), _actions(_button(value="v" * 2001))),
        (_actions(_button(action_id="i" * 255)), _actions(_button(action_id="i" * 256))),
        (_actions(_button(style="danger")), _actions(_button(style="green"))),
        (_actions(_button()), _actions(_button(), _button())),
        ({"type": "divider", "block_id": "b" * 255}, {"type": "divider", "block_id": "b" * 256}),
        (_feedback("v"), _feedback("v" * 2001)),
        ({"type": "divider"}, {"type": "no_such_block"}),
        (_actions(_button()), _actions({"type": "no_such_element"})),
        (_actions(_button()), _actions(_button(text={"type": "mrkdwn", "text": "x"}))),
        (_table(100, 20), _table(101, 20)),
        (_table(1, 1), _table(1, 21)),
        (_markdown("- [x](u) [ ]"), _markdown("- [x] done")),
        (_markdown("```\n- [ ] code\n```"), _markdown("```\n- [ ] code\n```\n> 1. [ ] open")),
        (_markdown("- ```\n  - [ ] code"), _markdown("text\r  * [X] done")),
    ],
)
def test_block_limits(fits: Block, too_much: Block) -> None:
    """The last allowed value passes; the next is invalid_blocks with a pointer to the place."""
    assert block_kit.check_blocks([fits])[0]["type"] == fits["type"]
    with pytest.raises(SlackError) as caught:
        block_kit.check_blocks([too_much])
    assert caught.value.error == "invalid_blocks"
    body = caught.value.body()
    assert body["response_metadata"]["messages"][0].startswith("[ERROR] ")
    assert "/blocks/0" in body["response_metadata"]["messages"][0]


def _is_too_long(blocks: list[Block]) -> bool:
    try:
        block_kit.check_blocks(blocks)
    except SlackError as refused:
        return refused.error == "msg_blocks_too_long"
    return False


def test_a_markdown_block_holds_12000_characters() -> None:
    """One character more is msg_blocks_too_long."""
    assert not _is_too_long([_markdown("x" * 12_000)])
    assert _is_too_long([_markdown("x" * 12_001)])


def test_markdown_blocks_of_one_message_share_13200_characters() -> None:
    """Two blocks that fit alone do not fit together."""
    assert not _is_too_long([_markdown("x" * 6_600), _markdown("x" * 6_600)])
    assert _is_too_long([_markdown("x" * 6_600), _markdown("x" * 6_601)])


def test_a_heading_costs_a_hundred_characters() -> None:
    """Ten headings make 11,999 characters too long: they count 100 more each."""
    headings = "# h\n" * 10
    assert _is_too_long([_markdown(headings + "x" * (12_240 - len(headings)))])
    assert not _is_too_long([_markdown(headings + "x" * (11_900 - len(headings)))])


def test_fifty_blocks_are_the_most() -> None:
    """The 51st block is one too many."""
    assert not _is_too_long([{"type": "divider"}] * 50)
    assert _is_too_long([{"type": "divider"}] * 51)


def test_rendered_elements_count_towards_fifty() -> None:
    """A markdown block of 51 headings renders to more than fifty blocks."""
    assert not _is_too_long([_markdown("# h\n" * 50)])
    assert _is_too_long([_markdown("# h\n" * 51)])


@pytest.mark.parametrize(
    ("markdown", "count"),
    [
        ("one\n\ntwo\nthree", 1),
        ("one\n\n# two\n\nthree", 3),
        ("```\n# not a heading\n| a | b |\n```", 1),
        ("text\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nmore", 3),
        ("~~~\n```\n~~~\nafter", 2),
        ("```\n```py\n# in it\n```", 1),
        ("# one\r# two\r\ntext\u2028# no heading", 3),
        ("", 0),
    ],
)
def test_what_renders_to_an_element(markdown: str, count: int) -> None:
    """Headings, fences and tables are elements of their own; text between them is one."""
    assert block_kit.rendered_elements(markdown) == count


def test_blocks_without_id_get_one() -> None:
    """Slack fills in missing block ids and keeps given ones."""
    first, second = block_kit.check_blocks(
        [{"type": "divider"}, {"type": "divider", "block_id": "b"}]
    )
    assert first["block_id"]
    assert second["block_id"] == "b"
