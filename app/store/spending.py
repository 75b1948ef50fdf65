"""Model calls in SQLite or PostgreSQL, beside the run records; and in memory, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app.runs.budgets import SpentCall
from app.runs.costs import RunCost, known_cost, to_micro
from app.runs.model import RunId, Usage
from app.store import schema
from app.store.columns import AnyText, UtcTime
from app.store.database import Database
from app.store.run_rows import runs

spending_table = sa.Table(
    "orion_model_calls",
    schema.metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("agent", sa.String(32), nullable=False),
    sa.Column("model", AnyText, nullable=False),
    sa.Column("team", sa.String(32), nullable=False),
    sa.Column("user", sa.String(32), nullable=False),
    sa.Column("channel", sa.String(32), nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("cost", sa.BigInteger),
    sa.Column("is_own_key", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("ix_orion_model_calls_run", "run_id"),
    sa.Index("ix_orion_model_calls_at", "at"),
)


class SqlSpendingStore:
    """Implements SpendingStore; `SqlRunStore.spending` is one. Removing a run removes its calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, calls: Sequence[SpentCall]) -> None:
        rows = [{**asdict(call), "usage": asdict(call.usage)} for call in calls]
        ids = [call.id for call in calls]

        def work(connection: sa.Connection) -> None:
            # A call whose time was over may have been carried out after all.
            connection.execute(sa.delete(spending_table).where(spending_table.c.id.in_(ids)))
            connection.execute(sa.insert(spending_table), rows)

        await self._database.call(work)

    async def since(self, at: datetime) -> Sequence[SpentCall]:
        return await self._select(sa.select(spending_table).where(spending_table.c.at >= at))

    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]:
        return await self._select(
            sa.select(spending_table).where(spending_table.c.run_id == run_id)
        )

    async def of_runs(self, since: datetime) -> Sequence[RunCost]:
        """Runs that began then or later, with what their records say."""
        columns = (runs.c.started_at, runs.c.user, runs.c.request, runs.c.agent, runs.c.model)
        query = sa.select(*columns, runs.c.usage, runs.c.cost_usd).where(runs.c.started_at >= since)
        rows = await self._database.call(lambda connection: connection.execute(query).all())
        return [
            RunCost(
                at=row.started_at,
                user=row.user,
                channel=row.request["channel"],
                agent=row.agent,
                model=row.model,
                tokens=Usage(**row.usage).tokens,
                cost=None if (cost := known_cost(row.cost_usd)) is None else to_micro(cost),
            )
            for row in rows
        ]

    async def _select(self, query: sa.Select[Any]) -> Sequence[SpentCall]:
        rows = await self._database.call(
            lambda connection: connection.execute(query).mappings().all()
        )
        return [_call(dict(row)) for row in rows]


class MemorySpendingStore:
    """The same contract."""

    def __init__(self) -> None:
        self._calls: dict[str, SpentCall] = {}

    async def add(self, calls: Sequence[SpentCall]) -> None:
        self._calls |= {call.id: call for call in calls}

    async def since(self, at: datetime) -> Sequence[SpentCall]:
        return [call for call in self._calls.values() if call.at >= at]

    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]:
        return [call for call in self._calls.values() if call.run_id == run_id]


def _call(row: Mapping[str, Any]) -> SpentCall:
    return SpentCall(**{**row, "run_id": RunId(row["run_id"]), "usage": Usage(**row["usage"])})
