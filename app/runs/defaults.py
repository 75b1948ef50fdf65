"""What persons and channels want to be answered with when a message does not say it."""

from dataclasses import dataclass
from typing import Protocol, TypedDict

from typing_extensions import Unpack

from app.runs.options import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults(Wishes):
    """Of one person or channel."""

    model_agent: str = ""
    """Whose the model is: with another agent it does not count."""


class DefaultChanges(TypedDict, total=False):
    """Fields that may change."""

    agent: str
    model: str
    model_agent: str
    sandbox: str
    repo: str
    branch: str


class DefaultStore(Protocol):
    """By a team's id and the id of a person or channel of it. Every method is durable when it returns and safe to repeat."""

    async def get(self, team: str, owner: str) -> Defaults:
        """All empty when nothing is stored."""
        ...

    async def change(self, team: str, owner: str, **changes: Unpack[DefaultChanges]) -> None:
        """Set these fields; the others stay."""
        ...

    async def reset(self, team: str, owner: str) -> None:
        """Forget all."""
        ...
