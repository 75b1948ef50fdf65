"""How an event or a pressed button reaches the app: signed, with a deadline, with retries, and with a log of it all."""

import asyncio
import hashlib
import hmac
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import httpx

from app.playground.delivery_log import Attempt, DeliveryLog
from app.playground.slack_types import Clock, JsonObject, LookalikeConfig
from app.playground.socket_mode import SocketHub
from sandbox_runtime.task_group import TaskGroup, open_task_group

PAYLOADS_KEPT = 500


def sign(secret: str, *, timestamp: str, body: bytes) -> str:
    """Source: docs.slack.dev, "Verifying requests from Slack", version v0, read 2026-11."""
    base = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()


class Deliverer:
    """Sends over Socket Mode once the app has connected that way, else to the events URL."""

    def __init__(
        self, *, config: LookalikeConfig, clock: Clock, sockets: SocketHub, log: DeliveryLog
    ) -> None:
        self.events_url = config.events_url
        self._config = config
        self._clock = clock
        self._sockets = sockets
        self._log = log
        self._payloads: deque[JsonObject] = deque(maxlen=PAYLOADS_KEPT)
        self._group: TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Deliveries happen inside this block; leaving it drops what is still under way."""
        # trust_env: a proxy named in the environment must not see deliveries to this machine.
        async with httpx.AsyncClient(trust_env=False) as http, open_task_group() as group:
            self._http, self._group = http, group
            try:
                yield
            finally:
                self._group = None
                for task in self._tasks:
                    task.cancel()

    def send_event(self, payload: JsonObject, *, delay_s: float = 0.0) -> None:
        """Deliver in the background, with Slack's retries."""
        self._payloads.append(payload)
        for _ in range(self._config.deliveries_per_event):
            self._start(payload, delay_s=delay_s, attempt=0, reason="", retries=True)

    def redeliver(self, event_id: str, *, with_header: bool) -> bool:
        """Send a past event once more; without the retry header, as has been seen on real workspaces."""
        for payload in self._payloads:
            if payload["event_id"] == event_id:
                attempt, reason = (1, "http_timeout") if with_header else (0, "")
                self._start(payload, delay_s=0, attempt=attempt, reason=reason, retries=False)
                return True
        return False

    async def send_interaction(self, payload: JsonObject) -> Attempt:
        """A button press: delivered once, never retried. Source: docs.slack.dev, "Handling user interaction", read 2026-11."""
        if self._sockets.is_enabled:
            attempt = await self._sockets.send(
                "interactive", payload, deadline_s=self._config.ack_timeout_s
            )
        else:
            body = urlencode({"payload": json.dumps(payload)}).encode()
            attempt = await self._post(body, "application/x-www-form-urlencoded", {})
        self._log.add(payload["type"], payload["trigger_id"], 0, attempt)
        return attempt

    def _start(
        self, payload: JsonObject, *, delay_s: float, attempt: int, reason: str, retries: bool
    ) -> None:
        if self._group is None:
            raise RuntimeError("deliveries are not running")
        task = self._group.create_task(
            self._deliver(payload, delay_s=delay_s, attempt=attempt, reason=reason, retries=retries)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self, payload: JsonObject, *, delay_s: float, attempt: int, reason: str, retries: bool
    ) -> None:
        if delay_s:
            await self._clock.sleep(delay_s)
        event = payload["event"]
        while True:
            outcome = await self._attempt(payload, attempt=attempt, reason=reason)
            self._log.add(event["type"], payload["event_id"], attempt, outcome, ts=event.get("ts"))
            if (
                outcome.ok
                or outcome.no_retry
                or not retries
                or attempt >= len(self._config.retry_delays_s)
            ):
                return
            await self._clock.sleep(self._config.retry_delays_s[attempt])
            attempt, reason = attempt + 1, outcome.reason

    async def _attempt(self, payload: JsonObject, *, attempt: int, reason: str) -> Attempt:
        if self._sockets.is_enabled:
            return await self._sockets.send(
                "events_api",
                payload,
                deadline_s=self._config.ack_timeout_s,
                attempt=attempt,
                reason=reason,
            )
        retry = (
            {"X-Slack-Retry-Num": str(attempt), "X-Slack-Retry-Reason": reason} if attempt else {}
        )
        return await self._post(json.dumps(payload).encode(), "application/json", retry)

    async def _post(self, body: bytes, content_type: str, headers: Mapping[str, str]) -> Attempt:
        if self.events_url is None or self._http is None:
            return Attempt(via="http", reason="no_events_url", no_retry=True)
        now = self._clock.now()
        timestamp = str(int(now.timestamp()))
        signed = {
            "Content-Type": content_type,
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": sign(self._config.signing_secret, timestamp=timestamp, body=body),
            **headers,
        }
        loop = asyncio.get_running_loop()
        started_s = loop.time()

        def took_ms() -> int:
            return round((loop.time() - started_s) * 1000)

        try:
            async with asyncio.timeout(self._config.ack_timeout_s):
                response = await self._http.post(
                    self.events_url, content=body, headers=signed, timeout=None
                )
        except TimeoutError:
            return Attempt(via="http", reason="http_timeout", latency_ms=took_ms())
        except httpx.HTTPError:
            return Attempt(via="http", reason="connection_failed", latency_ms=took_ms())
        return Attempt(
            via="http",
            status=response.status_code,
            reason="" if response.is_success else "http_error",
            latency_ms=took_ms(),
            no_retry=response.headers.get("X-Slack-No-Retry") == "1",
            answer=_json_object(response),
        )


def _json_object(response: httpx.Response) -> JsonObject:
    """The body, where it is one."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
