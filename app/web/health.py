"""What operators are told over HTTP: whether this process can do its work, part by part, and figures for Prometheus."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from prometheus_client import Gauge, generate_latest

from app.metrics import Meters
from app.runs.budget import CallFigures
from app.runs.model import Clock
from app.runs.ports import RunStore
from app.runs.warm_pool import PoolFigures

CHECK_TIMEOUT_S = 5.0
OUTSIDE_CACHE = timedelta(seconds=30)
"""A load balancer asks every second; Slack and the provider must not notice."""

SPACE_BYTES = 1024 * 1024
"""For what a few acceptances write."""

Probe = Callable[[], Awaitable[str]]
"""Returns a line for people; raises when the part does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    is_ok: bool
    detail: str


class Health:
    """Asks the parts. `inside` probes run every time, `outside` ones at most every 30 s."""

    def __init__(
        self, *, inside: Mapping[str, Probe], outside: Mapping[str, Probe], clock: Clock
    ) -> None:
        self._inside = inside
        self._outside = outside
        self._clock = clock
        self._cache: dict[str, tuple[datetime, Check]] = {}
        self.is_draining = False

    async def check(self) -> Mapping[str, Check]:
        checks = {name: await _ask(probe) for name, probe in self._inside.items()}
        for name, probe in self._outside.items():
            asked_at, cached = self._cache.get(name, (None, None))
            if cached is None or asked_at is None or self._clock.now() - asked_at > OUTSIDE_CACHE:
                cached = await _ask(probe)
                self._cache[name] = (self._clock.now(), cached)
            checks[name] = cached
        if self.is_draining:
            checks["service"] = Check(is_ok=False, detail="draining")
        return checks


def require_space(directory: Path, size_bytes: int = SPACE_BYTES) -> None:
    """Checks that something can be written below a directory; reading goes on working on a full disk.

    Raises:
        OSError: the disk is full, or read-only.
    """
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as exc:
        raise OSError(f"{directory} cannot be written to: {exc.strerror}") from exc


async def _ask(probe: Probe) -> Check:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return Check(is_ok=True, detail=await probe())
    except TimeoutError:
        return Check(is_ok=False, detail=f"no answer within {CHECK_TIMEOUT_S:g} s")
    except Exception as exc:  # noqa: BLE001 - whatever a part's failure is, its name and words are the answer
        return Check(is_ok=False, detail=f"{type(exc).__name__}: {exc}")


_POOL_FIGURES = {
    "size": "Prepared sandboxes that shall wait.",
    "waiting": "Prepared sandboxes that wait.",
    "taken": "Runs that were given a prepared sandbox, since start.",
    "missed": "Runs that found none and made their own, since start.",
    "failed": "Prepared sandboxes that came to nothing, since start.",
    "is_stopped": "1 while none are prepared because too many came to nothing.",
}
"""Fields of `PoolFigures`."""
_CALL_FIGURES = {
    "calls": "Model calls that have ended, since start.",
    "tokens": "Tokens of model calls, cached ones too, since start.",
    "cost_micro_usd": "What model calls cost in millionths of a dollar, where the price is set, since start.",
}
_FIELDS = {"calls": "calls", "tokens": "tokens", "cost_micro_usd": "cost"}
"""Of `CallFigures`."""


class Metrics:
    """Figures of what happened, and of how things are at the moment of a scrape."""

    def __init__(
        self,
        meters: Meters,
        *,
        store: RunStore,
        export_failures: Callable[[], int],
        pools: Callable[[], Sequence[PoolFigures]],
        calls: Mapping[tuple[str, str], CallFigures],
        follow_ups: Mapping[tuple[str, str], int],
    ) -> None:
        """`calls`: of models, by agent and model; `follow_ups`: by outcome and reason; both as they are at any time."""
        self._calls = calls
        self._follow_ups = follow_ups
        self._store = store
        self._pools = pools
        self._export_failures = export_failures
        self.acknowledged = meters.acknowledged
        self._registry = meters.registry
        self._runs = Gauge(
            "orion_runs", "Run records by state.", ["state"], registry=self._registry
        )
        self._deliveries = Gauge(
            "orion_deliveries",
            "Ended runs by whether the thread was told: sent, or failed(reason).",
            ["delivery"],
            registry=self._registry,
        )
        self._trace_failures = Gauge(
            "orion_trace_export_failures",
            "Failed exports of traces since start.",
            registry=self._registry,
        )

        self._decisions = Gauge(
            "orion_follow_ups",
            "Replies without a mention in threads with Orion, by whether they are answered and why, since start.",
            ["outcome", "reason"],
            registry=self._registry,
        )
        self._pool_figures = {
            name: Gauge(f"orion_pool_{name}", says, ["provider"], registry=self._registry)
            for name, says in _POOL_FIGURES.items()
        }

        self._call_figures = {
            name: Gauge(f"orion_model_{name}", says, ["agent", "model"], registry=self._registry)
            for name, says in _CALL_FIGURES.items()
        }

    async def render(self) -> bytes:
        for state, count in (await self._store.counts()).items():
            self._runs.labels(state=state).set(count)
        for delivery, count in (await self._store.deliveries()).items():
            self._deliveries.labels(delivery=delivery).set(count)
        for pool in self._pools():
            for name, gauge in self._pool_figures.items():
                gauge.labels(provider=pool.provider).set(getattr(pool, name))
        for (agent, model), figures in self._calls.items():
            for name, gauge in self._call_figures.items():
                gauge.labels(agent=agent, model=model).set(getattr(figures, _FIELDS[name]))
        for (outcome, reason), count in self._follow_ups.items():
            self._decisions.labels(outcome=outcome, reason=reason).set(count)
        self._trace_failures.set(self._export_failures())
        return generate_latest(self._registry)
