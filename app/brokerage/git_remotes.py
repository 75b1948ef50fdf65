"""Which servers repositories may be on, and who gets Orion's token for GitHub."""

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

LOOK_UP_TIMEOUT_S = 5.0
_EMBEDDING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""Whose last 32 bits are an IPv4 address. Source: RFC 6052, 2.1; RFC 4291, 2.5.5.1. Teredo's are not public themselves."""


def slug_of(url: str) -> str:
    """What names a repository however its URL is written: without scheme, `.git` and slashes at the end."""
    return url.partition("://")[2].rstrip("/").removesuffix(".git") or url.rstrip("/").removesuffix(
        ".git"
    )


def origin_of(url: str) -> str:
    """`https://github.com`: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRemotes:
    github_url: str
    """GitHub itself, or a GitHub Enterprise Server: where `owner/name` is, and all that gets the token."""
    token: str = field(default="", repr=False)

    def headers_for(self, url: str) -> Mapping[str, str]:
        """Source: GitHub, "Authenticating as a GitHub App installation", HTTP-based Git access, read 2026-11."""
        if not self.token or origin_of(url) != origin_of(self.github_url):
            return {}
        basic = base64.b64encode(f"x-access-token:{self.token}".encode()).decode()
        return {"authorization": f"Basic {basic}"}

    async def find_problem(self, url: str) -> str:
        """Why nothing is asked of that server; empty = it may be.

        A person in Slack names it, Orion's machine asks it: what only this machine or its network can reach is not for them.
        """
        if origin_of(url) == origin_of(self.github_url):
            return ""
        parts = urlsplit(url)
        if parts.scheme != "https":
            return "only https:// leads to repositories"
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    parts.hostname, parts.port or 443, type=socket.SOCK_STREAM
                )
        except UnicodeError:  # a part of the name is empty, or longer than DNS has them
            return f"{parts.hostname} cannot be the name of a server"
        except (OSError, TimeoutError):
            return ""  # a proxy may know it; otherwise it cannot be reached
        if all(_is_public(str(one[4][0])) for one in found):
            return ""
        return f"{parts.hostname} is not a public server"


def _is_public(address: str) -> bool:
    """Also what an IPv6 address leads to, which a gateway may translate to IPv4."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global
    inner = found.ipv4_mapped or found.sixtofour
    if any(found in network for network in _EMBEDDING):
        inner = ipaddress.IPv4Address(found.packed[-4:])
    # Of 6to4 and mapped addresses themselves, versions of Python say different things.
    return (inner or found).is_global
