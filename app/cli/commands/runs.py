"""What run records tell, and the tables that they are in; writes only a request to stop one."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from app.approvals.records import Approval
from app.audit.records import Act, AuditEntry
from app.operators.records import By, Sum, add_up
from app.runs.intake import RetryIntent, retry_request
from app.runs.model import Run, RunFileKind, RunState
from app.runs.request import RunId
from app.runs.stop import may_be_stopped, stop_entry
from app.settings.settings import Settings
from app.store.engine import name_of, own_state_directory
from app.store.migrations import migrate_store
from app.store.runs import SqlRunStore, open_store
from app.tracing.null import NullTracer
from app.tracing.steps import StepRecord, read_steps

OPERATOR = "operator"
"""Who stopped a run that was stopped from the command line."""


class UnknownRunError(Exception):
    """No run, or more than one, has an id beginning like that."""


class UnfailedRunError(Exception):
    """A run that has not failed is not taken up again."""


class UnsaidRunError(ValueError):
    """The text given as a run's id is empty, or nothing but its prefix."""


@asynccontextmanager
async def open_records(settings: Settings) -> AsyncIterator[SqlRunStore]:
    """Opens the records of a service that has run.

    Raises:
        OSError: none has, with this state directory; a mistyped one must not become a new, empty database.
        UnreadableStoreError: the database cannot be used.
    """
    if isinstance(settings.database, Path) and not settings.database.exists():
        raise FileNotFoundError(
            f"no Orion has run in {settings.service.state_dir} (ORION_STATE_DIR) yet"
        )
    async with open_store(settings.database) as store:
        yield store


async def recent_runs(settings: Settings, *, limit: int) -> Sequence[Run]:
    """Returns the newest runs first."""
    async with open_records(settings) as store:
        return await store.recent(limit=limit)


async def find_run(settings: Settings, prefix: str) -> Run:
    """Returns the one run whose id begins with `prefix`.

    Raises:
        UnknownRunError
        UnsaidRunError
    """
    if not prefix.removeprefix("run_"):
        raise UnsaidRunError("say which run: its id, or the beginning of it")
    async with open_records(settings) as store:
        matches = await store.starting_with(prefix)
    if len(matches) != 1:
        count = "several" if matches else "no"
        raise UnknownRunError(f"{count} runs have an id beginning with {prefix!r}")
    return matches[0]


async def asked_of(settings: Settings, run: Run) -> Sequence[Approval]:
    """Returns what a run has needed people for, in order."""
    async with open_records(settings) as store:
        return await store.approvals.of_run(run.id)


async def stop_run(settings: Settings, prefix: str) -> bool:
    """Asks a run to stop; its owner sees it within 0.5 s. False when it is over or was asked before."""
    run = await find_run(settings, prefix)
    async with open_records(settings) as store:
        now = datetime.now(UTC)
        if may_be_stopped(run):
            await store.audit.add(stop_entry(run, OPERATOR, by="the command line", at=now))
        return await store.request_stop(run.id, user=OPERATOR, at=now)


async def retry_run(settings: Settings, prefix: str) -> RunId:
    """Has a failed run's turn taken up once more, as whoever asked would by Retry; the Orion that runs places it within some seconds. Returns the new run's id.

    Raises:
        UnknownRunError
        UnfailedRunError
    """
    failed = await find_run(settings, prefix)
    if failed.state is not RunState.FAILED:
        raise UnfailedRunError(f"{failed.id} has not failed: it is {failed.state}")
    now, asker = datetime.now(UTC), failed.request
    intent = RetryIntent(
        run_id=failed.id,
        user=asker.user,
        click_ts=f"{now.timestamp():.6f}",
        is_external=asker.is_external,
    )
    request = retry_request(failed, intent, now=now)
    run = Run(
        id=request.run_id,
        request=request,
        created_at=now,
        trace_id=NullTracer().trace_id(request.run_id),
    )
    async with open_records(settings) as store:
        await store.audit.add(retry_entry(run, OPERATOR, at=now))
        await store.add(run)
    return run.id


def retry_entry(run: Run, user: str, *, at: datetime) -> AuditEntry:
    """Returns what the audit log says of an operator who has a question asked again."""
    request = run.request
    return AuditEntry(
        id=f"{run.id}:{Act.ASK}:{user}",
        at=at,
        team=request.team,
        channel=request.channel,
        user=user,
        act=Act.ASK,
        target=request.user,
        is_allowed=True,
        reason="the command line",
        run_id=run.id,
    )


async def file_of_run(settings: Settings, prefix: str, kind: RunFileKind) -> str:
    """Returns what a run left: its log or its patch; empty when it left none.

    Raises:
        UnknownRunError
    """
    run = await find_run(settings, prefix)
    async with open_records(settings) as store:
        return await store.files.load(run.id, kind)


async def steps_of(settings: Settings, run: Run) -> Sequence[StepRecord]:
    """Returns what was done for a run, step by step."""
    async with open_records(settings) as store:
        return read_steps(await store.files.load(run.id, RunFileKind.STEPS))


def short_line_of(row: Mapping[str, object]) -> str:
    """Returns the same for a person who looks at many."""
    seconds = "" if row["duration_s"] is None else f"{row['duration_s']:.1f} s"
    return f"{row['id']}  {row['state']:10} {row['code'] or '':24} {row['created_at']}  {row['user']}  {seconds}"


def lines_of(row: Mapping[str, object]) -> Iterator[str]:
    """Yields the same for a person. What has not begun has cost nothing; of the rest that may be unknown."""
    for name, value in row.items():
        if name == "hosts" and isinstance(value, list):
            yield from (f"{name:14} {_line_of_host(one)}" for one in value)
            continue
        if name == "settings" and isinstance(value, list):
            yield from (
                f"{name:14} {one['name']}: {one['value'] or 'none'} ({one['source']})"
                for one in value
            )
            continue
        if name == "trace" and isinstance(value, list):
            yield from (f"{name:14} {_line_of_step(one)}" for one in value)
            continue
        if name == "asked" and isinstance(value, list):
            yield from (f"{name:14} {_line_of_asked(one)}" for one in value)
            continue
        nothing = "unknown" if name == "cost_usd" and row["attempt"] else ""
        yield f"{name:14} {nothing if value is None else value}"


def _line_of_host(use: Mapping[str, object]) -> str:
    host = use["host"] or "(no name)"
    if use["refusals"] and not use["connections"]:
        return f"{host}: refused {use['refusals']} times: {use['reason']}".removesuffix(": ")
    return f"{host}: {use['connections']} connections, {use['sent_bytes']} bytes out, {use['received_bytes']} in"


def _line_of_step(one: Mapping[str, Any]) -> str:
    name = f"  {one['name']}" if one["parent"] else one["name"]
    error = f"  {one['error']}" if one["error"] else ""
    return f"{one['started_at'][11:23]}  {one['duration_s']:8.3f} s  {name}{error}"


def _line_of_asked(one: Mapping[str, Any]) -> str:
    by = f" by {', '.join(one['by'])}" if one["by"] else ""
    what = " ".join(filter(None, (one["kind"], one["target"])))
    return f"{what}: {one['state']}{by}"


async def sum_costs(settings: Settings, *, days: int, by: By) -> Sequence[Sum]:
    """Returns sums, the dearest first; those of the last so many days, the last one being what has passed of today (UTC).

    Raises:
        OSError: no Orion has run here.
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    async with open_records(settings) as store:
        return add_up(await store.spending.of_runs(today - timedelta(days=days - 1)), by=by)


def migrate(settings: Settings) -> str:
    """Raises the tables of the run store to this version of Orion, all or nothing; says what was done. Does nothing when there is no database yet.

    Raises:
        StateDirectoryBusyError: Orion is running there, on SQLite.
        UnreadableStoreError: it cannot be raised; nothing has been changed.
    """
    database, name = settings.database, name_of(settings.database)
    with own_state_directory(settings.service.state_dir, shares=isinstance(database, str)):
        if isinstance(database, Path) and not database.exists():
            return f"{name}: not there yet, `orion serve` makes it"
        before, after = migrate_store(database)
    if before == after:
        return f"{name}: version {after}, as before"
    return f"{name}: version {after}, raised from {before}"
