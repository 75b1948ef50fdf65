"""Who runs which agent: the runtimes of providers, the default one and those that are opened when they are asked for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from app.aio import retry_store
from app.errors import ErrorCode, OrionError, mapped_errors
from app.log import get_logger
from app.runs.executor import AgentRunner
from app.runs.files import SHARE_TIMEOUT_S, TREE_TIMEOUT_S
from app.runs.model import Assignment, Run
from app.runs.policy import RunPolicy
from app.runs.repository.checkout import PUBLISH_TIMEOUT_S
from app.runs.repository.preparation import Preparations
from app.runs.selection import Catalog, CatalogAgent, Choice
from app.runs.session import session_id_for
from app.runs.warm_pool import PoolFigures, WarmPool
from app.runs.workspace import SAVE_TIMEOUT_S, Workspaces
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.task_group import TaskGroup

_log = get_logger(__name__)

ENDING_S = PUBLISH_TIMEOUT_S + TREE_TIMEOUT_S + SHARE_TIMEOUT_S + SAVE_TIMEOUT_S
"""What an agent has done may take so long to be brought out of its sandbox."""
OPEN_TIMEOUT_S = 60.0
"""For a provider to be opened, what earlier processes left there removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRuntime:
    """One provider, open, with what runs agents there."""

    name: str
    runner: AgentRunner
    """Of the default agent."""
    runner_of: Callable[[str], AgentRunner] | None = None
    """Of any agent that may be asked for, made on first use; None = there is but the default one."""
    workspaces: Workspaces
    pool: WarmPool
    preparations: Preparations | None = None
    """None = nothing is prepared of repositories; what others have prepared is found."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Owns what waits for runs, and what is prepared for them, for the length of the block; after it, no sandbox is kept."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.pool.open())
            stack.push_async_callback(self.workspaces.close)
            if self.preparations is not None:
                await stack.enter_async_context(self.preparations.open())
            yield


OpenRuntime = Callable[[str], AbstractAsyncContextManager[ProviderRuntime]]
"""By the provider's name; SandboxError when it cannot be used."""
WhyNot = Callable[[str], Awaitable[str]]
"""Returns why no thread can have a provider just now, by its name; empty = it can. Raises: OSError: nobody knows."""


async def always_usable(_name: str) -> str:
    """Is `WhyNot` of one process alone."""
    return ""


@dataclass(slots=True)
class _Other:
    """A runtime besides the default one; each attempt to open it has a task that owns it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    runtime: ProviderRuntime | None = None


class Runners:
    """The default runtime is open as long as this is; the others from their first run on, until `close`."""

    def __init__(
        self,
        default: ProviderRuntime,
        *,
        open_runtime: OpenRuntime,
        policy: RunPolicy,
        group: TaskGroup,
        why_not: WhyNot = always_usable,
    ) -> None:
        """`group` outlives this. `why_not` is asked before each run at another provider than the default one."""
        self._default = default
        self._open_runtime = open_runtime
        self._policy = policy
        self._group = group
        self._why_not = why_not
        self._others: dict[str, _Other] = {}
        self._closing = asyncio.Event()

    def pools(self) -> Sequence[PoolFigures]:
        """Returns the figures of the warm pools of runtimes that are open."""
        runtimes = (self._default, *(other.runtime for other in self._others.values()))
        return [
            runtime.pool.figures
            for runtime in runtimes
            if runtime is not None and runtime.pool.size > 0
        ]

    @property
    def catalog(self) -> Catalog:
        """Returns what may be asked for; the default runtime's agent and provider are among it."""
        default = self._default.runner.assignment
        agents = self._policy.agents
        if default.agent not in agents:
            agents = {default.agent: CatalogAgent(model=default.model)}
        return Catalog(
            agents=agents,
            agent=default.agent,
            sandboxes=self._policy.sandboxes,
            provider=default.provider,
            is_agent_set=self._policy.is_agent_set,
            is_provider_set=self._policy.is_provider_set,
            channels=self._policy.channels,
            rules=self._policy.rules,
        )

    def assign(self, run: Run, choice: Choice) -> Assignment:
        """Returns who answers a run; an attempt after a crash stays what and where it was."""
        catalog = self.catalog
        agent, model, provider = choice.agent.value, choice.model.value, choice.sandbox.value
        if run.provider in (catalog.provider, *catalog.sandboxes.values()):
            provider = run.provider
        if run.agent in catalog.agents and run.model:
            agent, model = run.agent, run.model
        return Assignment(
            provider=provider, agent=agent, model=model, is_chosen=bool(choice.chosen_model)
        )

    async def runner_for(self, run: Run) -> AgentRunner:
        """Returns the runner of the run's agent, at the provider that its record names; its thread's sandboxes at others are let go.

        Raises:
            OrionError: that provider cannot be used.
        """
        runtime = await self._chosen(run.provider)
        with mapped_errors():
            session_id = session_id_for(run.thread)
            for other in (self._default, *(one.runtime for one in self._others.values())):
                if other is not None and other is not runtime:
                    await other.workspaces.end_idle(session_id)
        if runtime.runner_of is not None and run.agent:
            return runtime.runner_of(run.agent)
        return runtime.runner

    async def _chosen(self, name: str) -> ProviderRuntime:
        try:
            return await self._get_for_thread(name)
        except SandboxError as exc:
            told = f"{exc}; name another one with `sandbox=`, or forget a default of yours with `settings reset`"
            raise OrionError(ErrorCode.SANDBOX_CREATION_FAILED, told, is_told=True) from exc

    async def _get_for_thread(self, name: str) -> ProviderRuntime:
        if name in ("", self._default.name):
            return self._default
        if reason := await retry_store(lambda: self._why_not(name)):
            raise SandboxError(SandboxErrorCode.CREATE_FAILED, f"{name} cannot be used: {reason}")
        return await self._get(name)

    async def abandon(self, run: Run) -> None:
        """Sees that nothing of a run goes on that an earlier process began; a failure to is logged."""
        try:
            runtime = await self._get(run.provider)
        except SandboxError as exc:
            _log.warning("sandbox.stop_failed", run_id=run.id, reason=str(exc))
        else:
            await runtime.runner.abandon(run)

    async def open_quietly(self, name: str) -> None:
        """Opens a runtime before its first run, for what was left there; a failure is logged."""
        try:
            await self._get(name)
        except SandboxError as exc:
            _log.warning("sandbox.unusable", provider=name, reason=str(exc))

    def close(self) -> None:
        """Lets go of all runtimes but the default one; their tasks end when their sandboxes have."""
        self._closing.set()

    async def _get(self, name: str) -> ProviderRuntime:
        if name in ("", self._default.name):
            return self._default
        other = self._others.setdefault(name, _Other())
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S), other.lock:
                if other.runtime is None:
                    other.runtime = await self._open(name)
                return other.runtime
        except SandboxError as exc:
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED, f"{name} cannot be used: {exc}"
            ) from exc
        except TimeoutError as exc:
            raise SandboxError(
                SandboxErrorCode.CREATE_FAILED,
                f"{name} cannot be used: not open within {OPEN_TIMEOUT_S:g} s",
            ) from exc

    async def _open(self, name: str) -> ProviderRuntime:
        opened: asyncio.Future[ProviderRuntime] = asyncio.get_running_loop().create_future()
        task = self._group.create_task(self._keep(name, opened), name=f"runtime-{name}")
        try:
            return await opened
        except BaseException:
            task.cancel()
            raise

    async def _keep(self, name: str, opened: asyncio.Future[ProviderRuntime]) -> None:
        """Opens a runtime and owns it: it is closed by the task that opened it."""
        try:
            async with self._open_runtime(name) as runtime:
                opened.set_result(runtime)
                _log.info("sandbox.opened", provider=name)
                await self._closing.wait()
        except Exception as exc:  # handed to who waits for it
            if opened.done():
                raise
            opened.set_exception(exc)
