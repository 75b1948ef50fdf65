"""Makes, lists and removes the agents' environments; works beside a running service."""

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from agent_scripts.registry import agent_names, create_adapter
from app.additions import load_additions
from app.commands.report import Print
from app.config import Settings
from app.errors import FROM_SANDBOX
from app.log import configure_logging
from app.providers import choose_provider, create_provider
from app.redaction import Masker
from app.runs.environment import Additions, AgentEnvironment
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.types import SnapshotRef


class SnapshotCommandError(Exception):
    """It cannot be done; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEnvironment:
    """One as its provider keeps it."""

    snapshot: SnapshotRef
    name: str
    agent: str
    in_use: bool
    """It is what the settings of today ask for, for its agent."""


class SnapshotRow(TypedDict):
    """What `--json` prints."""

    name: str
    id: str
    agent: str
    provider: str
    size_bytes: int | None
    created_at: str
    in_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    provider: SandboxProvider
    environments: Mapping[str, AgentEnvironment] = field(repr=False)
    """By agent."""

    async def kept(self) -> Sequence[KeptEnvironment]:
        """Oldest first."""
        used = [await self.provider.find_snapshot(one.name) for one in self.environments.values()]
        used_ids = {snapshot.id for snapshot in used if snapshot is not None}
        named = [(ref, _agent_of(ref.name)) for ref in await self.provider.list_snapshots()]
        return tuple(
            KeptEnvironment(snapshot=ref, name=ref.name, agent=agent, in_use=ref.id in used_ids)
            for ref, agent in named
            if ref.name and agent
        )

    async def remove(self, kept: Sequence[KeptEnvironment]) -> Sequence[str]:
        for one in kept:
            await self.provider.delete_snapshot(one.snapshot.id)
        return [f"{one.name}: removed" for one in kept]


async def build_snapshot(settings: Settings, *, write: Print) -> bool:
    """Make the environment of the settings' agent, unless it is there; False when it failed, which is written, too."""
    masker = Masker(settings.secrets)
    configure_logging(fmt=settings.orion_log_format, level="ERROR", masker=masker)
    started_s = time.monotonic()

    def tell(text: str) -> None:
        write(f"{time.monotonic() - started_s:8.2f} s  {masker.mask(text)}")

    try:
        async with _open_desk(settings) as desk:
            environment = desk.environments[settings.orion_agent]
            write(f"{environment.name}, on {desk.provider.name}")
            snapshot = await environment.prepare(tell)
            tell(f"ready: {snapshot.id}")
    except SandboxError as exc:
        tell(f"FAIL {FROM_SANDBOX[exc.code]}: {exc}")
        return False
    return True


async def list_snapshots(settings: Settings) -> Sequence[KeptEnvironment]:
    """Oldest first."""
    async with _open_desk(settings) as desk:
        return await desk.kept()


async def remove_snapshots(
    settings: Settings, names: Sequence[str], *, force: bool
) -> Sequence[str]:
    """Remove those of these names or ids: all of them or none; a line for each.

    Raises:
        SnapshotCommandError: one is not there; or is in use, without `force`.
    """
    async with _open_desk(settings) as desk:
        kept = await desk.kept()
        chosen: list[KeptEnvironment] = []
        for text in names:
            found = [one for one in kept if text in (one.name, one.snapshot.id)]
            if not found:
                raise SnapshotCommandError(f"there is no environment {text!r}")
            chosen += [one for one in found if one not in chosen]
        for one in chosen:
            if one.in_use and not force:
                raise SnapshotCommandError(
                    f"{one.name} is in use: --force removes it, and the next run makes it again"
                )
        return await desk.remove(chosen)


async def remove_old_snapshots(settings: Settings) -> Sequence[str]:
    """Remove those that the settings of today do not ask for; a line for each."""
    async with _open_desk(settings) as desk:
        return await desk.remove([one for one in await desk.kept() if not one.in_use])


def as_row(kept: KeptEnvironment) -> SnapshotRow:
    """What `--json` prints of one."""
    return SnapshotRow(
        name=kept.name,
        id=kept.snapshot.id,
        agent=kept.agent,
        provider=kept.snapshot.provider,
        size_bytes=kept.snapshot.size_bytes,
        created_at=kept.snapshot.created_at.isoformat(),
        in_use=kept.in_use,
    )


def _agent_of(name: str | None) -> str | None:
    """None for the name of anything else: a thread's files, a provider's base."""
    known = "|".join(map(re.escape, agent_names()))
    found = re.fullmatch(rf"({known})-[0-9a-f]{{12}}(-[0-9a-f]{{8}})?", name or "")
    return found[1] if found else None


@asynccontextmanager
async def _open_desk(settings: Settings) -> AsyncIterator[_Desk]:
    choice = await choose_provider(settings)
    additions = load_additions()
    async with create_provider(settings, choice) as provider:
        environments = {
            name: AgentEnvironment(provider, create_adapter(name), additions.get(name, Additions()))
            for name in agent_names()
        }
        yield _Desk(provider=provider, environments=environments)
