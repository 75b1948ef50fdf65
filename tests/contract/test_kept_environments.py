"""Which environments `orion snapshots` sees, calls in use, and removes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_scripts.registry import create_adapter
from app.cli.commands.snapshots import (
    SnapshotCommandError,
    list_snapshots,
    remove_old_snapshots,
    remove_snapshots,
)
from app.compose.providers import create_local
from app.runs.testing import Additions, AgentEnvironment
from app.settings.settings import Settings, load_settings
from sandbox_runtime import SandboxProvider, SandboxSpec, open_sandbox
from sandbox_runtime.types import SnapshotRef

_OLD = "anthropic-000000000000"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a directory without `orion.toml`."""
    monkeypatch.chdir(tmp_path)
    return _settings()


def _settings() -> Settings:
    """Of the directory that a command starts in."""
    return load_settings(
        env_file=None,
        given={
            "orion_state_dir": Path.cwd() / "state",
            "orion_sandbox": "local",
            "orion_local_isolation": "none",
        },
    )


@pytest.fixture
async def provider(settings: Settings) -> AsyncIterator[SandboxProvider]:
    async with create_local(settings) as provider:
        yield provider


async def _save(provider: SandboxProvider, name: str, *, is_session: bool = False) -> SnapshotRef:
    async with open_sandbox(provider, SandboxSpec(environment_writable=not is_session)) as sandbox:
        return await sandbox.snapshot(name=name)


def _name_of(provider: SandboxProvider, agent: str) -> str:
    return AgentEnvironment(provider, create_adapter(agent), Additions()).name


async def test_only_environments_of_agents_are_listed(
    settings: Settings, provider: SandboxProvider
) -> None:
    """Not the base, not a thread's files; those in use are what the settings ask for, whichever agent answers."""
    await provider.ensure_ready()
    await _save(provider, "session-claude", is_session=True)
    await _save(provider, f"{_OLD}-0123abcd")
    used = [_name_of(provider, agent) for agent in ("anthropic", "claude")]
    for name in used:
        await _save(provider, name)
    assert [(kept.name, kept.agent, kept.in_use) for kept in await list_snapshots(settings)] == [
        (f"{_OLD}-0123abcd", "anthropic", False),
        (used[0], "anthropic", True),
        (used[1], "claude", True),
    ]


async def test_a_changed_orion_toml_makes_another_one_old(
    settings: Settings, provider: SandboxProvider
) -> None:
    """What was in use is old from then on."""
    name = _name_of(provider, "claude")
    await _save(provider, name)
    assert [kept.in_use for kept in await list_snapshots(settings)] == [True]
    Path("orion.toml").write_text('[agents.claude]\ncommands = [["true"]]')  # noqa: ASYNC240 - a line
    settings = _settings()
    assert [kept.in_use for kept in await list_snapshots(settings)] == [False]
    assert await remove_old_snapshots(settings) == [f"{name}: removed"]
    assert await list_snapshots(settings) == ()


async def test_removal_is_all_or_nothing(settings: Settings, provider: SandboxProvider) -> None:
    """By name or id; an unknown one and one in use are refused before anything goes, the latter unless forced."""
    used = _name_of(provider, "anthropic")
    old = await _save(provider, _OLD)
    await _save(provider, used)
    with pytest.raises(SnapshotCommandError, match="there is no environment 'base'"):
        await remove_snapshots(settings, [_OLD, "base"], force=True)
    with pytest.raises(SnapshotCommandError, match=f"{used} is in use: --force removes it"):
        await remove_snapshots(settings, [_OLD, used], force=False)
    assert len(await list_snapshots(settings)) == 2
    assert await remove_snapshots(settings, [old.id, _OLD], force=False) == [f"{_OLD}: removed"]
    assert await remove_snapshots(settings, [used], force=True) == [f"{used}: removed"]
    assert await list_snapshots(settings) == ()
