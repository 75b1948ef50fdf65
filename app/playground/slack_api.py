"""The Web API: one call from its wire form to its JSON answer, in the order Slack checks things."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from app.playground import api_chat, api_conversations, api_files, api_sessions, api_views
from app.playground.faults import Fault, Faults
from app.playground.modals import Modals
from app.playground.rates import RateLimiter
from app.playground.slack_call import Args, Call
from app.playground.slack_state import Workspace
from app.playground.slack_types import Clock, JsonObject, LookalikeConfig, SlackError, new_id
from app.web.hosting import ABORT_EXTENSION

Handler = Callable[[Call], JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    handler: Handler
    scopes: tuple[str, ...] = ()
    """Any one of these suffices."""
    takes_app_token: bool = False


_HISTORY = ("channels:history", "groups:history", "im:history", "mpim:history")
_READ = ("channels:read", "groups:read", "im:read", "mpim:read")

# Source: docs.slack.dev, "Required scopes" of each method page, read 2026-11.
METHODS: dict[str, Method] = {
    "api.test": Method(handler=api_sessions.api_test),
    "auth.test": Method(handler=api_sessions.auth_test),
    "apps.connections.open": Method(handler=api_sessions.open_connection, takes_app_token=True),
    "assistant.threads.setStatus": Method(
        handler=api_sessions.set_thread_status, scopes=("chat:write", "assistant:write")
    ),
    "agents.sessions.setStatus": Method(
        handler=api_sessions.set_session_status, scopes=("chat:write",)
    ),
    "chat.postMessage": Method(handler=api_chat.post_message, scopes=("chat:write",)),
    "chat.update": Method(handler=api_chat.update, scopes=("chat:write",)),
    "chat.delete": Method(handler=api_chat.delete, scopes=("chat:write",)),
    "chat.postEphemeral": Method(handler=api_chat.post_ephemeral, scopes=("chat:write",)),
    "reactions.add": Method(handler=api_chat.add_reaction, scopes=("reactions:write",)),
    "conversations.replies": Method(handler=api_conversations.replies, scopes=_HISTORY),
    "conversations.history": Method(handler=api_conversations.history, scopes=_HISTORY),
    "conversations.info": Method(handler=api_conversations.info, scopes=_READ),
    "conversations.open": Method(handler=api_conversations.open_dm, scopes=("im:write",)),
    "users.info": Method(handler=api_conversations.user_info, scopes=("users:read",)),
    "views.open": Method(handler=api_views.open_view),
    "files.getUploadURLExternal": Method(handler=api_files.upload_url, scopes=("files:write",)),
    "files.completeUploadExternal": Method(
        handler=api_files.complete_upload, scopes=("files:write",)
    ),
}


class WebApi:
    def __init__(
        self,
        *,
        config: LookalikeConfig,
        workspace: Workspace,
        faults: Faults,
        files: api_files.FileStore,
        tickets: set[str],
        modals: Modals,
        clock: Clock,
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._faults = faults
        self._files = files
        self._tickets = tickets
        self._modals = modals
        self._clock = clock
        self._rates = RateLimiter(clock=clock, enabled=config.rate_limits == "real")
        self.calls: list[JsonObject] = []
        """The last calls (method, error, at), for tests and the curious."""

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
        self._log(name, body)
        if fault and fault.answer_after_s:
            await self._clock.sleep(fault.answer_after_s)
        if fault and fault.drop_after_accept:
            return cut(request)
        if fault and fault.is_html:
            return HTMLResponse("<h1>Bad gateway</h1>", status)
        return JSONResponse(body, status, headers={"x-slack-req-id": new_id("R"), **headers})

    def _answer(
        self, name: str, args: Args, token: str | None, *, request: Request, fault: Fault | None
    ) -> tuple[JsonObject, int, Mapping[str, str]]:
        try:
            if fault:
                fault.raise_refusal()
            method = _method(name)
            self._check_token(method, token)
            self._rates.take(name, channel=args.text("channel"))
            call = Call(
                args=args,
                workspace=self._workspace,
                config=self._config,
                files=self._files,
                tickets=self._tickets,
                modals=self._modals,
                host=request.headers.get("host", "127.0.0.1"),
            )
            return {"ok": True, **method.handler(call)}, 200, {}
        except SlackError as refused:
            return refused.body(), refused.status, refused.headers

    def _check_token(self, method: Method, token: str | None) -> None:
        if not token:
            raise SlackError("not_authed")
        if self._faults.token_revoked:
            raise SlackError("token_revoked")
        expected = self._config.app_token if method.takes_app_token else self._config.bot_token
        if token != expected:
            known = token in {self._config.app_token, self._config.bot_token}
            raise SlackError("not_allowed_token_type" if known else "invalid_auth")
        if method.scopes and not self._config.scopes.intersection(method.scopes):
            provided = ",".join(sorted(self._config.scopes))
            raise SlackError(
                "missing_scope", fields={"needed": method.scopes[0], "provided": provided}
            )

    def _log(self, name: str, body: JsonObject) -> None:
        self.calls.append(
            {"method": name, "error": body.get("error"), "at": self._clock.now().isoformat()}
        )
        del self.calls[:-2000]


def _method(name: str) -> Method:
    if name not in METHODS:
        raise SlackError("unknown_method", fields={"req_method": name})
    return METHODS[name]


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
