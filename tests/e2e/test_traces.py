"""Operators see every step of a run in Langfuse; a Langfuse that is down costs nobody anything."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from app.playground.slack.types import TEAM_ID, YOU
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import EXPORTED_WITHIN_S, Stage, World, open_world
from tests.ports import free_port
from tests.sockets import open_black_hole

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

STOPPED_WITHIN_S = 20.0
STEPS = {
    *("queue-wait", "place-message", "restore-environment", "sandbox-create", "write-script"),
    *("execute-agent", "workspace-save", "slack-update", "sandbox-stop"),
}


async def test_a_run_is_one_trace_with_all_its_steps(start_orion: OpenOrion) -> None:
    """Root `run` of type agent without a parent; below it the steps by name; generations and tools below the agent."""
    async with open_world() as world, start_orion(world) as stage:
        ts = await stage.client.say("@Orion run: echo traced")
        await stage.answer(ts)
        record = await stage.record(ts)
        tree = await stage.world.whole_trace(record.trace_id)
    (root,) = tree["observations"]
    assert (root["name"], root["type"], root["parent_id"]) == ("run", "agent", "")
    assert {child["name"] for child in root["children"]} == STEPS
    assert root["user"] == YOU
    assert root["session"] == f"{TEAM_ID}-C0GENERAL-{ts}"
    assert set(root["tags"]) == {"anthropic", "local", "channel"}
    assert root["metadata"]["run_id"] == record.id
    assert root["metadata"]["message_ts"] == ts
    assert root["metadata"]["sandbox_id"] == record.sandbox_id
    agent = next(child for child in root["children"] if child["name"] == "execute-agent")
    kinds = sorted(child["type"] for child in agent["children"])
    assert kinds == ["generation", "generation", "tool"]
    generation = next(child for child in agent["children"] if child["type"] == "generation")
    assert generation["model"] == "claude-sonnet-5-5"
    assert generation["usage"]["output"] > 0
    assert (generation["prompt"], generation["prompt_version"]) == ("orion-system-prompt", 1)
    created = next(child for child in root["children"] if child["name"] == "sandbox-create")
    assert len(created["children"]) == 1
    assert '"success":true' in root["output"]
    assert "echo traced" in root["input"]


@pytest.mark.long
async def test_a_failed_run_is_red_and_names_its_code(shared: Stage) -> None:
    """Level and status carry the code; a person's thumb becomes a score, the last one counts."""
    ts = await shared.client.say("@Orion !refuse")
    await shared.answer(ts)
    record = await shared.record(ts)
    (root,) = (await shared.world.whole_trace(record.trace_id))["observations"]
    assert root["level"] == "ERROR"
    assert root["status"].startswith("MODEL_REFUSED")
    asked = await shared.client.say("@Orion rate me")
    answer = await shared.answer(asked)
    run_id = shared.run_id(asked)
    for verdict in ("up", "down"):
        await shared.client.press(answer, "orion_feedback", value=f"{verdict}:{run_id}")
        await asyncio.sleep(0.1)
    trace_id = (await shared.record(asked)).trace_id
    async with asyncio.timeout(EXPORTED_WITHIN_S):
        while True:
            tree = await shared.world.trace(trace_id)
            if tree and [score["value"] for score in tree["scores"]] == [0.0]:
                break
            await asyncio.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["refused", "black_hole"])
async def test_a_dead_langfuse_slows_nothing(
    world: World,
    start_orion: OpenOrion,
    kind: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Runs end as ever, and the service still ends within 20 s."""
    async with _dead_server(kind) as url, start_orion(world, LANGFUSE_BASE_URL=url) as stage:
        ts = await stage.client.say("@Orion hello")
        await stage.answer(ts)
        record = await stage.record(ts)
        assert record.ended_at is not None
        fault("Langfuse: down" if kind == "refused" else "Langfuse: black hole").assert_holds(
            record
        )
        took_s = (record.ended_at - record.created_at).total_seconds()
        record_property(f"langfuse {kind}: run [s]", round(took_s, 2))
        assert took_s < 15
        started = time.monotonic()
        assert await stage.orion.terminate() == 0
        ended_s = time.monotonic() - started
        record_property(f"langfuse {kind}: SIGTERM to exit [s]", round(ended_s, 2))
        assert ended_s < STOPPED_WITHIN_S


@asynccontextmanager
async def _dead_server(kind: str) -> AsyncIterator[str]:
    if kind == "refused":
        yield f"http://127.0.0.1:{free_port()}"
        return
    with open_black_hole() as url:
        yield url
