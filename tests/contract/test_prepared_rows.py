"""What `orion repositories` sees of prepared workspaces, and removes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.cli.commands.repositories import line_of, list_prepared, remove_prepared
from app.compose.factories import create_environment, create_preparations
from app.compose.providers import create_local
from app.settings.settings import Settings, load_settings
from sandbox_runtime import SandboxProvider, SandboxSpec, open_sandbox

_OLD = "prepared-acme-npm-000000000000"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Two repositories are prepared; anthropic is the default, and claude may be used."""
    toml = tmp_path / "orion.toml"
    toml.write_text(
        '[repositories."acme/npm"]\nsetup = ["a"]\n[repositories."acme/py"]\nsetup = ["b"]\n'
    )
    given = {
        "orion_state_dir": tmp_path / "state",
        "orion_sandbox": "local",
        "orion_local_isolation": "none",
        "anthropic_api_key": "sk-ant-1",
    }
    return load_settings(env_file=None, given=given, toml=toml)


@pytest.fixture
async def provider(settings: Settings) -> AsyncIterator[SandboxProvider]:
    async with create_local(settings) as provider:
        await provider.ensure_ready()
        yield provider


async def _save(provider: SandboxProvider, name: str, *, is_environment: bool = False) -> str:
    spec = SandboxSpec(environment_writable=is_environment)
    async with open_sandbox(provider, spec) as sandbox:
        return (await sandbox.snapshot(name=name)).id


async def _prepare(settings: Settings, provider: SandboxProvider, agent: str, repo: str) -> str:
    """Its environment, where there is none, and the workspace of that repository on it; returns the name."""
    environment = create_environment(settings, provider, agent=agent)
    if await environment.find() is None:
        await _save(provider, environment.name, is_environment=True)
    found = await environment.find()
    assert found is not None
    name = create_preparations(settings, provider, mask=str).name_of(repo, found.id)
    await _save(provider, name)
    return name


async def test_those_of_each_agent(settings: Settings, provider: SandboxProvider) -> None:
    """Are listed with it, and are old for none; what no agent uses is nobody's, and alone is removed as old."""
    own = await _prepare(settings, provider, "anthropic", "acme/npm")
    others = await _prepare(settings, provider, "claude", "acme/npm")
    await _save(provider, _OLD)
    rows = await list_prepared(settings)
    assert [(row["repository"], row["agent"], row["state"], row["name"]) for row in rows][:2] == [
        ("acme/npm", "anthropic", "prepared", own),
        ("acme/npm", "claude", "prepared", others),
    ]
    assert [(row["repository"], row["agent"], row["state"]) for row in rows[2:]] == [
        ("acme/py", "anthropic", "missing"),
        ("", "", "old"),
    ]
    assert line_of(rows[-1]).split()[:4] == [_OLD, "old", "local", "-"]
    assert await remove_prepared(settings, (), old=True) == [f"{_OLD}: removed"]
    assert await remove_prepared(settings, ["Acme/npm"], old=False) == [
        f"{own}: removed",
        f"{others}: removed",
    ]
    assert {row["state"] for row in await list_prepared(settings)} == {"missing"}
