"""Dispatches durably with DBOS, which nothing outside this package imports.

Shallow use on purpose: two workflows without recorded steps, all state in the run record, so that a workflow may simply be
run again after a crash. DBOS gives the durable enqueue, deduplication by workflow id, order per thread, and recovery at start.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, EnqueueOptions, error

from app.dispatch.acceptance import SUBMIT_TIMEOUT_S, Enqueuer, JsonSerializer
from app.dispatch.fair_queue import FairScheduler
from app.runs.model import Run, RunId, RunRequest
from app.runs.ports import AgainIn, EngineState, RunHandlers
from app.store.engine import WalConnection, name_of, postgres_engine, sqlite_engine

EXECUTOR_ID = "orion"
"""Constant on SQLite: one process owns the database, and at start it recovers what its predecessor left."""
POSTGRES_CONNECTIONS = 8
"""Of the engine in one process; runs need it at their begin and end only, and a server has 100 for all processes by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDatabase:
    name: str
    """What the operator calls it; a path, or a URL without its password."""
    config: DBOSConfig
    """The engine's settings that depend on the database."""
    open_accepting: Callable[[], sa.Engine]
    """One connection for acceptances alone, whose commits survive a power loss."""
    open_scheduling: Callable[[], sa.Engine]
    """One for runs that are enqueued. Nobody was promised those yet: a power loss takes the newest commits in order, and with a run's
    also the end of its placement, which is then done again."""
    executor_id: str
    is_shared: bool
    """Other processes work on it too, so what this one leaves behind is for them."""


def describe_database(location: Path | str) -> EngineDatabase:
    """Returns how to use a location: the path of an SQLite file, whose directory is made, or a `postgresql://…` URL."""
    if isinstance(location, Path):
        location.parent.mkdir(parents=True, exist_ok=True)
        return _sqlite(location)
    return _postgres(location)


@contextmanager
def map_launch_errors(database: EngineDatabase) -> Iterator[None]:
    """Maps what the start of the engine raises: whatever its database does.

    Raises:
        OSError: its tables cannot be used; which, why, and what to do. The engine is gone again.
    """
    logger = logging.getLogger("dbos")
    logger.addFilter(_without_stack)  # it logs the stack of what it raises
    try:
        yield
    except (sa.exc.SQLAlchemyError, error.DBOSException) as exc:
        DBOS.destroy()
        reason = str(getattr(exc, "orig", exc)).partition("\n")[0]
        raise OSError(
            f"the engine's tables in {database.name} cannot be used ({reason}): "
            "put a copy of the database back, or move it away to begin anew"
        ) from exc
    finally:
        logger.removeFilter(_without_stack)


def _without_stack(record: logging.LogRecord) -> bool:
    return not record.exc_info


def _sqlite(path: Path) -> EngineDatabase:
    return EngineDatabase(
        name=name_of(path),
        config={
            "name": "orion",
            "system_database_url": f"sqlite:///{path}",
            # More connections would only fight for SQLite's one write lock, asleep in its busy handler.
            "sys_db_pool_size": 1,
            "db_engine_kwargs": {"connect_args": {"factory": WalConnection}},
        },
        open_accepting=partial(sqlite_engine, path, connection=_AcceptingConnection),
        open_scheduling=partial(sqlite_engine, path, connection=_EnqueuingConnection),
        executor_id=EXECUTOR_ID,
        is_shared=False,
    )


def _postgres(url: str) -> EngineDatabase:
    open_single = partial(postgres_engine, url, connections=1, timeout_s=SUBMIT_TIMEOUT_S)
    return EngineDatabase(
        name=name_of(url),
        config={
            "name": "orion",
            "system_database_url": url,
            "sys_db_pool_size": POSTGRES_CONNECTIONS,
        },
        open_accepting=open_single,
        open_scheduling=open_single,
        # Unique: a process that shared its id with another would take over that one's running workflows at its start.
        executor_id=f"{EXECUTOR_ID}-{uuid.uuid4().hex}",
        is_shared=True,
    )


class _EnqueuingConnection(WalConnection):
    """Waits for nobody.

    Without a busy timeout SQLite says at once that the write lock is taken; with one it would sleep up to 0.1 s between
    looks, and be overtaken meanwhile. Checkpoints, which may take a slow disk half a second, are left to the others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA busy_timeout=0")
        self.execute("PRAGMA wal_autocheckpoint=0")


class _AcceptingConnection(_EnqueuingConnection):
    """Keeps what was acknowledged through a power loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - sqlite3's own signature
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous=FULL")


APPLICATION_VERSION = "1"
"""Raise it only when the number or order of recorded steps changes: DBOS strands the rows of other versions.

Its default, a hash of the workflows' source, would strand them at every edit.
"""
PLACE_QUEUE, RUN_QUEUE = "orion-place", "orion-run"
PLACE_WORKFLOW, RUN_WORKFLOW = "orion.place", "orion.run"
PLACE_CONCURRENCY = 16
"""More would only queue for the one connection, and for the interpreter's lock, which acknowledgements need as well."""
POLL_INTERVAL_S = 0.1
"""DBOS polls its queues; at 0.1 s both cost 12 % of a slow core when idle, and a run starts after 81 ms median (measured)."""
PLACE_INTERVAL_S, RUN_INTERVAL_S = 0.05, 0.1
"""Between two placings, and between two runs: 20 and 10 a second; Slack delivers 8 (30,000 events per workspace and hour).

With 33 and 20 a second the loop is full, and acknowledgements wait (p99 up to 90 ms instead of 30).
"""
MAX_CLAIMED = 1000
"""Runs that the engine hands over beyond those that have a slot; people take turns among them.

The engine's own order is no queue: when it may not claim all, it takes threads at random (dbos 3.4,
start_queued_partitioned_workflows, read 2026-11).
"""
MAX_PLACE_RECOVERIES = 3
MAX_RUN_CLAIMS = 1000
"""The engine counts claims, and so restarts during which a run only waited for a slot. Executions are counted in the
run record, which ends a run after three; this only bounds what no record can.
"""
EXECUTOR_THREADS = 16
CLEANUP_TIMEOUT_S = 20.0
"""For the cancelled runs to destroy their sandboxes."""
LOST_WINDOW = timedelta(days=2)
ACTIVE = ("ENQUEUED", "PENDING", "DELAYED")
FAILED = ("ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
ENDED = ("SUCCESS", *FAILED)
REMOVED_AT_ONCE, REMOVAL_PAUSE_S = 100, 0.1
"""Old rows in one transaction, and the time left to others before the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    handlers: RunHandlers
    scheduler: FairScheduler


_serving: _Serving | None = None
"""DBOS keeps one registry of functions per process, filled at import: the workflows find the service here."""
_executing: set[asyncio.Task[Any]] = set()
_is_draining = False


class _Pace:
    """Spreads what begins at once over time: the acknowledgements of other messages share the loop with it."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next = 0.0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        start = max(now, self._next)
        self._next = start + self._interval_s
        await asyncio.sleep(start - now)


_placing = _Pace(PLACE_INTERVAL_S)


@DBOS.workflow(name=PLACE_WORKFLOW, max_recovery_attempts=MAX_PLACE_RECOVERIES)
async def _place(request: dict[str, Any]) -> None:
    with _tracked():
        await _until_admitted()
        await _placing.wait()
        await _service().handlers.place(RunRequest.model_validate(request))


@DBOS.workflow(name=RUN_WORKFLOW, max_recovery_attempts=MAX_RUN_CLAIMS)
async def _run(run_id: str) -> None:
    with _tracked():
        await _until_admitted()
        handlers, scheduler = _service().handlers, _service().scheduler
        async with scheduler.hold_slot(RunId(run_id), handlers.request_slot):
            while isinstance(again := await handlers.advance(RunId(run_id)), AgainIn):  # noqa: ASYNC110 - told when, not polling
                await asyncio.sleep(again.seconds)


@contextmanager
def _tracked() -> Iterator[None]:
    """DBOS neither cancels its workflows at shutdown nor waits for their cleanup (dbos 3.4, seen); `stop` does."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - inside a coroutine there is one
    _executing.add(task)
    try:
        yield
    finally:
        _executing.discard(task)


async def _until_admitted() -> None:
    """Returns at once, but not while the service drains: what the engine claims then waits to be cancelled, for the next process."""
    if _is_draining:
        await asyncio.Event().wait()


def _service() -> _Serving:
    if _serving is None:
        raise RuntimeError("a workflow ran before the dispatcher was started")
    return _serving


class DurableDispatcher:
    """DBOS on an SQLite file or a PostgreSQL URL. One per process.

    On SQLite the caller holds the state directory's lock before `start`. On PostgreSQL an orderly `stop` hands what still
    ran to whoever is there; nobody yet takes over what a process leaves that dies.
    """

    def __init__(
        self, location: Path | str, *, capacity: int, poll_interval_s: float = POLL_INTERVAL_S
    ) -> None:
        self._poll_interval_s = poll_interval_s
        self._database = describe_database(location)
        self._capacity = capacity
        self._acceptor: Enqueuer | None = None
        self._scheduler: Enqueuer | None = None

    async def start(self, handlers: RunHandlers) -> None:
        global _serving  # noqa: PLW0603 - see its docstring
        scheduler = FairScheduler(capacity=self._capacity, interval_s=RUN_INTERVAL_S)
        _serving = _Serving(handlers=handlers, scheduler=scheduler)
        config: DBOSConfig = {
            **self._database.config,
            "application_version": APPLICATION_VERSION,
            "executor_id": self._database.executor_id,
            "serializer": JsonSerializer(),
            "max_executor_threads": EXECUTOR_THREADS,
            "log_level": "WARNING",
            "enable_otlp": False,
        }
        logging.getLogger("dbos").addFilter(_is_news)
        with map_launch_errors(self._database):
            DBOS(config=config)
            DBOS.launch()  # here, not in a thread: DBOS runs the workflows on the loop it was launched on
        self._acceptor = Enqueuer(self._database.open_accepting())
        self._scheduler = Enqueuer(self._database.open_scheduling())
        await DBOS.register_queue_async(
            PLACE_QUEUE,
            worker_concurrency=PLACE_CONCURRENCY,
            polling_interval_sec=self._poll_interval_s,
        )
        # This very combination is claimed by one statement; any other limit makes DBOS walk the threads one by one.
        await DBOS.register_queue_async(
            RUN_QUEUE,
            partition_concurrency=1,
            worker_concurrency=self._capacity + MAX_CLAIMED,
            polling_interval_sec=self._poll_interval_s,
        )

    async def stop(self, *, grace_s: float) -> None:
        global _serving, _is_draining  # noqa: PLW0603 - see their docstring
        if self._acceptor is None or self._scheduler is None or _is_draining:
            return
        _is_draining = True
        _service().scheduler.close()  # who waits for a slot waits on in the next process
        if _executing:
            await asyncio.wait(list(_executing), timeout=grace_s)
        # Before the engine goes: it takes the loop's thread pool with it, which the cleanup of the runs needs, and a run
        # that fails by that would be recorded as failed. A cancelled workflow stays as it is and is recovered.
        # Source: dbos 3.4, _dbos._configure_asyncio_thread_pool, _destroy and _outcome, read 2026-11.
        await _cancel_all()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)
        await _cancel_all()  # claimed meanwhile
        acceptor, self._acceptor = self._acceptor, None
        scheduler, self._scheduler = self._scheduler, None
        try:
            if self._database.is_shared:
                await acceptor.hand_back(self._database.executor_id)
        finally:
            await acceptor.close()
            await scheduler.close()
            _serving, _is_draining = None, False

    async def submit(self, request: RunRequest) -> None:
        if _is_draining:
            raise OSError(f"run {request.run_id} could not be stored: the service is stopping")
        options = EnqueueOptions(
            workflow_name=PLACE_WORKFLOW,
            queue_name=PLACE_QUEUE,
            workflow_id=request.run_id,
            priority=request.order,
        )
        await _started(self._acceptor).enqueue(options, request.model_dump(mode="json"))

    async def schedule(self, run: Run) -> None:
        options = EnqueueOptions(
            workflow_name=RUN_WORKFLOW,
            queue_name=RUN_QUEUE,
            workflow_id=_workflow_id(run.id),
            # Without a partition key DBOS accepts the row and never runs it.
            queue_partition_key=run.thread.key,
            # Order within the thread: SQLite's created_at has a resolution of one second only.
            priority=run.request.order_in_thread,
        )
        # Not through DBOS itself, which inside a workflow would record the enqueue as a step besides.
        await _started(self._scheduler).enqueue(options, run.id)

    def wake(self, run_id: RunId) -> None:
        if _serving is not None:
            _serving.scheduler.wake(run_id)

    async def engine_states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, EngineState]:
        if not run_ids:
            return {}
        workflow_ids = [name for run_id in run_ids for name in (run_id, _workflow_id(run_id))]
        rows = await DBOS.list_workflows_async(
            workflow_ids=workflow_ids, status=list(ACTIVE), load_input=False, load_output=False
        )
        active = {row.workflow_id for row in rows}
        return {
            run_id: EngineState.MOVING
            if run_id in active or _workflow_id(run_id) in active
            else EngineState.ENDED
            for run_id in run_ids
        }

    async def lost_placements(self) -> Sequence[RunRequest]:
        since = datetime.now(UTC) - LOST_WINDOW
        rows = await DBOS.list_workflows_async(
            name=PLACE_WORKFLOW,
            status=list(FAILED),
            start_time=since.isoformat(),
            load_output=False,
        )
        return [RunRequest.model_validate(row.input["args"][0]) for row in rows if row.input]

    async def forget(self, *, before: datetime, limit: int, keep: Collection[RunId]) -> int:
        kept = {name for run_id in keep for name in (run_id, _workflow_id(run_id))}
        removed = skipped = 0
        while removed < limit:
            rows = await DBOS.list_workflows_async(
                status=list(ENDED),
                end_time=before.isoformat(),
                limit=min(REMOVED_AT_ONCE, limit - removed),
                offset=skipped,
                load_input=False,
                load_output=False,
            )
            names = [row.workflow_id for row in rows if row.workflow_id not in kept]
            if names:
                await DBOS.delete_workflows_async(names)
            removed, skipped = removed + len(names), skipped + len(rows) - len(names)
            if not rows:
                break
            await asyncio.sleep(REMOVAL_PAUSE_S)
        return removed


def _started(enqueuer: Enqueuer | None) -> Enqueuer:
    if enqueuer is None:
        raise OSError("nothing can be stored: the engine is not running")
    return enqueuer


def _is_news(record: logging.LogRecord) -> bool:
    """DBOS warns of each workflow that is cancelled, which at a stop are all that run or wait."""
    return not str(record.msg).startswith("Asyncio task cancelled")


async def _cancel_all() -> None:
    for task in list(_executing):
        task.cancel()
    if _executing:
        await asyncio.wait(list(_executing), timeout=CLEANUP_TIMEOUT_S)


def _workflow_id(run_id: RunId) -> str:
    return f"{run_id}.run"
