"""Who was allowed or refused what, for the operator."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from app.audit.records import AuditEntry, AuditQuery
from app.cli.commands.runs import open_records
from app.settings.settings import Settings


async def find_entries(settings: Settings, query: AuditQuery) -> Sequence[AuditEntry]:
    """Returns entries, the newest first."""
    async with open_records(settings) as store:
        return await store.audit.find(query)


def as_row(entry: AuditEntry) -> Mapping[str, object]:
    """Returns an entry's fields, as JSON has them."""
    return asdict(entry) | {"at": entry.at.isoformat()}


def line_of(row: Mapping[str, object]) -> str:
    """Returns a row as a line for people."""
    word = "allowed" if row["is_allowed"] else "refused"
    place = row["channel"] or "-"
    what = " ".join(filter(None, (str(row["act"]), str(row["target"]))))
    return f"{str(row['at'])[:19]}  {word}  {row['user']:12} {place:12} {what}: {row['reason']}  {row['run_id']}".rstrip()
