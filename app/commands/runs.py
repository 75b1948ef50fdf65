"""Reads run records, and writes the wish to stop one; works beside a running service."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime

from app.config import Settings
from app.runs.model import Run
from app.runs.run_store import RunFileKind
from app.store.sql import SqlRunStore, open_sqlite_store

OPERATOR = "operator"
"""Who stopped a run that was stopped from the command line."""


class UnknownRunError(Exception):
    """No run, or more than one, has an id beginning like that."""


class UnsaidRunError(ValueError):
    """What should be a run's id has nothing of one."""


@asynccontextmanager
async def open_records(settings: Settings) -> AsyncIterator[SqlRunStore]:
    """The records of a service that has run.

    Raises:
        OSError: none has, with this state directory; a mistyped one must not become a new, empty database.
    """
    if not settings.database_path.exists():
        raise FileNotFoundError(
            f"no Orion has run in {settings.orion_state_dir} (ORION_STATE_DIR) yet"
        )
    async with open_sqlite_store(settings.database_path) as store:
        yield store


async def recent_runs(settings: Settings, *, limit: int) -> Sequence[Run]:
    """The newest ones first."""
    async with open_records(settings) as store:
        return await store.recent(limit=limit)


async def find_run(settings: Settings, prefix: str) -> Run:
    """The one run whose id begins with `prefix`.

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


async def stop_run(settings: Settings, prefix: str) -> bool:
    """Ask a run to stop; its owner sees it within 0.5 s. False when it is over or was asked before."""
    run = await find_run(settings, prefix)
    async with open_records(settings) as store:
        return await store.request_stop(run.id, user=OPERATOR, at=datetime.now(UTC))


async def file_of_run(settings: Settings, prefix: str, kind: RunFileKind) -> str:
    """What a run left: its log or its patch; empty when it left none.

    Raises:
        UnknownRunError
    """
    run = await find_run(settings, prefix)
    async with open_records(settings) as store:
        return await store.files.load(run.id, kind)


def as_row(run: Run) -> Mapping[str, object]:
    """What `--json` prints of a run; no content."""
    seconds = (
        (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else None
    )
    return {
        "id": run.id,
        "state": run.state,
        "code": run.error_code,
        "detail": run.error_detail,
        "thread": run.thread.key,
        "user": run.request.user,
        "message_ts": run.request.message_ts,
        "reply_ts": run.reply_ts,
        "agent": run.agent,
        "model": run.model,
        "provider": run.provider,
        "sandbox_id": run.sandbox_id,
        "attempt": run.attempt,
        "resumed": run.resumed,
        "retry_of": run.request.retry_of,
        "created_at": run.created_at.isoformat(),
        "duration_s": seconds,
        "steps": run.steps,
        "delivery": run.delivery,
        "changes": asdict(run.changes) if run.changes else None,
        "stopped_by": run.stop_requested_by,
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "cached_tokens": run.usage.cache_read_tokens + run.usage.cache_creation_tokens,
        "model_calls": run.usage.model_calls,
        "outside_effect": run.has_outside_effect,
        "cost_usd": run.cost_usd,
        "trace_id": run.trace_id,
    }


def lines_of(row: Mapping[str, object]) -> Iterator[str]:
    """The same for a person. What has not begun has cost nothing; of the rest that may be unknown."""
    for name, value in row.items():
        nothing = "unknown" if name == "cost_usd" and row["attempt"] else ""
        yield f"{name:14} {nothing if value is None else value}"
