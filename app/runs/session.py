"""What the runs of one thread share: a sandbox while it is kept, the files it saved, the agent's own memory."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType, Protocol, TypedDict

from typing_extensions import Unpack

from app.runs.memory import AgentMemory
from app.runs.model import Thread

SessionId = NewType("SessionId", str)


class SessionStatus(StrEnum):
    RUNNING = "running"
    """It has a sandbox: a run is going, or the last one's is kept."""
    STOPPED = "stopped"
    """No sandbox; the next run starts from what was saved."""
    EXITED = "exited"
    """Its sandbox ended by itself; `exit_code` says how, where the provider knows."""
    UNKNOWN = "unknown"
    """Its provider could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Names that a provider does not use stay empty."""

    id: SessionId
    name: str
    """For people: two words, unique among all sessions of the store."""
    thread: Thread
    provider: str
    status: SessionStatus = SessionStatus.RUNNING
    exit_code: int | None = None
    agent: str = ""
    model: str = ""
    prompt: str = field(default="", repr=False)
    """The first question, masked, its first 200 characters."""
    branch: str = ""
    repo: str = ""
    created_at: datetime
    used_at: datetime
    """Begin or end of the latest run."""
    region: str = ""
    mount_dir: str = ""
    """A directory of the developer's that is the workspace, instead of a saved one."""
    sandbox_id: str = ""
    """While it is kept."""
    container_name: str = ""
    volume_slug: str = ""
    snapshot_slug: str = ""
    """Provider's id of what the last run saved; empty = nothing yet."""
    agent_session_id: str = ""
    """By which the agent finds its own memory among the saved files; empty = it has none, or told no id for it."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def snapshots(self) -> Mapping[str, str]:
        """Provider to snapshot: what is saved of it, also at the providers that its thread had before."""
        here = {self.provider: self.snapshot_slug} if self.snapshot_slug else {}
        return {**self.extra.get(_ELSEWHERE, {}), **here}

    def moved_to(self, provider: str) -> "Session":
        """The same at another provider, where its thread begins anew: what it left is removed with it, not before."""
        unknowing = self.without_memory()
        return replace(
            unknowing,
            provider=provider,
            sandbox_id="",
            container_name="",
            snapshot_slug="",
            extra={**unknowing.extra, _ELSEWHERE: self.snapshots},
        )

    def without_memory(self) -> "Session":
        """The same for an agent that was not in it yet."""
        extra = {key: value for key, value in self.extra.items() if key != _HEARD}
        return replace(self, agent_session_id="", extra=extra)

    @property
    def base_branch(self) -> str:
        """From which the clone of its repository began; empty = that had none, or there is no clone."""
        return str(self.extra.get(_BASE_BRANCH, ""))

    def with_base_branch(self, name: str) -> Mapping[str, Any]:
        """`extra` with it."""
        return {**self.extra, _BASE_BRANCH: name}

    @property
    def chosen_model(self) -> str:
        """Of its agent, for its latest run, by a person or for a channel; empty = nobody chose one."""
        return str(self.extra.get(_CHOSEN_MODEL, ""))

    def begun(self, *, chosen_model: str) -> Mapping[str, Any]:
        """`extra` when a run begins, with that model; the sandbox is no longer a person's."""
        return {**self.with_detached(""), _CHOSEN_MODEL: chosen_model}

    @property
    def memory(self) -> AgentMemory:
        """What the agent remembers that is among the saved files."""
        heard = self.extra.get(_HEARD, {})
        is_its = heard.get("session") == self.agent_session_id
        return AgentMemory(
            session_id=self.agent_session_id, until_ts=str(heard["until"]) if is_its else ""
        )

    def with_memory(self, memory: AgentMemory) -> "SessionChanges":
        """What changes when that is saved."""
        heard = {"session": memory.session_id, "until": memory.until_ts}
        return SessionChanges(
            agent_session_id=memory.session_id, extra={**self.extra, _HEARD: heard}
        )

    @property
    def kept_environment(self) -> str:
        """The environment of a sandbox that was left running for the next run; empty when there is none."""
        return str(self.extra.get(_DETACHED, "")) if self.sandbox_id else ""

    def with_detached(self, environment_id: str) -> Mapping[str, Any]:
        """`extra` with that sandbox's environment; empty = it has none (any more)."""
        return {**self.extra, _DETACHED: environment_id}


_ELSEWHERE = "elsewhere"
_DETACHED = "detached"
_BASE_BRANCH = "base_branch"
_CHOSEN_MODEL = "chosen_model"
_HEARD = "heard"


def session_id_for(thread: Thread) -> SessionId:
    """One thread has one session."""
    return SessionId(f"ses_{hashlib.sha256(thread.key.encode()).hexdigest()[:16]}")


class SessionChanges(TypedDict, total=False):
    """Fields of a session that may change."""

    provider: str
    status: SessionStatus
    exit_code: int | None
    agent: str
    model: str
    branch: str
    repo: str
    used_at: datetime
    region: str
    mount_dir: str
    sandbox_id: str
    container_name: str
    volume_slug: str
    snapshot_slug: str
    agent_session_id: str
    extra: Mapping[str, Any]


GONE = SessionChanges(status=SessionStatus.STOPPED, sandbox_id="", container_name="")
"""What changes when its sandbox was ended."""


class NameTakenError(Exception):
    """Another session has that name."""


class SessionStore(Protocol):
    """Session records. Every method is durable when it returns and safe to repeat."""

    async def add(self, session: Session) -> Session:
        """Insert it, or give back the record of that id untouched.

        Raises:
            NameTakenError
        """
        ...

    async def get(self, session_id: SessionId) -> Session | None: ...

    async def update(
        self, session_id: SessionId, **changes: Unpack[SessionChanges]
    ) -> Session | None:
        """Change fields; None when there is no such session (any more)."""
        ...

    async def find(self, text: str) -> Sequence[Session]:
        """The session of exactly that name, else those whose id begins with the text; at most 10."""
        ...

    async def all(self) -> Sequence[Session]:
        """Latest used first."""
        ...

    async def unused_since(self, before: datetime, *, limit: int) -> Sequence[Session]:
        """Those last used before then, oldest first."""
        ...

    async def remove(self, session_id: SessionId) -> None:
        """Unknown ids are fine."""
        ...
