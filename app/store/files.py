"""What runs leave besides their records, in SQLite or PostgreSQL."""

import sqlalchemy as sa

from app.runs.model import RunId
from app.runs.run_store import RunFileKind
from app.store import schema
from app.store.columns import AnyText
from app.store.database import Database

files_table = sa.Table(
    "orion_run_files",
    schema.metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("content", AnyText, nullable=False),
)


class SqlRunFiles:
    """Implements RunFiles; `SqlRunStore.files` is one. Removing a run removes its files."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, run_id: RunId, kind: RunFileKind, content: str) -> None:
        key = (files_table.c.run_id == run_id) & (files_table.c.kind == kind)

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.delete(files_table).where(key))
            connection.execute(
                sa.insert(files_table).values(run_id=run_id, kind=kind, content=content)
            )

        await self._database.call(work)

    async def load(self, run_id: RunId, kind: RunFileKind) -> str:
        query = sa.select(files_table.c.content).where(
            files_table.c.run_id == run_id, files_table.c.kind == kind
        )
        return await self._database.call(lambda connection: connection.scalar(query)) or ""
