"""What is known of Slack threads, in SQLite or PostgreSQL, beside the run records."""

from datetime import datetime

import sqlalchemy as sa

from app.runs.request import Thread
from app.store.engine import Database
from app.store.tables import insert_for, muted_threads, runs


class SqlThreadStore:
    """Implements ThreadStore; `SqlRunStore.threads` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def has_run(self, thread: Thread) -> bool:
        query = sa.select(runs.c.id).where(runs.c.thread_key == thread.key).limit(1)
        return await self._database.call(lambda connection: connection.scalar(query)) is not None

    async def mute(self, thread: Thread, *, user: str, ts: str, is_muted: bool) -> bool:
        said = {"is_muted": is_muted, "user": user, "message_ts": ts}

        def work(connection: sa.Connection) -> bool:
            # Slack's ts are of one length, so that their order as texts is that of their times.
            insert = insert_for(connection, muted_threads).values(thread_key=thread.key, **said)
            later = insert.on_conflict_do_update(
                index_elements=[muted_threads.c.thread_key],
                set_=said,
                where=muted_threads.c.message_ts < insert.excluded.message_ts,
            )
            heard = later.returning(muted_threads.c.thread_key)
            return connection.scalar(heard) is not None

        return await self._database.insert(work)

    async def is_muted(self, thread: Thread) -> bool:
        query = sa.select(muted_threads.c.is_muted).where(muted_threads.c.thread_key == thread.key)
        return bool(await self._database.call(lambda connection: connection.scalar(query)))


def forget_threads(connection: sa.Connection, *, before: datetime) -> None:
    """Removes what was said before then of threads that have no run any more."""
    has_run = sa.exists().where(runs.c.thread_key == muted_threads.c.thread_key)
    is_old = muted_threads.c.message_ts < f"{before.timestamp():.6f}"
    connection.execute(sa.delete(muted_threads).where(is_old, ~has_run))
