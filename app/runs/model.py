"""The values of the core: what was asked, where it stands, how it ended."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, NewType

from pydantic import BaseModel, ConfigDict

from app.errors import ErrorCode
from app.runs.options import Options, parse_options

RunId = NewType("RunId", str)

WIRE_VERSION: Final = 1


class Surface(StrEnum):
    """Where in Slack a person asked."""

    CHANNEL = "channel"
    DM = "dm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A Slack thread. `thread_ts` is the root message's ts (the message's own ts when it starts a thread)."""

    team: str
    channel: str
    thread_ts: str

    @property
    def key(self) -> str:
        """Runs of one thread share it: order, history and session hang on it."""
        return f"{self.team}-{self.channel}-{self.thread_ts}"


class RunRequest(BaseModel):
    """What a person asked; the wire form that travels through the engine. Unknown versions are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = WIRE_VERSION
    run_id: RunId
    team: str
    channel: str
    thread_ts: str
    message_ts: str
    """Slack ts: a string with six decimals, unique in its channel; never parsed to a float."""
    user: str
    text: str
    """As the person meant it: bot mention removed, Slack's escapes undone."""
    surface: Surface
    file_names: tuple[str, ...] = ()
    is_external: bool = False
    """The author belongs to another company (Slack Connect)."""
    event_id: str = ""
    retry_of: RunId | None = None
    """The failed run whose turn this one tries again, at the wish of `user`."""
    received_at: datetime

    @property
    def options(self) -> Options:
        """What the text says of the run, and the rest of it."""
        return parse_options(self.text)

    @property
    def thread(self) -> Thread:
        return Thread(team=self.team, channel=self.channel, thread_ts=self.thread_ts)

    @property
    def order(self) -> int:
        """Rises with the message's time; a 31-bit number (the engine's priority) of tenths of a second.

        Counted from 2026-01-01T00:00:00Z, so it lasts until 2032; earlier messages count as 1.
        """
        seconds, _, fraction = self.message_ts.partition(".")
        tenths = int(seconds) * 10 + int((fraction or "0")[0]) - ORDER_EPOCH_S * 10
        return min(max(tenths, 1), MAX_ORDER)

    @property
    def order_in_thread(self) -> int:
        """Rises with the message's time within its thread; a 31-bit number too.

        Milliseconds since the thread's root for twelve days, tenths of a second for three years after that: two people
        who write within the same tenth are still answered in turn.
        """
        age_ms = (_microseconds(self.message_ts) - _microseconds(self.thread_ts)) // 1000
        if age_ms < FINE_ORDER_MS:
            return max(age_ms, 0) + 1
        return min(FINE_ORDER_MS + (age_ms - FINE_ORDER_MS) // 100 + 1, MAX_ORDER)


ORDER_EPOCH_S = 1_767_225_600
MAX_ORDER = 2**31 - 1
FINE_ORDER_MS = 2**30


def _microseconds(ts: str) -> int:
    seconds, _, fraction = ts.partition(".")
    return int(seconds) * 1_000_000 + int((fraction or "0").ljust(6, "0")[:6])


def run_id_for(*, team: str, channel: str, message_ts: str, press: str = "") -> RunId:
    """One message is one run, however often and in whatever events Slack delivers it; so is one press of its Retry button."""
    source = "|".join((team, channel, message_ts, press) if press else (team, channel, message_ts))
    return RunId(f"run_{hashlib.sha256(source.encode()).hexdigest()[:24]}")


class Resumption(StrEnum):
    """How a run went on after a crash (decision 14)."""

    ATTACHED = "attached"
    """Its agent was still at work, and was followed to its end."""
    REPEATED = "repeated"
    """Its turn was executed again."""


class RunState(StrEnum):
    ACCEPTED = "accepted"
    QUEUED = "queued"
    """Its thinking message says that it waits."""
    PLACED = "placed"
    """Its thinking message stands."""
    RUNNING = "running"
    ANSWERING = "answering"
    """The outcome is recorded; Slack is being told."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
UNFINISHED_STATES = frozenset(set(RunState) - FINAL_STATES)
WAITING_STATES = frozenset({RunState.ACCEPTED, RunState.QUEUED, RunState.PLACED})
"""Not begun."""
BEGINNING_STATES = WAITING_STATES | {RunState.RUNNING}
"""May be executed (again): its outcome is not decided."""
STARTED_STATES = frozenset({RunState.RUNNING, RunState.ANSWERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of all model calls of a run, as Anthropic counts them (`input_tokens` excludes cached ones)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    model_calls: int = 0

    @property
    def tokens(self) -> int:
        """All of them, cached ones too."""
        cached = self.cache_read_tokens + self.cache_creation_tokens
        return self.input_tokens + self.output_tokens + cached

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_creation_tokens=self.cache_creation_tokens + other.cache_creation_tokens,
            model_calls=self.model_calls + other.model_calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a run did to the files of its thread. Lines are those of text files; a renamed file counts as two."""

    files: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run record: the truth about a run; the engine only makes it move."""

    id: RunId
    request: RunRequest
    state: RunState = RunState.ACCEPTED
    created_at: datetime
    placed_at: datetime | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    reply_ts: str | None = None
    """ts of the thinking message, which becomes the answer."""
    part_ts: tuple[str, ...] = ()
    """ts of the answer's further parts, in order."""
    attempt: int = 0
    """Executions begun."""
    agent: str = ""
    model: str = ""
    provider: str = ""
    sandbox_id: str | None = None
    event_offset: int = 0
    """Sequence number of the last agent record that was handled."""
    stop_requested_by: str | None = None
    stop_requested_at: datetime | None = None
    outcome: RunState | None = None
    """The final state once it is decided; `state` follows when Slack has been told."""
    answer: str = field(default="", repr=False)
    """Complete answer, or what had been written when the run failed or was stopped."""
    duration_s: float = 0.0
    """As its thread is told, which may be long before `ended_at` while Slack cannot be reached."""
    steps: int = 0
    """Tool calls of its last attempt."""
    error_code: ErrorCode | None = None
    error_detail: str = field(default="", repr=False)
    """For the operator; masked."""
    delivery: str = ""
    """`sent`, or `failed(reason)`; empty until tried."""
    usage: Usage = field(default_factory=Usage)
    resumed: Resumption | None = None
    """How its last attempt began; None = it is the first."""
    cost_usd: float | None = None
    """By the agent's own price list; where it has none by the operator's. None = unknown."""
    has_outside_effect: bool = False
    """By the broker's word: a request went out that may have changed something; to carry it out again could do it twice."""
    changes: Changes | None = None
    """None = none, or unknown."""
    trace_id: str = ""

    @property
    def thread(self) -> Thread:
        return self.request.thread


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """Why a run waits."""

    ahead_in_thread: int = 0
    """Unfinished runs before it in the same thread."""
    ahead_elsewhere: int = 0
    """With the thread free: its number among the runs that wait for a place, when people take turns; 0 = it need not wait."""

    @property
    def is_waiting(self) -> bool:
        return self.ahead_in_thread > 0 or self.ahead_elsewhere > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands among all others."""

    runs_of_user: int
    """Of its asker since the given time, itself included, refused ones not."""
    unfinished: int
    """Of everybody, itself included."""
    position: QueuePosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a person should see of a run that is going. Texts are masked already."""

    phase: str
    """`Thinking`, `Setting up the agent (first use)`, `Writing the answer`, …: without a full stop."""
    elapsed_s: float
    tool: str = ""
    """Name of the tool that is running, or empty."""
    tool_argument: str = field(default="", repr=False)
    steps: int = 0
    """Tool calls so far."""
    text: str = field(default="", repr=False)
    """The answer so far."""

    @property
    def substance(self) -> tuple[str, str, str, int]:
        """What must differ, besides time, for an update to say something new."""
        return (self.phase, self.tool, self.tool_argument, self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended; what the thread is told."""

    outcome: RunState
    answer: str = field(default="", repr=False)
    error_code: ErrorCode | None = None
    stopped_by: str | None = None
    detail: str = field(default="", repr=False)
    """What the error's sentence leaves open, for the person who asked: lower case, no full stop."""
    duration_s: float = 0.0
    steps: int = 0
    changes: Changes | None = None
    resumed: Resumption | None = None
    tokens: int = 0
    """Of all its model calls, as far as Orion saw them."""
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Whether the thread was told."""

    part_ts: tuple[str, ...] = ()
    failure: str = ""
    """Empty when sent; else Slack's error word, such as `token_revoked`."""
    may_pass: bool = False
    """The failure is of the moment (an outage): telling again later may work."""

    @property
    def text(self) -> str:
        return f"failed({self.failure})" if self.failure else "sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadMessage:
    """A message of a Slack thread, for the history of a turn. Control sequences and escapes are undone."""

    ts: str
    user: str
    """Slack user id, empty for bots."""
    author_name: str
    text: str = field(repr=False)
    is_own: bool
    """Written by this bot."""
    run_id: RunId | None = None
    """From the message's metadata, when this bot wrote it for a run."""
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One request of an agent to a model, as the broker saw it."""

    model: str
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime
    status: int
    """HTTP status the agent got."""
    usage: Usage
    cost: int | None = None
    """Micro-dollars, by the operator's price table; None = nobody knows."""
    error: str = ""
    """The provider's error type, such as `overloaded_error`."""
    is_refused: bool = False
    """By the broker: no model was asked."""
