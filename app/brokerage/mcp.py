"""Forwards an agent's MCP requests to the operator's servers: the sandbox has no network, and the servers' keys, and people's, stay outside.

Access tokens by OAuth's client credentials are fetched when needed, and held in memory.
"""

import asyncio
import json
import re
import time
import urllib.parse
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import override

from app.accounts.records import Account
from app.accounts.tokens import AccountTokens, NotLinkedError, RevokedError
from app.approvals.questions import SERVER
from app.approvals.rules import Deed, DeedKind, as_text
from app.brokerage.http import (
    ProxyResponse,
    Refusal,
    StreamCutError,
    answer_while_connected,
    cancel_on_disconnect,
    find_header_refusal,
    invalid,
    quote,
    read_json_body,
)
from app.brokerage.own_server import OwnTool, answer_request, asking_tool, linking_tool
from app.brokerage.registry import GrantRegistry, LiveGrant, RequestKind, let_do
from app.log import get_logger
from app.runs.broker import AskPerson, NotApprovedError, StillWaitingError, UnrecordedError

_log = get_logger(__name__)

_KEYS: Final = frozenset(
    ("jsonrpc", "id", "method", "params", "result", "error", "name", "arguments", "_meta", "uri")
)
"""Of messages and of what they ask for. Source: Model Context Protocol 2025-06-18, schema."""
_FOLDED_KEYS: Final = frozenset(map(str.casefold, _KEYS))
_MEMBERS: Final = ("jsonrpc", "id", "method", "params", "result", "error")
_OWN_META: Final = ("progressToken", "traceparent")
_OWN_META_PREFIX: Final = "io.modelcontextprotocol/"
"""Of a call's `_meta`, the protocol's own passes: it says nothing of what is done. Source: Model Context Protocol 2025-11-25, General fields."""
_ENCODED: Final = re.compile(r"=\?base64\?([A-Za-z0-9+/=]*)\?=")
"""Source: Model Context Protocol, SEP-2243, header values that are no plain ASCII."""
_EARLY_S = 30.0
"""A token is replaced this long before it expires."""
TOKEN_TIMEOUT_S = 10.0
"""To connect, and between the bytes of the token endpoint's answer."""
_UNSAID_S = 300.0
"""The lifetime of a token whose server does not name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """An OAuth client, and the endpoint that gives it tokens."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    """Names with spaces between them; empty for the server's default."""


class TokenRefusedError(httpx.RequestError):
    """The token endpoint gave no token; its words are not repeated here."""


class _Answer(BaseModel):
    access_token: str = Field(min_length=1, pattern=r"^[\x21-\x7e]+$")
    expires_in: float = _UNSAID_S


class ClientCredentialsAuth(httpx.Auth):
    """Authenticates by client credentials: RFC 6749, 4.4, name and secret as in 2.3.1. A token that the server refuses is replaced once.

    Requests at the same time may each fetch a token; either is good.

    Raises:
        TokenRefusedError: from `send`, as other failures of a request.
    """

    requires_request_body = True

    def __init__(self, client: OAuthClient, *, timeout_s: float = TOKEN_TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._token = ""
        self._stale_at = 0.0

    @override
    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        for _ in range(2):
            is_new = time.monotonic() >= self._stale_at
            if is_new:
                answer = yield self._token_request()
                await answer.aread()
                self._keep(answer)
            request.headers["Authorization"] = f"Bearer {self._token}"
            response = yield request
            if response.status_code != httpx.codes.UNAUTHORIZED or is_new:
                return
            self._stale_at = 0.0

    def _token_request(self) -> httpx.Request:
        form = {"grant_type": "client_credentials"}
        if self._client.scope:
            form["scope"] = self._client.scope
        written = (self._client.client_id, self._client.client_secret)
        login = httpx.BasicAuth(*(urllib.parse.quote(one, safe="") for one in written))
        # A request of an auth flow has no time limit of the client's.
        limits = {"timeout": httpx.Timeout(self._timeout_s).as_dict()}
        request = httpx.Request("POST", self._client.token_url, data=form, extensions=limits)
        request.headers["Accept"] = "application/json"
        return next(login.auth_flow(request))

    def _keep(self, answer: httpx.Response) -> None:
        try:
            found = _Answer.model_validate_json(answer.content)
        except ValidationError as exc:
            # A query, or a name before the host, may hold a secret.
            url = httpx.URL(self._client.token_url).copy_with(query=None, userinfo=b"")
            raise TokenRefusedError(f"no token from {url}: HTTP {answer.status_code}") from exc
        self._token = found.access_token
        self._stale_at = time.monotonic() + max(0.0, found.expires_in - _EARLY_S)


CALL = "tools/call"
NOT_DONE = -32001
"""Of a JSON-RPC error. Source: JSON-RPC 2.0, 5.1: -32000 to -32099 are for servers' own."""
TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=10.0)
"""A tool may work for minutes; the run's own deadline is the real bound."""
START_TIMEOUT_S = 10.0
"""For requests that an agent sends at its start, while a person waits."""
STARTING = frozenset({"initialize", "ping", "tools/list", "prompts/list", "resources/list"})
READING = frozenset(
    {
        *("initialize", "ping", "logging/setLevel", "completion/complete", "server/discover"),
        *("tools/list", "prompts/list", "prompts/get", "tasks/get", "tasks/list", "tasks/result"),
        *("resources/list", "resources/read", "resources/templates/list"),
        *("resources/subscribe", "resources/unsubscribe", "subscriptions/listen"),
    }
)
"""Methods that change nothing, besides all notifications. Source: Model Context Protocol, as in mcp-types 2.3."""
FORWARDED = ("content-type", "accept", "last-event-id", "retry-after", "allow", "mcp-")
"""Prefixes of the headers that are forwarded, in both directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server behind streamable HTTP, as the protocol has it since 2025-03-26."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    """Sent with each request, secrets included; they never enter a sandbox."""
    oauth: OAuthClient | None = None
    """The client whose tokens are sent, beside `headers`."""
    is_personal: bool = False
    """It is asked as whoever asked, and as nobody else."""
    accounts: AccountTokens | None = field(default=None, repr=False)
    """Of people at it; None = there are none."""


class McpBroker:
    """A proxy for MCP over HTTP. Tools act outside the sandbox: that is in the run's record before one is called."""

    def __init__(
        self,
        *,
        registry: GrantRegistry,
        servers: Mapping[str, McpServer],
        http: httpx.AsyncClient,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._registry = registry
        self._start_timeout_s = start_timeout_s
        self._servers = servers
        self._logins = {
            name: ClientCredentialsAuth(server.oauth)
            for name, server in servers.items()
            if server.oauth
        }
        self._http = http

    def router(self) -> APIRouter:
        """Returns the routes below `/broker`."""
        router = APIRouter(prefix="/broker/mcp")
        methods = ["POST", "GET", "DELETE"]
        router.add_api_route("/{name}", self._pass, methods=methods, response_model=None)
        return router

    async def _pass(self, name: str, request: Request) -> Response:
        return await answer_while_connected(partial(self._answer, name, request))

    async def _answer(self, name: str, request: Request, held: AsyncExitStack) -> Response:
        live = await self._registry.admit(request, held, RequestKind.MCP)
        if isinstance(live, Response):
            return live
        body = await self._read(name, request, live, held)
        if isinstance(body, Refusal):
            return self._registry.refuse(body, live)
        messages = read_messages(body)
        try:
            account = await self._account_at(name, live)
        except OSError as exc:
            message = f"nobody knows now whose account at {name} this is: {type(exc).__name__}"
            return self._registry.refuse(
                Refusal(status=502, kind="api_error", message=message), live
            )
        if (tool := self._own_tool(name, live, account)) is not None:
            return await answer_request(request.method, messages, tool)
        if request.method == "POST" and has_effect(messages):
            refusal = await self._let_act(live, name, messages)
            if refusal is not None:
                return refusal
            with suppress(OSError):  # people may have taken longer than its token was good for
                account = await self._account_at(name, live)
        context = _CallContext(
            live=live,
            name=name,
            server=self._servers[name],
            account=account,
            is_start=is_start(messages),
            held=held,
        )
        return await self._forward(request, body, context)

    async def _read(
        self, name: str, request: Request, live: LiveGrant, held: AsyncExitStack
    ) -> bytes | Refusal:
        """Returns the body of a request that may be passed on."""
        if name not in self._servers and _own_server(name, live) is None:
            message = f"no MCP server is called {quote(name)}"
            return Refusal(status=404, kind="not_found_error", message=message)
        if (odd := find_header_refusal(_forwarded_headers(request.headers))) is not None:
            return odd
        came = await read_json_body(request, live.bodies, held)
        body = came if isinstance(came, Refusal) else _rewrite_json(came)
        return body if isinstance(body, Refusal) else _odd_request(request, body) or body

    async def _account_at(self, name: str, live: LiveGrant) -> Account | None:
        """Returns the account at a server of whoever asked; None = they have none.

        Raises:
            OSError: that cannot be known now.
        """
        server, asker = self._servers.get(name), live.grant.asker
        if server is None or server.accounts is None or asker is None:
            return None
        try:
            return await server.accounts.of(asker)
        except (NotLinkedError, RevokedError):
            return None

    def _own_tool(self, name: str, live: LiveGrant, account: Account | None) -> OwnTool | None:
        """Returns the tool that Orion itself has under a server's name; None = the operator's server is asked."""
        if (ask := _own_server(name, live)) is not None:
            return asking_tool(ask)
        return linking_tool(name) if self._servers[name].is_personal and not account else None

    async def _let_act(
        self, live: LiveGrant, server: str, messages: Sequence[object]
    ) -> Response | None:
        """Returns what a client is told instead of the server's answer; None = the messages may be passed on."""
        acting = [message for message in messages if _has_effect(message)]
        if len(acting) > 1 and live.hooks.approvals is not None:
            return self._registry.refuse(
                invalid("one call at a time, as each is allowed by itself"), live
            )
        try:
            await let_do(live, read_deed(server, acting[0]))
        except UnrecordedError as exc:
            refused = Refusal(status=503, kind="permission_error", message=str(exc))
            return self._registry.refuse(refused, live)
        except NotApprovedError as exc:
            if not isinstance(exc, StillWaitingError):
                refused = Refusal(status=403, kind="permission_error", message=str(exc))
                self._registry.refuse(refused, live)
            return JSONResponse(render_not_done(acting[0], str(exc)))
        return None

    async def _forward(self, request: Request, body: bytes, context: "_CallContext") -> Response:
        live, name, server = context.live, context.name, context.server
        if server.is_personal and context.account is None:
            message = f"the account at {name} was unlinked meanwhile"
            return self._registry.refuse(
                Refusal(status=403, kind="permission_error", message=message), live
            )
        headers = httpx.Headers(_forwarded_headers(request.headers))
        headers["accept-encoding"] = "identity"
        if body:  # what its form is called is no word of the client's
            headers["content-type"] = "application/json"
        headers.update(server.headers)  # whatever the case of their names
        if context.account is not None:
            headers["authorization"] = f"Bearer {context.account.tokens.access}"
        outgoing = self._http.build_request(
            request.method,
            server.url,
            content=body,
            headers=headers,
            timeout=TIMEOUT,
        )
        try:
            login = self._logins.get(name, httpx.USE_CLIENT_DEFAULT)
            async with asyncio.timeout(self._start_timeout_s if context.is_start else None):
                sending = self._http.send(outgoing, stream=True, auth=login)
                answer = await cancel_on_disconnect(request, sending)
        except (httpx.HTTPError, TimeoutError) as exc:
            if isinstance(exc, TokenRefusedError):
                _log.warning("broker.token_refused", server=name, reason=str(exc))
            message = f"the MCP server {name} could not be reached: {type(exc).__name__}"
            return self._registry.refuse(
                Refusal(status=502, kind="api_error", message=message), live
            )
        live.log_forward(server=name, status=answer.status_code)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            await context.forget_account()
        context.held.push_async_callback(answer.aclose)
        return ProxyResponse(
            _stream_body(answer),
            status_code=answer.status_code,
            headers=_forwarded_headers(answer.headers),
            held=context.held.pop_all(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallContext:
    """A checked request and where it is forwarded."""

    live: LiveGrant
    name: str
    server: McpServer
    account: Account | None
    """Of the person's, as whom it is asked; None = as the operator says."""
    is_start: bool
    held: AsyncExitStack
    """Closed when the answer has passed."""

    async def forget_account(self) -> None:
        """Unlinks an account that the server does not take any more; at the next refusal where the database is away."""
        owner, accounts = self.live.grant.asker, self.server.accounts
        if owner is not None and accounts is not None and self.account is not None:
            with suppress(OSError):
                await accounts.forget(owner, self.account.tokens)


def _own_server(name: str, live: LiveGrant) -> AskPerson | None:
    """Returns how a run asks people, if that is what the server of this name is for; None = it is no such server."""
    approvals = live.hooks.approvals
    return approvals.ask_person if name == SERVER and approvals is not None else None


def _odd_request(request: Request, body: bytes) -> Refusal | None:
    """Refuses what a careless server could take for another message than the one that is looked at here; None: it is not so."""
    problem, messages = "", read_messages(body)
    if body and request.method != "POST":
        problem = f"a {request.method} with a body is not passed on"
    asked = [one for one in messages if isinstance(one, dict)]
    for name, value in request.headers.items():
        if asked and name.startswith("mcp-") and not all(_says(name, value, one) for one in asked):
            problem = f"the header {quote(name)} says something else than the message"
    return Refusal(status=400, kind="invalid_request_error", message=problem) if problem else None


def _says(header: str, value: str, message: Mapping[str, Any]) -> bool:
    """Whether a header that repeats something of a message says what the message says. Others have nothing to repeat."""
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    if (encoded := _ENCODED.fullmatch(value)) is not None:
        with suppress(ValueError):
            value = b64decode(encoded[1]).decode()
    if header == "mcp-method":
        return value == message.get("method")
    if header == "mcp-name":
        return value in (params.get("name"), params.get("uri"))
    arguments = params.get("arguments")
    named = arguments.values() if isinstance(arguments, dict) else ()
    return not header.startswith("mcp-param-") or value in map(as_text, named)


def _forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower().startswith(FORWARDED)}


def has_effect(messages: Sequence[object]) -> bool:
    """Whether JSON-RPC messages may change something; true for messages that cannot be parsed."""
    return any(map(_has_effect, messages))


def read_deed(server: str, message: object) -> Deed:
    """Returns what a message with an effect asks a server to do: a call of a tool, or something else by the name of its method."""
    whole = message if isinstance(message, dict) else {"message": message}
    method, params = whole.get("method", ""), whole.get("params")
    if method != CALL or not isinstance(params, dict):
        return _deed(server, method, {}, beside={"message": {"method": method, "params": params}})
    rest = {name: value for name, value in params.items() if name not in ("name", "_meta")}
    has_named = isinstance(rest.get("arguments", {}), dict)
    arguments = rest.pop("arguments", {}) if has_named else {}
    return _deed(server, params.get("name"), arguments, beside={"params": rest} if rest else {})


def _deed(
    server: str, name: object, arguments: Mapping[str, Any], *, beside: Mapping[str, Any]
) -> Deed:
    target = f"{server}.{name}".encode("utf-8", "backslashreplace").decode()
    return Deed(kind=DeedKind.TOOL, target=target, arguments=arguments, beside=beside)


def render_not_done(message: object, reason: str) -> Mapping[str, Any]:
    """Returns the answer to a call that was not passed on: of a tool one that the model reads. Source: Model Context Protocol 2025-06-18, Tools, "Error Handling"."""
    asked = message if isinstance(message, dict) else {}
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked.get("id")}
    if asked.get("method") == CALL:
        content = [{"type": "text", "text": f"Not done: {reason}."}]
        # The schema of 2026-07-28 wants a resultType; clients of earlier ones pass over it.
        return answer | {"result": {"resultType": "complete", "content": content, "isError": True}}
    return answer | {"error": {"code": NOT_DONE, "message": f"Not done: {reason}."}}


def is_start(messages: Sequence[object]) -> bool:
    """Whether JSON-RPC messages are among those that an agent sends before its turn can begin."""
    return any(map(_is_start_message, messages))


def read_messages(body: bytes) -> Sequence[object]:
    """Returns the messages of a body or batch; `[None]` for a body that cannot be parsed."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return [None]
    return found if isinstance(found, list) else [found]


def _rewrite_json(body: bytes) -> bytes | Refusal:
    """Serialises JSON again, so that every parser reads it as the broker does: duplicate keys are gone, and keys that some take for others are refused."""
    if not body:
        return b""
    try:
        found = json.loads(body)
        if (key := _find_lookalike(found)) is not None:
            return invalid(
                f"{quote(key)} is no key of the protocol, but some servers take it for one"
            )
        return json.dumps(_reduce(found)).encode()
    except (ValueError, RecursionError):
        return invalid("the body is no JSON that can be read")


def _reduce(found: object) -> object:
    """Returns messages without what the protocol does not know, or says nothing of what is done with: nobody who allows a call is shown that."""
    if isinstance(found, list):
        return [_reduce(one) for one in found]
    if not isinstance(found, dict):
        return found
    message = {name: value for name, value in found.items() if name in _MEMBERS}
    params = message.get("params")
    if message.get("method") == CALL and isinstance(params, dict) and "_meta" in params:
        meta = params["_meta"] if isinstance(params["_meta"], dict) else {}
        own = {
            name: value
            for name, value in meta.items()
            if name in _OWN_META or name.startswith(_OWN_META_PREFIX)
        }
        message["params"] = params | {"_meta": own}
    return message


def _find_lookalike(found: object) -> str | None:
    """Returns a key of a message, or of its parameters, that some parsers take for one of the protocol's. Source: golang/go, issue 43664: keys of any case, the last one counts."""
    for message in found if isinstance(found, list) else [found]:
        if isinstance(message, dict):
            params = message.get("params")
            keys = [*message, *(params if isinstance(params, dict) else ())]
            for key in keys:
                if key not in _KEYS and key.casefold() in _FOLDED_KEYS:
                    return str(key)
    return None


def _is_start_message(message: object) -> bool:
    match message:
        case {"method": str(method)}:
            return method in STARTING
        case _:
            return False


def _has_effect(message: object) -> bool:
    match message:
        case {"method": str(method)}:
            return method not in READING and not method.startswith("notifications/")
        case {"result": _} | {"error": _}:  # the client's answer to a server's question
            return False
        case _:
            return True


async def _stream_body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_bytes():  # decoded, for who compresses unasked
            yield chunk
    except httpx.HTTPError as exc:
        raise StreamCutError from exc
