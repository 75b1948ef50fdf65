"""Money in the whole service: told under the answer, in the record and the trace; a budget that is used up ends runs kindly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.errors import ErrorCode
from app.playground.slack.types import COLLEAGUE
from app.runs.testing import RunState
from tests.e2e.conftest import OpenOrion
from tests.e2e.harness import Stage, World, text_of
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

PRICES = '[prices."*"]\ninput = 1000\noutput = 1000\ncache_read = 1000\ncache_write = 1000\n'
"""A tenth of a cent for a token: any answer costs some cents."""


async def _begin(stage: Stage, toml: str, **settings: str) -> None:
    """Started again with this `orion.toml` and these settings."""
    assert await stage.orion.terminate() == 0
    (stage.orion.directory / "orion.toml").write_text(toml)
    stage.orion.environment |= settings
    await stage.orion.start()


@pytest.mark.long
async def test_a_run_that_has_used_its_budget_ends_with_what_it_has(
    world: World, start_orion: OpenOrion
) -> None:
    """Its first call passes, the second is not made; the thread has what was written, and why there is no more."""
    async with start_orion(world) as stage:
        await _begin(stage, PRICES, ORION_BUDGET_RUN_USD="0.000001")
        asked = len(await world.model_requests())
        ts = await stage.client.say("@Orion run: echo once >> ran; cat ran")
        said = text_of(await stage.answer(ts))
        assert "This request has used the $0.0000010 that one may cost." in said
        run = await stage.record(ts)
        assert (run.state, run.result.error_code) == (RunState.FAILED, ErrorCode.BUDGET_EXCEEDED)
        assert run.result.usage.model_calls == 1
        assert len(await world.model_requests()) == asked + 1
        assert run.result.cost_usd is not None
        assert run.result.cost_usd == pytest.approx(run.result.usage.tokens / 1000, abs=1e-6)
        assert _costs(await world.whole_trace(run.trace_id)) == [run.result.cost_usd]


@pytest.mark.long
async def test_a_person_whose_day_is_used_up_is_told_so_at_once(
    world: World, start_orion: OpenOrion
) -> None:
    """To them alone, without a sandbox, also after a crash; another person goes on, and the sums are right."""
    async with start_orion(world) as stage:
        await _begin(stage, PRICES, ORION_BUDGET_USER_DAY_USD="0.000001")
        first = await stage.client.say("@Orion hello")
        said = text_of(await stage.answer(first))
        run = await stage.record(first)
        assert run.result.cost_usd is not None
        assert f"{run.result.usage.tokens} tokens · $" in said
        await stage.orion.kill9()
        await stage.orion.start()
        again = await stage.client.say("@Orion hello")
        refused = await stage.ended(again)
        assert (refused.result.error_code, refused.attempt) == (ErrorCode.BUDGET_EXCEEDED, 0)
        assert await stage.client.replies(again) == []
        (shown,) = [m for m in await stage.client.messages() if m["is_bot"] and m["ts"] > again]
        assert "Your budget for today ($0.0000010) is used up; it begins anew at 00:00 UTC" in str(
            shown["text"]
        )
        other = await stage.client.say("@Orion hello", user=COLLEAGUE)
        assert "token" in text_of(await stage.answer(other))
        assert (await stage.record(other)).state is RunState.SUCCEEDED
        await _assert_sums(stage, {first: run.result.usage.tokens})


def _costs(trace: Mapping[str, Any]) -> list[float]:
    """Of a trace's model calls."""
    nodes, found = list(trace["observations"]), []
    for node in nodes:
        nodes += node["children"]
        if "total" in node["cost"]:
            found.append(node["cost"]["total"])
    return found


async def _assert_sums(stage: Stage, tokens: Mapping[str, int]) -> None:
    code, told = await stage.cli("runs", "cost", "--by", "user", "--json")
    assert code == 0, told
    rows = {row["name"]: row for row in json.loads(told)}
    for ts, number in tokens.items():
        row = rows[(await stage.record(ts)).request.user]
        assert (row["runs"], row["tokens"], row["runs_of_unknown_cost"]) == (1, number, 0)
        assert row["cost_micro_usd"] == number * 1000
    code, told = await stage.cli("runs", "cost", "--by", "agent")
    assert code == 0
    assert told.startswith("anthropic ")
    code, told = await stage.cli("runs", "cost", "--by", "planet")
    assert code == 2
    assert "there are day, user, channel, agent, model" in told


@pytest.mark.long
async def test_without_a_price_the_cost_is_said_to_be_unknown(shared: Stage) -> None:
    """Under the answer, in the record and in sums: what nobody knows is not called nothing."""
    ts = await shared.client.say("@Orion hello")
    said = text_of(await shared.answer(ts))
    run = await shared.record(ts)
    assert run.result.cost_usd is None
    assert " · cost unknown" in said.splitlines()[-1]
    code, shown = await shared.cli("runs", "show", run.id)
    assert code == 0
    assert "cost_usd       unknown" in shown.splitlines()
    code, told = await shared.cli("runs", "cost", "--by", "agent")
    assert code == 0
    assert "unknown" in told


async def test_a_budget_without_prices_does_not_start(
    world: World, start_orion: OpenOrion, tmp_path: Path
) -> None:
    """It says which model it knows no price of."""
    async with start_orion(world) as stage:
        code, told = await stage.cli(
            "serve",
            ORION_BUDGET_DAY_USD="1",
            ORION_STATE_DIR=str(tmp_path / "s"),
            ORION_PORT=str(free_port()),
        )
        assert code == 1
        assert "a budget cannot be kept" in told
