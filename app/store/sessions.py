"""Session records in SQLite or PostgreSQL, beside the run records."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from typing_extensions import Unpack

from app.runs.model import Thread
from app.runs.session import (
    NameTakenError,
    Session,
    SessionChanges,
    SessionId,
    SessionStatus,
)
from app.store import schema
from app.store.columns import AnyText, UtcTime
from app.store.database import Database

FOUND_LIMIT = 10

_sessions = sa.Table(
    "orion_sessions",
    schema.metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("team", sa.String(32), nullable=False),
    sa.Column("channel", sa.String(32), nullable=False),
    sa.Column("thread_ts", sa.String(32), nullable=False),
    sa.Column("provider", sa.String(32), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("exit_code", sa.Integer),
    sa.Column("agent", sa.String(32), nullable=False),
    sa.Column("model", AnyText, nullable=False),
    sa.Column("prompt", AnyText, nullable=False),
    sa.Column("branch", AnyText, nullable=False),
    sa.Column("repo", AnyText, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("used_at", UtcTime, nullable=False),
    sa.Column("region", sa.String(32), nullable=False),
    sa.Column("mount_dir", AnyText, nullable=False),
    sa.Column("sandbox_id", sa.String(128), nullable=False),
    sa.Column("container_name", sa.String(128), nullable=False),
    sa.Column("volume_slug", sa.String(128), nullable=False),
    sa.Column("snapshot_slug", sa.String(128), nullable=False),
    sa.Column("agent_session_id", AnyText, nullable=False),
    sa.Column("extra", sa.JSON, nullable=False),
    sa.Index("ix_orion_sessions_name", "name", unique=True),
    sa.Index("ix_orion_sessions_provider", "provider"),
    sa.Index("ix_orion_sessions_status", "status"),
    sa.Index("ix_orion_sessions_used", "used_at"),
)


class SqlSessionStore:
    """Implements SessionStore; `SqlRunStore.sessions` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session: Session) -> Session:
        def work(connection: sa.Connection) -> Session:
            existing = _select_one(connection, session.id)
            if existing is None:
                connection.execute(sa.insert(_sessions).values(_to_row(session)))
            return existing or session

        try:
            return await self._database.call(work)
        except sa.exc.IntegrityError as exc:
            existing = await self.get(session.id)  # another process was quicker
            if existing is None:
                raise NameTakenError(session.name) from exc
            return existing

    async def get(self, session_id: SessionId) -> Session | None:
        return await self._database.call(lambda connection: _select_one(connection, session_id))

    async def update(
        self, session_id: SessionId, **changes: Unpack[SessionChanges]
    ) -> Session | None:
        def work(connection: sa.Connection) -> Session | None:
            connection.execute(
                sa.update(_sessions).where(_sessions.c.id == session_id).values(dict(changes))
            )
            return _select_one(connection, session_id)

        return await self._database.call(work)

    async def find(self, text: str) -> Sequence[Session]:
        named = await self._select(sa.select(_sessions).where(_sessions.c.name == text))
        if named or not text:
            return named
        begins = _sessions.c.id.startswith(text, autoescape=True)
        return await self._select(sa.select(_sessions).where(begins).limit(FOUND_LIMIT))

    async def all(self) -> Sequence[Session]:
        return await self._select(sa.select(_sessions).order_by(_sessions.c.used_at.desc()))

    async def unused_since(self, before: datetime, *, limit: int) -> Sequence[Session]:
        query = sa.select(_sessions).where(_sessions.c.used_at < before)
        return await self._select(query.order_by(_sessions.c.used_at).limit(limit))

    async def remove(self, session_id: SessionId) -> None:
        statement = sa.delete(_sessions).where(_sessions.c.id == session_id)
        await self._database.call(lambda connection: connection.execute(statement))

    async def _select(self, query: sa.Select[Any]) -> Sequence[Session]:
        rows = await self._database.call(
            lambda connection: connection.execute(query).mappings().all()
        )
        return [_from_row(dict(row)) for row in rows]


def _select_one(connection: sa.Connection, session_id: SessionId) -> Session | None:
    query = sa.select(_sessions).where(_sessions.c.id == session_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _from_row(dict(row))


def _to_row(session: Session) -> dict[str, Any]:
    thread = session.thread
    row = {
        column.name: getattr(session, column.name)
        for column in _sessions.columns
        if hasattr(session, column.name)
    }
    return row | {
        "team": thread.team,
        "channel": thread.channel,
        "thread_ts": thread.thread_ts,
        "extra": dict(session.extra),
    }


def _from_row(row: Mapping[str, Any]) -> Session:
    fields = dict(row)
    thread = Thread(**{name: fields.pop(name) for name in ("team", "channel", "thread_ts")})
    return Session(
        **fields
        | {
            "id": SessionId(row["id"]),
            "thread": thread,
            "status": SessionStatus(row["status"]),
        }
    )
