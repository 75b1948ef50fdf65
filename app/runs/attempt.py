"""One attempt of a run: what its steps share, and what is known of it when it ends."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from app.runs.budgets import Excess, Spending
from app.runs.changes import Difference
from app.runs.costs import known_cost
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
    repo: str = ""
    """The repository that was chosen for it; empty = none."""
    is_repo_said: bool = False
    """By its own message."""
    branch: str = ""
    is_branch_said: bool = False
    chosen_model: str = ""
    """By a person or for a channel; empty = it is the operator's."""
    wants_pull_request: bool = False
    notes: list[str] = field(default_factory=list)
    """Told below the answer."""
    difference: Difference | None = None
    """What it did to the thread's files."""
    transcript: Transcript = field(default_factory=Transcript)
    _told_usd: list[float | None] = field(default_factory=list)
    """By the agent, of each of its starts."""
    _is_cut_short: bool = False
    """One of them could not tell all."""
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

    @property
    def cost_usd(self) -> float | None:
        """Of the run: by the agent's own word where that covers all starts and attempts, else by the price table.

        Where that does not know it, by what the agent has told; None = nobody has told anything. Before the agent's first start
        nothing has been spent.
        """
        if self.run.attempt <= 1 and not self._told_usd and not self.usage.model_calls:
            return 0.0
        told = [dollars for dollars in self._told_usd if dollars is not None]
        spent = self.spending.cost_usd if self.spending is not None else None
        is_told = len(told) == len(self._told_usd) > 0 and not self._is_cut_short
        if spent is not None and (not is_told or self.run.attempt > 1):
            return spent
        return sum(told) if told else None

    def begin_start(self) -> None:
        """Of the agent's process; until `report_cost` nobody has told what it costs."""
        self._told_usd.append(None)

    def report_cost(self, dollars: float | None, *, is_cut_short: bool) -> None:
        """The agent's word on the start that was begun last; None = it has none."""
        self._told_usd[-1] = known_cost(dollars)
        self._is_cut_short |= is_cut_short

    def count_call(self, call: ModelCall) -> None:
        """The broker's word on a model call; it decides, not the agent's."""
        if self.spending is not None:
            call = self.spending.count(call)
            self.usage = self.spending.usage
        else:
            self.usage = self.usage + replace(call.usage, model_calls=not call.is_refused)
        if self.agent_step is not None:
            self.agent_step.generation(call)
