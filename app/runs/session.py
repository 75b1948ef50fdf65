"""What a thread has from run to run, and where its agents work; pure, but for `new_name`."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, NewType, Protocol, TypedDict

from typing_extensions import Unpack

from agent_scripts.events import TurnFinished
from app.runs.history import ts_key
from app.runs.request import Thread


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMemory:
    """Describes what an agent remembers of a thread; it lies among the thread's files, and is worth no more than those that were saved."""

    session_id: str = ""
    """By which the agent finds it; empty = there is none, or it told no id that it could have."""
    until_ts: str = ""
    """Of the newest question that is in it; what was said since is not. Empty = nobody knows, so all may be missing."""

    @property
    def is_unnamed(self) -> bool:
        """Whether there is one in which only the agent's own "continue the newest" finds the way."""
        return bool(self.until_ts) and not self.session_id

    def after(self, finished: TurnFinished, *, message_ts: str) -> "AgentMemory":
        """Returns it once it holds the turn of that question, too. A session of another id is a new one: it was told what came before."""
        told = finished.agent_session_id or self.session_id
        # A question that is tried again may be older than others that were answered since.
        is_older = told == self.session_id and ts_key(message_ts) < ts_key(self.until_ts)
        return AgentMemory(session_id=told, until_ts=self.until_ts if is_older else message_ts)


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
    """Holds what a thread has from run to run. Names that a provider does not use stay empty."""

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
    """Where its sandboxes are, in the provider's own word."""
    mount_dir: str = ""
    """A directory of the developer's that is the workspace, instead of a saved one."""
    sandbox_id: str = ""
    """While it is kept."""
    container_name: str = ""
    snapshot_slug: str = ""
    """Provider's id of what the last run saved; empty = nothing yet."""
    agent_session_id: str = ""
    """By which the agent finds its own memory among the saved files; empty = it has none, or told no id for it."""
    heard_until: str = ""
    """ts of the newest question in that memory; empty = nobody knows."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Provider to snapshot: what its thread left at the providers that it had before."""
    detached: str = ""
    """The environment of a sandbox that a person left running for the next run; empty when there is none."""
    base_branch: str = ""
    """From which the clone of its repository began; empty = that had none, or there is no clone."""
    chosen_model: str = ""
    """Of its agent, for its latest run, by a person or for a channel; empty = nobody chose one."""
    kept_by: str = ""
    """The name of the process that keeps its sandbox for the thread's next run, and ends it in time; empty = it is not kept."""
    kept_until: datetime | None = None
    kept_environment: str = ""
    """Of the sandbox that is kept; empty = unknown."""

    @property
    def snapshots(self) -> Mapping[str, str]:
        """Returns provider to snapshot: what is saved of it, also at the providers that its thread had before."""
        here = {self.provider: self.snapshot_slug} if self.snapshot_slug else {}
        return {**self.elsewhere, **here}

    def moved_to(self, provider: str) -> "Session":
        """Returns the same at another provider, where its thread begins anew: what it left is removed with it, not before."""
        return replace(
            self.without_memory(),
            provider=provider,
            sandbox_id="",
            container_name="",
            snapshot_slug="",
            elsewhere=self.snapshots,
            kept_by="",
            kept_until=None,
            kept_environment="",
        )

    def without_memory(self) -> "Session":
        """Returns the same for an agent that was not in it yet."""
        return replace(self, agent_session_id="", heard_until="")

    @property
    def memory(self) -> AgentMemory:
        return AgentMemory(session_id=self.agent_session_id, until_ts=self.heard_until)

    @property
    def detached_environment(self) -> str:
        """Returns the environment of a sandbox that was left running for the next run; empty when there is none."""
        return self.detached if self.sandbox_id else ""


def session_id_for(thread: Thread) -> SessionId:
    """Returns the id of a thread's one session."""
    return SessionId(f"ses_{hashlib.sha256(thread.key.encode()).hexdigest()[:16]}")


class SessionChanges(TypedDict, total=False):
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
    snapshot_slug: str
    agent_session_id: str
    heard_until: str
    elsewhere: Mapping[str, str]
    detached: str
    base_branch: str
    chosen_model: str
    kept_by: str
    kept_until: datetime | None
    kept_environment: str


NOT_KEPT = SessionChanges(kept_by="", kept_until=None, kept_environment="")
GONE = SessionChanges(status=SessionStatus.STOPPED, sandbox_id="", container_name="") | NOT_KEPT
"""What changes when its sandbox was ended."""


class NameTakenError(Exception):
    """Another session has that name."""


class SessionStore(Protocol):
    """Session records. Every method is durable when it returns and safe to repeat."""

    async def add(self, session: Session) -> Session:
        """Inserts it, or gives back the record of that id untouched.

        Raises:
            NameTakenError
        """
        ...

    async def get(self, session_id: SessionId) -> Session | None: ...

    async def update(
        self, session_id: SessionId, **changes: Unpack[SessionChanges]
    ) -> Session | None:
        """Changes fields; returns None when there is no such session (any more)."""
        ...

    async def take_kept(self, session_id: SessionId, *, by: str) -> bool:
        """Ends the keeping of its sandbox by that process; False = that one keeps it no more. Of several who try, one succeeds."""
        ...

    async def find(self, text: str) -> Sequence[Session]:
        """Returns the session of exactly that name, else those whose id begins with the text; at most 10."""
        ...

    async def all(self) -> Sequence[Session]:
        """Returns the latest used first."""
        ...

    async def unused_since(self, before: datetime, *, limit: int) -> Sequence[Session]:
        """Returns those last used before then, oldest first."""
        ...

    async def remove(self, session_id: SessionId) -> None:
        """Removes it; unknown ids are fine."""
        ...


class ThreadStore(Protocol):
    """What is known of threads. Every method is durable when it returns and safe to repeat."""

    async def has_run(self, thread: Thread) -> bool:
        """Whether there is a run in it, ended ones included; by an index."""
        ...

    async def mute(self, thread: Thread, *, user: str, ts: str, is_muted: bool) -> bool:
        """Records whether it is muted, by the message `ts`; False when that one, or a later one, has been heard."""
        ...

    async def is_muted(self, thread: Thread) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Where agents work."""

    directory: Path
    is_overlay: bool
    """They get a copy of it, made when their thread begins; False: they work in it."""

    @property
    def sentence(self) -> str:
        if self.is_overlay:
            return f"agents get a copy of {self.directory}, and what they change is told as a patch"
        return f"agents work in {self.directory} itself: what they change or delete there is changed or deleted"


def find_mount_refusal(directory: Path, *, home: Path, state_dir: Path) -> str:
    """Returns why no agent may work in a directory; empty when one may. All paths are resolved."""
    if not directory.is_dir():
        return f"there is no directory {directory}"
    if directory == Path(directory.anchor):
        return "the whole machine is no work directory; name a directory of one project"
    if home.is_relative_to(directory):
        return f"{directory} holds your home directory, with all that is private in it; name a directory of one project"
    if directory.is_relative_to(state_dir) or state_dir.is_relative_to(directory):
        return f"{directory} and Orion's own state ({state_dir}) must not hold each other"
    return ""


_UNWANTED: Final = """
aboriginal aggressive alluring ape arrogant baboon bald beaver berserk black blond boar bonobo boobook booby brown bug
bull bustard capuchin chicken chimpanzee chubby cockatoo cockatrice cockle cocky cougar cow crazy crow cuckoo curvy daft
demonic devious devout dodo donkey ebony fanatic fat furious gay gibbon ginger girlish godlike gorilla greedy hairy
hallowed heretic hippo hog horned hot hulking hysterical illegal imperial ivory jackal juicy kickass leech lemming
liberal loose loutish lumpy macaque macho mandrill manipulative marmoset married meek military mole mongrel monkey mule
mutant native naughty nuthatch obedient orangutan orthodox pig pink primitive private provocative psychedelic pygmy
radical rampant rat rebel red righteous rough serpent sexy shrew skinny skunk sloppy sloth slug snake snobbish sponge
stallion straight swallow swine tan termite thick turkey uber unnatural uncovered vengeful venomous viper vulture weasel
whale white woodoo woodpecker worm yellow
"""
UNWANTED_WORDS: Final = frozenset(_UNWANTED.split())
"""Of coolname's, words that nobody wants in a branch or a pull request of their company, alone or beside another."""


def new_name() -> str:
    """Returns a random name for a session: two words, one of some 290,000; another session may have it."""
    from coolname import generate_slug  # noqa: PLC0415 - reads its word lists

    while not UNWANTED_WORDS.isdisjoint((name := str(generate_slug(2))).split("-")):
        pass
    return name
