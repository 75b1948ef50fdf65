"""Sandboxes that are prepared before anybody asks, each with its agent loaded, and each for one run.

A run takes one at once or makes its own: it never waits for the pool.
"""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from agent_scripts.adapter import AgentAdapter
from agent_scripts.supervision import waiting
from app.log import get_logger
from app.runs.broker_ports import ModelBroker
from app.runs.places import agent_paths
from app.runs.pool_figures import PoolFigures
from app.runs.session import SessionId
from app.runs.waiting import Breaker, WaitingAgent, WaitingProcess
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.lifecycle import destroy_sandbox
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.task_group import TaskGroup, open_task_group
from sandbox_runtime.types import ClosedNetwork, SandboxSpec

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
"""What a sandbox is made from that has this door and may wait so long; None = none can be made yet."""

_log = get_logger(__name__)


class WarmPool:
    """Of one provider and agent. Members are told apart by all that a run's own sandbox would be made from."""

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
        """Who is loaded; all others make sandboxes of their own."""
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
        """Keep `size` of them ready, one made after the other, while the pool is open."""
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
        """There is an environment now."""
        self._changed.set()

    def take(self, spec: SandboxSpec, session_id: SessionId) -> WaitingAgent | None:
        """One that is the same as what `spec` would make, now the session's own; None = there is none. Never given twice."""
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
        self._broker.adopt(session_id, found.door)
        self._taken += 1
        self._rests_until_s = time.monotonic() + self._rest_s
        return found

    def discard(self, member: WaitingAgent) -> None:
        """One that was taken and is unfit: it goes in the background."""
        self._fail("unfit")
        self._destroy(member)

    def make_room(self) -> bool:
        """Give up one for a sandbox that is needed now; False = none waits."""
        if not self._waiting:
            return False
        self._destroy(self._waiting.pop())
        self._breaker.until_s = time.monotonic() + COOL_DOWN_S  # else it would come back at once
        return True

    async def _fill(self, want: Want) -> float:
        """Make one if one is lacking; returns after how many seconds to look again."""
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
        door = SessionId(f"pool_{secrets.token_hex(8)}")
        sandbox = None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                spec = await want(door, self._max_wait_s)
                if spec is None:
                    self._broker.close(door)
                    return None
                sandbox = await self._provider.create(spec)
                return await self._start(sandbox, door, spec)
        except BaseException as exc:
            if sandbox is not None:
                await destroy_sandbox(sandbox, first_error=exc)
            self._broker.close(door)
            raise

    async def _start(self, sandbox: Sandbox, door: SessionId, spec: SandboxSpec) -> WaitingAgent:
        directory = f"{sandbox.paths.run}/{_DIRECTORY}"
        paths = replace(agent_paths(sandbox.paths), waiting=directory)
        command = waiting(
            self._adapter.standby(paths),
            paths=paths,
            max_wait_s=self._max_wait_s + SUPERVISOR_SLACK_S,
        )
        await sandbox.write_files({file.path: file.data for file in command.files})
        member = WaitingAgent(
            sandbox=sandbox,
            process=WaitingProcess(await sandbox.spawn(command.argv)),
            directory=directory,
            door=door,
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
        self._broker.close(member.door)

    def _drain(self) -> None:
        while self._waiting:
            self._destroy(self._waiting.pop())


def _without_own(spec: SandboxSpec) -> SandboxSpec:
    """Without what differs from sandbox to sandbox: the place of its door, its labels, how long it has to live."""
    network = spec.network
    if not isinstance(network, ClosedNetwork):
        network = replace(network, endpoint="")
    return replace(spec, network=network, labels={}, lifetime_s=None)
