"""What happened to each delivery."""

from collections import deque
from dataclasses import asdict, dataclass, field

from app.playground.slack_types import Clock, JsonObject

ENTRIES_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    via: str
    """http | socket"""
    status: int | None = None
    reason: str = ""
    """Why it failed, as in X-Slack-Retry-Reason; empty when the app acknowledged."""
    latency_ms: int = 0
    no_retry: bool = False
    answer: JsonObject = field(default_factory=dict)
    """What the app said with its acknowledgement of an interaction."""

    @property
    def ok(self) -> bool:
        return not self.reason


class DeliveryLog:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[JsonObject] = deque(maxlen=ENTRIES_KEPT)

    def add(
        self, kind: str, event_id: str, attempt: int, outcome: Attempt, *, ts: str | None = None
    ) -> None:
        self._entries.append(
            {
                "type": kind,
                "event_id": event_id,
                "message_ts": ts,
                "attempt": attempt,
                "at": self._clock.now().isoformat(),
                **asdict(outcome),
            }
        )

    def entries(self) -> list[JsonObject]:
        """Newest first."""
        return list(reversed(self._entries))
