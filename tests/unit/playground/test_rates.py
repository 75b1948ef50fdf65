"""Slack's tiers, against a clock that stands still until told."""

from datetime import UTC, datetime, timedelta

import pytest

from app.playground.slack.types import SlackError
from app.playground.slack.web_api import RateLimiter


class HandClock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def _taken_at_once(
    limiter: RateLimiter, method: str, channel: str = "C1"
) -> tuple[int, SlackError]:
    for count in range(1000):
        try:
            limiter.take(method, channel=channel)
        except SlackError as refused:
            return count, refused
    raise AssertionError("no limit was met")


async def test_posting_is_one_a_second_per_channel() -> None:
    """After the burst a post waits a second, in this channel only."""
    clock = HandClock()
    limiter = RateLimiter(clock=clock, enabled=True)
    count, refused = _taken_at_once(limiter, "chat.postMessage")
    assert (count, refused.status, refused.headers) == (5, 429, {"Retry-After": "1"})
    limiter.take("chat.postMessage", channel="C2")
    await clock.sleep(1)
    limiter.take("chat.postMessage", channel="C1")
    with pytest.raises(SlackError, match="ratelimited"):
        limiter.take("chat.postMessage", channel="C1")


async def test_updates_are_tier_three() -> None:
    """Over ten minutes as many updates pass as 50 a minute plus one burst."""
    clock = HandClock()
    limiter = RateLimiter(clock=clock, enabled=True)
    passed = 0
    for _ in range(6000):
        await clock.sleep(0.1)
        try:
            limiter.take("chat.update", channel="C1")
        except SlackError:
            continue
        passed += 1
    assert 500 <= passed <= 521


def test_waiting_as_told_is_enough() -> None:
    """After Retry-After seconds the call passes."""
    clock = HandClock()
    limiter = RateLimiter(clock=clock, enabled=True)
    _, refused = _taken_at_once(limiter, "conversations.replies")
    clock.at += timedelta(seconds=int(refused.headers["Retry-After"]))
    limiter.take("conversations.replies", channel="C1")


def test_limits_can_be_switched_off() -> None:
    """Switched off, nothing is refused."""
    limiter = RateLimiter(clock=HandClock(), enabled=False)
    for _ in range(500):
        limiter.take("chat.postMessage", channel="C1")
