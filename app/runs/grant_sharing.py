"""What the processes on one database tell each other of the grants of their runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.runs.model import ModelCall, RunId
from app.runs.ports import ModelGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCall:
    """A model call of a run that another process executes."""

    id: str
    run_id: RunId
    call: ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantNews:
    """What other processes have let through for runs of this one."""

    calls: tuple[ReportedCall, ...] = ()
    effects: frozenset[RunId] = frozenset()
    """Runs that may have changed something outside; again and again while their grants are open."""


class GrantStore(Protocol):
    """Open grants by their runs' ids, where all processes on a database find them; without keys.

    Raises OSError where the database does not answer. Every method is safe to repeat.
    """

    async def open(self, grant: ModelGrant, *, process: str) -> None:
        """Lets others find a grant of this process, in place of an earlier one of the same run."""
        ...

    async def find(self, run_id: RunId) -> ModelGrant | None: ...

    async def report(self, calls: Sequence[ReportedCall]) -> Collection[str]:
        """Tells the processes that have opened their grants; returns the ids of calls whose grant is closed, which nobody takes."""
        ...

    async def note_effect(self, run_id: RunId) -> bool:
        """Records, with the run too, that it may change something outside; False when its grant is closed."""
        ...

    async def take(self, process: str) -> GrantNews:
        """Returns what is reported of this process's grants; each call once."""
        ...

    async def close(self, run_id: RunId, *, process: str) -> GrantNews:
        """Closes a grant, unless another process has opened it anew; returns what `take` has not."""
        ...
