"""The load: signed mentions over plain HTTP from a process of its own, so that it shares no lock with the server.

`python -m tests.bench.load PLAN`, PLAN being a JSON `LoadPlan`; prints a JSON `LoadResult`.

Open loop: events leave at the times of a Poisson process, whether or not earlier ones are answered, and latency counts
from the intended time, so a server that stalls is charged for all that would have arrived meanwhile.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal
from urllib.parse import urlsplit

import uvloop

from app.playground.slack.deliveries import envelope, sign
from app.playground.slack.types import BOT_USER_ID, TEAM_ID, Channel, FakeSlackConfig, new_id
from sandbox_runtime.task_group import open_task_group

ANSWER_TIMEOUT_S = 10.0
WARM_UP_EVENTS = 40
TWIN_AFTER_S = 0.25
"""As seen at Slack."""
SEED = 20261121


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    url: str
    mode: Literal["open", "closed"]
    seconds: float
    rate: float = 50.0
    """Mentions per second of the open loop."""
    in_flight: int = 32
    """Requests always under way in the closed loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Of deliveries: in the open loop each mention comes as two."""

    answered: int
    failed: int
    """Not 200, or no answer in time."""
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the least value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def mention(url: str) -> tuple[bytes, bytes]:
    """One mention whose ts and channel nobody has seen before, as Slack tells of it: two signed deliveries, as the bytes of HTTP requests."""
    channel = Channel(id=new_id("C"), name="bench", members=set())
    ts = f"{time.time():.6f}"
    event = {
        "user": "U0BENCH",
        "text": f"<@{BOT_USER_ID}> what is the answer?",
        "ts": ts,
        "event_ts": ts,
        "channel": channel.id,
        "team": TEAM_ID,
        "client_msg_id": new_id("M"),
    }
    mention, twin = (
        _delivery(url, {"type": kind, **event}, channel) for kind in ("app_mention", "message")
    )
    return mention, twin


def _delivery(url: str, event: dict[str, str], channel: Channel) -> bytes:
    body = json.dumps(envelope(event, channel, now_s=time.time())).encode()
    timestamp = str(int(time.time()))
    signature = sign(FakeSlackConfig().signing_secret, timestamp=timestamp, body=body)
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"X-Slack-Request-Timestamp: {timestamp}\r\nX-Slack-Signature: {signature}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connections:
    """Kept open and reused, as Slack does; as many as there are requests under way."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, request: bytes) -> bool:
        """Whether the answer was a 200."""
        reader, writer = await self._take()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        await reader.readexactly(sizes[0])
        self._idle.append((reader, writer))
        return lines[0].split()[1] == b"200"

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


class Load:
    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._connections = Connections(plan.url)
        self._latencies_s: list[float] = []
        self._failed = 0

    async def run(self) -> LoadResult:
        for _ in range(WARM_UP_EVENTS):
            for delivery in mention(self._plan.url):
                await self._send(delivery, time.perf_counter())
        self._latencies_s.clear()
        started = time.perf_counter()
        await (self._open_loop() if self._plan.mode == "open" else self._closed_loop())
        took_s = time.perf_counter() - started
        self._connections.close()
        if not self._latencies_s:
            raise RuntimeError("no event was answered")
        p50, p95, p99 = (1000 * percentile(self._latencies_s, share) for share in (0.5, 0.95, 0.99))
        return LoadResult(
            answered=len(self._latencies_s),
            failed=self._failed,
            per_s=len(self._latencies_s) / took_s,
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
        )

    async def _open_loop(self) -> None:
        dice = random.Random(SEED)  # noqa: S311 - arrival times, the same for every server
        offsets = [0.0]
        while offsets[-1] < self._plan.seconds:
            offsets.append(offsets[-1] + dice.expovariate(self._plan.rate))
        requests = [mention(self._plan.url) for _ in offsets]
        started = time.perf_counter()
        async with open_task_group() as group:
            for offset, deliveries in zip(offsets, requests, strict=True):
                intended = started + offset
                await asyncio.sleep(max(0.0, intended - time.perf_counter()))
                group.create_task(self._send_both(deliveries, intended))

    async def _send_both(self, deliveries: tuple[bytes, bytes], intended: float) -> None:
        mention, twin = deliveries
        async with open_task_group() as group:
            group.create_task(self._send(mention, intended))
            await asyncio.sleep(TWIN_AFTER_S)
            await self._send(twin, intended + TWIN_AFTER_S)

    async def _closed_loop(self) -> None:
        until = time.perf_counter() + self._plan.seconds

        async def sender() -> None:
            while (now := time.perf_counter()) < until:
                await self._send(mention(self._plan.url)[0], now)

        async with open_task_group() as group:
            for _ in range(self._plan.in_flight):
                group.create_task(sender())

    async def _send(self, request: bytes, intended: float) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                is_accepted = await self._connections.post(request)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            is_accepted = False
        if is_accepted:
            self._latencies_s.append(time.perf_counter() - intended)
        else:
            self._failed += 1


def main() -> None:
    result = uvloop.run(Load(LoadPlan(**json.loads(sys.argv[1]))).run())
    print(json.dumps(asdict(result)))  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
