"""Asks a small Anthropic model for whom a reply is, with the operator's key, which stays here."""

import asyncio
import re
from typing import Any, Final

import httpx

from app.brokerage.broker import Upstream
from app.brokerage.rules.anthropic import read_messages_event
from app.runs.history import ADDRESSED, NOT_ADDRESSED, Verdict
from app.runs.model import Clock, ModelCall, Usage

TIMEOUT_S: Final = 5.0
MAX_OUTPUT_TOKENS: Final = 16
"""For one word, and what a model may put around it."""
API_VERSION: Final = "2023-06-01"
"""Source: Anthropic API, "Versions", read 2026-11."""
_ANSWERS: Final = {ADDRESSED: True, NOT_ADDRESSED: False}
_NOT_A_LETTER: Final = re.compile(r"[^a-z]+")


class AnthropicJudge:
    """Implements Judge over the Messages API. Its maker owns the HTTP client."""

    def __init__(
        self,
        *,
        model: str,
        upstream: Upstream,
        http: httpx.AsyncClient,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._model = model
        self._upstream = upstream
        self._http = http
        self._clock = clock

    async def ask(self, instruction: str, text: str) -> Verdict:
        started_at, status, error = self._clock.now(), 0, ""
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._http.post(
                    f"{self._upstream.base_url.rstrip('/')}/v1/messages",
                    headers={**self._upstream.key_headers, "anthropic-version": API_VERSION},
                    json={
                        "model": self._upstream.name_at(self._model),
                        "max_tokens": MAX_OUTPUT_TOKENS,
                        "system": instruction,
                        "messages": [{"role": "user", "content": text}],
                    },
                )
            status = response.status_code
            answer = _object(response)
            error = "" if response.is_success else _error_of(answer)
        except (TimeoutError, httpx.HTTPError) as exc:
            error = type(exc).__name__
        call = ModelCall(
            model=self._model,
            started_at=started_at,
            first_token_at=None,
            ended_at=self._clock.now(),
            status=status,
            usage=Usage(**read_messages_event(answer).counts),
            error=error,
        )
        return Verdict(is_addressed=None if error else _read(answer), call=call)


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _error_of(answer: dict[str, Any]) -> str:
    return read_messages_event({**answer, "type": "error"}).error or "no_error_type"


def _read(answer: dict[str, Any]) -> bool | None:
    """Returns what the model says; None where it says neither, or more than one word."""
    blocks = answer.get("content")
    texts = [
        str(block.get("text", ""))
        for block in (blocks if isinstance(blocks, list) else ())
        if isinstance(block, dict) and block.get("type") == "text"
    ]
    return _ANSWERS.get(_NOT_A_LETTER.sub("", "".join(texts).lower()))
