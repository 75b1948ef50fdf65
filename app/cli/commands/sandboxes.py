"""The sandboxes and saved files of threads, for a person: listed, ended, removed; works beside a running service."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from app.cli.commands.runs import open_records
from app.compose.providers import create_named, join_installation
from app.runs.model import STARTED_STATES, UNFINISHED_STATES, Run
from app.runs.sandboxes import POOL_LABEL, SessionLocks, remove_held
from app.runs.session import GONE, Session, SessionChanges, SessionStatus
from app.settings.settings import Settings
from app.store.engine import StateDirectoryBusyError, own_state_directory
from app.store.runs import SqlRunStore
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.registry import provider_names, provider_spec
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import SandboxId, SandboxInfo, SandboxStats

LOOK_TIMEOUT_S = 12.0

View = Mapping[SandboxId, SandboxInfo]
"""The sandboxes that a provider has, by their ids."""


class SandboxCommandError(Exception):
    """Says why an `orion sandboxes` command cannot do what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A thread's session with its sandbox, where one runs, or a sandbox that is no thread's (any more)."""

    session: Session | None = None
    sandbox: SandboxInfo | None = None
    stats: SandboxStats = field(default_factory=SandboxStats)


class SandboxAdmin:
    """Made by `open_admin`. Providers are opened when they are needed."""

    def __init__(self, settings: Settings, store: SqlRunStore, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.store = store
        self.locks = SessionLocks(settings.session_locks_dir)
        self._stack = stack
        self._opened: dict[str, SandboxProvider] = {}

    async def provider(self, name: str) -> SandboxProvider:
        """Returns the provider of that name, which stays open as long as this admin.

        Raises:
            SandboxError: UNSUPPORTED, UNAVAILABLE.
        """
        if name not in self._opened:
            made = create_named(self.settings, name)
            self._opened[name] = await self._stack.enter_async_context(made)
        return self._opened[name]

    async def find(self, text: str) -> Session:
        """Returns the session of that name, or whose id begins so.

        Raises:
            SandboxCommandError
        """
        matches = await self.store.sessions.find(text)
        if len(matches) != 1:
            raise SandboxCommandError(
                f"{len(matches) or 'no'} sandboxes have the name {text!r} or an id beginning so"
            )
        return matches[0]

    async def list(self, *, limit: int | None = None) -> Sequence[Listed]:
        """Returns all sessions, latest used first, their status as their provider sees it, and the other sandboxes of providers.

        The records are put right; where a provider cannot be asked they stay, and the status shown is `unknown`. `limit`: of
        sessions that have no sandbox no more than the so many latest used.
        """
        of_all = self.store.sessions
        sessions = await (of_all.all() if limit is None else of_all.latest(limit=limit))
        views = {name: await self._look(name) for name in provider_names()}
        shown = [
            await self._put_right(session, views.get(session.provider)) for session in sessions
        ]
        claimed = {session.sandbox_id for session in shown}
        infos = {info.id: info for view in views.values() for info in (view or {}).values()}
        return [
            *(
                Listed(session=session, sandbox=infos.get(SandboxId(session.sandbox_id or "")))
                for session in shown
            ),
            *(Listed(sandbox=info) for info in infos.values() if info.id not in claimed),
        ]

    async def measure(self, found: Sequence[Listed]) -> Sequence[Listed]:
        """Adds what the providers tell of those that run; nothing where one does not answer in time."""
        async with open_task_group() as group:
            asked = {
                number: group.create_task(self._measure(listed.sandbox))
                for number, listed in enumerate(found)
                if listed.sandbox is not None and listed.sandbox.running
            }
        return [
            replace(listed, stats=asked[number].result()) if number in asked else listed
            for number, listed in enumerate(found)
        ]

    async def _measure(self, sandbox: SandboxInfo) -> SandboxStats:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                return await (await self.provider(sandbox.provider)).stats(sandbox.id)
        except (SandboxError, TimeoutError):
            return SandboxStats()

    async def find_going(self, session: Session) -> Run | None:
        """Returns the run of its thread whose agent may be at work."""
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
        """Ends its sandbox; what was saved of it stays.

        Raises:
            SandboxCommandError: a run is waiting or going.
            SandboxError: its provider cannot be used.
        """
        await self.require_idle(session)
        if session.sandbox_id:
            provider = await self.provider(session.provider)
            await provider.remove(SandboxId(session.sandbox_id))
            await self.store.sessions.update(session.id, **GONE)
            self.locks.clear_detached(session.id)

    async def remove(self, session: Session) -> None:
        """Removes its sandbox and all that was saved, wherever it is: the thread's next run begins with nothing."""
        await self.require_idle(session)
        await remove_held(session, self._lend)
        await self.store.sessions.remove(session.id)
        self.locks.forget(session.id)

    async def sweep(self) -> int:
        """Removes what processes that live no more have left at providers, but nothing of a session; how many sandboxes."""
        keep = [SandboxId(session.sandbox_id) for session in await self.store.sessions.all()]
        swept = 0
        with ExitStack() as stack:
            leases = self.store.leases
            living: Collection[str] | None = ()
            if leases.is_shared:  # whoever is late may live
                found = await leases.living()
                living = None if await leases.late() else [process.owner for process in found]
            else:
                try:
                    stack.enter_context(own_state_directory(self.settings.service.state_dir))
                except StateDirectoryBusyError:
                    living = (
                        None  # a service works, and has removed what others left when it started
                    )
            for name in provider_names():
                if await self._look(name) is not None:
                    swept += await (await self.provider(name)).sweep(keep, living=living)
        return swept

    @asynccontextmanager
    async def _lend(self, name: str) -> AsyncIterator[SandboxProvider]:
        yield await self.provider(name)

    async def _look(self, name: str) -> View | None:
        """Asks a provider for a session's sandbox. None: the provider cannot be asked."""
        if not self.settings.sandbox.is_set_up(provider_spec(name)):
            return None  # before a cloud's SDK is imported, which takes as long as all else
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
async def open_admin(settings: Settings) -> AsyncIterator[SandboxAdmin]:
    """Opens the records of the state directory, for the length of the block.

    Raises:
        OSError: no Orion has run with it.
    """
    async with (
        open_records(settings) as store,
        AsyncExitStack() as stack,
    ):
        yield SandboxAdmin(await join_installation(settings, store), store, stack)


async def list_sandboxes(settings: Settings, *, limit: int | None = None) -> Sequence[Listed]:
    """Lists those of all providers that can be asked, with what they use, and the sessions of `SandboxAdmin.list`; sessions first, latest used first."""
    async with open_admin(settings) as admin:
        return await admin.measure(await admin.list(limit=limit))


async def stop_sandbox(settings: Settings, text: str) -> str:
    """Ends the idle sandbox of the session of that name or id prefix; says which.

    Raises:
        SandboxCommandError
        SandboxError: its provider cannot be used.
    """
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        await admin.stop(session)
        return f"{session.name}: stopped"


async def remove_sandbox(settings: Settings, text: str) -> str:
    """Removes the session of that name or id prefix with its files; says which.

    Raises:
        SandboxCommandError
        SandboxError: a provider where it has something cannot be used.
    """
    async with open_admin(settings) as admin:
        session = await admin.find(text)
        await admin.remove(session)
        return f"{session.name}: removed, with its files"


async def clean_sandboxes(settings: Settings, *, days: float) -> Sequence[str]:
    """Removes sessions that no run has used for so long, with their files, and sandboxes that are nobody's; lines of it."""
    before = datetime.now(UTC) - timedelta(days=days)
    lines = []
    async with open_admin(settings) as admin:
        for session in await admin.store.sessions.all():
            if session.used_at < before:
                try:
                    await admin.remove(session)
                    lines.append(f"{session.name}: removed, with its files")
                except SandboxCommandError as exc:
                    lines.append(str(exc))
                except SandboxError as exc:
                    lines.append(f"{session.name}: not removed: {exc}")
        swept = await admin.sweep()
        if swept:
            lines.append(f"{swept} left by processes that live no more: removed")
    return lines


def as_row(listed: Listed) -> Mapping[str, object]:
    """Returns what `--json` prints of it; no content."""
    stats = listed.stats
    return {
        **_columns(listed),
        "ends_at": stats.ends_at.isoformat() if stats.ends_at else None,
        "cpu_s": stats.cpu_s,
        "cpus": stats.cpus,
        "memory_bytes": stats.memory_bytes,
        "memory_limit_bytes": stats.memory_limit_bytes,
    }


def _columns(listed: Listed) -> Mapping[str, object]:
    if listed.session is not None:
        return _session_row(listed.session)
    if listed.sandbox is not None:
        return _sandbox_row(listed.sandbox)
    raise AssertionError("a row is of a session or of a sandbox")


def line_of(row: Mapping[str, object]) -> str:
    """Returns the same for a person."""
    name = row["name"] or f"({row['id']})"
    code = "" if row["exit_code"] is None else f"({row['exit_code']})"
    return (
        f"{name:28} {row['status']}{code:{12 - len(str(row['status']))}} {row['provider']:8} {row['agent']:10} "
        f"{row['used_at'] or row['created_at']}  {row['thread'] or 'no thread'}"
    )


def _session_row(session: Session) -> Mapping[str, object]:
    return {
        "name": session.name,
        "id": session.id,
        "status": session.status,
        "exit_code": session.exit_code,
        "provider": session.provider,
        "agent": session.agent,
        "model": session.model,
        "thread": session.thread.key,
        "repo": session.repo,
        "branch": session.branch,
        "created_at": session.created_at.isoformat(),
        "used_at": session.used_at.isoformat(),
        "region": session.region,
        "mount_dir": session.mount_dir,
        "sandbox_id": session.sandbox_id,
        "container_name": session.container_name,
        "snapshot": session.snapshot_slug,
        "agent_session_id": session.agent_session_id,
    }


def _status(sandbox: SandboxInfo) -> str:
    if not sandbox.running:
        return "exited"
    return "waiting" if POOL_LABEL in sandbox.labels else "running"


def _sandbox_row(sandbox: SandboxInfo) -> Mapping[str, object]:
    """Returns the columns of a sandbox that no thread has; its name and thread are empty."""
    columns = dict.fromkeys(
        ("name", "model", "thread", "repo", "branch", "mount_dir", "container_name"), ""
    )
    return {
        **columns,
        "id": sandbox.id,
        "status": _status(sandbox),
        "exit_code": sandbox.exit_code,
        "provider": sandbox.provider,
        "region": sandbox.region,
        "agent": sandbox.labels.get("orion.agent", ""),
        "created_at": sandbox.created_at.isoformat(),
        "used_at": None,
        "sandbox_id": sandbox.id,
        "snapshot": "",
        "agent_session_id": "",
    }
