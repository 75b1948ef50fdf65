"""What a sandbox may send to its proxy to get where it must not, and beside it what must pass: bytes, and whether they reach an origin.

The list is `ENTRIES`. Each case is one connection; what the origin gets of it is judged, not what the client is told.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

LISTED, WILD, PLAIN, PRIVATE = (
    "api.example.com",
    "a.wild.example",
    "deb.example.com",
    "mirror.example",
)
ENTRIES = (LISTED, "*.wild.example", f"{PLAIN}:80", "odd.example.com:8443", f"private:{PRIVATE}")
PUBLIC_ADDRESS = "93.184.216.34"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypass:
    """One attempt."""

    kind: str
    what: str
    pieces: Sequence[bytes]
    """Sent one after the other, the first at once, each other one when there was an answer or a pause."""
    passes: bool = False
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of DNS, by names; all others lead to a public address."""
    own: Sequence[str] = ()
    """Addresses of Orion's machine."""
    arrives: bytes = b""
    """Must be in what the origin gets."""
    never_arrives: bytes = b""
    """Must not."""

    @override
    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def client_hello(name: str | None) -> bytes:
    """Returns how OpenSSL's client begins; None = it names no server."""
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # who answers is never judged: no certificates are loaded
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a client ends no handshake by itself")


def connect(target: str, *more: str, version: str = "1.1") -> bytes:
    """Returns the head of a request for a tunnel."""
    lines = [f"CONNECT {target} HTTP/{version}", f"Host: {target}", *more]
    return "\r\n".join((*lines, "", "")).encode("latin-1", "replace")


def tunnel(target: str, name: str | None = LISTED) -> Sequence[bytes]:
    """Returns a whole attempt: a tunnel, and a TLS client's beginning in it."""
    return (connect(target), client_hello(name))


def plain(
    target: str, *headers: str, method: str = "GET", host: str = PLAIN, body: bytes = b""
) -> bytes:
    """Returns a request of plain HTTP by the proxy."""
    lines = [f"{method} {target} HTTP/1.1", *([f"Host: {host}"] if host else []), *headers]
    return "\r\n".join((*lines, "", "")).encode("latin-1", "replace") + body


def _names() -> Iterator[Bypass]:
    for what, name in {
        "another host": "evil.example",
        "a listed one as ending": f"x{LISTED}",
        "a listed one as beginning": f"{LISTED}.evil.example",
        "the apex of a wildcard": "wild.example",
        "a wildcard's name without its dot": "xwild.example",
        "a leading dot": f".{LISTED}",
        "an empty part": "a..wild.example",
        "two trailing dots": f"{LISTED}..",
        "percent-encoding": "%61pi.example.com",
        "NUL": f"{LISTED}\0.evil.example",
        "a space": f"{LISTED} evil.example",
        "a tab": f"{LISTED}\tevil.example",
        "a slash": f"{LISTED}/evil.example",
        "a backslash": f"evil.example\\{LISTED}",
        "a fragment": f"evil.example#{LISTED}",
        "user information": f"{LISTED}@evil.example",
        "300 characters": f"{'a' * 296}.wild.example",
        "a Cyrillic letter": "\xd0\xb0pi.example.com",
        "an ideographic full stop": "api\xe3\x80\x82example.com",
        "punycode that looks alike": "xn--pi-6kc.example.com",
    }.items():
        yield Bypass(kind="name", what=what, pieces=tunnel(f"{name}:443"))
    yield Bypass(kind="name", what="upper case", pieces=tunnel("API.Example.COM:443"), passes=True)
    yield Bypass(kind="name", what="a trailing dot", pieces=tunnel(f"{LISTED}.:443"), passes=True)
    yield Bypass(
        kind="name", what="below a wildcard", pieces=tunnel(f"{WILD}:443", WILD), passes=True
    )
    deep = "c.b.a.wild.example"
    yield Bypass(kind="name", what="deep below it", pieces=tunnel(f"{deep}:443", deep), passes=True)


def _ports() -> Iterator[Bypass]:
    for what, port in {
        "none": "",
        "an empty one": ":",
        "0": ":0",
        "99999": ":99999",
        "a sign": ":+443",
        "a leading zero": ":0443",
        "full-width digits": ":\xef\xbc\x94\xef\xbc\x94\xef\xbc\x93",
        "two": ":443:443",
        "another one": ":22",
        "that of plain HTTP": ":80",
    }.items():
        yield Bypass(kind="port", what=what, pieces=tunnel(f"{LISTED}{port}"))
    yield Bypass(kind="port", what="a tunnel to plain HTTP", pieces=tunnel(f"{PLAIN}:80", PLAIN))
    odd = "odd.example.com"
    yield Bypass(kind="port", what="443 where it is 8443", pieces=tunnel(f"{odd}:443", odd))
    yield Bypass(kind="port", what="8443", pieces=tunnel(f"{odd}:8443", odd), passes=True)


def _addresses() -> Iterator[Bypass]:
    for address in (
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::1%a.wild.example]",
        "169.254.169.254",
    ):
        yield Bypass(kind="address", what=address, pieces=tunnel(f"{address}:443", None))
    begins = "127.0.0.1.wild.example"
    yield Bypass(
        kind="address",
        what="a name that begins like one",
        pieces=tunnel(f"{begins}:443", begins),
        passes=True,
    )


NEVER = (
    "127.0.0.1",
    "0.0.0.0",  # noqa: S104 - an address that is refused
    "169.254.169.254",
    "100.100.100.200",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "2002:7f00:1::",
    "64:ff9b::7f00:1",
    "::7f00:1",
)
INSIDE = (
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "fd12::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
)
RESERVED = ("198.18.0.1", "2001::1", "192.0.2.1")


def _look_ups() -> Iterator[Bypass]:
    for address in (*NEVER, *INSIDE, *RESERVED):
        yield Bypass(
            kind="DNS", what=address, pieces=tunnel(f"{LISTED}:443"), answers={LISTED: [address]}
        )
    for address in NEVER:
        yield Bypass(
            kind="DNS of a private entry",
            what=address,
            pieces=tunnel(f"{PRIVATE}:443", PRIVATE),
            answers={PRIVATE: [address]},
        )
    for address in INSIDE[:4]:
        yield Bypass(
            kind="DNS of a private entry",
            what=address,
            pieces=tunnel(f"{PRIVATE}:443", PRIVATE),
            answers={PRIVATE: [address]},
            passes=True,
        )
    own = "203.0.113.9"
    yield Bypass(
        kind="DNS",
        what="Orion's own",
        pieces=tunnel(f"{LISTED}:443"),
        answers={LISTED: [own]},
        own=[own],
    )
    yield Bypass(
        kind="DNS",
        what="one of two inside",
        pieces=tunnel(f"{LISTED}:443"),
        answers={LISTED: [PUBLIC_ADDRESS, "10.0.0.1"]},
    )
    yield Bypass(
        kind="DNS", what="no such name", pieces=tunnel(f"{LISTED}:443"), answers={LISTED: []}
    )


def _tls() -> Iterator[Bypass]:
    start, hello = connect(f"{LISTED}:443"), client_hello(LISTED)
    for what, sent in {
        "another server": client_hello("evil.example"),
        "one of the same length": client_hello("apx.example.com"),
        "none": client_hello(None),
        "a part of it": client_hello("example.com"),
        "a record of junk": b"\x16\x03\x01\x00\x05hello",
        "SSLv2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"\0" * 40,
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP": b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "another CONNECT": connect("evil.example:443"),
        "alert first": b"\x15\x03\x01\x00\x02\x02\x28" + hello,
        "application data first": b"\x17\x03\x03\x00\x05hello" + hello,
        "a hello that never ends": b"\x16\x03\x01\x40\x00\x01\x00\xff\xff\x03\x03" + b"\0" * 70_000,
    }.items():
        yield Bypass(kind="TLS", what=what, pieces=(start, sent))
    yield Bypass(kind="TLS", what="silence", pieces=(start,))
    yield Bypass(kind="TLS", what="an end", pieces=(start, b""))
    upper = client_hello("API.EXAMPLE.COM")
    yield Bypass(kind="TLS", what="upper case", pieces=(start, upper), passes=True)
    yield Bypass(
        kind="TLS",
        what="behind CONNECT at once",
        pieces=(start + hello,),
        passes=True,
        arrives=hello,
    )
    bytewise = tuple(bytes([one]) for one in hello[:6])
    yield Bypass(
        kind="TLS",
        what="byte by byte",
        pieces=(start, *bytewise, hello[6:]),
        passes=True,
        arrives=hello,
    )
    # The same message in two records.
    body = hello[5:]
    split = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in (body[:50], body[50:])
    )
    yield Bypass(
        kind="TLS", what="in two records", pieces=(start, split), passes=True, arrives=split
    )


def _plain() -> Iterator[Bypass]:
    url = f"http://{PLAIN}/pool/main.deb"
    for what, sent in {
        "another host": plain("http://evil.example/", host="evil.example"),
        "another host in the address": plain("http://evil.example/"),
        "a host that is for TLS": plain(f"http://{LISTED}/", host=LISTED),
        "only a path": plain("/pool/main.deb"),
        "https": plain(f"https://{PLAIN}/"),
        "ftp": plain(f"ftp://{PLAIN}/"),
        "gopher": plain(f"gopher://{PLAIN}/"),
        "user information": plain(f"http://{PLAIN}@evil.example/"),
        "a listed user": plain(f"http://evil.example@{PLAIN}/"),
        "another port": plain(f"http://{PLAIN}:8080/"),
        "an address": plain("http://[::1]/"),
        "a fragment as host": plain(f"http://evil.example#{PLAIN}/"),
        "a query as host": plain(f"http://evil.example?{PLAIN}/"),
        "a backslash": plain(f"http://evil.example\\@{PLAIN}/"),
        "POST": plain(url, "Content-Length: 4", method="POST", body=b"data"),
        "POST of nothing": plain(url, method="POST"),
        "PUT": plain(url, "Content-Length: 4", method="PUT", body=b"data"),
        "TRACE": plain(url, method="TRACE"),
        "GET with a body": plain(url, "Content-Length: 4", body=b"data"),
        "chunks": plain(url, "Transfer-Encoding: chunked", body=b"4\r\ndata\r\n0\r\n\r\n"),
        "a length and chunks": plain(
            url, "Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"
        ),
        "two lengths": plain(url, "Content-Length: 4", "Content-Length: 5", body=b"data"),
        "two hosts": plain(url, "Host: evil.example"),
        "a head of 70 kB": plain(url, f"X-Long: {'a' * 70_000}"),
        "an upgrade to h2c": plain(
            url,
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQ",
        ),
        "a WebSocket": plain(url, "Connection: Upgrade", "Upgrade: websocket"),
        "NUL in a value": plain(url, "X-Value: a\0b"),
        "a space before the colon": plain(url, "X-Value : a"),
    }.items():
        yield Bypass(kind="plain HTTP", what=what, pieces=(sent,))
    arrives = f"GET /pool/main.deb HTTP/1.1\r\nHost: {PLAIN}\r\n".encode()
    for what, *pieces, never in (
        ("a read", plain(url), b"Proxy"),
        ("another Host, which is written anew", plain(url, host="evil.example"), b"evil"),
        ("what is for the proxy", plain(url, "Proxy-Authorization: Basic c2VjcmV0"), b"c2VjcmV0"),
        ("what Connection names", plain(url, "Connection: X-Mine", "X-Mine: 1"), b"X-Mine: 1"),
        ("a second request behind it", plain(url) + plain("http://evil.example/"), b"evil"),
        ("a second request later", plain(url), plain("http://evil.example/"), b"evil"),
        ("data later", plain(url), b"evil" * 1_000, b"evil"),
    ):
        yield Bypass(
            kind="plain HTTP",
            what=what,
            pieces=tuple(pieces),
            passes=True,
            arrives=arrives,
            never_arrives=never,
        )


def _others() -> Iterator[Bypass]:
    for what, sent in {
        "SOCKS4": b"\x04\x01\x01\xbb\x5d\xb8\xd8\x22\0",
        "SOCKS5": b"\x05\x01\x00",
        "TLS to the proxy": client_hello(LISTED),
        "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/2.0 in the head": connect(f"{LISTED}:443", version="2.0"),
        "HTTP/0.9": b"GET http://deb.example.com/\r\n",
        "CONNECT with a length": connect(f"{LISTED}:443", "Content-Length: 4") + b"data",
        "CONNECT with chunks": connect(f"{LISTED}:443", "Transfer-Encoding: chunked"),
        "CONNECT with two hosts": connect(f"{LISTED}:443", "Host: evil.example"),
        "connect in lower case": connect(f"{LISTED}:443").replace(b"CONNECT", b"connect"),
        "an end in the head": connect(f"{LISTED}:443")[:20],
    }.items():
        yield Bypass(kind="protocol", what=what, pieces=(sent, client_hello(LISTED)))


BYPASSES = (*_names(), *_ports(), *_addresses(), *_look_ups(), *_tls(), *_plain(), *_others())
