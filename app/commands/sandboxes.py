"""Looks at the threads' sandboxes and workspaces, and ends or removes them; works beside a running service."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from app.commands.desk import Listed, SandboxCommandError, open_desk
from app.config import Settings
from app.runs.places import POOL_LABEL
from app.runs.session import Session
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.types import SandboxInfo


async def list_sandboxes(settings: Settings) -> Sequence[Listed]:
    """Of all providers that can be asked; sessions first, latest used first."""
    async with open_desk(settings) as desk:
        return await desk.list()


async def stop_sandbox(settings: Settings, text: str) -> str:
    """End the kept sandbox of the session of that name or id prefix; says which.

    Raises:
        SandboxCommandError
        SandboxError: its provider cannot be used.
    """
    async with open_desk(settings) as desk:
        session = await desk.find(text)
        await desk.stop(session)
        return f"{session.name}: stopped"


async def remove_sandbox(settings: Settings, text: str) -> str:
    """Remove the session of that name or id prefix with its files; says which.

    Raises:
        SandboxCommandError
        SandboxError: a provider where it has something cannot be used.
    """
    async with open_desk(settings) as desk:
        session = await desk.find(text)
        await desk.remove(session)
        return f"{session.name}: removed, with its files"


async def clean_sandboxes(settings: Settings, *, days: float) -> Sequence[str]:
    """Remove sessions that no run has used for so long, with their files, and sandboxes that are nobody's; lines of it."""
    before = datetime.now(UTC) - timedelta(days=days)
    lines = []
    async with open_desk(settings) as desk:
        for session in await desk.store.sessions.all():
            if session.used_at < before:
                try:
                    await desk.remove(session)
                    lines.append(f"{session.name}: removed, with its files")
                except SandboxCommandError as exc:
                    lines.append(str(exc))
                except SandboxError as exc:
                    lines.append(f"{session.name}: not removed: {exc}")
        swept = await desk.sweep()
        if swept:
            lines.append(f"{swept} left by processes that live no more: removed")
    return lines


def as_row(listed: Listed) -> Mapping[str, object]:
    """What `--json` prints of it; no content."""
    if listed.session is not None:
        return _session_row(listed.session)
    if listed.sandbox is not None:
        return _sandbox_row(listed.sandbox)
    raise AssertionError("a row is of a session or of a sandbox")


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
        "volume": session.volume_slug,
        "snapshot": session.snapshot_slug,
        "agent_session_id": session.agent_session_id,
    }


def _status(sandbox: SandboxInfo) -> str:
    if not sandbox.running:
        return "exited"
    return "waiting" if POOL_LABEL in sandbox.labels else "running"


def _sandbox_row(sandbox: SandboxInfo) -> Mapping[str, object]:
    """The same columns; a name and a thread it has none."""
    columns = dict.fromkeys(
        ("name", "model", "thread", "repo", "branch", "region", "mount_dir", "container_name"), ""
    )
    return {
        **columns,
        "id": sandbox.id,
        "status": _status(sandbox),
        "exit_code": sandbox.exit_code,
        "provider": sandbox.provider,
        "agent": sandbox.labels.get("orion.agent", ""),
        "created_at": sandbox.created_at.isoformat(),
        "used_at": None,
        "sandbox_id": sandbox.id,
        "volume": "",
        "snapshot": "",
        "agent_session_id": "",
    }
