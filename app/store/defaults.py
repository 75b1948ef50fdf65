"""Defaults of persons and channels in SQLite or PostgreSQL, beside the run records; and in memory, for tests."""

from dataclasses import replace

import sqlalchemy as sa
from typing_extensions import Unpack

from app.runs.defaults import DefaultChanges, Defaults
from app.store import schema
from app.store.columns import AnyText
from app.store.database import Database

_FIELDS = ("agent", "model", "model_agent", "sandbox", "repo", "branch")

_defaults = sa.Table(
    "orion_defaults",
    schema.metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("owner", sa.String(32), primary_key=True),
    *(sa.Column(name, AnyText, nullable=False) for name in _FIELDS),
)


class SqlDefaultStore:
    """Implements DefaultStore; `SqlRunStore.defaults` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, team: str, owner: str) -> Defaults:
        query = sa.select(*(_defaults.c[name] for name in _FIELDS)).where(_is(team, owner))
        row = await self._database.call(
            lambda connection: connection.execute(query).mappings().first()
        )
        return Defaults(**row) if row is not None else Defaults()

    async def change(self, team: str, owner: str, **changes: Unpack[DefaultChanges]) -> None:
        if not changes:
            return
        update = sa.update(_defaults).where(_is(team, owner)).values(**changes)
        values = dict.fromkeys(_FIELDS, "") | changes
        insert = sa.insert(_defaults).values(team=team, owner=owner, **values)

        def work(connection: sa.Connection) -> None:
            if connection.execute(update).rowcount == 0:
                connection.execute(insert)

        try:
            await self._database.call(work)
        except sa.exc.IntegrityError:  # another process was quicker
            await self._database.call(work)

    async def reset(self, team: str, owner: str) -> None:
        statement = sa.delete(_defaults).where(_is(team, owner))
        await self._database.call(lambda connection: connection.execute(statement))


class MemoryDefaultStore:
    """The same contract."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], Defaults] = {}

    async def get(self, team: str, owner: str) -> Defaults:
        return self._stored.get((team, owner), Defaults())

    async def change(self, team: str, owner: str, **changes: Unpack[DefaultChanges]) -> None:
        self._stored[team, owner] = replace(await self.get(team, owner), **changes)

    async def reset(self, team: str, owner: str) -> None:
        self._stored.pop((team, owner), None)


def _is(team: str, owner: str) -> sa.ColumnElement[bool]:
    return (_defaults.c.team == team) & (_defaults.c.owner == owner)
