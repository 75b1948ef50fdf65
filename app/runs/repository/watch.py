"""Looks after pull requests that Orion has opened: tells their threads what happens to them, and lets an agent go on where that is wanted."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from app.aio import open_task_group
from app.log import get_logger
from app.pull_requests.news import PullView, can_be_fixed, lost, next_look, with_news
from app.pull_requests.records import NOWHERE, Notice, NoticeKind, PullRequest, PullState
from app.runs.model import Run
from app.runs.ports import RunPorts
from app.runs.request import (
    MessageContent,
    RunId,
    RunRequest,
    Thread,
    run_id_for,
)
from app.runs.session import SessionId, session_id_for

LOOK_INTERVAL_S: Final = 5.0
"""Between two looks for pull requests that are due."""
AT_ONCE: Final = 4
Empty = Callable[[SessionId, Callable[[], Awaitable[bool]]], Awaitable[bool]]
"""Is `SessionRemoval.empty`."""
_log = get_logger(__name__)


class PullGoneError(Exception):
    """A pull request is not there, or may not be read."""


class BusyHostError(ConnectionError):
    """The code host does not want to be asked for so many seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"the code host does not want to be asked for {wait_s:.0f} s")
        self.wait_s = wait_s


class PullRequestHost(Protocol):
    async def look(self, pull: PullRequest) -> PullView:
        """Returns how a pull request stands. Bounded to some minutes.

        Raises:
            PullGoneError
            BusyHostError: nothing is to be asked of it for a while.
            ConnectionError: not now; the message says why, and holds no secret.
        """
        ...


class PullRequestWatch:
    """One for a process; of several processes the one looks that leads."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        host: PullRequestHost,
        leads: Callable[[], Awaitable[bool]],
        accept: Callable[[RunRequest], Awaitable[bool]],
        empty: Empty,
        rounds: int,
    ) -> None:
        """`accept`: `Intake.accept`. `rounds`: how often an agent goes on by itself when checks fail."""
        self._ports = ports
        self._host = host
        self._leads = leads
        self._accept = accept
        self._empty = empty
        self._rounds = rounds
        self._not_before: dict[tuple[str, str], datetime] = {}
        """Until when the host does not want to be asked, by whose account, as in `PullRequest`."""

    async def look(self) -> int:
        """Looks at those that are due, if this process leads; returns at how many. One that fails is logged, and looked at again.

        Raises:
            OSError: the database does not answer.
        """
        if not await self._leads():
            return 0
        looked = 0
        while due := await self._ports.pull_requests.claim(limit=AT_ONCE):
            async with open_task_group() as group:
                for pull in due:
                    group.create_task(self._try_to_look_after(pull))
            looked += len(due)
        return looked

    async def _try_to_look_after(self, pull: PullRequest) -> None:
        try:
            await self._look_after(pull)
        except Exception:  # noqa: BLE001 - one must not keep the others from being looked at; its claim ends by itself
            _log.exception("pull_request.failed", link=pull.link)

    async def _look_after(self, pull: PullRequest) -> None:
        seen = await self._see(pull)
        if seen != pull and not await self._ports.pull_requests.save(seen):
            return
        for notice in seen.untold:
            seen = await self._tell(seen, notice, maybe_posted=notice in pull.notices)
        if seen.state is PullState.MERGED and not seen.untold and not seen.is_tidied:
            seen = replace(seen, is_tidied=await self._tidy(seen))
        now = self._ports.clock.now()
        at = next_look(seen, now)
        if at is not None:
            at = max(at, self._not_before.get(_account(pull), at))
        await self._ports.pull_requests.save(replace(seen, next_at=at), release=True)

    async def _see(self, pull: PullRequest) -> PullRequest:
        """Returns it as its server has it now, with what is new."""
        now = self._ports.clock.now()
        if pull.state is PullState.MERGED or self._not_before.get(_account(pull), now) > now:
            return pull
        try:
            view = await self._host.look(pull)
        except PullGoneError:
            return lost(pull)
        except BusyHostError as exc:
            self._not_before[_account(pull)] = now + timedelta(seconds=exc.wait_s)
            _log.warning("pull_request.host_busy", link=pull.link, wait_s=exc.wait_s)
            return pull
        except ConnectionError as exc:
            if not pull.is_unseen:
                _log.warning("pull_request.unseen", link=pull.link, reason=str(exc))
            return replace(pull, is_unseen=True)
        seen = with_news(pull, view, now=now)
        for notice in seen.notices:
            is_new = notice not in pull.notices and notice.kind is NoticeKind.CHECKS_FAILED
            if is_new and seen.rounds < self._rounds:
                seen = replace(seen, rounds=seen.rounds + 1)
                seen = seen.with_notice(replace(notice, round=seen.rounds))
        return seen

    async def _tell(self, pull: PullRequest, notice: Notice, *, maybe_posted: bool) -> PullRequest:
        """Shows a notice in the thread and begins its round, once each; returns it as far as that was done."""
        run = await self._ports.store.get(RunId(notice.run_id))
        if not notice.ts:
            ts: str | None = NOWHERE
            if run is not None:
                ts = await self._ports.replies.show_notice(
                    run, pull, notice, maybe_posted=maybe_posted
                )
            if ts is None:
                return pull
            notice = replace(notice, ts=ts)
            pull = pull.with_notice(notice)
            if not await self._ports.pull_requests.save(pull):
                return pull
            if ts != NOWHERE:
                _log.info("pull_request.told", link=pull.link, kind=notice.kind, head=notice.head)
        if not notice.is_done:
            if run is not None and notice.ts != NOWHERE:
                now = self._ports.clock.now()
                await self._accept(round_request(run, pull, notice, now=now))
            pull = pull.with_notice(replace(notice, is_begun=True))
        return pull

    async def _tidy(self, pull: PullRequest) -> bool:
        """Removes what is kept for the thread of a merged one, unless something was asked there since it was pushed; whether that is settled."""
        thread = Thread(team=pull.team, channel=pull.channel, thread_ts=pull.thread_ts)

        def is_asked_since(runs: Sequence[Run]) -> bool:
            return any(run.created_at > pull.pushed_at for run in runs)

        async def is_over() -> bool:
            runs = await self._ports.store.of_thread(thread)
            return not is_asked_since(runs) and all(run.state.is_final for run in runs)

        return is_asked_since(await self._ports.store.of_thread(thread)) or await self._empty(
            session_id_for(thread), is_over
        )


def _account(pull: PullRequest) -> tuple[str, str]:
    """Returns by whose account it is looked at."""
    return (pull.team, pull.acting_for) if pull.acting_for else ("", "")


_TASKS: Final = {
    NoticeKind.CHECKS_FAILED: (
        "Mend what makes the checks fail",
        "Checks of the pull request {link} fail at its commit {head}. Find out why and mend that. What they say is below.",
    ),
    NoticeKind.CONFLICT: (
        "Resolve the conflicts with the base branch",
        "The pull request {link} cannot be merged: its branch conflicts with `{base}`. Fetch that, merge it into the branch, and resolve the conflicts so that what both sides want is kept.",
    ),
    NoticeKind.REVIEW: (
        "Do what the review asks for",
        "The pull request {link} was reviewed. Do what the review below asks for where it is right, and say in your answer where it is not.",
    ),
    NoticeKind.COMMENT: (
        "Answer a comment",
        "Somebody has written to you below the pull request {link}. Do what is asked below where it is right, and answer what is asked.",
    ),
}
"""The title of a commit, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A person wants something done about what is new of a pull request."""

    pull_id: str
    number: int
    """Of the notice, from 1."""
    user: str
    click_ts: str
    """Slack's, of the click."""
    is_external: bool = False


def why_not_fixed(pull: PullRequest, notice: Notice) -> str:
    """Returns why nothing can be done about a notice any more, for a person; empty when something can."""
    if pull.state is not PullState.OPEN:
        return f"This pull request is {pull.state} by now."
    is_of_commit = notice.kind in (NoticeKind.CHECKS_FAILED, NoticeKind.CONFLICT)
    if is_of_commit and notice.head != pull.head:
        return "That was of an earlier commit; there is a newer one by now."
    return "" if can_be_fixed(notice) else "There is nothing to do about this."


def fix_request(
    run: Run, pull: PullRequest, notice: Notice, fix: Fix, *, now: datetime
) -> RunRequest:
    """Returns what asks an agent, for whoever pressed the button, to do something about a notice: one run for each notice. `run`: of the notice."""
    pressed = {
        "message_ts": fix.click_ts,  # after all that was written below the notice
        "user": fix.user,
        "unseen": "Fix it",
        "is_external": fix.is_external,
    }
    return _request(run, pull, notice, now=now).model_copy(update=pressed)


def round_request(run: Run, pull: PullRequest, notice: Notice, *, now: datetime) -> RunRequest:
    """Returns the same for a round that goes on by itself, for whoever asked for what was pushed last."""
    last = {"user": pull.asker, "is_external": pull.is_external, "is_bot": pull.is_bot}
    return _request(run, pull, notice, now=now).model_copy(update=last)


def _request(run: Run, pull: PullRequest, notice: Notice, *, now: datetime) -> RunRequest:
    """Returns the request without whose it is. What the server and people there say goes with it as what was forwarded, never as a part of the question."""
    title, task = _TASKS[notice.kind]
    said = "\n".join(f"> {line}" for line in notice.detail.splitlines())
    told = task.format(link=pull.link, head=notice.head[:7], base=pull.base)
    return RunRequest(
        run_id=run_id_for(
            team=pull.team, channel=pull.channel, message_ts=pull.id, click=str(notice.number)
        ),
        team=pull.team,
        channel=pull.channel,
        thread_ts=pull.thread_ts,
        message_ts=notice.ts,
        user="",
        text=f"pr=yes {title}\n\n{told}",
        surface=run.request.surface,
        content=MessageContent(shared=(f"From {pull.link}:\n{said}",) if said else ()),
        received_at=now,
    )
