"""Linked accounts, in SQLite, in PostgreSQL, and in memory; their tokens are sealed in both databases."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app.accounts.records import Account, LinkCode, Owner, Service, TokenPair
from app.log import get_logger
from app.store.engine import Database
from app.store.leases import later
from app.store.seal import ACCOUNTS, Seal
from app.store.tables import Now, account_codes, accounts, insert_for

_CODE = "code"
"""In the place of what is sealed: a code does not open as an account."""
_log = get_logger(__name__)


class SqlAccountStore:
    """Implements AccountStore; `SqlRunStore.accounts` makes one."""

    def __init__(self, database: Database, *, secrets: Sequence[str]) -> None:
        self._database = database
        self._seal = Seal(secrets, purpose=ACCOUNTS)

    async def get(self, owner: Owner, service: Service) -> Account | None:
        query = sa.select(accounts).where(_own(owner, service))
        row = await self._database.call(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        opened = self._seal.open(_place(owner, service), row.sealed)
        if not opened:
            _log.warning("account.unreadable", user=owner.person, service=service)
            return None
        access, refresh = json.loads(opened)
        tokens = TokenPair(access=access, refresh=refresh, expires_at=row.expires_at)
        return Account(service=service, id=row.account_id, login=row.login, tokens=tokens)

    async def link(self, owner: Owner, account: Account) -> None:
        values = {
            "account_id": account.id,
            "login": account.login,
            **self._sealed(owner, account.service, account.tokens),
        }
        await self._keep(accounts, owner, account.service, values)

    async def _keep(
        self, table: sa.Table, owner: Owner, service: Service, values: Mapping[str, Any]
    ) -> None:
        """Writes these values into their row, in place of those that were there."""

        def work(connection: sa.Connection) -> None:
            names = {"team": owner.team, "person": owner.person, "service": service}
            insert = insert_for(connection, table).values(**names, **values)
            keys = list(table.primary_key)
            connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=values))

        await self._database.insert(work)

    async def unlink(self, owner: Owner, service: Service) -> bool:
        gone = sa.delete(accounts).where(_own(owner, service))
        return await self._database.call(lambda connection: connection.execute(gone).rowcount == 1)

    async def keep_code(self, owner: Owner, service: Service, code: LinkCode) -> None:
        said = json.dumps([code.user_code, code.secret])
        values = {
            "verification_url": code.verification_url,
            "sealed": self._seal.close((*_place(owner, service), _CODE), said),
            "expires_at": code.expires_at,
            "interval_s": code.interval_s,
        }
        await self._keep(account_codes, owner, service, values)

    async def find_code(self, owner: Owner, service: Service) -> LinkCode | None:
        query = sa.select(account_codes).where(_own(owner, service, account_codes))
        row = await self._database.call(lambda connection: connection.execute(query).first())
        opened = row and self._seal.open((*_place(owner, service), _CODE), row.sealed)
        if not row or not opened:
            return None
        user_code, secret = json.loads(opened)
        return LinkCode(
            user_code=user_code,
            verification_url=row.verification_url,
            secret=secret,
            expires_at=row.expires_at,
            interval_s=row.interval_s,
        )

    async def drop_code(self, owner: Owner, service: Service) -> None:
        gone = sa.delete(account_codes).where(_own(owner, service, account_codes))
        await self._database.call(lambda connection: connection.execute(gone))

    async def claim_refresh(self, owner: Owner, service: Service, *, hold_s: float) -> bool:
        until = accounts.c.refreshing_until
        is_free = _own(owner, service) & (until.is_(None) | (until <= Now()))
        claim = sa.update(accounts).where(is_free).values(refreshing_until=later(hold_s))
        return await self._database.call(lambda connection: connection.execute(claim).rowcount == 1)

    async def renew(self, owner: Owner, service: Service, tokens: TokenPair) -> bool:
        kept = sa.update(accounts).where(_claimed(owner, service))
        renewed = kept.values(**self._sealed(owner, service, tokens))
        return await self._database.call(
            lambda connection: connection.execute(renewed).rowcount == 1
        )

    async def drop(self, owner: Owner, service: Service) -> None:
        gone = sa.delete(accounts).where(_claimed(owner, service))
        await self._database.call(lambda connection: connection.execute(gone))

    def _sealed(self, owner: Owner, service: Service, tokens: TokenPair) -> dict[str, Any]:
        text = json.dumps([tokens.access, tokens.refresh])
        return {
            "sealed": self._seal.close(_place(owner, service), text),
            "expires_at": tokens.expires_at,
            "refreshing_until": None,
        }


class MemoryAccountStore:
    """Implements AccountStore for as long as its process lives."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Owner, Service], Account] = {}
        self._refreshing_until: dict[tuple[Owner, Service], datetime] = {}
        self._codes: dict[tuple[Owner, Service], LinkCode] = {}

    async def get(self, owner: Owner, service: Service) -> Account | None:
        return self._rows.get((owner, service))

    async def link(self, owner: Owner, account: Account) -> None:
        self._rows[owner, account.service] = account
        self._refreshing_until.pop((owner, account.service), None)

    async def unlink(self, owner: Owner, service: Service) -> bool:
        self._refreshing_until.pop((owner, service), None)
        return self._rows.pop((owner, service), None) is not None

    async def keep_code(self, owner: Owner, service: Service, code: LinkCode) -> None:
        self._codes[owner, service] = code

    async def find_code(self, owner: Owner, service: Service) -> LinkCode | None:
        return self._codes.get((owner, service))

    async def drop_code(self, owner: Owner, service: Service) -> None:
        self._codes.pop((owner, service), None)

    async def claim_refresh(self, owner: Owner, service: Service, *, hold_s: float) -> bool:
        now, place = datetime.now(UTC), (owner, service)
        if place not in self._rows or self._refreshing_until.get(place, now) > now:
            return False
        self._refreshing_until[place] = now + timedelta(seconds=hold_s)
        return True

    async def renew(self, owner: Owner, service: Service, tokens: TokenPair) -> bool:
        place = owner, service
        if self._refreshing_until.pop(place, None) is None or place not in self._rows:
            return False
        self._rows[place] = replace(self._rows[place], tokens=tokens)
        return True

    async def drop(self, owner: Owner, service: Service) -> None:
        if self._refreshing_until.pop((owner, service), None) is not None:
            self._rows.pop((owner, service), None)


def _place(owner: Owner, service: Service) -> tuple[str, str, str]:
    return owner.team, owner.person, service


def _own(owner: Owner, service: Service, table: sa.Table = accounts) -> sa.ColumnElement[bool]:
    return (
        (table.c.team == owner.team)
        & (table.c.person == owner.person)
        & (table.c.service == service)
    )


def _claimed(owner: Owner, service: Service) -> sa.ColumnElement[bool]:
    """Returns what is true of an account that is claimed for a refresh. Linking it anew ends the claim."""
    return _own(owner, service) & accounts.c.refreshing_until.is_not(None)
