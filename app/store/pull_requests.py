"""Pull requests that are looked after, in SQLite, in PostgreSQL, and in memory."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from app.pull_requests.records import CLAIM_S, PullRequest
from app.store.engine import Database
from app.store.leases import SqlLeases, later
from app.store.tables import Now, insert_for, processes, pull_requests, values_of

_OF_PUSH: Final = (
    "run_id",
    "asker",
    "is_external",
    "is_bot",
    "acting_for",
    "pushed_at",
    "next_at",
)
"""What `open` writes of one that is known."""
_OF_LOOK: Final = (
    "state",
    "head",
    "red_since",
    "green_since",
    "is_unseen",
    "told",
    "notices",
    "rounds",
    "is_tidied",
    "next_at",
)
"""What `save` writes."""


class SqlPullRequestStore:
    """Implements PullRequestStore; `SqlRunStore.pull_requests` is one."""

    def __init__(self, database: Database, leases: SqlLeases) -> None:
        """`leases`: by which it is known which processes live."""
        self._call = database.call
        self._leases = leases

    async def open(self, pull: PullRequest) -> None:
        def work(connection: sa.Connection) -> None:
            first = insert_for(connection, pull_requests).values(values_of(pull))
            pushed = {name: first.excluded[name] for name in _OF_PUSH}
            connection.execute(first.on_conflict_do_update(index_elements=["id"], set_=pushed))

        await self._call(work)

    async def get(self, pull_id: str) -> PullRequest | None:
        query = sa.select(pull_requests).where(pull_requests.c.id == pull_id)
        found = await self._call(lambda connection: _all(connection, query))
        return found[0] if found else None

    async def claim(self, *, limit: int) -> Sequence[PullRequest]:
        claimed_until = pull_requests.c.claimed_until
        lives = sa.exists().where(processes.c.id == pull_requests.c.claimed_by)
        is_free = claimed_until.is_(None) | (claimed_until <= Now()) | ~lives
        is_due = (pull_requests.c.next_at <= Now()) & is_free
        due = (
            sa.select(pull_requests.c.id)
            .where(is_due)
            .order_by(pull_requests.c.next_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        claimed = sa.update(pull_requests).where(pull_requests.c.id.in_(due))
        values = {
            "claimed_until": later(CLAIM_S),
            "claimed_by": self._leases.id,
            "claim": secrets.token_hex(8),
        }
        returned = claimed.values(values).returning(*pull_requests.c)
        found = await self._call(lambda connection: _all(connection, returned))
        return sorted(found, key=_due_at)

    async def save(self, pull: PullRequest, *, release: bool = False) -> bool:
        values = values_of(pull)
        changes: dict[str, Any] = {name: values[name] for name in _OF_LOOK}
        if release:
            changes |= {"claimed_until": None, "claim": ""}
        own = (pull_requests.c.id == pull.id) & (pull_requests.c.claim == pull.claim)
        same_push = own & (pull_requests.c.pushed_at == pull.pushed_at)
        # Somebody may have pushed meanwhile: then it is due already.
        anew = changes | {"next_at": pull_requests.c.next_at}

        def work(connection: sa.Connection) -> bool:
            return any(
                connection.execute(sa.update(pull_requests).where(where).values(what)).rowcount
                for where, what in ((same_push, changes), (own, anew))
            )

        return await self._call(work)


class MemoryPullRequestStore:
    """Implements PullRequestStore for as long as its process lives; `MemoryRunStore.pull_requests` is one."""

    def __init__(self) -> None:
        self._rows: dict[str, PullRequest] = {}
        self._claimed_until: dict[str, datetime] = {}

    async def open(self, pull: PullRequest) -> None:
        known = self._rows.get(pull.id)
        self._rows[pull.id] = replace(known, **_part(pull, _OF_PUSH)) if known else pull

    async def get(self, pull_id: str) -> PullRequest | None:
        return self._rows.get(pull_id)

    async def claim(self, *, limit: int) -> Sequence[PullRequest]:
        now = datetime.now(UTC)
        free = [
            pull
            for pull in self._rows.values()
            if pull.next_at is not None
            and pull.next_at <= now
            and self._claimed_until.get(pull.id, now) <= now
        ]
        due = [
            replace(pull, claim=secrets.token_hex(8)) for pull in sorted(free, key=_due_at)[:limit]
        ]
        for pull in due:
            self._rows[pull.id] = pull
            self._claimed_until[pull.id] = now + timedelta(seconds=CLAIM_S)
        return due

    async def save(self, pull: PullRequest, *, release: bool = False) -> bool:
        known = self._rows.get(pull.id)
        if known is None or known.claim != pull.claim:
            return False
        saved = replace(known, **_part(pull, _OF_LOOK))
        if known.pushed_at != pull.pushed_at:
            saved = replace(saved, next_at=known.next_at)
        self._rows[pull.id] = replace(saved, claim="") if release else saved
        if release:
            self._claimed_until.pop(pull.id, None)
        return True


def _due_at(pull: PullRequest) -> float:
    return pull.next_at.timestamp() if pull.next_at is not None else 0.0


def _part(pull: PullRequest, names: Sequence[str]) -> Mapping[str, Any]:
    return {name: getattr(pull, name) for name in names}


def _all(connection: sa.Connection, query: sa.Executable) -> Sequence[PullRequest]:
    rows = connection.execute(query).mappings()
    return [PullRequest(**{name: row[name] for name in _FIELDS}) for row in rows]


_FIELDS = tuple(field.name for field in fields(PullRequest))
