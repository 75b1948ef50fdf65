"""Runs that are over, shown once more by the code that shows live ones."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent_scripts.registry import agent_names
from app.cli.commands.replay import RecordedLine, Recording, playground_of, read_log, show
from app.runs.testing import RunState
from tests.fake_slack_client import open_client
from tests.replays import recording_of, recordings, section

KEPT = Path("docs/replays.md").read_text()
LONG_RUN_S = 600.0


@pytest.mark.parametrize("agent", sorted(agent_names()))
async def test_what_people_see_is_as_it_was(agent: str) -> None:
    """Of each agent and each of its endings; `make replays` renews the page, to be looked at before it is kept."""
    names = [name for one, name in recordings() if one == agent]
    assert names
    for name in names:
        assert await section(agent, name) in KEPT, name


def test_the_page_has_nothing_else() -> None:
    found = re.findall(r"^## (\w+): (.+)$", KEPT, re.MULTILINE)
    assert found == list(recordings())


@pytest.mark.parametrize(
    ("log", "times"),
    [
        ("", []),
        ("12:00:00.250 | a\n12:00:01.500 | b", [0.0, 1.25]),
        ("12:00:00 | a\n12:00:03 ! warned\n12:00:05 | b", [0.0, 5.0]),
        ("23:59:59.000 | a\n00:00:01.000 | b", [0.0, 2.0]),
        ("12:00:00.000 | a\n[7 lines left out]\n12:09:00.000 | b", [0.0, 540.0]),
        ("12:00:05.000 | a\n12:00:04.000 | a clock that was set back", [0.0, 0.0]),
        ("neither a line\n99 | nor this", []),
    ],
)
def test_lines_have_their_times(log: str, times: Sequence[float]) -> None:
    """Also where the log was cut, and past midnight; warnings are no output."""
    assert [line.at_s for line in read_log(log)] == times


def long_recording() -> Recording:
    recording = recording_of(
        "claude", next(n for a, n in recordings() if (a, n[-5:]) == ("claude", "tools"))
    )
    pace_s = LONG_RUN_S / (len(recording.lines) - 1)
    lines = [RecordedLine(at_s=n * pace_s, text=one.text) for n, one in enumerate(recording.lines)]
    return replace(recording, lines=lines, patch="--- a\n+++ b\n")


async def test_its_own_time_or_faster() -> None:
    """All waits together are what it took; its patch is there, and its answer as it was."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    recording = long_recording()
    async with (
        playground_of(recording, port=0) as (url, channel, ts, slack),
        open_client(url) as client,
    ):
        delivery = await show(
            recording, slack.replies, channel=channel, root_ts=ts, speed=2, sleep=sleep
        )
        messages = await client.replies(ts, channel=channel)
    assert delivery.text == "sent"
    assert sum(slept) == pytest.approx(LONG_RUN_S / 2)
    assert recording.run.result.answer.splitlines()[0] in str(messages)
    assert f"changes-{recording.run.id}.patch" in str(messages)


async def test_a_run_without_an_agent() -> None:
    """Only its end is shown."""
    recording = recording_of(*next(recordings()))
    run = replace(recording.run, agent="", state=RunState.STOPPED)
    async with playground_of(recording, port=0) as (_, channel, ts, slack):
        shown = await show(
            replace(recording, run=run), slack.replies, channel=channel, root_ts=ts, speed=0
        )
    assert shown.text == "sent"
