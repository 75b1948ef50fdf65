"""The HTTP surface: Slack's deliveries, health, metrics, the broker; everything else is 404."""

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi import APIRouter, FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.log import get_logger
from app.web.health import Health, Metrics
from app.web.linked import LINKED, linked_page

MAX_BODY_BYTES = 1_048_576
"""Slack's deliveries are a few kB; the Slack package checks the same bound."""

EVENTS = "POST", "/slack/events"

_log = get_logger(__name__)


class Answer(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> str: ...


SlackHandler = Callable[[Mapping[str, str], bytes], Awaitable[Answer]]
"""Headers (lower case) and raw body to an answer; never raises on bad input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebParts:
    """Holds what the routes stand on; made by `main`."""

    slack: SlackHandler | None
    """None = there is no events route: Slack is heard in Socket Mode, or by another process."""
    health: Health
    metrics: Metrics
    broker: APIRouter | None
    """None = other processes are reached for it."""
    ops_token: str | None
    is_loopback: bool
    sweep: Callable[[], Awaitable[str]] | None = None
    """What a cron asks for, and says what it has done; None = it is done without being asked."""
    cron_secret: str | None = None
    """What it says; None = nobody may."""
    operators: Sequence[Route] = ()
    """The operators' page; empty = there is none, as without a token for it."""
    has_link_page: bool = False
    """Whether people come back here from the login of an MCP server."""


class _EventsFirst:
    """Answers Slack's deliveries before the router and what FastAPI has around its routes, which took a sixth of an acknowledgement's time."""

    def __init__(self, app: ASGIApp, events: Callable[[Request], Awaitable[Response]]) -> None:
        self._app = app
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (scope["method"], scope["path"]) == EVENTS:
            app = await self._events(Request(scope, receive))
        await app(scope, receive, send)


def install_routes(app: FastAPI, parts: WebParts) -> None:
    """Adds every route to the app. Plain Starlette routes, as nothing of FastAPI's is needed for them."""

    async def events(request: Request) -> Response:
        started = time.perf_counter()
        answer = await _events(request, parts.slack) if parts.slack else not_found()
        parts.metrics.acknowledged(answer.status_code, time.perf_counter() - started)
        return answer

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_request: Request) -> Response:
        checks = await parts.health.check()
        is_ready = all(check.is_ok for check in checks.values())
        body = {name: {"ok": check.is_ok, "detail": check.detail} for name, check in checks.items()}
        return JSONResponse(body, status_code=200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        refusal = refuse_metrics(request, parts.ops_token, is_loopback=parts.is_loopback)
        return refusal or Response(
            await parts.metrics.render(), media_type="text/plain; version=0.0.4"
        )

    async def linked(request: Request) -> Response:
        return linked_page(request)

    async def sweep(request: Request) -> Response:
        if parts.sweep is None:
            return not_found()
        return refuse_sweep(request, parts.cron_secret) or PlainTextResponse(await parts.sweep())

    app.add_route("/ops/sweep", sweep)
    app.router.routes += parts.operators
    app.add_middleware(_EventsFirst, events=events)
    app.add_route("/healthz", healthz)
    app.add_route("/readyz", readyz)
    app.add_route("/metrics", metrics)
    if parts.has_link_page:
        app.add_route(f"{LINKED}/{{name}}", linked)
    if parts.broker is not None:
        app.include_router(parts.broker)
    app.add_exception_handler(Exception, _on_bug)


async def _events(request: Request, handle: SlackHandler) -> Response:
    body = await read_body(request)
    if isinstance(body, Response):
        return body
    answer = await handle(dict(request.headers.items()), body)
    return Response(answer.body, status_code=answer.status, headers=dict(answer.headers))


async def read_body(request: Request) -> bytes | Response:
    """Returns the whole body; an answer where it is longer than `MAX_BODY_BYTES`, or its sender has gone."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return JSONResponse(
                    {"error": f"body: larger than {MAX_BODY_BYTES} bytes"}, status_code=413
                )
    except ClientDisconnect:
        return JSONResponse({"error": "body: cut off"}, status_code=400)
    return bytes(body)


def bears(request: Request, token: str) -> bool:
    """Whether the request's `Authorization` is this bearer token."""
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def refuse_sweep(request: Request, secret: str | None) -> Response | None:
    """Returns the answer to who is not the cron; None: it is."""
    if secret is None:
        _log.warning("service.cron_refused", reason="CRON_SECRET is not set")
    if secret is None or not bears(request, secret):
        return JSONResponse({"error": "needs CRON_SECRET"}, status_code=401)
    return None


def refuse_metrics(request: Request, token: str | None, *, is_loopback: bool) -> Response | None:
    """Returns the answer to who may not read them: without a token all may, on loopback; None: they may."""
    if is_loopback if token is None else bears(request, token):
        return None
    return JSONResponse({"error": "needs the ops token"}, status_code=401)


def not_found() -> Response:
    """Returns the answer at an address that is none."""
    return JSONResponse({"detail": "Not Found"}, status_code=404)


async def _on_bug(request: Request, exc: Exception) -> Response:
    """Answers as the HTTP edge's outermost step: a bug is logged once and answered without its text."""
    _log.error("service.request_failed", path=request.url.path, exc_info=exc)
    return JSONResponse({"error": "internal error"}, status_code=500)
