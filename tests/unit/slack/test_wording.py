"""Sentences of details."""

import pytest

from app.errors import ErrorCode
from app.slack.blocks import failure_text


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        ("there is no agent 'x' here", "There is no agent 'x' here."),
        ("you're too fast", "You're too fast."),
        ("branch=main needs its repository", "branch=main needs its repository."),
        ("/docker is twice", "/docker is twice."),
        ("gpt-5.4 is gone", "gpt-5.4 is gone."),
        ("`x` is gone", "`x` is gone."),
        ("did you mean model=?", "Did you mean model=?"),
        ("write repo=owner/name or repo=https://…", "Write repo=owner/name or repo=https://…"),
    ],
)
def test_a_detail_becomes_a_sentence(detail: str, text: str) -> None:
    """What somebody could type stays as it is typed; after a question mark there is no full stop."""
    assert failure_text(ErrorCode.REQUEST_INVALID, detail) == text


def test_more_may_follow() -> None:
    """Of some codes, after the detail's own sentence."""
    told = failure_text(ErrorCode.LIMIT_EXCEEDED, "it was too long")
    assert told == "It was too long. Please ask for a smaller step."
