"""What of a pull request is news to its thread, and when it is looked at next."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from app.pull_requests.news import (
    GREEN_FOR,
    MAX_ITEMS,
    MAX_KEPT_NOTICES,
    MAX_REMARKS,
    QUICK,
    RED_FOR,
    USUAL,
    WATCHED_FOR,
    PullView,
    RemarkKind,
    addresses,
    can_be_fixed,
    lost,
    next_look,
    with_news,
)
from app.pull_requests.records import NoticeKind, PullRequest, PullState, pull_id, pull_number
from tests.unit.pull_requests.building import NOW, bad, going, good, make_pull, remark, view


def look(pull: PullRequest, seen: PullView, *, at: datetime = NOW) -> PullRequest:
    """One that was looked at before."""
    return with_news(pull if pull.head else replace(pull, head=seen.head), seen, now=at)


def green(pull: PullRequest, seen: PullView) -> PullRequest:
    """Looks twice, so far apart that what is good is so for good."""
    return look(look(pull, seen), seen, at=NOW + GREEN_FOR)


def told(pull: PullRequest) -> list[NoticeKind]:
    return [notice.kind for notice in pull.notices]


def test_nothing_is_news_of_one_that_was_just_opened() -> None:
    """Nor while its checks go on, nor where there are none."""
    for seen in (view(), view(going()), view(good(), going())):
        assert told(look(make_pull(), seen)) == []


def test_checks_are_told_once_for_each_commit() -> None:
    """Failed, mended by a push, failed again in what was pushed."""
    pull = look(make_pull(), view(bad(), good()))
    assert told(pull) == [NoticeKind.CHECKS_FAILED]
    assert [item.text for item in pull.notices[0].items] == ["test"]
    assert (pull.notices[0].passed, pull.notices[0].pending) == (1, 0)
    assert told(look(pull, view(bad(), good()))) == told(pull)
    pull = look(pull, view(going(), head="b" * 40))
    assert len(pull.notices) == 1
    pull = green(pull, view(good(), good("test"), head="b" * 40))
    pull = look(pull, view(bad(), head="c" * 40))
    assert told(pull) == [
        NoticeKind.CHECKS_FAILED,
        NoticeKind.CHECKS_PASSED,
        NoticeKind.CHECKS_FAILED,
    ]
    assert [notice.head[0] for notice in pull.notices] == ["a", "b", "c"]
    assert [notice.number for notice in pull.notices] == [1, 2, 3]


def test_a_failed_check_does_not_wait_for_a_slow_one_for_long() -> None:
    """All at once where they end together; else after a moment."""
    pull = look(make_pull(), view(bad(), going()))
    assert told(pull) == []
    pull = look(pull, view(bad(), going()), at=NOW + RED_FOR / 2)
    assert told(pull) == []
    pull = look(pull, view(bad(), going()), at=NOW + RED_FOR)
    assert told(pull) == [NoticeKind.CHECKS_FAILED]
    assert pull.notices[0].pending == 1
    assert timedelta(minutes=1) > RED_FOR + USUAL


def test_many_failed_checks_are_some_lines() -> None:
    pull = look(make_pull(), view(*(bad(f"test {number}") for number in range(50))))
    assert len(pull.notices[0].items) == MAX_ITEMS
    assert "test 49" in pull.notices[0].detail


def test_a_conflict_is_told_once_for_each_commit() -> None:
    conflict = view(has_conflict=True)
    pull = look(look(make_pull(), conflict), conflict)
    assert told(pull) == [NoticeKind.CONFLICT]
    assert len(look(pull, view(has_conflict=True, head="b" * 40)).notices) == 2


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("@orion please rename it", True),
        ("Could you rename it, @Orion?", True),
        ("(@ORION)", True),
        ("looks good", False),
        ("@orion-dev look", False),
        ("mail me at a@orion", False),
    ],
)
def test_whom_a_comment_addresses(text: str, *, is_so: bool) -> None:
    assert addresses(text, "Orion") is is_so


def test_that_all_are_good_is_told_when_it_has_stood() -> None:
    """A quick one is green before the others have begun."""
    pull = look(make_pull(), view(good()))
    pull = look(pull, view(good(), going()), at=NOW + GREEN_FOR)
    assert told(pull) == []
    pull = look(pull, view(good(), good("slow")), at=NOW + 2 * GREEN_FOR)
    assert told(pull) == []
    pull = look(pull, view(good(), good("slow")), at=NOW + 3 * GREEN_FOR)
    assert told(pull) == [NoticeKind.CHECKS_PASSED]
    assert pull.notices[0].passed == 2


def test_what_was_said_before_the_first_look_is_no_news() -> None:
    old = view(remarks=[remark("review:1", RemarkKind.CHANGES, text="Name it.")])
    pull = with_news(make_pull(), old, now=NOW)
    assert told(pull) == []
    assert told(look(pull, old)) == []


def test_who_writes_much_fills_no_thread() -> None:
    """A few are told, with how many there are besides; none of them again."""
    flood = view(remarks=[remark(f"comment:{n}", text=f"@orion {n}") for n in range(50)])
    pull = look(look(make_pull(), view()), flood)
    assert len(pull.notices) == MAX_REMARKS
    assert [notice.more for notice in pull.notices] == [0] * (MAX_REMARKS - 1) + [50 - MAX_REMARKS]
    assert len(look(pull, flood).notices) == MAX_REMARKS


def test_reviews_are_told_whoever_they_are_addressed_to() -> None:
    """With what they say of single lines, once each."""
    asked = remark("review:1", RemarkKind.CHANGES, text="Almost.", lines=("a.py:1: name it",))
    pull = look(make_pull(), view(remarks=[asked]))
    pull = look(pull, view(remarks=[asked, remark("review:2", RemarkKind.APPROVAL)]))
    changes, approval = pull.notices
    assert (changes.by, changes.items[0].text) == ("bea", "asked for changes in it")
    assert changes.quote == "Almost.\n\na.py:1: name it"
    assert can_be_fixed(changes)
    assert not can_be_fixed(approval)


def test_closing_opening_and_merging_are_told_each_time() -> None:
    """What its checks do meanwhile is not."""
    pull = make_pull()
    states = [PullState.CLOSED, PullState.CLOSED, PullState.OPEN, PullState.CLOSED, PullState.OPEN]
    for state in [*states, PullState.MERGED, PullState.MERGED]:
        pull = look(pull, view(state=state))
    closed, reopened = NoticeKind.CLOSED, NoticeKind.REOPENED
    assert told(pull) == [closed, reopened, closed, reopened, NoticeKind.MERGED]
    assert told(look(make_pull(), view(bad(), state=PullState.CLOSED))) == [closed]


def test_one_that_is_gone_is_told_until_it_is_pushed_to_again() -> None:
    """Once each; that it is there again needs no word."""
    pull = lost(lost(make_pull()))
    assert (told(pull), pull.state) == ([NoticeKind.LOST], PullState.LOST)
    again = replace(pull, pushed_at=NOW + timedelta(hours=1))
    assert told(look(again, view())) == [NoticeKind.LOST]
    assert told(lost(again)) == [NoticeKind.LOST] * 2


LONG_AGO = {"pushed_at": NOW - WATCHED_FOR * 2}
HOURS_AGO = {"pushed_at": NOW - timedelta(hours=1)}


@pytest.mark.parametrize(
    ("changes", "state", "after"),
    [
        ({}, PullState.OPEN, QUICK),
        (HOURS_AGO, PullState.OPEN, USUAL),
        (HOURS_AGO | {"red_since": NOW}, PullState.OPEN, QUICK),
        (HOURS_AGO | {"green_since": NOW}, PullState.OPEN, QUICK),
        (HOURS_AGO | {"red_since": NOW - timedelta(hours=1)}, PullState.OPEN, USUAL),
        (LONG_AGO, PullState.OPEN, None),
        (HOURS_AGO, PullState.CLOSED, USUAL),
        ({}, PullState.LOST, None),
        ({}, PullState.MERGED, USUAL),
        ({"is_tidied": True}, PullState.MERGED, None),
        (LONG_AGO, PullState.MERGED, None),
    ],
)
def test_the_next_look(
    changes: dict[str, object], state: PullState, after: timedelta | None
) -> None:
    """Soon after a push and while checks change, within a minute later; not for ever."""
    found = next_look(make_pull(state=state, **changes), NOW)
    assert found == (None if after is None else NOW + after)


def test_what_could_not_be_told_is_tried_again() -> None:
    """Also of one that is over."""
    assert next_look(lost(make_pull()), NOW) == NOW + USUAL


def test_all_is_told_within_a_minute() -> None:
    """However it falls between two looks."""
    assert USUAL + max(QUICK, RED_FOR, GREEN_FOR) < timedelta(minutes=1)


def test_what_was_told_long_ago_is_forgotten_and_not_told_again() -> None:
    """What is not told yet stays."""
    pull = make_pull()
    heads = [f"{number:040x}" for number in range(2 * MAX_KEPT_NOTICES)]
    for head in heads:
        pull = look(pull, view(bad(), head=head))
        done = [replace(notice, ts="1.0") for notice in pull.notices[1:]]
        pull = replace(pull, notices=(pull.notices[0], *done))
    assert len(pull.notices) <= MAX_KEPT_NOTICES + 2
    assert pull.notices[0].head == heads[0]
    assert pull.notices[-1].number == len(heads)
    again = look(pull, view(bad(), head=heads[5]))
    assert len(again.notices) <= len(pull.notices)
    assert again.notices[-1].number == len(heads)


@pytest.mark.parametrize(
    ("link", "number"),
    [
        ("https://github.test/acme/api/pull/12", 12),
        ("https://github.test/acme/api/pull/12/", 12),
        ("https://github.test/acme/api/pull/x", None),
        ("https://git.test/acme/api/merge_requests/12", None),
    ],
)
def test_links(link: str, number: int | None) -> None:
    assert pull_number(link) == number
    assert pull_id(link) != pull_id(f"{link}0")
