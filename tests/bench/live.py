"""How soon an answer that is streamed begins: its message, and its first words after the model was asked for them; against edits."""

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
            streamed, edited = [], []
            for _ in range(bench.scale.turn_pairs * ROUNDS_PER_PAIR):
                streamed.append(await _begin(scene, person, DM))
                edited.append(await _begin(scene, person, CHANNEL))
    begun, worded = "thinking message after, as a stream", "first text after the model was asked"
    return (
        _row(f"{begun}, p95", 0.95, [one[0] for one in streamed], [one[0] for one in edited], 400),
        _row(f"{worded}, p50", 0.5, [one[1] for one in streamed], [one[1] for one in edited], None),
        _row(f"{worded}, p95", 0.95, [one[1] for one in streamed], [one[1] for one in edited], 500),
    )


def _row(
    figure: str,
    share: float,
    streamed_s: Sequence[float],
    edited_s: Sequence[float],
    target_ms: float | None,
) -> Row:
    return Row(
        figure=f"{figure} (baseline: posted and edited)",
        unit="ms",
        orion=1000 * percentile(streamed_s, share),
        baseline=1000 * percentile(edited_s, share),
        target=target_ms,
    )


async def _begin(scene: Scene, person: FakeSlackClient, channel: str) -> tuple[float, float]:
    """Seconds to the message and, from the model's request, to its first text, by the one clock of both; returns after the answer."""
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
    first_text_at = datetime.fromisoformat(texts[0]["at"]).timestamp()
    return float(answer["ts"]) - float(root), first_text_at - float(min(asked))
