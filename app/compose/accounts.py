"""Joins what people's accounts need: the store that seals them, GitHub's device flow, and who asks for their tokens."""

from datetime import UTC, datetime

from app.accounts.links import AccountLinks
from app.accounts.records import AccountStore, Service
from app.accounts.tokens import AccountTokens
from app.aio import TaskGroup
from app.brokerage.credentials import GitCredentials, GitRemotes
from app.brokerage.github_app import AppTokens
from app.brokerage.github_login import GitHubLogin
from app.settings.settings import Settings
from app.slack.connection import SlackConnection
from app.store.runs import SqlRunStore
from app.store.seal import read_secrets


def create_login(settings: Settings) -> GitHubLogin | None:
    """Returns how people link accounts of GitHub; None = they do not."""
    repositories = settings.repositories
    if not repositories.github_app_client_id or settings.models.own_keys_secret is None:
        return None
    return GitHubLogin(
        client_id=repositories.github_app_client_id,
        url=repositories.github_url,
        api_url=repositories.github_api_url,
    )


def create_links(
    settings: Settings, slack: SlackConnection, accounts: AccountStore | None
) -> AccountLinks | None:
    """Returns where people link accounts; None = they do not."""
    login = create_login(settings)
    if login is None or accounts is None:
        return None
    return slack.account_links(accounts, login, now=_now)


def create_accounts(settings: Settings, store: SqlRunStore) -> AccountStore | None:
    """Returns where linked accounts are kept; None = there are none."""
    secret = settings.models.own_keys_secret
    if create_login(settings) is None or secret is None:
        return None
    return store.accounts(read_secrets(secret.get_secret_value()))


def create_tokens(
    settings: Settings, accounts: AccountStore | None, *, group: TaskGroup
) -> AccountTokens | None:
    """Returns what gives people's tokens, refreshed in this group; None = there are none."""
    login = create_login(settings)
    if login is None or accounts is None:
        return None
    return AccountTokens(accounts, Service.GITHUB, group=group, refresh=login.refresh, now=_now)


def _now() -> datetime:
    return datetime.now(UTC)


def git_credentials(settings: Settings, tokens: AccountTokens | None = None) -> GitCredentials:
    """Returns the git servers that may be reached, and by whose right."""
    token = settings.repositories.github_token
    return GitCredentials(
        remotes=GitRemotes(
            github_url=settings.repositories.github_url,
            token=token.get_secret_value() if token else "",
        ),
        accounts=tokens,
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
