"""Figures for Prometheus."""

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from app.runs.budgets import CallFigures
from app.runs.pool_figures import PoolFigures
from app.runs.run_store import RunStore

ACK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)
"""Slack gives up after 3 s."""

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
    """One registry per service, so that two in one process (tests) do not share figures."""

    def __init__(
        self,
        *,
        store: RunStore,
        export_failures: Callable[[], int],
        pools: Callable[[], Sequence[PoolFigures]],
        calls: Mapping[tuple[str, str], CallFigures],
    ) -> None:
        """`calls`: of models, by agent and model, as they are at any time."""
        self._calls = calls
        self._store = store
        self._pools = pools
        self._export_failures = export_failures
        self._registry = CollectorRegistry()
        self._acknowledgements = Histogram(
            "orion_slack_ack_seconds",
            "Time from a Slack delivery's last byte to the answer.",
            ["status"],
            buckets=ACK_BUCKETS,
            registry=self._registry,
        )
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

        self._pool_figures = {
            name: Gauge(f"orion_pool_{name}", says, ["provider"], registry=self._registry)
            for name, says in _POOL_FIGURES.items()
        }

        self._call_figures = {
            name: Gauge(f"orion_model_{name}", says, ["agent", "model"], registry=self._registry)
            for name, says in _CALL_FIGURES.items()
        }

    def acknowledged(self, status: int, seconds: float) -> None:
        self._acknowledgements.labels(status=str(status)).observe(seconds)

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
        self._trace_failures.set(self._export_failures())
        return generate_latest(self._registry)
