"""What the commands of `orion sandboxes …` work with: the records, and whatever providers those name."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from app.commands.runs import open_records
from app.config import Settings
from app.providers import PROVIDER_NAMES, create_named
from app.runs.leftovers import remove_held
from app.runs.model import STARTED_STATES, UNFINISHED_STATES, Run
from app.runs.session import GONE, Session, SessionChanges, SessionStatus
from app.runs.visits import Visits
from app.store.sql import SqlRunStore
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SandboxId, SandboxInfo

LOOK_TIMEOUT_S = 12.0

View = Mapping[SandboxId, SandboxInfo]
"""The sandboxes that a provider has, by their ids."""


class SandboxCommandError(Exception):
    """It cannot be done; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A thread's session, or a sandbox that is none's (any more); never neither."""

    session: Session | None = None
    sandbox: SandboxInfo | None = None


class Desk:
    """Made by `open_desk`. Providers are opened when they are needed."""

    def __init__(self, settings: Settings, store: SqlRunStore, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.store = store
        self.visits = Visits(settings.visits_dir)
        self._stack = stack
        self._opened: dict[str, SandboxProvider] = {}

    async def provider(self, name: str) -> SandboxProvider:
        """The one of that name, open as long as the desk is.

        Raises:
            SandboxError: UNSUPPORTED, UNAVAILABLE.
        """
        if name not in self._opened:
            made = create_named(self.settings, name)
            self._opened[name] = await self._stack.enter_async_context(made)
        return self._opened[name]

    async def find(self, text: str) -> Session:
        """The session of that name, or whose id begins so.

        Raises:
            SandboxCommandError
        """
        matches = await self.store.sessions.find(text)
        if len(matches) != 1:
            raise SandboxCommandError(
                f"{len(matches) or 'no'} sandboxes have the name {text!r} or an id beginning so"
            )
        return matches[0]

    async def list(self) -> Sequence[Listed]:
        """All sessions, latest used first, their status as their provider sees it, and the other sandboxes of providers.

        The records are put right; where a provider cannot be asked they stay, and the status shown is `unknown`.
        """
        sessions = await self.store.sessions.all()
        views = {name: await self._look(name) for name in PROVIDER_NAMES}
        shown = [
            await self._put_right(session, views.get(session.provider)) for session in sessions
        ]
        claimed = {session.sandbox_id for session in shown}
        return [
            *(Listed(session=session) for session in shown),
            *(
                Listed(sandbox=info)
                for view in views.values()
                for info in (view or {}).values()
                if info.id not in claimed
            ),
        ]

    async def going(self, session: Session) -> Run | None:
        """The run of its thread whose agent may be at work."""
        runs = await self.store.of_thread(session.thread)
        return next((run for run in runs if run.state in STARTED_STATES), None)

    async def require_idle(self, session: Session) -> None:
        """Raises: SandboxCommandError: a run is going in its thread, or waits to."""
        for run in await self.store.of_thread(session.thread):
            if run.state in UNFINISHED_STATES:
                raise SandboxCommandError(
                    f"{session.name}: a run is {'waiting' if run.state in _WAITING else 'going'} in its thread; "
                    f"end it with `orion runs stop {run.id}` first"
                )

    async def stop(self, session: Session) -> None:
        """End its sandbox; what was saved of it stays.

        Raises:
            SandboxCommandError: a run is waiting or going.
            SandboxError: its provider cannot be used.
        """
        await self.require_idle(session)
        if session.sandbox_id:
            provider = await self.provider(session.provider)
            await provider.remove(SandboxId(session.sandbox_id))
            await self.store.sessions.update(session.id, **GONE)
            self.visits.take_left(session.id)

    async def remove(self, session: Session) -> None:
        """The same, and all that was saved goes too, wherever it is: the thread's next run begins with nothing."""
        await self.require_idle(session)
        await remove_held(session, self._lend)
        await self.store.sessions.remove(session.id)
        self.visits.forget(session.id)

    async def sweep(self) -> int:
        """Remove what processes that live no more have left at providers, but nothing of a session; how many sandboxes."""
        keep = [SandboxId(session.sandbox_id) for session in await self.store.sessions.all()]
        swept = 0
        for name in PROVIDER_NAMES:
            if await self._look(name) is not None:
                swept += await (await self.provider(name)).sweep(keep)
        return swept

    @asynccontextmanager
    async def _lend(self, name: str) -> AsyncIterator[SandboxProvider]:
        yield await self.provider(name)

    async def _look(self, name: str) -> View | None:
        """None: it cannot be asked."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                return {info.id: info for info in await (await self.provider(name)).list()}
        except (SandboxError, TimeoutError):
            return None

    async def _put_right(self, session: Session, view: View | None) -> Session:
        if not session.sandbox_id:
            return session
        if view is None:
            return replace(session, status=SessionStatus.UNKNOWN)
        sandbox_id = SandboxId(session.sandbox_id)
        info = view.get(sandbox_id)
        if info is None or not info.running:
            with suppress(SandboxError):  # then how it ended is not known
                info = await (await self.provider(session.provider)).find(sandbox_id)
        if info is not None and info.running:
            return session
        changes = GONE
        if info is not None:
            changes = GONE | SessionChanges(status=SessionStatus.EXITED, exit_code=info.exit_code)
        now = await self.store.sessions.get(session.id)
        if now is None or now.sandbox_id != session.sandbox_id:
            return now or session  # a run has gone on meanwhile
        return await self.store.sessions.update(session.id, **changes) or session


_WAITING = UNFINISHED_STATES - STARTED_STATES


@asynccontextmanager
async def open_desk(settings: Settings) -> AsyncIterator[Desk]:
    """A desk on the records of the state directory, for the length of the block.

    Raises:
        OSError: no Orion has run with it.
    """
    async with (
        open_records(settings) as store,
        AsyncExitStack() as stack,
    ):
        yield Desk(settings, store, stack)
