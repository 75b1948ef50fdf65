"""The start of an agent with its own memory of the thread; where that is lost, with the thread's history instead."""

import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace

from agent_scripts.adapter import AgentAdapter, AgentSession
from agent_scripts.errors import AgentError, AgentErrorCode
from agent_scripts.events import TurnFinished
from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.memory import AgentMemory
from app.runs.resumption import ANEW
from app.runs.starting import AgentStart, AgentStarter
from app.runs.workspace import Workspace

_log = get_logger(__name__)


async def start_with_memory(
    starter: AgentStarter,
    attempt: Attempt,
    workspace: Workspace,
    start: AgentStart,
    look: Callable[[], Coroutine[None, None, None]],
    *,
    adapter: AgentAdapter,
) -> TurnFinished:
    """Run the turn to its end, and keep in the workspace what the agent remembers then; `look` is called before it begins.

    An agent that remembers the thread is told what was said since, any other one all of it. Without an id that it could have, it
    continues the newest session of the thread's home, and is told all as well: nobody knows what is in that one.

    Raises:
        AgentError: REQUEST_INVALID: it cannot be given this turn.
    """
    known, sandbox = workspace.memory, workspace.sandbox
    problem = None
    for known_session in _sessions(known) if adapter.has_sessions else ():
        since_ts = known.until_ts if known_session.id is not None else ""
        messages = attempt.conversation.messages(after_ts=since_ts)
        resumed = replace(start, messages=messages, session=known_session)
        try:
            finished = await starter.start(attempt, sandbox, resumed, look)
        except AgentError as exc:  # nothing was started
            problem = exc.code
            continue
        if not _has_no_memory(finished, attempt):
            if known_session.id is None:
                _log.info("agent.session_continued", agent=adapter.name)
            remember(workspace, attempt, finished)
            return finished
        problem, look, start = finished.error, _nothing, _anew(start)
        break
    if problem is not None:
        _log.warning("agent.session_lost", agent=adapter.name, code=problem)
    session = AgentSession(id=str(uuid.uuid4()), resume=False) if adapter.has_sessions else None
    start = replace(start, messages=attempt.conversation.messages(), session=session)
    finished = await starter.start(attempt, sandbox, start, look)
    if session is not None and adapter.takes_session_id and not finished.agent_session_id:
        finished = replace(finished, agent_session_id=session.id)  # it ended before it told it
    workspace.memory = AgentMemory()
    remember(workspace, attempt, finished)
    if problem is AgentErrorCode.EXECUTION_FAILED and not _has_heard(finished, attempt):
        workspace.memory = known  # it fails without, too
    return finished


def _sessions(known: AgentMemory) -> Iterator[AgentSession]:
    """The ways to it; the next one where the agent cannot be started by one."""
    if known.session_id:
        yield AgentSession(id=known.session_id, resume=True)
    if known.session_id or known.is_unnamed:
        yield AgentSession(id=None, resume=True)


def remember(workspace: Workspace, attempt: Attempt, finished: TurnFinished) -> None:
    """Only a turn in which the agent did or said something is sure to be in its memory; to be told one twice does no harm."""
    if _has_heard(finished, attempt):
        message_ts = attempt.run.request.message_ts
        workspace.memory = workspace.memory.after(finished, message_ts=message_ts)


def _has_heard(finished: TurnFinished, attempt: Attempt) -> bool:
    return finished.error is None or bool(finished.text) or attempt.tracker.steps > 0


def _has_no_memory(finished: TurnFinished, attempt: Attempt) -> bool:
    """Its session is not there; or is damaged, so that it failed before it did or said anything."""
    has_failed_at_once = (
        finished.error is AgentErrorCode.EXECUTION_FAILED
        and not _has_heard(finished, attempt)
        and attempt.stop.user is None
    )
    return has_failed_at_once or finished.error is AgentErrorCode.SESSION_NOT_FOUND


def _anew(start: AgentStart) -> AgentStart:
    """The same in the same sandbox, in which one was started already."""
    paths = replace(start.paths, run=f"{start.paths.run}{ANEW}", waiting="")
    return replace(start, paths=paths, waiting=None, may_be_gone=False)


async def _nothing() -> None:
    pass
