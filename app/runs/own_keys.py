"""Keys for models that people give Orion for their own requests, in place of the operator's."""

from collections.abc import Mapping
from typing import Protocol

BUTTON = "Your model keys"
"""Below Orion's answer to `settings`."""
HOW_TO_CHANGE = f"write settings and press {BUTTON} to change it or take it back"
HOW_TO_GIVE = f"write settings and press {BUTTON} to give one of your own"


class OwnKeyStore(Protocol):
    """By a team's id and a person's; each key by the name of the `ModelProtocol` that it is for."""

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        """The keys; an empty one is kept, but cannot be read any more, as it was sealed with another secret."""
        ...

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        """Keep these, and forget those that are empty; the others stay. Durable when it returns, safe to repeat."""
        ...


class NoOwnKeys:
    """Implements OwnKeyStore where nobody may have any."""

    async def of(self, team: str, person: str) -> Mapping[str, str]:
        del team, person
        return {}

    async def change(self, team: str, person: str, keys: Mapping[str, str]) -> None:
        raise NotImplementedError("nobody may have keys of their own here")
