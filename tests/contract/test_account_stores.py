"""What every store of linked accounts promises, as two processes have it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.accounts.records import (
    GITHUB,
    Account,
    AccountStore,
    LinkCode,
    Owner,
    TokenPair,
    mcp_service,
)
from app.aio import open_task_group
from app.store.accounts import MemoryAccountStore
from app.store.runs import open_store

SECRET, NEWER = "s" * 40, "n" * 40
ANN, BEN = Owner(team="T1", person="U1"), Owner(team="T1", person="U2")
EXPIRES = datetime(2026, 11, 27, 20, 0, tzinfo=UTC)
PAIR = TokenPair(access="ghu_one", refresh="ghr_one", expires_at=EXPIRES)
ACCOUNT = Account(service=GITHUB, id="7", login="ann-\u00e9", tokens=PAIR)
CODE = LinkCode(
    user_code="ABCD-1234",
    verification_url="https://github.test/login/device",
    secret="device-secret",
    expires_at=EXPIRES,
    interval_s=5.0,
)


@dataclass(frozen=True)
class Stores:
    one: AccountStore
    other: AccountStore
    database: Any = None


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        alone = MemoryAccountStore()
        yield Stores(alone, alone)
        return
    is_sqlite = request.param == "sqlite"
    where = tmp_path / "orion.db" if is_sqlite else request.getfixturevalue("postgres_url")
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(open_store(where)) for _ in range(2)]
        yield Stores(first.accounts([SECRET]), second.accounts([NEWER, SECRET]), first)


async def test_it_is_linked_and_unlinked(stores: Stores) -> None:
    """For all processes; another person's is another one, a later one takes its place."""
    assert await stores.one.get(ANN, GITHUB) is None
    await stores.one.link(ANN, ACCOUNT)
    assert await stores.other.get(ANN, GITHUB) == ACCOUNT
    assert await stores.other.get(BEN, GITHUB) is None
    later = replace(ACCOUNT, id="8", tokens=TokenPair(access="ghu_two"))
    await stores.other.link(ANN, later)
    # The newer secret has sealed it, which the first one does not know.
    assert await stores.other.get(ANN, GITHUB) == later
    assert await stores.one.unlink(ANN, GITHUB)
    assert not await stores.other.unlink(ANN, GITHUB)
    assert await stores.other.get(ANN, GITHUB) is None


async def test_a_code_is_kept(stores: Stores) -> None:
    """For all processes, the newest one, until it is wanted no more; another person's or service's is another one."""
    assert await stores.one.find_code(ANN, GITHUB) is None
    await stores.one.keep_code(ANN, GITHUB, CODE)
    assert await stores.other.find_code(ANN, GITHUB) == CODE
    assert await stores.other.find_code(BEN, GITHUB) is None
    assert await stores.other.find_code(ANN, mcp_service("crm")) is None
    newer = replace(CODE, user_code="EFGH-5678")
    await stores.one.keep_code(ANN, GITHUB, newer)
    assert await stores.other.find_code(ANN, GITHUB) == newer
    await stores.other.drop_code(ANN, GITHUB)
    await stores.other.drop_code(ANN, GITHUB)
    assert await stores.one.find_code(ANN, GITHUB) is None


async def test_one_refreshes(stores: Stores) -> None:
    """Of many at once; until it is renewed, or the time of the claim is over."""
    assert not await stores.one.claim_refresh(ANN, GITHUB, hold_s=9)
    await stores.one.link(ANN, ACCOUNT)
    await stores.one.link(BEN, ACCOUNT)
    async with open_task_group() as group:
        claims = [
            group.create_task(one.claim_refresh(ANN, GITHUB, hold_s=9))
            for one in (stores.one, stores.other) * 5
        ]
    assert [claim.result() for claim in claims].count(True) == 1
    assert await stores.other.claim_refresh(BEN, GITHUB, hold_s=0)
    assert await stores.one.claim_refresh(BEN, GITHUB, hold_s=9)
    fresh = TokenPair(
        access="ghu_three", refresh="ghr_three", expires_at=EXPIRES + timedelta(hours=8)
    )
    assert await stores.one.renew(ANN, GITHUB, fresh)
    found = await stores.other.get(ANN, GITHUB)
    assert found == replace(ACCOUNT, tokens=fresh)
    assert await stores.other.claim_refresh(ANN, GITHUB, hold_s=9)


async def test_what_was_unlinked_meanwhile_is_not_renewed(stores: Stores) -> None:
    await stores.one.link(ANN, ACCOUNT)
    assert await stores.one.claim_refresh(ANN, GITHUB, hold_s=9)
    assert await stores.other.unlink(ANN, GITHUB)
    assert not await stores.one.renew(ANN, GITHUB, PAIR)
    assert await stores.one.get(ANN, GITHUB) is None


async def test_what_was_linked_anew_meanwhile_stays(stores: Stores) -> None:
    """The claim was of the account before; with a claim it is dropped."""
    await stores.one.link(ANN, ACCOUNT)
    assert await stores.one.claim_refresh(ANN, GITHUB, hold_s=9)
    anew = replace(ACCOUNT, id="9")
    await stores.other.link(ANN, anew)
    assert not await stores.one.renew(ANN, GITHUB, TokenPair(access="ghu_stale"))
    await stores.one.drop(ANN, GITHUB)
    assert await stores.other.get(ANN, GITHUB) == anew
    assert await stores.one.claim_refresh(ANN, GITHUB, hold_s=9)
    await stores.one.drop(ANN, GITHUB)
    assert await stores.one.get(ANN, GITHUB) is None


def _raw(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("orion.db*"))


async def test_the_database_alone_tells_no_token(tmp_path: Path) -> None:
    """Nor does a row that was copied to another person's; with another secret it is as if there were none."""
    async with open_store(tmp_path / "orion.db") as store:
        accounts = store.accounts([SECRET])
        await accounts.link(ANN, ACCOUNT)
        raw = _raw(tmp_path)
        assert b"ghu_one" not in raw
        assert b"ghr_one" not in raw
        copied = sa.text(
            "insert into orion_accounts select team, 'U2', service, account_id, login, sealed,"
            " expires_at, refreshing_until from orion_accounts"
        )
        await accounts._database.call(lambda connection: connection.execute(copied))
        assert await accounts.get(BEN, GITHUB) is None
        assert await store.accounts([NEWER]).get(ANN, GITHUB) is None
        assert await store.accounts([NEWER, SECRET]).get(ANN, GITHUB) == ACCOUNT


async def test_the_database_alone_tells_no_code(tmp_path: Path) -> None:
    """Nor is one of another secret found."""
    async with open_store(tmp_path / "orion.db") as store:
        accounts = store.accounts([SECRET])
        await accounts.keep_code(ANN, GITHUB, CODE)
        raw = _raw(tmp_path)
        assert b"device-secret" not in raw
        assert b"ABCD-1234" not in raw
        assert await store.accounts([NEWER]).find_code(ANN, GITHUB) is None
