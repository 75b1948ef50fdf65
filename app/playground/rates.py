"""How often a method may be called: Slack's tiers as token buckets."""

import math
from dataclasses import dataclass

from app.playground.slack_types import Clock, SlackError


@dataclass(frozen=True, slots=True)
class Rate:
    per_minute: float
    burst: int


# Source: docs.slack.dev, "Rate limits": tier 1: 1+, 2: 20+, 3: 50+, 4: 100+ a minute, bursts tolerated, 429 with Retry-After
# in seconds; chat.postMessage about 1/s a channel plus a workspace cap of several hundred a minute. Read 2026-11. The size
# of a tolerated burst is not published; these are cautious.
TIER_2, TIER_3, TIER_4 = Rate(20, 10), Rate(50, 20), Rate(100, 40)
POST_PER_CHANNEL = Rate(60, 5)
POST_PER_WORKSPACE = Rate(300, 60)
SPECIAL = Rate(600, 100)

TIERS = {
    "chat.update": TIER_3,
    "chat.delete": TIER_3,
    "chat.postEphemeral": TIER_4,
    "conversations.info": TIER_3,
    "conversations.replies": TIER_3,
    "conversations.history": TIER_3,
    "conversations.open": TIER_3,
    "conversations.list": TIER_2,
    "reactions.add": TIER_3,
    "reactions.remove": TIER_2,
    "users.info": TIER_4,
    "views.open": TIER_4,
    "agents.sessions.setStatus": TIER_3,
    "files.getUploadURLExternal": TIER_4,
    "files.completeUploadExternal": TIER_4,
    "apps.connections.open": Rate(20, 20),
}


class RateLimiter:
    def __init__(self, *, clock: Clock, enabled: bool) -> None:
        self._clock = clock
        self._enabled = enabled
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, method: str, *, channel: str) -> None:
        """One call's worth.

        Raises:
            SlackError: ratelimited, status 429, with Retry-After.
        """
        if not self._enabled:
            return
        if method == "chat.postMessage":
            rates = [((method, channel), POST_PER_CHANNEL), ((method, ""), POST_PER_WORKSPACE)]
        else:
            rates = [((method, ""), TIERS.get(method, SPECIAL))]
        now_s = self._clock.now().timestamp()
        levels = [self._level(key, rate, now_s) for key, rate in rates]
        for level, (_, rate) in zip(levels, rates, strict=True):
            if level < 1:
                wait_s = math.ceil((1 - level) * 60 / rate.per_minute)
                raise SlackError("ratelimited", status=429, headers={"Retry-After": str(wait_s)})
        for level, (key, _) in zip(levels, rates, strict=True):
            self._buckets[key] = (level - 1, now_s)

    def _level(self, key: tuple[str, str], rate: Rate, now_s: float) -> float:
        level, at_s = self._buckets.get(key, (float(rate.burst), now_s))
        return min(float(rate.burst), level + (now_s - at_s) * rate.per_minute / 60)
