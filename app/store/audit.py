"""Entries of the audit log, in SQLite, in PostgreSQL, and in memory."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app.audit.records import AuditEntry, AuditQuery
from app.store.engine import Database
from app.store.tables import audit, insert_for, values_of

_FIELDS = tuple(field.name for field in fields(AuditEntry))


class SqlAuditLog:
    """Implements AuditLog; `SqlRunStore.audit` is one."""

    def __init__(self, database: Database) -> None:
        self._call = database.call

    async def add(self, entry: AuditEntry) -> None:
        await self._call(lambda connection: add_entry(connection, entry))

    async def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        columns = audit.c
        meant = {"user": query.user, "channel": query.channel}
        conditions = [columns[name] == value for name, value in meant.items() if value]
        if query.run_id:
            conditions.append(columns.run_id.startswith(query.run_id, autoescape=True))
        if query.since is not None:
            conditions.append(columns.at >= query.since)
        if query.act is not None:
            conditions.append(columns.act == query.act)
        if query.is_allowed is not None:
            conditions.append(columns.is_allowed == query.is_allowed)
        newest = sa.select(audit).where(*conditions).order_by(columns.at.desc(), columns.id)
        rows = await self._call(
            lambda connection: connection.execute(newest.limit(query.limit)).mappings().all()
        )
        return [AuditEntry(**{name: row[name] for name in _FIELDS}) for row in rows]

    async def remove(self, *, before: datetime, limit: int) -> int:
        old = sa.select(audit.c.id).where(audit.c.at < before).order_by(audit.c.at).limit(limit)
        removed = sa.delete(audit).where(audit.c.id.in_(old))
        return await self._call(lambda connection: connection.execute(removed).rowcount)


def add_entry(connection: sa.Connection, entry: AuditEntry) -> None:
    """Keeps an entry in a transaction of something else."""
    insert: Any = insert_for(connection, audit)
    connection.execute(insert.on_conflict_do_nothing(), values_of(entry))


class MemoryAuditLog:
    """Implements AuditLog for as long as its process lives; `MemoryRunStore.audit` is one."""

    def __init__(self) -> None:
        self._entries: dict[str, AuditEntry] = {}

    async def add(self, entry: AuditEntry) -> None:
        self._entries.setdefault(entry.id, entry)

    async def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        found = [entry for entry in self._entries.values() if _is_meant(entry, query)]
        newest = sorted(found, key=lambda entry: entry.id)
        newest.sort(key=lambda entry: entry.at, reverse=True)
        return newest[: query.limit]

    async def remove(self, *, before: datetime, limit: int) -> int:
        old = [entry for entry in self._entries.values() if entry.at < before]
        oldest = sorted(old, key=lambda entry: entry.at)[:limit]
        for entry in oldest:
            del self._entries[entry.id]
        return len(oldest)


def _is_meant(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        query.user in ("", entry.user)
        and query.channel in ("", entry.channel)
        and entry.run_id.startswith(query.run_id)
        and query.act in (None, entry.act)
        and query.is_allowed in (None, entry.is_allowed)
        and (query.since is None or entry.at >= query.since)
    )
