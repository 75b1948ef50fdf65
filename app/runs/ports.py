"""What the core needs from the outside, as Protocols; adapters implement them, `main` joins them."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from app.errors import ErrorCode
from app.runs.model import (
    Delivery,
    ModelCall,
    Progress,
    QueuePosition,
    Run,
    RunId,
    RunRequest,
    RunResult,
    Thread,
    ThreadMessage,
    Usage,
)


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


# ---- dispatch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """`advance` brought the run to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainIn:
    """`advance` wants to be called again."""

    seconds: float


Advance = Done | AgainIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a run brings when it waits for one of the places."""

    user: str
    """People take turns."""
    order: int
    """A person's lowest goes first."""


class RunHandlers(Protocol):
    """What a dispatcher calls; all may be called twice, at once or later."""

    async def place(self, request: RunRequest) -> None: ...

    async def turn(self, run_id: RunId) -> Turn | None:
        """Whose turn a queued run waits for; None when `advance` needs no place for it: it is over, or will not start."""
        ...

    async def advance(self, run_id: RunId) -> Advance: ...


class EngineState(StrEnum):
    """What the engine will do with a run."""

    MOVING = "moving"
    """Waiting or executing: it will be advanced."""
    ENDED = "ended"
    """Nothing will advance it any more."""


class Dispatcher(Protocol):
    """Durable hand-over of runs. One `place` each at once; `advance` one at a time per thread, oldest message first.

    No more than `capacity` runs that need a place are advanced at once. When places are scarce, the next one goes to the
    person with the fewest, of those to whoever was given one longest ago.
    """

    async def submit(self, request: RunRequest) -> None:
        """Accept a request: durable when it returns, once per run id for ever (a repeated one changes nothing).

        Raises:
            OSError: not durable within 2 s; the caller must not acknowledge. A later repeat is harmless.
        """
        ...

    async def schedule(self, run: Run) -> None:
        """Queue `advance` for a placed run; once per run id."""
        ...

    def wake(self, run_id: RunId) -> None:
        """If the run waits for a place, ask for its `turn` again, which has changed; else nothing."""
        ...

    async def start(self, handlers: RunHandlers) -> None:
        """Begin (or, after a crash, go on) calling the handlers."""
        ...

    async def stop(self, *, grace_s: float) -> None:
        """Take no more, wait up to `grace_s`, cancel what still runs; the next `start` resumes it. Idempotent."""
        ...

    async def engine_states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, EngineState]: ...

    async def lost_placements(self) -> Sequence[RunRequest]:
        """Accepted requests whose `place` the engine has given up."""
        ...

    async def forget(self, *, before: datetime, limit: int, keep: Collection[RunId]) -> int:
        """Remove up to `limit` of the engine's own rows that are done with and were made before then, but none of `keep`.

        A request that is forgotten would be accepted again. Returns how many rows are gone.
        """
        ...


# ---- Slack ----------------------------------------------------------------------------------------------------------


class LiveReply(Protocol):
    def show(self, progress: Progress) -> None:
        """Offer the newest progress; returns at once. What is sent, and when, is the sink's business."""
        ...


class ReplySink(Protocol):
    """Tells the thread. Every write is retried where safe and bounded to 60 s; a refusal of Slack's is a result, not an error."""

    async def place(self, run: Run, *, position: QueuePosition, maybe_posted: bool) -> str | None:
        """Post the thinking message (or the "queued behind …" one) in the thread; returns its ts.

        `maybe_posted`: an earlier attempt may have got through, so look for it first. None when Slack refuses for good
        (archived, token revoked): the reason is logged and `finish` will report it.

        Raises:
            ConnectionError: Slack cannot be reached now; it may have got through.
        """
        ...

    def live(self, run: Run) -> AbstractAsyncContextManager[LiveReply]:
        """Show progress on the thinking message while inside. On leaving, nothing more is sent and no call is in flight."""
        ...

    async def finish(self, run: Run, result: RunResult, *, resumed: bool) -> Delivery:
        """Turn the thinking message into the result, posting further parts below. Harmless to repeat.

        `resumed`: an earlier process may have posted some parts, so look for them first.
        """
        ...

    async def announce(self, run: Run, result: RunResult) -> None:
        """One line that mentions the asker: edits notify nobody. Never raises."""
        ...

    async def attach(self, run: Run, *, name: str, content: str, resumed: bool) -> None:
        """Share a text file in the thread; not again when `resumed` and one of that name is there. Never raises."""
        ...

    async def whisper(self, request: RunRequest, *, user: str, log: str) -> None:
        """Show a piece of log to one person, in the thread; bounded to 2 s. Never raises."""
        ...

    async def refuse(self, request: RunRequest, code: ErrorCode, *, detail: str) -> None:
        """Tell the asker alone why nothing will happen. Never raises."""
        ...


class ThreadReader(Protocol):
    async def read(self, thread: Thread, *, before_ts: str) -> Sequence[ThreadMessage]:
        """Messages of the thread older than `before_ts`, oldest first, the root included; bounded to 10 s.

        Empty when Slack cannot be read: history then comes from Orion's own records alone.
        """
        ...


# ---- trace ----------------------------------------------------------------------------------------------------------


class StepKind(StrEnum):
    SPAN = "span"
    TOOL = "tool"


class TraceStep(Protocol):
    """A step that is open. None of these raises or waits for the network."""

    def set(self, **metadata: str | float | bool) -> None:
        """Add metadata (numbers, ids, sizes; texts only if they are no content)."""
        ...

    def fail(self, code: str, detail: str) -> None:
        """Mark it failed; detail is masked by the tracer."""
        ...

    def attempt(self, *, number: int, started_at: datetime, ended_at: datetime, error: str) -> None:
        """A child for one attempt of this step; `error` empty = it succeeded."""
        ...

    def tool(
        self, *, name: str, argument: str, started_at: datetime, ended_at: datetime, is_error: bool
    ) -> None:
        """A child of type tool."""
        ...

    def generation(self, call: ModelCall) -> None:
        """A child of type generation."""
        ...


class RunTrace(Protocol):
    """The trace of one execution of a run."""

    def step(self, name: str, kind: StepKind = StepKind.SPAN) -> AbstractContextManager[TraceStep]:
        """An open step; an exception leaving it marks it failed (or cancelled) and goes on."""
        ...

    def past_step(
        self, name: str, *, started_at: datetime, ended_at: datetime, **metadata: str | float | bool
    ) -> None:
        """A step that is over, such as the time in the queue."""
        ...

    def finish(self, result: RunResult, *, usage: Usage, delivery: str) -> None:
        """Outputs of the root: outcome, code, sizes; the answer when content is traced."""
        ...


class Tracer(Protocol):
    """One trace per run; its id derives from the run id, so it survives restarts."""

    def trace_id(self, run_id: RunId) -> str:
        """32 hex digits."""
        ...

    def trace(self, run: Run) -> AbstractContextManager[RunTrace]:
        """The root observation `run`, of type agent, begun at the run's acceptance, without a parent."""
        ...

    def score(self, run_id: RunId, *, user: str, is_positive: bool) -> None:
        """Feedback of a person; the same person's latest counts."""
        ...
