"""The Vercel provider over the real SDK and the emulated service."""

from collections.abc import AsyncIterator, Iterator

import pytest

from sandbox_runtime.providers.vercel import VercelProvider
from sandbox_runtime.testing.conformance import FACTS, ISOLATION_FACTS, Fact, check_fact
from tests.contract.sandbox_runtime.vercel_service import run_service, settings_for
from tests.emulators.vercel.server import Emulator

pytestmark = pytest.mark.bubblewrap

_SOCKET_FACT = "broker_is_reached"
"""Over a unix socket, which nothing at Vercel can reach: below, over a URL."""


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Emulator, int]]:
    with run_service() as service:
        yield service


@pytest.fixture
def emulator(service: tuple[Emulator, int]) -> Iterator[Emulator]:
    emulator, _ = service
    emulator.faults.clear()
    emulator.seen.clear()
    yield emulator
    emulator.faults.clear()


@pytest.fixture
async def provider(emulator: Emulator) -> AsyncIterator[VercelProvider]:
    async with VercelProvider(settings_for(emulator)) as provider:
        yield provider


@pytest.mark.parametrize(
    "fact",
    [fact for fact in (*FACTS, *ISOLATION_FACTS) if fact.name != _SOCKET_FACT],
    ids=lambda fact: fact.name,
)
async def test_fact(provider: VercelProvider, fact: Fact) -> None:
    """The provider keeps the contract's promise, or says that it lacks the capability."""
    await check_fact(fact, provider)
