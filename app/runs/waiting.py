"""A sandbox that waits for a run with its agent loaded: how its end is noticed, and what is left for the run to read."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from typing_extensions import override

from agent_scripts.supervision import is_waiting
from app.runs.session import SessionId
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.types import ExecEvent, ExecExited, ExecOutput, OutputStream, SandboxSpec

MAX_QUEUED_EVENTS = 16
"""Of at most 64 KiB each; past that the supervisor waits, as for any reader."""
MAX_SAID_BYTES = 4096
HAND_OVER_TIMEOUT_S = 3.0
"""In a container it takes some 0.15 s; a new sandbox with a new agent some 2 s."""


class WaitingProcess(Process):
    """A started supervisor. Its output is read from its start on, by `pump`, so that its end is known at once."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._queue: asyncio.Queue[ExecEvent | SandboxError] = asyncio.Queue(MAX_QUEUED_EVENTS)
        self._waits_or_ended = asyncio.Event()
        self._said = bytearray()
        self._waits = False
        self._is_over = False
        """There may be nobody who reads what comes now."""
        self._has_begun = False
        self._began_or_ended = asyncio.Event()
        self.has_ended = False

    async def pump(self) -> None:
        """Read it to its end, or until it was killed; whoever made this runs it in a task."""
        try:
            async for event in self._process.events():
                if self._waits:
                    self._hear(event)
                    await self._hand_on(event)
                else:
                    self._listen(event)
        except SandboxError as exc:
            self._put_now(exc)
        finally:
            self.has_ended = True
            self._waits_or_ended.set()
            self._began_or_ended.set()

    async def until_waiting(self) -> None:
        """Returns when its agent is loaded.

        Raises:
            SandboxError: SETUP_FAILED: it ended instead; with its last words.
        """
        await self._waits_or_ended.wait()
        if not self._waits or self.has_ended:
            words = self._said.decode("utf-8", "replace").strip() or "without a word"
            raise SandboxError(SandboxErrorCode.SETUP_FAILED, f"the supervisor ended: {words}")

    async def until_begun(self) -> bool:
        """Returns when it has told that its agent works. False = it ended without."""
        await self._began_or_ended.wait()
        return self._has_begun

    @override
    async def events(self) -> AsyncIterator[ExecEvent]:
        while True:
            item = await self._queue.get()
            if isinstance(item, SandboxError):
                raise item
            yield item
            if isinstance(item, ExecExited):
                return

    @override
    async def kill(self) -> None:
        self._is_over = True
        if self._queue.full():
            self._queue.get_nowait()  # so that the pump goes on
        await self._process.kill()

    def _hear(self, event: ExecEvent) -> None:
        """The supervisor's records are on stdout; words on stderr are why it ends."""
        match event:
            case ExecOutput(stream=OutputStream.STDOUT):
                self._has_begun = True
                self._began_or_ended.set()
            case _:
                pass

    def _listen(self, event: ExecEvent) -> None:
        if not isinstance(event, ExecOutput):
            return
        self._said = (self._said + event.data)[-MAX_SAID_BYTES:]
        if event.stream is OutputStream.STDOUT:
            lines = self._said.decode("utf-8", "replace").splitlines()
            if any(is_waiting(line) for line in lines):
                self._waits = True
                self._said.clear()
                self._waits_or_ended.set()

    async def _hand_on(self, event: ExecEvent) -> None:
        if not self._is_over:
            await self._queue.put(event)
        else:
            self._put_now(event)

    def _put_now(self, item: ExecEvent | SandboxError) -> None:
        """The last ones count; nobody has read for long if there is no room."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(item)


@dataclass(slots=True)
class Breaker:
    """Stops what fails again and again: after `limit` failures in a row, for `cool_down_s`; then one more try."""

    limit: int
    cool_down_s: float
    failures: int = 0
    until_s: float = 0
    """On the monotonic clock."""

    def fail(self, *, now_s: float) -> None:
        self.failures += 1
        if self.failures >= self.limit:
            self.until_s = now_s + self.cool_down_s

    def succeed(self) -> None:
        self.failures = 0
        self.until_s = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingAgent:
    """A prepared sandbox with its supervisor; for one run, which then owns the sandbox as if it had made it."""

    sandbox: Sandbox
    process: WaitingProcess
    directory: str
    """`AgentPaths.waiting`."""
    door: SessionId
    """In place of a thread's, until it has one."""
    spec: SandboxSpec
    """What it was made from, without what each sandbox has of its own."""
    until_s: float
    """On the monotonic clock."""
    breaker: Breaker

    def prove(self) -> None:
        """It has taken its task."""
        self.breaker.succeed()


class UnfitSandboxError(Exception):
    """A sandbox that waited does not take its task; a new one will."""


async def hand_over(
    waiting: WaitingAgent, files: Mapping[str, bytes], *, lifetime_s: float
) -> None:
    """Give an agent that waits its task; that it begins within seconds is what shows that it is well.

    Where sandboxes end by themselves its own lives for `lifetime_s` from now on.

    Raises:
        UnfitSandboxError: it does not.
    """
    try:
        async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
            await waiting.sandbox.extend(lifetime_s)
            await waiting.sandbox.write_files(files)
            has_begun = await waiting.process.until_begun()
    except (SandboxError, OSError, TimeoutError) as exc:
        raise UnfitSandboxError(str(exc) or f"silent for {HAND_OVER_TIMEOUT_S:g} s") from exc
    if not has_begun:
        raise UnfitSandboxError("its supervisor has ended")
    waiting.prove()
