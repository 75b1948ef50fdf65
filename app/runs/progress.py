"""From what the agent tells to what a person should see; pure."""

from collections.abc import Callable

from agent_scripts.events import AgentEvent, TextDelta, ToolFinished, ToolStarted
from app.runs.model import Progress

MAX_SHOWN_TEXT = 12_000
"""Characters of the answer so far that are kept for showing; the newest ones."""


class ProgressTracker:
    """Folds agent events into the newest `Progress`. `mask` removes secrets from what is shown."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self._phase = "Starting"
        self._running: dict[str, tuple[str, str]] = {}
        self._text = ""
        self.steps = 0

    def enter(self, phase: str) -> None:
        """A step of Orion's own, before the agent speaks."""
        self._phase = phase

    def feed(self, event: AgentEvent) -> None:
        match event:
            case ToolStarted():
                self.steps += 1
                self._running[event.tool_id] = (event.name, self._mask(event.argument))
                self._phase = "Working"
                self._text = ""
            case ToolFinished():
                self._running.pop(event.tool_id, None)
                self._phase = "Thinking"
            case TextDelta():
                self._text = (self._text + event.text)[-MAX_SHOWN_TEXT:]
                self._phase = "Writing the answer"
            case _:
                pass

    def current(self, *, elapsed_s: float) -> Progress:
        name, argument = next(reversed(self._running.values()), ("", ""))
        return Progress(
            phase=self._phase,
            elapsed_s=elapsed_s,
            tool=name,
            tool_argument=argument,
            steps=self.steps,
            text=self._mask(self._text),
        )
