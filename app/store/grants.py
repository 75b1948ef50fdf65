"""Grants of runs where all processes on a database find them, and what is reported of them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa

from app.runs.broker import ModelGrant
from app.runs.model import FINAL_STATES, GrantNews, ReportedCall
from app.runs.request import RunId
from app.store.engine import Database
from app.store.tables import grant_calls, grants, in_states, insert_for, runs

LEFT_FOR = timedelta(days=1)
"""That grants of processes which have died stay, after they have expired."""

T = TypeVar("T")


class SqlGrantStore:
    """Implements GrantStore; `SqlRunStore.grants` is one."""

    def __init__(self, database: Database) -> None:
        self._call = database.call

    async def open(self, grant: ModelGrant, *, process: str) -> None:
        row = {
            "process": process,
            "content": replace(grant, own_key=""),
            "expires_at": grant.expires_at,
            "has_effect": False,
        }
        old = grants.c.expires_at < datetime.now(UTC) - LEFT_FOR

        def work(connection: sa.Connection) -> None:
            insert = insert_for(connection, grants).values(run_id=grant.run_id, **row)
            connection.execute(
                insert.on_conflict_do_update(index_elements=[grants.c.run_id], set_=row)
            )
            left = sa.select(grants.c.run_id).where(old)
            connection.execute(sa.delete(grant_calls).where(grant_calls.c.run_id.in_(left)))
            connection.execute(sa.delete(grants).where(old))

        await self._call(work)

    async def find(self, run_id: RunId) -> ModelGrant | None:
        is_over = sa.exists().where(runs.c.id == run_id, in_states(runs, FINAL_STATES))
        query = sa.select(grants.c.content).where(grants.c.run_id == run_id, ~is_over)
        found: ModelGrant | None = await self._call(lambda connection: connection.scalar(query))
        return found

    async def report(self, calls: Sequence[ReportedCall]) -> Collection[str]:
        # Locked against `close`, which takes what is there and nothing after.
        query = (
            sa.select(grants.c.run_id)
            .where(grants.c.run_id.in_({one.run_id for one in calls}))
            .with_for_update(read=True)
        )

        def work(connection: sa.Connection) -> Collection[str]:
            is_open = set(connection.scalars(query))
            rows = [
                {"id": one.id, "run_id": one.run_id, "call": one.call}
                for one in calls
                if one.run_id in is_open
            ]
            if rows:
                connection.execute(
                    insert_for(connection, grant_calls).on_conflict_do_nothing(), rows
                )
            return {one.id for one in calls if one.run_id not in is_open}

        return await self._call(work)

    async def note_effect(self, run_id: RunId) -> bool:
        of_grant = sa.update(grants).where(grants.c.run_id == run_id).values(has_effect=True)
        of_run = sa.update(runs).where(runs.c.id == run_id).values(has_outside_effect=True)

        def work(connection: sa.Connection) -> bool:
            is_open = connection.execute(of_grant).rowcount == 1
            if is_open:
                connection.execute(of_run)
            return is_open

        return await self._call(work)

    async def take(self, process: str) -> GrantNews:
        return await self._call(lambda connection: _take(connection, grants.c.process == process))

    async def close(self, run_id: RunId, *, process: str) -> GrantNews:
        own = (grants.c.run_id == run_id) & (grants.c.process == process)

        def work(connection: sa.Connection) -> GrantNews:
            connection.execute(sa.select(grants.c.run_id).where(own).with_for_update())
            news = _take(connection, own)
            connection.execute(sa.delete(grants).where(own))
            return news

        return await self._call(work)


def _take(connection: sa.Connection, of: sa.ColumnElement[bool]) -> GrantNews:
    effects = connection.scalars(sa.select(grants.c.run_id).where(of, grants.c.has_effect)).all()
    taken = sa.delete(grant_calls).where(
        grant_calls.c.run_id.in_(sa.select(grants.c.run_id).where(of))
    )
    rows = connection.execute(taken.returning(*grant_calls.c)).all()
    calls = [ReportedCall(id=row.id, run_id=RunId(row.run_id), call=row.call) for row in rows]
    return GrantNews(
        calls=tuple(sorted(calls, key=lambda one: one.call.ended_at)),
        effects=frozenset(map(RunId, effects)),
    )
