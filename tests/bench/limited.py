"""Slack's limits under a burst: what is refused, and how soon people see that Orion has begun.

`python -m tests.bench.limited [--questions 100] [--work-s 5]`: that many questions at once over fifty channels, Slack's
limits on. Prints for each method its calls and those that were answered with a 429; from a question to its first sign
(Slack's own "working" state, or a message below it) and to its answer.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from app.aio import open_task_group
from app.playground.slack.types import JsonObject
from tests.bench.acks import open_instant_orion
from tests.bench.instant import ANSWER
from tests.bench.load import percentile
from tests.bench.processes import open_server
from tests.bench.scale import QUICK, Bench
from tests.bench.slack_server import CHANNELS
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.ports import free_port

TIMEOUT_S = 540.0
SIGNS = ("agents.sessions.setStatus", "chat.postMessage")

Root = tuple[str, str]
"""Channel id and ts of a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What became of one."""

    calls: Mapping[str, int]
    """To each method."""
    refused: Mapping[str, int]
    """Those of them that were answered with a 429."""
    signs_s: Sequence[float]
    """From questions to their first signs."""
    answers_s: Sequence[float]
    """From questions to their answers."""
    unanswered: int


async def measure(directory: Path, *, questions: int, work_s: float) -> Burst:
    """Ask them all at once, and wait for the answers."""
    bench = Bench(directory=directory, scale=QUICK)
    world_port, bot_port = free_port(), free_port()
    events_url = f"http://127.0.0.1:{bot_port}/slack/events"
    argv = ("tests.bench.slack_server", str(world_port), "limited", events_url)
    async with open_server(argv, port=world_port, directory=directory) as world:
        orion = open_instant_orion(
            bench, api_url=f"{world.url}/api/", port=bot_port, work_s=work_s, capacity=questions
        )
        async with orion, open_client(world.url) as person:
            roots = await _ask(person, questions)
            answered = await _answers(person, roots)
            calls = await person.calls()
    signs = _first_signs(calls)
    return Burst(
        calls=Counter(call["method"] for call in calls),
        refused=Counter(call["method"] for call in calls if call["error"] == "ratelimited"),
        signs_s=[signs[root] - float(root[1]) for root in roots if root in signs],
        answers_s=[at - float(root[1]) for root, at in answered.items()],
        unanswered=len(roots) - len(answered),
    )


async def _ask(person: FakeSlackClient, questions: int) -> Sequence[Root]:
    roots: list[Root] = []

    async def say(number: int) -> None:
        place = number % len(CHANNELS)
        ts = await person.say(f"@Orion question {number}", channel=CHANNELS[place])
        roots.append((f"C0BENCH{place}", ts))

    async with open_task_group() as group:
        for number in range(questions):
            group.create_task(say(number))
    return roots


async def _answers(person: FakeSlackClient, roots: Sequence[Root]) -> Mapping[Root, float]:
    """When each answer stood, to half a second."""
    answered: dict[Root, float] = {}
    loop = asyncio.get_running_loop()
    began_at, first_ts = loop.time(), min(float(ts) for _, ts in roots)
    while len(answered) < len(roots) and loop.time() - began_at < TIMEOUT_S:
        for root in roots:
            if root not in answered and await _is_answered(person, root):
                answered[root] = first_ts + loop.time() - began_at
        await asyncio.sleep(0.5)
    return answered


async def _is_answered(person: FakeSlackClient, root: Root) -> bool:
    channel, ts = root
    return any(
        block.get("text") == ANSWER and not _has_stop(message)
        for message in await person.replies(ts, channel=channel)
        for block in message["blocks"]
    )


def _has_stop(message: JsonObject) -> bool:
    return "orion_stop" in str(message["blocks"])


def _first_signs(calls: Sequence[JsonObject]) -> Mapping[Root, float]:
    signs: dict[Root, float] = {}
    for call in calls:
        if call["method"] in SIGNS and call["error"] is None:
            root = (call["channel"], call["thread_ts"])
            signs.setdefault(root, datetime.fromisoformat(call["at"]).timestamp())
    return signs


def _print(burst: Burst) -> None:
    for method, count in sorted(burst.calls.items()):
        refused = burst.refused.get(method, 0)
        print(f"{method}: {count} calls, {refused} of them 429")  # noqa: T201 - its output
    _print_waits("first sign", burst.signs_s)
    _print_waits("answer", burst.answers_s)
    print(f"unanswered: {burst.unanswered}")  # noqa: T201 - its output


def _print_waits(what: str, waits_s: Sequence[float]) -> None:
    shares = " ".join(
        f"{name} {percentile(waits_s, share):.2f} s"
        for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
    )
    print(f"question to {what}: {shares}")  # noqa: T201 - its output


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--work-s", type=float, default=5.0, help="how long an agent works")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        burst = measure(Path(directory), questions=given.questions, work_s=given.work_s)
        _print(asyncio.run(burst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
