"""What a scenario of the crash tests is, and what has been said in it so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.playground.slack.types import JsonObject
from app.runs.testing import RunState
from tests.crash.rig import Rig
from tests.e2e.harness import text_of
from tests.e2e.orion_process import OrionProcess

SLOW_WORDS = "and I write slowly"
"""Of the offline model and of the small agent."""
ANSWERED_WITHIN_S = 90.0


@dataclass(slots=True, kw_only=True)
class Play:
    """What a scenario has said so far."""

    rig: Rig
    asked: list[str] = field(default_factory=list)
    outcomes: Sequence[RunState] = (RunState.SUCCEEDED,)
    person: str = ""
    """Somebody who was never here before."""
    about: str = ""
    """The message that is asked about by a shortcut."""
    done: int = 0
    """What was done outside before it."""
    too_early: int = 0
    """What it did outside before anybody said yes."""
    view: JsonObject | None = None
    """The modal that the shortcut has opened."""
    worker: OrionProcess = field(init=False)
    """The one that is at work, once that is known, or else the first."""

    def __post_init__(self) -> None:
        self.worker = self.rig.stage.orion

    async def say(self, text: str, *, files: dict[str, bytes] | None = None) -> str:
        root = self.asked[0] if self.asked else None
        self.asked.append(await self.rig.stage.client.say(text, thread_ts=root, files=files))
        return self.asked[-1]

    async def ask_twice(self, *, answer_s: int) -> None:
        """A question whose answer takes so long and, once the agent writes, another one that has to wait for it."""
        await self.ask_slowly(answer_s=answer_s)
        await self.say("@Orion and then?")

    async def ask_slowly(self, *, answer_s: int) -> None:
        """A question whose answer takes so long; returns once the agent writes."""
        await self.say(f"@Orion !slow {answer_s}")
        await self.rig.stage.client.wait_for_reply(
            self.asked[0], lambda reply: SLOW_WORDS in text_of(reply), timeout_s=ANSWERED_WITHIN_S
        )
        self.worker = self.rig.at_work(self.asked[0])


Kills = Literal["of a run", "of no run", "all"]
"""Which of the points that a dry run passes."""


class Scenario(Protocol):
    """`begin` before the point is armed, `go_on` until a process has come to harm, `end` when there is one again that has not."""

    @property
    def name(self) -> str: ...

    @property
    def kills(self) -> Kills: ...

    @property
    def whose(self) -> str:
        """Of several messages that pass a step, the one that is killed at it."""
        ...

    async def begin(self, play: Play) -> None: ...

    async def go_on(self, play: Play) -> None: ...

    async def end(self, play: Play) -> None: ...

    async def told(self, play: Play) -> None:
        """Returns when every message has its end."""
        ...

    async def faults(self, play: Play) -> list[str]: ...
