"""Gives the token of a person's account, fresh, refreshed by one process at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from app.accounts.records import Account, AccountStore, Owner, Service, TokenPair
from app.aio import TaskGroup, retry_store
from app.log import get_logger

EARLY: Final = timedelta(minutes=5)
"""A token is refreshed so long before it expires."""
REFRESH_S: Final = 15.0
"""For one refresh."""
HOLD_S: Final = 90.0
"""For all of it: reading the pair, refreshing it, keeping the new one; whoever has claimed it and died is waited for no longer."""
WAIT_S: Final = 30.0
"""For somebody else's refresh."""
LOOK_S: Final = 0.2
Refresh = Callable[[TokenPair], Awaitable[TokenPair]]
"""Returns the next pair. Raises: RevokedError: there is none. ConnectionError: not now."""
_log = get_logger(__name__)


class NotLinkedError(Exception):
    """The person has linked no account there."""


class RevokedError(Exception):
    """The service does not take the account's tokens any more: it must be linked again."""


class AccountTokens:
    """Tokens of the accounts that people have at one service."""

    def __init__(
        self,
        store: AccountStore,
        service: Service,
        *,
        group: TaskGroup,
        refresh: Refresh,
        now: Callable[[], datetime],
        refresh_s: float = REFRESH_S,
        hold_s: float = HOLD_S,
    ) -> None:
        """`group`: in which refreshes go on to their end, whoever has asked for them: the pair before is dead as soon as the service has answered."""
        self._hold_s = hold_s
        self._group = group
        self._store = store
        self._service = service
        self._refresh = refresh
        self._now = now
        self._refresh_s = refresh_s

    async def of(self, owner: Owner) -> Account:
        """Returns a person's account with a token that is good for minutes.

        Raises:
            NotLinkedError: there is none.
            RevokedError: it was taken back; the account is unlinked.
            ConnectionError: the service does not answer.
            TimeoutError: another process has not refreshed it in time.
            OSError: the database does not answer.
        """
        async with asyncio.timeout(WAIT_S):
            while True:
                account = await self._store.get(owner, self._service)
                if account is None:
                    raise NotLinkedError(self._service)
                if self._is_good(account.tokens):
                    return account
                if await self._store.claim_refresh(owner, self._service, hold_s=self._hold_s):
                    return await self._begin(owner)
                await asyncio.sleep(LOOK_S)  # somebody else does it

    async def forget(self, owner: Owner, tokens: TokenPair) -> None:
        """Unlinks an account whose token was refused, unless it has others by now, or gets them. Raises: OSError."""
        if not await self._store.claim_refresh(owner, self._service, hold_s=self._hold_s):
            return
        account = await self._store.get(owner, self._service)
        if account is not None and account.tokens == tokens:
            await self._drop(owner)
        elif account is not None:
            await self._store.renew(owner, self._service, account.tokens)

    def _begin(self, owner: Owner) -> asyncio.Future[Account]:
        """Begins a refresh; whoever waits for it may go."""
        answer: asyncio.Future[Account] = asyncio.get_running_loop().create_future()

        async def renew() -> None:
            try:
                account = await self._renew(owner)
            except Exception as exc:  # noqa: BLE001 - for whoever waits
                if not answer.done():
                    answer.set_exception(exc)
            else:
                if not answer.done():
                    answer.set_result(account)

        self._group.create_task(renew(), name="refresh-account")
        return answer

    async def _drop(self, owner: Owner) -> None:
        _log.warning("account.revoked", service=self._service, user=owner.person)
        await self._store.drop(owner, self._service)

    def _is_good(self, tokens: TokenPair) -> bool:
        return tokens.expires_at is None or self._now() < tokens.expires_at - EARLY

    async def _renew(self, owner: Owner) -> Account:
        # Anew: between the look and the claim somebody may have refreshed it.
        account = await self._store.get(owner, self._service)
        if account is None:
            raise NotLinkedError(self._service)
        if self._is_good(account.tokens):
            await self._store.renew(owner, self._service, account.tokens)
            return account
        try:
            async with asyncio.timeout(self._refresh_s):
                tokens = await self._refresh(account.tokens)
        except RevokedError:
            await self._drop(owner)
            raise
        except TimeoutError as exc:
            raise ConnectionError(f"{self._service} does not answer") from exc
        if not await retry_store(lambda: self._store.renew(owner, self._service, tokens)):
            raise NotLinkedError(self._service)
        return Account(service=self._service, id=account.id, login=account.login, tokens=tokens)
