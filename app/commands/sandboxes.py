"""Looks at the threads' sandboxes and workspaces, and ends or removes them; works beside a running service."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.config import Settings
from app.providers import choose_provider, create_provider
from app.runs.model import UNFINISHED_STATES
from app.runs.session import Session, SessionStatus
from app.store.sql import SqlRunStore, open_sqlite_store
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SandboxId, SnapshotId


class SandboxCommandError(Exception):
    """It cannot be done; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    store: SqlRunStore
    provider: SandboxProvider

    async def sessions(self) -> Sequence[Session]:
        """Latest used first, their status as the provider sees it; the records are put right."""
        living = {info.id for info in await self.provider.list() if info.running}
        sessions = []
        for session in await self.store.sessions.all():
            is_gone = session.sandbox_id and session.sandbox_id not in living
            if is_gone and session.provider == self.provider.name:
                stopped = await self.store.sessions.update(
                    session.id, status=SessionStatus.STOPPED, sandbox_id=""
                )
                sessions.append(stopped or session)
            else:
                sessions.append(session)
        return sessions

    async def find(self, text: str) -> Session:
        matches = await self.store.sessions.find(text)
        if len(matches) != 1:
            raise SandboxCommandError(
                f"{len(matches) or 'no'} sandboxes have the name {text!r} or an id beginning so"
            )
        return matches[0]

    async def stop(self, session: Session) -> None:
        """End its sandbox; what the last run saved stays."""
        for run in await self.store.of_thread(session.thread):
            if run.state in UNFINISHED_STATES:
                raise SandboxCommandError(
                    f"{session.name}: a run is waiting or going in its thread; "
                    f"end it with `orion runs stop {run.id}` first"
                )
        if session.provider != self.provider.name:
            raise SandboxCommandError(
                f"{session.name} is on the provider {session.provider!r}, not on {self.provider.name!r}"
            )
        if session.sandbox_id:
            await self.provider.remove(SandboxId(session.sandbox_id))
            await self.store.sessions.update(
                session.id, status=SessionStatus.STOPPED, sandbox_id=""
            )

    async def remove(self, session: Session) -> None:
        """The same, and what was saved goes too: the thread's next run begins with nothing."""
        await self.stop(session)
        if session.snapshot_slug:
            await self.provider.delete_snapshot(SnapshotId(session.snapshot_slug))
        await self.store.sessions.remove(session.id)


async def list_sandboxes(settings: Settings) -> Sequence[Session]:
    """Latest used first."""
    async with _open_desk(settings) as desk:
        return await desk.sessions()


async def stop_sandbox(settings: Settings, text: str) -> str:
    """End the kept sandbox of the session of that name or id prefix; says which.

    Raises:
        SandboxCommandError
    """
    async with _open_desk(settings) as desk:
        session = await desk.find(text)
        await desk.stop(session)
        return f"{session.name}: stopped"


async def remove_sandbox(settings: Settings, text: str) -> str:
    """Remove the session of that name or id prefix with its files; says which.

    Raises:
        SandboxCommandError
    """
    async with _open_desk(settings) as desk:
        session = await desk.find(text)
        await desk.remove(session)
        return f"{session.name}: removed, with its files"


async def clean_sandboxes(settings: Settings, *, days: float) -> Sequence[str]:
    """Remove sessions that no run has used for so long, with their files; a line for each."""
    before = datetime.now(UTC) - timedelta(days=days)
    lines = []
    async with _open_desk(settings) as desk:
        for session in await desk.sessions():
            if session.used_at < before:
                try:
                    await desk.remove(session)
                    lines.append(f"{session.name}: removed, with its files")
                except SandboxCommandError as exc:
                    lines.append(str(exc))
    return lines


def as_row(session: Session) -> Mapping[str, object]:
    """What `--json` prints of a session; no content."""
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
        "volume": session.volume_slug,
        "snapshot": session.snapshot_slug,
        "agent_session_id": session.agent_session_id,
    }


@asynccontextmanager
async def _open_desk(settings: Settings) -> AsyncIterator[_Desk]:
    choice = await choose_provider(settings)
    async with (
        open_sqlite_store(settings.database_path) as store,
        create_provider(settings, choice) as provider,
    ):
        yield _Desk(store=store, provider=provider)
