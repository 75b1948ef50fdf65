"""Stores in memory that fail, as those of a sick database do."""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle

from typing_extensions import Unpack, override

from app.runs.testing import (
    UNFINISHED_STATES,
    Run,
    RunChanges,
    RunId,
    RunState,
    Session,
    SessionId,
    SpentCall,
    Thread,
)
from app.store.memory import MemoryOwnKeyStore, MemoryRunStore, MemorySpendingStore
from app.store.sessions import MemorySessionStore
from tests.building import saying


class SickRunStore(MemoryRunStore):
    """Fails its first updates, with each of `failures` once."""

    def __init__(self, *failures: Exception, column: str = "") -> None:
        """`column`: only updates that change it fail; empty = all."""
        super().__init__()
        self.failures = list(failures)
        self._column = column

    @override
    async def update(
        self,
        run_id: RunId,
        *,
        while_in: Collection[RunState] = UNFINISHED_STATES,
        **changes: Unpack[RunChanges],
    ) -> Run:
        self._fail({*changes})
        return await super().update(run_id, while_in=while_in, **changes)

    @override
    async def begin(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        self._fail({*changes, "state", "attempt"})
        return await super().begin(run, **changes)

    def _fail(self, columns: set[str]) -> None:
        if self.failures and (not self._column or self._column in columns):
            raise self.failures.pop()


class UnreadableRunStore(MemoryRunStore):
    """Fails every second time when a thread is read, or what a run has spent; the first time, too."""

    def __init__(self) -> None:
        super().__init__()
        self.spending = _UnreadableSpendingStore()
        self._is_locked = cycle((True, False))

    @override
    async def of_thread(self, thread: Thread) -> Sequence[Run]:
        if next(self._is_locked):
            raise OSError("locked")
        return await super().of_thread(thread)


class _UnreadableSpendingStore(MemorySpendingStore):
    def __init__(self) -> None:
        super().__init__()
        self._is_locked = cycle((True, False))

    @override
    async def of_run(self, run_id: RunId) -> Sequence[SpentCall]:
        if next(self._is_locked):
            raise OSError("locked")
        return await super().of_run(run_id)


class EditingRunStore(MemoryRunStore):
    """Amends the message of the first run that begins, in the moment before it does."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._edits = [text]

    @override
    async def begin(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        if self._edits:
            assert await self.amend(run.id, saying(self._edits.pop()))
        return await super().begin(run, **changes)


class SickSessionStore(MemorySessionStore):
    """Finds nothing while it is sick."""

    is_sick = False

    @override
    async def get(self, session_id: SessionId) -> Session | None:
        if self.is_sick:
            raise OSError("the database is away")
        return await super().get(session_id)


class SickOwnKeyStore(MemoryOwnKeyStore):
    """Fails its first reads, with each of `failures` once."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    @override
    async def of(self, team: str, person: str) -> Mapping[str, str]:
        if self.failures:
            raise self.failures.pop()
        return await super().of(team, person)
