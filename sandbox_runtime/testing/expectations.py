"""How conformance facts speak: expectations without a test framework."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability, ExecResult, SandboxSpec

TIMEOUT_S = 20.0
"""Of one ordinary command in a fact."""

ProviderCheck = Callable[[SandboxProvider], Awaitable[None]]
SandboxCheck = Callable[[Sandbox], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One sentence of the contract and how to check it."""

    name: str
    needs: Capability | None
    """The check is for providers with this capability; the others must raise UNSUPPORTED."""
    check: ProviderCheck
    """Raises AssertionError when the fact does not hold."""


def fact(check: ProviderCheck, *, needs: Capability | None = None) -> Fact:
    """Makes a fact about the provider itself."""
    return Fact(name=_name(check), needs=needs, check=check)


def sandbox_fact(check: SandboxCheck) -> Fact:
    """Makes a fact about one fresh sandbox."""

    async def with_sandbox(provider: SandboxProvider) -> None:
        async with fresh(provider) as sandbox:
            await check(sandbox)

    return Fact(name=_name(check), needs=None, check=with_sandbox)


def _name(check: Callable[..., object]) -> str:
    return getattr(check, "__name__", repr(check)).removeprefix("check_")


@asynccontextmanager
async def fresh(
    provider: SandboxProvider, spec: SandboxSpec | None = None
) -> AsyncIterator[Sandbox]:
    """Makes a sandbox for the length of the block."""
    sandbox = await provider.create(spec or SandboxSpec())
    try:
        yield sandbox
    finally:
        await sandbox.destroy()


def expect(condition: object, found: object) -> None:
    """Fails, naming what was found, unless the condition holds."""
    if not condition:
        raise AssertionError(f"found {found!r}")


def expect_equal(found: object, wanted: object) -> None:
    """Fails, naming both, unless they are equal."""
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


@contextmanager
def expect_raises(*kinds: type[BaseException]) -> Iterator[None]:
    """Fails unless the block raises one of these."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing of {kinds} was raised")


@contextmanager
def expect_code(code: SandboxErrorCode) -> Iterator[None]:
    """Fails unless the block raises this SandboxError; another one passes through."""
    try:
        yield
    except SandboxError as exc:
        if exc.code is not code:
            raise
        return
    raise AssertionError(f"no SandboxError({code}) was raised")


async def sh(sandbox: Sandbox, script: str, *arguments: str) -> ExecResult:
    """Runs a shell script in the sandbox."""
    return await sandbox.exec(["sh", "-c", script, "sh", *arguments], timeout_s=TIMEOUT_S)


async def python(sandbox: Sandbox, code: str, *arguments: str) -> ExecResult:
    """Runs Python code in the sandbox."""
    return await sandbox.exec(["python3", "-c", code, *arguments], timeout_s=TIMEOUT_S)
