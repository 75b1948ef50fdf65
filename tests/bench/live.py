"""How soon the first words of an answer stand in Slack after the model was asked for them: streamed, and by edits."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import httpx

from app.slack.actions import FEEDBACK_ACTION
from tests.bench.load import percentile
from tests.bench.pool import SETTLE_S
from tests.bench.processes import BenchError, open_server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import ANSWER_TIMEOUT_S, FIRST_ANSWER_TIMEOUT_S, Scene, ask, open_scene
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.plain_http import NO_TLS

DM, CHANNEL = "D0YOU", "random"
ANSWER_S = 2.5
"""So long the model writes, from its first word on, which comes at once."""
ROUNDS_PER_PAIR = 3


async def measure_live(bench: Bench) -> Sequence[Row]:
    """The real script in the real sandbox, a question at a time: in a DM by a stream, in a channel by edits."""
    async with open_scene(bench) as scene, open_client(scene.world.url) as person:
        settings = {"ORION_WARM_POOL_SIZE": "1"}  # as by default
        async with open_server(
            ("app.cli", "serve"),
            port=scene.port,
            directory=bench.directory,
            settings=scene.settings(traces=False) | settings,
        ):
            await ask(person, timeout_s=FIRST_ANSWER_TIMEOUT_S)
            streamed_s, edited_s = [], []
            for _ in range(bench.scale.turn_pairs * ROUNDS_PER_PAIR):
                streamed_s.append(await _first_text(scene, person, DM))
                edited_s.append(await _first_text(scene, person, CHANNEL))
    return tuple(
        Row(
            figure=f"first text in Slack after the model was asked, {name} (baseline: by edits)",
            unit="ms",
            orion=1000 * percentile(streamed_s, share),
            baseline=1000 * percentile(edited_s, share),
            target=target_ms,
        )
        for name, share, target_ms in (("p50", 0.5, None), ("p95", 0.95, 500.0))
    )


async def _first_text(scene: Scene, person: FakeSlackClient, channel: str) -> float:
    """Seconds, by the clocks of the model and the fake Slack, which are one; returns after the answer."""
    root = await person.say(f"@Orion !slow {ANSWER_S}", channel=channel)
    try:
        answer = await person.wait_for_reply(
            root,
            lambda reply: FEEDBACK_ACTION in str(reply["blocks"]),
            channel=channel,
            timeout_s=ANSWER_TIMEOUT_S,
        )
    except TimeoutError as exc:
        raise BenchError(f"no answer in {channel}") from exc
    texts = [
        version
        for version in await person.versions(answer)
        if any(block["type"] == "markdown" for block in version["blocks"])
    ]
    async with httpx.AsyncClient(verify=NO_TLS, base_url=scene.world.url, trust_env=False) as http:
        requests = (await http.get("/model/requests")).json()
    asked = [request["at"] for request in requests if request["at"] > float(root)]
    if not asked or not texts:
        raise BenchError("the model was not asked, or its first words were never shown")
    await asyncio.sleep(SETTLE_S)
    return datetime.fromisoformat(texts[0]["at"]).timestamp() - float(min(asked))
