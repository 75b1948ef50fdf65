"""An urgent message is told to the agent at work, or another one goes on with all that was asked."""

import json
from pathlib import Path

import pytest

from app.runs.testing import HEARD_BEFORE, MEANWHILE
from app.slack.actions import SEND_NOW_ACTION
from tests.e2e.harness import Stage, open_orion, open_world, run_of, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

SLOW_WORDS = "offline model and I write"


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        pytest.param("!slow 25", SLOW_WORDS, marks=pytest.mark.long),
        ("run: sleep 4; echo first", "sleep 4"),
    ],
)
async def test_an_agent_at_work_is_told_of_an_urgent_message(
    shared: Stage, asked: str, shown: str
) -> None:
    """While its model writes, which breaks off, or behind the tool that goes; one answer is to both."""
    ts = await shared.client.say(f"@Orion {asked}")
    await _until_shown(shared, ts, shown)
    urgent = await shared.client.say("@Orion ! run: echo 4711", thread_ts=ts)
    await shared.answer(ts)
    assert HEARD_BEFORE in text_of(await shared.answer(urgent, thread_ts=ts))
    requests = [json.dumps(one) for one in await shared.world.model_requests()]
    assert any(MEANWHILE in one and "run: echo 4711" in one for one in requests)
    first = await shared.record(ts)
    assert (first.state, first.result.heard) == ("succeeded", (shared.run_id(urgent),))
    (root,) = (await shared.world.whole_trace(first.trace_id))["observations"]
    agent = next(child for child in root["children"] if child["name"] == "execute-agent")
    assert agent["metadata"]["heard_runs"] == shared.run_id(urgent)


async def _until_shown(stage: Stage, ts: str, words: str) -> None:
    await stage.client.wait_for_reply(ts, lambda reply: words in text_of(reply))


@pytest.fixture(scope="session", params=["claude", "codex"])
def spoken_to(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A command line that is spoken to while it works, and a state directory with its environment."""
    return request.param, prepared_state_dir(request.param)


@pytest.mark.agents
@pytest.mark.long
async def test_a_command_line_at_work_is_told(spoken_to: tuple[str, Path], tmp_path: Path) -> None:
    """While its model writes, which breaks off, and behind the command that goes; one answer is to both, and its memory lasts."""
    agent, directory = spoken_to
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), directory, ORION_AGENT=agent) as stage,
    ):
        ts = ""
        for asked, shown in (("!slow 25", SLOW_WORDS), ("run: sleep 6; echo first", "sleep 6")):
            ts = await stage.client.say(f"@Orion {asked}")
            await _until_shown(stage, ts, shown)
            urgent = await stage.client.say("@Orion ! run: echo 47$((11))", thread_ts=ts)
            await stage.answer(ts)
            assert HEARD_BEFORE in text_of(await stage.answer(urgent, thread_ts=ts))
            record = await stage.record(ts)
            assert (record.state, record.result.heard) == ("succeeded", (stage.run_id(urgent),))
            requests = [json.dumps(one) for one in await world.model_requests()]
            assert any(MEANWHILE in one and "run: echo 47$((11))" in one for one in requests)
        after = await stage.client.say("@Orion what did I ask before?", thread_ts=ts)
        assert "echo 47$((11))" in text_of(await stage.answer(after, thread_ts=ts))
        assert stage.orion.log_lines("agent.session_lost") == []


@pytest.mark.long
async def test_another_agent_is_started_with_both(shared: Stage) -> None:
    """Where the urgent message wants another model, what goes on stops, with its work kept."""
    ts = await shared.client.say("@Orion !slow 25")
    await _until_shown(shared, ts, SLOW_WORDS)
    urgent = await shared.client.say("@Orion ! model=opus run: echo 4711", thread_ts=ts)
    assert "4711" in text_of(await shared.answer(urgent, thread_ts=ts))
    assert "Made way for a later message" in text_of(await shared.answer(ts))


@pytest.mark.long
async def test_send_now_is_pressed(shared: Stage) -> None:
    """On the message of a question that waits in its thread: the agent at work is told of it, and the message shows so at once."""
    ts = await shared.client.say("@Orion !slow 25")
    await _until_shown(shared, ts, SLOW_WORDS)
    waiting = await shared.client.say("@Orion and then?", thread_ts=ts)
    run_id = shared.run_id(waiting)
    queued = await shared.client.wait_for_reply(
        ts, lambda reply: run_of(reply) == run_id and "Queued behind" in text_of(reply)
    )
    assert (await shared.client.press(queued, SEND_NOW_ACTION))["ok"]
    redrawn = await shared.client.wait_for_reply(
        ts, lambda reply: run_of(reply) == run_id and "Interrupting" in text_of(reply)
    )
    assert SEND_NOW_ACTION not in str(redrawn["blocks"])
    assert HEARD_BEFORE in text_of(await shared.answer(waiting, thread_ts=ts))
    assert "and then?" in text_of(await shared.answer(ts))
