"""Every fact of the sandbox contract over the Vercel provider: the real SDK against the emulated service."""

from collections.abc import AsyncIterator

import pytest

from sandbox_runtime.providers.vercel.provider import VercelProvider
from sandbox_runtime.testing.conformance import FACTS, REMOTE_ISOLATION_FACTS, Fact, check_fact
from tests.contract.sandbox_runtime.representatives import representative
from tests.contract.sandbox_runtime.vercel_service import VercelService

pytestmark = [pytest.mark.bubblewrap, pytest.mark.machines]


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
