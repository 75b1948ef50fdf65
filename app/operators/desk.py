"""Reads what the operators' page shows, as JSON can hold it; texts are masked. Raises OSError or TimeoutError where the database does not answer."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from app.audit.records import AuditEntry, AuditQuery
from app.operators.records import By, add_up, as_row
from app.runs.model import Clock, Process, Run, RunFileKind
from app.runs.policy import RunPolicy
from app.runs.request import RunId
from app.runs.session import Session, session_id_for
from app.runs.warm_pool import PoolFigures
from app.store.runs import RunQuery, SqlRunStore
from app.tracing.steps import read_steps

Json = Mapping[str, Any]

SHOWN_TEXT_CHARS: Final = 120
SHOWN_WAITING: Final = 50
"""Runs whose turn is told; of the others only how many they are."""
SHOWN_RUNS: Final = 50
MAX_DAYS: Final = 90


class Desk:
    """Reads one deployment's records; makes nothing and changes nothing."""

    def __init__(
        self,
        store: SqlRunStore,
        *,
        policy: RunPolicy,
        pools: Callable[[], Sequence[PoolFigures]],
        mask: Callable[[str], str],
        trace_link: Callable[[str], str],
        clock: Clock,
    ) -> None:
        """`pools`: of this process; `trace_link`: to a trace's page, empty where there is none."""
        self._store = store
        self._policy = policy
        self._pools = pools
        self._mask = mask
        self._trace_link = trace_link
        self._clock = clock

    async def now(self) -> Json:
        """Returns what goes on: runs that go, those that wait with whose turn it is, sandboxes that are kept, pools, counts, what the day has cost."""
        unfinished = await self._store.unfinished()
        going = [run for run in unfinished if run.started_at is not None]
        waiting = [run for run in unfinished if run.started_at is None]
        today = self._clock.now().date()
        return {
            "going": [self._line(run) for run in going],
            "waiting": [await self._turn(run) for run in waiting[:SHOWN_WAITING]],
            "waiting_in_all": len(waiting),
            "queue_limit": self._policy.queue_limit,
            "capacity": self._policy.capacity,
            "counts": await self._store.counts(),
            "undelivered": {
                told: count
                for told, count in (await self._store.deliveries()).items()
                if told != "sent"
            },
            "kept": [
                {"name": one.name, "provider": one.provider, "status": one.status}
                for one in await self._store.sessions.kept()
            ],
            "pools": [asdict(one) for one in self._pools()],
            "spent_micro_usd": (await self._store.spending.sums(today)).get(("all", "", ""), 0),
        }

    async def going_and_waiting(self) -> tuple[int, int]:
        """Returns how many runs go and how many wait; without whose turn it is, for which each has to be asked about."""
        unfinished = await self._store.unfinished()
        going = sum(run.started_at is not None for run in unfinished)
        return going, len(unfinished) - going

    async def _turn(self, run: Run) -> Json:
        since = self._clock.now() - timedelta(hours=1)
        stats = await self._store.queue_stats(run, since=since, capacity=self._policy.capacity)
        return {**self._line(run), "turn": asdict(stats.position)}

    async def runs(self, query: RunQuery) -> Json:
        """Returns the runs that are meant, the newest first."""
        return {"runs": [self._line(run) for run in await self._store.find(query)]}

    async def run(self, run_id: RunId) -> Json | None:
        """Returns one run with its steps and its log, masked; None = there is none."""
        run = await self._store.get(run_id)
        if run is None:
            return None
        files = self._store.files
        steps = read_steps(await files.load(run_id, RunFileKind.STEPS))
        asked = await self._store.approvals.of_run(run_id)
        session = await self._store.sessions.get(session_id_for(run.thread))
        return {
            **self._line(run),
            "row": as_row(run, asked, steps),
            "session": None if session is None else _session(session),
            "text": self._mask(run.request.text),
            "answer": self._mask(run.result.answer),
            "log": self._mask(await files.load(run_id, RunFileKind.LOG)),
            "patch": self._mask(await files.load(run_id, RunFileKind.PATCH)),
            "steps": [
                {
                    "name": one.name,
                    "parent": one.parent,
                    "start_ms": one.started_at.timestamp() * 1000,
                    "end_ms": one.ended_at.timestamp() * 1000,
                    "error": one.error,
                }
                for one in steps
            ],
        }

    async def spent(self, *, days: int, by: By) -> Json:
        """Returns sums of the last days, the dearest first."""
        today = self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        costs = await self._store.spending.of_runs(today - timedelta(days=days - 1))
        return {"sums": [one.row for one in add_up(costs, by=by)]}

    async def errors(self, *, days: int) -> Json:
        """Returns how often each code came in the last days, with the last run that ended so."""
        since = self._clock.now() - timedelta(days=days)
        found = await self._store.errors(since)
        return {
            "errors": [
                {"code": code, "count": count, "last": self._line(run)}
                for code, count, run in found
            ]
        }

    async def processes(self) -> Json:
        """Returns the living processes, the oldest first, with how many runs each has."""
        owned = await self._store.leases.owned()
        living = await self._store.leases.living()
        return {"processes": [_process(one, owned.get(one.id, 0)) for one in living]}

    async def audit(self, query: AuditQuery) -> Json:
        """Returns entries of the audit log, the newest first."""
        return {"entries": [_entry(one) for one in await self._store.audit.find(query)]}

    async def version(self) -> str:
        """Returns a text that is another one when what goes on has changed."""
        unfinished = await self._store.unfinished()
        counts = await self._store.counts()
        said = [[run.id, run.state, run.attempt, run.sandbox_id] for run in unfinished]
        told = json.dumps([said, sorted(counts.items())])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def _line(self, run: Run) -> Json:
        """Returns what a list shows of a run."""
        request, text = run.request, " ".join(self._mask(run.request.text).split())
        return {
            "id": run.id,
            "state": run.state,
            "code": run.result.error_code,
            "text": text[:SHOWN_TEXT_CHARS],
            "user": request.user,
            "channel": request.channel,
            "agent": run.agent,
            "model": run.model,
            "provider": run.provider,
            "attempt": run.attempt,
            "created_at": _time(run.created_at),
            "started_at": _time(run.started_at),
            "ended_at": _time(run.ended_at),
            "cost_usd": run.result.cost_usd,
            "trace_id": run.trace_id,
            "trace": self._trace_link(run.trace_id),
        }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _session(session: Session) -> Json:
    """Returns what its thread has: the sandbox by its name, and what is saved, provider by provider."""
    return {
        "name": session.name,
        "status": session.status,
        "provider": session.provider,
        "snapshots": dict(session.snapshots),
    }


def _process(process: Process, runs: int) -> Json:
    return {
        "name": process.name,
        "version": process.version,
        "place": process.place,
        "is_working": process.is_working,
        "started_at": _time(process.started_at),
        "runs": runs,
    }


def _entry(entry: AuditEntry) -> Json:
    return {**asdict(entry), "at": _time(entry.at)}
