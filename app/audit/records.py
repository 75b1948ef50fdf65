"""An entry for each decision about a person, which nobody changes afterwards, and the log that they are in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Act(StrEnum):
    """What somebody wanted to do."""

    ASK = "ask"
    """Have a message answered, also once more, or go on with a pull request."""
    SETTINGS = "settings"
    """Change what they, or all of a channel, get."""
    MEMORY = "memory"
    """Change what Orion remembers in a channel."""
    OWN_KEYS = "own-keys"
    LINK = "link"
    """Link an account, or unlink it."""
    STOP = "stop"
    """End what somebody else has asked."""
    APPROVE = "approve"
    """Say yes or no to what an agent is about to do, or answer its question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    id: str
    """The same of the same decision, made again after a crash or told twice by Slack: it is one entry."""
    at: datetime
    team: str
    channel: str
    """Empty where it is about none."""
    user: str
    """Of Slack; `operator` = from the command line."""
    act: Act
    target: str
    """What it was about, masked: `agent=claude`, `push acme/api`, the id of whoever had asked; may be empty."""
    is_allowed: bool
    reason: str
    """By what it was allowed, or why it was not: lower case, no full stop."""
    run_id: str
    """Empty where it is about none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which entries are meant; what is empty or None is any."""

    since: datetime | None = None
    user: str = ""
    channel: str = ""
    act: Act | None = None
    run_id: str = ""
    """Or its beginning."""
    is_allowed: bool | None = None
    limit: int = 100
    """1 to 10,000: all are read at once."""


class AuditLog(Protocol):
    """Entries. Each method is durable when it returns, and safe to repeat. Raises OSError where the database does not answer."""

    async def add(self, entry: AuditEntry) -> None:
        """Keeps an entry; nothing happens where there is one of its id."""
        ...

    async def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """Returns entries, the newest first."""
        ...

    async def remove(self, *, before: datetime, limit: int) -> int:
        """Removes the oldest of before then; returns how many, `limit` at most."""
        ...
