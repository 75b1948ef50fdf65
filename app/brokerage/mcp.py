"""Leads an agent's MCP requests to the operator's servers: the sandbox has no network, and the servers' keys stay outside."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from app.brokerage.admission import CLIENT_GONE, Admission, Kind, LiveGrant, note_effect
from app.brokerage.bodies import read_json_body
from app.brokerage.client_credentials import ClientCredentialsAuth, TokenRefusedError
from app.brokerage.mcp_servers import McpServer
from app.brokerage.requests import Refused, find_odd_header, invalid, shown
from app.brokerage.streaming import PassedThrough, StreamCutError, while_waited_for
from app.log import get_logger

TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=10.0)
"""A tool may work for minutes; the run's own deadline is the real bound."""
START_TIMEOUT_S = 10.0
"""For what an agent asks at its start, when a person waits for it in vain."""
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
"""Beginnings of the names of headers that pass, in both directions."""

_log = get_logger(__name__)


class McpBroker:
    """What a tool of these servers does lies outside the sandbox: it is noted in the run's record before it is asked for."""

    def __init__(
        self, *, admission: Admission, servers: Mapping[str, McpServer], http: httpx.AsyncClient
    ) -> None:
        self._admission = admission
        self._servers = servers
        self._logins = {
            name: ClientCredentialsAuth(server.oauth)
            for name, server in servers.items()
            if server.oauth
        }
        self._http = http

    def router(self) -> APIRouter:
        """Routes below `/broker`."""
        router = APIRouter(prefix="/broker/mcp")
        methods = ["POST", "GET", "DELETE"]
        router.add_api_route("/{name}", self._pass, methods=methods, response_model=None)
        return router

    async def _pass(self, name: str, request: Request) -> Response:
        try:
            async with AsyncExitStack() as held:
                return await self._answer(name, request, held)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)  # the agent was killed; nobody reads this

    async def _answer(self, name: str, request: Request, held: AsyncExitStack) -> Response:
        live = self._admission.admit(request, held, Kind.MCP)
        if isinstance(live, Response):
            return live
        server = self._servers.get(name)
        if server is None:
            message = f"no MCP server is called {shown(name)}"
            refused = Refused(status=404, kind="not_found_error", message=message)
            return self._admission.refuse(refused, live)
        if (odd := find_odd_header(_passing(request.headers))) is not None:
            return self._admission.refuse(odd, live)
        came = await read_json_body(request, live, held)
        body = came if isinstance(came, Refused) else _written_anew(came)
        if isinstance(body, Refused):
            return self._admission.refuse(body, live)
        messages = read_messages(body)
        if request.method == "POST" and has_effect(messages) and not await note_effect(live):
            message = "the run's record cannot be written, so nothing may be changed"
            return self._admission.refuse(
                Refused(status=503, kind="api_error", message=message), live
            )
        passage = _Passage(
            live=live, name=name, server=server, is_start=is_start(messages), held=held
        )
        return await self._forward(request, body, passage)

    async def _forward(self, request: Request, body: bytes, passage: "_Passage") -> Response:
        live, name, server = passage.live, passage.name, passage.server
        headers = httpx.Headers(_passing(request.headers))
        headers["accept-encoding"] = "identity"
        if body:  # what its form is called is no word of the client's
            headers["content-type"] = "application/json"
        headers.update(server.headers)  # whatever the case of their names
        outgoing = self._http.build_request(
            request.method,
            server.url,
            content=body,
            headers=headers,
            timeout=TIMEOUT,
        )
        run_id = live.grant.run_id
        try:
            login = self._logins.get(name, httpx.USE_CLIENT_DEFAULT)
            async with asyncio.timeout(START_TIMEOUT_S if passage.is_start else None):
                sending = self._http.send(outgoing, stream=True, auth=login)
                answer = await while_waited_for(request, sending)
        except (httpx.HTTPError, TimeoutError) as exc:
            if isinstance(exc, TokenRefusedError):
                _log.warning("broker.token_refused", server=name, reason=str(exc))
            message = f"the MCP server {name} could not be reached: {type(exc).__name__}"
            return self._admission.refuse(
                Refused(status=502, kind="api_error", message=message), live
            )
        _log.info("broker.forwarded", run_id=run_id, server=name, status=answer.status_code)
        passage.held.push_async_callback(answer.aclose)
        return PassedThrough(
            _bytes_of(answer),
            status_code=answer.status_code,
            headers=_passing(answer.headers),
            held=passage.held.pop_all(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passage:
    """Which way a request goes."""

    live: LiveGrant
    name: str
    server: McpServer
    is_start: bool
    held: AsyncExitStack
    """Until its answer has passed."""


def _passing(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower().startswith(FORWARDED)}


def has_effect(messages: Sequence[object]) -> bool:
    """Whether JSON-RPC messages ask for more than reading; what cannot be read does."""
    return any(map(_changes_something, messages))


def is_start(messages: Sequence[object]) -> bool:
    """Whether they are what an agent asks before its turn can begin."""
    return any(map(_starts, messages))


def read_messages(body: bytes) -> Sequence[object]:
    """Those of a batch; what cannot be read is one that nobody knows."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return [None]
    return found if isinstance(found, list) else [found]


def _written_anew(body: bytes) -> bytes | Refused:
    """The same JSON, which all can only read as the broker does: of two equal keys there is one."""
    try:
        return json.dumps(json.loads(body)).encode() if body else b""
    except (ValueError, RecursionError):
        return invalid("the body is no JSON that can be read")


def _starts(message: object) -> bool:
    match message:
        case {"method": str(method)}:
            return method in STARTING
        case _:
            return False


def _changes_something(message: object) -> bool:
    if isinstance(message, dict) and any(_is_other_method(name) for name in message):
        return True
    match message:
        case {"method": str(method)}:
            return method not in READING and not method.startswith("notifications/")
        case {"result": _} | {"error": _}:  # the client's answer to a server's question
            return False
        case _:
            return True


def _is_other_method(name: str) -> bool:
    """Whether some readers take it for `method`. Source: golang/go, issue 43664: keys of any case, the last one counts."""
    return name != "method" and name.casefold() == "method"


async def _bytes_of(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_bytes():  # decoded, for who compresses unasked
            yield chunk
    except httpx.HTTPError as exc:
        raise StreamCutError from exc
