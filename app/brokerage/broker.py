"""Stands between sandboxes and their models: checks the run token and the model, adds the key, streams through, counts."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from app.brokerage.admission import CLIENT_GONE, Admission, Kind, LiveGrant, error_response
from app.brokerage.bodies import read_json_body
from app.brokerage.calls import PassingCall
from app.brokerage.protocols import PROTOCOLS, Endpoint, WireProtocol
from app.brokerage.requests import (
    Asked,
    ModelRequest,
    Refused,
    find_odd_header,
    forbidden,
    invalid,
    unauthorized,
)
from app.brokerage.streaming import PassedThrough, StreamCutError, while_waited_for
from app.brokerage.usage import BYTES_PER_TOKEN, UsageReader
from app.log import get_logger
from app.runs.broker_ports import Denied, ModelGrant
from app.runs.ports import Clock

TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=10.0)
"""A model may think for minutes before its first token; the run's own deadline is the real bound."""
ACCEPTED = ("application/json", "text/event-stream")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Where model requests go, and with which key."""

    base_url: str
    key_headers: Mapping[str, str] = field(repr=False)
    name_at: Callable[[str], str] = str
    """What a model is called there."""

    def named(self, granted: ModelRequest) -> ModelRequest:
        """With the model's name as it is there; it is counted by the run's own one."""
        name = self.name_at(granted.model)
        if name == granted.model:
            return granted
        return replace(
            granted, body=json.dumps(json.loads(granted.body) | {"model": name}).encode()
        )


OwnUpstream = Callable[[str, str], Upstream]
"""Where a person's own key for a protocol is used; the key is the second argument."""


class ModelsBroker:
    """The broker for the protocols of all models. Made by `main`, which also owns the HTTP client."""

    def __init__(
        self,
        *,
        admission: Admission,
        upstreams: Mapping[str, Upstream],
        http: httpx.AsyncClient,
        clock: Clock,
        own_upstream: OwnUpstream | None = None,
    ) -> None:
        """`upstreams`: by the names of protocols; a protocol without one is refused, as it would be without a key.

        `own_upstream`: for runs with a key of their own; without it they are refused.
        """
        self._admission = admission
        self._upstreams = upstreams
        self._own_upstream = own_upstream
        self._http = http
        self._clock = clock

    def router(self) -> APIRouter:
        """Routes below `/broker`, for the unix socket and for the public address."""
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
            try:
                async with AsyncExitStack() as held:
                    return await self._answer(request, protocol, endpoint, held)
            except ClientDisconnect:
                return Response(status_code=CLIENT_GONE)  # the agent was killed; nobody reads this

        return answer

    async def _answer(
        self,
        request: Request,
        protocol: WireProtocol,
        endpoint: Endpoint,
        held: AsyncExitStack,
    ) -> Response:
        render = protocol.render_error
        live = self._admission.admit(request, held, Kind.MODEL, render=render)
        if isinstance(live, Response):
            return live
        live.calls += 1  # also of what is refused below: to read it costs something, too
        if live.calls > live.grant.max_calls:
            refused = forbidden(f"the run has used its {live.grant.max_calls} model calls")
            return self._admission.refuse(refused, live, render)
        body = await read_json_body(request, live, held)
        headers = _headers(request, protocol)
        read = body if isinstance(body, Refused) else _asked(request, protocol, body)
        asked = find_odd_header(headers) or read
        granted = asked if isinstance(asked, Refused) else _check(endpoint, asked, live.grant)
        if isinstance(granted, Refused):
            return self._admission.refuse(granted, live, render)
        upstream = self._upstream(live.grant, protocol.name)
        if isinstance(upstream, Refused):
            return self._admission.refuse(upstream, live, render)
        asked_tokens = len(granted.body) // BYTES_PER_TOKEN
        if live.refusal is not None and (denied := live.refusal(granted.model, asked_tokens)):
            return self._admission.refuse(_refused(denied), live, render)
        passage = _Passage(
            live=live,
            protocol=protocol,
            endpoint=endpoint,
            upstream=upstream,
            headers=headers,
            held=held,
        )
        return await self._forward(request, granted, passage)

    def _upstream(self, grant: ModelGrant, protocol: str) -> Upstream | Refused:
        if not grant.own_key:
            no_key = f"Orion has no key for models of the protocol {protocol}"
            return self._upstreams.get(protocol) or unauthorized(no_key)
        if grant.own_key_protocol == protocol and self._own_upstream is not None:
            return self._own_upstream(protocol, grant.own_key)
        return forbidden(f"the run's own key is not for models of the protocol {protocol}")

    async def _forward(
        self, request: Request, granted: ModelRequest, passage: "_Passage"
    ) -> Response:
        live, protocol = passage.live, passage.protocol
        outgoing = self._http.build_request(
            "POST",
            passage.upstream.base_url.rstrip("/") + granted.path,
            content=passage.upstream.named(granted).body,
            # identity: the usage is read from the bytes that pass by; who compresses all the same is decoded
            headers=passage.headers
            | {"accept-encoding": "identity"}
            | dict(passage.upstream.key_headers),
            timeout=TIMEOUT,
        )
        call = PassingCall(
            model=granted.model,
            started_at=self._clock.now(),
            status=502,
            asked_bytes=len(granted.body),
            has_output=granted.has_output,
            reader=UsageReader(passage.endpoint.read_event, is_stream=False),
        )
        try:
            answer = await while_waited_for(request, self._http.send(outgoing, stream=True))
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
            refused = Refused(status=502, kind="api_error", message=reason)
            return error_response(refused, protocol.render_error)
        call.status = answer.status_code
        is_stream = "event-stream" in answer.headers.get("content-type", "")
        call.reader = UsageReader(passage.endpoint.read_event, is_stream=is_stream)
        passed = {
            name: value
            for name, value in answer.headers.items()
            if name.lower().startswith(protocol.response_prefixes)
        }
        held = passage.held
        held.push_async_callback(answer.aclose)
        held.callback(self._report, live, call)  # before the other, which may wait
        return PassedThrough(
            self._pass_through(answer, call),
            status_code=answer.status_code,
            headers=passed,
            held=held.pop_all(),
        )

    async def _pass_through(
        self, answer: httpx.Response, call: PassingCall
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

    def _report(self, live: LiveGrant, call: PassingCall) -> None:
        """Also when the run is over, whose agent was killed while it read: what it asked for is paid."""
        live.on_call(call.ended(self._clock.now()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passage:
    """Which way a request goes."""

    live: LiveGrant
    held: AsyncExitStack
    """Until its answer has passed."""
    protocol: WireProtocol
    endpoint: Endpoint
    upstream: Upstream
    headers: dict[str, str]


def _headers(request: Request, protocol: WireProtocol) -> dict[str, str]:
    """Those that go on. The body is written anew, so what its form is called is no word of the client's."""
    headers = {
        name: request.headers[name] for name in protocol.request_headers if name in request.headers
    }
    if (accept := request.headers.get("accept")) in ACCEPTED:
        headers["accept"] = accept
    return headers | {"content-type": "application/json"}


def _check(endpoint: Endpoint, asked: Asked, grant: ModelGrant) -> ModelRequest | Refused:
    try:
        return endpoint.check(asked, grant)
    except RecursionError:
        return invalid("the body is nested too deeply")


def _refused(denied: Denied) -> Refused:
    """With 429 clients try again after a pause."""
    if denied.may_pass:
        return Refused(status=429, kind="rate_limit_error", message=denied.reason)
    return forbidden(denied.reason)


def _asked(request: Request, protocol: WireProtocol, body: bytes) -> Asked:
    # Not `request.url`, which the Host header has a part in.
    path = request.scope["path"].partition(f"/broker/{protocol.name}")[2]
    return Asked(path=path, body=body, query=request.query_params)


def create_broker_app(router: APIRouter) -> FastAPI:
    """What listens at the doors of sandboxes: the broker's routes and nothing else."""
    app = FastAPI(openapi_url=None)
    app.include_router(router)
    return app
