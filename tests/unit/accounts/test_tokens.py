"""A token that is good, refreshed once for all who want it, or told as what it is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from typing_extensions import override

from app.accounts.records import GITHUB, Account, Owner, Service, TokenPair
from app.accounts.tokens import AccountTokens, NotLinkedError, RevokedError
from app.aio import open_task_group
from app.store.accounts import MemoryAccountStore

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
ANN = Owner(team="T1", person="U1")
FRESH = TokenPair(access="new", refresh="r2", expires_at=NOW + timedelta(hours=8))


def account(*, minutes: float | None) -> Account:
    expires_at = None if minutes is None else NOW + timedelta(minutes=minutes)
    tokens = TokenPair(access="old", refresh="r1", expires_at=expires_at)
    return Account(service=GITHUB, id="7", login="ann", tokens=tokens)


class FakeService:
    """Refreshes, once for each pair, as GitHub does."""

    def __init__(self, answer: TokenPair | Exception = FRESH) -> None:
        self.answer = answer
        self.used: list[str] = []

    async def refresh(self, tokens: TokenPair) -> TokenPair:
        assert tokens.refresh not in self.used
        self.used.append(tokens.refresh)
        await asyncio.sleep(0.05)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


TokensOf = Callable[..., AccountTokens]


@pytest.fixture
async def tokens_of() -> AsyncIterator[TokensOf]:
    """Makes them, each as another process's."""
    async with open_task_group() as group:

        def make(store: MemoryAccountStore, service: FakeService, **more: float) -> AccountTokens:
            return AccountTokens(
                store,
                GITHUB,
                group=group,
                refresh=service.refresh,
                now=lambda: NOW,
                **more,
            )

        yield make


@pytest.mark.parametrize("minutes", [None, 6, 600])
async def test_a_good_one_is_given(tokens_of: TokensOf, minutes: float | None) -> None:
    store, service = MemoryAccountStore(), FakeService()
    await store.link(ANN, account(minutes=minutes))
    assert (await tokens_of(store, service).of(ANN)).tokens.access == "old"
    assert service.used == []


@pytest.mark.parametrize("minutes", [4, -60])
async def test_an_old_one_is_refreshed_once(tokens_of: TokensOf, minutes: float) -> None:
    """By whoever comes first, of several processes; the others have the new one."""
    store, service = MemoryAccountStore(), FakeService()
    await store.link(ANN, account(minutes=minutes))
    async with open_task_group() as group:
        found = [group.create_task(tokens_of(store, service).of(ANN)) for _ in range(5)]
    assert {one.result().tokens.access for one in found} == {"new"}
    assert service.used == ["r1"]
    kept = await store.get(ANN, GITHUB)
    assert kept is not None
    assert kept.tokens == FRESH


async def test_one_that_was_taken_back_is_unlinked(tokens_of: TokensOf) -> None:
    store, service = MemoryAccountStore(), FakeService(RevokedError("bad_refresh_token"))
    await store.link(ANN, account(minutes=-1))
    with pytest.raises(RevokedError):
        await tokens_of(store, service).of(ANN)
    with pytest.raises(NotLinkedError):
        await tokens_of(store, service).of(ANN)


async def test_a_service_that_is_sick_loses_nothing(tokens_of: TokensOf) -> None:
    """It is tried again once the claim is over."""
    store, service = MemoryAccountStore(), FakeService(ConnectionError("gone"))
    await store.link(ANN, account(minutes=-1))
    with pytest.raises(ConnectionError):
        await tokens_of(store, service, hold_s=0.2).of(ANN)
    await asyncio.sleep(0.25)
    service.answer, service.used = FRESH, []
    assert (await tokens_of(store, service).of(ANN)).tokens == FRESH


async def test_who_died_while_refreshing_is_waited_for_no_longer(tokens_of: TokensOf) -> None:
    store, service = MemoryAccountStore(), FakeService()
    await store.link(ANN, account(minutes=-1))
    assert await store.claim_refresh(ANN, GITHUB, hold_s=0.3)
    assert (await tokens_of(store, service).of(ANN)).tokens == FRESH


async def test_what_is_unlinked_while_it_is_refreshed_stays_so(tokens_of: TokensOf) -> None:
    store, service = MemoryAccountStore(), FakeService()
    await store.link(ANN, account(minutes=-1))
    async with open_task_group() as group:
        asked = group.create_task(_error_of(tokens_of(store, service)))
        await asyncio.sleep(0.02)
        await store.unlink(ANN, GITHUB)
    assert isinstance(asked.result(), NotLinkedError)


async def test_who_is_stopped_in_a_refresh_loses_no_pair(tokens_of: TokensOf) -> None:
    """The pair before is dead by then: what has begun is done."""
    store, service = MemoryAccountStore(), FakeService()
    await store.link(ANN, account(minutes=-1))
    tokens = tokens_of(store, service)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tokens.of(ANN)
    assert (await tokens.of(ANN)).tokens == FRESH
    assert service.used == ["r1"]


class SickStore(MemoryAccountStore):
    """Does not answer once, when new tokens are to be kept."""

    is_sick = True

    @override
    async def renew(self, owner: Owner, service: Service, tokens: TokenPair) -> bool:
        if self.is_sick:
            self.is_sick = False
            raise OSError("locked")
        return await super().renew(owner, service, tokens)


async def test_a_database_that_is_locked_for_a_moment_loses_no_pair(tokens_of: TokensOf) -> None:
    store, service = SickStore(), FakeService()
    await store.link(ANN, account(minutes=-1))
    assert (await tokens_of(store, service).of(ANN)).tokens == FRESH


@pytest.mark.parametrize("answer", [FRESH, RevokedError("bad_refresh_token")])
async def test_an_account_that_is_linked_anew_meanwhile_stays(
    tokens_of: TokensOf,
    answer: TokenPair | Exception,
) -> None:
    """Whatever becomes of the tokens of the one before."""
    store, service = MemoryAccountStore(), FakeService(answer)
    await store.link(ANN, account(minutes=-1))
    other = replace(account(minutes=600), id="8", login="anna")
    async with open_task_group() as group:
        asked = group.create_task(_error_of(tokens_of(store, service)))
        await asyncio.sleep(0.02)
        await store.unlink(ANN, GITHUB)
        await store.link(ANN, other)
    assert isinstance(asked.result(), NotLinkedError | RevokedError)
    assert await store.get(ANN, GITHUB) == other


async def _error_of(tokens: AccountTokens) -> Exception | None:
    try:
        await tokens.of(ANN)
    except (NotLinkedError, RevokedError) as exc:
        return exc
    return None
