"""Linking a GitHub account by a code, and its tokens, at a GitHub of our own."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from app.accounts.links import LinkError, Waiting
from app.accounts.records import GITHUB, LinkCode, Owner, TokenPair
from app.accounts.tokens import AccountTokens, NotLinkedError, RevokedError
from app.aio import open_task_group
from app.brokerage.github_login import GitHubLogin
from app.store.accounts import MemoryAccountStore
from app.web.hosting import serve
from tests.github_accounts import CLIENT_ID, GitHubAccounts

ANN = Owner(team="T1", person="U1")


@dataclass
class World:
    github: GitHubAccounts
    login: GitHubLogin
    url: str

    async def linked(self, *, login: str = "ann", number: int = 7) -> TokenPair:
        code = await self.login.begin()
        self.github.authorize(code.user_code, login=login, number=number)
        found = await self.login.ask(code, "")
        assert isinstance(found, TokenPair)
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    github = GitHubAccounts()
    async with serve(github.app()) as url:
        yield World(github, GitHubLogin(client_id=CLIENT_ID, url=url, api_url=url), url)


async def test_a_code_is_typed_in(world: World) -> None:
    """Until then it is waited for, as slowly as GitHub wants; then the account is known by its number."""
    code = await world.login.begin()
    assert code.verification_url == f"{world.url}/login/device"
    assert code.secret not in repr(code)
    assert code.expires_at > datetime.now(UTC) + timedelta(minutes=14)
    assert await world.login.ask(code, "") == Waiting(interval_s=5)
    world.github.slow_downs = 1
    assert await world.login.ask(code, "") == Waiting(interval_s=10)
    world.github.authorize(code.user_code, login="ann", number=7)
    tokens = await world.login.ask(code, "")
    assert isinstance(tokens, TokenPair)
    assert tokens.access not in repr(tokens)
    account = await world.login.account_of(tokens)
    assert (account.service, account.id, account.login) == (GITHUB, "7", "ann")
    with pytest.raises(LinkError, match="incorrect_device_code"):
        await world.login.ask(code, "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("access_denied", "you have said no to it at GitHub"),
        ("expired_token", "was not typed in in time"),
        ("device_flow_disabled", "device flow switched off"),
        ("something_new", "GitHub did not give a token .something_new."),
    ],
)
async def test_why_it_is_not_linked(world: World, error: str, words: str) -> None:
    code = await world.login.begin()
    world.github.refuse(code.user_code, error)
    with pytest.raises(LinkError, match=words):
        await world.login.ask(code, "")


async def test_an_app_that_github_does_not_know(world: World) -> None:
    unknown = GitHubLogin(client_id="Iv1.none", url=world.url, api_url=world.url)
    with pytest.raises(LinkError, match="does not know the operator's GitHub App"):
        await unknown.begin()


async def test_tokens_are_refreshed_and_the_old_pair_is_dead(world: World) -> None:
    old = await world.linked()
    new = await world.login.refresh(old)
    assert (await world.login.account_of(new)).login == "ann"
    with pytest.raises(LinkError):
        await world.login.account_of(old)
    with pytest.raises(RevokedError, match="bad_refresh_token"):
        await world.login.refresh(old)


async def test_a_token_that_does_not_expire(world: World) -> None:
    world.github.lifetime_s = None
    tokens = await world.linked()
    assert (tokens.refresh, tokens.expires_at) == ("", None)
    with pytest.raises(RevokedError):
        await world.login.refresh(tokens)


async def test_a_sick_github_is_no_refusal(world: World) -> None:
    """Nothing is unlinked for it."""
    tokens = await world.linked()
    world.github.is_down = True
    with pytest.raises(ConnectionError):
        await world.login.refresh(tokens)
    world.github.is_down = False
    unknown = GitHubLogin(client_id="Iv1.none", url=world.url, api_url=world.url)
    with pytest.raises(ConnectionError, match="does not know the operator's GitHub App"):
        await unknown.refresh(tokens)
    world.github.is_down = True
    with pytest.raises(ConnectionError):
        await world.login.begin()
    nowhere = GitHubLogin(
        client_id=CLIENT_ID, url="http://127.0.0.1:9", api_url="http://127.0.0.1:9"
    )
    with pytest.raises(ConnectionError):
        await nowhere.begin()
    code = LinkCode(
        user_code="A",
        verification_url="",
        secret="d",
        expires_at=datetime.now(UTC),
        interval_s=5,
    )
    with pytest.raises(ConnectionError):
        await nowhere.ask(code, "")


async def test_what_was_taken_back_is_unlinked(world: World) -> None:
    """Once its token has run out, by the refresh that GitHub refuses."""
    store, tokens = MemoryAccountStore(), await world.linked()
    account = await world.login.account_of(tokens)
    old = replace(tokens, expires_at=datetime.now(UTC))
    await store.link(ANN, replace(account, tokens=old))
    async with open_task_group() as group:
        source = AccountTokens(
            store,
            GITHUB,
            group=group,
            refresh=world.login.refresh,
            now=lambda: datetime.now(UTC),
        )
        fresh = (await source.of(ANN)).tokens
        assert fresh.access != tokens.access
        world.github.revoke("ann")
        aged = replace(fresh, expires_at=datetime.now(UTC))
        await store.link(ANN, replace(account, tokens=aged))
        with pytest.raises(RevokedError):
            await source.of(ANN)
        with pytest.raises(NotLinkedError):
            await source.of(ANN)
