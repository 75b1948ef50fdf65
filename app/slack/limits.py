"""Slack's rate limits, kept on this side: a call waits in a line here, in the order that matters, instead of being refused there.

Slack limits each method by workspace; posting a message by channel, too. The rates below are a little under Slack's, so that
its own count is seldom reached. When it says 429 all the same, the pause that it asks for is a debt of the bucket concerned:
one channel's pause holds up no other channel.
"""

import asyncio
import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many calls at once, then so many a second."""

    burst: int
    per_s: float
    reserve: int = 0
    """Of the burst, what only urgent calls may use."""

    def shared_by(self, processes: int) -> "Rate":
        """Returns what each of them may use, so that all together keep to this."""
        burst = max(self.burst // processes, 1)
        return Rate(
            burst=burst,
            per_s=self.per_s / processes,
            # One less at least than there ever is: else who is patient would wait for ever.
            reserve=min(self.reserve // processes, burst - 1),
        )


METHOD_RATES: Final[Mapping[str, Rate]] = {
    "chat.postMessage": Rate(burst=110, per_s=2.9),
    "chat.update": Rate(burst=15, per_s=0.8, reserve=5),
    "chat.delete": Rate(burst=15, per_s=0.8),
    "conversations.history": Rate(burst=15, per_s=0.8),
    "conversations.replies": Rate(burst=15, per_s=0.8, reserve=5),
    "chat.startStream": Rate(burst=20, per_s=0.3),
    "chat.appendStream": Rate(burst=38, per_s=1.6, reserve=24),
    "chat.stopStream": Rate(burst=20, per_s=0.3),
    "agents.sessions.setStatus": Rate(burst=18, per_s=0.8, reserve=14),
    "chat.postEphemeral": Rate(burst=30, per_s=1.6),
    "users.conversations": Rate(burst=15, per_s=0.8),
    "users.info": Rate(burst=30, per_s=1.6),
    "conversations.info": Rate(burst=15, per_s=0.8),
    "files.info": Rate(burst=30, per_s=1.6),
    "views.open": Rate(burst=30, per_s=1.6),
    "usergroups.users.list": Rate(burst=20, per_s=0.3),
    "views.publish": Rate(burst=30, per_s=1.6),
    "assistant.threads.setSuggestedPrompts": Rate(burst=30, per_s=1.6),
    "files.getUploadURLExternal": Rate(burst=30, per_s=1.6),
    "files.completeUploadExternal": Rate(burst=30, per_s=1.6),
}
"""Of a workspace. Slack's: several hundred posts a minute; 20 of tier 2 (starts and stops of streams), 50 of tier 3 (update,
history, replies, conversations, status), 100 of tier 4.

How many Slack bears at once is not published: in no minute are there more than 284 posts, 110 of them at once, and of the
others no more than is published for a minute. Source: Slack Web API rate limits, read 2026-11.
"""
CHANNEL_RATES: Final[Mapping[str, Rate]] = {"chat.postMessage": Rate(burst=4, per_s=0.95)}
"""Of one channel. Slack's: about one a second. Source: Slack Web API, chat.postMessage, read 2026-11."""
_OTHERS: Final = Rate(burst=100, per_s=10)
_ROUNDING: Final = 1e-6
"""By which a sum of floats may stay below a whole token."""
_MAX_CHANNELS: Final = 1_000
"""Whose buckets are remembered; those that are full again go first."""


class Bucket:
    """A token bucket with a line in front: urgent calls first, then in the order of asking."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._counted_at: float | None = None
        self._line: list[tuple[bool, int, asyncio.Future[None]]] = []
        self._urgent = 0
        """In the line, and still waiting."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._paused_until = 0.0

    def change(self, rate: Rate) -> None:
        """Goes on at another rate."""
        self._tokens = min(self._grown(), float(rate.burst))
        self._rate = rate
        self._serve()

    @property
    def is_idle(self) -> bool:
        """Whether it says nothing that a new one would not."""
        return not self._line and self._grown() >= self._rate.burst

    @property
    def line_s(self) -> float:
        """Returns about how long an urgent call that asks now would wait; 0 = it need not."""
        return max((1 + self._urgent - self._grown()) / self._rate.per_s, 0.0)

    @property
    def spare(self) -> int:
        """Returns how many calls could go now, all of them urgent."""
        return 0 if self.pause_s else max(int(self._grown()) - self._urgent, 0)

    @property
    def pause_s(self) -> float:
        """Returns how long Slack wants to be left alone."""
        return max(self._paused_until - asyncio.get_running_loop().time(), 0.0)

    async def take(self, *, is_urgent: bool = True) -> None:
        """Returns when a call may go; whoever is cancelled leaves the line."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (not is_urgent, next(self._numbers), turn))
        self._urgent += is_urgent
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._tokens += 1
            else:
                self._urgent -= is_urgent
            turn.cancel()
            self._serve()
            raise

    def pause(self, seconds: float) -> None:
        """Lets nobody through before this time; then one, and on at the bucket's rate."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)
        self._tokens = min(self._grown(), 1 - seconds * self._rate.per_s)
        self._serve()

    def _serve(self) -> None:
        """Lets through whom the tokens are enough for, and sets a timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._line:
            is_patient, _, turn = self._line[0]
            if turn.done():
                heapq.heappop(self._line)
                continue
            needed = 1 + (self._rate.reserve if is_patient else 0)
            if (missing := needed - self._grown()) > _ROUNDING:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(missing / self._rate.per_s, self._serve)
                return
            heapq.heappop(self._line)
            self._tokens -= 1
            self._urgent -= not is_patient
            turn.set_result(None)

    def _grown(self) -> float:
        """Returns the tokens there are now."""
        now = asyncio.get_running_loop().time()
        if self._counted_at is not None:
            grown = self._tokens + (now - self._counted_at) * self._rate.per_s
            self._tokens = min(grown, float(self._rate.burst))
        self._counted_at = now
        return self._tokens


class CallLimits:
    def __init__(
        self,
        *,
        methods: Mapping[str, Rate] = METHOD_RATES,
        channels: Mapping[str, Rate] = CHANNEL_RATES,
    ) -> None:
        self._whole_rates = self._rates = methods
        self._others = _OTHERS
        self._channel_rates = channels
        self._methods: dict[str, Bucket] = {}
        self._channels: dict[tuple[str, str], Bucket] = {}

    def share(self, processes: int) -> None:
        """Leaves the others of so many processes (this one included, 1 or more) their part of what the workspace may.

        A channel's rate is not divided: mostly one of them writes there, and Slack's 429 holds up that channel alone.
        """
        self._rates = {name: rate.shared_by(processes) for name, rate in self._whole_rates.items()}
        self._others = _OTHERS.shared_by(processes)
        for name, bucket in self._methods.items():
            bucket.change(self._rates.get(name, self._others))

    async def turn(self, method: str, channel: str = "", *, is_urgent: bool = True) -> None:
        """Returns when a call may go: first by its channel, then by its workspace."""
        if bucket := self._of_channel(method, channel):
            await bucket.take(is_urgent=is_urgent)
        await self._of_method(method).take(is_urgent=is_urgent)

    def line_s(self, method: str, channel: str = "") -> float:
        """Returns about how long an urgent call that asks now would wait."""
        return max(bucket.line_s for bucket in self._both(method, channel))

    def spare(self, method: str) -> int:
        """Returns how many calls of a workspace's could go now."""
        return self._of_method(method).spare

    def pause_s(self, method: str, channel: str = "") -> float:
        """Returns how long Slack wants such calls left alone."""
        return max(bucket.pause_s for bucket in self._both(method, channel))

    def pause(self, method: str, channel: str, seconds: float) -> None:
        """Pauses after a 429: a limit by channel holds for its channel, any other for the workspace."""
        (self._of_channel(method, channel) or self._of_method(method)).pause(seconds)

    def _both(self, method: str, channel: str) -> list[Bucket]:
        of_channel = self._of_channel(method, channel)
        return [self._of_method(method), *([of_channel] if of_channel else [])]

    def _of_method(self, method: str) -> Bucket:
        if method not in self._methods:
            self._methods[method] = Bucket(self._rates.get(method, self._others))
        return self._methods[method]

    def _of_channel(self, method: str, channel: str) -> Bucket | None:
        rate = self._channel_rates.get(method)
        if rate is None or not channel:
            return None
        key = (method, channel)
        if key not in self._channels:
            if len(self._channels) >= _MAX_CHANNELS:
                busy = {key: one for key, one in self._channels.items() if not one.is_idle}
                self._channels = busy
            self._channels[key] = Bucket(rate)
        return self._channels[key]
