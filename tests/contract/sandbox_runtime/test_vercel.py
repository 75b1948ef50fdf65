"""Every fact of the sandbox contract over the Vercel provider: the real SDK against the emulated service."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest

from sandbox_runtime.providers.vercel import VercelSettings
from sandbox_runtime.providers.vercel.provider import VercelProvider
from sandbox_runtime.testing.conformance import (
    ATTACH_CHECKS,
    FACTS,
    REMOTE_ISOLATION_FACTS,
    Fact,
    attach_facts,
    check_fact,
)
from tests.contract.sandbox_runtime.representatives import representative
from tests.contract.sandbox_runtime.vercel_service import VercelService

pytestmark = [
    pytest.mark.bubblewrap,
    pytest.mark.machines,
    # The emulator is a thread beside the client's: Python's collector may run there while a generator of httpx goes on here.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator object Response.aiter_raw"
    ),
]


@pytest.fixture
async def provider(vercel: VercelService) -> AsyncIterator[VercelProvider]:
    async with VercelProvider(vercel.settings(beat_s=20.0)) as provider:
        assert provider.region == "iad1"
        yield provider


@pytest.mark.parametrize(
    "fact", representative([*FACTS, *REMOTE_ISOLATION_FACTS]), ids=lambda fact: fact.name
)
async def test_fact(provider: VercelProvider, fact: Fact) -> None:
    """The provider keeps the contract's promise, or says that it lacks the capability."""
    await check_fact(fact, provider)


def _again(settings: VercelSettings, owner: str) -> VercelProvider:
    return VercelProvider(replace(settings, owner=owner))


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(ATTACH_CHECKS)))
async def test_attach_fact(vercel: VercelService, number: int) -> None:
    """Its sandboxes are shared by processes."""
    settings = vercel.settings(beat_s=20.0)
    async with VercelProvider(settings) as provider:
        await check_fact(attach_facts(partial(_again, settings))[number], provider)
