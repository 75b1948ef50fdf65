"""People's own keys in SQLite or PostgreSQL, beside the run records: sealed, so that the database alone tells none."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.log import get_logger
from app.store import schema
from app.store.columns import AnyText
from app.store.database import Database

_own_keys = sa.Table(
    "orion_own_keys",
    schema.metadata,
    sa.Column("team", sa.String(32), primary_key=True),
    sa.Column("person", sa.String(32), primary_key=True),
    sa.Column("protocol", sa.String(16), primary_key=True),
    sa.Column("sealed", AnyText, nullable=False),
)

_log = get_logger(__name__)


class SqlOwnKeyStore:
    """Implements OwnKeyStore."""

    def __init__(self, database: Database, *, secrets: Sequence[str]) -> None:
        """`secrets`: random texts of 32 characters or more; the first seals, each opens what it has sealed before."""
        self._database = database
        self._seal = MultiFernet([_fernet(secret) for secret in secrets])

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        query = sa.select(_own_keys.c.protocol, _own_keys.c.sealed).where(_is(team, person))
        rows = await self._database.call(lambda connection: connection.execute(query).all())
        return {row.protocol: self._open((team, person, row.protocol), row.sealed) for row in rows}

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        rows = [
            {
                "team": team,
                "person": person,
                "protocol": protocol,
                "sealed": self._close((team, person, protocol), key),
            }
            for protocol, key in keys.items()
            if key
        ]
        removal = sa.delete(_own_keys).where(_is(team, person), _own_keys.c.protocol.in_(keys))

        def work(connection: sa.Connection) -> None:
            connection.execute(removal)
            if rows:
                connection.execute(sa.insert(_own_keys), rows)

        try:
            await self._database.call(work)
        except sa.exc.IntegrityError:  # another process was quicker
            await self._database.call(work)

    def _close(self, place: tuple[str, str, str], key: str) -> str:
        # With its place: a row that somebody has copied to another person's does not open there.
        return self._seal.encrypt(json.dumps([*place, key]).encode()).decode()

    def _open(self, place: tuple[str, str, str], sealed: str) -> str:
        try:
            *found, key = json.loads(self._seal.decrypt(sealed.encode()))
        except InvalidToken:
            found, key = [], ""
        if tuple(found) != place:
            _log.warning("own_key.unreadable", user=place[1], protocol=place[2])
            return ""
        return str(key)


class MemoryOwnKeyStore:
    """The same contract, for tests."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], dict[str, str]] = {}

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        return dict(self._keys.get((team, person), {}))

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        changed = {**self._keys.get((team, person), {}), **keys}
        self._keys[team, person] = {name: key for name, key in changed.items() if key}


def read_secrets(text: str) -> Sequence[str]:
    """What ORION_OWN_KEYS_SECRET names: one secret, or several separated by commas, the newest first."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _fernet(secret: str) -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"orion own keys").derive(
        secret.encode()
    )
    return Fernet(urlsafe_b64encode(key))


def _is(team: str, person: str) -> sa.ColumnElement[bool]:
    return (_own_keys.c.team == team) & (_own_keys.c.person == person)
