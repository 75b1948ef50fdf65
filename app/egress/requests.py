"""What a client of the proxy asks for, read by h11 and held to the few forms that are let through."""

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11

from app.egress.hosts import PLAIN_PORT, HostError, read_target

MAX_HEAD_BYTES: Final = 16 * 1024
CHUNK_BYTES: Final = 64 * 1024
_ABSOLUTE = re.compile(r"http://(?P<host>[^/?#]+)(?P<path>/[\x21\x22\x24-\x7e]*)?", re.ASCII)
"""Without a fragment, which no client sends."""
_USER = re.compile(r"//[^/]*@")
_VERSIONS: Final = (b"1.0", b"1.1")
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"te", b"trailer", b"upgrade")
)
"""Source: RFC 9110, 7.6.1. `Host` is written anew; whatever else begins with `Proxy-` is the proxy's, too."""


class RefusedError(Exception):
    """A request that is not let through, with what its client is told."""

    def __init__(self, status: HTTPStatus, reason: str, *, host: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.host = host
        """`name:port`, as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    name: str
    """In its canonical spelling."""
    port: int
    is_tunnel: bool
    """By CONNECT; else plain HTTP."""
    head: bytes
    """Of plain HTTP: the request as the host gets it."""
    rest: bytes
    """What came behind a CONNECT, without a pause."""

    @property
    def host(self) -> str:
        return f"{self.name}:{self.port}"


async def read_request(reader: asyncio.StreamReader) -> ProxyRequest | None:
    """Reads the head of one request; None: the client has gone without one.

    Raises:
        RefusedError: it is of a form that is not let through.
        OSError: the connection broke.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            data = await reader.read(CHUNK_BYTES)
            if not data and not connection.trailing_data[0]:
                return None
            connection.receive_data(data)
    except h11.RemoteProtocolError as exc:
        status = HTTPStatus(exc.error_status_hint)
        # Its words repeat the line.
        raise RefusedError(status, "is not HTTP as this proxy takes it") from exc
    if not isinstance(event, h11.Request) or event.http_version not in _VERSIONS:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "is not a request of HTTP/1.1")
    names = [name for name, _ in event.headers]
    if b"transfer-encoding" in names or (
        (b"content-length", b"0") not in event.headers and (b"content-length" in names)
    ):
        raise RefusedError(HTTPStatus.FORBIDDEN, "has a body, which is not let through")
    try:
        if event.method == b"CONNECT":
            name, port = read_target(event.target.decode("ascii", "replace"))
            rest = connection.trailing_data[0]
            return ProxyRequest(name=name, port=port, is_tunnel=True, head=b"", rest=rest)
        return _plain(event)
    except HostError as exc:
        raise RefusedError(HTTPStatus.FORBIDDEN, f"{_shown(event.target)} {exc}") from exc


def _shown(target: bytes) -> str:
    """Returns the beginning of what was asked for, without what may be secret in it: a user, a query."""
    text = target.decode("ascii", "replace")
    return _USER.sub("//", re.split("[?#]", text, maxsplit=1)[0])[:80]


def _plain(request: h11.Request) -> ProxyRequest:
    found = _ABSOLUTE.fullmatch(request.target.decode("ascii", "replace"))
    if found is None:
        raise HostError("is no address of plain HTTP with a host in it")
    host = found["host"]
    name, port = read_target(host if ":" in host else f"{host}:{PLAIN_PORT}")
    if request.method not in (b"GET", b"HEAD"):
        raise RefusedError(
            HTTPStatus.FORBIDDEN, "plain HTTP is for GET and HEAD alone", host=f"{name}:{port}"
        )
    named = {
        one.strip().lower()
        for key, value in request.headers
        if key == b"connection"
        for one in value.split(b",")
    }
    if b"upgrade" in named:
        raise RefusedError(
            HTTPStatus.FORBIDDEN, "plain HTTP becomes nothing else here", host=f"{name}:{port}"
        )
    headers = [(b"Host", (name if port == PLAIN_PORT else f"{name}:{port}").encode())]
    headers += [
        (key, value)
        for key, value in request.headers
        if key not in _HOP_BY_HOP | named and not key.startswith(b"proxy-")
    ]
    headers.append((b"Connection", b"close"))
    client = h11.Connection(h11.CLIENT)
    target = found["path"] or "/"
    head = client.send(h11.Request(method=request.method, target=target, headers=headers))
    return ProxyRequest(name=name, port=port, is_tunnel=False, head=head or b"", rest=b"")


def render_refusal(refused: RefusedError) -> bytes:
    """Returns the answer: plain text, which clients show of plain HTTP; of CONNECT they show the status alone."""
    body = f"Orion: {refused.host + ': ' if refused.host else ''}{refused.reason}\n".encode()
    status = refused.status
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
