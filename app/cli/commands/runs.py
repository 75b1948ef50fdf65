"""What run records tell, and the tables that they are in; writes only a request to stop one."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.approvals.records import Approval
from app.approvals.rules import DeedKind
from app.runs.budget import render_money
from app.runs.model import Run, RunFileKind, SharedFile
from app.runs.ports import RunCost
from app.runs.request import AttachedFile
from app.runs.stop import may_be_stopped, stop_entry
from app.settings.settings import Settings
from app.store.engine import name_of, own_state_directory
from app.store.migrations import migrate_store
from app.store.runs import SqlRunStore, open_store
from app.tracing.steps import StepRecord, read_steps

OPERATOR = "operator"
"""Who stopped a run that was stopped from the command line."""


class UnknownRunError(Exception):
    """No run, or more than one, has an id beginning like that."""


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


def as_row(
    run: Run, asked: Sequence[Approval] = (), steps: Sequence[StepRecord] = ()
) -> Mapping[str, object]:
    """Returns what `--json` prints of a run; no content. `asked`: what it has needed people for."""
    seconds = (
        (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else None
    )
    return {
        "id": run.id,
        "state": run.state,
        "code": run.result.error_code,
        "detail": run.result.detail,
        "thread": run.thread.key,
        "user": run.request.user,
        "message_ts": run.request.message_ts,
        "reply_ts": run.reply_ts,
        "agent": run.agent,
        "model": run.model,
        "provider": run.provider,
        "sandbox_id": run.sandbox_id,
        "attempt": run.attempt,
        "resumed": run.result.resumed,
        "retry_of": run.request.retry_of,
        "created_at": run.created_at.isoformat(),
        **run.result.measures,
        "duration_s": seconds,  # until it was told; the measured one ends with the attempt
        "delivery": run.delivery,
        "changes": asdict(run.result.changes) if run.result.changes else None,
        "files_in": _files(run.request.content.files),
        "files_out": _files(run.result.files),
        "hosts": [asdict(one) for one in run.result.hosts],
        "settings": [asdict(one) for one in run.effective or ()],
        "trace": [
            {
                "name": one.name,
                "parent": one.parent,
                "started_at": one.started_at.isoformat(),
                "duration_s": round(one.duration_s, 3),
                "error": one.error,
            }
            for one in steps
        ],
        "asked": [
            {
                "kind": one.kind,
                "target": "" if one.kind is DeedKind.QUESTION else one.target,
                "rule": one.rule,
                "state": one.state,
                "by": [answer.user for answer in one.answers],
            }
            for one in asked
        ],
        "stopped_by": run.stop_requested_by,
        "input_tokens": run.result.usage.input_tokens,
        "output_tokens": run.result.usage.output_tokens,
        "cached_tokens": run.result.usage.cache_read_tokens
        + run.result.usage.cache_creation_tokens,
        "model_calls": run.result.usage.model_calls,
        "outside_effect": run.has_outside_effect,
        "trace_id": run.trace_id,
    }


def _files(files: Sequence[AttachedFile | SharedFile]) -> Sequence[Mapping[str, object]]:
    return [{"name": one.name, "bytes": one.size} for one in files]


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
    told = f"{use['host']}: {use['connections']} connections, {use['sent_bytes']} bytes out, {use['received_bytes']} in"
    return (
        f"{told}; refused {use['refusals']} times: it {use['reason']}" if use["refusals"] else told
    )


def _line_of_step(one: Mapping[str, Any]) -> str:
    name = f"  {one['name']}" if one["parent"] else one["name"]
    error = f"  {one['error']}" if one["error"] else ""
    return f"{one['started_at'][11:23]}  {one['duration_s']:8.3f} s  {name}{error}"


def _line_of_asked(one: Mapping[str, Any]) -> str:
    by = f" by {', '.join(one['by'])}" if one["by"] else ""
    what = " ".join(filter(None, (one["kind"], one["target"])))
    return f"{what}: {one['state']}{by}"


class By(StrEnum):
    DAY = "day"
    USER = "user"
    CHANNEL = "channel"
    AGENT = "agent"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The cost of several runs together: those of one day, person, channel, agent or model."""

    name: str
    runs: int
    tokens: int
    cost: int | None
    """Micro-dollars, of the runs whose cost is known; None = there is none."""
    unknown: int
    """Runs whose cost is not."""

    @property
    def row(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "runs": self.runs,
            "tokens": self.tokens,
            "cost_micro_usd": self.cost,
            "runs_of_unknown_cost": self.unknown,
        }

    @property
    def line(self) -> str:
        money = "unknown" if self.cost is None else render_money(self.cost)
        is_mixed = self.unknown and self.cost is not None
        unknown = f"  and {self.unknown} of unknown cost" if is_mixed else ""
        return f"{self.name:26} {self.runs:7} runs {self.tokens:14,} tokens  {money:>10}{unknown}"


async def sum_costs(settings: Settings, *, days: int, by: By) -> Sequence[Sum]:
    """Returns sums, the dearest first; those of the last so many days, the last one being what has passed of today (UTC).

    Raises:
        OSError: no Orion has run here.
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    async with open_records(settings) as store:
        return add_up(await store.spending.of_runs(today - timedelta(days=days - 1)), by=by)


def add_up(costs: Iterable[RunCost], *, by: By) -> Sequence[Sum]:
    """Returns sums by that name; the dearest first."""
    groups: dict[str, list[RunCost]] = {}
    for one in costs:
        name = f"{one.at:%Y-%m-%d}" if by is By.DAY else getattr(one, by)
        groups.setdefault(name, []).append(one)
    sums = [_sum_of(name, group) for name, group in groups.items()]
    return sorted(sums, key=lambda one: (-(one.cost or 0), -one.tokens, one.name))


def _sum_of(name: str, group: Sequence[RunCost]) -> Sum:
    known = [one.cost for one in group if one.cost is not None]
    return Sum(
        name=name or "unknown",
        runs=len(group),
        tokens=sum(one.tokens for one in group),
        cost=sum(known) if known else None,
        unknown=len(group) - len(known),
    )


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
