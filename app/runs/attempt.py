"""One attempt of a run: what its steps share, and what is known of it when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from agent_scripts.adapter import TurnMessage
from app.runs.model import ModelCall, Run, Usage
from app.runs.ports import Clock, LiveReply, RunTrace, TraceStep
from app.runs.progress import ProgressTracker
from app.runs.stops import StopRequest


@dataclass(slots=True, kw_only=True)
class Attempt:
    run: Run
    messages: Sequence[TurnMessage]
    deadline_at: datetime
    trace: RunTrace
    live: LiveReply
    stop: StopRequest
    tracker: ProgressTracker
    clock: Clock
    started_at: datetime
    usage: Usage = field(default_factory=Usage)
    sandbox_id: str | None = None
    agent_step: TraceStep | None = None

    def remaining_s(self) -> float:
        return max(0.0, (self.deadline_at - self.clock.now()).total_seconds())

    def show(self) -> None:
        elapsed_s = (self.clock.now() - self.started_at).total_seconds()
        self.live.show(self.tracker.current(elapsed_s=elapsed_s))

    def enter(self, phase: str) -> None:
        self.tracker.enter(phase)
        self.show()

    def count_call(self, call: ModelCall) -> None:
        """The broker's word on a model call; it decides, not the agent's."""
        self.usage = Usage(
            input_tokens=self.usage.input_tokens + call.usage.input_tokens,
            output_tokens=self.usage.output_tokens + call.usage.output_tokens,
            cache_read_tokens=self.usage.cache_read_tokens + call.usage.cache_read_tokens,
            cache_creation_tokens=self.usage.cache_creation_tokens
            + call.usage.cache_creation_tokens,
            model_calls=self.usage.model_calls + 1,
        )
        if self.agent_step is not None:
            self.agent_step.generation(call)
