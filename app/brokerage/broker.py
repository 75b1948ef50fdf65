"""Stands between sandboxes and the model: checks the run token and the model, adds the key, streams through, counts."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from app.brokerage.admission import CLIENT_GONE, Admission, error_response, read_body
from app.brokerage.requests import Refused, check_request
from app.brokerage.streaming import PassedThrough, StreamCutError
from app.brokerage.usage import UsageReader
from app.log import get_logger
from app.runs.model import ModelCall, RunId
from app.runs.ports import Clock

TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=10.0)
"""A model may think for minutes before its first token; the run's own deadline is the real bound."""
FORWARDED_REQUEST_HEADERS = ("content-type", "accept", "anthropic-version", "anthropic-beta")
FORWARDED_RESPONSE_PREFIXES = (
    "content-type",
    "retry-after",
    "request-id",
    "anthropic-ratelimit-",
    "x-should-retry",
)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Where model requests go, and with which key."""

    base_url: str
    key_headers: Mapping[str, str] = field(repr=False)


@dataclass(slots=True, kw_only=True)
class _Call:
    """One request while it passes through."""

    model: str
    started_at: datetime
    status: int
    reader: UsageReader
    first_token_at: datetime | None = None


class MessagesBroker:
    """The broker for the Anthropic Messages protocol. Made by `main`, which also owns the HTTP client."""

    def __init__(
        self, *, admission: Admission, upstream: Upstream, http: httpx.AsyncClient, clock: Clock
    ) -> None:
        self._admission = admission
        self._upstream = upstream
        self._http = http
        self._clock = clock

    def router(self) -> APIRouter:
        """Routes below `/broker`, for the unix socket and for the public address."""
        router = APIRouter(prefix="/broker/anthropic")
        router.add_api_route("/v1/messages", self._messages, methods=["POST"], response_model=None)
        router.add_api_route(
            "/v1/messages/count_tokens", self._messages, methods=["POST"], response_model=None
        )
        return router

    async def _messages(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)  # the agent was killed; nobody reads this

    async def _answer(self, request: Request) -> Response:
        live = self._admission.admit(request)
        if isinstance(live, Response):
            return live
        body = await read_body(request)
        asked = body if isinstance(body, Refused) else check_request(body, live.grant)
        if isinstance(asked, Refused):
            return self._admission.refuse(asked, live)
        live.calls += 1
        if live.calls > live.grant.max_calls:
            message = f"the run has used its {live.grant.max_calls} model calls"
            refused = Refused(status=403, kind="permission_error", message=message)
            return self._admission.refuse(refused, live)
        return await self._forward(request, live.grant.run_id, asked.body, model=asked.model)

    async def _forward(
        self, request: Request, run_id: RunId, body: bytes, *, model: str
    ) -> Response:
        headers = {
            name: request.headers[name]
            for name in FORWARDED_REQUEST_HEADERS
            if name in request.headers
        }
        path = request.url.path.partition("/broker/anthropic")[2]
        url = self._upstream.base_url.rstrip("/") + path
        outgoing = self._http.build_request(
            "POST",
            url,
            content=body,
            # identity: the usage is read from the bytes that pass by
            headers=headers | {"accept-encoding": "identity"} | dict(self._upstream.key_headers),
            timeout=TIMEOUT,
        )
        started_at = self._clock.now()
        try:
            answer = await self._http.send(outgoing, stream=True)
        except httpx.HTTPError as exc:
            call = _Call(
                model=model, started_at=started_at, status=502, reader=UsageReader(is_stream=False)
            )
            self._report(run_id, call, error=type(exc).__name__)
            reason = f"the model could not be reached: {type(exc).__name__}"
            _log.warning("broker.refused", status=502, reason=reason, run_id=run_id)
            return error_response(Refused(status=502, kind="api_error", message=reason))
        call = _Call(
            model=model,
            started_at=started_at,
            status=answer.status_code,
            reader=UsageReader(is_stream="event-stream" in answer.headers.get("content-type", "")),
        )
        passed = {
            name: value
            for name, value in answer.headers.items()
            if name.lower().startswith(FORWARDED_RESPONSE_PREFIXES)
        }
        return PassedThrough(
            self._pass_through(run_id, answer, call), status_code=answer.status_code, headers=passed
        )

    async def _pass_through(
        self, run_id: RunId, answer: httpx.Response, call: _Call
    ) -> AsyncIterator[bytes]:
        error = ""
        try:
            async for chunk in answer.aiter_raw():
                call.reader.feed(chunk)
                if call.first_token_at is None and call.reader.has_started:
                    call.first_token_at = self._clock.now()
                yield chunk
        except httpx.HTTPError as exc:
            error = type(exc).__name__
            raise StreamCutError from exc
        finally:
            await answer.aclose()
            self._report(run_id, call, error=error)

    def _report(self, run_id: RunId, call: _Call, *, error: str) -> None:
        usage = call.reader.finish()
        live = self._admission.find(run_id)
        if live is not None:
            live.on_call(
                ModelCall(
                    model=call.model,
                    started_at=call.started_at,
                    first_token_at=call.first_token_at,
                    ended_at=self._clock.now(),
                    status=call.status,
                    usage=usage,
                    error=error or call.reader.error,
                )
            )


def create_broker_app(router: APIRouter) -> FastAPI:
    """What listens at the doors of sandboxes: the broker's routes and nothing else."""
    app = FastAPI(openapi_url=None)
    app.include_router(router)
    return app
