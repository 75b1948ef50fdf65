"""What a run has cost is told however it ends, or said to be unknown."""

from decimal import Decimal
from pathlib import Path

import pytest

from app.errors import ErrorCode
from app.runs.costs import Price, Prices
from app.runs.execution import AgentRunner
from app.runs.model import ModelCall, Usage
from app.slack.wording import spent_text
from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from tests.building import T0
from tests.faults.building import ANSWER, POLICY, ended, open_core, request_of

CALL = ModelCall(
    model="plan-1",
    started_at=T0,
    first_token_at=T0,
    ended_at=T0,
    status=200,
    usage=Usage(input_tokens=900, output_tokens=100),
)
DOLLAR = Price(
    input=Decimal(1000), output=Decimal(1000), cache_read=Decimal(0), cache_write=Decimal(0)
)
"""For a thousand tokens."""


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(
    ("prices", "cost_usd", "told"),
    [
        (Prices({"plan-1": DOLLAR}), 1.0, "1k tokens · $1"),
        (Prices(), None, "1k tokens · cost unknown"),
    ],
)
async def test_the_cost_is_told_whatever_becomes_of_the_agent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prices: Prices,
    cost_usd: float | None,
    told: str,
    *,
    is_lost: bool,
) -> None:
    """By the price table, of what was asked until it was lost; without a price nobody knows."""

    async def lose(*_: object) -> None:
        raise SandboxError(SandboxErrorCode.UNAVAILABLE, "it is gone")

    if is_lost:
        monkeypatch.setattr(AgentRunner, "_run_agent", lose)
    async with open_core(POLICY, socket=str(tmp_path / "broker.sock"), prices=prices) as core:
        core.broker.calls = [CALL]
        request = request_of(ANSWER)
        await core.intake.accept(request)
        run = await ended(core, request.run_id)
        assert run.error_code is (ErrorCode.SANDBOX_LOST if is_lost else None)
        assert (run.usage.tokens, run.cost_usd) == (1000, cost_usd)
        ((_, result),) = core.replies.finished
        assert spent_text(result) == told
