"""What is told of an agent while it works: its progress, to the thread; and what it prints, kept for the run's record."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from agent_scripts.events import AgentEvent, TextDelta, ToolFinished, ToolStarted
from app.runs.model import Clock, PlannedStep, Progress, StepState, ToolCall
from app.runs.ports import LiveReply
from app.runs.request import RunId
from sandbox_runtime.task_group import open_task_group

MAX_SHOWN_TEXT = 12_000
"""Characters of the answer so far that are kept for showing; the newest ones."""


MAX_SHOWN_TOOLS = 50
"""The newest tool calls, of which the thread is told each."""
_PLAN_STATES = {
    "pending": StepState.PENDING,
    "in_progress": StepState.RUNNING,
    "completed": StepState.DONE,
}


class ProgressTracker:
    """Folds agent events into the newest `Progress`. `mask` removes secrets from what is shown."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self._phase = "Starting"
        self._tools: dict[str, ToolCall] = {}
        """By the agent's ids, which are its own words and stay here."""
        self._plan: tuple[PlannedStep, ...] = ()
        self._before = ""
        """Masked."""
        self._text = ""
        self.steps = 0
        self._waiting = 0

    @property
    def has_text(self) -> bool:
        """Whether the agent is writing something."""
        return bool(self._text)

    def enter(self, phase: str) -> None:
        self._phase = phase

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Says instead of the phase that people are waited for, while inside; there may be several at once."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def restart(self) -> None:
        """Forgets what was fed, which comes again."""
        self._tools.clear()
        self._plan = ()
        self._before, self._text, self.steps = "", "", 0

    def feed(self, event: AgentEvent) -> None:
        match event:
            case ToolStarted(plan=(_, *_) as plan):
                self._plan = tuple(
                    PlannedStep(title=self._mask(step.title), state=_PLAN_STATES[step.status])
                    for step in plan
                )
            case ToolStarted():
                self._begin_tool(event)
            case ToolFinished() if event.tool_id in self._tools:
                state = StepState.FAILED if event.is_error else StepState.DONE
                self._tools[event.tool_id] = replace(self._tools[event.tool_id], state=state)
                self._phase = "Thinking"
            case TextDelta():
                self._text = (self._text + event.text)[-MAX_SHOWN_TEXT:]
                self._phase = "Writing the answer"
            case _:
                pass

    def _begin_tool(self, event: ToolStarted) -> None:
        self.steps += 1
        self._tools.pop(event.tool_id, None)
        argument = self._mask(event.argument)
        self._tools[event.tool_id] = ToolCall(number=self.steps, name=event.name, argument=argument)
        if len(self._tools) > MAX_SHOWN_TOOLS:
            del self._tools[next(iter(self._tools))]
        self._phase = "Working"
        if said := self._said():
            # It goes on where what was shown ends: a stream takes back nothing.
            blank = "\n" * max(0, 2 - (len(said) - len(said.rstrip("\n"))))
            self._before = f"{self._before}{said}{blank}"[-MAX_SHOWN_TEXT:]
        self._text = ""

    def _said(self) -> str:
        """Returns what is written since the last tool, without the blank line that parts it from what was before."""
        return self._mask(self._text).lstrip("\n")

    def current(self, *, elapsed_s: float) -> Progress:
        return Progress(
            phase="Waiting for a person's answer" if self._waiting else self._phase,
            elapsed_s=elapsed_s,
            tools=tuple(self._tools.values()),
            plan=self._plan,
            steps=self.steps,
            before=self._before,
            text=self._said(),
        )


SHOW_INTERVAL = timedelta(seconds=0.3)
REFRESH_INTERVAL_S = 10.0


@dataclass(slots=True, kw_only=True)
class Display:
    live: LiveReply
    tracker: ProgressTracker
    is_behind: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is something that has not been offered."""
    _shown_s: float | None = None
    _shown: tuple[int, bool] = (0, False)
    """How many steps there were, and whether the agent was writing."""

    def show(self, elapsed_s: float) -> None:
        self.is_behind.clear()
        self._shown_s, self._shown = elapsed_s, (self.tracker.steps, self.tracker.has_text)
        self.live.show(self.tracker.current(elapsed_s=elapsed_s))

    def show_soon(self, elapsed_s: float) -> None:
        """Offers it unless it was offered just now and no tool came since, nor the first text: masking a long text costs milliseconds."""
        shown_s = self._shown_s
        is_due = shown_s is None or elapsed_s - shown_s > SHOW_INTERVAL.total_seconds()
        if is_due or (self.tracker.steps, self.tracker.has_text) != self._shown:
            self.show(elapsed_s)
        else:
            self.is_behind.set()


@asynccontextmanager
async def keep_refreshing(
    is_behind: asyncio.Event, show: Callable[[], None], clock: Clock
) -> AsyncIterator[None]:
    """Shows what came too soon to be shown, and the elapsed time, while inside, so that silence of the agent does not look like a hang."""

    async def refresh() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_INTERVAL_S):
                    await is_behind.wait()
                await clock.sleep(SHOW_INTERVAL.total_seconds())
                if not is_behind.is_set():
                    continue
            show()

    async with open_task_group() as group:
        ticking = group.create_task(refresh())
        yield
        ticking.cancel()


MAX_CHARS = 256 * 1024
HEAD_CHARS = 32 * 1024
"""How an agent started is kept; of the rest, the end."""


class Transcript:
    """Keeps the first lines and the last ones. Lines are masked when it is read, each as a whole."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` hears of every line as it comes."""
        self._tell = tell or _tell_nobody
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_chars = self._tail_chars = self._left_out = 0

    def restart(self) -> None:
        """Forgets all lines, which come again."""
        self._head.clear()
        self._tail.clear()
        self._head_chars = self._tail_chars = self._left_out = 0

    def add(self, line: str, *, is_told: bool = False) -> None:
        """Adds a line; `is_told`: it was told before."""
        if not is_told:
            self._tell(line)
        if not self._tail and self._head_chars + len(line) < HEAD_CHARS:
            self._head.append(line)
            self._head_chars += len(line) + 1
            return
        self._tail.append(line)
        self._tail_chars += len(line) + 1
        while self._tail_chars > MAX_CHARS - HEAD_CHARS and len(self._tail) > 1:
            self._tail_chars -= len(self._tail.popleft()) + 1
            self._left_out += 1

    def text(self, mask: Callable[[str], str]) -> str:
        """Returns all that is kept, masked; what is longer than everything allowed is cut after that."""
        gap = [f"[{self._left_out} lines left out]"] if self._left_out else []
        tail = [mask(line)[-MAX_CHARS:] for line in self._tail]
        return "\n".join([*(mask(line) for line in self._head), *gap, *tail])


def last_lines(text: str, *, max_chars: int) -> str:
    """Returns the end of a masked text, whole lines if there is one that fits."""
    end = text[-max_chars:]
    if len(text) > max_chars and "\n" in end.rstrip("\n"):
        end = end.partition("\n")[2]
    return end


def _tell_nobody(_line: str) -> None:
    pass


MAX_BYTES = 16 * 1024 * 1024


class LiveLogs:
    """Files in a directory that only the service's user can enter, with what agents print while they work."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, run_id: RunId) -> Path:
        """Returns where it is while the run goes. Its lines are as the agent printed them: whoever shows them masks them.

        Masked when it is read, not when it is written: that costs a quarter of a millisecond a line, and few are read.
        """
        return self._directory / f"{run_id}.log"

    def clear(self) -> None:
        """Removes what an earlier process left."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._directory.glob("*.log"):
            path.unlink(missing_ok=True)

    @contextmanager
    def record(self, run_id: RunId, *, goes_on: bool = False) -> Iterator[Callable[[str], None]]:
        """Yields how to add a line while inside. A full disk, or `MAX_BYTES`, ends the file and costs the run nothing.

        `goes_on`: with the file of an earlier slice, if it is there. Whoever calls this removes the file by `remove`.
        """
        path = self.path(run_id)
        file, left = None, MAX_BYTES
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not goes_on:  # a follower of an earlier attempt's sees that this is another one
                path.unlink(missing_ok=True)
            file = path.open("ab", buffering=0)
            left -= file.tell()

        def write(line: str) -> None:
            nonlocal left
            data = line.encode("utf-8", "replace") + b"\n"
            left -= len(data)
            if file is not None and left >= 0:
                with suppress(OSError):
                    file.write(data)

        try:
            yield write
        finally:
            with suppress(OSError):
                if file is not None:
                    file.close()

    def remove(self, run_id: RunId) -> None:
        """Ends the log of a run."""
        with suppress(OSError):
            self.path(run_id).unlink(missing_ok=True)
