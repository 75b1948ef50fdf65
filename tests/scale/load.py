"""What people ask in the busiest hours of a working day. All of it is assumed: measure your own workspace, and give other numbers."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

DAY: Final = (0.08, 0.13, 0.15, 0.10, 0.06, 0.12, 0.14, 0.12, 0.07, 0.03)
"""Shares of a working day's questions in each of its hours; the third is the busiest."""
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    people: int
    """Who ask."""
    questions_a_day: float = 4
    """Of each."""
    people_in_a_channel: int = 20
    """Who ask there; everyone asks in one channel."""
    messages_an_hour: float = 6
    """Of each, in channels that the bot is in and not to it: Slack tells of them, too."""
    in_thread: float = 0.3
    """The share of questions in the thread of the person's last one; Slack is asked for its history."""
    work_median_s: float = 60
    """How long an agent works: lognormal."""
    work_sigma: float = 1.0
    work_longest_s: float = 600
    """`ORION_RUN_TIMEOUT_S`"""

    @property
    def events_an_hour(self) -> float:
        """Events that Slack sends in the busiest hour: two for each question, one for each other message."""
        asked = self.people * self.questions_a_day * max(DAY)
        return 2 * asked + self.people * self.messages_an_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    at_s: float
    user: str
    channel: str
    thread: str
    is_reply: bool
    work_s: float


def busiest_hours(workspace: Workspace, *, seed: int) -> Sequence[Question]:
    """The questions of the busiest hour and, before it, of the one that leads to it; in order, the same for the same seed."""
    busiest = DAY.index(max(DAY))
    dice = random.Random(seed)  # noqa: S311 - a simulation's
    threads: dict[str, str] = {}
    questions: list[Question] = []
    for hour, share in enumerate(DAY[busiest - 1 : busiest + 1]):
        a_second = workspace.people * workspace.questions_a_day * share / HOUR_S
        questions += (
            _question(workspace, HOUR_S * hour + at_s, threads, dice)
            for at_s in _arrivals(a_second, dice)
        )
    return questions


def _arrivals(a_second: float, dice: random.Random) -> Iterator[float]:
    """The times of a Poisson process within an hour."""
    at_s = dice.expovariate(a_second)
    while at_s < HOUR_S:
        yield at_s
        at_s += dice.expovariate(a_second)


def _question(
    workspace: Workspace, at_s: float, threads: dict[str, str], dice: random.Random
) -> Question:
    number = dice.randrange(workspace.people)
    user = f"U{number}"
    is_reply = user in threads and dice.random() < workspace.in_thread
    if not is_reply:
        threads[user] = f"{user}-{at_s:.6f}"
    work_s = dice.lognormvariate(math.log(workspace.work_median_s), workspace.work_sigma)
    return Question(
        at_s=at_s,
        user=user,
        channel=f"C{number // workspace.people_in_a_channel}",
        thread=threads[user],
        is_reply=is_reply,
        work_s=min(work_s, workspace.work_longest_s),
    )
