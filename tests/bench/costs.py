"""What one run costs a process and its PostgreSQL, and what a process costs that has nothing to do."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tests.bench.acks import load, open_instant_orion, open_slack
from tests.bench.load import WARM_UP_EVENTS
from tests.bench.processes import BenchError, Server
from tests.bench.scale import Bench
from tests.bench.table import Row
from tests.postgres import create_database, run_postgres

RATE = 1.0
"""Mentions a second; with the load's warm-up a little more than what Slack takes answers for, so that some wait."""
SETTLE_S = 3.0
"""After the start, and for the server's counters: a connection tells of its transactions once a second."""
ANSWERED_WITHIN_S = 150.0
"""Slack's limit of updates lets through 48 answers a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """So much of it so far."""

    at_s: float
    orion_s: float
    """Processor of the process."""
    postgres_s: float
    """Processor of the connections that it has."""
    transactions: int
    connections: int

    def rates_since(self, earlier: "Reading") -> tuple[float, float, float]:
        """Processor of both, and transactions, in a second."""
        took_s = self.at_s - earlier.at_s
        return (
            (self.orion_s - earlier.orion_s) / took_s,
            (self.postgres_s - earlier.postgres_s) / took_s,
            (self.transactions - earlier.transactions) / took_s,
        )


async def measure_costs(bench: Bench) -> Sequence[Row]:
    """Reads the counters of the process and of its database: idle, and under runs that cost nothing but Orion's work."""
    with run_postgres() as server:
        url = create_database(server, "costs")
        async with (
            open_slack(bench) as slack,
            open_instant_orion(bench, api_url=f"{slack.url}/api/", database_url=url) as orion,
        ):
            await asyncio.sleep(SETTLE_S)
            before = _read(server, orion)
            await asyncio.sleep(bench.scale.idle_seconds)
            idle = _read(server, orion)
            result = await load(bench, orion, "open", bench.scale.costs_seconds, rate=RATE)
            await _until_answered(url)
            await asyncio.sleep(SETTLE_S)
            after = _read(server, orion)
    runs = (result.answered + result.failed) // 2 + WARM_UP_EVENTS
    return _rows(before, idle, after, runs=runs)


def _rows(before: Reading, idle: Reading, after: Reading, *, runs: int) -> Sequence[Row]:
    idle_rates, busy_rates = idle.rates_since(before), after.rates_since(idle)
    took_s = after.at_s - idle.at_s
    orion_s, postgres_s, transactions = (
        (busy - idling) * took_s / runs for busy, idling in zip(busy_rates, idle_rates, strict=True)
    )
    return (
        Row(
            figure="processor time per run, answered (fake sandbox)",
            unit="ms",
            orion=1000 * orion_s,
        ),
        Row(figure="PostgreSQL's processor time per run", unit="ms", orion=1000 * postgres_s),
        Row(figure="transactions per run", unit="", orion=transactions),
        Row(
            figure="processor of an idle process on PostgreSQL", unit="%", orion=100 * idle_rates[0]
        ),
        Row(
            figure="PostgreSQL's processor for an idle process", unit="%", orion=100 * idle_rates[1]
        ),
        Row(figure="transactions of an idle process", unit="/s", orion=idle_rates[2]),
        Row(figure="connections of a process", unit="", orion=after.connections),
    )


def _read(server_url: str, orion: Server) -> Reading:
    """By way of another database of the same server, so that these looks are not counted."""
    with psycopg.connect(f"{server_url}/postgres", autocommit=True) as connection:
        pids = connection.execute("SELECT pid FROM pg_stat_activity WHERE datname = 'costs'")
        of_postgres = [Server(url="", pid=int(pid)).cpu_s for (pid,) in pids.fetchall()]
        committed = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'costs'"
        ).fetchone()
    assert committed is not None
    return Reading(
        at_s=time.monotonic(),
        orion_s=orion.cpu_s,
        postgres_s=sum(of_postgres),
        transactions=int(committed[0]),
        connections=len(of_postgres),
    )


async def _until_answered(url: str) -> None:
    query = "SELECT count(*) FROM orion_runs WHERE state NOT IN ('succeeded', 'failed', 'stopped')"
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while await asyncio.to_thread(_count, url, query):
                await asyncio.sleep(1)
    except TimeoutError as exc:
        raise BenchError(f"not all runs were answered within {ANSWERED_WITHIN_S:g} s") from exc


def _count(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
