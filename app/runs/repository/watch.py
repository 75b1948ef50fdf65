"""Looks after pull requests that Orion has opened: tells their threads what happens to them, and lets an agent go on where that is wanted."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from app.aio import open_task_group
from app.log import get_logger
from app.pull_requests.news import USUAL, PullView, lost, with_news
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
from app.runs.session import session_id_for

LOOK_INTERVAL_S: Final = 5.0
"""Between two looks for pull requests that are due."""
DUE_AT_ONCE: Final = 20
BESIDE_EACH_OTHER: Final = 4
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
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
    """One for a process; of several processes one looks."""

    def __init__(
        self,
        ports: RunPorts,
        *,
        host: PullRequestHost,
        accept: Callable[[RunRequest], Awaitable[bool]],
        remove_sessions: Callable[[datetime], Awaitable[int]],
        called: str,
        rounds: int,
    ) -> None:
        """`accept`: `Intake.accept`. `remove_sessions`: last used before then. `called`: see `with_news`. `rounds`: how often an agent goes on by itself when checks fail."""
        self._ports = ports
        self._host = host
        self._accept = accept
        self._remove_sessions = remove_sessions
        self._called = called
        self._rounds = rounds
        self._not_before = _EPOCH

    async def look_forever(self, leads: Callable[[], Awaitable[bool]]) -> None:
        """Looks whenever some are due, while `leads` says that this process is the one to do so, until cancelled."""
        is_sick = False
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                if await leads():
                    await self.look()
            except OSError as exc:
                if not is_sick:
                    _log.warning("pull_request.unwatched", reason=str(exc))
                is_sick = True
            else:
                is_sick = False

    async def look(self) -> int:
        """Looks at those that are due; returns at how many. One that fails is logged, and looked at again. Raises: OSError."""
        if self._ports.clock.now() < self._not_before:
            return 0
        due = await self._ports.pull_requests.claim(limit=DUE_AT_ONCE)
        turn = asyncio.Semaphore(BESIDE_EACH_OTHER)

        async def look_after(pull: PullRequest) -> None:
            async with turn:
                try:
                    await self._look_after(pull)
                except Exception:  # noqa: BLE001 - one must not keep the others from being looked at; its claim ends by itself
                    _log.exception("pull_request.failed", link=pull.link)

        async with open_task_group() as group:
            for pull in due:
                group.create_task(look_after(pull))
        return len(due)

    async def _look_after(self, pull: PullRequest) -> None:
        seen = await self._see(pull)
        await self._ports.pull_requests.save(seen)
        for notice in seen.untold:
            seen = await self._tell(seen, notice, maybe_posted=notice in pull.notices)
        if seen.state is PullState.MERGED and not seen.untold and not seen.is_tidied:
            is_tidied = await self._tidy(seen)
            seen = replace(seen, is_tidied=is_tidied, next_at=None if is_tidied else self._soon())
        elif seen.untold and seen.next_at is None:
            seen = replace(seen, next_at=self._soon())
        await self._ports.pull_requests.save(seen, release=True)

    async def _see(self, pull: PullRequest) -> PullRequest:
        """Returns it as its server has it now, with what is new."""
        if pull.state in (PullState.LOST, PullState.MERGED):
            return pull  # for good
        now = self._ports.clock.now()
        try:
            view = await self._host.look(pull)
        except PullGoneError:
            return lost(pull)
        except BusyHostError as exc:
            self._not_before = now + timedelta(seconds=exc.wait_s)
            _log.warning("pull_request.host_busy", wait_s=exc.wait_s)
            return replace(pull, next_at=self._not_before)
        except ConnectionError as exc:
            _log.warning("pull_request.unseen", link=pull.link, reason=str(exc))
            return replace(pull, next_at=self._soon())
        seen = with_news(pull, view, now=now, called=self._called)
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
            await self._ports.pull_requests.save(pull)
            _log.info("pull_request.told", link=pull.link, kind=notice.kind, head=notice.head)
        if not notice.is_done:
            if run is not None and notice.ts != NOWHERE:
                now = self._ports.clock.now()
                await self._accept(fix_request(run, pull, notice, user=pull.asker, now=now))
            pull = pull.with_notice(replace(notice, is_begun=True))
        return pull

    async def _tidy(self, pull: PullRequest) -> bool:
        """Removes what is kept for the thread of a merged one, unless something goes on there."""
        thread = Thread(team=pull.team, channel=pull.channel, thread_ts=pull.thread_ts)
        if any(not run.state.is_final for run in await self._ports.store.of_thread(thread)):
            return False
        session = await self._ports.sessions.get(session_id_for(thread))
        if session is None:
            return True
        await self._ports.sessions.update(session.id, used_at=_EPOCH)
        await self._remove_sessions(_EPOCH + timedelta(seconds=1))
        return await self._ports.sessions.get(session.id) is None

    def _soon(self) -> datetime:
        return self._ports.clock.now() + USUAL


_TASKS: Final = {
    NoticeKind.CHECKS_FAILED: "Checks of the pull request {link} fail at its commit {head}. Find out why and mend that. What they say is below.",
    NoticeKind.CONFLICT: "The pull request {link} cannot be merged: its branch conflicts with `{base}`. Fetch that, merge it into the branch, and resolve the conflicts so that what both sides want is kept.",
    NoticeKind.REVIEW: "The pull request {link} was reviewed. Do what the review below asks for where it is right, and say in your answer where it is not.",
    NoticeKind.COMMENT: "Somebody has written to you below the pull request {link}. Do what is asked below where it is right, and answer what is asked.",
}


def fix_request(
    run: Run,
    pull: PullRequest,
    notice: Notice,
    *,
    user: str,
    now: datetime,
    click_ts: str = "",
    is_external: bool = False,
) -> RunRequest:
    """Returns what asks an agent to do something about a notice: one run for each, however often it is asked for.

    What the server and people there say goes with it as what was forwarded, never as a part of the question. `run`: of the notice.
    """
    task = _TASKS[notice.kind].format(link=pull.link, head=notice.head[:7], base=pull.base)
    said = "\n".join(f"> {line}" for line in notice.detail.splitlines())
    told = f"From {pull.link}:\n{said}"
    return RunRequest(
        run_id=run_id_for(team=pull.team, channel=pull.channel, message_ts=notice.ts),
        team=pull.team,
        channel=pull.channel,
        thread_ts=pull.thread_ts,
        message_ts=notice.ts,
        user=user,
        text=f"pr=yes {task}",
        unseen="Fix it" if click_ts else "",
        surface=run.request.surface,
        content=MessageContent(shared=(told,) if said else ()),
        click_ts=click_ts,
        is_external=is_external,
        received_at=now,
    )
