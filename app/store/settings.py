"""What people have set, and what is kept of them, in SQLite or PostgreSQL: defaults of persons and channels, notes of channels, who was welcomed, and own keys, sealed so that the database alone tells none."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace

import sqlalchemy as sa
from typing_extensions import Unpack

from app.log import get_logger
from app.runs.model import ChannelChange, ChannelNote
from app.runs.options import DefaultChanges, Defaults
from app.store.engine import Database
from app.store.seal import OWN_KEYS, Seal
from app.store.tables import (
    channel_changes,
    channel_notes,
    defaults,
    insert_for,
    own_keys,
    values_of,
    welcomes,
)

_FIELDS = tuple(field.name for field in fields(Defaults) if field.name in defaults.c)

_log = get_logger(__name__)


class SqlDefaultStore:
    """Implements DefaultStore; `SqlRunStore.defaults` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, team: str, owner: str) -> Defaults:
        query = sa.select(*(defaults.c[name] for name in _FIELDS)).where(_are_of(team, owner))
        row = await self._database.call(
            lambda connection: connection.execute(query).mappings().first()
        )
        return Defaults(**row) if row is not None else Defaults()

    async def change(self, team: str, owner: str, **changes: Unpack[DefaultChanges]) -> None:
        if not changes:
            return
        update = sa.update(defaults).where(_are_of(team, owner)).values(**changes)
        values = dict.fromkeys(_FIELDS, "") | changes
        insert = sa.insert(defaults).values(team=team, owner=owner, **values)

        def work(connection: sa.Connection) -> None:
            if connection.execute(update).rowcount == 0:
                connection.execute(insert)

        await self._database.insert(work)

    async def reset(self, team: str, owner: str) -> None:
        statement = sa.delete(defaults).where(_are_of(team, owner))
        await self._database.call(lambda connection: connection.execute(statement))

    async def keep(self, change: ChannelChange) -> bool:
        is_there = sa.select(channel_changes.c.run_id).where(
            channel_changes.c.run_id == change.run_id
        )
        insert = sa.insert(channel_changes).values(values_of(change))

        def work(connection: sa.Connection) -> bool:
            is_new = connection.execute(is_there).first() is None
            if is_new:
                connection.execute(insert)
            return is_new

        return await self._database.insert(work)

    async def last_change(self, team: str, channel: str) -> ChannelChange | None:
        query = (
            sa.select(channel_changes)
            .where(channel_changes.c.team == team, channel_changes.c.channel == channel)
            .order_by(channel_changes.c.at.desc())
            .limit(1)
        )
        row = await self._database.call(
            lambda connection: connection.execute(query).mappings().first()
        )
        return ChannelChange(**row) if row is not None else None


class SqlWelcomeStore:
    """Implements WelcomeStore; `SqlRunStore.welcomes` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, team: str, person: str) -> bool:
        row = {"team": team, "person": person}

        def work(connection: sa.Connection) -> bool:
            insert = insert_for(connection, welcomes).on_conflict_do_nothing()
            return connection.scalar(insert.returning(welcomes.c.person), row) is not None

        return await self._database.call(work)

    async def release(self, team: str, person: str) -> None:
        key = (welcomes.c.team == team) & (welcomes.c.person == person)
        await self._database.call(
            lambda connection: connection.execute(sa.delete(welcomes).where(key))
        )

    async def count(self) -> int:
        query = sa.select(sa.func.count()).select_from(welcomes)
        return await self._database.call(lambda connection: connection.scalar(query)) or 0


def _are_of(team: str, owner: str) -> sa.ColumnElement[bool]:
    return (defaults.c.team == team) & (defaults.c.owner == owner)


class SqlChannelNoteStore:
    """Implements ChannelNoteStore; `SqlRunStore.channel_notes` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, team: str, channel: str) -> Sequence[ChannelNote]:
        return await self._select(_is_of(team, channel))

    async def find(self, *, channel: str, user: str) -> Sequence[ChannelNote]:
        """Returns what a person said in a channel, of all workspaces; an empty id is for all. For the operator alone."""
        columns = ((channel_notes.c.channel, channel), (channel_notes.c.user, user))
        return await self._select(
            sa.and_(sa.true(), *(is_of == one for is_of, one in columns if one))
        )

    async def add(self, note: ChannelNote) -> ChannelNote:
        existing = sa.select(channel_notes).where(channel_notes.c.run_id == note.run_id)
        highest = sa.select(sa.func.max(channel_notes.c.number)).where(
            _is_of(note.team, note.channel)
        )

        def work(connection: sa.Connection) -> ChannelNote:
            if connection.dialect.name == "postgresql":
                place = sa.func.hashtextextended(f"{note.team}-{note.channel}", 0)
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(place)))
            else:  # one writes at a time, from the first statement that may write
                connection.execute(sa.delete(channel_notes).where(sa.false()))
            row = connection.execute(existing).mappings().first()
            if row is not None:
                return ChannelNote(**row)
            numbered = replace(note, number=(connection.scalar(highest) or 0) + 1)
            connection.execute(sa.insert(channel_notes).values(values_of(numbered)))
            return numbered

        return await self._database.insert(work)

    async def forget(
        self, team: str, channel: str, numbers: Collection[int], *, by: str
    ) -> Sequence[int]:
        here, number = _is_of(team, channel), channel_notes.c.number
        update = (
            sa.update(channel_notes)
            .where(here, number.in_(numbers), channel_notes.c.forgotten_by == "")
            .values(forgotten_by=by, text="", user="", name="")
        )
        gone = sa.select(number).where(here, channel_notes.c.forgotten_by == by).order_by(number)

        def work(connection: sa.Connection) -> Sequence[int]:
            connection.execute(update)
            return connection.scalars(gone).all()

        return await self._database.call(work)

    async def _select(self, which: sa.ColumnElement[bool]) -> Sequence[ChannelNote]:
        query = (
            sa.select(channel_notes)
            .where(which, channel_notes.c.forgotten_by == "")
            .order_by(channel_notes.c.team, channel_notes.c.channel, channel_notes.c.number)
        )
        rows = await self._database.call(
            lambda connection: connection.execute(query).mappings().all()
        )
        return [ChannelNote(**row) for row in rows]


def _is_of(team: str, channel: str) -> sa.ColumnElement[bool]:
    return (channel_notes.c.team == team) & (channel_notes.c.channel == channel)


class SqlOwnKeyStore:
    """Implements OwnKeyStore; `SqlRunStore.own_keys` makes one."""

    def __init__(self, database: Database, *, secrets: Sequence[str]) -> None:
        """`secrets`: random texts of 32 characters or more; the first seals, each opens what it has sealed before."""
        self._database = database
        self._seal = Seal(secrets, purpose=OWN_KEYS)

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        query = sa.select(own_keys.c.protocol, own_keys.c.sealed).where(_belongs_to(team, person))
        rows = await self._database.call(lambda connection: connection.execute(query).all())
        return {row.protocol: self._open((team, person, row.protocol), row.sealed) for row in rows}

    async def count_unreadable(self) -> int:
        """Returns how many people's keys none of the secrets opens."""
        query = sa.select(
            own_keys.c.team, own_keys.c.person, own_keys.c.protocol, own_keys.c.sealed
        )
        rows = await self._database.call(lambda connection: connection.execute(query).all())
        return sum(not self._open((one.team, one.person, one.protocol), one.sealed) for one in rows)

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        rows = [
            {
                "team": team,
                "person": person,
                "protocol": protocol,
                "sealed": self._seal.close((team, person, protocol), key),
            }
            for protocol, key in keys.items()
            if key
        ]
        removal = sa.delete(own_keys).where(
            _belongs_to(team, person), own_keys.c.protocol.in_(keys)
        )

        def work(connection: sa.Connection) -> None:
            connection.execute(removal)
            if rows:
                connection.execute(sa.insert(own_keys), rows)

        await self._database.insert(work)

    def _open(self, place: tuple[str, str, str], sealed: str) -> str:
        key = self._seal.open(place, sealed)
        if not key:
            _log.warning("own_key.unreadable", user=place[1], protocol=place[2])
        return key


def _belongs_to(team: str, person: str) -> sa.ColumnElement[bool]:
    return (own_keys.c.team == team) & (own_keys.c.person == person)
