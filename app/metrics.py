"""What happens in this process as figures for Prometheus: counted where it happens, read at a scrape."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

ACK_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)
"""Seconds. Slack gives up after 3."""
SIGN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 1.0, 3.0, 10.0, 60.0)
WAIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)
RUN_BUCKETS: Final = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class Meters:
    """One for a service, so that two in one process (tests) do not share figures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._acks = self._histogram(
            "orion_slack_ack_seconds",
            "Time from a Slack delivery's last byte to the answer.",
            "status",
            buckets=ACK_BUCKETS,
        )
        self._signs = self._histogram(
            "orion_first_sign_seconds",
            "Time from a message's acceptance to its thinking message.",
            buckets=SIGN_BUCKETS,
        )
        self._waits = self._histogram(
            "orion_queue_wait_seconds",
            "Time from a message's acceptance to the beginning of its run.",
            buckets=WAIT_BUCKETS,
        )
        self._tokens = self._histogram(
            "orion_first_token_seconds",
            "Time from a message's acceptance to the first token of a model's answer to it.",
            "agent",
            buckets=WAIT_BUCKETS,
        )
        self._runs = self._histogram(
            "orion_run_duration_seconds",
            "Time from the beginning of a run to its outcome.",
            *("agent", "provider", "outcome"),
            buckets=RUN_BUCKETS,
        )
        self._errors = Counter(
            "orion_run_errors",
            "Runs that failed, by their code.",
            ["code"],
            registry=self.registry,
        )
        self._slack_calls = Counter(
            "orion_slack_calls",
            "Calls of Slack's Web API: ok, refused, limited (429) or unreachable.",
            ["method", "result"],
            registry=self.registry,
        )

    def acknowledged(self, status: int, seconds: float) -> None:
        self._acks.labels(status=str(status)).observe(seconds)

    def placed(self, seconds: float) -> None:
        self._signs.observe(seconds)

    def begun(self, seconds: float) -> None:
        self._waits.observe(seconds)

    def first_token(self, agent: str, seconds: float) -> None:
        self._tokens.labels(agent=agent).observe(seconds)

    def ended(self, *, agent: str, provider: str, outcome: str, code: str, seconds: float) -> None:
        """`code`: of an error; empty = there is none."""
        self._runs.labels(agent=agent, provider=provider, outcome=outcome).observe(seconds)
        if code:
            self._errors.labels(code=code).inc()

    def slack_called(self, method: str, result: str) -> None:
        self._slack_calls.labels(method=method, result=result).inc()

    def _histogram(
        self, name: str, says: str, *labels: str, buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(name, says, labels, buckets=buckets, registry=self.registry)
