"""Pull requests as they are kept: where they came from, how they stood last, and what of them has been told."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol
from urllib.parse import urlsplit

CLAIM_S: Final = 180.0
"""For so long nobody else looks after a pull request, unless whoever does has died; a look and its messages take less."""
ID_PREFIX: Final = "pr_"
NOWHERE: Final = "-"
"""In place of the ts of a notice's message: there will be none."""


class PullState(StrEnum):
    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"
    LOST = "lost"
    """It is not there any more, or may not be read."""


class NoticeKind(StrEnum):
    CHECKS_FAILED = "checks_failed"
    CHECKS_PASSED = "checks_passed"
    CONFLICT = "conflict"
    REVIEW = "review"
    COMMENT = "comment"
    MERGED = "merged"
    CLOSED = "closed"
    REOPENED = "reopened"
    LOST = "lost"


FIXABLE: Final = frozenset(
    {NoticeKind.CHECKS_FAILED, NoticeKind.CONFLICT, NoticeKind.REVIEW, NoticeKind.COMMENT}
)
"""What an agent may be asked to do something about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeItem:
    """One line of a notice; texts are the server's, masked."""

    text: str
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One piece of news, which is one message in the thread."""

    number: int
    """Of all of its pull request, from 1."""
    kind: NoticeKind
    run_id: str
    """Of the run that had pushed last by then: by it, and by the number, the message is found."""
    head: str
    """The commit that it is about."""
    by: str = ""
    """Who has said it, by their login; empty = nobody."""
    items: tuple[NoticeItem, ...] = ()
    quote: str = field(default="", repr=False)
    """What somebody has said, masked."""
    detail: str = field(default="", repr=False)
    """What an agent is told of it, masked."""
    more: int = 0
    """So many others like it are told nowhere: somebody writes too many at once."""
    pending: int = 0
    """Checks that go on."""
    passed: int = 0
    """Checks that are good."""
    round: int = 0
    """The agent goes on by itself, for this time; 0 = it does not."""
    is_begun: bool = False
    """That round is a run by now."""
    ts: str = ""
    """Of its message; empty = none stands for sure."""

    @property
    def is_done(self) -> bool:
        return bool(self.ts) and (self.is_begun or not self.round)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    id: str
    """`pull_id` of its link."""
    link: str
    """Of its page."""
    name: str
    """The repository as `owner/name`."""
    number: int
    base: str
    run_id: str
    """Of the run that has pushed to it last."""
    team: str
    channel: str
    thread_ts: str
    asker: str
    """Who asked for what was pushed last."""
    is_external: bool = False
    """They belong to another company."""
    is_bot: bool = False
    """They are another app."""
    acting_for: str = ""
    """The person by whose account it is looked at; empty = by the deployment's."""
    pushed_at: datetime
    """When Orion did so last."""
    state: PullState = PullState.OPEN
    head: str = ""
    """The commit that was looked at last; empty = none yet."""
    red_since: datetime | None = None
    """Since when a check of that commit has failed."""
    green_since: datetime | None = None
    """Since when all of them are good."""
    is_unseen: bool = False
    """The last look at it failed."""
    told: tuple[str, ...] = ()
    """The keys of all news that are in `notices`, or were."""
    notices: tuple[Notice, ...] = ()
    rounds: int = 0
    """So many times the agent has gone on by itself."""
    is_tidied: bool = False
    """What was kept for its thread is removed."""
    next_at: datetime | None
    """When to look at it next; None = nobody does any more."""
    claim: str = ""
    """Of whoever looks after it now: what another one writes is not kept."""

    @property
    def untold(self) -> Sequence[Notice]:
        return [notice for notice in self.notices if not notice.is_done]

    def find(self, number: int) -> Notice | None:
        """Returns the notice of that number; None = there is none, or it is long ago."""
        return next((one for one in self.notices if one.number == number), None)

    def with_notice(self, notice: Notice) -> "PullRequest":
        """Returns it with this one in place of that of the same number."""
        notices = tuple(notice if one.number == notice.number else one for one in self.notices)
        return replace(self, notices=notices)


def pull_id(link: str) -> str:
    """Returns the id of a pull request by the link of its page, the same however often it is pushed to."""
    return f"{ID_PREFIX}{hashlib.sha256(link.encode()).hexdigest()[:24]}"


def pull_number(link: str) -> int | None:
    """Returns the number at the end of the link of its page; None = that is none of GitHub's. Source: GitHub REST API, `html_url`, read 2026-11."""
    head, _, number = urlsplit(link).path.rstrip("/").rpartition("/")
    return int(number) if head.endswith("/pull") and number.isdecimal() else None


class PullRequestStore(Protocol):
    """Rows of what is looked after. Every method is durable when it returns, and safe to repeat.

    Raises OSError where the database does not answer.
    """

    async def open(self, pull: PullRequest) -> None:
        """Keeps a new one; of one that is known, only who has pushed last, when, for whom, and that it is to be looked at: a push shows that it is there."""
        ...

    async def get(self, pull_id: str) -> PullRequest | None: ...

    async def claim(self, *, limit: int) -> Sequence[PullRequest]:
        """Returns those that are due, for the caller to look after for `CLAIM_S`; nobody else gets them meanwhile, while its process lives."""
        ...

    async def save(self, pull: PullRequest, *, release: bool = False) -> bool:
        """Writes how it stands and what was told of it; not what `open` writes, but for when it is due. `release`: it is looked after no longer.

        False: its claim is over, and nothing is written.
        """
        ...
