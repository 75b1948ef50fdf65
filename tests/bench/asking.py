"""How soon a person's yes lets through what waits for it, and their answer reaches the agent that asked."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from app.playground.slack.types import JsonObject
from app.slack.actions import ALLOW_ACTION, CHOOSE_ACTIONS
from tests.bench.pool import POLL_S, first_request_after, open_orion
from tests.bench.processes import BenchError
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import (
    ANSWER_TIMEOUT_S,
    FIRST_ANSWER_TIMEOUT_S,
    Scene,
    ask,
    open_scene,
)
from tests.e2e.harness import text_of
from tests.e2e.notes_server import CANARY, open_notes
from tests.fake_slack_client import FakeSlackClient, open_client

TARGET_S = 1.0
RULES = """
questions = true
[[approvals]]
tool = "notes.note"
decision = "ask"
"""
QUESTION = json.dumps({"text": "Which?", "options": ["one", "two"], "otherwise": "neither"})
THINKS_S = 2.0
"""Of the person, so that it is not by chance at the moment of a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    scene: Scene
    person: FakeSlackClient
    notes: list[str]


async def measure_asking(bench: Bench) -> Sequence[Row]:
    """Our own agent, local; the 95th percentile of some ten of each, so the slowest, from the press."""
    count = 2 * bench.scale.turn_pairs
    async with _open(bench) as asking:
        effect_s = [await _approve(asking, number) for number in range(count)]
        answer_s = [await _answer(asking) for _ in range(count)]
    return (
        Row(
            figure="press of an approval to its effect outside, p95",
            unit="ms",
            orion=1000 * max(effect_s),
            target=1000 * TARGET_S,
        ),
        Row(
            figure="press of an answer to the agent's next request, p95",
            unit="ms",
            orion=1000 * max(answer_s),
            target=1000 * TARGET_S,
        ),
    )


@asynccontextmanager
async def _open(bench: Bench) -> AsyncIterator[_Asking]:
    directory = bench.directory / "asking"
    directory.mkdir()
    (directory / "orion.toml").write_text(RULES)
    async with (
        open_notes() as (url, notes),
        open_scene(replace(bench, directory=directory)) as scene,
        open_client(scene.world.url) as person,
    ):
        server = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {CANARY}"}}
        config = directory / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"notes": server}}))
        async with open_orion(scene, {"ORION_MCP_CONFIG_FILE": str(config)}, pool_size=0):
            await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
            yield _Asking(scene=scene, person=person, notes=notes)


async def _approve(asking: _Asking, number: int) -> float:
    """Seconds from the press to the note."""
    root, card = await _asked(
        asking, f"call: mcp__notes__note {json.dumps({'text': str(number)})}", "May I?"
    )
    if str(number) in asking.notes:
        raise BenchError("it was done before anybody said yes")
    began_s = time.perf_counter()
    await asking.person.press(card, ALLOW_ACTION)
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        while str(number) not in asking.notes:
            await asyncio.sleep(POLL_S)
    took_s = time.perf_counter() - began_s
    await _told(asking, root, f"kept {number}")
    return took_s


async def _answer(asking: _Asking) -> float:
    """Seconds from the press to the model's request that follows."""
    root, card = await _asked(asking, f"call: ask_person {QUESTION}", "I need to know")
    pressed_at = time.time()
    await asking.person.press(card, CHOOSE_ACTIONS[0])
    await _told(asking, root, "answered: one")
    return await first_request_after(asking.scene, str(pressed_at))


async def _asked(asking: _Asking, text: str, words: str) -> tuple[str, JsonObject]:
    """A question and the card in its thread, after a while."""
    root = await asking.person.say(f"@Orion {text}")

    def is_card(reply: JsonObject) -> bool:
        return words in json.dumps(reply["blocks"])

    card = await asking.person.wait_for_reply(root, is_card, timeout_s=ANSWER_TIMEOUT_S)
    await asyncio.sleep(THINKS_S)
    return root, card


async def _told(asking: _Asking, root: str, words: str) -> None:
    await asking.person.wait_for_reply(
        root, lambda reply: words in text_of(reply), timeout_s=ANSWER_TIMEOUT_S
    )
