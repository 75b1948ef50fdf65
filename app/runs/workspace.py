"""A thread's files in the sandbox of one run, and how they are saved."""

import asyncio
from dataclasses import dataclass

from app.log import get_logger
from app.runs.attempt import Attempt
from app.runs.memory import AgentMemory
from app.runs.session import Session, SessionChanges, SessionStatus
from app.runs.waiting import WaitingAgent
from sandbox_runtime.errors import SandboxError
from sandbox_runtime.provider import Sandbox, SandboxProvider
from sandbox_runtime.types import Capability

SAVE_TIMEOUT_S = 120.0
UNSAVED = (
    "I could not save the files of this answer: they may be missing when you ask for more here."
)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """Who works in a sandbox."""

    agent: str
    model: str


@dataclass(slots=True, kw_only=True)
class Workspace:
    """A thread's files in a sandbox, for one run. The fields that the run may set decide what becomes of them."""

    session: Session
    sandbox: Sandbox
    is_new: bool
    """It begins empty."""
    is_usable: bool = True
    """False = it is destroyed after the run, unsaved."""
    has_changed: bool = True
    """False = there is nothing to save that was not saved before."""
    memory: AgentMemory
    """The agent's own, among these files."""
    waiting: WaitingAgent | None = None
    """Whom the sandbox has loaded already."""
    may_be_gone: bool = False
    """It was kept since the thread's run before, and nobody has asked it whether it lives."""

    @property
    def is_empty(self) -> bool:
        """At the beginning there is no file in the work directory."""
        return self.is_new and not self.session.mount_dir


async def save(attempt: Attempt, workspace: Workspace, provider: SandboxProvider) -> str | None:
    """The slug of what the next run shall find, if there is anything new.

    A failure to save costs this run's files, and what the agent remembers of it, not its answer.
    """
    session = workspace.session
    if not workspace.has_changed or Capability.SNAPSHOT not in provider.capabilities:
        return None
    with attempt.trace.step("workspace-save") as step:
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                ref = await workspace.sandbox.snapshot(name=f"session-{session.id}")
        except (SandboxError, OSError, TimeoutError) as exc:
            step.fail("save_failed", str(exc))
            _log.warning("sandbox.save_failed", sandbox_id=workspace.sandbox.id, reason=str(exc))
            workspace.memory = session.memory
            if attempt.tracker.steps:
                attempt.notes.append(UNSAVED)
            return None
        step.set(snapshot=ref.id)
        return ref.id


def having(sandbox: Sandbox) -> SessionChanges:
    """What a session whose thread's sandbox lives says of it."""
    return SessionChanges(
        status=SessionStatus.RUNNING,
        sandbox_id=sandbox.id,
        container_name=sandbox.container_name,
    )
