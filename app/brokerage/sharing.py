"""Grants that all processes on a database honour: behind a load balancer a sandbox's requests come to any of them.

Whoever executes a run offers its grant. Another process that is asked with its token finds it, checks the request as its own, and
reports the model call; the first one counts it, traces it and charges it. In flight and refused is per process.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from app.aio import open_task_group, retry_store
from app.brokerage.registry import GrantRegistry, LiveGrant, record_effect
from app.log import get_logger
from app.runs.broker import GrantHooks, ModelGrant, RunApprovals
from app.runs.budget import Spending
from app.runs.model import GrantNews, ModelCall, ReportedCall
from app.runs.request import RunId

TAKE_INTERVAL_S = 1.0
"""Between looks at what other processes report, while grants are offered."""
CHECKED_S = 2.0
"""A grant that was found is good for so long without another look: as long a run that is over may still ask."""
UNCHECKED_S = 60.0
"""And for so long while the database does not answer: it ends no agent that is at work."""
FORGOTTEN_S = 600.0
"""A grant that nobody has asked with for so long is dropped."""
CLOSE_TIMEOUT_S = 5.0
RETRY_S = 1.0
MAX_UNREPORTED = 10_000
"""Calls that a sick database may make wait; then the oldest are given up."""

_log = get_logger(__name__)


class GrantStore(Protocol):
    """Open grants by their runs' ids, where all processes on a database find them; without keys.

    Raises OSError where the database does not answer. Every method is safe to repeat.
    """

    async def open(self, grant: ModelGrant, *, process: str) -> None:
        """Lets others find a grant of this process, in place of an earlier one of the same run."""
        ...

    async def find(self, run_id: RunId) -> ModelGrant | None:
        """Returns the open grant of a run that is not over."""
        ...

    async def report(self, calls: Sequence[ReportedCall]) -> Collection[str]:
        """Tells the processes that have opened their grants; returns the ids of calls whose grant is closed, which nobody takes."""
        ...

    async def note_effect(self, run_id: RunId) -> bool:
        """Records, with the run too, that it may change something outside; False when its grant is closed."""
        ...

    async def take(self, process: str) -> GrantNews:
        """Returns what is reported of this process's grants; each call once."""
        ...

    async def close(self, run_id: RunId, *, process: str) -> GrantNews:
        """Closes a grant, unless another process has opened it anew; returns what `take` has not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a run that another process owns has spent, its person's own key, and whom it asks, as this process knows them."""

    spending: Spending | None
    """None = it is no run's, and asks no model."""
    own_key: str = field(default="", repr=False)
    """Of the person who asked, where the grant is for that."""
    approvals: RunApprovals | None = None
    """How the run asks people; None = it does not, and no rule says so."""


ReadAccount = Callable[[ModelGrant, Account | None], Awaitable[Account | None]]
"""Reads it from the database, or what is new to the one that was read before; None = there is no such run.

Raises: OSError: the database does not answer.
"""


@dataclass(slots=True, kw_only=True)
class _Found:
    """The grant of another process's run."""

    live: LiveGrant
    account: Account
    checked_s: float = field(default_factory=time.monotonic)
    """Monotonic: when it was looked for last."""


class SharedGrants:
    """Implements GrantSharing. Make it with `open_sharing`."""

    def __init__(
        self, *, registry: GrantRegistry, store: GrantStore, read_account: ReadAccount
    ) -> None:
        self._registry = registry
        self._store = store
        self._read_account = read_account
        self._process = secrets.token_hex(16)
        self._offered: dict[RunId, LiveGrant] = {}
        self._found: dict[RunId, _Found] = {}
        self._unreported: list[tuple[ReportedCall, Account]] = []
        self._has_news = asyncio.Event()
        self._reported = asyncio.Condition()

    async def work_forever(self) -> None:
        """Takes what others report, and reports to them, until cancelled."""
        async with open_task_group() as group:
            group.create_task(self._take_forever())
            group.create_task(self._report_forever())

    async def report(self) -> None:
        """Reports what has not been reported; of runs that are over it is booked here. Raises: OSError: it may be repeated."""
        entries = tuple(self._unreported)
        if not entries:
            return
        late = await self._store.report([call for call, _ in entries])
        reported = {call.id for call, _ in entries}
        self._unreported = [entry for entry in self._unreported if entry[0].id not in reported]
        for one, account in entries:
            if one.id in late and account.spending is not None:
                account.spending.count(one.call)  # it is paid for, and nobody else counts it

    @asynccontextmanager
    async def offer(self, run_id: RunId) -> AsyncIterator[None]:
        """Lets other processes find the registry's grant of that run while the block runs, and longer when it is kept: until its run is over, at whichever process.

        Raises:
            OSError: not even after a minute.
        """
        live = self._registry.live(run_id)
        assert live is not None  # noqa: S101 - whoever offers one has opened it
        await retry_store(lambda: self._store.open(live.grant, process=self._process))
        self._offered[run_id] = live
        self._found.pop(run_id, None)  # of an earlier slice
        is_left = False
        try:
            yield
            is_left = live.is_kept
        finally:
            if self._offered.get(run_id) is live:  # a later attempt's stays
                del self._offered[run_id]
                await (self._leave(live) if is_left else self._close(live))

    async def find(self, run_id: RunId) -> LiveGrant | None:
        found = self._found.get(run_id)
        age_s = time.monotonic() - found.checked_s if found else 0.0
        if found is not None and age_s < CHECKED_S:
            return found.live
        try:
            grant = await self._store.find(run_id)
            if grant is None:
                self._found.pop(run_id, None)
                return None
            return await self._look(run_id, grant)
        except OSError:
            if found is None or age_s > UNCHECKED_S:
                raise
            return found.live

    def is_live(self, live: LiveGrant) -> bool:
        found = self._found.get(live.grant.run_id)
        return found is not None and found.live is live

    async def _look(self, run_id: RunId, grant: ModelGrant) -> LiveGrant | None:
        found = self._found.get(run_id)
        account = await self._read_account(grant, found.account if found else None)
        if account is None:
            return None
        grant = replace(grant, own_key=account.own_key)
        hooks = self._hooks(run_id, account)
        found = self._found.get(run_id)  # another request may have been quicker
        if found is None:
            self._forget()
            live = self._registry.create_live(grant, hooks)
            found = self._found[run_id] = _Found(live=live, account=account)
        elif found.account is not account:
            found.account, found.live.hooks = account, hooks
        found.live.grant = grant
        if account.spending is not None:
            found.live.calls = max(found.live.calls, account.spending.usage.model_calls)
        found.checked_s = time.monotonic()
        return found.live

    def _hooks(self, run_id: RunId, account: Account) -> GrantHooks:
        return GrantHooks(
            on_call=partial(self._report, run_id, account),
            tell_call=self._tell_reports,
            on_effect=partial(self._note_effect, run_id),
            refusal=account.spending.find_refusal if account.spending else None,
            approvals=account.approvals,
        )

    def _report(self, run_id: RunId, account: Account, call: ModelCall) -> None:
        if account.spending is not None and not call.is_refused:
            account.spending.release()
        one = ReportedCall(id=secrets.token_hex(16), run_id=run_id, call=call)
        self._unreported.append((one, account))
        del self._unreported[:-MAX_UNREPORTED]
        self._has_news.set()

    async def _tell_reports(self) -> None:
        """Waits for `_report_forever`: a report that was given up half-way, and repeated, could count twice."""
        waiting = {call.id for call, _ in self._unreported}

        def is_told() -> bool:
            return waiting.isdisjoint(call.id for call, _ in self._unreported)

        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._reported:
                await self._reported.wait_for(is_told)

    async def _note_effect(self, run_id: RunId) -> None:
        if not await self._store.note_effect(run_id):
            raise OSError(f"the run is over: {run_id}")

    async def _report_forever(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                await self.report()
            except OSError as exc:
                _log.warning("broker.report_failed", reason=str(exc), calls=len(self._unreported))
                await asyncio.sleep(RETRY_S)
                self._has_news.set()
            else:
                async with self._reported:
                    self._reported.notify_all()

    async def _take_forever(self) -> None:
        while True:
            await asyncio.sleep(TAKE_INTERVAL_S)
            if not self._offered:
                continue
            try:
                news = await self._store.take(self._process)
            except OSError as exc:
                _log.warning("broker.take_failed", reason=str(exc))
            else:
                await _tell(news, self._offered)

    async def _leave(self, live: LiveGrant) -> None:
        """Leaves the grant to the process that goes on with the run; what comes by this one is reported to that one, also what is in flight."""
        grant = live.grant
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                account = await self._read_account(grant, None)
        except OSError as exc:  # it is looked for when somebody asks with it
            _log.warning("broker.leave_failed", reason=str(exc), run_id=grant.run_id)
            return
        if account is not None:
            live.hooks = self._hooks(grant.run_id, account)
            self._found[grant.run_id] = _Found(live=live, account=account)

    async def _close(self, live: LiveGrant) -> None:
        run_id = live.grant.run_id
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                news = await self._store.close(run_id, process=self._process)
        except OSError as exc:  # it expires
            _log.warning("broker.close_failed", reason=str(exc), run_id=run_id)
        else:
            await _tell(news, {run_id: live})

    def _forget(self) -> None:
        now = time.monotonic()
        self._found = {
            run_id: found
            for run_id, found in self._found.items()
            if now - found.checked_s < FORGOTTEN_S or any(found.live.in_flight.values())
        }


@asynccontextmanager
async def open_sharing(
    registry: GrantRegistry, *, store: GrantStore, read_account: ReadAccount
) -> AsyncIterator[None]:
    """Shares the registry's grants with other processes, and theirs with it, while the block runs."""
    sharing = SharedGrants(registry=registry, store=store, read_account=read_account)
    async with open_task_group() as group:
        working = group.create_task(sharing.work_forever(), name="grant-sharing")
        registry.sharing = sharing
        try:
            yield
        finally:
            registry.sharing = None
            working.cancel()
    with suppress(OSError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await sharing.report()


async def _tell(news: GrantNews, offered: Mapping[RunId, LiveGrant]) -> None:
    for run_id in news.effects:
        if run_id in offered:
            await record_effect(offered[run_id])
    for one in news.calls:
        live = offered.get(one.run_id)
        if live is not None:
            live.calls += 1
            live.hooks.on_call(one.call)
