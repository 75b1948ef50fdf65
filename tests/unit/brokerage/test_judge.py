"""The judge over real HTTP: what it sends, how it reads answers, and that no failure is a yes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.brokerage.broker import Upstream
from app.brokerage.judge import AnthropicJudge
from app.runs.testing import SystemClock, Usage
from app.web.hosting import serve
from tests.plain_http import NO_TLS

KEY = "sk-ant-operators"


@dataclass
class Model:
    """Answers as it is told to, and keeps what it was asked."""

    answer: Any = None
    status: int = 200
    delay_s: float = 0.0
    asked: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    async def messages(self, request: Request) -> Response:
        self.asked.append((dict(request.headers), await request.json()))
        await asyncio.sleep(self.delay_s)
        if isinstance(self.answer, str):
            return Response(self.answer, status_code=self.status)
        return JSONResponse(self.answer, status_code=self.status)


@asynccontextmanager
async def judge_of(model: Model, *, timeout_s: float = 5.0) -> AsyncIterator[AnthropicJudge]:
    app = Starlette(routes=[Route("/x/v1/messages", model.messages, methods=["POST"])])
    async with serve(app) as url, httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        upstream = Upstream(
            base_url=f"{url}/x/", key_headers={"x-api-key": KEY}, name_at=lambda name: f"a/{name}"
        )
        yield AnthropicJudge(
            model="small-1", upstream=upstream, http=http, clock=SystemClock(), timeout_s=timeout_s
        )


def saying(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": 310, "output_tokens": 4},
    }


async def test_one_small_request_with_the_operators_key() -> None:
    """By the provider's own name of the model; what it costs is counted under the operator's."""
    model = Model(saying("addressed"))
    async with judge_of(model) as judge:
        verdict = await judge.ask("judge this", '{"from": "Ana"}')
    ((headers, body),) = model.asked
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert body == {
        "model": "a/small-1",
        "max_tokens": 16,
        "system": "judge this",
        "messages": [{"role": "user", "content": '{"from": "Ana"}'}],
    }
    assert verdict.call is not None
    assert (verdict.call.model, verdict.call.status) == ("small-1", 200)
    assert verdict.call.usage == Usage(input_tokens=310, output_tokens=4)


@pytest.mark.parametrize(
    ("text", "is_addressed"),
    [
        ("addressed", True),
        (" **Addressed**.\n", True),
        ("other", False),
        ("Other.", False),
        ("not addressed", None),
        ("It is addressed to Orion", None),
        ("", None),
    ],
)
async def test_one_word_counts(text: str, is_addressed: bool | None) -> None:
    """In any case and with any marks; what says more, or something else, says nothing."""
    async with judge_of(Model(saying(text))) as judge:
        assert (await judge.ask("", "x")).is_addressed is is_addressed


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (Model({"type": "error", "error": {"type": "overloaded_error"}}, 529), "overloaded_error"),
        (Model("<html>bad gateway</html>", 502), "no_error_type"),
        (Model("<html>fine</html>", 200), ""),
        (Model([], 200), ""),
        (Model({"content": "addressed"}, 200), ""),
        (Model({"content": [{"type": "text", "text": 7}, 3], "usage": {"input_tokens": "x"}}), ""),
        (Model(saying("addressed"), delay_s=5), "TimeoutError"),
    ],
    ids=["overloaded", "html-502", "html-200", "list", "text", "odd", "slow"],
)
async def test_whatever_fails_is_no_yes(model: Model, error: str) -> None:
    """It never raises, and is a call that is counted all the same."""
    async with judge_of(model, timeout_s=0.5 if model.delay_s else 5) as judge:
        verdict = await judge.ask("", "x")
    assert verdict.is_addressed is None
    assert verdict.call is not None
    assert verdict.call.error == error
    assert len(model.asked) == 1


async def test_nobody_there_is_no_yes() -> None:
    """A port on which nobody listens."""
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        upstream = Upstream(base_url="http://127.0.0.1:9", key_headers={})
        judge = AnthropicJudge(model="m", upstream=upstream, http=http, clock=SystemClock())
        verdict = await judge.ask("", "x")
    assert verdict.is_addressed is None
    assert verdict.call is not None
    assert verdict.call.error == "ConnectError"
