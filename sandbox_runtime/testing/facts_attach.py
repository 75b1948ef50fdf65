"""Conformance: sandboxes that several processes share, and what a sweep leaves to their owners.

for fact in attach_facts(reopen):
    await check_fact(fact, provider)
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from sandbox_runtime.errors import SandboxErrorCode
from sandbox_runtime.provider import Process, Sandbox, SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.testing.expectations import (
    TIMEOUT_S,
    Fact,
    expect,
    expect_code,
    expect_equal,
    fact,
    fresh,
    sh,
)
from sandbox_runtime.types import Capability, ExecEvent, SandboxId, SandboxSpec

Reopen = Callable[[str], SandboxProvider]
"""Makes a provider of the same settings, not open, whose owner has this name. It can be pickled."""
AttachCheck = Callable[[SandboxProvider, Reopen], Awaitable[None]]

_WORK = "while [ ! -e end ]; do echo work; echo >> log; sleep 0.02; done; touch ended"
_PROCESS_TIMEOUT_S = 60.0


async def check_work_goes_on_in_another_process(provider: SandboxProvider, reopen: Reopen) -> None:
    """After `detach` and `release` a command works on; two further processes attach, the last one sees its end."""
    sandbox = await provider.create(SandboxSpec())
    await _detached(await sandbox.spawn(["sh", "-c", _WORK]))
    provider.release(sandbox.id)
    done = await _elsewhere(_look, reopen, sandbox.id)
    expect(done, "no work was done while nobody read it")
    expect_equal((await provider.find(sandbox.id)) is not None, wanted=True)
    await _elsewhere(_end, reopen, sandbox.id)
    with expect_code(SandboxErrorCode.NOT_FOUND):
        await provider.attach(sandbox.id)


async def check_sweep_leaves_living_owners(provider: SandboxProvider, reopen: Reopen) -> None:
    """A sweep leaves the sandboxes of living owners, whatever process made them; those of other owners go, unless they shall be kept."""
    name = f"owner-{secrets.token_hex(4)}"
    async with fresh(provider) as mine, reopen(name) as other:
        sandbox = await other.create(SandboxSpec())
        expect_equal(await provider.sweep(living=["somebody", name]), 0)
        expect_equal(await provider.sweep(), 0)
        expect_equal((await sh(sandbox, "echo alive")).text, "alive\n")
        other.release(sandbox.id)
        expect_equal(await provider.sweep([sandbox.id], living=["somebody"]), 0)
        expect_equal(await provider.sweep(living=["somebody"]), 1)
        with expect_code(SandboxErrorCode.NOT_FOUND):
            await provider.attach(sandbox.id)
        expect_equal((await sh(mine, "echo alive")).text, "alive\n")


ATTACH_CHECKS: Sequence[AttachCheck] = (
    check_work_goes_on_in_another_process,
    check_sweep_leaves_living_owners,
)


def attach_facts(reopen: Reopen) -> Sequence[Fact]:
    """Returns the facts about a provider that others, made by `reopen`, share its sandboxes with."""
    return [_bound(check, reopen) for check in ATTACH_CHECKS]


def _bound(check: AttachCheck, reopen: Reopen) -> Fact:
    async def with_provider(provider: SandboxProvider) -> None:
        await check(provider, reopen)

    with_provider.__name__ = check.__name__
    return fact(with_provider, needs=Capability.ATTACH)


async def _detached(process: Process) -> None:
    """Reads a command until its first word, and detaches while the next one is waited for."""
    seen: list[ExecEvent] = []
    begun = asyncio.Event()

    async def read() -> None:
        async for event in process.events():
            seen.append(event)
            begun.set()

    async with asyncio.timeout(TIMEOUT_S), open_task_group() as group:
        group.create_task(read())
        await begun.wait()
        await process.detach()


async def _elsewhere(
    work: Callable[[SandboxProvider, Sandbox], Awaitable[bool]], reopen: Reopen, sandbox_id: str
) -> bool:
    """Does something in a sandbox from another process, which leaves it running."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        async with asyncio.timeout(_PROCESS_TIMEOUT_S):
            return await asyncio.wrap_future(pool.submit(_run, work, reopen, sandbox_id))


def _run(
    work: Callable[[SandboxProvider, Sandbox], Awaitable[bool]], reopen: Reopen, sandbox_id: str
) -> bool:
    async def attached() -> bool:
        async with reopen("") as provider:
            sandbox = await provider.attach(SandboxId(sandbox_id))
            return await work(provider, sandbox)

    return asyncio.run(attached())


async def _look(provider: SandboxProvider, sandbox: Sandbox) -> bool:
    """Whether the command works while one that was started here is read, detached, and the sandbox released."""
    before = int((await sh(sandbox, "wc -l < log")).text)
    await _detached(await sandbox.spawn(["tail", "-f", "log"]))
    after = int((await sh(sandbox, "sleep 0.2; wc -l < log")).text)
    provider.release(sandbox.id)
    return after > before > 0


async def _end(_provider: SandboxProvider, sandbox: Sandbox) -> bool:
    await sh(sandbox, "touch end; until [ -e ended ]; do sleep 0.02; done")
    await sandbox.destroy()
    return True
