"""The store of runs and of what they leave, as the core needs it; adapters implement it."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypedDict

from typing_extensions import Unpack

from app.errors import ErrorCode
from app.runs.model import (
    UNFINISHED_STATES,
    Changes,
    Resumption,
    Run,
    RunId,
    RunState,
    Standing,
    Thread,
    Usage,
)


class RunChanges(TypedDict, total=False):
    """Fields of a run record that may change."""

    state: RunState
    placed_at: datetime
    started_at: datetime
    deadline_at: datetime
    ended_at: datetime
    reply_ts: str
    part_ts: tuple[str, ...]
    attempt: int
    agent: str
    model: str
    provider: str
    sandbox_id: str | None
    event_offset: int
    outcome: RunState
    answer: str
    duration_s: float
    steps: int
    error_code: ErrorCode | None
    error_detail: str
    delivery: str
    usage: Usage
    resumed: Resumption | None
    cost_usd: float | None
    has_outside_effect: bool
    changes: Changes | None
    trace_id: str


class RunFileKind(StrEnum):
    """What a run leaves besides its record."""

    LOG = "log"
    """What its agent printed; masked."""
    PATCH = "patch"
    """What it did to the files; masked."""


class RunFiles(Protocol):
    """Texts of at most some hundred kilobytes, kept as long as the run's record."""

    async def save(self, run_id: RunId, kind: RunFileKind, content: str) -> None:
        """Store it in place of an earlier one."""
        ...

    async def load(self, run_id: RunId, kind: RunFileKind) -> str:
        """Empty when there is none."""
        ...


class RunStore(Protocol):
    """Run records. Every method is durable when it returns and safe to repeat."""

    async def add(self, run: Run) -> tuple[Run, bool]:
        """Insert it, or give back the record of that id untouched. The flag says whether it was inserted."""
        ...

    async def get(self, run_id: RunId) -> Run | None: ...

    async def update(
        self,
        run_id: RunId,
        *,
        while_in: Collection[RunState] = UNFINISHED_STATES,
        **changes: Unpack[RunChanges],
    ) -> Run:
        """Change fields of an unfinished run, in one of these states, and return the record; in another it stays as it is.

        A finished run never changes.

        Raises:
            KeyError: no such run.
        """
        ...

    async def request_stop(self, run_id: RunId, *, user: str, at: datetime) -> bool:
        """Record the wish once; False when the run is unknown, ended, or was asked to stop already."""
        ...

    async def stop_requested(self, run_ids: Sequence[RunId]) -> Mapping[RunId, str]:
        """Those of the given runs that shall stop, with the user who asked."""
        ...

    async def amend(self, run_id: RunId, *, text: str) -> bool:
        """Change what was asked; False when the run is unknown, has begun or has ended."""
        ...

    async def stopped_waiting(self) -> Sequence[Run]:
        """Unfinished runs that shall stop and never began; their thinking message stands."""
        ...

    async def unfinished(self) -> Sequence[Run]:
        """Oldest first."""
        ...

    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        """All runs of a thread in the order of their messages."""
        ...

    async def standing(self, run: Run, *, since: datetime, capacity: int) -> Standing:
        """How a stored run stands: its asker's runs since then, and what it waits for when `capacity` may go at once."""
        ...

    async def remove_ended(self, *, before: datetime, limit: int) -> int:
        """Remove up to `limit` finished runs that ended before then, oldest first, a few at a time; returns how many.

        A run that is unfinished stays, however old.
        """
        ...

    async def recent(self, *, limit: int) -> Sequence[Run]:
        """Newest first."""
        ...

    async def counts(self) -> Mapping[RunState, int]:
        """Runs by state."""
        ...

    async def deliveries(self) -> Mapping[str, int]:
        """Ended runs by whether the thread was told: `sent`, or `failed(reason)`."""
        ...
