"""Processes that dispatch the runs of one PostgreSQL database, and what they write down."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from app.runs.testing import Run, RunState, SystemClock
from app.store.runs import SqlRunStore, open_store
from tests.building import make_request
from tests.waiting import until


def new_run(number: int = 0, *, user: str = "U1") -> Run:
    request = make_request(ts=f"1795302364.{number:06}", user=user)
    return Run(id=request.run_id, request=request, created_at=SystemClock().now())


@asynccontextmanager
async def accepting(url: str) -> AsyncIterator[SqlRunStore]:
    """A process that accepts and places, and advances nothing."""
    async with open_store(url) as store:
        await store.leases.join()
        yield store
        await store.leases.leave()


async def accept(store: SqlRunStore, *runs: Run) -> None:
    for run in runs:
        await store.add(run)
        await store.leases.schedule(run.id, state=RunState.PLACED)


@dataclass(frozen=True, slots=True)
class Note:
    at: float
    pid: int
    what: str
    run_id: str


class Crowd:
    """Processes that work on one database, and what they wrote down."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._journal = directory / "journal"
        self._journal.touch()
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    def notes(self, what: str = "") -> Sequence[Note]:
        lines = [line.split() for line in self._journal.read_text().splitlines()]
        found = [Note(float(at), int(pid), kind, run_id) for at, pid, kind, run_id in lines]
        return [note for note in found if what in ("", note.what)]

    async def start(self, *, capacity: int = 4, hold_s: float = 0.0, url: str = "") -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.dispatch_process", url or self.url),
            *(str(self._journal), str(capacity), str(hold_s)),
        )
        self._processes[process.pid] = process
        await until(lambda: any(note.pid == process.pid for note in self.notes("ready")))
        return process.pid

    async def end(self, pid: int) -> int:
        """By SIGTERM; returns its exit code."""
        self._processes[pid].terminate()
        async with asyncio.timeout(20):
            return await self._processes[pid].wait()

    async def kill_all(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    def started_by(self) -> Mapping[str, Sequence[int]]:
        """Which processes began each run, in order."""
        found: dict[str, list[int]] = {}
        for note in self.notes("start"):
            found.setdefault(note.run_id, []).append(note.pid)
        return found

    def effects(self) -> Sequence[str]:
        return [note.run_id for note in self.notes("effect")]
