"""The seam every agent implements: pure functions from a turn to a command, and from output lines to events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from agent_scripts.errors import AgentErrorCode
from agent_scripts.events import AgentEvent, TurnFinished


class ModelProtocol(StrEnum):
    """What an agent speaks with its model; the values are part of the broker's paths."""

    ANTHROPIC = "anthropic"
    """The Messages API, below `/v1`."""
    OPENAI = "openai"
    """Responses and Chat Completions, below `/v1`."""
    GEMINI = "gemini"
    """generateContent and its like, below `/v1beta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMessage:
    """One message of the conversation. `user` and `assistant` alternate, `user` comes first."""

    role: Literal["user", "assistant"]
    text: str = field(repr=False)


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
    """How to start the agent.

    In `env` values, and in files that say so, the text `{relay}` stands for the relay's base URL inside the sandbox.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    files: Sequence[AgentFile]
    stdin_path: str | None = None
    """A file of `files` to connect to stdin; None = /dev/null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecipe:
    """What must be in the environment of this agent: queued on `sandbox_runtime.Agent`, prepared once per digest."""

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
    """How the agent's process ended, as the supervisor recorded it."""

    exit_code: int | None
    """None when nobody saw it end (`lost`)."""
    reason: ExitReason
    stderr_tail: str = field(default="", repr=False)
    """Some 64,000 characters at most: warnings of its start are there after long ones, too."""


class EventParser(Protocol):
    """Stateful, one per turn."""

    def feed(self, line: str) -> Sequence[AgentEvent]:
        """Events of one complete stdout line. Unknown and malformed lines give nothing. Never yields TurnFinished."""
        ...

    def finish(self, agent_exit: AgentExit) -> TurnFinished:
        """The outcome, decided from the terminal event AND how the process ended. No terminal event is a failure."""
        ...


class AgentAdapter(Protocol):
    """Pure: no I/O, no network."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> ModelProtocol: ...

    @property
    def default_model(self) -> str: ...

    @property
    def helper_models(self) -> Sequence[str]:
        """Models besides the run's own that the agent may call."""
        ...

    @property
    def has_sessions(self) -> bool:
        """It keeps a memory of the thread in its home, which each turn changes, and finds it again by its session."""
        ...

    @property
    def takes_session_id(self) -> bool:
        """A new session has its caller's id, which is known also when the agent ended before it told it."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """Address space that its runtime reserves, used or not; 0 = hardly more than it uses."""
        ...

    def model_id(self, name: str) -> str:
        """The id that the agent will ask the provider for when it is given this name, which may be an alias."""
        ...

    def environment(self, paths: AgentPaths) -> EnvironmentRecipe: ...

    def command(self, turn: AgentTurn) -> AgentCommand:
        """How to answer this turn.

        Raises:
            ValueError: the session id is none that the agent could have; nothing of it reaches a command line.
        """
        ...

    def standby(self, paths: AgentPaths) -> AgentCommand | None:
        """How to start its process before there is a turn; None = it cannot be.

        Called with `inside.standby.WAIT` behind this argv, it loads what is slow and calls `inside.standby.wait_for_task`;
        the argv of any `command` with these paths begins with this one. Neither secrets nor anything of a user are in it.
        """
        ...

    def parser(self) -> EventParser: ...
