"""Dispatches durably with DBOS, which nothing outside this package imports.

What is accepted is the run record; it is placed in this process, and enqueued in the transaction that records its message.
Shallow use on purpose: one workflow without recorded steps, all state in the run record, so that it may simply be run again
after a crash. DBOS gives deduplication by workflow id, order per thread, and recovery at start.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, Serializer, error
from typing_extensions import Unpack, override

from app.aio import open_task_group
from app.dispatch.fair_queue import FairScheduler
from app.dispatch.placements import Placements, open_placements
from app.runs.model import Run, RunId, RunRequest, RunState
from app.runs.ports import AgainIn, EngineState, RunChanges, RunHandlers
from app.store.engine import WalConnection, name_of
from app.store.runs import SqlRunStore

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
        executor_id=EXECUTOR_ID,
        is_shared=False,
    )


def _postgres(url: str) -> EngineDatabase:
    return EngineDatabase(
        name=name_of(url),
        config={
            "name": "orion",
            "system_database_url": url,
            "sys_db_pool_size": POSTGRES_CONNECTIONS,
        },
        # Unique: a process that shared its id with another would take over that one's running workflows at its start.
        executor_id=f"{EXECUTOR_ID}-{uuid.uuid4().hex}",
        is_shared=True,
    )


class JsonSerializer(Serializer):
    """Instead of pickle, with which whoever can write the database could run code.

    Errors become text: an error that cannot be encoded would fail its workflow a second time.
    """

    @override
    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=_encode)

    @override
    def deserialize(self, serialized_data: str) -> Any:
        data = json.loads(serialized_data)
        if isinstance(data, dict) and set(data) == {"__error__"}:
            return RuntimeError(data["__error__"])
        return data

    @override
    def name(self) -> str:
        return "orion_json"


def _encode(value: object) -> object:
    if isinstance(value, BaseException):
        return {"__error__": f"{type(value).__name__}: {value}"}
    raise TypeError(f"not JSON: {type(value).__name__}")


APPLICATION_VERSION = "1"
"""Raise it only when the number or order of recorded steps changes: DBOS strands the rows of other versions.

Its default, a hash of the workflows' source, would strand them at every edit.
"""
RUN_QUEUE, RUN_WORKFLOW = "orion-run", "orion.run"
OLD_PLACE_WORKFLOW = "orion.place"
"""In which Orion kept what it had accepted before the run's record did."""
POLL_INTERVAL_S = 0.1
"""DBOS polls its queue; at 0.1 s that costs 6 % of a slow core when idle, and a run starts after 81 ms median (measured)."""
RUN_INTERVAL_S = 0.1
"""Between two runs that begin: a start takes a second of processor, which acknowledgements need as well."""
MAX_CLAIMED = 1000
"""Runs that the engine hands over beyond those that have a slot; people take turns among them.

The engine's own order is no queue: when it may not claim all, it takes threads at random (dbos 3.4,
start_queued_partitioned_workflows, read 2026-11).
"""
MAX_RUN_CLAIMS = 1000
"""The engine counts claims, and so restarts during which a run only waited for a slot. Executions are counted in the
run record, which ends a run after three; this only bounds what no record can.
"""
EXECUTOR_THREADS = 16
REMEMBERED = 10_000
"""Accepted runs: of some minutes at the highest rate."""
CLEANUP_TIMEOUT_S = 20.0
"""For the cancelled runs to destroy their sandboxes."""
ACTIVE = ("ENQUEUED", "PENDING", "DELAYED")
ENDED = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
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
        self,
        location: Path | str,
        store: SqlRunStore,
        *,
        capacity: int,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """`store`: of the same database."""
        self._poll_interval_s = poll_interval_s
        self._database = describe_database(location)
        self._store = store
        self._capacity = capacity
        self._client: DBOSClient | None = None
        self._placements: Placements | None = None
        self._stack = AsyncExitStack()
        self._accepted: dict[RunId, None] = {}
        """The last ones: each mention comes as two events, and the second one needs no write."""

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
            DBOS.listen_queues([RUN_QUEUE])  # not to those of older versions
            DBOS.launch()  # here, not in a thread: DBOS runs the workflows on the loop it was launched on
        self._client = DBOSClient(
            system_database_engine=self._store.engine,
            serializer=JsonSerializer(),
            lazy=True,
            retry_connection_errors=False,  # which would be without limit
        )
        # This very combination is claimed by one statement; any other limit makes DBOS walk the threads one by one.
        await DBOS.register_queue_async(
            RUN_QUEUE,
            partition_concurrency=1,
            worker_concurrency=self._capacity + MAX_CLAIMED,
            polling_interval_sec=self._poll_interval_s,
        )
        await self._take_over_old_placements()
        placements = await self._stack.enter_async_context(open_placements(handlers))
        if not self._database.is_shared:  # else another process may be at it
            for run in await self._store.unfinished():
                if run.state is RunState.ACCEPTED:
                    placements.add(run, resumed=True)
        self._placements = placements

    async def _take_over_old_placements(self) -> None:
        rows = await DBOS.list_workflows_async(
            name=OLD_PLACE_WORKFLOW, status=list(ACTIVE), load_output=False
        )
        for row in rows:
            if row.input is not None:
                request = RunRequest.model_validate(row.input["args"][0])
                await self._store.add(
                    Run(id=request.run_id, request=request, created_at=request.received_at)
                )
        if rows:
            await DBOS.delete_workflows_async([row.workflow_id for row in rows])

    async def stop(self, *, grace_s: float) -> None:
        global _serving, _is_draining  # noqa: PLW0603 - see their docstring
        if self._client is None or self._placements is None or _is_draining:
            return
        _is_draining = True
        placements, self._placements = self._placements, None
        _service().scheduler.close()  # who waits for a slot waits on in the next process
        async with open_task_group() as group:
            group.create_task(placements.close(grace_s=grace_s))
            if _executing:
                await asyncio.wait(list(_executing), timeout=grace_s)
        # Before the engine goes: it takes the loop's thread pool with it, which the cleanup of the runs needs, and a run
        # that fails by that would be recorded as failed. A cancelled workflow stays as it is and is recovered.
        # Source: dbos 3.4, _dbos._configure_asyncio_thread_pool, _destroy and _outcome, read 2026-11.
        await _cancel_all()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)
        await _cancel_all()  # claimed meanwhile
        client, self._client = self._client, None
        try:
            if self._database.is_shared:
                await asyncio.to_thread(_hand_back, client, self._database.executor_id)
        finally:
            client.destroy()
            await self._stack.aclose()
            _serving, _is_draining = None, False

    async def submit(self, run: Run) -> None:
        if _is_draining:
            raise OSError(f"run {run.id} could not be stored: the service is stopping")
        if run.id in self._accepted:
            return
        is_new = await self._store.add(run)
        self._accepted[run.id] = None
        if len(self._accepted) > REMEMBERED:
            del self._accepted[next(iter(self._accepted))]
        if self._placements is not None:
            # Not new: maybe committed after whoever waited for it had given up.
            self._placements.add(run, resumed=not is_new)

    async def schedule(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        client = self._client
        if client is None:
            raise OSError(f"run {run.id} cannot be scheduled: the engine is not running")
        options = EnqueueOptions(
            workflow_name=RUN_WORKFLOW,
            queue_name=RUN_QUEUE,
            workflow_id=_workflow_id(run.id),
            # Without a partition key DBOS accepts the row and never runs it.
            queue_partition_key=run.thread.key,
            # Order within the thread: SQLite's created_at has a resolution of one second only.
            priority=run.request.order_in_thread,
        )

        def enqueue(connection: sa.Connection) -> None:
            client.enqueue_in_transaction(connection, options, run.id)

        return await self._store.schedule(run.id, changes, enqueue)

    def wake(self, run_id: RunId) -> None:
        if _serving is not None:
            _serving.scheduler.wake(run_id)

    async def engine_states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, EngineState]:
        if not run_ids:
            return {}
        rows = await DBOS.list_workflows_async(
            workflow_ids=[_workflow_id(run_id) for run_id in run_ids],
            status=list(ACTIVE),
            load_input=False,
            load_output=False,
        )
        active = {row.workflow_id for row in rows}
        placing = self._placements or ()
        return {
            run_id: EngineState.MOVING
            if _workflow_id(run_id) in active or run_id in placing
            else EngineState.ENDED
            for run_id in run_ids
        }

    async def forget(self, *, before: datetime, limit: int, keep: Collection[RunId]) -> int:
        kept = {_workflow_id(run_id) for run_id in keep}
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


def _hand_back(client: DBOSClient, executor_id: str) -> None:
    """Queues again what an executor that has ended was at; by the queue's name, or it would leave its thread's order."""
    for row in client.list_workflows(
        status="PENDING", executor_id=executor_id, load_input=False, load_output=False
    ):
        client.resume_workflow(row.workflow_id, queue_name=row.queue_name)


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
