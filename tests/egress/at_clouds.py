"""The attempts of `bypasses` where there is no proxy: a program in a cloud's sandbox dials what it would have named to one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from tests.egress.bypasses import BYPASSES, LISTED, PLAIN, PRIVATE, WILD, Bypass

Cloud = Literal["vercel", "deno"]
BY_NAME: Final = (LISTED, "*.wild.example", PRIVATE)
LISTS: Final[Mapping[Cloud, tuple[str, ...]]] = {
    "vercel": BY_NAME,
    "deno": (*BY_NAME, f"{PLAIN}:80", "odd.example.com:8443"),
}
"""Vercel knows no ports; an entry with one keeps Orion from starting there."""

ORIGINS: Final = (
    *((LISTED, port) for port in (22, 80, 443, 8443)),
    *((name, 443) for name in (WILD, "c.b.a.wild.example", "127.0.0.1.wild.example", PRIVATE)),
    *((name, 443) for name in ("wild.example", "xwild.example", f"x{LISTED}")),
    *(("evil.example", port) for port in (80, 443)),
    *((PLAIN, port) for port in (80, 443, 8080)),
    *(("odd.example.com", port) for port in (443, 8443)),
    *((f"{LISTED}.evil.example", 443), ("xn--pi-6kc.example.com", 443)),
)
"""Servers that there are, by names and ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    host: str
    port: int
    pieces: Sequence[bytes]
    """Sent one after the other."""


def dial_of(bypass: Bypass) -> Dial:
    """Where a program goes that tries the same without a proxy, and what it says there."""
    first, *rest = bypass.pieces
    if found := re.match(rb"(?is)CONNECT (.*?) HTTP/[\d.]+\r\n.*?(\r\n\r\n|$)", first):
        host, _, port = found[1].decode("latin-1").rpartition(":")
        dial = _dial(host or found[1].decode("latin-1"), port, [first[found.end() :], *rest])
    elif found := re.match(rb"(?i)[A-Z]+ (http\S*|ftp\S*|gopher\S*)", first):
        url = urlsplit(found[1].decode("latin-1"))
        dial = _dial(url.hostname or PLAIN, str(url.port or 80), bypass.pieces)
    else:
        dial = Dial(host=LISTED, port=443, pieces=bypass.pieces)
    if bypass.answers:  # of look-ups, which a program may make up for itself
        (addresses,) = bypass.answers.values()
        return Dial(host=(*addresses, dial.host)[0], port=dial.port, pieces=dial.pieces)
    return dial


def _dial(host: str, port: str, pieces: Sequence[bytes]) -> Dial:
    number = int(port) if re.fullmatch(r"\+?\d+", port) else 443
    return Dial(host=host.strip("[]"), port=number, pieces=[one for one in pieces if one])


def is_listed(cloud: Cloud, host: str, port: int) -> bool:
    """Whether an origin is on the cloud's list: at Vercel at all of its ports, at Deno at the one that is named, or 443."""
    for entry in LISTS[cloud]:
        name, _, only_port = entry.partition(":")
        is_named = host == name or (name.startswith("*.") and host.endswith(name[1:]))
        if is_named and (cloud == "vercel" or port == int(only_port or 443)):
            return True
    return False


KINDS: Final = tuple(dict.fromkeys(one.kind for one in BYPASSES))


REACHED: Final[Mapping[Cloud, Mapping[str, int]]] = {
    "vercel": {
        "name": 4,
        "port": 7,
        "address": 1,
        "DNS": 1,
        "DNS of a private entry": 0,
        "TLS": 6,
        "plain HTTP": 2,
        "protocol": 6,
    },
    "deno": {
        "name": 4,
        "port": 7,
        "address": 1,
        "DNS": 1,
        "DNS of a private entry": 0,
        "TLS": 16,
        "plain HTTP": 27,
        "protocol": 11,
    },
}
"""How many attempts of each kind reach a host of the list; none reaches another one."""
