"""When the model fails, the thread is told in the product's own words, once, and the record has the code."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from app.errors import ErrorCode
from app.runs.testing import RunState
from app.slack.blocks import error_text
from app.web.hosting import serve
from tests.e2e.conftest import OpenOrion
from tests.e2e.fault_table import fault
from tests.e2e.harness import Stage, World, blocks_of_type, text_of

pytestmark = [pytest.mark.e2e, pytest.mark.bubblewrap, pytest.mark.timeout(180)]

RIGHT_KEY = "sk-ant-the-right-one"
SHOWN = {
    "!429": ErrorCode.MODEL_RATE_LIMITED,
    "!529": ErrorCode.MODEL_OVERLOADED,
    "!500": ErrorCode.MODEL_UNAVAILABLE,
    "!cut": ErrorCode.MODEL_UNAVAILABLE,
    "!garbage": ErrorCode.MODEL_UNAVAILABLE,
    "!context": ErrorCode.MODEL_CONTEXT_EXCEEDED,
    "!refuse": ErrorCode.MODEL_REFUSED,
}
ROWS = {
    "!429": "Model: 429",
    "!529": "Model: 529",
    "!cut": "Model: cut stream",
    "!garbage": "Model: garbage",
}


@pytest.mark.long
async def test_each_failure_of_the_model_has_its_own_words(shared: Stage) -> None:
    """One final message with the sentence of the code, without a feedback row, and the code in the record."""
    asked = {await shared.client.say(f"@Orion {word}"): word for word in SHOWN}
    for ts, word in asked.items():
        await shared.answer(ts, timeout_s=90)
        await _assert_failed(shared, ts, SHOWN[word])
        if word in ROWS:
            fault(ROWS[word]).assert_holds(await shared.record(ts))


async def test_silence_and_the_deadline_end_a_run(world: World, start_orion: OpenOrion) -> None:
    """No line of the agent for the idle time, or whatever it does at the deadline; what was written stays."""
    async with start_orion(world, ORION_IDLE_TIMEOUT_S="5", ORION_RUN_TIMEOUT_S="25") as stage:
        silent = await stage.client.say("@Orion !stall")
        slow = await stage.client.say("@Orion !slow 60")
        await stage.answer(silent)
        await _assert_failed(stage, silent, ErrorCode.AGENT_IDLE)
        fault("Model: stalled stream").assert_holds(await stage.record(silent))
        assert "offline model" in text_of(await stage.answer(slow))
        await _assert_failed(stage, slow, ErrorCode.SANDBOX_TIMEOUT)
        record = await stage.record(slow)
        assert record.ended_at is not None
        assert record.started_at is not None
        assert (record.ended_at - record.started_at).total_seconds() < 25 + 3


@pytest.mark.long
async def test_an_unknown_model_is_named_as_the_cause(world: World, start_orion: OpenOrion) -> None:
    """By its name, and with the way to another one: the operator's mistake, a channel's, one message's."""
    async with start_orion(world, ORION_MODEL="gpt-no-such-model") as stage:
        told = await _not_found(stage, "@Orion hello")
        assert "There is no model gpt-no-such-model, which is configured; please ask" in told
        await stage.answer(await stage.client.say("@Orion settings channel model=nope"))
        told = await _not_found(stage, "@Orion hello")
        assert "There is no model nope, this channel's default; write settings channel" in told
        told = await _not_found(stage, "@Orion model=gone hello")
        assert "There is no model gone; ask for another with model=" in told


@pytest.mark.long
async def test_a_wrong_key_and_an_empty_account(world: World, start_orion: OpenOrion) -> None:
    """401 and 402 of the model ask for the operator, at once and without retries."""
    async with (
        _strict_model() as model_url,
        start_orion(world, ANTHROPIC_BASE_URL=model_url, ANTHROPIC_API_KEY="sk-ant-wrong") as stage,
    ):
        ts = await stage.client.say("@Orion hello")
        broke = await stage.client.say("@Orion without credit")
        await stage.answer(ts)
        await _assert_failed(stage, ts, ErrorCode.MODEL_AUTH_FAILED)
        await stage.answer(broke)
        await _assert_failed(stage, broke, ErrorCode.MODEL_BILLING)
        assert (await stage.record(ts)).result.usage.model_calls == 1


async def _not_found(stage: Stage, said: str) -> str:
    ts = await stage.client.say(said)
    told = text_of(await stage.answer(ts))
    assert (await stage.record(ts)).result.error_code is ErrorCode.MODEL_NOT_FOUND
    return told


async def _assert_failed(stage: Stage, ts: str, code: ErrorCode) -> None:
    record = await stage.record(ts)
    assert (record.state, record.result.error_code, record.delivery) == (
        RunState.FAILED,
        code,
        "sent",
    )
    replies = await stage.client.replies(ts)
    assert len(replies) == 1
    assert error_text(code) in text_of(replies[0])
    assert code in text_of(replies[0])
    assert blocks_of_type(replies[0], "context_actions") == []


@asynccontextmanager
async def _strict_model() -> AsyncIterator[str]:
    """Refuses as the API does. Source: Anthropic API, "Errors", read 2026-11."""
    app = FastAPI()

    @app.post("/v1/messages")
    async def refuse(request: Request) -> JSONResponse:
        is_broke = "without credit" in (await request.body()).decode()
        status, kind = (402, "billing_error") if is_broke else (401, "authentication_error")
        assert request.headers["x-api-key"] != RIGHT_KEY
        error = {"type": kind, "message": "refused by the test"}
        return JSONResponse({"type": "error", "error": error}, status_code=status)

    async with serve(app) as url:
        yield url
