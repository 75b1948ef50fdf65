"""The starts of an agent's process: its command, its files, its supervisor, and the memory of its thread that is found again."""

import asyncio
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from agent_scripts.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentPaths,
    AgentSession,
    AgentTurn,
    ExitReason,
    TurnMessage,
)
from agent_scripts.events import (
    AgentError,
    AgentErrorCode,
    TurnFinished,
)
from agent_scripts.supervision import (
    SupervisionLimits,
    events_path,
    supervise,
)
from app.errors import ErrorCode, OrionError
from app.log import get_logger
from app.runs.agent_tail import AgentTail
from app.runs.attempt import Attempt, RecalledStart
from app.runs.broker import ModelBroker
from app.runs.environment import SAVING_S, AgentSettings
from app.runs.model import Checkpoint, Run
from app.runs.policy import RunPolicy
from app.runs.sandboxes import agent_paths
from app.runs.session import AgentMemory, session_id_for
from app.runs.warm_pool import UnhealthySandboxError, WaitingAgent, assign_task
from app.runs.workspace import Workspace
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Process, Sandbox
from sandbox_runtime.task_group import together

_log = get_logger(__name__)

FILE_TIMEOUT_S = 30.0
ALIVE_TIMEOUT_S = 10.0
"""For the first files in a sandbox that was kept."""
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
MAX_LINE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStart:
    paths: AgentPaths
    """With a run directory of its own."""
    token: str = field(repr=False)
    waiting: WaitingAgent | None
    """Who is loaded for it."""
    may_be_gone: bool
    """`Workspace.may_be_gone`."""
    directory: str = ""
    """The thread's repository, to work in; empty = its own files."""
    system_prompt: str = field(repr=False)
    git_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By which the agent's git reaches that repository."""
    is_again: bool = False
    """One was started for this turn before, in the same sandbox."""
    messages: Sequence[TurnMessage] = ()
    """What the agent does not know, the question last."""
    session: AgentSession | None = None


class AgentProcess:
    """Starts the process of one agent, and follows it to its end."""

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

    async def prepare(
        self,
        attempt: Attempt,
        sandbox: Sandbox,
        start: AgentStart,
        look: Callable[[], Coroutine[None, None, None]],
    ) -> Sequence[str]:
        """Writes what the process needs, and returns its command. `look`: called beside that, before a first start.

        Raises:
            AgentError: REQUEST_INVALID: the agent cannot be given this turn; nothing was started.
        """
        turn = self._turn(attempt, start)
        try:
            command = self._adapter.command(turn)
        except ValueError as exc:
            raise AgentError(AgentErrorCode.REQUEST_INVALID, str(exc)) from exc
        async with attempt.stop.interrupt_on_stop(), deadline(attempt):
            writing = self._write_script(attempt, sandbox, start, command)
            if start.is_again:
                return await writing
            argv, _ = await together(writing, look())
            return argv

    async def follow(
        self,
        attempt: Attempt,
        sandbox: Sandbox,
        paths: AgentPaths,
        argv: Sequence[str] = (),
        waiting: WaitingAgent | None = None,
    ) -> TurnFinished | None:
        """Starts the process from the files that are there, or takes the one that waited, and follows it to its end; None = to the slice's.

        Without either it follows the one that an earlier slice, or process, has started.
        """
        start: Callable[[], Awaitable[Process]] | None = None
        if argv:
            await attempt.may_act()
            start = partial(_take, waiting) if waiting else partial(sandbox.spawn, argv)
            self._tell_start(attempt)
        if self._adapter.spec.hears_messages:
            attempt.stop.hearing = attempt.run.request
        tail = AgentTail(attempt, sandbox, paths, self._adapter.parser)
        with attempt.trace.step(
            "execute-agent", key=paths.run, started_at=attempt.agent_started_at
        ) as step:
            attempt.agent_step = step
            finished = await tail.run(start)
            if finished is None:
                step.pause()
                return None
            self._tell_end(attempt, finished, tail.exit_reason)
            return finished

    def _tell_start(self, attempt: Attempt) -> None:
        attempt.enter("Thinking")
        attempt.agent_started_at = attempt.time.now
        attempt.event_offset = attempt.traced_seq = 0
        attempt.cost.begin_start()
        _log.info("agent.started", agent=self._adapter.name, model=self.model(attempt))

    def _tell_end(self, attempt: Attempt, finished: TurnFinished, reason: ExitReason) -> None:
        attempt.cost.report(finished.cost_usd, is_cut_short=reason != "exited")
        if (step := attempt.agent_step) is not None:
            step.set(exit_reason=reason, tool_calls=attempt.tracker.steps)
            if finished.cost_usd is not None:
                step.set(cost_usd=finished.cost_usd)
            if finished.notes:
                step.set(notes="; ".join(finished.notes))
            if finished.error is not None:
                step.fail(finished.error, finished.detail)
        started_at = attempt.agent_started_at or attempt.time.started_at
        _log.info(
            "agent.finished",
            reason=reason,
            code=finished.error or "",
            duration_s=round((attempt.time.now - started_at).total_seconds(), 3),
            tool_calls=attempt.tracker.steps,
        )

    def model(self, attempt: Attempt) -> str:
        """Returns the model that a run asks."""
        return attempt.run.model or self._settings.model

    def _turn(self, attempt: Attempt, start: AgentStart) -> AgentTurn:
        endpoint = self._broker.endpoint_for(session_id_for(attempt.run.thread))
        return AgentTurn(
            messages=start.messages,
            system_prompt=start.system_prompt,
            model=self.model(attempt),
            max_output_tokens=self._settings.max_output_tokens,
            max_turns=self._settings.max_turns,
            run_token=start.token,
            model_url=endpoint.url(self._adapter.spec.protocol or "none"),
            paths=replace(start.paths, work=start.directory or start.paths.work),
            session=start.session,
            extra_arguments=self._settings.extra_arguments,
            mcp_config=self._settings.asking_mcp_config
            if attempt.asks_people and endpoint.has_broker
            else self._settings.mcp_config,
            vendor_key=self._settings.vendor_key,
        )

    async def _write_script(
        self, attempt: Attempt, sandbox: Sandbox, start: AgentStart, command: AgentCommand
    ) -> Sequence[str]:
        command = supervise(
            _with_git(command, start.git_environment),
            paths=start.paths,
            broker=sandbox.paths.broker,
            limits=SupervisionLimits(
                timeout_s=attempt.time.longest_s,
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
                lifetime_s = attempt.remaining_s + SAVING_S
                await assign_task(start.waiting, files, lifetime_s=lifetime_s)
            step.set(files=len(command.files), bytes=sum(len(file.data) for file in command.files))
            if start.session is not None:
                step.set(agent_session="resumed" if start.session.resume else "new")
        return command.argv


async def _take(waiting: WaitingAgent) -> Process:
    return waiting.process


def _with_git(command: AgentCommand, environment: Mapping[str, str]) -> AgentCommand:
    return replace(command, env={**command.env, **environment}) if environment else command


async def _write(sandbox: Sandbox, files: Mapping[str, bytes], *, may_be_gone: bool) -> None:
    """Raises: SandboxError, OSError; UnhealthySandboxError for one that may be gone, and is."""
    try:
        async with asyncio.timeout(ALIVE_TIMEOUT_S if may_be_gone else FILE_TIMEOUT_S):
            await sandbox.write_files(files)
    except (SandboxError, TimeoutError) as exc:
        if not may_be_gone:
            raise
        raise UnhealthySandboxError(str(exc) or f"silent for {ALIVE_TIMEOUT_S:g} s") from exc


@asynccontextmanager
async def deadline(attempt: Attempt) -> AsyncIterator[None]:
    """Raises: OrionError: SANDBOX_TIMEOUT, the attempt's time is over within the block."""
    block = asyncio.timeout(attempt.remaining_s)
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
    """Returns the text that the network replaces by the key, if it does so; see `BrokeredNetwork.headers`."""
    result = await sandbox.exec(["printenv", "ORION_BROKER_KEY"], timeout_s=FILE_TIMEOUT_S)
    return result.text.strip()


LOOK_TIMEOUT_S = 10.0
ANEW = "-anew"
"""Ends the run directory of an agent that was started once more within its attempt."""


class Recall:
    """Which starts an agent needs until one has run the turn: with its own memory of the thread, or without.

    An agent that remembers the thread is told what was said since, any other one all of it. Without an id that it could have, it
    continues the newest session of the thread's home, and is told all as well: nobody knows what is in that one. Where its memory
    is lost it is started once more, with the thread's history instead.
    """

    finished: TurnFinished
    """How the turn ended; set when there are no more starts."""

    def __init__(self, attempt: Attempt, workspace: Workspace, adapter: AgentAdapter) -> None:
        self._attempt = attempt
        self._workspace = workspace
        self._adapter = adapter
        self._known = workspace.memory
        self._session: AgentSession | None = None
        """The one that is tried."""
        self._is_last = self.is_over = False
        self._problem: AgentErrorCode | None = None

    def starts(self, start: AgentStart) -> Iterator[AgentStart]:
        """Yields starts, of which each but the last may fail for want of the memory; `take` or `take_refusal` is told how it went before the next."""
        for session in _sessions(self._known) if self._adapter.spec.has_sessions else ():
            self._session, self._problem = session, None
            since_ts = self._known.until_ts if session.id is not None else ""
            messages = self._attempt.conversation.messages(after_ts=since_ts)
            yield replace(start, messages=messages, session=session)
            if self.is_over:
                return
            if self._problem is not AgentErrorCode.REQUEST_INVALID:  # it was started
                start = _anew(start)
                break
        yield from self._last_start(start)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes up how it stood when an earlier slice left the start that is tried."""
        self._is_last = checkpoint.is_last_start
        self._problem = AgentErrorCode(checkpoint.problem) if checkpoint.problem else None
        if self._adapter.spec.has_sessions:
            resume = not checkpoint.is_last_start
            self._session = AgentSession(id=checkpoint.session_id, resume=resume)

    def further_starts(self, start: AgentStart) -> Iterator[AgentStart]:
        """Yields the last start after the one that was restored, which `take` was told of, unless that was the turn."""
        if not self.is_over:
            yield from self._last_start(_anew(start))

    def recalled(self, start: AgentStart) -> RecalledStart:
        """Returns what a later slice must know of the start that is tried."""
        return RecalledStart(
            paths=start.paths,
            is_last=self._is_last,
            session_id=self._session.id if self._session else None,
            problem=self._problem or "",
        )

    def _last_start(self, start: AgentStart) -> Iterator[AgentStart]:
        if self._problem is not None:
            _log.warning("agent.session_lost", agent=self._adapter.name, code=self._problem)
        has_sessions = self._adapter.spec.has_sessions
        self._session = AgentSession(id=str(uuid.uuid4()), resume=False) if has_sessions else None
        self._is_last = True
        messages = self._attempt.conversation.messages()
        yield replace(start, messages=messages, session=self._session)

    def take_refusal(self, error: AgentError) -> None:
        """Notes that the agent cannot be started with what it was given.

        Raises:
            AgentError: nor in any other way.
        """
        if self._is_last:
            raise error
        self._problem = error.code

    def take(self, finished: TurnFinished) -> None:
        """Keeps in the workspace what the agent remembers now, if this was the turn."""
        if self._is_last:
            self._take_last(finished)
        elif _has_no_memory(finished, self._attempt):
            self._problem = finished.error
        else:
            if self._session is not None and self._session.id is None:
                _log.info("agent.session_continued", agent=self._adapter.name)
            remember(self._workspace, self._attempt, finished)
            self.finished, self.is_over = finished, True

    def _take_last(self, finished: TurnFinished) -> None:
        session = self._session
        takes_id = self._adapter.spec.takes_session_id
        if session is not None and takes_id and not finished.agent_session_id:
            # it ended before it told it
            finished = replace(finished, agent_session_id=session.id)
        self._workspace.memory = AgentMemory()
        remember(self._workspace, self._attempt, finished)
        if self._problem is AgentErrorCode.EXECUTION_FAILED and not _has_heard(
            finished, self._attempt
        ):
            self._workspace.memory = self._known  # it fails without, too
        self.finished, self.is_over = finished, True


def _sessions(known: AgentMemory) -> Iterator[AgentSession]:
    """Yields the ways to the memory; the next one is for an agent that cannot be started by the one before."""
    if known.session_id:
        yield AgentSession(id=known.session_id, resume=True)
    if known.session_id or known.is_unnamed:
        yield AgentSession(id=None, resume=True)


def remember(workspace: Workspace, attempt: Attempt, finished: TurnFinished) -> None:
    """Notes what the agent remembers: only a turn in which it did or said something is sure to be in its memory; to be told one twice does no harm."""
    if _has_heard(finished, attempt):
        message_ts = attempt.run.request.message_ts
        workspace.memory = workspace.memory.after(finished, message_ts=message_ts)


def _has_heard(finished: TurnFinished, attempt: Attempt) -> bool:
    return finished.error is None or bool(finished.text) or attempt.tracker.steps > 0


def _has_no_memory(finished: TurnFinished, attempt: Attempt) -> bool:
    """Whether the session is not there; or is damaged, so that the agent failed before it did or said anything."""
    has_failed_at_once = (
        finished.error is AgentErrorCode.EXECUTION_FAILED
        and not _has_heard(finished, attempt)
        and attempt.stop.user is None
    )
    return has_failed_at_once or finished.error is AgentErrorCode.SESSION_NOT_FOUND


def _anew(start: AgentStart) -> AgentStart:
    """Returns the same start for a sandbox in which one was started already."""
    paths = replace(start.paths, run=f"{start.paths.run}{ANEW}", waiting="")
    return replace(start, paths=paths, waiting=None, may_be_gone=False, is_again=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAgent:
    paths: AgentPaths
    repository: str
    """Of the file watch."""


def run_directory(paths: AgentPaths, run: Run, *, attempt: int) -> str:
    """Returns the directory of an attempt, each its own: the sandbox may have served earlier ones."""
    return f"{paths.run}/{run.id}-{attempt}"


def start_paths(attempt: Attempt, sandbox: Sandbox) -> AgentPaths:
    """Returns the paths of an attempt's start in its sandbox."""
    paths = agent_paths(sandbox.paths)
    run = attempt.run
    return replace(paths, run=run_directory(paths, run, attempt=run.attempt))


def repository_in(directory: str) -> str:
    """Returns where the file watch of an attempt keeps its trees."""
    return f"{directory}/changes.git"


async def find_running_agent(sandbox: Sandbox, paths: AgentPaths, run: Run) -> RunningAgent | None:
    """Returns the agent that was started last for this run; None when none was.

    Raises:
        SandboxError: UNAVAILABLE, EXEC_TIMEOUT.
    """
    for attempt in range(run.attempt - 1, 0, -1):
        directory = run_directory(paths, run, attempt=attempt)
        for start in (f"{directory}{ANEW}", directory):
            started = replace(paths, run=start)
            test = ["test", "-s", events_path(started)]
            if (await sandbox.exec(test, timeout_s=LOOK_TIMEOUT_S)).exit_code == 0:
                return RunningAgent(paths=started, repository=repository_in(directory))
    return None
