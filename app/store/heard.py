"""Up to when Orion has heard what was said, and who looks for what it has not: one row for everywhere, one for each place that is ahead."""

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from app.store.engine import Database
from app.store.leases import SqlLeases
from app.store.tables import Now, heard, insert_for, processes

EVERYWHERE = ""
_EVERYWHERE = heard.c.place == EVERYWHERE


class SqlHeard:
    """Implements `app.slack.catch_up.HeardStore`; `SqlRunStore.heard` is one."""

    def __init__(self, database: Database, leases: SqlLeases) -> None:
        self._call = database.call
        self._leases = leases

    async def begin(self, at: datetime) -> bool:
        first = {"place": EVERYWHERE, "until": at, "owner": None}

        def work(connection: sa.Connection) -> bool:
            insert = insert_for(connection, heard).values(first).on_conflict_do_nothing()
            return connection.scalar(insert.returning(heard.c.place)) is not None

        return await self._call(work)

    async def advance(self, until: datetime) -> None:
        moved = sa.update(heard).where(_EVERYWHERE, heard.c.until < until, ~self._is_others())
        await self._call(lambda connection: connection.execute(moved.values(until=until)))

    async def claim(self) -> Mapping[str, datetime] | None:
        claimed = sa.update(heard).where(_EVERYWHERE, ~self._is_others())
        claimed = claimed.values(owner=self._leases.id)

        def work(connection: sa.Connection) -> Mapping[str, datetime] | None:
            if connection.execute(claimed).rowcount != 1:
                return None
            rows = connection.execute(sa.select(heard.c.place, heard.c.until)).all()
            return {row.place: row.until for row in rows}

        return await self._call(work)

    async def keep(self, place: str, until: datetime) -> None:
        row = {"place": place, "until": until, "owner": None}

        def work(connection: sa.Connection) -> None:
            insert = insert_for(connection, heard)
            connection.execute(
                insert.on_conflict_do_update(index_elements=["place"], set_={"until": until}), row
            )

        await self._call(work)

    async def finish(self, until: datetime) -> None:
        moved = sa.update(heard).where(_EVERYWHERE, heard.c.until < until).values(until=until)

        def work(connection: sa.Connection) -> None:
            connection.execute(moved)
            connection.execute(sa.delete(heard).where(~_EVERYWHERE, heard.c.until <= until))
            connection.execute(self._released())

        await self._call(work)

    async def release(self) -> None:
        await self._call(lambda connection: connection.execute(self._released()))

    def _released(self) -> sa.Update:
        own = sa.update(heard).where(_EVERYWHERE, heard.c.owner == self._leases.id)
        return own.values(owner=None)

    def _is_others(self) -> sa.ColumnElement[bool]:
        """Whether another process that lives has claimed it."""
        lives = sa.exists().where(processes.c.id == heard.c.owner, processes.c.alive_until >= Now())
        others = heard.c.owner.is_not(None) & (heard.c.owner != self._leases.id)
        return sa.and_(others, lives)
