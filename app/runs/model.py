"""The values of the core: where a run stands, how it ended."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NewType, Protocol

from app.egress.tally import HostUse
from app.errors import ErrorCode
from app.runs.options import EffectiveSetting
from app.runs.request import NO_CONTENT, MessageContent, RunId, RunRequest, Thread

ProcessId = NewType("ProcessId", str)
"""Of one process from its start, or from when it was given up for dead, on; never used again."""


class Resumption(StrEnum):
    """Says how a run went on after a crash (decision 14)."""

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
    cache_creation_1h_tokens: int = 0
    """Those of `cache_creation_tokens` that are kept for an hour, which costs more."""
    model_calls: int = 0

    @property
    def tokens(self) -> int:
        """Returns all tokens, cached ones too."""
        cached = self.cache_read_tokens + self.cache_creation_tokens
        return self.input_tokens + self.output_tokens + cached

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_creation_tokens=self.cache_creation_tokens + other.cache_creation_tokens,
            cache_creation_1h_tokens=self.cache_creation_1h_tokens + other.cache_creation_1h_tokens,
            model_calls=self.model_calls + other.model_calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who answers a run, and where."""

    provider: str
    agent: str
    model: str
    is_chosen: bool = False
    """A person or a channel chose the model; otherwise the operator may choose another one at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Counts of the files of its thread that a run has changed. Lines are those of text files; a renamed file counts as two."""

    files: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a run did to the files of its thread."""

    changes: Changes
    patch: str = field(repr=False)
    """In git's format, cut after a whole line where it is too long; empty when there is nothing to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """A file that the agent leaves for people. It is at Slack already, where nobody sees it before the thread is told."""

    id: str
    """Slack's."""
    name: str
    size: int
    """In bytes."""


_MEASURED = (int, float, int | None, float | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Says how a run ended: decided once, stored whole, and what the thread, the trace and the record tell."""

    state: RunState
    """The final one."""
    answer: str = field(default="", repr=False)
    """Complete, or what had been written when the run failed or was stopped."""
    error_code: ErrorCode | None = None
    detail: str = field(default="", repr=False)
    """What the error's sentence leaves open: lower case, no full stop, masked."""
    is_told: bool = True
    """`detail` is for the person who asked, too; otherwise for the operator alone."""
    stopped_by: str | None = None
    made_way: bool = False
    """It was stopped for a later message of its thread, which is answered with it."""
    duration_s: float = 0.0
    """As its thread is told, which may be long before `Run.ended_at` while Slack cannot be reached."""
    steps: int = 0
    """Tool calls of the last attempt."""
    changes: Changes | None = None
    """None = none, or unknown."""
    files: tuple[SharedFile, ...] = ()
    """Shared below the answer."""
    heard: tuple[RunId, ...] = ()
    """Runs of messages that were told to its agent while it worked, and that it has answered with its own."""
    hosts: tuple[HostUse, ...] = ()
    """That its sandbox reached by the proxy, or reached for in vain. None where its provider's own network lets it through: those are unknown."""
    candidates: tuple[str, ...] = ()
    """Repositories of which the person who asked is to choose one, with `NO_REPO`; a click goes on with the question."""
    resumed: Resumption | None = None
    """How the last attempt began; None = it is the first."""
    usage: Usage = field(default_factory=Usage)
    """Of all its model calls, as far as Orion saw them."""
    cost_usd: float | None = None
    """By the agent's own price list; where it has none by the operator's. None = unknown."""

    @property
    def told(self) -> str:
        """Returns what the person who asked is told beside the error's sentence."""
        return self.detail if self.is_told else ""

    @property
    def measures(self) -> Mapping[str, float | None]:
        """Returns each field that is a number, by its name: `orion runs show` and the trace show all of them."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.type in _MEASURED}


UNDECIDED = Outcome(state=RunState.FAILED)
"""Of a run that nothing is known of yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Says how an attempt stood when a slice of it ended with the agent at work, for the next slice to go on from."""

    choice: str = field(repr=False)
    """Of its first slice, as `encode_choice` writes it: what is set anew meanwhile is for later runs."""
    began_at: datetime
    """The attempt."""
    started_at: datetime
    """Its agent."""
    directory: str
    """Of the agent's start, in the sandbox; its log is there."""
    scripts: str = ""
    """Where Orion's own scripts are; empty = in that directory."""
    traced_seq: int = 0
    """Sequence number of the agent's last record whose tool call is in the trace."""
    is_last_start: bool
    """It was started without its own memory of the thread, and is not started once more."""
    session_id: str | None = None
    """Of the memory that it was started with; None = it has none, or continues the newest."""
    problem: str = ""
    """Why an earlier start could not use its memory."""
    environment_id: str | None = None
    """Of the sandbox."""
    is_new: bool = False
    """The thread had no files before."""
    resumed: Resumption | None = None
    told_usd: tuple[float | None, ...] = ()
    """What each of the agent's starts that are over has told of its cost."""
    is_cut_short: bool = False
    """One of them could not tell all."""
    excess: str = ""
    """The budget that has ended it."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """To be told below the answer."""
    hosts: tuple[HostUse, ...] = ()
    """`Outcome.hosts`, so far."""
    still_s: float = 0
    """How long its time has stood still."""
    model_failure: str = ""
    """`Attempt.model_failure`; empty = none."""
    was_handed_over: bool = False
    """A process has ended that followed the agent, and with it whatever the agent was asking a model for."""
    left_by: ProcessId = ProcessId("")
    """The process that had the slice; empty = what its agent asks for does not go by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run record: the truth about a run, by which processes hand it out."""

    id: RunId
    request: RunRequest
    state: RunState = RunState.ACCEPTED
    created_at: datetime
    placed_at: datetime | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    reply_ts: str | None = None
    """ts of the thinking message, which becomes the answer; empty as long as Slack's limits hold it up, and then the answer may come first."""
    part_ts: tuple[str, ...] = ()
    """ts of the answer's further parts, in order."""
    place_attempt: int = 0
    """Placings begun by later processes than the one that accepted it."""
    attempt: int = 0
    """Executions begun."""
    drained: int = 0
    """Those of them that ended with a process that was told to end, through no fault of theirs."""
    agent: str = ""
    model: str = ""
    provider: str = ""
    effective: tuple[EffectiveSetting, ...] | None = None
    """What its first attempt began with, which later ones keep to; None = none has begun, or in an older Orion."""
    sandbox_id: str | None = None
    event_offset: int = 0
    """Sequence number of the last agent record that was handled."""
    checkpoint: Checkpoint | None = None
    """While no slice of the attempt is going, although the agent works; a slice takes it, so that one which dies counts as an attempt."""
    revision: int = 0
    """How often its message has been edited since it was accepted."""
    stop_requested_by: str | None = None
    stop_requested_at: datetime | None = None
    """By Slack's clock when a message or Slack's own Stop asked: it names that message in its thread. Alone, without who asked: the run was being told how it ended."""
    outcome: Outcome | None = None
    """Set once it is decided; `state` follows when Slack has been told."""
    delivery: str = ""
    """`sent`, or `failed(reason)`; empty until tried."""
    has_outside_effect: bool = False
    """By the broker's word: a request went out that may have changed something; to carry it out again could do it twice."""
    trace_id: str = ""

    @property
    def thread(self) -> Thread:
        return self.request.thread

    @property
    def failures(self) -> int:
        """Returns how many executions count against it."""
        return self.attempt - self.drained

    @property
    def needs_slot(self) -> bool:
        """Whether it is for an agent, of which only so many work at once."""
        return not self.request.is_command

    @property
    def is_refused(self) -> bool:
        """Whether it was decided that it does not run, and nobody was told yet."""
        return self.state is RunState.ACCEPTED and self.outcome is not None

    @property
    def result(self) -> Outcome:
        """Returns the run's outcome; before one is decided, an empty one."""
        return self.outcome or UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that works on the runs of a database."""

    id: ProcessId
    owner: str
    """The name by which it owns sandboxes; it stays when the id changes."""
    name: str
    """For people: host name and pid."""
    place: str
    """Where threads' files are that it keeps: the same for processes that share a kernel and a directory; empty = nowhere on this host."""
    host: str | None
    """The same for processes that share a kernel and a state directory, wherever they keep files; None = it is there for one request, or of an older Orion."""
    is_working: bool
    """It advances runs."""
    started_at: datetime
    alive_until: datetime
    """By the database's clock. Until then what it has is its own; later the others may take it over."""
    version: str | None = None
    """Of Orion; None = of one that did not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """Why a run waits."""

    ahead_in_thread: int = 0
    """Unfinished runs before it in the same thread."""
    ahead_elsewhere: int = 0
    """With the thread free: its number among the runs that wait for a slot, when people take turns; 0 = it need not wait."""

    @property
    def is_waiting(self) -> bool:
        return self.ahead_in_thread > 0 or self.ahead_elsewhere > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Where a run stands among all others."""

    runs_of_user: int
    """Of its asker since the given time, itself included, refused ones not."""
    unfinished: int
    """Of everybody, itself included."""
    position: QueuePosition


class StepState(StrEnum):
    """How far a tool call, or a step of an agent's plan, is."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    number: int
    """In its turn, from 1 on."""
    name: str
    argument: str = field(default="", repr=False)
    state: StepState = StepState.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step of an agent's plan, in its own words."""

    title: str = field(repr=False)
    state: StepState = StepState.PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a run that is going, as its thread is shown it. Texts are masked already."""

    phase: str
    """`Thinking`, `Setting up the agent (first use)`, `Writing the answer`, …: without a full stop."""
    elapsed_s: float
    tools: tuple[ToolCall, ...] = ()
    """The newest ones, oldest first."""
    plan: tuple[PlannedStep, ...] = ()
    """As the agent told it last; empty = it tells none."""
    steps: int = 0
    """Tool calls so far."""
    before: str = field(default="", repr=False)
    """What was written before the newest tool call, the newest part; paragraphs, the last one with its blank line."""
    text: str = field(default="", repr=False)
    """The answer so far."""

    @property
    def substance(self) -> tuple[object, ...]:
        """Returns what must differ between two updates, besides time and text, for the later one to say something new."""
        return (self.phase, self.tools, self.plan, self.steps)


SENT: Final = "sent"
"""As `Run.delivery`: its answer stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Whether the thread was told."""

    reply_ts: str = ""
    """ts of the message that shows the answer, or its first part; empty when none does."""
    part_ts: tuple[str, ...] = ()
    failure: str = ""
    """Empty when sent; else Slack's error word, such as `token_revoked`."""
    may_pass: bool = False
    """The failure is of the moment (an outage): telling again later may work."""

    @property
    def text(self) -> str:
        return f"failed({self.failure})" if self.failure else SENT


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
    content: MessageContent = NO_CONTENT
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
    has_output: bool = True
    """False: it only counted tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCall:
    """A model call of a run that another process executes."""

    id: str
    run_id: RunId
    call: ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantNews:
    """Model calls and effects that the brokers of other processes have let through for runs that this process owns."""

    calls: tuple[ReportedCall, ...] = ()
    effects: frozenset[RunId] = frozenset()
    """Runs that may have changed something outside; again and again while their grants are open."""


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """This machine's; or all processes', where it is known by how much this one's is off."""

    def __init__(self, skew_s: Callable[[], float] = lambda: 0.0) -> None:
        """`skew_s`: seconds by which the clock that all go by is ahead of this machine's."""
        self._skew_s = skew_s

    def now(self) -> datetime:
        # As the engine reads it, so that whoever turns the clock of this process turns both.
        return datetime.fromtimestamp(time.time() + self._skew_s(), UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RunFileKind(StrEnum):
    LOG = "log"
    """What its agent printed; masked."""
    PATCH = "patch"
    """What it did to the files; masked."""
    STEPS = "steps"
    """What was done for it, step by step: `app.tracing.steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelChange:
    """A change of a channel's defaults: who made it, when, and what it was."""

    run_id: RunId
    """Of the message that made it."""
    team: str
    channel: str
    user: str
    at: datetime
    said: str
    """Such as `agent=codex model=gpt-5`, or `reset`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelNote:
    """Something that a person told Orion to remember in a channel or direct message; it is told there alone."""

    run_id: RunId
    """Of the message that says it."""
    team: str
    channel: str
    number: int = 0
    """By which it is shown and forgotten, from 1; no other note of the channel ever has it."""
    user: str
    name: str
    """What that person was called."""
    at: datetime
    text: str = field(repr=False)
    """One line, masked."""
    forgotten_by: str = ""
    """The run, or the operator, that had it forgotten: of such a note nothing is left but its number."""


class ChannelNoteStore(Protocol):
    """Notes by a team's id and the id of a channel or direct message of it. Every method is durable when it returns and safe to repeat."""

    async def of(self, team: str, channel: str) -> Sequence[ChannelNote]:
        """Returns what is remembered there, by number."""
        ...

    async def add(self, note: ChannelNote) -> ChannelNote:
        """Keeps a note under the next number, or returns the one of that run as it is."""
        ...

    async def forget(
        self, team: str, channel: str, numbers: Collection[int], *, by: str
    ) -> Sequence[int]:
        """Forgets those of these numbers that are remembered; returns all that `by` had forgotten there, by this call or an earlier one."""
        ...
