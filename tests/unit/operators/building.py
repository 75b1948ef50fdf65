"""The operators' page over a real server and a real store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from fastapi import FastAPI

from app.errors import ErrorCode
from app.operators.desk import Desk
from app.operators.door import Door
from app.operators.pages import create_pages
from app.runs.testing import Outcome, Run, RunFileKind, RunPolicy, RunState, SystemClock
from app.store.runs import SqlRunStore, open_store
from app.tracing.steps import StepRecord, write_steps
from app.web.hosting import serve
from tests.building import make_entry, make_request, make_run
from tests.plain_http import NO_TLS

TOKEN = "a-token-of-operators"  # noqa: S105 - of the server below
SCRIPT = "</script><script>alert(1)</script>"


class HandClock:
    def __init__(self) -> None:
        self.time = datetime.now(UTC)

    def now(self) -> datetime:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Office:
    url: str
    http: httpx.AsyncClient
    store: SqlRunStore
    clock: HandClock

    async def log_in(self, token: str = TOKEN, **headers: str) -> httpx.Response:
        return await self.http.post("/ops/login", data={"token": token}, headers=headers)


@asynccontextmanager
async def open_office(directory: Path) -> AsyncIterator[Office]:
    clock = HandClock()
    async with open_store(directory / "orion.db") as store:
        desk = Desk(
            store,
            policy=RunPolicy(),
            pools=list,
            mask=lambda text: text.replace("hunter2", "[redacted]"),
            trace_link=lambda trace_id: f"https://traces.acme.org/{trace_id}" if trace_id else "",
            clock=SystemClock(),
        )
        app = FastAPI()
        app.router.routes += create_pages(desk, Door(TOKEN, now=clock.now), token=TOKEN)
        async with (
            serve(app) as url,
            httpx.AsyncClient(base_url=url, verify=NO_TLS, trust_env=False) as http,
        ):
            yield Office(url=url, http=http, store=store, clock=clock)


async def fill(store: SqlRunStore) -> Run:
    """Adds runs in several states, with markup in every text that people or agents write; returns one that failed."""
    now = datetime.now(UTC)
    await store.leases.join()
    for number, text in enumerate((SCRIPT, "deploy the shop", "why is it slow?")):
        going = make_run(make_request(text=text, ts=f"179530236{number}.000100", user=f"U{number}"))
        await store.add(replace(going, created_at=now - timedelta(minutes=number)))
        await store.begin(going, agent="claude", provider="local", model="opus", started_at=now)
    await store.add(
        make_run(make_request(text=SCRIPT, ts="1795302370.000100", thread_ts="1795302360.000100"))
    )
    failed = replace(make_run(make_request(text=SCRIPT, ts="1795302371.000100")), created_at=now)
    await store.add(failed)
    outcome = Outcome(
        state=RunState.FAILED, error_code=ErrorCode.AGENT_IDLE, detail=SCRIPT, answer=SCRIPT
    )
    await store.update(
        failed.id,
        state=RunState.FAILED,
        outcome=outcome,
        started_at=now,
        ended_at=now + timedelta(seconds=3),
    )
    steps = [
        StepRecord(name="attempt", started_at=now, ended_at=now + timedelta(seconds=3)),
        StepRecord(
            name="execute-agent",
            parent="attempt",
            started_at=now,
            ended_at=now + timedelta(seconds=2),
            error=SCRIPT,
        ),
        StepRecord(
            name=SCRIPT, parent="execute-agent", started_at=now, ended_at=now + timedelta(seconds=1)
        ),
    ]
    await store.files.append(failed.id, RunFileKind.STEPS, write_steps(steps))
    await store.files.save(failed.id, RunFileKind.LOG, SCRIPT)
    await store.audit.add(make_entry(target=SCRIPT, reason=SCRIPT, is_allowed=False))
    return failed
