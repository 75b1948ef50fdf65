"""What makes the processes on one database one Orion: its name at sandbox providers, the key of run tokens, the secret of people's keys."""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import sqlalchemy as sa

from app.store.engine import Database, UnreadableStoreError
from app.store.tables import insert_for, installation

_ONLY = 1
NAMESPACE_BYTES, KEY_BYTES = 5, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    namespace: str
    """The name by which providers know the sandboxes of all its processes."""
    signing_key: bytes = field(repr=False)
    """Of run tokens: one that a process has made is good at all."""


class SqlInstallation:
    """`SqlRunStore.installation` is one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Installation:
        """Returns what all processes on this database share; whoever comes first makes it."""
        row = {
            "id": _ONLY,
            "namespace": f"s{secrets.token_hex(NAMESPACE_BYTES)}",
            "signing_key": secrets.token_hex(KEY_BYTES),
            "own_keys_check": "",
        }

        def work(connection: sa.Connection) -> Installation:
            connection.execute(insert_for(connection, installation).on_conflict_do_nothing(), row)
            found = connection.execute(sa.select(installation)).one()
            return Installation(
                namespace=found.namespace, signing_key=bytes.fromhex(found.signing_key)
            )

        return await self._database.call(work)

    async def check_own_keys(self, texts: Sequence[str], *, adopts: bool) -> None:
        """Sees that this process has the secret of the others, if they have one; `adopts`: makes the first of `texts` the one to have.

        Raises:
            UnreadableStoreError: it has another one, or none, so keys that people have given would not be used at one process or the other.
        """
        checks = [_check_of(text) for text in texts]
        await self.load()

        def work(connection: sa.Connection) -> None:
            known = connection.scalar(sa.select(installation.c.own_keys_check).with_for_update())
            if known and not checks:
                raise UnreadableStoreError(
                    f"ORION_OWN_KEYS_SECRET is missing, with which other processes seal people's keys in {self._database.name}",
                    "give all the same; how to do without, stands in docs/operate.md",
                )
            if known and known not in checks:
                raise UnreadableStoreError(
                    f"ORION_OWN_KEYS_SECRET is not the one with which other processes seal people's keys in {self._database.name}",
                    "give all the same; how to change it, or to begin anew, stands in docs/operate.md",
                )
            if checks and adopts:
                connection.execute(sa.update(installation).values(own_keys_check=checks[0]))

        await self._database.call(work)


def _check_of(text: str) -> str:
    """Returns what is stored to tell one secret from another; a secret has 32 random characters or more, so it cannot be guessed from this."""
    return hmac.new(text.encode(), b"orion own keys check", sha256).hexdigest()
