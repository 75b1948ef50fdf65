"""Raises the tables of the run store to this Orion's version."""

from app.config import Settings
from app.dispatch.lock import own_state_directory
from app.store.engines import sqlite_engine
from app.store.sql import migrate_store


def migrate(settings: Settings) -> str:
    """Raise it, all or nothing; says what was done. Does nothing when there is no database yet.

    Raises:
        StateDirectoryBusyError: Orion is running there.
        UnreadableStoreError: it cannot be raised; nothing has been changed.
    """
    path = settings.database_path
    with own_state_directory(settings.orion_state_dir):
        if not path.exists():
            return f"{path}: not there yet, `orion serve` makes it"
        before, after = migrate_store(sqlite_engine(path), str(path))
    return (
        f"{path}: version {after}, as before"
        if before == after
        else f"{path}: version {after}, raised from {before}"
    )
