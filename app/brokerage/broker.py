"""Stands between sandboxes and the model: checks the run token and the model, adds the key, streams through, counts."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.brokerage.requests import Refused, check_request, unauthorized
from app.brokerage.tokens import InvalidTokenError, create_token, read_token
from app.brokerage.usage import UsageReader
from app.log import get_logger
from app.runs.model import ModelCall, RunId, Usage
from app.runs.ports import Clock, ModelGrant

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Source: Anthropic API, request size limit of the Messages endpoint, read 2026-11."""
TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=10.0)
"""A model may think for minutes before its first token; the run's own deadline is the real bound."""
TOLD_REFUSALS = 20
"""Of a run, in its trace: a loop in the sandbox must not fill it."""
CLIENT_GONE = 499
"""Source: nginx, HTTP status 499, "client closed request", read 2026-11."""
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
class _LiveGrant:
    """A grant of this process, while its run goes."""

    grant: ModelGrant
    on_call: Callable[[ModelCall], None]
    opened_at: datetime
    opened_s: float = field(default_factory=time.monotonic)
    calls: int = 0
    refusals: int = 0

    def covers(self, token: ModelGrant) -> bool:
        """Whether the token's time is not over. The wall clock may have jumped since the grant was opened."""
        passed = timedelta(seconds=time.monotonic() - self.opened_s)
        return self.opened_at + passed <= token.expires_at


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
        self,
        *,
        upstream: Upstream,
        signing_key: bytes,
        http: httpx.AsyncClient,
        clock: Clock,
    ) -> None:
        self._upstream = upstream
        self._key = signing_key
        self._http = http
        self._clock = clock
        self._live: dict[RunId, _LiveGrant] = {}

    @contextmanager
    def open_grant(self, grant: ModelGrant, on_call: Callable[[ModelCall], None]) -> Iterator[str]:
        """A run token, good while inside; by a door only by that of the grant's session."""
        self._live[grant.run_id] = _LiveGrant(
            grant=grant, on_call=on_call, opened_at=self._clock.now()
        )
        try:
            yield create_token(self._key, grant)
        finally:
            self._live.pop(grant.run_id, None)

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
        door = getattr(request.state, "door", None)
        live = self._admit(_bearer(request), door)
        if isinstance(live, Refused):
            return self._refuse(live, self._at(door))
        body = await _read_body(request)
        if body is None:
            message = f"the request is larger than {MAX_REQUEST_BYTES} bytes"
            return self._refuse(
                Refused(status=413, kind="request_too_large", message=message), live
            )
        asked = check_request(body, live.grant)
        if isinstance(asked, Refused):
            return self._refuse(asked, live)
        live.calls += 1
        if live.calls > live.grant.max_calls:
            message = f"the run has used its {live.grant.max_calls} model calls"
            return self._refuse(Refused(status=403, kind="permission_error", message=message), live)
        return await self._forward(request, live.grant.run_id, asked.body, model=asked.model)

    def _admit(self, token: str, door: str | None) -> _LiveGrant | Refused:
        """The grant that a token stands for, at this door."""
        try:
            read = read_token(self._key, token)
        except InvalidTokenError as exc:
            return unauthorized(str(exc))
        live = self._live.get(read.run_id)
        if live is None or not live.covers(read):
            return unauthorized(f"the run is over: {read.run_id}")
        if door is not None and live.grant.session_id != door:
            return unauthorized(f"the token is another thread's: {read.run_id}")
        return live

    def _at(self, door: str | None) -> _LiveGrant | None:
        """The run that goes in the sandbox behind a door."""
        found = (live for live in self._live.values() if live.grant.session_id == door)
        return next(found, None)

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
            return _error(Refused(status=502, kind="api_error", message=reason))
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
        return _PassedThrough(
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
            raise _StreamCutError from exc
        finally:
            await answer.aclose()
            self._report(run_id, call, error=error)

    def _report(self, run_id: RunId, call: _Call, *, error: str) -> None:
        usage = call.reader.finish()
        live = self._live.get(run_id)
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

    def _refuse(self, refused: Refused, asking: _LiveGrant | None) -> Response:
        """Told in the log, and in the trace of the run that asked, where that is known."""
        run_id = asking.grant.run_id if asking else ""
        _log.warning("broker.refused", status=refused.status, reason=refused.message, run_id=run_id)
        if asking is not None and asking.refusals < TOLD_REFUSALS:
            asking.refusals += 1
            now = self._clock.now()
            asking.on_call(
                ModelCall(
                    model="refused",
                    started_at=now,
                    first_token_at=None,
                    ended_at=now,
                    status=refused.status,
                    usage=Usage(),
                    error=refused.kind,
                    is_refused=True,
                )
            )
        return _error(refused)


class _StreamCutError(Exception):
    """The model's answer broke off after its status line had been passed on."""


class _PassedThrough(StreamingResponse):
    """Breaks off where the model's answer did: the agent must see a cut stream, as it would without us."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except _StreamCutError:
            # Uvicorn closes the connection of a response without an end, and says so in one line.
            _log.warning("broker.stream_cut", path=scope["path"])


def create_broker_app(broker: MessagesBroker) -> FastAPI:
    """What listens at the doors of sandboxes: the broker and nothing else."""
    app = FastAPI(openapi_url=None)
    app.include_router(broker.router())
    return app


def _error(refused: Refused) -> Response:
    """In the provider's own error shape, so that every SDK understands it."""
    error = {"type": refused.kind, "message": refused.message}
    return JSONResponse({"type": "error", "error": error}, status_code=refused.status)


def _bearer(request: Request) -> str:
    return request.headers.get("x-api-key") or request.headers.get(
        "authorization", ""
    ).removeprefix("Bearer ")


async def _read_body(request: Request) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_REQUEST_BYTES:
            return None
    return bytes(body)
