"""The seam every agent implements: pure functions from a turn to a command, and from output lines to events."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from agent_scripts.events import AgentErrorCode, AgentEvent, TurnFinished


class ModelProtocol(StrEnum):
    """Names the API that an agent speaks with its model; the values are part of the broker's paths."""

    ANTHROPIC = "anthropic"
    """The Messages API, below `/v1`."""
    OPENAI = "openai"
    """Responses and Chat Completions, below `/v1`."""
    GEMINI = "gemini"
    """generateContent and its like, below `/v1beta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """Describes an agent without its adapter; importing one costs next to nothing."""

    name: str
    adapter: str = ""
    """Where its class is, as `module:Class`; empty for one that is not in the registry."""
    title: str = ""
    """What operators read behind its name, such as `Claude Code`; empty = the name says it."""
    protocol: ModelProtocol | None
    """What it speaks with its model; None = it asks its maker's own servers, past the broker."""
    default_model: str
    helper_models: tuple[str, ...] = ()
    """Models besides the run's own that it may call."""
    has_sessions: bool = True
    """It keeps a memory of the thread in its home, which each turn changes, and finds it again by its session."""
    takes_session_id: bool = False
    """A new session has its caller's id, which is known also when the agent ended before it told it."""
    takes_mcp_servers: bool = True
    """It uses those of `AgentTurn.mcp_config`."""
    hears_messages: bool = False
    """It takes further messages while it works, between two steps; see `supervision.told_path`."""
    reserved_bytes: int = 0
    """Address space that its runtime reserves, used or not; 0 = hardly more than it uses."""
    is_ambiguous: bool = False
    """Developers also write its name when they mean none: a cursor in a list, Anthropic's SDK."""
    own_key: str = ""
    """The setting with its key at its maker, such as `CURSOR_API_KEY`, for an agent without a protocol."""
    own_key_form: str = ""
    """How such keys begin, as a pattern: another setting's value that looks so is in the wrong place."""
    other_words: tuple[str, ...] = ()
    """As near to its name as a misspelt one, but people write them for what they mean; lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnImage:
    """A picture that came with a message, for agents that show them to their model; the others find the file."""

    path: str
    """Inside the sandbox; absolute."""
    media_type: str
    """`image/png`, `image/jpeg`, `image/gif` or `image/webp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMessage:
    """One message of the conversation. `user` and `assistant` alternate, `user` comes first."""

    role: Literal["user", "assistant"]
    text: str = field(repr=False)
    images: tuple[TurnImage, ...] = ()
    """Its text names them, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPaths:
    """Where things are inside the sandbox; absolute."""

    work: str
    home: str
    run: str
    environment: str
    waiting: str = ""
    """Directory of a supervisor that waits for this start, with all scripts in it; empty = none does: the start brings its
    own, in `run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSession:
    """The agent's own memory of a thread, which it keeps in its home. An adapter without sessions ignores it."""

    id: str | None
    """For a new session made by the caller, in the agent's own form (a UUID for `claude`); then as the agent told it. None, to
    resume the newest one of its home."""
    resume: bool
    """False: begin it. True: it is in this sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """One user message with all the agent needs to answer it."""

    messages: Sequence[TurnMessage]
    """What the agent does not know: the history, or what was said since its session's last turn, and, last, the user's message."""
    system_prompt: str = field(repr=False)
    model: str
    max_output_tokens: int
    max_turns: int
    """Model calls at the most."""
    run_token: str = field(repr=False)
    """Stands where the provider's key would; only the broker accepts it."""
    model_url: str = "{relay}/broker/anthropic"
    """Base URL of the API that the adapter's protocol names, without its version; `{relay}` is replaced in the sandbox."""
    paths: AgentPaths
    session: AgentSession | None = None
    """None = the agent keeps nothing that the caller wants to come back to."""
    extra_arguments: Sequence[str] = ()
    """The operator's own, put behind all others on the command line of a CLI."""
    mcp_config: bytes = field(default=b"", repr=False)
    """The operator's MCP servers, as the JSON file that the agent reads; empty = none."""
    vendor_key: str = field(default="", repr=False)
    """The agent's own real key, for one that no broker can stand before (`cursor`), and only where the operator allows that it
    is in the sandbox; empty for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """A file to write into the sandbox before the start."""

    path: str
    data: bytes = field(repr=False)
    names_relay: bool = False
    """It is UTF-8, and `{relay}` stands in it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """Says how to start the agent.

    In `env` values, and in files that say so, the text `{relay}` stands for the relay's base URL inside the sandbox.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    files: Sequence[AgentFile]
    stdin_path: str | None = None
    """A file of `files` to connect to stdin; None = /dev/null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecipe:
    """Lists what must be in the environment of an agent: queued on `sandbox_runtime.Agent`, prepared once per digest."""

    name: str
    """Agent and digest of everything in here: `anthropic-3f2a9c…`; changes when a pin changes."""
    files: Sequence[AgentFile]
    commands: Sequence[Sequence[str]]
    """Run in order with the open network and no key; a non-zero exit fails the preparation."""
    product: str = ""
    """What is pinned, and its version: `@openai/codex 0.169.0`; empty = whatever its maker gives out."""


ExitReason = Literal[
    "exited", "timeout", "idle", "output_limit", "disk_limit", "process_limit", "stopped", "lost"
]

ENDED_BY_US: Mapping[ExitReason, AgentErrorCode] = {
    "timeout": AgentErrorCode.TIMEOUT,
    "idle": AgentErrorCode.IDLE,
    "output_limit": AgentErrorCode.OUTPUT_LIMIT,
    "disk_limit": AgentErrorCode.DISK_LIMIT,
    "process_limit": AgentErrorCode.PROCESS_LIMIT,
    # The two that the caller knows better than any agent: it shows "stopped" or a lost sandbox itself.
    "stopped": AgentErrorCode.EXECUTION_FAILED,
    "lost": AgentErrorCode.EXECUTION_FAILED,
}
"""What the outcome is when the agent did not end by itself, whatever it said."""


IDLE_NOTE = "After this answer the agent said no more, and was ended at the idle limit."
UNENDED_NOTE = "The agent did not end by itself: after this text it said no more, and was ended at the idle limit. There may be more to say."
"""As the other one, where it had not said either that its turn was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExit:
    """Says how the agent's process ended, as the supervisor recorded it."""

    exit_code: int | None
    """None when nobody saw it end (`lost`)."""
    reason: ExitReason
    stderr_tail: str = field(default="", repr=False)
    """Some 64,000 characters at most: warnings of its start are there after long ones, too."""


class EventParser(Protocol):
    """Stateful, one per turn."""

    def feed(self, line: str) -> Sequence[AgentEvent]:
        """Returns the events of one complete stdout line, never TurnFinished. Unknown and malformed lines give none."""
        ...

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        """Returns the outcome, decided from the terminal event AND how the process ended. No terminal event is a failure."""
        ...


class AgentAdapter(ABC):
    """One agent. Pure: no I/O, no network."""

    spec: AgentSpec

    @property
    def name(self) -> str:
        return self.spec.name

    def model_id(self, name: str) -> str:
        """Returns the id that the agent will ask the provider for when it is given this name, which may be an alias."""
        return name

    @abstractmethod
    def environment(self, paths: AgentPaths) -> EnvironmentRecipe:
        """Returns what must be prepared before the agent can start."""

    @abstractmethod
    def command(self, turn: AgentTurn) -> AgentCommand:
        """Returns how to answer this turn.

        Raises:
            ValueError: the session id is none that the agent could have; nothing of it reaches a command line.
        """

    def preload(self, paths: AgentPaths) -> AgentCommand | None:
        """Returns how to start the process before there is a turn; None = it has no way to be told its task later.

        Called with `inside.preload.WAIT` behind this argv, it loads what is slow and calls `inside.preload.wait_for_task`;
        the argv of any `command` with these paths begins with this one. Neither secrets nor anything of a user are in it.
        """
        del paths
        return None

    @abstractmethod
    def parser(self) -> EventParser:
        """Returns what reads the output of one turn."""
