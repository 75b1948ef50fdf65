"""How a pull request stands at its server, and what of that its thread has not been told."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from app.pull_requests.records import (
    FIXABLE,
    Notice,
    NoticeItem,
    NoticeKind,
    PullRequest,
    PullState,
)

RED_FOR: Final = timedelta(seconds=15)
"""A check that fails is told after this, though others go on."""
GREEN_FOR: Final = timedelta(seconds=15)
"""That all are good is told after this: others may not have begun yet."""
QUICK: Final = timedelta(seconds=15)
"""Between two looks, for `QUICK_FOR` after a push."""
QUICK_FOR: Final = timedelta(minutes=10)
USUAL: Final = timedelta(seconds=40)
"""Between two looks after that: what happens is told within a minute."""
WATCHED_FOR: Final = timedelta(days=14)
"""After the last push."""
MAX_QUOTE_CHARS: Final = 600
MAX_DETAIL_CHARS: Final = 6_000
MAX_ITEMS: Final = 10
MAX_REMARKS: Final = 5
"""Of one look, each with a message of its own."""
MAX_KEPT_NOTICES: Final = 30
MAX_KEPT_KEYS: Final = 1_000


class CheckState(StrEnum):
    GOING = "going"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check or a status of one commit; texts are the server's, masked."""

    name: str
    state: CheckState
    link: str = ""
    summary: str = field(default="", repr=False)


class RemarkKind(StrEnum):
    """What a reviewer or a commenter has done, in words that follow their name."""

    APPROVAL = "approved it"
    CHANGES = "asked for changes in it"
    REMARK = "reviewed it"
    COMMENT = "wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A review or a comment; texts are the server's, masked."""

    key: str
    """The same for the same one, in one pull request."""
    kind: RemarkKind
    by: str
    """A login."""
    text: str = field(default="", repr=False)
    lines: tuple[str, ...] = field(default=(), repr=False)
    """Of a review: what is said of single lines, each with its file."""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullView:
    """A pull request at one moment."""

    state: PullState
    head: str
    has_conflict: bool = False
    checks: Sequence[Check] = ()
    """Of the commit `head`."""
    remarks: Sequence[Remark] = ()
    """In their order; of comments those alone that address Orion."""


def with_news(pull: PullRequest, view: PullView, *, now: datetime) -> PullRequest:
    """Returns it as it stands now, with a notice of each thing that was not told before: of checks and conflicts once for each commit.

    What people had said before it was looked at for the first time is no news.
    """
    states = {check.state for check in view.checks}
    is_new_head = view.head != pull.head
    seen = replace(
        pull,
        head=view.head,
        state=view.state,
        is_unseen=False,
        red_since=_since(None if is_new_head else pull.red_since, now, CheckState.BAD in states),
        green_since=_since(
            None if is_new_head else pull.green_since, now, states == {CheckState.GOOD}
        ),
    )
    if not pull.head:
        seen = replace(seen, told=(*seen.told, *(remark.key for remark in view.remarks)))
    left_out = [remark.key for remark in view.remarks if remark.key not in seen.told][MAX_REMARKS:]
    for key, notice in _found(pull, seen, view, now=now):
        if key not in seen.told:
            seen = _with_notice(seen, notice, key)
    return replace(seen, told=(*seen.told, *left_out))


def lost(pull: PullRequest) -> PullRequest:
    """Returns it as one that is not there, or may not be read, which is told; once, until it is pushed to again."""
    seen = replace(pull, state=PullState.LOST)
    key = f"lost:{pull.pushed_at.isoformat()}"
    if key in pull.told:
        return seen
    return _with_notice(seen, _notice(pull, NoticeKind.LOST, head=pull.head), key)


def next_look(pull: PullRequest, now: datetime) -> datetime | None:
    """Returns when to look at it again, after all that could be told of it was; None = never."""
    since = now - pull.pushed_at
    if pull.untold:
        return now + USUAL if since < WATCHED_FOR else None
    if pull.state is PullState.MERGED:
        return None if pull.is_tidied or since > WATCHED_FOR else now + USUAL
    if pull.state is PullState.LOST or since > WATCHED_FOR:
        return None
    is_changing = any(
        at is not None and now - at < longest
        for at, longest in ((pull.red_since, RED_FOR), (pull.green_since, GREEN_FOR))
    )
    return now + (QUICK if since < QUICK_FOR or is_changing else USUAL)


def _since(before: datetime | None, now: datetime, is_so: bool) -> datetime | None:  # noqa: FBT001 - what is asked
    return (before or now) if is_so else None


def _with_notice(pull: PullRequest, notice: Notice, key: str) -> PullRequest:
    """Returns it with one more to tell; of those that were told the newest are kept."""
    kept = [one for one in pull.notices if not one.is_done]
    done = [one for one in pull.notices if one.is_done][-MAX_KEPT_NOTICES:]
    number = max((one.number for one in pull.notices), default=0) + 1
    notices = sorted([*done, *kept], key=lambda one: one.number)
    return replace(
        pull,
        told=(*pull.told[-MAX_KEPT_KEYS:], key),
        notices=(*notices, replace(notice, number=number)),
    )


def _found(
    pull: PullRequest, seen: PullRequest, view: PullView, *, now: datetime
) -> Iterator[tuple[str, Notice]]:
    """Yields all that there is to tell of how it was seen now, told or not, each with its key. `pull`: as it was seen before."""
    yield from _of_remarks(seen, view)
    if view.state is not pull.state or view.state is PullState.MERGED:
        kind = {
            PullState.MERGED: NoticeKind.MERGED,
            PullState.CLOSED: NoticeKind.CLOSED,
            PullState.OPEN: NoticeKind.REOPENED,
        }.get(view.state)
        # One that is closed, opened and closed again is told of each time.
        times = sum(key.startswith("state:") for key in pull.told)
        key = "state:merged" if view.state is PullState.MERGED else f"state:{view.state}:{times}"
        is_found_again = pull.state is PullState.LOST and view.state is PullState.OPEN
        if kind is not None and not is_found_again:
            yield key, _notice(pull, kind, head=view.head)
    if view.state is not PullState.OPEN:
        return
    if view.has_conflict:
        yield f"conflict:{view.head}", _notice(pull, NoticeKind.CONFLICT, head=view.head)
    yield from _of_checks(seen, view, now=now)


def _of_checks(pull: PullRequest, view: PullView, *, now: datetime) -> Iterator[tuple[str, Notice]]:
    by_state = {
        state: [check for check in view.checks if check.state is state] for state in CheckState
    }
    bad, going, good = (
        by_state[state] for state in (CheckState.BAD, CheckState.GOING, CheckState.GOOD)
    )
    is_red = pull.red_since is not None and now - pull.red_since >= RED_FOR
    is_green = pull.green_since is not None and now - pull.green_since >= GREEN_FOR
    if bad and (is_red or not going):
        yield (
            f"failed:{view.head}",
            replace(
                _notice(pull, NoticeKind.CHECKS_FAILED, head=view.head),
                items=tuple(
                    NoticeItem(text=check.name, link=check.link) for check in bad[:MAX_ITEMS]
                ),
                detail=_cut(
                    "\n\n".join(f"{check.name}\n{check.summary}".strip() for check in bad),
                    MAX_DETAIL_CHARS,
                ),
                passed=len(good),
                pending=len(going),
            ),
        )
    elif is_green:
        passed = _notice(pull, NoticeKind.CHECKS_PASSED, head=view.head)
        yield f"passed:{view.head}", replace(passed, passed=len(good))


def _of_remarks(pull: PullRequest, view: PullView) -> Iterator[tuple[str, Notice]]:
    new = [remark for remark in view.remarks if remark.key not in pull.told]
    for number, remark in enumerate(new):
        kind = NoticeKind.COMMENT if remark.kind is RemarkKind.COMMENT else NoticeKind.REVIEW
        said = "\n\n".join(text for text in (remark.text, *remark.lines) if text)
        notice = replace(
            _notice(pull, kind, head=view.head),
            by=remark.by,
            items=(NoticeItem(text=remark.kind, link=remark.link),),
            quote=_cut(said, MAX_QUOTE_CHARS),
            detail=_cut(said, MAX_DETAIL_CHARS),
        )
        if number == MAX_REMARKS - 1 and len(new) > MAX_REMARKS:
            # Whoever writes so many at once fills no thread: all others are told of in this one.
            yield remark.key, replace(notice, more=len(new) - MAX_REMARKS)
            return
        yield remark.key, notice


def can_be_fixed(notice: Notice) -> bool:
    """Whether there is anything in it that an agent could be asked to do: an approval without a word asks for nothing."""
    if notice.kind in (NoticeKind.REVIEW, NoticeKind.COMMENT):
        return bool(notice.detail)
    return notice.kind in FIXABLE


def addresses(text: str, called: str) -> bool:
    """Whether a comment addresses somebody of that name, behind an @."""
    wanted = f"@{called.casefold()}"
    if wanted not in (folded := text.casefold()):
        return False
    return any(word.strip(".,:;!?()`*_") == wanted for word in folded.split())


def _notice(pull: PullRequest, kind: NoticeKind, *, head: str) -> Notice:
    return Notice(number=0, kind=kind, run_id=pull.run_id, head=head)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
