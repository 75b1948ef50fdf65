"""What approvals, permissions, questions and a network cost a run that uses none of them: the same Orion, with all of them set and with none."""

from collections.abc import Sequence
from statistics import median

from tests.bench.pool import first_request, open_orion, until_waiting
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.bench.turns import ask, open_scene
from tests.fake_slack_client import open_client

RULES = """
[groups]
backend = ["U0123456789"]

[[permissions]]
who = "backend"
agents = "codex"

[[permissions]]
who = "everyone"
budget_day_usd = 1000

[[approvals]]
push = "acme/*"
decision = "ask"

[[approvals]]
host = "*.example.org"
decision = "ask"

[prices."*"]
input = 3
output = 15
cache_read = 0.3
cache_write = 3.75
"""
SETTINGS = {"ORION_EGRESS_HOSTS": "files.example.com"}
ROUNDS = 3
MORE_MS = 10.0


async def measure_unused(bench: Bench) -> Sequence[Row]:
    """By turns, medians: from a message to the first request that the model sees of it, with a prepared sandbox, so that little else takes time."""
    rules = bench.directory / "orion.toml"
    found: dict[bool, list[float]] = {False: [], True: []}
    async with open_scene(bench) as scene, open_client(scene.world.url) as person:
        for is_set in (False, True) * ROUNDS:
            rules.write_text(RULES if is_set else "")
            async with open_orion(scene, SETTINGS if is_set else {}, pool_size=1) as orion:
                await until_waiting(orion)
                await ask(person)
                for _ in range(bench.scale.turn_pairs):
                    await until_waiting(orion)
                    found[is_set].append(await first_request(scene, person))
    rules.unlink()
    without_ms, with_ms = (1000 * median(found[is_set]) for is_set in (False, True))
    return (
        Row(
            figure="message to first model request, warm, rules and a network that it does not use (baseline: none)",
            unit="ms",
            orion=with_ms,
            baseline=without_ms,
            target=without_ms + MORE_MS,
        ),
    )
