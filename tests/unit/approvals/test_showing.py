"""What people are shown of what they allow: nothing is hidden from them."""

import json

import pytest

from app.approvals.rules import Deed, DeedKind
from app.approvals.showing import MAX_CHARS, TooLongToShowError, render_deed, visible


def _deed(**arguments: object) -> Deed:
    return Deed(kind=DeedKind.TOOL, target="notes.note", arguments=arguments)


def test_what_fits_is_shown_whole() -> None:
    assert json.loads(render_deed(_deed(text="x" * 7_000, a=[1]), str)) == {
        "a": [1],
        "text": "x" * 7_000,
    }
    assert render_deed(_deed(), str) == ""


def test_a_long_text_hides_no_other() -> None:
    """Its beginning and its end are there, with how much is left out between."""
    shown = render_deed(_deed(a="begins" + "<" * 50_000 + "ends", z="DELETE"), str)
    assert json.loads(shown)["z"] == "DELETE"
    assert '"begins<' in shown
    assert '<ends"' in shown
    assert "characters are left out here" in shown
    assert len(shown.replace("<", "&lt;")) <= MAX_CHARS


def test_what_stands_beside_the_arguments_is_shown() -> None:
    deed = Deed(kind=DeedKind.TOOL, target="a.b", beside={"params": {"task": 9}})
    assert "task" in render_deed(deed, str)


def test_too_many_keys_cannot_be_shown() -> None:
    with pytest.raises(TooLongToShowError):
        render_deed(_deed(**{f"key{number}": 1 for number in range(1_000)}), str)


def test_a_secret_is_masked_before_it_is_cut() -> None:
    secret = "s3cr3t" * 20
    shown = render_deed(
        _deed(a="x" * 3_950 + secret + "y" * 30_000), lambda text: text.replace(secret, "***")
    )
    assert "s3cr3t" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a<U+202E>b"),
        ("zero\u200bwidth", "zero<U+200B>width"),
        ("tag\U000e0041", "tag<U+E0041>"),
        ("\x1b[2J\x7f", "<U+001B>[2J<U+007F>"),
        ("line\n\ttab \N{SNOWMAN} שלום", "line\n\ttab \N{SNOWMAN} שלום"),
    ],
)
def test_what_nobody_sees_is_told(text: str, shown: str) -> None:
    assert visible(text) == shown
