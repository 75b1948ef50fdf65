"""Every fact of the sandbox contract over every provider."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker import DockerProvider
from sandbox_runtime.providers.local import LocalProvider
from sandbox_runtime.testing.conformance import FACTS, ISOLATION_FACTS, Fact, check_fact
from sandbox_runtime.testing.fake import FakeProvider

_LOCAL = pytest.param("local", marks=pytest.mark.bubblewrap)
_DOCKER = pytest.param("docker", marks=pytest.mark.docker)


def _make(kind: str, state_dir: Path) -> SandboxProvider:
    match kind:
        case "fake":
            return FakeProvider()
        case "fake-without-capabilities":
            return FakeProvider(capabilities=frozenset())
        case "local":
            return LocalProvider(state_dir, isolation="bubblewrap")
        case _:
            return LocalProvider(state_dir, isolation="none")


@pytest.fixture
async def provider(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SandboxProvider]:
    if kind == "docker":
        made: SandboxProvider = DockerProvider(request.getfixturevalue("docker_settings"))
    else:
        made = _make(kind, tmp_path / "state")
    async with made as provider:
        yield provider


@pytest.mark.parametrize("kind", ["fake", _LOCAL, "local-none", _DOCKER])
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
async def test_fact(provider: SandboxProvider, fact: Fact) -> None:
    """The provider keeps the contract's promise, or says that it lacks the capability."""
    await check_fact(fact, provider)


@pytest.mark.parametrize("kind", [_LOCAL, _DOCKER])
@pytest.mark.parametrize("fact", ISOLATION_FACTS, ids=lambda fact: fact.name)
async def test_isolation_fact(provider: SandboxProvider, fact: Fact) -> None:
    """What runs inside cannot reach the host, its network or its neighbours."""
    await check_fact(fact, provider)


@pytest.mark.parametrize("kind", ["fake-without-capabilities"])
@pytest.mark.parametrize("fact", [f for f in FACTS if f.needs], ids=lambda fact: fact.name)
async def test_missing_capability(provider: SandboxProvider, fact: Fact) -> None:
    """A capability that a provider does not declare raises UNSUPPORTED when it is used."""
    await check_fact(fact, provider)


def test_fact_names_are_unique() -> None:
    """Every fact is in the lists once."""
    names = [fact.name for fact in (*FACTS, *ISOLATION_FACTS)]
    assert len(names) == len(set(names)) >= 60
