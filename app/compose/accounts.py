"""Joins what people's accounts need: the store that seals them, the flows by which they are linked, and who asks for their tokens."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from app.accounts.links import AccountLinks
from app.accounts.records import GITHUB, AccountStore, Service
from app.accounts.tokens import AccountTokens
from app.aio import TaskGroup
from app.audit.records import AuditLog
from app.brokerage.code_flow import CodeFlow
from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.device_flow import DeviceFlow
from app.brokerage.github_app import AppTokens
from app.brokerage.github_login import GitHubLogin
from app.brokerage.mcp_login import McpLogin
from app.brokerage.oauth import OAuthClient
from app.settings.settings import Settings
from app.slack.connection import SlackConnection
from app.store.runs import SqlRunStore
from app.store.seal import read_secrets
from app.web.linked import LINKED

Tokens = Mapping[Service, AccountTokens]
"""What gives people's tokens, for each service where they may have accounts."""
NO_TOKENS: Final[Tokens] = MappingProxyType({})
_Login = GitHubLogin | McpLogin


def create_logins(settings: Settings) -> Sequence[_Login]:
    """Returns how people link accounts, for each service where they may have some."""
    repositories = settings.repositories
    if settings.models.own_keys_secret is None:
        return ()
    logins: list[_Login] = []
    if repositories.github_app_client_id:
        logins.append(
            GitHubLogin(
                client_id=repositories.github_app_client_id,
                url=repositories.github_url,
                api_url=repositories.github_api_url,
            )
        )
    for name, server in settings.mcp_servers.of_persons.items():
        if (oauth := server.oauth) is not None:
            client = OAuthClient(
                title=name,
                token_url=oauth.token_url,
                client_id=oauth.client_id,
                client_secret=oauth.client_secret,
                scope=oauth.scope,
                resource=server.url,
            )
            flow: DeviceFlow | CodeFlow
            if oauth.device_authorization_url:
                flow = DeviceFlow(client, url=oauth.device_authorization_url)
            else:
                returns_to = oauth.redirect_url or link_page(settings, name)
                flow = CodeFlow(client, url=oauth.authorization_url, redirect_url=returns_to)
            logins.append(McpLogin(flow))
    return logins


def link_page(settings: Settings, name: str) -> str:
    """Returns where browsers end that come back from a server's login; where Orion has no public address, most find nothing there but the address itself."""
    service = settings.service
    return f"{service.public_url or f'http://localhost:{service.port}'}{LINKED}/{name}"


def has_link_page(settings: Settings) -> bool:
    """Whether people come back to Orion from a server's login."""
    servers = settings.mcp_servers.of_persons.values()
    clients = [server.oauth for server in servers if server.oauth is not None]
    return any(one.authorization_url and not one.redirect_url for one in clients)


def create_links(
    settings: Settings,
    slack: SlackConnection,
    accounts: AccountStore | None,
    *,
    audit: AuditLog,
    waits: bool,
) -> AccountLinks | None:
    """Returns where people link accounts; None = they do not. `waits`: see `SlackConnection.account_links`."""
    if accounts is None:
        return None
    logins = create_logins(settings)
    return slack.account_links(accounts, logins, audit=audit, now=_now, waits=waits)


def create_accounts(settings: Settings, store: SqlRunStore) -> AccountStore | None:
    """Returns where linked accounts are kept; None = there are none."""
    secret = settings.models.own_keys_secret
    if not create_logins(settings) or secret is None:
        return None
    return store.accounts(read_secrets(secret.get_secret_value()))


def create_tokens(settings: Settings, accounts: AccountStore | None, *, group: TaskGroup) -> Tokens:
    """Returns what gives people's tokens, refreshed in this group."""
    if accounts is None:
        return {}
    return {
        login.service: AccountTokens(
            accounts, login.service, group=group, refresh=login.refresh, now=_now
        )
        for login in create_logins(settings)
    }


def _now() -> datetime:
    return datetime.now(UTC)


def git_credentials(settings: Settings, tokens: Tokens = NO_TOKENS) -> GitCredentials:
    """Returns the git servers that may be reached, and by whose right."""
    token = settings.repositories.github_token
    return GitCredentials(
        remotes=GitRemotes(
            github_url=settings.repositories.github_url,
            token=token.get_secret_value() if token else "",
        ),
        accounts=tokens.get(GITHUB),
        app=_app_tokens(settings),
    )


def _app_tokens(settings: Settings) -> AppTokens | None:
    """Returns the tokens of the GitHub App as which the deployment acts; None = it acts as none."""
    repositories = settings.repositories
    if not repositories.app_private_key:
        return None
    return AppTokens(
        client_id=repositories.github_app_client_id,
        private_key=repositories.app_private_key,
        api_url=repositories.github_api_url,
    )
