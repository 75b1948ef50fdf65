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
QUICK: Final = timedelta(seconds=15)
"""Between two looks, for `QUICK_FOR` after a push."""
QUICK_FOR: Final = timedelta(minutes=10)
USUAL: Final = timedelta(seconds=40)
"""Between two looks after that: what happens is told within a minute."""
RARE: Final = timedelta(minutes=10)
"""Between two looks at one that is closed, and may be opened again."""
WATCHED_FOR: Final = timedelta(days=14)
"""After the last push."""
MAX_QUOTE_CHARS: Final = 600
MAX_DETAIL_CHARS: Final = 6_000
MAX_ITEMS: Final = 10
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
    """What somebody has done, as the rest of a sentence about them."""

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
    """In their order."""


def with_news(pull: PullRequest, view: PullView, *, now: datetime, called: str) -> PullRequest:
    """Returns it as it stands now, with a notice of each thing that was not told before: of checks and conflicts once for each commit.

    `called`: the name by which comments address Orion, behind an @.
    """
    is_new_head = view.head != pull.head
    bad = [check for check in view.checks if check.state is CheckState.BAD]
    red_since = None
    if bad:
        red_since = now if is_new_head or pull.red_since is None else pull.red_since
    seen = replace(pull, head=view.head, state=view.state, red_since=red_since)
    for key, notice in _found(pull, view, now=now, red_since=red_since, called=called):
        if key not in seen.told:
            kept = [one for one in seen.notices if not one.is_done]
            done = [one for one in seen.notices if one.is_done][-MAX_KEPT_NOTICES:]
            number = max((one.number for one in seen.notices), default=0) + 1
            notices = sorted([*done, *kept], key=lambda one: one.number)
            seen = replace(
                seen,
                told=(*seen.told[-MAX_KEPT_KEYS:], key),
                notices=(*notices, replace(notice, number=number)),
            )
    return replace(seen, next_at=_next_look(seen, now))


def lost(pull: PullRequest) -> PullRequest:
    """Returns it as one that nobody can look at any more, which is told."""
    number = max((one.number for one in pull.notices), default=0) + 1
    notice = replace(_notice(pull, NoticeKind.LOST, head=pull.head), number=number)
    return replace(pull, state=PullState.LOST, next_at=None, notices=(*pull.notices, notice))


def _next_look(pull: PullRequest, now: datetime) -> datetime | None:
    since = now - pull.pushed_at
    if pull.state is PullState.MERGED:
        return None if pull.is_tidied else now + USUAL
    if pull.state is PullState.LOST or since > WATCHED_FOR:
        return None
    if pull.state is PullState.CLOSED:
        return now + RARE
    return now + (QUICK if since < QUICK_FOR else USUAL)


def _found(
    pull: PullRequest,
    view: PullView,
    *,
    now: datetime,
    red_since: datetime | None,
    called: str,
) -> Iterator[tuple[str, Notice]]:
    """Yields all that there is to tell, told or not, each with its key."""
    yield from _of_remarks(pull, view, called=called)
    if view.state is not pull.state or view.state is PullState.MERGED:
        kind = {
            PullState.MERGED: NoticeKind.MERGED,
            PullState.CLOSED: NoticeKind.CLOSED,
            PullState.OPEN: NoticeKind.REOPENED,
        }.get(view.state)
        # One that is closed, opened and closed again is told of each time.
        times = sum(key.startswith("state:") for key in pull.told)
        key = "state:merged" if view.state is PullState.MERGED else f"state:{view.state}:{times}"
        if kind is not None:
            yield key, _notice(pull, kind, head=view.head)
    if view.state is not PullState.OPEN:
        return
    if view.has_conflict:
        yield f"conflict:{view.head}", _notice(pull, NoticeKind.CONFLICT, head=view.head)
    yield from _of_checks(pull, view, now=now, red_since=red_since)


def _of_checks(
    pull: PullRequest, view: PullView, *, now: datetime, red_since: datetime | None
) -> Iterator[tuple[str, Notice]]:
    by_state = {
        state: [check for check in view.checks if check.state is state] for state in CheckState
    }
    bad, going, good = (
        by_state[state] for state in (CheckState.BAD, CheckState.GOING, CheckState.GOOD)
    )
    is_over = not going or (red_since is not None and now - red_since >= RED_FOR)
    if bad and is_over:
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
    elif good and not bad and not going:
        passed = _notice(pull, NoticeKind.CHECKS_PASSED, head=view.head)
        yield f"passed:{view.head}", replace(passed, passed=len(good))


def _of_remarks(pull: PullRequest, view: PullView, *, called: str) -> Iterator[tuple[str, Notice]]:
    for remark in view.remarks:
        if remark.kind is RemarkKind.COMMENT and not _addresses(remark.text, called):
            continue
        is_comment = remark.kind is RemarkKind.COMMENT
        kind = NoticeKind.COMMENT if is_comment else NoticeKind.REVIEW
        said = "\n\n".join(text for text in (remark.text, *remark.lines) if text)
        yield (
            remark.key,
            replace(
                _notice(pull, kind, head=view.head),
                by=remark.by,
                items=(NoticeItem(text=remark.kind, link=remark.link),),
                quote=_cut(said, MAX_QUOTE_CHARS),
                # An approval without a word asks for nothing.
                detail=_cut(said, MAX_DETAIL_CHARS),
            ),
        )


def can_be_fixed(notice: Notice) -> bool:
    """Whether there is anything in it that an agent could be asked to do."""
    if notice.kind in (NoticeKind.REVIEW, NoticeKind.COMMENT):
        return bool(notice.detail)
    return notice.kind in FIXABLE


def _addresses(text: str, called: str) -> bool:
    words = text.lower().split()
    return any(word.strip(".,:;!?()`*_") == f"@{called.lower()}" for word in words)


def _notice(pull: PullRequest, kind: NoticeKind, *, head: str) -> Notice:
    return Notice(number=0, kind=kind, run_id=pull.run_id, head=head)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
