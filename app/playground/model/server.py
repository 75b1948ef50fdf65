"""The offline model: speaks three protocols without a model behind it, and fails on request."""

import asyncio
import json
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from app.playground.model.answers import Answer, Shape, decide_answer
from app.playground.model.anthropic import AnthropicMessages
from app.playground.model.gemini import GeminiContent, split_action
from app.playground.model.openai_chat import ChatCompletions
from app.playground.model.openai_responses import OpenAiResponses
from app.playground.model.protocol import (
    SSE,
    CutResponse,
    ModelPace,
    OfflineProtocol,
    Sleep,
    finish_reply,
    plain_delay_s,
    send_stream,
)
from app.playground.model.question import REVOKED, Question, RequestError

__all__ = ["ModelPace", "create_model_app"]

_LOGGED_REQUESTS = 100
_KNOWN = re.compile(r"(claude|gemini|gpt|o\d|codex|chatgpt)[\w.:-]*")


def create_model_app(*, pace: ModelPace | None = None, sleep: Sleep = asyncio.sleep) -> FastAPI:
    """The model's API as Anthropic, OpenAI and Google serve it, and `GET /requests`: the last 100 requests, with time and headers.

    `GET /v1/models` and `/v1beta/models`, also of one by its id, `POST /v1/messages`, `/v1/responses`, `/v1/chat/completions`, and `/v1beta/models/{model}:` with `generateContent`,
    `streamGenerateContent` and `countTokens`.
    """
    app = FastAPI(title="Orion offline model", docs_url=None, redoc_url=None, openapi_url=None)
    model = _OfflineModel(pace=pace or ModelPace(), sleep=sleep)

    @app.get("/v1/models")
    @app.get("/v1beta/models")
    async def list_models(request: Request) -> Response:
        if any(REVOKED in value for value in request.headers.values()):
            return JSONResponse({"error": {"message": "revoked"}}, status_code=401)
        return JSONResponse(
            {"data": [{"id": "claude-sonnet-4-5"}], "models": [{"name": "models/gemini-2.5-pro"}]}
        )

    @app.get("/v1/models/{name}")
    @app.get("/v1beta/models/{name}")
    async def show_model(name: str) -> Response:
        if _KNOWN.fullmatch(name):
            return JSONResponse({"id": name, "name": f"models/{name}"})
        return JSONResponse({"error": {"message": f"no model {name}"}}, status_code=404)

    @app.post("/v1/messages")
    async def create_message(request: Request) -> Response:
        return await model.answer(request, AnthropicMessages())

    @app.post("/v1/responses")
    async def create_response(request: Request) -> Response:
        return await model.answer(request, OpenAiResponses())

    @app.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        return await model.answer(request, ChatCompletions())

    @app.post("/v1beta/models/{action:path}")
    async def generate_content(request: Request, action: str) -> Response:
        name, method = split_action(action)
        is_sse = request.query_params.get("alt") == "sse"
        protocol = GeminiContent(
            model=name, method=method, is_sse=is_sse, key=request.query_params.get("key", "")
        )
        return await model.answer(request, protocol)

    @app.get("/requests")
    async def list_requests() -> list[dict[str, Any]]:
        return list(model.requests)

    return app


class _OfflineModel:
    """Does what is the same in every protocol."""

    def __init__(self, *, pace: ModelPace, sleep: Sleep) -> None:
        self.requests: deque[dict[str, Any]] = deque(maxlen=_LOGGED_REQUESTS)
        self._pace = pace
        self._sleep = sleep
        self._failed: Counter[str] = Counter()

    async def answer(self, request: Request, protocol: OfflineProtocol) -> Response:
        at = time.time()
        try:
            body = json.loads(await request.body())
        except ValueError:
            body = None
        self.requests.append(
            {"at": at, "path": request.url.path, "headers": dict(request.headers), "body": body}
        )
        request_id = f"req_offline_{secrets.token_hex(8)}"
        header = protocol.request_id_header
        headers = {header: request_id} if header else {}
        try:
            question = protocol.read(request.headers, body)
            answer = decide_answer(question)
            self._fail_on_request(protocol, answer)
        except RequestError as problem:
            error = protocol.error(problem, request_id)
            return JSONResponse(error, status_code=problem.status, headers=headers)
        return await self._respond(protocol, question, answer, headers)

    async def _respond(
        self,
        protocol: OfflineProtocol,
        question: Question,
        answer: Answer,
        headers: Mapping[str, str],
    ) -> Response:
        if answer.shape is Shape.GARBAGE:
            return Response(protocol.garbage, media_type=SSE)
        reply = finish_reply(question, answer)
        if not question.is_stream:
            await self._sleep(plain_delay_s(answer, self._pace))
            whole = protocol.plain(question, reply)
            if answer.shape is not Shape.CUT:
                return JSONResponse(whole, headers=dict(headers))
            half = json.dumps(whole).encode()[: len(reply.text)]
            return CutResponse([half], media_type="application/json")
        stream = protocol.stream(question, reply, answer.shape)
        chunks = send_stream(stream, answer, self._pace, self._sleep)
        kind = CutResponse if answer.shape is Shape.CUT else StreamingResponse
        return kind(chunks, media_type=protocol.stream_type, headers=dict(headers))

    def _fail_on_request(self, protocol: OfflineProtocol, answer: Answer) -> None:
        """Fails as the question asks; with a number the same question fails that often, so that trying again helps."""
        failure = protocol.failure(answer.shape)
        if failure is None:
            return
        if answer.number is not None and self._failed[answer.asked] >= answer.number:
            return
        self._failed[answer.asked] += 1
        raise failure
