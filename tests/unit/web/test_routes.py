"""The HTTP surface over a real server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import httpx
from fastapi import APIRouter, FastAPI

from app.metrics import Meters
from app.runs.testing import CallFigures, PoolFigures, RunState
from app.store.memory import MemoryRunStore
from app.web.health import Health, Metrics
from app.web.hosting import serve
from app.web.routes import MAX_BODY_BYTES, WebParts, install_routes
from tests.building import make_run
from tests.plain_http import NO_TLS

POOL = PoolFigures(
    provider="local", size=2, waiting=1, taken=5, missed=3, failed=0, is_stopped=False
)


@dataclass(frozen=True, kw_only=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: str


FOLLOW_UPS = {("answered", "two_party"): 2}
CALLS = {("claude", "m-1"): CallFigures(calls=2, tokens=1200, cost=42)}


class HandClock:
    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


async def echo(headers: Mapping[str, str], body: bytes) -> Said:
    if body == b"bug":
        raise RuntimeError("secret detail")
    return Said(status=200, headers={"x-seen": headers["x-slack-signature"]}, body=body.decode())


async def fine() -> str:
    return "fine"


def make_parts() -> WebParts:
    store = MemoryRunStore()
    return WebParts(
        slack=echo,
        health=Health(inside={"database": fine}, outside={}, clock=HandClock()),
        metrics=Metrics(
            Meters(),
            store=store,
            export_failures=lambda: 3,
            pools=lambda: [POOL],
            calls=CALLS,
            follow_ups=FOLLOW_UPS,
        ),
        broker=APIRouter(),
        ops_token=None,
        is_loopback=True,
    )


@asynccontextmanager
async def client_of(parts: WebParts) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(openapi_url=None)
    install_routes(app, parts)
    async with (
        serve(app) as base_url,
        httpx.AsyncClient(verify=NO_TLS, base_url=base_url, trust_env=False) as client,
    ):
        yield client


async def test_slack_deliveries_reach_the_handler_raw() -> None:
    """Bytes and headers arrive as sent; status, headers and body go back."""
    async with client_of(make_parts()) as client:
        answer = await client.post(
            "/slack/events", content=b'{"a": 1}', headers={"X-Slack-Signature": "v0=x"}
        )
    assert (answer.status_code, answer.text, answer.headers["x-seen"]) == (200, '{"a": 1}', "v0=x")


async def test_a_huge_body_is_cut_off() -> None:
    """More than a megabyte is a 413 before anything looks at it."""
    async with client_of(make_parts()) as client:
        answer = await client.post("/slack/events", content=b"x" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413


async def test_where_a_login_ends() -> None:
    """Shows its own address to bring back, as text, whatever stands in it; and is kept and told on by nobody."""
    async with client_of(replace(make_parts(), has_link_page=True)) as client:
        answer = await client.get("/linked/crm?code=%3Cb%3E1&state=2&x=<script>")
    assert answer.status_code == 200
    assert f"/orion link crm {client.base_url}/linked/crm?code=%3Cb%3E1&amp;state=2" in answer.text
    assert "<script>" not in answer.text
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == (
        "no-store",
        "no-referrer",
    )


async def test_a_bug_tells_nothing_of_itself() -> None:
    """An unexpected error is a 500 without its text."""
    async with client_of(make_parts()) as client:
        answer = await client.post(
            "/slack/events", content=b"bug", headers={"x-slack-signature": ""}
        )
    assert answer.status_code == 500
    assert "secret" not in answer.text


async def test_unknown_paths_and_socket_mode() -> None:
    """What is not served is 404, the events route too when a socket takes its place."""
    async with client_of(replace(make_parts(), slack=None)) as client:
        for method, path in (("GET", "/"), ("GET", "/docs"), ("POST", "/slack/events")):
            assert (await client.request(method, path)).status_code == 404
        assert (await client.get("/healthz")).text == "ok"


async def test_readiness_names_each_part() -> None:
    """A part that fails turns readiness red with its reason; draining does too."""

    async def broken() -> str:
        raise ConnectionError("no route")

    parts = make_parts()
    health = Health(inside={"database": fine}, outside={"slack": broken}, clock=HandClock())
    async with client_of(replace(parts, health=health)) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["database"] == {"ok": True, "detail": "fine"}
        assert answer.json()["slack"] == {"ok": False, "detail": "ConnectionError: no route"}
    async with client_of(parts) as client:
        assert (await client.get("/readyz")).status_code == 200
        parts.health.is_draining = True
        assert (await client.get("/readyz")).status_code == 503


async def test_outside_checks_are_cached() -> None:
    """Slack and the provider are asked at most every 30 s, however often readiness is."""
    clock = HandClock()
    asked: list[datetime] = []

    async def slack() -> str:
        asked.append(clock.now())
        return "ok"

    health = Health(inside={}, outside={"slack": slack}, clock=clock)
    for _ in range(5):
        await health.check()
    assert len(asked) == 1
    await clock.sleep(31)
    await health.check()
    assert len(asked) == 2


async def test_metrics_are_closed_off_loopback_without_a_token() -> None:
    """On loopback anyone reads them; elsewhere only with the token, and not at all when there is none."""
    parts = make_parts()
    store = MemoryRunStore()
    run = make_run()
    await store.add(run)
    await store.update(run.id, state=RunState.RUNNING)
    metrics = Metrics(
        Meters(),
        store=store,
        export_failures=lambda: 3,
        pools=lambda: [POOL],
        calls=CALLS,
        follow_ups=FOLLOW_UPS,
    )
    async with client_of(replace(parts, metrics=metrics)) as client:
        await client.post("/slack/events", content=b"{}", headers={"x-slack-signature": ""})
        text = (await client.get("/metrics")).text
        assert 'orion_runs{state="running"} 1.0' in text
        assert "orion_trace_export_failures 3.0" in text
        assert 'orion_pool_taken{provider="local"} 5.0' in text
        assert 'orion_pool_is_stopped{provider="local"} 0.0' in text
        assert 'orion_model_tokens{agent="claude",model="m-1"} 1200.0' in text
        assert 'orion_model_cost_micro_usd{agent="claude",model="m-1"} 42.0' in text
        assert 'orion_slack_ack_seconds_count{status="200"} 1.0' in text
    async with client_of(replace(parts, is_loopback=False)) as client:
        assert (await client.get("/metrics")).status_code == 401
    async with client_of(replace(parts, is_loopback=False, ops_token="t0k")) as client:
        assert (await client.get("/metrics")).status_code == 401
        headers = {"authorization": "Bearer t0k"}
        assert (await client.get("/metrics", headers=headers)).status_code == 200
