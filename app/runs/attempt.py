"""One attempt of a run: what its steps share, and what is known of it when it ends."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from app.runs.budgets import Excess, Spending
from app.runs.changes import Difference
from app.runs.costs import to_dollars
from app.runs.history import Conversation
from app.runs.model import ModelCall, Resumption, Run, Usage
from app.runs.ports import Clock, LiveReply, RunTrace, TraceStep
from app.runs.progress import ProgressTracker
from app.runs.stops import StopRequest
from app.runs.transcript import Transcript

SHOW_INTERVAL = timedelta(seconds=0.3)


@dataclass(slots=True, kw_only=True)
class Attempt:
    run: Run
    conversation: Conversation
    deadline_at: datetime
    trace: RunTrace
    live: LiveReply
    stop: StopRequest
    tracker: ProgressTracker
    clock: Clock
    started_at: datetime
    on_effect: Callable[[], Awaitable[None]] | None = None
    """Writes into the run's record that it may change something outside."""
    spending: Spending | None = None
    """What its run may cost, and has cost in earlier attempts, too; None = nobody counts."""
    own_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the person who asked; see `OwnKeyStore`."""
    own_key_protocol: str = ""
    """Of the one of them that its agent's models are asked with; empty = with the operator's key."""
    usage: Usage = field(default_factory=Usage)
    sandbox_id: str | None = None
    event_offset: int = 0
    detail: str = field(default="", repr=False)
    """What went wrong, for the operator; masked."""
    agent_step: TraceStep | None = None
    resumed: Resumption | None = None
    cost_usd: float | None = None
    repo: str = ""
    """The repository that was chosen for it; empty = none."""
    is_repo_said: bool = False
    """By its own message."""
    branch: str = ""
    wants_pull_request: bool = False
    notes: list[str] = field(default_factory=list)
    """Told below the answer."""
    difference: Difference | None = None
    """What it did to the thread's files."""
    transcript: Transcript = field(default_factory=Transcript)
    _began_s: float = field(default_factory=time.monotonic)
    _shown_at: datetime | None = None
    _shown_steps: int = 0

    def remaining_s(self) -> float:
        return max(0.0, (self.deadline_at - self.started_at).total_seconds() - self.elapsed_s)

    @property
    def elapsed_s(self) -> float:
        """Since this attempt began, by a clock that does not jump."""
        return time.monotonic() - self._began_s

    def show(self) -> None:
        """Offer the newest progress."""
        now = self.clock.now()
        self._shown_at, self._shown_steps = now, self.tracker.steps
        self.live.show(self.tracker.current(elapsed_s=self.elapsed_s))

    def show_soon(self) -> None:
        """Offer it unless it was offered just now and no tool came since: masking a long text costs milliseconds."""
        is_due = self._shown_at is None or self.clock.now() - self._shown_at > SHOW_INTERVAL
        if is_due or self.tracker.steps != self._shown_steps:
            self.show()

    def enter(self, phase: str) -> None:
        """Show a step of Orion's own."""
        self.tracker.enter(phase)
        self.show()

    def __post_init__(self) -> None:
        if self.spending is not None:
            self.usage = self.spending.usage

    def use_own_key(self, protocol: str) -> None:
        """Ask models with the person's own key for that protocol; empty = with the operator's."""
        self.own_key_protocol = protocol
        if self.spending is not None:
            self.spending.is_own_key = bool(protocol)

    @property
    def excess(self) -> Excess | None:
        """The budget that has ended it."""
        return self.spending.excess if self.spending is not None else None

    def report_cost(self, dollars: float | None) -> None:
        """The agent's own word, that counts; without one, the price table's."""
        spent = self.spending.cost if self.spending is not None else None
        if dollars is not None:
            self.cost_usd = dollars
        elif spent is not None and self.usage.model_calls:
            self.cost_usd = to_dollars(spent)

    def count_call(self, call: ModelCall) -> None:
        """The broker's word on a model call; it decides, not the agent's."""
        if self.spending is not None:
            call = self.spending.count(call)
            self.usage = self.spending.usage
        else:
            self.usage = self.usage + replace(call.usage, model_calls=not call.is_refused)
        if self.agent_step is not None:
            self.agent_step.generation(call)
