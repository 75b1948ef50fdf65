"""Makes, lists and removes the agents' environments; works beside a running service."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from agent_scripts.registry import agent_names, create_adapter
from app.cli.commands.terminal import Print, timed
from app.compose.factories import start_logging
from app.compose.providers import choose_provider, create_provider, with_namespace
from app.errors import FROM_SANDBOX
from app.runs.environment import Additions, AgentEnvironment
from app.settings.settings import Settings
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SnapshotRef

MIB = 1024 * 1024


class SnapshotCommandError(Exception):
    """Says why an `orion snapshots` command cannot do what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEnvironment:
    """One as its provider keeps it."""

    snapshot: SnapshotRef
    name: str
    agent: str
    in_use: bool
    """It is what the settings of today ask for, for its agent."""


class SnapshotRow(TypedDict):
    name: str
    id: str
    agent: str
    provider: str
    size_bytes: int | None
    created_at: str
    in_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _SnapshotAdmin:
    provider: SandboxProvider
    environments: Mapping[str, AgentEnvironment] = field(repr=False)
    """By agent."""

    async def list_saved(self) -> Sequence[SavedEnvironment]:
        """Returns the oldest first."""
        used = [await self.provider.find_snapshot(one.name) for one in self.environments.values()]
        used_ids = {snapshot.id for snapshot in used if snapshot is not None}
        named = [(ref, _agent_of(ref.name)) for ref in await self.provider.list_snapshots()]
        return tuple(
            SavedEnvironment(snapshot=ref, name=ref.name, agent=agent, in_use=ref.id in used_ids)
            for ref, agent in named
            if ref.name and agent
        )

    async def remove(self, saved: Sequence[SavedEnvironment]) -> Sequence[str]:
        for one in saved:
            await self.provider.delete_snapshot(one.snapshot.id)
        return [f"{one.name}: removed" for one in saved]


async def build_snapshot(settings: Settings, *, write: Print) -> bool:
    """Makes the environment of the settings' agent, unless it is there; False when it failed, which is written, too."""
    masker = start_logging(settings, level="ERROR")
    tell = timed(write, masker.mask)
    try:
        async with _open_admin(settings) as admin:
            environment = admin.environments[settings.agents.default]
            write(f"{environment.name}, on {admin.provider.name}")
            snapshot = await environment.prepare(tell)
            tell(f"ready: {snapshot.id}")
    except SandboxError as exc:
        tell(f"FAIL {FROM_SANDBOX[exc.code]}: {exc}")
        return False
    return True


async def list_snapshots(settings: Settings) -> Sequence[SavedEnvironment]:
    """Returns the oldest first."""
    async with _open_admin(settings) as admin:
        return await admin.list_saved()


async def remove_snapshots(
    settings: Settings, names: Sequence[str], *, force: bool
) -> Sequence[str]:
    """Removes those of these names or ids: all of them or none; a line for each.

    Raises:
        SnapshotCommandError: one is not there; or is in use, without `force`.
    """
    async with _open_admin(settings) as admin:
        saved = await admin.list_saved()
        chosen: list[SavedEnvironment] = []
        for text in names:
            found = [one for one in saved if text in (one.name, one.snapshot.id)]
            if not found:
                raise SnapshotCommandError(f"there is no environment {text!r}")
            chosen += [one for one in found if one not in chosen]
        for one in chosen:
            if one.in_use and not force:
                raise SnapshotCommandError(
                    f"{one.name} is in use: --force removes it, and the next run makes it again"
                )
        return await admin.remove(chosen)


async def remove_old_snapshots(settings: Settings) -> Sequence[str]:
    """Removes those that the settings of today do not ask for; a line for each."""
    async with _open_admin(settings) as admin:
        return await admin.remove([one for one in await admin.list_saved() if not one.in_use])


def as_row(saved: SavedEnvironment) -> SnapshotRow:
    """Returns what `--json` prints of one."""
    return SnapshotRow(
        name=saved.name,
        id=saved.snapshot.id,
        agent=saved.agent,
        provider=saved.snapshot.provider,
        size_bytes=saved.snapshot.size_bytes,
        created_at=saved.snapshot.created_at.isoformat(),
        in_use=saved.in_use,
    )


def line_of(row: SnapshotRow) -> str:
    """Returns the same for a person."""
    size = "" if row["size_bytes"] is None else f"{row['size_bytes'] / MIB:.0f} MiB"
    return (
        f"{row['name']:32} {row['id']}  {row['agent']:10} {size:>10}  {row['created_at']}"
        f"  {'in use' if row['in_use'] else 'old'}"
    )


def _agent_of(name: str | None) -> str | None:
    """Returns None for the name of anything else: a thread's files, a provider's base."""
    known = "|".join(map(re.escape, agent_names()))
    found = re.fullmatch(rf"({known})-[0-9a-f]{{12}}(-[0-9a-f]{{8}})?", name or "")
    return found[1] if found else None


@asynccontextmanager
async def _open_admin(settings: Settings) -> AsyncIterator[_SnapshotAdmin]:
    settings = await with_namespace(settings)
    choice = await choose_provider(settings)
    additions = settings.toml.additions
    async with create_provider(settings, choice) as provider:
        environments = {
            name: AgentEnvironment(provider, create_adapter(name), additions.get(name, Additions()))
            for name in agent_names()
        }
        yield _SnapshotAdmin(provider=provider, environments=environments)
