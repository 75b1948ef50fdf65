"""The start of an agent's process: its command, its files, its supervisor, and what it says until its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentPaths,
    AgentSession,
    AgentTurn,
    TurnMessage,
)
from agent_scripts.errors import AgentError, AgentErrorCode
from agent_scripts.events import TurnFinished
from agent_scripts.supervision import SupervisionLimits, supervised
from app.errors import ErrorCode, OrionError
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.broker_ports import ModelBroker
from app.runs.environment import Additions
from app.runs.policy import RunPolicy
from app.runs.session import session_id_for
from app.runs.tail import AgentTail
from app.runs.waiting import UnfitSandboxError, WaitingAgent, hand_over
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Sandbox
from sandbox_runtime.task_group import together
from sandbox_runtime.types import SandboxLimits

FILE_TIMEOUT_S = 30.0
ALIVE_TIMEOUT_S = 10.0
"""For the first files in a sandbox that was kept."""
SAVING_S = 120.0
"""For what a run does after its agent's end, in the life of its sandbox."""
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
MAX_LINE_BYTES = 4 * 1024 * 1024

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What the operator chose for the agent."""

    system_prompt: str = field(repr=False)
    model: str
    """Of runs that name none."""
    own_key_protocol: str = ""
    """Of the keys that people may give for it; empty = none is of use."""
    needs_own_key: bool = False
    """The operator has given none."""
    max_output_tokens: int
    max_turns: int
    sandbox_limits: SandboxLimits
    extra_arguments: tuple[str, ...] = ()
    mcp_config: bytes = field(default=b"", repr=False)
    vendor_key: str = field(default="", repr=False)
    """Of an agent that asks its maker's servers by itself, which its sandbox then reaches; empty for all others."""
    work_dir: str | None = None
    """A directory of the host's to work in; None = the thread's own files."""
    additions: Additions = field(default_factory=Additions)
    """To its environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStart:
    """One start of an agent's process."""

    paths: AgentPaths
    """With a run directory of its own."""
    token: str = field(repr=False)
    waiting: WaitingAgent | None
    """Who is loaded for it."""
    may_be_gone: bool
    """`Workspace.may_be_gone`."""
    directory: str = ""
    """The thread's repository, to work in; empty = its own files."""
    git_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By which the agent's git reaches that repository."""
    messages: Sequence[TurnMessage] = ()
    """What the agent does not know, the question last."""
    session: AgentSession | None = None


class AgentStarter:
    """Starts the agent's process and follows it; holds nothing of it in between."""

    def __init__(
        self,
        *,
        adapter: AgentAdapter,
        broker: ModelBroker,
        settings: AgentSettings,
        policy: RunPolicy,
    ) -> None:
        self._adapter = adapter
        self._broker = broker
        self._settings = settings
        self._policy = policy

    async def start(
        self,
        attempt: Attempt,
        sandbox: Sandbox,
        start: AgentStart,
        prepare: Callable[[], Coroutine[None, None, None]],
    ) -> TurnFinished:
        """`prepare`: what must be done besides before the agent may begin.

        Raises:
            AgentError: REQUEST_INVALID: the agent cannot be given this turn; nothing was started.
        """
        turn = self._turn(attempt, start)
        try:
            command = self._adapter.command(turn)
        except ValueError as exc:
            raise AgentError(AgentErrorCode.REQUEST_INVALID, str(exc)) from exc
        async with attempt.stop.interrupting(), deadline(attempt):
            argv, _ = await together(
                self._write_script(attempt, sandbox, start, command), prepare()
            )
        return await self.execute(attempt, sandbox, start.paths, argv, start.waiting)

    async def execute(
        self,
        attempt: Attempt,
        sandbox: Sandbox,
        paths: AgentPaths,
        argv: Sequence[str],
        waiting: WaitingAgent | None = None,
    ) -> TurnFinished:
        """Of the files that are there, or of the process that waited; until the agent's end."""
        attempt.enter("Thinking")
        with attempt.trace.step("execute-agent") as step:
            attempt.agent_step = step
            _log.info("agent.started", agent=self._adapter.name, model=self._model(attempt))
            tail = AgentTail(attempt, sandbox, paths, self._adapter.parser())
            attempt.begin_start()
            process = waiting.process if waiting else await sandbox.spawn(argv)
            finished = await tail.run(process)
            attempt.report_cost(finished.cost_usd, is_cut_short=tail.exit_reason != "exited")
            step.set(exit_reason=tail.exit_reason, tool_calls=attempt.tracker.steps)
            if finished.cost_usd is not None:
                step.set(cost_usd=finished.cost_usd)
            if finished.notes:
                step.set(notes="; ".join(finished.notes))
            if finished.error is not None:
                step.fail(finished.error, finished.detail)
            _log.info(
                "agent.finished",
                reason=tail.exit_reason,
                code=finished.error or "",
                duration_s=round(tail.duration_s, 3),
                tool_calls=attempt.tracker.steps,
            )
            return finished

    def _model(self, attempt: Attempt) -> str:
        return attempt.run.model or self._settings.model

    def _turn(self, attempt: Attempt, start: AgentStart) -> AgentTurn:
        endpoint = self._broker.endpoint_for(session_id_for(attempt.run.thread))
        return AgentTurn(
            messages=start.messages,
            system_prompt=self._settings.system_prompt,
            model=self._model(attempt),
            max_output_tokens=self._settings.max_output_tokens,
            max_turns=self._settings.max_turns,
            run_token=start.token,
            model_url=endpoint.model_url.replace("{protocol}", self._adapter.protocol),
            paths=replace(start.paths, work=start.directory or start.paths.work),
            session=start.session,
            extra_arguments=self._settings.extra_arguments,
            mcp_config=self._settings.mcp_config,
            vendor_key=self._settings.vendor_key,
        )

    async def _write_script(
        self, attempt: Attempt, sandbox: Sandbox, start: AgentStart, command: AgentCommand
    ) -> Sequence[str]:
        command = supervised(
            _with_git(command, start.git_environment),
            paths=start.paths,
            broker=sandbox.paths.broker,
            limits=SupervisionLimits(
                timeout_s=attempt.remaining_s(),
                idle_timeout_s=self._policy.idle_timeout_s,
                max_output_bytes=MAX_OUTPUT_BYTES,
                max_line_bytes=MAX_LINE_BYTES,
                max_disk_bytes=self._policy.max_disk_bytes,
                max_processes=self._settings.sandbox_limits.max_processes,
            ),
            cwd=start.directory,
        )
        with attempt.trace.step("write-script") as step:
            files = {file.path: file.data for file in command.files}
            if start.waiting is None:
                await _write(sandbox, files, may_be_gone=start.may_be_gone)
            else:
                lifetime_s = attempt.remaining_s() + SAVING_S
                await hand_over(start.waiting, files, lifetime_s=lifetime_s)
            step.set(files=len(command.files), bytes=sum(len(file.data) for file in command.files))
            if start.session is not None:
                step.set(agent_session="resumed" if start.session.resume else "new")
        return command.argv


def _with_git(command: AgentCommand, environment: Mapping[str, str]) -> AgentCommand:
    return replace(command, env={**command.env, **environment}) if environment else command


async def _write(sandbox: Sandbox, files: Mapping[str, bytes], *, may_be_gone: bool) -> None:
    """Raises: SandboxError, OSError; UnfitSandboxError for one that may be gone, and is."""
    try:
        async with asyncio.timeout(ALIVE_TIMEOUT_S if may_be_gone else FILE_TIMEOUT_S):
            await sandbox.write_files(files)
    except (SandboxError, TimeoutError) as exc:
        if not may_be_gone:
            raise
        raise UnfitSandboxError(str(exc) or f"silent for {ALIVE_TIMEOUT_S:g} s") from exc


@asynccontextmanager
async def deadline(attempt: Attempt) -> AsyncIterator[None]:
    """Raises: OrionError: SANDBOX_TIMEOUT, the attempt's time is over within the block."""
    block = asyncio.timeout(attempt.remaining_s())
    try:
        async with block:
            yield
    except TimeoutError as exc:
        if not block.expired():
            raise
        raise OrionError(
            ErrorCode.SANDBOX_TIMEOUT, "the deadline passed before the agent started"
        ) from exc


async def key_stand_in(sandbox: Sandbox) -> str:
    """The text that the network replaces by the key, if it does it so; see `BrokeredNetwork.headers`."""
    result = await sandbox.exec(["printenv", "ORION_BROKER_KEY"], timeout_s=FILE_TIMEOUT_S)
    return result.text.strip()
