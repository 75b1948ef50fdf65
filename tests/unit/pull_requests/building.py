"""A pull request as a run has opened it, and how its server shows it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.pull_requests.news import Check, CheckState, PullView, Remark, RemarkKind
from app.pull_requests.records import PullRequest, PullState, pull_id
from tests.building import make_run

RUN = make_run()
LINK = "https://github.test/acme/api/pull/1"
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def make_pull(**changes: Any) -> PullRequest:
    made = PullRequest(
        id=pull_id(LINK),
        link=LINK,
        name="acme/api",
        number=1,
        base="main",
        run_id=RUN.id,
        team=RUN.request.team,
        channel=RUN.request.channel,
        thread_ts=RUN.request.thread_ts,
        asker=RUN.request.user,
        pushed_at=NOW,
        next_at=NOW,
    )
    return replace(made, **changes)


def view(*checks: Check, head: str = "a" * 40, **changes: Any) -> PullView:
    return replace(PullView(state=PullState.OPEN, head=head, checks=checks), **changes)


def good(name: str = "lint") -> Check:
    return Check(name=name, state=CheckState.GOOD)


def bad(name: str = "test", **more: Any) -> Check:
    return Check(name=name, state=CheckState.BAD, **more)


def going(name: str = "slow") -> Check:
    return Check(name=name, state=CheckState.GOING)


def remark(key: str, kind: RemarkKind = RemarkKind.COMMENT, **more: Any) -> Remark:
    return Remark(key=key, kind=kind, by="bea", **more)
