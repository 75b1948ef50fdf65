"""Session records in SQLite or PostgreSQL, beside the run records, and in memory."""

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from typing_extensions import Unpack

from app.runs.request import Thread
from app.runs.session import (
    NOT_KEPT,
    NameTakenError,
    Session,
    SessionChanges,
    SessionId,
    SessionStatus,
)
from app.store.engine import Database
from app.store.tables import sessions, values_of

FOUND_LIMIT = 10
_THREAD = tuple(field.name for field in fields(Thread))


class SqlSessionStore:
    """Implements SessionStore; `SqlRunStore.sessions` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session: Session) -> Session:
        def work(connection: sa.Connection) -> Session:
            existing = _select_one(connection, session.id)
            if existing is None:
                connection.execute(sa.insert(sessions).values(_to_row(session)))
            return existing or session

        try:
            return await self._database.insert(work)
        except sa.exc.IntegrityError as exc:
            raise NameTakenError(session.name) from exc

    async def get(self, session_id: SessionId) -> Session | None:
        return await self._database.call(lambda connection: _select_one(connection, session_id))

    async def update(
        self, session_id: SessionId, **changes: Unpack[SessionChanges]
    ) -> Session | None:
        def work(connection: sa.Connection) -> Session | None:
            statement = sa.update(sessions).where(sessions.c.id == session_id)
            connection.execute(statement.values(**changes))
            return _select_one(connection, session_id)

        return await self._database.call(work)

    async def take_kept(self, session_id: SessionId, *, by: str) -> bool:
        kept = (
            (sessions.c.id == session_id) & (sessions.c.kept_by == by) & (sessions.c.kept_by != "")
        )
        statement = sa.update(sessions).where(kept).values(**NOT_KEPT)
        return await self._database.call(
            lambda connection: connection.execute(statement).rowcount == 1
        )

    async def find(self, text: str) -> Sequence[Session]:
        named = await self._select(sa.select(sessions).where(sessions.c.name == text))
        if named or not text:
            return named
        begins = sessions.c.id.startswith(text, autoescape=True)
        return await self._select(sa.select(sessions).where(begins).limit(FOUND_LIMIT))

    async def all(self) -> Sequence[Session]:
        return await self._select(sa.select(sessions).order_by(sessions.c.used_at.desc()))

    async def kept(self) -> Sequence[Session]:
        """Returns those whose sandbox some process keeps: a few among all that there are, found by the index on the status."""
        is_kept = (sessions.c.status == SessionStatus.RUNNING) & (sessions.c.kept_by != "")
        return await self._select(
            sa.select(sessions).where(is_kept).order_by(sessions.c.used_at.desc())
        )

    async def latest(self, *, limit: int) -> Sequence[Session]:
        """Returns those that have a sandbox, and so many of the latest used; the latest used first."""
        newest = sa.select(sessions.c.id).order_by(sessions.c.used_at.desc()).limit(limit)
        is_meant = (sessions.c.sandbox_id != "") | sessions.c.id.in_(newest)
        return await self._select(
            sa.select(sessions).where(is_meant).order_by(sessions.c.used_at.desc())
        )

    async def unused_since(self, before: datetime, *, limit: int) -> Sequence[Session]:
        query = sa.select(sessions).where(sessions.c.used_at < before)
        return await self._select(query.order_by(sessions.c.used_at).limit(limit))

    async def remove(self, session_id: SessionId) -> None:
        statement = sa.delete(sessions).where(sessions.c.id == session_id)
        await self._database.call(lambda connection: connection.execute(statement))

    async def _select(self, query: sa.Select[Any]) -> Sequence[Session]:
        rows = await self._database.call(
            lambda connection: connection.execute(query).mappings().all()
        )
        return [_from_row(row) for row in rows]


def _select_one(connection: sa.Connection, session_id: SessionId) -> Session | None:
    query = sa.select(sessions).where(sessions.c.id == session_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _from_row(row)


def _to_row(session: Session) -> dict[str, Any]:
    values = values_of(session)
    return values_of(values.pop("thread")) | values


def _from_row(row: sa.RowMapping) -> Session:
    values: dict[str, Any] = {**row}
    thread = Thread(**{name: values.pop(name) for name in _THREAD})
    return Session(**values, thread=thread)


class MemorySessionStore:
    """Implements SessionStore, for tests and checks."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, Session] = {}

    async def add(self, session: Session) -> Session:
        existing = self._sessions.get(session.id)
        if existing is None and any(
            other.name == session.name for other in self._sessions.values()
        ):
            raise NameTakenError(session.name)
        return self._sessions.setdefault(session.id, session)

    async def get(self, session_id: SessionId) -> Session | None:
        return self._sessions.get(session_id)

    async def update(
        self, session_id: SessionId, **changes: Unpack[SessionChanges]
    ) -> Session | None:
        if session_id in self._sessions:
            self._sessions[session_id] = replace(self._sessions[session_id], **changes)
        return self._sessions.get(session_id)

    async def take_kept(self, session_id: SessionId, *, by: str) -> bool:
        session = self._sessions.get(session_id)
        if session is None or not by or session.kept_by != by:
            return False
        self._sessions[session_id] = replace(session, **NOT_KEPT)
        return True

    async def find(self, text: str) -> Sequence[Session]:
        sessions = list(self._sessions.values())
        named = [session for session in sessions if session.name == text]
        return named or [one for one in sessions if text and one.id.startswith(text)][:10]

    async def all(self) -> Sequence[Session]:
        return sorted(self._sessions.values(), key=lambda one: one.used_at, reverse=True)

    async def unused_since(self, before: datetime, *, limit: int) -> Sequence[Session]:
        oldest_first = reversed(await self.all())
        return [session for session in oldest_first if session.used_at < before][:limit]

    async def remove(self, session_id: SessionId) -> None:
        self._sessions.pop(session_id, None)
