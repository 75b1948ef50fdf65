"""Checks the sandbox contract against a provider as this machine's settings make it, and prints the matrix."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from app.cli.commands.terminal import Print
from app.compose.factories import start_logging
from app.compose.providers import choose_provider, create_provider
from app.settings.settings import Settings
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import SandboxProvider
from sandbox_runtime.registry import provider_spec
from sandbox_runtime.testing.conformance import (
    FACTS,
    ISOLATION_FACTS,
    REMOTE_ISOLATION_FACTS,
    Fact,
    attach_facts,
    check_fact,
)
from sandbox_runtime.testing.facts_attach import Reopen
from sandbox_runtime.types import Capability

FACT_TIMEOUT_S = 120.0
SHOWN_CHARS = 300


async def check_conformance(settings: Settings, *, write: Print) -> bool:
    """Whether every fact holds; a line for each. In a state directory of its own, of which nothing stays."""
    masker = start_logging(settings, level="ERROR")
    broken = lacking = 0
    try:
        async with _open_provider(settings) as (provider, reopen):
            facts = _facts(settings, provider, reopen)
            write(f"{provider.name}: {await provider.probe()}")
            await provider.ensure_ready()
            for fact in facts:
                is_lacking = fact.needs is not None and fact.needs not in provider.capabilities
                started_s = time.monotonic()
                reason = await _broken(fact, provider)
                broken += bool(reason)
                lacking += is_lacking and not reason
                mark = "FAIL" if reason else "lack" if is_lacking else "ok"
                shown = masker.mask(reason)[:SHOWN_CHARS]
                write(f"{mark:4} {fact.name:60} {time.monotonic() - started_s:7.2f} s  {shown}")
    except SandboxError as exc:
        write(f"FAIL {masker.mask(str(exc))}")
        return False
    write(
        f"{len(facts)} facts: {len(facts) - broken - lacking} hold, {broken} broken, "
        f"{lacking} of what it lacks and says so"
    )
    return broken == 0


def _facts(settings: Settings, provider: SandboxProvider, reopen: Reopen) -> Sequence[Fact]:
    facts = (*FACTS, *attach_facts(reopen))
    if Capability.REMOTE in provider.capabilities:
        return (*facts, *REMOTE_ISOLATION_FACTS)
    is_open = provider.name == "local" and settings.sandbox.is_unisolated
    is_open = is_open or not provider_spec(provider.name).is_isolated
    return facts if is_open else (*facts, *ISOLATION_FACTS)


async def _broken(fact: Fact, provider: SandboxProvider) -> str:
    """Returns why it does not hold; empty when it does."""
    try:
        async with asyncio.timeout(FACT_TIMEOUT_S):
            await check_fact(fact, provider)
    except Exception as exc:  # noqa: BLE001 - whatever a provider does wrong is what is looked for
        return f"{type(exc).__name__}: {exc}"
    return ""


@asynccontextmanager
async def _open_provider(settings: Settings) -> AsyncIterator[tuple[SandboxProvider, Reopen]]:
    choice = await choose_provider(settings)
    with _state_directory() as directory:
        own = settings.at(directory)
        reopen = partial(create_provider, own, choice)
        async with reopen("") as provider:
            try:
                yield provider, reopen
            finally:
                for snapshot in await provider.list_snapshots():
                    await provider.delete_snapshot(snapshot.id)
                await provider.sweep()


@contextmanager
def _state_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="orion-conformance-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # sandboxes that run as another user reach through it
        yield directory
