"""What is new of a pull request, as its thread is shown it."""

import json
from dataclasses import replace

import pytest

from app.playground.slack.block_kit import check_blocks
from app.pull_requests.records import Notice, NoticeItem, NoticeKind
from app.slack.pull_request_card import render_notice
from tests.unit.pull_requests.building import LINK, make_pull

PULL = make_pull()
FAILED = Notice(
    number=3,
    kind=NoticeKind.CHECKS_FAILED,
    run_id="run_1",
    head="abcdef0123456789",
    items=(NoticeItem(text="lint", link="https://ci.test/1?a=b&c=d"), NoticeItem(text="test")),
    detail="assert 1 == 2",
    passed=4,
    pending=1,
)


def shown(notice: Notice) -> str:
    blocks = [dict(block) for block in render_notice(PULL, notice).blocks]
    check_blocks(blocks)
    return json.dumps(blocks, ensure_ascii=False)


def test_failed_checks() -> None:
    """Each with its page; a button that carries the notice, not what it says."""
    text = shown(FAILED)
    assert f"<{LINK}|acme/api#1>: checks failed at `abcdef0` (4 passed, 1 still going)" in text
    assert "• <https://ci.test/1?a=b&amp;c=d|lint>\\n• test" in text
    assert '"orion_fix"' in text
    assert f"{PULL.id}:3" in text
    assert "assert 1 == 2" not in text


@pytest.mark.parametrize(("failed", "lines", "dots"), [(9, 9, 0), (10, 9, 1)])
def test_dots_stand_for_checks_that_are_not_shown(failed: int, lines: int, dots: int) -> None:
    items = tuple(NoticeItem(text=f"test {number}") for number in range(failed))
    text = shown(replace(FAILED, items=items))
    assert (text.count("• test"), text.count("• …")) == (lines, dots)


@pytest.mark.parametrize(
    ("changes", "words", "has_button"),
    [
        ({"kind": NoticeKind.CHECKS_PASSED}, "all 4 checks passed at `abcdef0`", False),
        ({"kind": NoticeKind.CHECKS_PASSED, "passed": 1}, "the check passed", False),
        ({"kind": NoticeKind.CONFLICT}, "conflicts with `main`", True),
        ({"kind": NoticeKind.MERGED}, "merged. Unless something", False),
        ({"kind": NoticeKind.CLOSED}, "closed without being merged", False),
        ({"kind": NoticeKind.REOPENED}, "open again", False),
        ({"kind": NoticeKind.LOST}, "not there any more", False),
        ({"round": 2}, "I am on it, for the second time.", False),
    ],
)
def test_each_kind(changes: dict[str, object], words: str, *, has_button: bool) -> None:
    text = shown(replace(FAILED, **changes))  # type: ignore[arg-type]
    assert words in text
    assert ("orion_fix" in text) is has_button


def test_what_somebody_has_said_is_quoted() -> None:
    """An approval without a word has nothing to be done about."""
    item = NoticeItem(text="asked for changes in it", link=f"{LINK}#r1")
    review = replace(FAILED, kind=NoticeKind.REVIEW, by="bea", items=(item,), quote="Name it.")
    text = shown(review)
    assert f"bea <{LINK}#r1|asked for changes in it>" in text
    assert ">Name it." in text
    assert "orion_fix" in text
    assert "orion_fix" not in shown(replace(review, quote="", detail=""))


def test_what_comes_from_there_pings_nobody_and_leads_nowhere_else() -> None:
    """Names, texts and links alike; whatever is in them is within Slack's limits."""
    items = tuple(
        NoticeItem(text=f"<!channel> `x` {'y' * 300}", link=link)
        for link in (
            "javascript:alert(1)",
            "https://x.test/|<!here>",
            "https://x.test/" + "z" * 500,
        )
    )
    hostile = replace(
        FAILED, by="<@U1>", items=items * 3, quote="<!everyone> <@U1>\n```" + "q" * 9_000
    )
    for kind in NoticeKind:
        text = shown(replace(hostile, kind=kind))
        for ping in ("<!channel>", "<!here>", "<!everyone>", "<@U1>", "javascript:alert(1)|"):
            assert ping not in text
