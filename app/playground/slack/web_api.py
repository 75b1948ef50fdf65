"""The app's way into the fake Slack: a Web API call from its wire form to its answer, in the order Slack checks things, and file bytes."""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from app.playground.slack.conversations import HISTORIES
from app.playground.slack.interactions import Modals
from app.playground.slack.methods import (
    METHODS,
    POST_MESSAGE,
    POST_PER_CHANNEL,
    Args,
    Call,
    Method,
    Rate,
)
from app.playground.slack.streams import STREAM_METHODS
from app.playground.slack.surfaces import SURFACE_METHODS
from app.playground.slack.types import Clock, FakeSlackConfig, JsonObject, SlackError, new_id
from app.playground.slack.workspace import FileStore, Workspace
from app.web.hosting import ABORT_EXTENSION

ALL_METHODS = {**METHODS, **STREAM_METHODS, **SURFACE_METHODS}
DISTRIBUTED = Rate(1, 1)
"""Of histories, for an app that is sold outside the Marketplace. Source: as `DISTRIBUTED_ITEMS`."""


class RateLimiter:
    def __init__(self, *, clock: Clock, enabled: bool, is_distributed: bool = False) -> None:
        """`is_distributed`: see `FakeSlackConfig`."""
        self._clock = clock
        self._enabled = enabled
        self._histories = DISTRIBUTED if is_distributed else None
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, method: str, *, channel: str) -> None:
        """Takes one call from what the limit allows.

        Raises:
            SlackError: ratelimited, status 429, with Retry-After.
        """
        if not self._enabled:
            return
        rates = {(method, channel): POST_PER_CHANNEL} if method == POST_MESSAGE else {}
        own = self._histories if method in HISTORIES else None
        rates[method, ""] = own or ALL_METHODS[method].rate
        now_s = self._clock.now().timestamp()
        levels = {key: self._level(key, rate, now_s) for key, rate in rates.items()}
        for key, level in levels.items():
            if level < 1:
                wait_s = math.ceil((1 - level) * 60 / rates[key].per_minute)
                raise SlackError("ratelimited", status=429, headers={"Retry-After": str(wait_s)})
        self._buckets |= {key: (level - 1, now_s) for key, level in levels.items()}

    def _level(self, key: tuple[str, str], rate: Rate, now_s: float) -> float:
        level, at_s = self._buckets.get(key, (float(rate.burst), now_s))
        return min(float(rate.burst), level + (now_s - at_s) * rate.per_minute / 60)


class Fault(BaseModel):
    """Describes what one method, or every one, does wrong; as it is planned over HTTP."""

    model_config = ConfigDict(extra="forbid")

    method: str = "*"
    """A Web API method, or `*` for every one."""
    times: int = Field(default=1, ge=1)
    skip: int = Field(default=0, ge=0)
    """Calls let through before the fault starts."""
    status: int | None = None
    error: str | None = None
    retry_after: int | None = None
    drop_after_accept: bool = False
    """The call takes effect, but the connection is cut before the answer."""
    drop_before_accept: bool = False
    """The connection is cut and nothing took effect."""
    delay_s: float = Field(default=0.0, ge=0, le=120)
    """Before the call takes effect."""
    answer_after_s: float = Field(default=0.0, ge=0, le=120)
    """The call takes effect at once, its answer comes this much later."""
    is_html: bool = False
    """The refusal is a page of a gateway instead of Slack's JSON."""

    def raise_refusal(self) -> None:
        """Returns the answer in place of the method's own, if this fault has one."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise SlackError("ratelimited", status=429, headers={"Retry-After": "1", **headers})
        if self.status is not None:
            raise SlackError(self.error or "internal_error", status=self.status, headers=headers)
        if self.error:
            raise SlackError(self.error)


class Faults:
    def __init__(self) -> None:
        self._planned: list[Fault] = []
        self.outage = False
        """Slack is down: every call answers 503 and no event is sent."""
        self.token_revoked = False

    def plan(self, fault: Fault) -> None:
        self._planned.append(fault)

    def clear(self) -> None:
        self._planned.clear()
        self.outage = self.token_revoked = False

    def take(self, method: str) -> Fault | None:
        """Returns the fault that this call meets, counted down."""
        for fault in self._planned:
            if fault.method not in {"*", method}:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                return None
            fault.times -= 1
            if fault.times <= 0:
                self._planned.remove(fault)
            return fault
        return None


class WebApi:
    def __init__(
        self,
        *,
        config: FakeSlackConfig,
        workspace: Workspace,
        faults: Faults,
        tickets: set[str],
        modals: Modals,
        clock: Clock,
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._faults = faults
        self._tickets = tickets
        self._modals = modals
        self._clock = clock
        self._rates = RateLimiter(
            clock=clock,
            enabled=config.rate_limits == "real",
            is_distributed=config.is_distributed,
        )
        self.calls: deque[JsonObject] = deque(maxlen=10_000)
        """The last calls (method, channel, thread_ts, error, at), for tests and the curious."""

    async def endpoint(self, request: Request) -> Response:
        name = request.path_params["method"]
        if self._faults.outage:
            return PlainTextResponse("Service Unavailable", status_code=503)
        fault = self._faults.take(name)
        if fault and fault.delay_s:
            await self._clock.sleep(fault.delay_s)
        if fault and fault.drop_before_accept:
            return cut(request)
        args, token = await read_arguments(request)
        body, status, headers = self._answer(name, args, token, request=request, fault=fault)
        self._log(name, args, body)
        if fault and fault.answer_after_s:
            await self._clock.sleep(fault.answer_after_s)
        if fault and fault.drop_after_accept:
            return cut(request)
        if fault and fault.is_html:
            return HTMLResponse("<h1>Bad gateway</h1>", status)
        told = {"x-slack-req-id": new_id("R"), "x-oauth-scopes": ",".join(self._config.scopes)}
        return JSONResponse(body, status, headers={**told, **headers})

    def _answer(
        self, name: str, args: Args, token: str | None, *, request: Request, fault: Fault | None
    ) -> tuple[JsonObject, int, Mapping[str, str]]:
        try:
            if fault:
                fault.raise_refusal()
            method = self._permitted(name, token)
            self._rates.take(name, channel=args.text("channel"))
            call = Call(
                args=args,
                workspace=self._workspace,
                config=self._config,
                tickets=self._tickets,
                modals=self._modals,
                host=request.headers.get("host", "127.0.0.1"),
            )
            return {"ok": True, **method.handler(call)}, 200, self._granted(method)
        except SlackError as refused:
            return refused.body(), refused.status, refused.headers

    def _granted(self, method: Method) -> Mapping[str, str]:
        """Returns the header that names what the bot token may. Source: docs.slack.dev, "Permission scopes", X-OAuth-Scopes, read 2026-11."""
        if method.caller != "bot":
            return {}
        return {"x-oauth-scopes": ",".join(sorted(self._config.scopes))}

    def _permitted(self, name: str, token: str | None) -> Method:
        """Returns the method, which this token may call."""
        if name not in ALL_METHODS:
            raise SlackError("unknown_method", fields={"req_method": name})
        method = ALL_METHODS[name]
        if not token:
            raise SlackError("not_authed")
        if self._faults.token_revoked:
            raise SlackError("token_revoked")
        tokens = self._config.tokens
        if token != tokens[method.caller]:
            known = token in tokens.values()
            raise SlackError("not_allowed_token_type" if known else "invalid_auth")
        if method.scopes and not self._config.scopes.intersection(method.scopes):
            provided = ",".join(sorted(self._config.scopes))
            fields = {"needed": method.scopes[0], "provided": provided}
            raise SlackError("missing_scope", fields=fields)
        return method

    def _log(self, name: str, args: Args, body: JsonObject) -> None:
        call = {
            "method": name,
            "channel": args.text("channel") or args.text("channel_id"),
            "thread_ts": args.text("thread_ts"),
            "ts": args.text("ts"),
            "oldest": args.text("oldest"),
            "latest": args.text("latest"),
            "error": body.get("error"),
            "at": self._clock.now().isoformat(),
        }
        self.calls.append(call)


async def read_arguments(request: Request) -> tuple[Args, str | None]:
    """All three dialects of the Python SDK: JSON body, form body, query string (on GET and on POST)."""
    values: dict[str, Any] = dict(request.query_params)
    content_type = request.headers.get("content-type", "").partition(";")[0]
    if request.method == "POST":
        if content_type == "application/json":
            try:
                body = json.loads(await request.body() or b"{}")
            except ValueError:
                body = {}
            values |= body if isinstance(body, dict) else {}
        elif content_type == "application/x-www-form-urlencoded":
            values |= dict(parse_qsl((await request.body()).decode(errors="replace")))
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    token = credential.strip() if scheme.lower() == "bearer" else None
    return Args(values), token or values.get("token")


def cut(request: Request) -> Response:
    """End the connection without an answer."""
    abort: Callable[[], None] | None = request.scope.get("extensions", {}).get(ABORT_EXTENSION)
    if abort is None:
        raise RuntimeError("this server cannot cut connections: serve the app with app.web.hosting")
    abort()
    return Response(status_code=204)  # nobody is there to read it


def file_routes(files: FileStore, *, config: FakeSlackConfig) -> list[Route]:
    """`POST /upload/{id}` and `GET /files-pri/{id}/{name}`."""

    async def upload(request: Request) -> Response:
        # The Python SDK uploads the bare bytes (slack_sdk 3.47, files_upload_v2), not a multipart form.
        content = await request.body()
        accepted = files.fill(request.path_params["file_id"], content)
        return PlainTextResponse(
            f"OK - {len(content)}" if accepted else "bad upload", 200 if accepted else 400
        )

    async def download(request: Request) -> Response:
        stored = files.get(request.path_params["file_id"])
        # Without access Slack answers 200 with its login page. Source: integrators' reports on url_private, read 2026-11.
        is_app = request.headers.get("authorization") == f"Bearer {config.bot_token}"
        if not is_app or "files:read" not in config.scopes:
            return HTMLResponse("<!DOCTYPE html><title>Sign in</title>")
        if stored is None or stored.content is None:
            return PlainTextResponse("not found", 404)
        return Response(stored.content, media_type=stored.mimetype)

    return [
        Route("/upload/{file_id}", upload, methods=["POST"]),
        Route("/files-pri/{file_id}/{name:path}", download, methods=["GET"]),
    ]
