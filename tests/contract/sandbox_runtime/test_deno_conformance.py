"""Every fact of the sandbox contract over the Deno provider and an emulated organisation."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial

import pytest

from sandbox_runtime.providers.deno import DenoSettings
from sandbox_runtime.providers.deno.provider import DenoProvider
from sandbox_runtime.testing.conformance import (
    ATTACH_CHECKS,
    FACTS,
    REMOTE_ISOLATION_FACTS,
    Fact,
    attach_facts,
    check_fact,
)
from tests.contract.sandbox_runtime.deno_emulator import open_organisation, settings_for
from tests.contract.sandbox_runtime.representatives import representative
from tests.emulators.deno.server import Emulator

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]


@pytest.fixture(scope="module")
def organisation() -> Iterator[Emulator]:
    with open_organisation() as emulator:
        yield emulator
        assert emulator.organisation.running == []


@pytest.fixture
async def provider(organisation: Emulator) -> AsyncIterator[DenoProvider]:
    async with DenoProvider(settings_for(organisation)) as provider:
        await provider.ensure_ready()
        yield provider


@pytest.mark.parametrize("fact", representative(FACTS), ids=lambda fact: fact.name)
async def test_fact(provider: DenoProvider, fact: Fact) -> None:
    """The provider keeps the contract's promise, or says that it lacks the capability."""
    await check_fact(fact, provider)


def _again(settings: DenoSettings, owner: str) -> DenoProvider:
    return DenoProvider(replace(settings, owner=owner))


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(ATTACH_CHECKS)))
async def test_attach_fact(organisation: Emulator, provider: DenoProvider, number: int) -> None:
    """Its sandboxes are shared by processes."""
    reopen = partial(_again, settings_for(organisation))
    await check_fact(attach_facts(reopen)[number], provider)


@pytest.mark.parametrize("fact", representative(REMOTE_ISOLATION_FACTS), ids=lambda fact: fact.name)
async def test_isolation_fact(provider: DenoProvider, fact: Fact) -> None:
    """What runs inside cannot reach the host, its network or its neighbours."""
    await check_fact(fact, provider)
