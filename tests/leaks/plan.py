"""What is asked, and what befalls it: drawn from a seed, so that a run of the proof can be repeated."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    LEFT = "left to end"
    STOPPED_BY_WORD = "stopped by a word"
    STOPPED_NATIVELY = "stopped by Slack's own button"
    KILLED = "a process in a sandbox killed"


_FATES = (Fate.LEFT, Fate.STOPPED_BY_WORD, Fate.STOPPED_NATIVELY, Fate.KILLED, Fate.KILLED)
_TEXTS = (
    "hello",
    "run: echo changed >> notes; sleep 0.5",
    # What it leaves behind has a session of its own and no output that would end with it.
    "run: setsid sleep 600 >/dev/null 2>&1 & echo left behind; sleep 1",
    "run: for n in 1 2 3 4 5; do sleep 600 & done; sleep 2",
    "!slow 3",
)
_FOLLOW_UPS = 0.3
"""Share of the questions that go into a thread that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One question and its fate."""

    text: str
    is_follow_up: bool
    fate: Fate
    delay_s: float
    """From the message to its fate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    provider: str
    runs: int
    service_kills: int
    """All of them in the first half: what the last process holds is compared with what it held when it was warm."""
    lanes: int = 6
    """Questions at once."""
    longest_delay_s: float = 4.0
    warm_up: int = 6
    keep_s: str = "2"
    """Long enough for some follow-ups to find their sandbox, short enough to be over at the end."""
    seed: int = 20_261_122


LOCAL = Plan(provider="local", runs=200, service_kills=6)
DOCKER = Plan(provider="docker", runs=100, service_kills=4)
SMALL = Plan(
    provider="local",
    runs=10,
    service_kills=1,
    lanes=5,
    longest_delay_s=1.5,
    warm_up=3,
    keep_s="0",
)


def draw(plan: Plan, chance: random.Random, runs: int) -> Sequence[Course]:
    return [
        Course(
            text=chance.choice(_TEXTS),
            is_follow_up=chance.random() < _FOLLOW_UPS,
            fate=chance.choice(_FATES),
            delay_s=chance.uniform(0.0, plan.longest_delay_s),
        )
        for _ in range(runs)
    ]


WARM_UP = Course(text="run: echo warm", is_follow_up=False, fate=Fate.LEFT, delay_s=0.0)
