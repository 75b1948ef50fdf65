"""What the core needs from the outside, as Protocols; adapters implement them, `main` joins them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypedDict

from typing_extensions import Unpack

from app.aio import Gate, always_open
from app.approvals.records import Approval, ApprovalStore
from app.audit.records import AuditEntry, AuditLog
from app.errors import ErrorCode
from app.pull_requests.records import Notice, PullRequest, PullRequestStore
from app.runs.budget import Ledger
from app.runs.history import FileExchange, Judge, ThreadReader
from app.runs.model import (
    UNFINISHED_STATES,
    ChannelChange,
    ChannelNoteStore,
    Checkpoint,
    Clock,
    Delivery,
    ModelCall,
    Outcome,
    ProcessId,
    Progress,
    QueuePosition,
    QueueStats,
    Run,
    RunFileKind,
    RunState,
    SharedFile,
)
from app.runs.options import DefaultChanges, Defaults, EffectiveSetting
from app.runs.request import RunId, RunRequest, Thread
from app.runs.session import SessionStore, ThreadStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """`advance` brought the run to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainIn:
    """`advance` wants to be called again."""

    seconds: float


Advance = Done | AgainIn


class RunHandlers(Protocol):
    """Holds what a dispatcher calls; each may be called twice, at once or later."""

    async def place(self, run: Run, *, resumed: bool) -> None:
        """Lets the thinking message of an accepted run stand and schedules it. `resumed`: this may have been begun before."""
        ...

    async def advance(self, run_id: RunId, *, until: datetime | None = None) -> Advance:
        """Brings a run to its end, or further until then, while its agent works on: `AgainIn` asks for the next slice, by any process."""
        ...

    async def end(self, run_id: RunId, code: ErrorCode) -> None:
        """Ends a run that `advance` cannot bring to its end."""
        ...

    def hand_over(self) -> None:
        """Ends the slice of each run that another process can go on with, as soon as its agent works. For who drains."""
        ...


class StoppingError(OSError):
    """The process is stopping, and takes nothing in any more; another, or the next one, does."""


class Dispatcher(Protocol):
    """Durable hand-over of runs. Each is placed at once; `advance` one at a time per thread, oldest message first.

    No more than `capacity` runs that need a slot are advanced at once. When slots are scarce, the next one goes to the
    person with the fewest, of those to whoever was given one longest ago; in all processes that share the database.
    """

    async def submit(self, run: Run) -> bool:
        """Accepts a run: its record is durable when this returns, once per id; then it is placed. False: it was accepted before.

        Raises:
            OSError: not durable within 2 s, or StoppingError; the caller must not acknowledge. A later repeat is harmless.
        """
        ...

    async def schedule(
        self, run: Run, *, entry: AuditEntry | None = None, **changes: Unpack["RunChanges"]
    ) -> None:
        """Records these changes of a run that this process has, and why it may be, and lets it be advanced, by any process. Raises: LeaseLostError."""
        ...

    async def discard(self, run: Run) -> bool:
        """Removes the record of a run that this process has accepted and not placed, as if it had never been heard of.

        False: somebody has changed it since `run` was read. Raises: LeaseLostError.
        """
        ...

    def borrow(self, run_id: RunId) -> AbstractAsyncContextManager[Run | None]:
        """Lets a waiting run not be advanced while inside; None when it does not wait."""
        ...

    def parked(self, run_id: RunId) -> AbstractAsyncContextManager[None]:
        """Gives the slot of a run that is advanced here to others while inside; on leaving it has one again, within a bounded time."""
        ...

    @property
    def process(self) -> ProcessId:
        """Returns by what this process is known now, if it outlives a slice; else an empty text."""
        ...

    async def has_ended(self, process: ProcessId) -> bool:
        """Whether the process that was known so is no more, or was given up for dead."""
        ...

    def wake(self) -> None:
        """Looks for runs to advance at once, not a moment later: some record has changed."""
        ...

    async def start(self, handlers: RunHandlers) -> None:
        """Begins calling the handlers; what a process has left that is no more goes on."""
        ...

    async def stop(self, *, grace_s: float) -> None:
        """Takes no more, waits up to `grace_s`, cancels what still runs and gives it back: another process, or the next `start`, goes on. Idempotent."""
        ...

    def probe(self) -> str:
        """Says how many runs it has.

        Raises:
            OSError: it has not been able to look for work lately.
        """
        ...


class LiveReply(Protocol):
    def show(self, progress: Progress) -> None:
        """Offers the newest progress; returns at once. What is sent, and when, is the sink's business."""
        ...


class ReplySink(Protocol):
    """Tells the thread. Every write is retried where safe and bounded to 60 s besides the wait for Slack's limits; a refusal of Slack's is a result, not an error."""

    async def place(self, run: Run, *, position: QueuePosition, maybe_posted: bool) -> str | None:
        """Posts the thinking message (or the "queued behind …" one) in the thread; returns its ts.

        `maybe_posted`: an earlier attempt may have got through, so look for it first. Empty when Slack's limits hold it up: it is
        posted when they allow, unless `finish` comes before and posts the result instead. None when Slack refuses for good
        (archived, token revoked): the reason is logged and `finish` will report it.

        Raises:
            ConnectionError: Slack cannot be reached now; it may have got through.
            LeaseLostError: nothing was sent: the run may be another process's by now.
        """
        ...

    def live(self, run: Run) -> AbstractAsyncContextManager[LiveReply]:
        """Shows progress on the thinking message while inside. On leaving, nothing more is sent and no call is in flight."""
        ...

    async def finish(self, run: Run, result: Outcome, *, resumed: bool) -> Delivery:
        """Turns the thinking message into the result, posting further parts below. Harmless to repeat.

        `resumed`: an earlier process may have posted some parts, so look for them first. Raises: LeaseLostError: it may be another process's by now.
        """
        ...

    async def announce(self, run: Run, result: Outcome) -> None:
        """Posts a line that mentions the asker: edits notify nobody. Never raises."""
        ...

    async def tell_change(self, run: Run, change: ChannelChange, *, resumed: bool) -> None:
        """Tells the whole channel, not the thread alone, that its defaults were changed; not again when `resumed` and it was told.

        Never raises.
        """
        ...

    async def settle_question(self, asking: Run, follower: Run) -> None:
        """Shows that a question for a repository is settled, by the run that follows it: it has no buttons any more. Never raises."""
        ...

    async def attach(self, run: Run, *, name: str, content: str, resumed: bool) -> Delivery:
        """Shares a text file in the thread; not again when `resumed` and one of that name is there. Raises: LeaseLostError."""
        ...

    async def share(self, run: Run, files: Sequence[SharedFile], *, resumed: bool) -> Delivery:
        """Shares files that were uploaded, in one message of the thread; not again those that `resumed` finds there. Raises: LeaseLostError."""
        ...

    async def tell_unshared(self, run: Run, text: str, *, resumed: bool) -> None:
        """Tells the thread what of a run is not shared, and why; not again when `resumed` and it was told. Never raises."""
        ...

    async def show_ephemeral(self, thread: Thread, *, user: str, text: str) -> None:
        """Shows a text, as it is, to one person, in the thread; returns within 2 s, and goes on in the background where Slack wants it later. Never raises."""
        ...

    async def show_approval(self, run: Run, approval: Approval) -> str | None:
        """Makes the card of what waits, in the run's thread, show what it is; returns its ts. None: not now; `-`: Slack refuses it for good, which is logged. Never raises."""
        ...

    async def show_notice(
        self, run: Run, pull: PullRequest, notice: Notice, *, maybe_posted: bool
    ) -> str | None:
        """Posts what is new of a pull request in the thread; returns its ts. `run`: the notice's. `maybe_posted`: an earlier process may have.

        None: not now; `-`: Slack refuses it for good, which is logged. Never raises.
        """
        ...

    async def refuse(self, request: RunRequest, code: ErrorCode, *, detail: str) -> None:
        """Tells the asker alone why nothing will happen. Never raises."""
        ...


class StepKind(StrEnum):
    SPAN = "span"
    TOOL = "tool"


class TraceStep(Protocol):
    """A step that is open. None of these raises or waits for the network."""

    def set(self, **metadata: str | float | bool) -> None:
        """Adds metadata (numbers, ids, sizes; texts only if they are no content)."""
        ...

    def fail(self, code: str, detail: str) -> None:
        """Marks it failed; detail is masked by the tracer."""
        ...

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        """Adds a child for one attempt of this step; `error` empty = it succeeded."""
        ...

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None: ...

    def generation(self, call: ModelCall) -> None: ...

    def pause(self) -> None:
        """Leaves it open when its block ends: a later slice opens it again, by its key, and ends it."""


class RunTrace(Protocol):
    def step(
        self,
        name: str,
        kind: StepKind = StepKind.SPAN,
        *,
        key: str = "",
        started_at: datetime | None = None,
    ) -> AbstractContextManager[TraceStep]:
        """Opens a step; an exception leaving it marks it failed (or cancelled) and goes on. `key`: one for it in all slices."""
        ...

    def pause(self) -> None:
        """Leaves the root open when its block ends, for a later slice."""

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None:
        """Adds a step that is over, such as the time in the queue."""
        ...

    def finish(self, outcome: Outcome, *, delivery: str) -> None:
        """Sets the outputs of the root: outcome, code, sizes; the answer when content is traced."""
        ...


class Tracer(Protocol):
    """One trace per run; its id derives from the run id, so it survives restarts."""

    def trace_id(self, run_id: RunId) -> str:
        """Returns 32 hex digits."""
        ...

    def trace(self, run: Run) -> AbstractContextManager[RunTrace]:
        """Opens the root observation `run`, of type agent, begun at the run's acceptance, without a parent."""
        ...

    def link(self, trace_id: str) -> str:
        """Returns the address of a trace's page; empty while nobody knows it, and where there is none. Never waits."""
        ...

    def score(self, run_id: RunId, *, user: str, is_positive: bool, comment: str = "") -> None:
        """Sends a person's feedback, and what they say of it; the same person's latest counts."""
        ...


class RunChanges(TypedDict, total=False):
    state: RunState
    request: RunRequest
    placed_at: datetime
    started_at: datetime
    deadline_at: datetime
    ended_at: datetime
    reply_ts: str
    part_ts: tuple[str, ...]
    place_attempt: int
    attempt: int
    agent: str
    model: str
    provider: str
    effective: tuple[EffectiveSetting, ...]
    sandbox_id: str | None
    event_offset: int
    checkpoint: Checkpoint | None
    outcome: Outcome
    delivery: str
    has_outside_effect: bool
    trace_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Tokens and money that one run has used, with what they are summed by."""

    at: datetime
    """Its beginning."""
    user: str
    channel: str
    agent: str
    model: str
    tokens: int
    cost: int | None
    """Micro-dollars; None = nobody knows."""


class RunFiles(Protocol):
    """Texts of at most some hundred kilobytes, kept as long as the run's record."""

    async def save(self, run_id: RunId, kind: RunFileKind, content: str) -> None:
        """Stores it in place of an earlier one."""
        ...

    async def append(self, run_id: RunId, kind: RunFileKind, line: str) -> None:
        """Adds a line, without a break of its own, to what is there; also of a run that is another process's by now.

        Of several that are added at once, each is kept.
        """
        ...

    async def load(self, run_id: RunId, kind: RunFileKind) -> str:
        """Returns the text; empty when there is none."""
        ...


class RunStore(Protocol):
    """Run records. Every method is durable when it returns and safe to repeat.

    An unfinished run is written for the process alone that has it (`app/dispatch/lease.py`), but for what people ask of it.
    """

    async def add(self, run: Run) -> bool:
        """Inserts it so that it survives a power loss; False when there is a record of that id, which stays as it is.

        Raises:
            OSError: not stored within 2 s; it may be repeated.
        """
        ...

    async def get(self, run_id: RunId) -> Run | None: ...

    async def update(
        self,
        run_id: RunId,
        *,
        while_in: Collection[RunState] = UNFINISHED_STATES,
        **changes: Unpack[RunChanges],
    ) -> Run:
        """Changes fields of an unfinished run, in one of these states, and returns the record; in another it stays as it is.

        A finished run never changes.

        Raises:
            KeyError: no such run.
            LeaseLostError: another process has it, or none.
        """
        ...

    async def begin(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        """Begins an attempt of it, with these changes; the record as it is then.

        Nothing is changed where it has ended, or its message was edited, since `run` was read.
        """
        ...

    async def request_stop(self, run_id: RunId, *, user: str, at: datetime) -> bool:
        """Records once that a run shall stop; False when the run is unknown, ended, or was asked to stop already.

        Of one that is being told how it ended only the moment is recorded: the same stop, when it is delivered again, is known.
        """
        ...

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        """Returns those of the given runs that shall stop, with the user who asked."""
        ...

    async def amend(self, run_id: RunId, change: Callable[[RunRequest], RunRequest]) -> bool:
        """Changes what was asked; False when the run is unknown, has begun or has ended, or when this changes nothing."""
        ...

    async def unfinished(self) -> Sequence[Run]:
        """Returns them oldest first."""
        ...

    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        """Returns all runs of a thread in the order of their messages."""
        ...

    async def waiting_in(self, thread_keys: Sequence[str]) -> Sequence[Run]:
        """Returns the runs of these threads (`Thread.key`) that have not begun."""
        ...

    async def queue_stats(self, run: Run, *, since: datetime, capacity: int) -> QueueStats:
        """Returns how a stored run stands: its asker's runs since then, and what it waits for when `capacity` may go at once."""
        ...

    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        """Removes up to `limit` finished runs that ended before then, oldest first, a few at a time; returns how many.

        A run that is unfinished stays, however old.
        """
        ...

    async def recent(self, *, limit: int) -> Sequence[Run]:
        """Returns the newest first."""
        ...

    async def recent_of(self, team: str, user: str, *, limit: int) -> Sequence[Run]:
        """Returns what a person asked, the newest first."""
        ...

    async def counts(self) -> Mapping[RunState, int]: ...

    async def deliveries(self) -> Mapping[str, int]:
        """Counts ended runs by whether the thread was told: `sent`, or `failed(reason)`."""
        ...


class DefaultStore(Protocol):
    """By a team's id and the id of a person or channel of it. Every method is durable when it returns and safe to repeat."""

    async def get(self, team: str, owner: str) -> Defaults:
        """Returns what is stored; all empty when nothing is."""
        ...

    async def change(self, team: str, owner: str, **changes: Unpack[DefaultChanges]) -> None:
        """Sets these fields; the others stay."""
        ...

    async def reset(self, team: str, owner: str) -> None: ...

    async def keep(self, change: ChannelChange) -> bool:
        """Records who changed what; False when it is there already."""
        ...

    async def last_change(self, team: str, channel: str) -> ChannelChange | None: ...


BUTTON = "Your model keys"
"""Below Orion's answer to `settings`."""
HOW_TO_CHANGE = f"write settings and press {BUTTON} to change it or take it back"
HOW_TO_GIVE = f"write settings and press {BUTTON} to give one of your own"


class OwnKeyStore(Protocol):
    """By a team's id and a person's; each key by the name of the `ModelProtocol` that it is for."""

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        """Returns the keys; an empty one is kept, but cannot be read any more, as it was sealed with another secret."""
        ...

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        """Keeps these, and forgets those that are empty; the others stay. Durable when it returns, safe to repeat."""
        ...


class NoOwnKeys:
    async def of(self, team: str, person: str) -> Mapping[str, str]:
        del team, person
        return {}

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        raise NotImplementedError("nobody may have keys of their own here")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPorts:
    """Holds what a run needs of others: made once, carried whole."""

    store: RunStore
    files: RunFiles
    sessions: SessionStore
    defaults: DefaultStore
    channel_notes: ChannelNoteStore
    own_keys: OwnKeyStore
    threads: ThreadStore
    approvals: ApprovalStore
    audit: AuditLog
    pull_requests: PullRequestStore
    ledger: Ledger
    replies: ReplySink
    reader: ThreadReader
    exchange: FileExchange
    judge: Judge
    tracer: Tracer
    clock: Clock
    mask: Callable[[str], str]
    """Takes secrets out of a text."""
    has_secret: Callable[[bytes], bool]
    """Whether a secret is in a file."""
    may_act: Gate = always_open
    """Before an effect that the adapters do not guard by themselves."""
