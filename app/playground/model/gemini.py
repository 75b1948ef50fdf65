"""Google's Gemini API, as the offline model speaks it.

Shapes of contents, chunks and errors. Source: Gemini API reference, "Generating content", "Count tokens" and "Troubleshooting",
read 2026-11, and what Gemini CLI 0.61.0 sends and accepts.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from app.playground.model.answers import Shape
from app.playground.model.openai import cached_tokens, new_id
from app.playground.model.protocol import (
    SSE,
    Block,
    OfflineProtocol,
    Refusal,
    Reply,
    Stop,
    Stream,
    data_event,
    split_text,
)
from app.playground.model.question import REVOKED, Message, Question, RequestError, Tool, wire_chars

_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_FAILURES: Mapping[Shape, Refusal] = {
    Shape.RATE_LIMITED: (
        429,
        "RESOURCE_EXHAUSTED",
        "You exceeded your current quota (offline model, !429)",
    ),
    # Google has no 529.
    Shape.OVERLOADED: (
        503,
        "UNAVAILABLE",
        "The model is overloaded. Please try again later. (offline model, !529)",
    ),
    Shape.BROKEN: (500, "INTERNAL", "An internal error has occurred (offline model, !500)"),
    Shape.CONTEXT: (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
}
_FINISH_REASONS = {
    Stop.DONE: "STOP",
    Stop.TOOL: "STOP",
    Stop.LENGTH: "MAX_TOKENS",
    Stop.REFUSED: "SAFETY",
}
_UNMATCHED = (
    "Please ensure that the number of function response parts is equal to the number of function "
    "call parts of the function call turn."
)
_LINE_END = b"\r\n\r\n"
"""As Google ends events."""


def split_action(action: str) -> tuple[str, str]:
    """Returns model and method of the last part of a path."""
    model, _, method = action.rpartition(":")
    return model, method


class GeminiContent(OfflineProtocol):
    """POST /v1beta/models/{model}:{method}; path and query are part of the request."""

    failures = _FAILURES
    garbage = b"data: {<html>no gateway speaks like this</html>\r\n\r\n"

    def __init__(self, *, model: str, method: str, is_sse: bool, key: str) -> None:
        self._model = model
        self._method = method
        self._is_sse = is_sse
        self._key = key
        self.stream_type = SSE if is_sse else "application/json"

    @override
    def read(self, headers: Mapping[str, str], body: object) -> Question:
        if not (self._key or headers.get("x-goog-api-key") or headers.get("authorization")):
            message = "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API."
            raise RequestError(403, "PERMISSION_DENIED", message)
        if REVOKED in (self._key or headers.get("x-goog-api-key", "")):
            message = "API key not valid. Please pass a valid API key."
            raise RequestError(400, "INVALID_ARGUMENT", message, code="API_KEY_INVALID")
        if not self._model.startswith("gemini") or self._method not in _METHODS:
            message = f"models/{self._model} is not found for API version v1beta, or is not supported for {self._method}. Call ListModels to see the list of available models and their supported methods."
            raise RequestError(404, "NOT_FOUND", message)
        if not isinstance(body, dict):
            raise _invalid("Invalid JSON payload received.")
        contents = _contents(body.get("contents"))
        config = body.get("generationConfig") or {}
        limit = config.get("maxOutputTokens")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise _invalid("max_output_tokens must be positive.")
        system = body.get("systemInstruction") or {}
        return Question(
            model=self._model,
            messages=[said for content in contents for said in _said(content)],
            system=_text_of(system.get("parts") or ()),
            tools={tool.name: tool for tool in _tools(body.get("tools") or ())},
            schema=_schema(config),
            max_output_tokens=limit,
            is_stream=self._method == "streamGenerateContent",
            prompt_chars=wire_chars(system) + wire_chars(body.get("tools", "")),
            message_chars=[wire_chars(content) for content in contents],
        )

    @override
    def failure(self, shape: Shape) -> RequestError | None:
        return None if self._method == "countTokens" else super().failure(shape)

    @override
    def error(self, problem: RequestError, request_id: str) -> dict[str, Any]:
        del request_id
        error: dict[str, Any] = {
            "code": problem.status,
            "message": str(problem),
            "status": problem.kind,
        }
        if problem.code is not None:
            error["details"] = [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": problem.code,
                    "domain": "googleapis.com",
                    "metadata": {"service": "generativelanguage.googleapis.com"},
                }
            ]
        return {"error": error}

    @override
    def plain(self, question: Question, reply: Reply) -> dict[str, Any]:
        if self._method == "countTokens":
            count = reply.counts.input_tokens
            details = [{"modality": "TEXT", "tokenCount": count}]
            return {"totalTokens": count, "promptTokensDetails": details}
        parts = [{"text": reply.text}] if reply.text else []
        whole = {"parts": [*parts, *_call_parts(reply)], "role": "model"}
        return _chunk(question, reply, whole, finish=_FINISH_REASONS[reply.stop])

    @override
    def stream(self, question: Question, reply: Reply, shape: Shape) -> Stream:
        response_id = new_id("gemini")

        def chunk(parts: list[dict[str, Any]], *, finish: str | None = None) -> dict[str, Any]:
            content = {"parts": parts, "role": "model"}
            return _chunk(question, reply, content, finish=finish, response_id=response_id)

        texts = [chunk([{"text": piece}]) for piece in split_text(reply.text, shape)]
        calls = [chunk([part]) for part in _call_parts(reply)]
        last = chunk([{"text": ""}], finish=_FINISH_REASONS[reply.stop])
        if self._is_sse:
            return Stream(
                blocks=[
                    Block(pieces=[data_event(one, end=_LINE_END) for one in block])
                    for block in (texts, calls)
                ],
                closing=data_event(last, end=_LINE_END),
            )
        return Stream(
            opening=b"[",
            blocks=[
                Block(pieces=[json.dumps(one).encode() + b",\r\n" for one in block])
                for block in (texts, calls)
            ],
            closing=json.dumps(last).encode() + b"]",
        )


def _contents(given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise _invalid("contents is not specified")
    open_calls = 0
    for content in given:
        if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
            raise _invalid("contents.parts must not be empty.")
        if content.get("role", "user") not in ("user", "model", "function"):
            raise _invalid("Please use a valid role: user, model.")
        parts = [part for part in content["parts"] if isinstance(part, dict)]
        if not parts:
            raise _invalid("contents.parts must not be empty.")
        results = sum("functionResponse" in part for part in parts)
        if results != open_calls:
            raise _invalid(_UNMATCHED)
        open_calls = sum("functionCall" in part for part in parts)
    if open_calls or given[-1].get("role") == "model":
        raise _invalid("Please ensure that single turn requests end with a user role.")
    return given


def _invalid(message: str) -> RequestError:
    return RequestError(400, "INVALID_ARGUMENT", message)


def _said(content: dict[str, Any]) -> list[Message]:
    parts: list[dict[str, Any]] = content["parts"]
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    if results:
        return [Message(role="tool", text=_result_text(result)) for result in results]
    is_own = content.get("role") == "model"
    return [Message(role="assistant" if is_own else "user", text=_text_of(parts))]


def _result_text(result: dict[str, Any]) -> str:
    response = result.get("response") or {}
    shown = response.get("output", response.get("error"))
    return shown if isinstance(shown, str) else json.dumps(response)


def _text_of(parts: Sequence[dict[str, Any]]) -> str:
    return "\n".join(
        str(part["text"]) for part in parts if part.get("text") and not part.get("thought")
    )


def _tools(given: Sequence[dict[str, Any]]) -> list[Tool]:
    return [
        Tool(
            name=str(function.get("name")),
            properties=(
                function.get("parametersJsonSchema") or function.get("parameters") or {}
            ).get("properties")
            or {},
        )
        for tool in given
        for function in tool.get("functionDeclarations") or ()
    ]


def _schema(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema is None and config.get("responseMimeType") == "application/json":
        return {"type": "object"}
    return schema if isinstance(schema, dict) else None


def _call_parts(reply: Reply) -> list[dict[str, Any]]:
    if reply.tool is None:
        return []
    return [{"functionCall": {"name": reply.tool.name, "args": reply.tool.input}}]


def _chunk(
    question: Question,
    reply: Reply,
    content: dict[str, Any],
    *,
    finish: str | None,
    response_id: str = "",
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": content, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    counts = reply.counts
    usage = {
        "promptTokenCount": counts.input_tokens,
        "candidatesTokenCount": counts.output_tokens,
        "totalTokenCount": counts.input_tokens + counts.output_tokens,
    }
    if cached := cached_tokens(counts):
        usage["cachedContentTokenCount"] = cached
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": question.model,
        "responseId": response_id or new_id("gemini"),
    }
