"""Every fact of the sandbox contract over every provider."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.providers.docker import DockerSettings
from sandbox_runtime.providers.docker.provider import DockerProvider
from sandbox_runtime.providers.local.provider import LocalProvider
from sandbox_runtime.testing.conformance import (
    ATTACH_CHECKS,
    FACTS,
    ISOLATION_FACTS,
    Fact,
    attach_facts,
    check_fact,
)
from sandbox_runtime.testing.fake import FakeProvider
from tests.contract.sandbox_runtime.representatives import REPRESENTATIVES, representative

_NEEDS = {"local": (pytest.mark.bubblewrap,), "docker": (pytest.mark.docker,)}


def _over(kinds: Sequence[str], facts: Sequence[Fact]) -> Sequence[ParameterSet]:
    """Each fact over each kind; those that are no representatives are long but for the local one: in Docker each takes a container."""
    made = []
    for fact in facts:
        for kind in kinds:
            is_long = kind != "local" and fact.name not in REPRESENTATIVES
            marks = (*_NEEDS.get(kind, ()), *((pytest.mark.long,) if is_long else ()))
            made.append(pytest.param(kind, fact, id=f"{fact.name}-{kind}", marks=marks))
    return made


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


@pytest.mark.parametrize(("kind", "fact"), _over(("fake", "local", "docker"), FACTS))
async def test_fact(provider: SandboxProvider, fact: Fact) -> None:
    """The provider keeps the contract's promise, or says that it lacks the capability."""
    await check_fact(fact, provider)


def _docker_again(settings: DockerSettings, owner: str) -> SandboxProvider:
    return DockerProvider(replace(settings, owner=owner))


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.parametrize("kind", ["docker"])
@pytest.mark.parametrize("number", range(len(ATTACH_CHECKS)))
async def test_attach_fact(
    provider: SandboxProvider, docker_settings: DockerSettings, number: int
) -> None:
    """Its sandboxes are shared by processes."""
    facts = attach_facts(partial(_docker_again, docker_settings))
    await check_fact(facts[number], provider)


@pytest.mark.bubblewrap
@pytest.mark.parametrize("kind", ["local"])
@pytest.mark.parametrize("number", range(len(ATTACH_CHECKS)))
async def test_no_attach_fact(provider: SandboxProvider, tmp_path: Path, number: int) -> None:
    """Sandboxes that end with their process say so."""

    def reopen(_owner: str) -> SandboxProvider:
        return _make("local", tmp_path / "state")

    await check_fact(attach_facts(reopen)[number], provider)


@pytest.mark.parametrize("kind", ["local-none"])
@pytest.mark.parametrize("fact", representative(FACTS), ids=lambda fact: fact.name)
async def test_fact_without_isolation(provider: SandboxProvider, fact: Fact) -> None:
    """The same, but for what isolation is for."""
    await check_fact(fact, provider)


@pytest.mark.parametrize(("kind", "fact"), _over(("local", "docker"), ISOLATION_FACTS))
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
    assert set(names) >= REPRESENTATIVES
