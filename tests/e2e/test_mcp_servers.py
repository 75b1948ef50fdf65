"""Claude Code uses an MCP server that lies outside its sandbox; what it did there is not done twice after a crash."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.playground.slack.types import FakeSlackConfig
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.notes_server import CANARY, open_notes
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(300),
]

QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))


@pytest.fixture(scope="session")
def prepared_claude() -> Path:
    return prepared_state_dir("claude")


def _call(text: str, seconds: float) -> str:
    return f"@Orion call: mcp__notes__note {json.dumps({'text': text, 'seconds': seconds})}"


@pytest.mark.long
async def test_a_tool_outside_is_used_and_not_used_twice(
    prepared_claude: Path, tmp_path: Path
) -> None:
    """Its key stays outside; after a kill -9 the run that used it ends in INTERRUPTED, and one that did not is answered."""
    file = tmp_path / "mcp.json"
    async with open_notes() as (url, notes), open_world(QUICK_RETRIES) as world:
        notes_server = {
            "type": "http",
            "url": url,
            "headers": {"Authorization": "Bearer ${NOTES_KEY}"},
        }
        dead = {"command": "/bin/false", "args": []}
        file.write_text(json.dumps({"mcpServers": {"notes": notes_server, "dead": dead}}))
        async with open_orion(
            world,
            new_state_dir(tmp_path),
            prepared_claude,
            ORION_AGENT="claude",
            ORION_MCP_CONFIG_FILE=str(file),
            NOTES_KEY=CANARY,
        ) as stage:
            ts = await stage.client.say(_call("first", 0))
            said = text_of(await stage.answer(ts, timeout_s=60))
            assert "kept first" in said
            assert "MCP server dead could not be used" in said.replace("`", ""), said
            assert (await stage.record(ts)).has_outside_effect
            seen = await stage.client.say("@Orion run: env; cat /orion/*/mcp.json; ls -R ~ /tmp")
            assert CANARY not in text_of(await stage.answer(seen, timeout_s=60))
            assert not (await stage.record(seen)).has_outside_effect

            crashed = await stage.client.say(_call("second", 30))
            await _until(lambda: "second" in notes)
            harmless = await stage.client.say("@Orion !slow 8")
            await stage.client.wait_for_reply(harmless, lambda reply: "slowly" in text_of(reply))
            await stage.orion.kill9()
            await stage.orion.start()
            await _assert_interrupted(stage, crashed)
            assert "I write slowly" in text_of(await stage.answer(harmless, timeout_s=60))
        assert notes == ["first", "second"]


async def _assert_interrupted(stage: Stage, ts: str) -> None:
    await stage.ended(ts, timeout_s=60)
    record = await stage.record(ts)
    assert (record.state, record.result.error_code) == ("failed", "INTERRUPTED")
    (reply,) = await stage.client.replies(ts)
    assert "must not do twice" in text_of(reply)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)
