"""What an agent gives its tool for asking people, read or told what is wrong."""

from typing import Any

import pytest

from app.approvals.questions import (
    MAX_OPTION_CHARS,
    MAX_OPTIONS,
    MAX_TEXT_CHARS,
    Question,
    read_question,
)

ASKED = {"text": " Which name? \n", "otherwise": "I keep the old one."}


def test_a_question_is_read() -> None:
    """White space around it is none of it; an answer is for exactly this one."""
    plain = read_question(ASKED)
    assert plain == Question(text="Which name?", otherwise="I keep the old one.")
    chosen = read_question(ASKED | {"options": ["a", "b"], "who": "channel"})
    assert (chosen.options, chosen.who) == (("a", "b"), "channel")
    assert len({plain.deed.digest, chosen.deed.digest}) == 2
    assert read_question(dict(ASKED)).deed.digest == plain.deed.digest
    assert read_question(ASKED | {"options": None, "who": ""}) == plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ({}, "text must be a text"),
        (ASKED | {"text": " "}, "text must be a text"),
        (ASKED | {"text": "x" * (MAX_TEXT_CHARS + 1)}, "2001 characters; 2000 are allowed"),
        ({"text": "x"}, "otherwise must be a text"),
        (ASKED | {"otherwise": 7}, "otherwise must be a text"),
        (ASKED | {"options": "a"}, "options must be a list of at most 8"),
        (ASKED | {"options": [str(n) for n in range(MAX_OPTIONS + 1)]}, "at most 8"),
        (ASKED | {"options": ["a", ""]}, "option 2 must be a text"),
        (ASKED | {"options": ["x" * (MAX_OPTION_CHARS + 1)]}, "option 1 has 76 characters"),
        (ASKED | {"options": ["a", "a "]}, "two options are the same"),
        (ASKED | {"who": "everybody"}, "who must be asker or channel"),
        (ASKED | {"question": "x"}, "no argument 'question'"),
    ],
)
def test_what_is_wrong_is_told(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_question(arguments)


def test_half_a_surrogate_pair_is_kept_as_a_sign() -> None:
    """No database could keep it as it came."""
    assert read_question(ASKED | {"text": "\ud83d?"}).text == "??"
