"""How long a sandbox lives: created with retries, used, always destroyed."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.task_group import open_task_group
from sandbox_runtime.types import SandboxSpec

DESTROY_TIMEOUT_S = 30.0
MAX_BACKOFF_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try to create a sandbox, as told to the caller for log and trace."""

    number: int
    """From 1."""
    error: SandboxError | None
    """None when the sandbox was created."""
    duration_s: float


AttemptListener = Callable[[AttemptRecord], None]


@asynccontextmanager
async def open_sandbox(
    provider: SandboxProvider,
    spec: SandboxSpec,
    *,
    attempts: int = 3,
    backoff_s: float = 0.5,
    on_attempt: AttemptListener | None = None,
) -> AsyncIterator[Sandbox]:
    """A new sandbox for the length of the block.

    Creation is tried up to `attempts` times while the error says that trying again may help, waiting about `backoff_s`,
    then twice that, and so on, with jitter. A failure to destroy never replaces the block's own error: it is noted on it,
    or logged when there is none.

    Raises:
        SandboxError: what the last `create` raised.
    """
    sandbox = await create_sandbox(
        provider, spec, attempts=attempts, backoff_s=backoff_s, on_attempt=on_attempt
    )
    try:
        yield sandbox
    except BaseException as exc:
        await destroy_sandbox(sandbox, first_error=exc)
        raise
    await destroy_sandbox(sandbox)


async def create_sandbox(
    provider: SandboxProvider,
    spec: SandboxSpec,
    *,
    attempts: int = 3,
    backoff_s: float = 0.5,
    on_attempt: AttemptListener | None = None,
) -> Sandbox:
    """The same for a caller that destroys it by itself, with `destroy_sandbox`."""
    tell = on_attempt or _ignore
    retrying = AsyncRetrying(
        stop=stop_after_attempt(attempts),
        wait=wait_exponential(multiplier=backoff_s, max=MAX_BACKOFF_S) + wait_random(0, backoff_s),
        retry=retry_if_exception(_is_retryable),
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            number = attempt.retry_state.attempt_number
            started = time.monotonic()
            try:
                sandbox = await provider.create(spec)
            except SandboxError as exc:
                duration_s = time.monotonic() - started
                tell(AttemptRecord(number=number, error=exc, duration_s=duration_s))
                raise
            tell(AttemptRecord(number=number, error=None, duration_s=time.monotonic() - started))
            return sandbox
    raise AssertionError("tenacity ends with a result or an error")


def _ignore(_record: AttemptRecord) -> None:
    pass


def _is_retryable(exc: BaseException) -> bool:
    return isinstance(exc, SandboxError) and exc.retryable


async def destroy_sandbox(sandbox: Sandbox, *, first_error: BaseException | None = None) -> None:
    """End a sandbox within `DESTROY_TIMEOUT_S`; a failure is noted on `first_error`, and logged."""
    try:
        async with asyncio.timeout(DESTROY_TIMEOUT_S):
            await sandbox.destroy()
    except (SandboxError, OSError, TimeoutError) as exc:
        reason = str(exc) or f"not done within {DESTROY_TIMEOUT_S:g} s"
        if first_error is not None:
            first_error.add_note(f"sandbox {sandbox.id} was not destroyed: {reason}")
        _log_left(sandbox, reason)


async def destroy_all(sandboxes: Iterable[Sandbox]) -> None:
    """End them at once. A failure keeps none of the others from being destroyed: it is logged."""
    async with open_task_group() as group:
        for sandbox in list(sandboxes):
            group.create_task(_destroy_logged(sandbox))


async def _destroy_logged(sandbox: Sandbox) -> None:
    try:
        await sandbox.destroy()
    except SandboxError as exc:
        _log_left(sandbox, str(exc))


def _log_left(sandbox: Sandbox, reason: str) -> None:
    _log.warning(
        "sandbox not destroyed",
        extra={"action": "sandbox.stop_failed", "sandbox_id": sandbox.id, "reason": reason},
    )
