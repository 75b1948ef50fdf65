"""Sandboxes that are prepared before anybody asks, each with its agent loaded, and each for one run.

A run takes one at once or makes its own: it never waits for the pool.
"""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from typing_extensions import override

from agent_scripts.adapter import AgentAdapter
from agent_scripts.supervision import is_waiting, supervise_later
from app.log import get_logger
from app.runs.broker import ModelBroker
from app.runs.sandboxes import agent_paths
from app.runs.session import SessionId
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.lifecycle import destroy_sandbox
from sandbox_runtime.provider import Process, Sandbox, SandboxProvider
from sandbox_runtime.task_group import TaskGroup, open_task_group
from sandbox_runtime.types import (
    ClosedNetwork,
    ExecEvent,
    ExecExited,
    ExecOutput,
    OutputStream,
    SandboxSpec,
)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """Figures of one pool, since its start."""

    provider: str
    size: int
    waiting: int
    taken: int
    missed: int
    """Runs that found none and made their own."""
    failed: int
    """Sandboxes that could not be prepared, ended while they waited, or did not take their task."""
    is_stopped: bool
    """Too many failures in a row: it is left alone for a while."""

    @override
    def __str__(self) -> str:
        stopped = ", stopped for a while after failures" if self.is_stopped else ""
        return (
            f"{self.provider}: {self.waiting} of {self.size} wait; taken {self.taken}, "
            f"missed {self.missed}, failed {self.failed}{stopped}"
        )


MAX_QUEUED_EVENTS = 16
"""Of at most 64 KiB each; past that the supervisor waits, as for any reader."""
MAX_SAID_BYTES = 4096
ASSIGN_TIMEOUT_S = 3.0
"""In a container it takes some 0.15 s; a new sandbox with a new agent some 2 s."""


class WaitingProcess(Process):
    """A started supervisor. Its output is read from its start on, by `pump`, so that its end is known at once."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._queue: asyncio.Queue[ExecEvent | SandboxError | None] = asyncio.Queue(
            MAX_QUEUED_EVENTS
        )
        self._waits_or_ended = asyncio.Event()
        self._said = bytearray()
        self._waits = False
        self._is_over = False
        """There may be nobody who reads what comes now."""
        self._has_begun = False
        self._began_or_ended = asyncio.Event()
        self.has_ended = False

    async def pump(self) -> None:
        """Reads it to its end, or until it was killed; whoever made this runs it in a task."""
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
            if item is None:  # detached
                return
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

    @override
    async def detach(self) -> None:
        self._is_over = True
        await self._process.detach()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    def _hear(self, event: ExecEvent) -> None:
        """Notes when the agent has begun: the supervisor's records are on stdout; words on stderr are why it ends."""
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
        """Puts an item in place of the oldest one, if there is no room: nobody has read for long then."""
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
    endpoint_id: SessionId
    """In place of a thread's, until it has one."""
    spec: SandboxSpec
    """What it was made from, without what each sandbox has of its own."""
    until_s: float
    """On the monotonic clock."""
    breaker: Breaker

    def mark_healthy(self) -> None:
        """Notes that it has taken its task."""
        self.breaker.succeed()


class UnhealthySandboxError(Exception):
    """A prepared sandbox does not take its task; a new one will."""


async def assign_task(
    waiting: WaitingAgent, files: Mapping[str, bytes], *, lifetime_s: float
) -> None:
    """Gives an agent that waits its task; that it begins within seconds is what shows that it is well.

    Where sandboxes end by themselves its own lives for `lifetime_s` from now on.

    Raises:
        UnhealthySandboxError: it does not.
    """
    try:
        async with asyncio.timeout(ASSIGN_TIMEOUT_S):
            await waiting.sandbox.extend(lifetime_s)
            await waiting.sandbox.write_files(files)
            has_begun = await waiting.process.until_begun()
    except (SandboxError, OSError, TimeoutError) as exc:
        raise UnhealthySandboxError(str(exc) or f"silent for {ASSIGN_TIMEOUT_S:g} s") from exc
    if not has_begun:
        raise UnhealthySandboxError("its supervisor has ended")
    waiting.mark_healthy()


MAX_WAIT_S = 900.0
"""Less than any provider's longest life of a sandbox."""
READY_TIMEOUT_S = 60.0
"""For a sandbox to be made and its agent to be loaded, on a busy machine."""
SUPERVISOR_SLACK_S = 60.0
"""A supervisor ends by itself so much later than it is given up, should its host be gone."""
LOOK_INTERVAL_S = 5.0
PAUSE_S = 1.0
"""After a failure."""
REST_S = 3.0
"""Before the place of a sandbox that was taken is filled: until then the machine is its agent's, whose start is the first answer's.

On two processors gemini's first answer in Docker was 1.2 s slower than the command by hand without it, and 0.8 with it (measured).
"""
FAILURES = 3
COOL_DOWN_S = 60.0
_DIRECTORY = "waiting"

Want = Callable[[SessionId, float], Awaitable[SandboxSpec | None]]
"""What a sandbox is made from that has this endpoint and may wait so long; None = none can be made yet."""


class WarmPool:
    """The pool of one provider and agent. Members are told apart by all that a run's own sandbox would be made from."""

    def __init__(
        self,
        *,
        provider: SandboxProvider,
        adapter: AgentAdapter,
        broker: ModelBroker,
        size: int,
        max_wait_s: float = MAX_WAIT_S,
        rest_s: float = REST_S,
    ) -> None:
        """`size` 0 = no pool. What has waited for `max_wait_s` is replaced; what is taken, after `rest_s`."""
        self._provider = provider
        self._adapter = adapter
        self._broker = broker
        self.size = size
        self._max_wait_s = max_wait_s
        self._waiting: list[WaitingAgent] = []
        self._breaker = Breaker(limit=FAILURES, cool_down_s=COOL_DOWN_S)
        self._changed = asyncio.Event()
        self._group: TaskGroup | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self._taken = self._missed = self._failed = 0
        self._rest_s = rest_s
        self._rests_until_s = -math.inf

    @property
    def agent(self) -> str:
        """Returns the agent that is loaded; all others make sandboxes of their own."""
        return self._adapter.name

    @property
    def figures(self) -> PoolFigures:
        return PoolFigures(
            provider=self._provider.name,
            size=self.size,
            waiting=len(self._waiting),
            taken=self._taken,
            missed=self._missed,
            failed=self._failed,
            is_stopped=self._breaker.until_s > time.monotonic(),
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Owns what waits and, of what was taken, the reading of its output, for which all runs must have ended before."""
        async with open_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                for task in self._watching:
                    task.cancel()
                self._drain()
                self._group = None

    async def fill_forever(self, want: Want) -> None:
        """Keeps `size` of them ready, one made after the other, while the pool is open."""
        while self.size > 0:
            self._changed.clear()
            self._expire()
            pause_s = await self._fill(want)
            overdue_s = min((one.until_s for one in self._waiting), default=math.inf)
            pause_s = max(0, min(pause_s, overdue_s - time.monotonic()))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def wake(self) -> None:
        """Looks again at once: there is an environment now."""
        self._changed.set()

    def take(self, spec: SandboxSpec, session_id: SessionId) -> WaitingAgent | None:
        """Returns one that is the same as what `spec` would make, now the session's own; None = there is none. Never given twice."""
        wanted = _without_own(spec)
        found = None
        for member in list(self._waiting):
            if member.spec != wanted:
                self._waiting.remove(member)  # of an environment that is not the newest any more
                self._destroy(member)
            elif member.until_s > time.monotonic() and not member.process.has_ended:
                found = member
                break
        self._changed.set()
        if found is None:
            self._missed += 1
            return None
        self._waiting.remove(found)
        self._broker.rebind(session_id, found.endpoint_id)
        self._taken += 1
        self._rests_until_s = time.monotonic() + self._rest_s
        return found

    def discard(self, member: WaitingAgent) -> None:
        """Destroys one that was taken and is unhealthy: it goes in the background."""
        self._fail("unfit")
        self._destroy(member)

    def make_space(self) -> bool:
        """Gives up one for a sandbox that is needed now; False = none waits."""
        if not self._waiting:
            return False
        self._destroy(self._waiting.pop())
        self._breaker.until_s = time.monotonic() + COOL_DOWN_S  # else it would come back at once
        return True

    async def _fill(self, want: Want) -> float:
        """Makes one if one is lacking; returns after how many seconds to look again."""
        open_again_s = self._breaker.until_s - time.monotonic()
        if len(self._waiting) >= self.size or open_again_s > 0:
            return LOOK_INTERVAL_S
        if (rest_s := self._rests_until_s - time.monotonic()) > 0:
            return rest_s
        started_s = time.monotonic()
        try:
            member = await self._make(want)
        except (SandboxError, OSError, TimeoutError) as exc:
            self._fail(str(exc) or f"not ready within {READY_TIMEOUT_S:g} s")
            return PAUSE_S
        if member is None:
            return LOOK_INTERVAL_S
        self._waiting.append(member)
        duration_s = round(time.monotonic() - started_s, 3)
        _log.info("pool.filled", sandbox_id=member.sandbox.id, duration_s=duration_s)
        return 0

    async def _make(self, want: Want) -> WaitingAgent | None:
        endpoint_id = SessionId(f"pool_{secrets.token_hex(8)}")
        sandbox = None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                spec = await want(endpoint_id, self._max_wait_s)
                if spec is None:
                    self._broker.close(endpoint_id)
                    return None
                sandbox = await self._provider.create(spec)
                return await self._start(sandbox, endpoint_id, spec)
        except BaseException as exc:
            if sandbox is not None:
                await destroy_sandbox(sandbox, first_error=exc)
            self._broker.close(endpoint_id)
            raise

    async def _start(
        self, sandbox: Sandbox, endpoint_id: SessionId, spec: SandboxSpec
    ) -> WaitingAgent:
        directory = f"{sandbox.paths.run}/{_DIRECTORY}"
        paths = replace(agent_paths(sandbox.paths), waiting=directory)
        command = supervise_later(
            self._adapter.preload(paths),
            paths=paths,
            max_wait_s=self._max_wait_s + SUPERVISOR_SLACK_S,
        )
        await sandbox.write_files({file.path: file.data for file in command.files})
        member = WaitingAgent(
            sandbox=sandbox,
            process=WaitingProcess(await sandbox.spawn(command.argv)),
            directory=directory,
            endpoint_id=endpoint_id,
            spec=_without_own(spec),
            until_s=time.monotonic() + self._max_wait_s,
            breaker=self._breaker,
        )
        if self._group is None:
            raise AssertionError("the pool is filled while it is open")
        task = self._group.create_task(self._watch(member), name=f"pool-{sandbox.id}")
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        await member.process.until_waiting()
        return member

    async def _watch(self, member: WaitingAgent) -> None:
        await member.process.pump()
        if member in self._waiting:
            self._waiting.remove(member)
            self._fail("ended while it waited")
            self._destroy(member)
            self._changed.set()

    def _expire(self) -> None:
        for member in list(self._waiting):
            if member.until_s <= time.monotonic():
                self._waiting.remove(member)
                self._destroy(member)
                self._breaker.succeed()

    def _fail(self, reason: str) -> None:
        self._failed += 1
        self._breaker.fail(now_s=time.monotonic())
        _log.warning(
            "pool.failed",
            provider=self._provider.name,
            reason=reason,
            failures=self._breaker.failures,
            is_stopped=self._breaker.until_s > time.monotonic(),
        )

    def _destroy(self, member: WaitingAgent) -> None:
        if self._group is not None:
            self._group.create_task(self._end(member), name=f"pool-end-{member.sandbox.id}")

    async def _end(self, member: WaitingAgent) -> None:
        await destroy_sandbox(member.sandbox)
        self._broker.close(member.endpoint_id)

    def _drain(self) -> None:
        while self._waiting:
            self._destroy(self._waiting.pop())


def _without_own(spec: SandboxSpec) -> SandboxSpec:
    """Returns the spec without what differs from sandbox to sandbox: the path of its endpoint, its labels, how long it has to live."""
    network = spec.network
    if not isinstance(network, ClosedNetwork):
        network = replace(network, endpoint="")
    return replace(spec, network=network, labels={}, lifetime_s=None)
