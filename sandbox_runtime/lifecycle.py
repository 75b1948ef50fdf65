"""How long a sandbox lives: created with retries, used, always destroyed; and whose it is."""

import asyncio
import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.task_group import TaskGroup, open_task_group
from sandbox_runtime.types import SandboxSpec

_log = logging.getLogger(__name__)

DESTROY_TIMEOUT_S = 30.0
MAX_BACKOFF_S = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try to create a sandbox, for log and trace."""

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
    """Creates a sandbox for the length of the block.

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
    """Creates a sandbox as `open_sandbox` does, for a caller that ends it with `destroy_sandbox`."""
    numbers = count(1)

    async def create() -> Sandbox:
        number, started = next(numbers), time.monotonic()

        def tell(error: SandboxError | None) -> None:
            duration_s = time.monotonic() - started
            if on_attempt is not None:
                on_attempt(AttemptRecord(number=number, error=error, duration_s=duration_s))

        try:
            sandbox = await provider.create(spec)
        except SandboxError as exc:
            tell(exc)
            raise
        tell(None)
        return sandbox

    return await repeat(create, attempts=attempts, first_wait_s=backoff_s)


async def repeat(
    work: Callable[[], Awaitable[_T]],
    *,
    attempts: int,
    first_wait_s: float,
    max_wait_s: float = MAX_BACKOFF_S,
) -> _T:
    """Does it up to so many times, while its error says that trying again may help; waits twice as long each time, with jitter."""
    retrying = AsyncRetrying(
        stop=stop_after_attempt(attempts),
        wait=wait_exponential(multiplier=first_wait_s, max=max_wait_s)
        + wait_random(0, first_wait_s),
        retry=retry_if_exception(lambda exc: isinstance(exc, SandboxError) and exc.retryable),
        reraise=True,
    )
    return await retrying(work)


async def destroy_sandbox(sandbox: Sandbox, *, first_error: BaseException | None = None) -> None:
    """Ends a sandbox within `DESTROY_TIMEOUT_S`; a failure is noted on `first_error`, and logged."""
    try:
        async with asyncio.timeout(DESTROY_TIMEOUT_S):
            await sandbox.destroy()
    except (SandboxError, OSError, TimeoutError) as exc:
        reason = str(exc) or f"not done within {DESTROY_TIMEOUT_S:g} s"
        if first_error is not None:
            first_error.add_note(f"sandbox {sandbox.id} was not destroyed: {reason}")
        _log.warning(
            "sandbox not destroyed",
            extra={"action": "sandbox.stop_failed", "sandbox_id": sandbox.id, "reason": reason},
        )


async def destroy_all(sandboxes: Iterable[Sandbox]) -> None:
    """Ends sandboxes at once, each as `destroy_sandbox`: a failure keeps none of the others from being destroyed."""
    async with open_task_group() as group:
        for sandbox in list(sandboxes):
            group.create_task(destroy_sandbox(sandbox))


async def shielded(work: Coroutine[None, None, _T], *, timeout_s: float = 30.0) -> _T:
    """Returns what the work gives. A cancellation waits for its end, for a bounded time, and is raised then.

    Who is asked over a network does not stop when the one who asked goes away: who does not wait cannot know what there
    is to clean up.
    """
    async with open_task_group() as group:
        task = group.create_task(_outcome(work))
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait((task,), timeout=timeout_s)
            task.cancel()
            raise
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Orphans:
    """Requests whose asker may go away before the answer: they go on without it, and what they have made is given up then.

    For what takes too long to be waited for by somebody who has been told to stop.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._left: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        work: Coroutine[None, None, _T],
        give_up: Callable[[_T | Exception], Coroutine[None, None, None]],
    ) -> _T:
        """Returns what the work gives. Cancelled, it leaves that to `give_up`, which raises nothing.

        Raises:
            Exception: the work's own.
        """
        task = self._group.create_task(_outcome(work))
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                left = self._group.create_task(_afterwards(task, give_up))
                self._left.add(left)
                left.add_done_callback(self._left.discard)
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self, *, timeout_s: float = 10.0) -> None:
        """Waits for what goes on, so long at most; what is not answered then is left to whoever sweeps."""
        if self._left:
            _, pending = await asyncio.wait(self._left, timeout=timeout_s)
            for task in pending:
                task.cancel()


async def _afterwards(
    task: "asyncio.Task[_T | Exception]",
    give_up: Callable[[_T | Exception], Coroutine[None, None, None]],
) -> None:
    await give_up(await task)


async def _outcome(work: Coroutine[None, None, _T]) -> _T | Exception:
    try:
        return await work
    except Exception as exc:  # noqa: BLE001 - handed to who waits; in a group it would end the others
        return exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a sandbox is: somebody's who has a name, in whatever container and on whatever host; or a process's.

    A process is told apart from a later one that got the same pid, and from one in another pid namespace or on another machine.
    """

    pid: int
    """0 = it has a name."""
    started: str
    """The name; or start time in clock ticks since boot, `@`, and where that pid counts: a digest of boot and pid namespace,
    which earlier versions did not have, but the id of the boot itself."""

    @classmethod
    def of(cls, name: str = "") -> Self:
        """Returns who has this name; empty = the process that calls.

        Raises:
            ValueError: the name has more than 40 characters, or others than letters, digits, `-` and `_`.
        """
        if name:
            if not _OWNER_NAME.fullmatch(name):
                raise ValueError(f"not a name of an owner: {name!r}")
            return cls(pid=0, started=name)
        pid = os.getpid()
        return cls(pid=pid, started=f"{_ticks_of(pid)}@{_place()}")

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a process of which nothing can be known here."""
        return self.pid != 0 and self.started.partition("@")[2] not in (_place(), _boot())

    @property
    def alive(self) -> bool:
        """Whether it is a process that lives, as seen from here."""
        if self.pid == 0 or self.is_elsewhere:
            return False
        with suppress(FileNotFoundError, ProcessLookupError):
            return _ticks_of(self.pid) == self.started.partition("@")[0]
        return False

    def is_gone(self, living: Collection[str] | None) -> bool:
        """Whether nobody needs any more what it owns. `living`: all names in use; None = nobody knows them.

        A process of which nothing can be known is not gone, unless an earlier version wrote it down: that had one for all.
        """
        if self.pid == 0:
            return living is not None and self.started not in living
        is_old = len(self.started.partition("@")[2]) > _PLACE_CHARS
        return not self.alive and (is_old or not self.is_elsewhere)


_OWNER_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PLACE_CHARS = 16


def _ticks_of(pid: int) -> str:
    """Source: proc(5), /proc/pid/stat, field 22; the command name may hold spaces and parentheses."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _place() -> str:
    """Returns where pids count as they do here: in another container they do not."""
    here = f"{_boot()} {Path('/proc/self/ns/pid').readlink()}"
    return hashlib.sha256(here.encode()).hexdigest()[:_PLACE_CHARS]
