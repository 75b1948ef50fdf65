"""The command lines of other makers answer in Slack, from local sandboxes and from containers: files, memory, Stop."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agent_scripts.registry import agent_spec
from app.errors import ErrorCode
from app.playground.model.question import REVOKED
from app.runs.testing import RunState
from tests.e2e.docker_world import open_docker_orion, prepared_image
from tests.e2e.giving_keys import OWN, SECRET, give_key
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import VENDORS, prepared_state_dir
from tests.e2e.secret_scan import KEYS, scan

pytestmark = [pytest.mark.e2e, pytest.mark.agents, pytest.mark.timeout(600)]

TELLS_TOOLS_LATE = "opencode"
"""It prints a tool call when that is over."""
LOSES_SESSIONS = "gemini"
"""One in which there was a tool it cannot take up again: it is begun anew, with what was said."""


@pytest.fixture(scope="session", params=VENDORS)
def prepared(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """An agent, and a state directory with its environment."""
    return request.param, prepared_state_dir(request.param)


@pytest.fixture(scope="session", params=VENDORS)
def image(request: pytest.FixtureRequest) -> tuple[str, str]:
    """An agent, and an image with its environment."""
    return request.param, prepared_image(request.param)


@pytest.mark.bubblewrap
async def test_locally(prepared: tuple[str, Path], tmp_path: Path) -> None:
    """Each changes a file, which is told and kept; no key is inside."""
    agent, directory = prepared
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), directory, ORION_AGENT=agent) as stage,
    ):
        ts = await _ask(stage, agent)
        await scan(stage, KEYS, there="Written by Orion's offline", thread_ts=ts)


@pytest.mark.bubblewrap
@pytest.mark.long
async def test_a_conversation(prepared: tuple[str, Path], tmp_path: Path) -> None:
    """With each."""
    agent, directory = prepared
    async with (
        open_world() as world,
        open_orion(world, new_state_dir(tmp_path), directory, ORION_AGENT=agent) as stage,
    ):
        await _converse(stage, agent)


@pytest.mark.docker
@pytest.mark.long
async def test_in_docker(image: tuple[str, str], tmp_path: Path) -> None:
    """The same."""
    agent, name = image
    async with (
        open_world() as world,
        open_docker_orion(world, new_state_dir(tmp_path), name, ORION_AGENT=agent) as stage,
    ):
        await _converse(stage, agent)


@pytest.mark.bubblewrap
@pytest.mark.long
async def test_a_persons_own_key_that_is_refused(
    prepared: tuple[str, Path], tmp_path: Path
) -> None:
    """Each maker has an answer of its own to a wrong key; it is told as the person's to mend."""
    agent, directory = prepared
    state_dir = new_state_dir(tmp_path)
    settings = {"ORION_AGENT": agent, "ORION_OWN_KEYS_SECRET": SECRET}
    async with open_world() as world, open_orion(world, state_dir, directory, **settings) as stage:
        await give_key(stage, f"{OWN}-{REVOKED}", protocol=agent_spec(agent).protocol or "")
        ts = await stage.client.say("@Orion hello")
        said = text_of(await stage.answer(ts, timeout_s=120))
        assert said.startswith("The model did not accept your own key; write settings"), said
        assert (await stage.record(ts)).result.error_code == ErrorCode.REQUEST_INVALID


async def _ask(stage: Stage, agent: str) -> str:
    """The diff is in the thread, and the agent in the record."""
    ts = await stage.client.say("@Orion remember 4711\nedit: notes.txt")
    answer = await stage.answer(ts, timeout_s=120)
    assert "1 file changed" in str(answer["blocks"])
    shared = await stage.client.wait_for_reply(ts, lambda reply: bool(reply.get("files")))
    assert shared["files"][0]["name"].endswith(".patch")
    first = await stage.record(ts)
    assert (first.agent, first.result.error_code) == (agent, None)
    assert first.result.hosts == ()
    assert first.result.usage.input_tokens > 0
    return ts


async def _converse(stage: Stage, agent: str) -> None:
    """The follow-up finds the file and remembers; Stop ends what it runs; no key got anywhere."""
    ts = await _ask(stage, agent)
    second = await stage.client.say("@Orion run: cat notes.txt", thread_ts=ts)
    said = text_of(await stage.answer(second, thread_ts=ts))
    assert "Written by Orion's offline model." in said
    third = await stage.client.say("@Orion what did I ask before?", thread_ts=ts)
    assert "cat notes.txt" in text_of(await stage.answer(third, thread_ts=ts))
    lost = stage.orion.log_lines("agent.session_lost")
    assert len(lost) == (2 if agent == LOSES_SESSIONS else 0)

    asked = len(await stage.world.model_requests())
    slow = await stage.client.say("@Orion run: sleep 300", thread_ts=ts)
    if agent == TELLS_TOOLS_LATE:
        await _model_is_asked(stage, asked + 1)
        await asyncio.sleep(2)
    else:
        await stage.client.wait_for_reply(
            ts, lambda reply: reply["ts"] > slow and "sleep 300" in str(reply["blocks"])
        )
    await stage.client.say("stop", thread_ts=ts)
    stopped = await stage.answer(slow, thread_ts=ts)
    assert "Stopped by" in json.dumps(stopped["blocks"])
    assert (await stage.record(slow)).state is RunState.STOPPED
    looked_at = await scan(stage, KEYS, there="Written by Orion's offline", thread_ts=ts)
    sys.stdout.write(f"{agent}, looked at: {looked_at}\n")


async def _model_is_asked(stage: Stage, times: int) -> None:
    async with asyncio.timeout(60):
        while len(await stage.world.model_requests()) < times:
            await asyncio.sleep(0.1)
