"""What agents ask people in mid-run, in the whole service: each vendor's command line has the tool, people have buttons and a form."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.playground.slack.types import COLLEAGUE, YOU, FakeSlackConfig, JsonObject
from app.slack.actions import CHOOSE_ACTIONS, DENY_ACTION, WRITE_ACTION
from tests.e2e.harness import Stage, open_orion, open_world, text_of
from tests.e2e.orion_process import new_state_dir
from tests.e2e.prepared import PREPARED, prepared_state_dir

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.bubblewrap,
    pytest.mark.timeout(300),
]

QUESTION = {"text": "Which name?", "options": ["old", "new"], "otherwise": "I keep the old one."}
QUICK_RETRIES = FakeSlackConfig(rate_limits="off", retry_delays_s=(0.0, 2.0, 4.0, 8.0))


@asynccontextmanager
async def asking_stage(
    tmp_path: Path, agent: str, directory: Path, **settings: str
) -> AsyncIterator[Stage]:
    async with (
        open_world(QUICK_RETRIES) as world,
        open_orion(
            world,
            new_state_dir(tmp_path),
            directory,
            toml="questions = true\n[channels.C0RANDOM]\nquestions = false\n",
            ORION_AGENT=agent,
            **settings,
        ) as stage,
    ):
        yield stage


def asking(question: Mapping[str, object] = QUESTION) -> str:
    return f"@Orion call: ask_person {json.dumps(question)}"


async def card_of(stage: Stage, ts: str, words: str = "I need to know") -> JsonObject:
    return await stage.client.wait_for_reply(ts, lambda reply: words in json.dumps(reply["blocks"]))


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(name, marks=[] if name == "anthropic" else [pytest.mark.long])
        for name in PREPARED
    ],
)
async def test_an_agent_is_answered(agent: str, tmp_path: Path) -> None:
    """By a button; the card becomes the record, and the answer reaches the model."""
    async with asking_stage(tmp_path, agent, prepared_state_dir(agent)) as stage:
        ts = await stage.client.say(asking())
        card = await card_of(stage, ts)
        await stage.client.press(card, CHOOSE_ACTIONS[1])
        assert f"{YOU} answered: new" in text_of(await stage.answer(ts, timeout_s=120))
        record = await card_of(stage, ts, "*Answered*")
        assert record["ts"] == card["ts"]


@pytest.mark.long
async def test_words_a_wrong_person_and_nobody(tmp_path: Path) -> None:
    """An answer in words through a crash, one that is not theirs, one that is left to the agent; a channel without questions has no such tool."""
    directory = prepared_state_dir("claude")
    async with asking_stage(tmp_path, "claude", directory) as stage:
        ts = await stage.client.say(asking())
        card = await card_of(stage, ts)
        await stage.client.press(card, CHOOSE_ACTIONS[0], user=COLLEAGUE)
        (told,) = [
            one for one in await stage.client.replies(ts) if one["ephemeral_to"] == COLLEAGUE
        ]
        assert "your press has changed nothing" in text_of(told)
        await stage.orion.kill9()
        await stage.orion.start()
        opened = await stage.client.press(card, WRITE_ACTION)
        sent = await stage.client.submit(opened["view"], {"answer": "neither & <both>"})
        assert sent["ok"], sent
        answer = text_of(await stage.answer(ts, timeout_s=120))
        assert f"{YOU} answered: neither & <both>" in answer

        left = await stage.client.say(asking({"text": "And now?", "otherwise": "nothing"}))
        await stage.client.press(await card_of(stage, left), DENY_ACTION)
        assert "They leave that to you" in text_of(await stage.answer(left, timeout_s=120))
        elsewhere = await stage.client.say("@Orion hello", channel="random")
        await stage.answer(elsewhere, channel="random", timeout_s=120)
        here, there = [
            json.dumps((await stage.world.model_requests())[at]["body"]) for at in (-2, -1)
        ]
        assert "ask_person" in here
        assert "ask_person" not in there
