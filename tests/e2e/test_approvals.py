"""What an agent may do outside only after somebody has said yes, in the whole service: a tool of an MCP server, a push, a pull request, one's own key, a host."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import COLLEAGUE, YOU, FakeSlackConfig, JsonObject
from app.runs.testing import RunState
from app.slack.actions import ALLOW_ACTION, ALLOW_THREAD_ACTION, DENY_ACTION, STOP_ACTION
from tests.e2e.giving_keys import OWN, SECRET, give_key
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.notes_server import CANARY, open_notes
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import prepared_state_dir
from tests.e2e.repositories import open_with_repositories
from tests.git_server import GitServer, git

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


WAITS = "Waiting for a person's answer"


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
        await stage.client.wait_for_reply(ts, lambda one: WAITS in json.dumps(one["blocks"]))
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
        assert "a person said no to" in answer
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


@pytest.mark.long
async def test_time_stands_still_while_people_think(prepared_claude: Path, tmp_path: Path) -> None:
    """They take longer than the run may."""
    limit_s = 25
    async with asking_stage(tmp_path, prepared_claude, ORION_RUN_TIMEOUT_S=str(limit_s)) as scene:
        stage, notes = scene
        ts = await stage.client.say(call("first"))
        card = await card_of(stage, ts)
        await asyncio.sleep(limit_s + 10)
        assert notes == []
        await stage.client.press(card, ALLOW_ACTION)
        assert "kept first" in text_of(await stage.answer(ts, timeout_s=60))
        assert notes == ["first"]


def asks(*deeds: str) -> str:
    """Rules for these, such as `push = "*"`."""
    return "\n".join(f'[[approvals]]\n{deed}\ndecision = "ask"' for deed in deeds)


def expire(stage: Stage) -> None:
    """As if the time of all that waits were over."""
    assert isinstance(stage.orion.database, Path)
    with closing(sqlite3.connect(stage.orion.database)) as database, database:
        database.execute("UPDATE orion_approvals SET until = until - 7200 WHERE state = 'waiting'")


@pytest.mark.long
async def test_a_push_and_a_pull_request_wait_for_a_yes(prepared: Path, tmp_path: Path) -> None:
    """Each for its own; the server has nothing before. A no, and nobody's answer, are told below the answer, each as what it is."""
    server = GitServer(root=tmp_path / "git")
    bare = server.filled("acme/api", {"a": "1\n"})
    rules = asks('push = "acme/*"', 'pull_request = "acme/*"')
    question, pushes = "@Orion repo=acme/api pr=yes run: date > a", "push to"
    async with open_with_repositories(tmp_path, prepared, server, toml=rules) as stage:
        ts = await stage.client.say(question)
        card = await card_of(stage, ts, pushes)
        assert git(bare, "branch", "--list", "orion/*") == ""
        await stage.client.press(card, ALLOW_ACTION)
        card = await card_of(stage, ts, "open a pull request in")
        assert git(bare, "branch", "--list", "orion/*") != ""
        assert server.pulls == []
        await stage.client.press(card, ALLOW_ACTION)
        assert "/pull/1" in text_of(await stage.answer(ts, timeout_s=90))

        denied = await stage.client.say(question)
        await stage.client.press(await card_of(stage, denied, pushes), DENY_ACTION)
        assert "a person said no to" in text_of(await stage.answer(denied, timeout_s=90))
        unheard = await stage.client.say(question)
        await card_of(stage, unheard, pushes)
        expire(stage)
        answer = text_of(await stage.answer(unheard, timeout_s=90))
        assert "could not be pushed" in answer
        assert "denied" not in answer
        await card_of(stage, unheard, "nobody answered in time")
        assert len(server.pulls) == 1
        branches = git(bare, "branch", "--list", "orion/*", "--format=%(refname:short)")
        assert len(branches.splitlines()) == 1


@pytest.mark.long
async def test_ones_own_key_is_spent_after_a_yes(prepared: Path, tmp_path: Path) -> None:
    """Nothing is asked of the model before; a no and nobody's answer end the run, each with a code of its own."""
    rules = asks('own_key = "anthropic"')
    async with (
        open_world() as world,
        open_orion(
            world, new_state_dir(tmp_path), prepared, toml=rules, ORION_OWN_KEYS_SECRET=SECRET
        ) as stage,
    ):
        await give_key(stage, OWN)
        ts = await stage.client.say("@Orion hello")
        card = await card_of(stage, ts, "spend from your own key")
        assert await world.model_requests() == []
        await stage.client.press(card, ALLOW_ACTION)
        await stage.answer(ts, timeout_s=60)
        spent = [one["headers"]["x-api-key"] for one in await world.model_requests()]
        assert set(spent) == {OWN}

        denied = await stage.client.say("@Orion hello again")
        await stage.client.press(await card_of(stage, denied, "spend from"), DENY_ACTION)
        unheard = await stage.client.say("@Orion hello once more")
        await card_of(stage, unheard, "spend from")
        expire(stage)
        codes = [(await stage.ended(one)).result.error_code for one in (denied, unheard)]
        assert codes == [ErrorCode.NOT_ALLOWED, ErrorCode.APPROVAL_EXPIRED]
        assert "which is no refusal" in text_of(await stage.answer(unheard))
        assert len(await world.model_requests()) == len(spent)


@pytest.mark.long
async def test_a_host_is_reached_after_a_yes(prepared: Path, tmp_path: Path) -> None:
    """The connection is held meanwhile. What the yes is for is tried; a no is a refusal, to the client at once."""
    command = "@Orion run: curl -sS https://nowhere.invalid/ 2>&1"
    async with (
        open_world() as world,
        open_orion(
            world, new_state_dir(tmp_path), prepared, toml=asks('host = "nowhere.invalid"')
        ) as stage,
    ):
        ts = await stage.client.say(command)
        card = await card_of(stage, ts, "reach the host `nowhere.invalid:443`")
        await stage.client.press(card, ALLOW_ACTION)
        assert "response 502" in text_of(await stage.answer(ts, timeout_s=60))
        denied = await stage.client.say(command)
        await stage.client.press(await card_of(stage, denied, "reach the host"), DENY_ACTION)
        assert "response 403" in text_of(await stage.answer(denied, timeout_s=60))
