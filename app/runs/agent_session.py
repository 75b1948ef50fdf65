"""What is found again in a thread's sandbox: the agent's own memory of the thread, and an agent that an earlier process started."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_scripts.adapter import AgentAdapter, AgentPaths, AgentSession
from agent_scripts.events import AgentError, AgentErrorCode, TurnFinished
from agent_scripts.supervision import events_path
from app.log import get_logger
from app.runs.agent_process import AgentStart
from app.runs.attempt import Attempt, RecalledStart
from app.runs.model import Checkpoint, Run
from app.runs.session import AgentMemory
from app.runs.workspace import Workspace
from sandbox_runtime.provider import Sandbox

LOOK_TIMEOUT_S = 10.0
ANEW = "-anew"
"""Ends the run directory of an agent that was started once more within its attempt."""

_log = get_logger(__name__)


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
