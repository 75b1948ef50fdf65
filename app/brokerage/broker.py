"""The proxy between sandboxes and models: checks the run token and the model, adds the key, streams the answer, counts usage."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from app.brokerage.http import (
    IncomingRequest,
    ModelRequest,
    ProxyResponse,
    Refusal,
    StreamCutError,
    answer_while_connected,
    cancel_on_disconnect,
    find_header_refusal,
    forbidden,
    invalid,
    read_json_body,
    unauthorized,
)
from app.brokerage.registry import GrantRegistry, LiveGrant, RequestKind, error_response
from app.brokerage.rules import PROTOCOLS, Endpoint, WireProtocol
from app.brokerage.usage import BYTES_PER_TOKEN, ProxiedCall, UsageReader
from app.log import get_logger
from app.runs.broker import CLIENT_GONE, ModelGrant
from app.runs.budget import BudgetRefusal
from app.runs.model import Clock

TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=10.0)
"""A model may think for minutes before its first token; the run's own deadline is the real bound."""
ACCEPTED = ("application/json", "text/event-stream")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A provider that model requests are forwarded to, and its key."""

    base_url: str
    key_headers: Mapping[str, str] = field(repr=False)
    name_at: Callable[[str], str] = str
    """Maps a model's name to its name at this provider."""

    def named(self, granted: ModelRequest) -> ModelRequest:
        """Returns the request with the provider's name of the model; usage is counted under the run's own name."""
        name = self.name_at(granted.model)
        if name == granted.model:
            return granted
        return replace(
            granted, body=json.dumps(json.loads(granted.body) | {"model": name}).encode()
        )


OwnUpstream = Callable[[str, str], Upstream]
"""Returns the upstream for a protocol (first argument) and a person's own key (second)."""


class ModelsBroker:
    """The model broker for all protocols. Its maker owns the HTTP client."""

    def __init__(
        self,
        *,
        registry: GrantRegistry,
        upstreams: Mapping[str, Upstream],
        http: httpx.AsyncClient,
        clock: Clock,
        own_upstream: OwnUpstream | None = None,
    ) -> None:
        """`upstreams`: by the names of protocols; a protocol without one is refused, as it would be without a key.

        `own_upstream`: for runs with a key of their own; without it they are refused.
        """
        self._registry = registry
        self._upstreams = upstreams
        self._own_upstream = own_upstream
        self._http = http
        self._clock = clock

    def router(self) -> APIRouter:
        """Returns the routes below `/broker`, for unix sockets and for the public address."""
        router = APIRouter(prefix="/broker")
        for protocol in PROTOCOLS:
            for endpoint in protocol.endpoints:
                router.add_api_route(
                    f"/{protocol.name}{endpoint.path}",
                    self._route(protocol, endpoint),
                    methods=["POST"],
                    response_model=None,
                )
        return router

    def _route(
        self, protocol: WireProtocol, endpoint: Endpoint
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await answer_while_connected(partial(self._answer, request, protocol, endpoint))

        return answer

    async def _answer(
        self,
        request: Request,
        protocol: WireProtocol,
        endpoint: Endpoint,
        held: AsyncExitStack,
    ) -> Response:
        render = protocol.render_error
        live = await self._registry.admit(request, held, RequestKind.MODEL, render=render)
        if isinstance(live, Response):
            return live
        live.calls += 1  # also of what is refused below: to read it costs something, too
        if live.calls > live.grant.max_calls:
            refused = forbidden(f"the run has used its {live.grant.max_calls} model calls")
            return self._registry.refuse(refused, live, render)
        body = await read_json_body(request, live.bodies, held)
        headers = _headers(request, protocol)
        read = body if isinstance(body, Refusal) else _read_request(request, protocol, body)
        incoming = find_header_refusal(headers) or read
        granted = (
            incoming if isinstance(incoming, Refusal) else _check(endpoint, incoming, live.grant)
        )
        if isinstance(granted, Refusal):
            return self._registry.refuse(granted, live, render)
        upstream = self._upstream(live.grant, protocol.name)
        if isinstance(upstream, Refusal):
            return self._registry.refuse(upstream, live, render)
        asked_tokens = len(granted.body) // BYTES_PER_TOKEN
        if live.hooks.refusal is not None and (
            denied := live.hooks.refusal(granted.model, asked_tokens)
        ):
            return self._registry.refuse(_budget_refusal(denied), live, render)
        context = _CallContext(
            live=live,
            protocol=protocol,
            endpoint=endpoint,
            upstream=upstream,
            headers=headers,
            held=held,
        )
        return await self._forward(request, granted, context)

    def _upstream(self, grant: ModelGrant, protocol: str) -> Upstream | Refusal:
        if not grant.own_key:
            no_key = f"Orion has no key for models of the protocol {protocol}"
            return self._upstreams.get(protocol) or unauthorized(no_key)
        if grant.own_key_protocol == protocol and self._own_upstream is not None:
            return self._own_upstream(protocol, grant.own_key)
        return forbidden(f"the run's own key is not for models of the protocol {protocol}")

    async def _forward(
        self, request: Request, granted: ModelRequest, context: "_CallContext"
    ) -> Response:
        live, protocol = context.live, context.protocol
        outgoing = self._http.build_request(
            "POST",
            context.upstream.base_url.rstrip("/") + granted.path,
            content=context.upstream.named(granted).body,
            # identity: the usage is read from the bytes that pass by; who compresses all the same is decoded
            headers=context.headers
            | {"accept-encoding": "identity"}
            | dict(context.upstream.key_headers),
            timeout=TIMEOUT,
        )
        call = ProxiedCall(
            model=granted.model,
            started_at=self._clock.now(),
            status=502,
            asked_bytes=len(granted.body),
            has_output=granted.has_output,
            reader=UsageReader(context.endpoint.read_event, is_stream=False),
        )
        try:
            answer = await cancel_on_disconnect(request, self._http.send(outgoing, stream=True))
        except ClientDisconnect as exc:
            call.status = CLIENT_GONE
            call.error = type(exc).__name__
            self._report(live, call)
            raise
        except httpx.HTTPError as exc:
            call.error = type(exc).__name__
            self._report(live, call)
            reason = f"the model could not be reached: {type(exc).__name__}"
            run_id = live.grant.run_id
            _log.warning("broker.refused", status=502, reason=reason, run_id=run_id)
            refused = Refusal(status=502, kind="api_error", message=reason)
            return error_response(refused, protocol.render_error)
        call.status = answer.status_code
        is_stream = "event-stream" in answer.headers.get("content-type", "")
        call.reader = UsageReader(context.endpoint.read_event, is_stream=is_stream)
        passed = {
            name: value
            for name, value in answer.headers.items()
            if name.lower().startswith(protocol.response_prefixes)
        }
        held = context.held
        held.push_async_callback(answer.aclose)
        held.callback(self._report, live, call)  # before the other, which may wait
        return ProxyResponse(
            self._pass_through(answer, live, call),
            status_code=answer.status_code,
            headers=passed,
            held=held.pop_all(),
        )

    async def _pass_through(
        self, answer: httpx.Response, live: LiveGrant, call: ProxiedCall
    ) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.aiter_bytes():
                call.reader.feed(chunk)
                if call.first_token_at is None and call.reader.has_started:
                    call.first_token_at = self._clock.now()
                yield chunk
            call.is_whole = True
        except httpx.HTTPError as exc:
            call.error = type(exc).__name__
            raise StreamCutError from exc
        self._report(live, call)
        if live.hooks.tell_call is not None:
            await live.hooks.tell_call()

    def _report(self, live: LiveGrant, call: ProxiedCall) -> None:
        """Reports the call once, also when the run is over and its agent was killed while it read: the call is paid for."""
        if not call.is_reported:
            call.is_reported = True
            live.hooks.on_call(call.ended(self._clock.now()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallContext:
    """A checked request and everything needed to forward it."""

    live: LiveGrant
    held: AsyncExitStack
    """Closed when the answer has passed."""
    protocol: WireProtocol
    endpoint: Endpoint
    upstream: Upstream
    headers: dict[str, str]


def _headers(request: Request, protocol: WireProtocol) -> dict[str, str]:
    """Returns the headers to forward. The body is serialised again, so the client's content type does not count."""
    headers = {
        name: request.headers[name] for name in protocol.request_headers if name in request.headers
    }
    if (accept := request.headers.get("accept")) in ACCEPTED:
        headers["accept"] = accept
    return headers | {"content-type": "application/json"}


def _check(
    endpoint: Endpoint, incoming: IncomingRequest, grant: ModelGrant
) -> ModelRequest | Refusal:
    try:
        return endpoint.check(incoming, grant)
    except RecursionError:
        return invalid("the body is nested too deeply")


def _budget_refusal(denied: BudgetRefusal) -> Refusal:
    """Translates a refusal of the budget; with 429 clients try again after a pause."""
    if denied.may_pass:
        return Refusal(status=429, kind="rate_limit_error", message=denied.reason)
    return forbidden(denied.reason)


def _read_request(request: Request, protocol: WireProtocol, body: bytes) -> IncomingRequest:
    # Not `request.url`, which the Host header has a part in.
    path = request.scope["path"].partition(f"/broker/{protocol.name}")[2]
    return IncomingRequest(path=path, body=body, query=request.query_params)


def create_broker_app(router: APIRouter) -> FastAPI:
    """Creates the application behind the sandboxes' sockets: the broker's routes and nothing else."""
    app = FastAPI(openapi_url=None)
    app.include_router(router)
    return app
