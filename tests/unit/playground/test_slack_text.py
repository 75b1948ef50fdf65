"""What people type becomes what Slack sends."""

from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.playground.slack.workspace import as_sent, rich_text, unescape

NAMES = {"Orion": "U0ORION"}


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("@Orion hello", "<@U0ORION> hello"),
        ("@orion hello", "<@U0ORION> hello"),
        ("<@U0ORION> hello", "<@U0ORION> hello"),
        ("mail a@Orion.example", "mail a@Orion.example"),
        ("1 < 2 && 3 > 2", "1 &lt; 2 &amp;&amp; 3 &gt; 2"),
        ("<script>", "&lt;script&gt;"),
        ("see https://example.com/a?b=1&c=2.", "see <https://example.com/a?b=1&amp;c=2>."),
        ("`https://example.com` @Orion", "`https://example.com` <@U0ORION>"),
        ("```a < b @Orion```", "```a &lt; b @Orion```"),
    ],
)
def test_typed_text_becomes_slack_text(typed: str, sent: str) -> None:
    """Escapes, mentions and addresses come out as Slack's own composer makes them."""
    assert as_sent(typed, NAMES) == sent


@given(st.text())
def test_escaping_is_reversible(text: str) -> None:
    """Unescaping an escaped text gives the text."""
    assert unescape(escape(text, quote=False)) == text


@given(st.text(alphabet="<>&@U0ORION `hts:/.\x00"))
def test_no_raw_bracket_survives(typed: str) -> None:
    """Whatever is typed, every bracket that is sent belongs to a token."""
    sent = as_sent(typed, NAMES)
    assert sent.count("<") == sent.count(">")


def test_rich_text_names_the_mention() -> None:
    """The blocks of a person's message hold the mention as a user element."""
    elements = rich_text("<@U0ORION> a &amp; b <https://example.com>")[0]["elements"][0]["elements"]
    assert elements == [
        {"type": "user", "user_id": "U0ORION"},
        {"type": "text", "text": " a & b "},
        {"type": "link", "url": "https://example.com"},
    ]
