"""A process that shares its grants on a PostgreSQL, as `orion serve` puts one together, without runs of its own."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal

import httpx

from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.endpoints import PublicBroker
from app.brokerage.registry import GrantRegistry
from app.brokerage.sharing import GrantStore, open_sharing
from app.compose.brokers import AccountReader, ApprovalsOf
from app.runs.testing import (
    Budgets,
    Ledger,
    Price,
    Prices,
    ReportedCall,
    Run,
    RunApprovals,
    SystemClock,
)
from app.store.runs import SqlRunStore, open_store
from app.web.hosting import serve
from tests.plain_http import NO_TLS

MODEL = "m-1"
DOLLAR = Decimal(1)
PRICES = Prices({MODEL: Price(input=DOLLAR, output=DOLLAR, cache_read=DOLLAR, cache_write=DOLLAR)})
OPERATORS_KEY = "sk-of-the-operator-1"
SECRET = "seals-the-keys-of-people-for-these-tests"  # noqa: S105


def asks_nobody(run: Run) -> RunApprovals | None:
    """There are no rules."""
    del run
    return None


class LateReports:
    """A GrantStore to which calls are reported late, as by a process that has much else to do."""

    def __init__(self, grants: GrantStore, *, late_s: float) -> None:
        self.open, self.find, self.note_effect = grants.open, grants.find, grants.note_effect
        self.take, self.close = grants.take, grants.close
        self._report, self._late_s = grants.report, late_s

    async def report(self, calls: Sequence[ReportedCall]) -> Collection[str]:
        await asyncio.sleep(self._late_s)
        return await self._report(calls)


@dataclass(kw_only=True)
class Process:
    store: SqlRunStore
    ledger: Ledger
    registry: GrantRegistry
    broker: PublicBroker
    http: httpx.AsyncClient

    async def ask(self, token: str, text: str = "hello") -> httpx.Response:
        body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
        headers = {"x-api-key": token}
        return await self.http.post("/broker/anthropic/v1/messages", json=body, headers=headers)


@asynccontextmanager
async def open_process(
    url: str,
    model_url: str,
    *,
    budgets: Budgets | None = None,
    key: bytes | None = None,
    port: int = 0,
    approvals_of: ApprovalsOf = asks_nobody,
    late_s: float = 0,
) -> AsyncIterator[Process]:
    """Opens one with ORION_DATABASE_URL and models at that address. `key`: of tokens, another one than the database's; `port`: 0 = any; `late_s`: before it reports a call."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        ledger = Ledger(
            prices=PRICES,
            budgets=budgets or Budgets(),
            store=store.spending,
            clock=clock,
            is_shared=True,
        )
        await ledger.load()
        signing_key = key or (await store.installation.load()).signing_key
        registry = GrantRegistry(signing_key=signing_key, clock=clock)
        read = AccountReader(
            store=store,
            ledger=ledger,
            own_keys=store.own_keys([SECRET]),
            approvals_of=approvals_of,
        )
        grants = LateReports(store.grants, late_s=late_s)
        await stack.enter_async_context(open_sharing(registry, store=grants, read_account=read))
        http = await stack.enter_async_context(httpx.AsyncClient(verify=NO_TLS, trust_env=False))

        def upstream(api_key: str) -> Upstream:
            return Upstream(base_url=model_url, key_headers={"x-api-key": api_key})

        models = ModelsBroker(
            registry=registry,
            upstreams={"anthropic": upstream(OPERATORS_KEY)},
            own_upstream=lambda _protocol, own: upstream(own),
            http=http,
            clock=clock,
        )
        base_url = await stack.enter_async_context(
            serve(create_broker_app(models.router()), port=port)
        )
        yield Process(
            store=store,
            ledger=ledger,
            registry=registry,
            broker=PublicBroker(registry, url=base_url),
            http=await stack.enter_async_context(
                httpx.AsyncClient(verify=NO_TLS, trust_env=False, base_url=base_url, timeout=20)
            ),
        )
