"""Where a name leads, and whether a person or an agent may lead Orion's machine there."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

LOOK_UP_TIMEOUT_S: Final = 5.0
_EMBEDDING: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""Networks whose last 32 bits are an IPv4 address. Source: RFC 6052, 2.1; RFC 4291, 2.5.5.1. Teredo's are not public themselves."""
_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe"),
        ),
    )
)
"""Of clouds, that are not link-local. Source: documentation of Alibaba Cloud, Azure, Oracle Cloud, Google Cloud and Scaleway, read 2026-11."""
_OF_CLOUDS: Final = ipaddress.IPv6Network("fd00:ec2::/32")
"""Metadata, credentials, time and names. Source: documentation of Amazon EC2, EKS and Route 53, read 2026-11."""
_THIS_NETWORK: Final = ipaddress.IPv4Network("0.0.0.0/8")
"""Source: RFC 1122, 3.2.1.3: never a destination; Linux takes it for one since 5.3."""
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All that is public in IPv6. Source: IANA, Internet Protocol Version 6 Address Space: the rest is reserved, translated, or one network's own."""
_UNIQUE_LOCAL: Final = ipaddress.IPv6Network("fc00::/7")
_DOCUMENTATION: Final = ipaddress.IPv6Network("3fff::/20")
"""Source: RFC 9637; Pythons before 3.14 take it for public."""
_ASSIGNMENTS: Final = ipaddress.IPv4Network("192.0.0.0/24")
"""Source: IANA IPv4 Special-Purpose Address Registry; Pythons before 3.11.10 take it for public."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a name for a port, at least one. Raises: OSError: it has none, or cannot be looked up in time."""


class UnnameableError(OSError):
    """DNS has no such names; the message names it."""


async def look_up(name: str, port: int) -> Sequence[str]:
    """Is the LookUp of this machine. With a dot behind it a name stands for itself, whatever domains the resolver searches.

    Raises:
        UnnameableError
        OSError: there is no such name, or no answer within `LOOK_UP_TIMEOUT_S`.
    """
    try:
        async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                name, port, type=socket.SOCK_STREAM
            )
    except UnicodeError as exc:  # a part of the name is empty, or longer than DNS has them
        raise UnnameableError(f"{name} cannot be the name of a server") from exc
    return [str(one[4][0]) for one in found]


def is_public(address: str) -> bool:
    """Whether an address is public, and also the IPv4 address that a gateway may translate it to."""
    found = _innermost(ipaddress.ip_address(address.partition("%")[0]))
    if isinstance(found, ipaddress.IPv6Address) and (
        found not in _UNICAST or found in _DOCUMENTATION
    ):
        return False
    is_own = found in _ASSIGNMENTS or found in _METADATA
    return found.is_global and not found.is_multicast and not is_own


def may_be_private(address: str) -> bool:
    """Whether an address may be one of a company's own network: not this machine itself, its link, a group, or a cloud's metadata."""
    found = _innermost(ipaddress.ip_address(address.partition("%")[0]))
    if isinstance(found, ipaddress.IPv6Address) and not (
        found in _UNICAST or found in _UNIQUE_LOCAL
    ):
        return False
    return not (
        found.is_loopback
        or found.is_link_local
        or found.is_multicast
        or found.is_unspecified
        or found.is_reserved
        or found in _METADATA
        or found in _OF_CLOUDS
        or found in _THIS_NETWORK
    )


def is_this_machine(address: str) -> bool:
    """Whether an address is one of this machine's own: then it would be the sender's, too. Nothing is sent. Raises: OSError: no socket is left to look with."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as exc:
        if exc.errno == errno.EAFNOSUPPORT:
            return False  # nor can it be dialled
        raise
    with probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return False  # there is no way to it at all
        return ipaddress.ip_address(probe.getsockname()[0]) == ipaddress.ip_address(address)


def _innermost(address: Address) -> Address:
    """Returns the IPv4 address that is written in an IPv6 one, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in _EMBEDDING) and not address.is_loopback:
        return ipaddress.IPv4Address(address.packed[-4:])
    # Of 6to4 and mapped addresses themselves, versions of Python say different things.
    return address.ipv4_mapped or address.sixtofour or address
