"""By whose right git servers and GitHub's API are asked: the deployment's, or that of the person whose message it is."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from app.accounts.records import Account, Owner
from app.accounts.tokens import AccountTokens, NotLinkedError, RevokedError
from app.brokerage.github_app import AppTokens
from app.egress.addresses import UnnameableError, is_public, look_up
from app.runs.broker import slug_of

HOW_TO_LINK: Final = "write /orion link"
REVOKED: Final = f"GitHub does not take what your account has given any more; {HOW_TO_LINK}"


def origin_of(url: str) -> str:
    """Returns scheme, host and port: `https://github.com`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRemotes:
    """Which git servers may be reached, and which of them gets the token."""

    github_url: str
    """GitHub or a GitHub Enterprise Server: the home of `owner/name`, and the only server that gets the token."""
    token: str = field(default="", repr=False)

    def is_github(self, url: str) -> bool:
        """Whether the token may be sent there."""
        return origin_of(url) == origin_of(self.github_url)

    async def check_server(self, url: str) -> str:
        """Returns why a repository's server may not be reached; empty when it may.

        A person in Slack names the server and Orion's machine connects to it: servers that only this machine or its network can reach
        are refused.
        """
        if self.is_github(url):
            return ""
        parts = urlsplit(url)
        if parts.scheme != "https":
            return "only https:// leads to repositories"
        try:
            found = await look_up(parts.hostname or "", parts.port or 443)
        except UnnameableError as exc:
            return str(exc)
        except OSError:
            return ""  # a proxy may know it; otherwise it cannot be reached
        if all(map(is_public, found)):
            return ""
        return f"{parts.hostname} is not a public server"


class CredentialError(ConnectionError):
    """There is no token; the message is for the person: lower case, no full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCredentials:
    """Tokens for GitHub, and never another one's: whoever acts for a person has that person's token or none."""

    remotes: GitRemotes
    accounts: AccountTokens | None = None
    """None = people link none here."""
    app: AppTokens | None = None
    """The deployment acts as this GitHub App, whatever `remotes` has; None = by the token of `remotes`."""

    async def account_of(self, owner: Owner) -> Account:
        """Returns a person's account at GitHub, with a token that is good. Raises: CredentialError."""
        if self.accounts is None:
            raise CredentialError("nobody can link an account here")
        try:
            return await self.accounts.of(owner)
        except NotLinkedError:
            raise CredentialError(f"your GitHub account is not linked; {HOW_TO_LINK}") from None
        except RevokedError:
            raise CredentialError(REVOKED) from None
        except OSError as exc:
            raise CredentialError("your GitHub account cannot be looked up now") from exc

    async def refused(self, owner: Owner, account: Account) -> CredentialError:
        """Returns what the person is told when GitHub has refused their token, which is forgotten; at the next refusal where the database is away."""
        if self.accounts is not None:
            with suppress(OSError):
                await self.accounts.forget(owner, account.tokens)
        return CredentialError(REVOKED)

    async def token_for(self, name: str, owner: Owner | None) -> str:
        """Returns the token to act with in the repository `owner/name` at GitHub. Raises: CredentialError: there is none."""
        token = await self._find_token(name, owner)
        if not token:
            why = "GITHUB_TOKEN is not set"
            raise CredentialError(
                f"my GitHub App is not installed for {name}" if self.app is not None else why
            )
        return token

    async def _find_token(self, name: str, owner: Owner | None) -> str:
        """Returns as `token_for`; empty = the deployment has none."""
        if owner is not None:
            return (await self.account_of(owner)).tokens.access
        if self.app is None:
            return self.remotes.token
        try:
            return await self.app.of(name)
        except ConnectionError as exc:
            raise CredentialError(str(exc)) from exc

    async def headers_for(self, url: str, owner: Owner | None) -> Mapping[str, str]:
        """Returns the headers that authenticate at a repository's URL; none at another server than GitHub.

        Source: GitHub, "Authenticating as a GitHub App installation", HTTP-based Git access, read 2026-11.

        Without a token of the deployment's what is public may be read.

        Raises:
            CredentialError: the person has no account, or GitHub gives no token now.
        """
        if not self.remotes.is_github(url):
            return {}
        token = await self._find_token(slug_of(url).partition("/")[2], owner)
        if not token:
            return {}
        return basic(token)


def basic(token: str) -> dict[str, str]:
    """Returns the header by which git's servers at GitHub take a token."""
    said = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    return {"authorization": f"Basic {said}"}
