"""What the tests of the broker's protocols ask, and the world that they ask it in."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from app.brokerage.broker import Upstream
from app.brokerage.registry import GrantRegistry
from app.runs.testing import ModelCall, ModelGrant, RunId

KEY = "sk-proj-canary-0123456789abcdef"
MODELS = ("gpt-5.4", "gemini-2.5-pro")
LIMIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One endpoint, with the least that can be asked there."""

    protocol: str
    path: str
    body: dict[str, Any]
    token_headers: tuple[str, ...]
    stream_path: str = ""
    stream_fields: dict[str, Any] = field(default_factory=dict)
    limit: tuple[str, ...]
    """Where the size of the answer is in a request."""
    said: tuple[str, str, str, str]
    """How a 401, a 403, a 413 and a 502 are told in its error shape."""

    def told(self, answer: httpx.Response) -> str:
        error = answer.json()["error"]
        return str(error.get("status") or error["code"] or error["type"])


RESPONSES = Api(
    protocol="openai",
    path="/v1/responses",
    body={"model": "gpt-5.4", "input": [{"role": "user", "content": "hello"}]},
    token_headers=("authorization", "x-api-key"),
    stream_fields={"stream": True},
    limit=("max_output_tokens",),
    said=("invalid_api_key", "model_not_allowed", "request_too_large", "server_error"),
)
CHAT = Api(
    protocol="openai",
    path="/v1/chat/completions",
    body={"model": "gpt-5.4", "messages": [{"role": "user", "content": "hello"}]},
    token_headers=("authorization", "x-api-key"),
    stream_fields={"stream": True},
    limit=("max_completion_tokens",),
    said=RESPONSES.said,
)
GEMINI = Api(
    protocol="gemini",
    path="/v1beta/models/gemini-2.5-pro:generateContent",
    body={"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
    token_headers=("x-goog-api-key", "authorization"),
    stream_path="/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
    limit=("generationConfig", "maxOutputTokens"),
    said=("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNAVAILABLE"),
)


@dataclass
class World:
    registry: GrantRegistry
    inside: httpx.AsyncClient
    """What an agent would use."""
    model: httpx.AsyncClient
    calls: list[ModelCall] = field(default_factory=list)
    token: str = ""

    async def ask(
        self, api: Api, *, is_stream: bool = False, text: str = "hello", **fields: Any
    ) -> httpx.Response:
        path = api.stream_path if is_stream and api.stream_path else api.path
        body = api.body | (api.stream_fields if is_stream else {}) | fields
        sent = json.dumps(body).replace("hello", text)
        return await self.post(f"/broker/{api.protocol}{path}", sent.encode())

    async def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        own = headers or {"authorization": f"Bearer {self.token}"}
        return await self.inside.post(path, content=body, headers=own)

    async def seen(self) -> dict[str, Any]:
        """The last request, as the provider got it."""
        found: dict[str, Any] = (await self.model.get("/requests")).json()[-1]
        return found


def grant(*, run_id: str = "run_1", max_calls: int = 100) -> ModelGrant:
    return ModelGrant(
        run_id=RunId(run_id),
        models=MODELS,
        expires_at=datetime.now(UTC) + timedelta(minutes=5),
        max_output_tokens=LIMIT,
        max_calls=max_calls,
    )


def upstreams(url: str) -> dict[str, Upstream]:
    return {
        "openai": Upstream(base_url=url, key_headers={"authorization": f"Bearer {KEY}"}),
        "gemini": Upstream(base_url=url + "/", key_headers={"x-goog-api-key": KEY}),
    }
