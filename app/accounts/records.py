"""What is kept of a linked account, and of whom."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NewType, Protocol

Service = NewType("Service", str)
"""Where people have accounts; part of records."""
GITHUB: Final = Service("github")


def mcp_service(server: str) -> Service:
    """Returns the service that an MCP server is, by its name in the operator's file: of 16 characters, which records have room for."""
    return Service(f"mcp:{hashlib.sha256(server.encode()).hexdigest()[:12]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who has linked it: a person of Slack's, by their team's id and their own."""

    team: str
    person: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPair:
    """A token, and what makes the next one. Of both each use of the second kills the first. Source: GitHub, "Refreshing user access tokens", read 2026-11."""

    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    """Empty = the token does not expire."""
    expires_at: datetime | None = None
    """None = never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    service: Service
    id: str
    """That the service knows it by, which never changes."""
    login: str
    """Its name there now."""
    tokens: TokenPair


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCode:
    """A code that a person takes to a service, and by what the service gives tokens for it."""

    user_code: str
    """What they type in there, or what stands in the address at which they end. For the person alone: whoever gets another one to take it there has their account."""
    verification_url: str
    """Where they take it."""
    secret: str = field(repr=False)
    """The service's device code, or our verifier."""
    expires_at: datetime
    interval_s: float
    """Between two questions."""


class AccountStore(Protocol):
    """Accounts by their owners, and codes for new ones; both are sealed at rest. Each method is durable when it returns, one answer for all processes.

    Raises OSError where the database does not answer.
    """

    async def get(self, owner: Owner, service: Service) -> Account | None:
        """Returns an account; None also where it was sealed with a secret that there is no more."""
        ...

    async def link(self, owner: Owner, account: Account) -> None:
        """Keeps it in place of the one that there was."""
        ...

    async def unlink(self, owner: Owner, service: Service) -> bool:
        """Forgets it; whether there was one."""
        ...

    async def keep_code(self, owner: Owner, service: Service, code: LinkCode) -> None:
        """Keeps a code that the person is shown, in place of an earlier one."""
        ...

    async def find_code(self, owner: Owner, service: Service) -> LinkCode | None:
        """Returns the code that the person was shown last; None also where it was sealed with a secret that there is no more."""
        ...

    async def drop_code(self, owner: Owner, service: Service) -> None:
        """Forgets it: it was typed in, refused, or is wanted no more."""
        ...

    async def claim_refresh(self, owner: Owner, service: Service, *, hold_s: float) -> bool:
        """Whether the caller is the one to refresh its tokens, for so long at the most: a second refresh in flight would kill both."""
        ...

    async def renew(self, owner: Owner, service: Service, tokens: TokenPair) -> bool:
        """Keeps new tokens of the account for whoever has the claim, and ends that; False: it was unlinked, or linked anew, meanwhile."""
        ...

    async def drop(self, owner: Owner, service: Service) -> None:
        """Forgets the account for whoever has the claim; one that was linked anew meanwhile stays."""
        ...
