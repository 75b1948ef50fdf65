"""Answers that are written at once and end at once: how late the last of them is, by what is shown meanwhile."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from app.slack.actions import FEEDBACK_ACTION
from sandbox_runtime.task_group import open_task_group
from tests.bench.acks import open_instant_orion
from tests.bench.processes import BenchError, open_server
from tests.bench.scale import Bench
from tests.bench.slack_server import CHANNELS
from tests.bench.table import Row
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.ports import free_port

COUNT = 20
WORK_S = 8.0
"""So long each writes, a few words five times a second."""
MORE_S = 2.0
ANSWER_TIMEOUT_S = 120.0


async def measure_streams(bench: Bench) -> Sequence[Row]:
    """Within Slack's limits, each in a channel of its own; against the same without progress."""
    streamed_s, refused = await _answer(bench, "stream")
    final_s, _ = await _answer(bench, "final")
    return (
        Row(
            figure=f"mention to the last answer, {COUNT} streams at once (fake sandbox; baseline: no progress)",
            unit="s",
            orion=max(streamed_s),
            baseline=max(final_s),
            target=max(final_s) + MORE_S,
        ),
        Row(figure=f"calls that Slack's limits refused, {COUNT} streams", unit="", orion=refused),
    )


async def _answer(bench: Bench, live: Literal["stream", "final"]) -> tuple[Sequence[float], int]:
    """Seconds from each question to its answer, and how many calls were refused."""
    world_port, port = free_port(), free_port()
    events_url = f"http://127.0.0.1:{port}/slack/events"
    argv = ("tests.bench.slack_server", str(world_port), "limited", events_url)
    async with open_server(argv, port=world_port, directory=bench.directory) as world:
        orion = open_instant_orion(
            bench,
            api_url=f"{world.url}/api/",
            port=port,
            work_s=WORK_S,
            writes=True,
            settings={"ORION_LIVE_ANSWERS_CHANNEL": live},
        )
        async with orion, open_client(world.url) as person:
            roots = await say_in(person, CHANNELS[:COUNT])
            answered = [await answered_at(person, root, channel) for channel, root in roots.items()]
            calls = await person.calls()
    refused = sum(call["error"] == "ratelimited" for call in calls)
    return [at - float(root) for at, root in zip(answered, roots.values(), strict=True)], refused


async def say_in(person: FakeSlackClient, channels: Sequence[str]) -> Mapping[str, str]:
    """Returns the questions by their channels, all asked at once."""
    async with open_task_group() as group:
        saying = {
            channel: group.create_task(person.say("@Orion write", channel=channel))
            for channel in channels
        }
    return {channel: task.result() for channel, task in saying.items()}


async def answered_at(person: FakeSlackClient, root: str, channel: str) -> float:
    """When the answer below a question stood, by the fake Slack's clock."""
    try:
        answer = await person.wait_for_reply(
            root, _is_answer, channel=channel, timeout_s=ANSWER_TIMEOUT_S
        )
    except TimeoutError as exc:
        raise BenchError(f"no answer in {channel}") from exc
    whole = next(version for version in await person.versions(answer) if _is_answer(version))
    return datetime.fromisoformat(whole["at"]).timestamp()


def _is_answer(shown: Mapping[str, object]) -> bool:
    return FEEDBACK_ACTION in str(shown["blocks"])
