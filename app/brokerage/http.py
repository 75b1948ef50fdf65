"""HTTP as the broker speaks it: requests of sandboxes, their bodies, answers that stream through, and the clients that ask outside."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import httpx
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.aio import open_task_group
from app.log import get_logger
from app.runs.broker import CLIENT_GONE

_log = get_logger(__name__)

NAME_CHARS = 80
"""The most that a message repeats of what a sandbox wrote."""
"""Source: nginx, HTTP status 499, "client closed request", read 2026-11."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that turns a request down."""

    status: int
    kind: str
    """The error type in Anthropic's words; other protocols translate it."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRequest:
    """A model request as the sandbox sent it."""

    path: str
    """Relative to the protocol's own path."""
    body: bytes = field(repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request that passed the checks. `body` is serialised again: two parsers of one text may read it differently."""

    model: str
    path: str
    """Relative to the provider's base URL, with its query."""
    body: bytes = field(repr=False)
    has_output: bool = True
    """False for a request that only counts tokens."""


RenderError = Callable[[Refusal], Mapping[str, Any]]
"""Renders a refusal in a protocol's own error shape."""


def unauthorized(reason: str) -> Refusal:
    """Refuses a token that is not valid here."""
    return Refusal(status=401, kind="authentication_error", message=reason)


def forbidden(reason: str) -> Refusal:
    """Refuses what exceeds the run's grant."""
    return Refusal(status=403, kind="permission_error", message=reason)


def too_many(reason: str) -> Refusal:
    """Refuses what exceeds the concurrency of one run; clients try again."""
    return Refusal(status=429, kind="rate_limit_error", message=reason)


def invalid(reason: str) -> Refusal:
    """Refuses what is not a request of the protocol."""
    return Refusal(status=400, kind="invalid_request_error", message=reason)


def quote(value: object) -> str:
    """Quotes text of a sandbox for a message: shortened, and without characters that no answer can have."""
    return repr(str(value)[:NAME_CHARS])


def find_header_refusal(headers: Mapping[str, str]) -> Refusal | None:
    """Returns the refusal of headers that cannot be forwarded; None when all can."""
    odd = next((name for name, value in headers.items() if not value.isascii()), None)
    return invalid(f"the header {odd} has characters that are not ASCII") if odd else None


def read_object(body: bytes) -> dict[str, Any] | None:
    """Returns the JSON object in a body; None when there is none."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def find_unknown(fields: Mapping[str, Any], known: frozenset[str]) -> str:
    """Returns the name of the first unknown field, shortened; empty when there is none."""
    return next((name[:NAME_CHARS] for name in fields if name not in known), "")


def without_empty(fields: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Drops unknown fields whose value is null or false: clients send them for every option they know."""
    return {
        name: value
        for name, value in fields.items()
        if name in known or not (value is None or value is False)
    }


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Source: Anthropic API, request size limit of the Messages endpoint, read 2026-11."""
MAX_VALUES = 200_000
"""The most JSON values in a body, roughly. Parsing a million of `[]` blocks all other runs for most of a second; a long conversation has
some ten thousand."""
_STRUCTURE = (b"[", b"{", b",", b":")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Limits on the request bodies of one run."""

    max_held_bytes: int = 64 * 1024 * 1024
    """For all bodies in flight together: two of the largest."""
    body_timeout_s: float = 60.0
    """For a whole body; a sandbox elsewhere needs 5 Mbit/s for the largest."""


@dataclass(slots=True)
class HeldBodies:
    """The bodies of one run's requests in flight, against their bounds."""

    bounds: RunBounds
    size_bytes: int = 0

    def give_back(self, size_bytes: int) -> None:
        """Releases the bytes of a body that is no longer needed."""
        self.size_bytes -= size_bytes


async def read_body(
    request: Request,
    bodies: HeldBodies,
    held: AsyncExitStack,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
) -> bytes | Refusal:
    """Reads the body, which counts as held by the run until `held` is closed. Raises: ClientDisconnect: it did not come to its end."""
    too_large = Refusal(
        status=413,
        kind="request_too_large",
        message=f"the request is larger than {max_bytes} bytes",
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        return too_large
    body, bounds = bytearray(), bodies.bounds
    held.callback(lambda: bodies.give_back(len(body)))
    try:
        async with asyncio.timeout(bounds.body_timeout_s):
            async for chunk in request.stream():
                body += chunk
                bodies.size_bytes += len(chunk)
                if len(body) > max_bytes:
                    return too_large
                if bodies.size_bytes > bounds.max_held_bytes:
                    return too_many(
                        f"the run has requests of more than {bounds.max_held_bytes} bytes in flight"
                    )
    except TimeoutError:
        message = f"the request did not come to its end within {bounds.body_timeout_s:.0f} s"
        return Refusal(status=408, kind="timeout_error", message=message)
    return bytes(body)


async def read_json_body(
    request: Request, bodies: HeldBodies, held: AsyncExitStack
) -> bytes | Refusal:
    """Reads a JSON body that can be parsed without blocking other runs for long; see `read_body`."""
    body = await read_body(request, bodies, held)
    if not isinstance(body, Refusal) and has_too_many_values(body):
        return invalid(f"the request has more than {MAX_VALUES} values")
    return body


def has_too_many_values(body: bytes) -> bool:
    """Whether JSON has so many values that parsing it takes long; text inside strings does not count."""
    if _structure(body) <= MAX_VALUES:
        return False
    # Without what is escaped in them, strings are between each second pair of quotes.
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 2 * MAX_VALUES)
    return len(parts) > 2 * MAX_VALUES or _structure(b"".join(parts[::2])) > MAX_VALUES


def _structure(text: bytes) -> int:
    return sum(map(text.count, _STRUCTURE))


T = TypeVar("T")


class StreamCutError(Exception):
    """The upstream answer broke off after its status line had been forwarded."""


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, and cancels it when the client disconnects. The request's body must have been read.

    Raises:
        ClientDisconnect: the client hung up first.
        Exception: of `work`, as it is.
    """
    answers: list[T] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    async def run() -> None:
        answers.append(await work)
        watching.cancel()

    try:
        async with open_task_group() as group:
            watching = group.create_task(watch())
            group.create_task(run())
    except BaseExceptionGroup as failures:
        if not answers:  # who hung up in the moment of the answer is noticed when that is passed on
            raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return answers[0]


async def answer_while_connected(
    answer: Callable[[AsyncExitStack], Awaitable[Response]],
) -> Response:
    """Returns the answer to a request. What `answer` puts on the stack is closed unless its response took it over."""
    try:
        async with AsyncExitStack() as held:
            return await answer(held)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)  # the agent was killed; nobody reads this


class ProxyResponse(StreamingResponse):
    """Streams an upstream answer, and breaks off where it did: the agent must see a cut stream, as without a broker."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        *,
        status_code: int,
        headers: Mapping[str, str],
        held: AsyncExitStack,
    ) -> None:
        """`held`: closed before the client sees the end of the answer, or when the client disconnects."""
        super().__init__(_closing(held, content), status_code=status_code, headers=headers)
        self._held = held

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except StreamCutError:
            # Uvicorn closes the connection of a response without an end, and says so in one line.
            _log.warning("broker.stream_cut", path=scope["path"])
        finally:
            # Again: the content of a client that hung up stays where it waits, or was never begun.
            await self._held.aclose()


async def _closing(held: AsyncExitStack, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with held:
        async for chunk in content:
            yield chunk


@cache
def trusted() -> ssl.SSLContext:
    """Returns whom this machine trusts, as httpx reads it, for all clients: each would take 40 ms to load the same."""
    return httpx.create_ssl_context()


KEPT_OPEN = 20
"""The most idle connections; httpx's own default."""


def create_http_client() -> httpx.AsyncClient:
    """Opens a client for requests of all runs; the caller closes it. What runs may have in flight bounds its connections.

    No cookie is kept: what a server gives one run would be sent for the next.
    """
    return httpx.AsyncClient(
        verify=trusted(),
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_OPEN),
    )
