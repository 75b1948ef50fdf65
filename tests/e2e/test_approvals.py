"""What an agent may do outside only after somebody has said yes, in the whole service: a tool of an MCP server, a push, a pull request."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.playground.slack.types import COLLEAGUE, YOU, FakeSlackConfig, JsonObject
from app.runs.testing import RunState
from app.slack.actions import ALLOW_ACTION, ALLOW_THREAD_ACTION, DENY_ACTION, STOP_ACTION
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

RULES = """
[[approvals]]
tool = "notes.note"
decision = "ask"
"""
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))
EFFECT_WITHIN_S = 5.0
"""Of a press, on a machine that does other things; `make bench` measures it."""


@pytest.fixture(scope="session")
def prepared_claude() -> Path:
    return prepared_state_dir("claude")


@asynccontextmanager
async def asking_stage(
    tmp_path: Path, prepared: Path, rules: str = RULES, **settings: str
) -> AsyncIterator[tuple[Stage, list[str]]]:
    """A service whose agent, Claude Code, has a tool outside that a rule is about; and what the tool has noted."""
    file = tmp_path / "mcp.json"
    async with open_notes() as (url, notes), open_world(QUICK_RETRIES) as world:
        headers = {"Authorization": "Bearer ${NOTES_KEY}"}
        server = {"type": "http", "url": url, "headers": headers}
        file.write_text(json.dumps({"mcpServers": {"notes": server}}))
        async with open_orion(
            world,
            new_state_dir(tmp_path),
            prepared,
            toml=rules,
            ORION_AGENT="claude",
            ORION_MCP_CONFIG_FILE=str(file),
            NOTES_KEY=CANARY,
            **settings,
        ) as stage:
            yield stage, notes


def call(text: str) -> str:
    return f"@Orion call: mcp__notes__note {json.dumps({'text': text})}"


async def card_of(stage: Stage, ts: str, words: str = "May I?") -> JsonObject:
    """The card in a thread, as soon as it says so."""
    return await stage.client.wait_for_reply(ts, lambda reply: words in json.dumps(reply["blocks"]))


async def test_a_tool_is_used_after_a_yes(prepared_claude: Path, tmp_path: Path) -> None:
    """Exactly what was shown, by whoever may say so; the card becomes the record. For the whole thread nobody is asked again."""
    async with asking_stage(tmp_path, prepared_claude) as (stage, notes):
        ts = await stage.client.say(call("first"))
        card = await card_of(stage, ts)
        shown = json.dumps(card["blocks"])
        assert "`notes.note`" in shown
        assert "first" in shown
        await stage.client.press(card, ALLOW_ACTION, user=COLLEAGUE)
        (told,) = [
            one for one in await stage.client.replies(ts) if one["ephemeral_to"] == COLLEAGUE
        ]
        assert "your press has changed nothing" in text_of(told)
        assert notes == []
        await stage.client.press(card, ALLOW_ACTION)
        async with asyncio.timeout(EFFECT_WITHIN_S):
            while not notes:
                await asyncio.sleep(0.02)
        assert "kept first" in text_of(await stage.answer(ts, timeout_s=60))
        record = await card_of(stage, ts, "Allowed, and let through")
        assert record["ts"] == card["ts"]
        assert f"<@{YOU}> said yes" in json.dumps(record["blocks"])

        second = await stage.client.say(call("second"), thread_ts=ts)
        card = await stage.client.wait_for_reply(
            ts, lambda one: one["ts"] > second and "May I?" in json.dumps(one["blocks"])
        )
        await stage.client.press(card, ALLOW_THREAD_ACTION)
        await stage.answer(second, thread_ts=ts, timeout_s=60)
        third = await stage.client.say(call("third"), thread_ts=ts)
        await stage.answer(third, thread_ts=ts, timeout_s=60)
        assert notes == ["first", "second", "third"]

        other = await stage.client.say(call("fourth"))
        await stage.client.press(await card_of(stage, other), DENY_ACTION)
        answer = text_of(await stage.answer(other, timeout_s=60))
        assert f"denied by {YOU}" in answer
        stopped = await stage.client.say(call("fifth"))
        await card_of(stage, stopped)
        message = await stage.thinking(stopped)
        await stage.client.press(message, STOP_ACTION)
        assert (await stage.ended(stopped)).state is RunState.STOPPED
        await card_of(stage, stopped, "Not needed any more")
        assert notes == ["first", "second", "third"]


async def test_what_waits_survives_the_service(prepared_claude: Path, tmp_path: Path) -> None:
    """Killed while it waits, the run goes on, waits for the same card, and does it once after the yes."""
    async with asking_stage(tmp_path, prepared_claude) as (stage, notes):
        ts = await stage.client.say(call("first"))
        card = await card_of(stage, ts)
        await stage.orion.kill9()
        await stage.orion.start()
        asked = len(await stage.world.model_requests())
        async with asyncio.timeout(60):
            while len(await stage.world.model_requests()) == asked:
                await asyncio.sleep(0.05)
        assert notes == []
        await stage.client.press(card, ALLOW_ACTION)
        assert "kept first" in text_of(await stage.answer(ts, timeout_s=90))
        assert notes == ["first"]
        cards = [
            one
            for one in await stage.client.replies(ts)
            if "rule `tool" in json.dumps(one["blocks"])
        ]
        assert [one["ts"] for one in cards] == [card["ts"]]
