"""How the app is told: events and pressed buttons, signed over HTTP or over Socket Mode, with a deadline, retries and a log."""

import asyncio
import hashlib
import hmac
import json
import ssl
import uuid
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from urllib.parse import urlencode

import httpx
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.aio import TaskGroup, open_task_group
from app.playground.slack.types import (
    APP_ID,
    BOT_USER_ID,
    ENTERPRISE_ID,
    TEAM_ID,
    Change,
    Channel,
    Clock,
    FakeSlackConfig,
    JsonObject,
    Message,
    new_id,
)
from app.playground.slack.workspace import Workspace

_NO_REUSE = httpx.Limits(max_keepalive_connections=0)
"""Slack sends from many machines: a balancer before several processes would otherwise see one connection, and lead all to one of them."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Orion listens on this machine without it; to load whom to trust would take 40 ms."""


def events_of(
    change: Change, workspace: Workspace, *, mention_lacks: Collection[str] = ()
) -> list[JsonObject]:
    """Returns the events of one change; a mention yields two, `message` first; the other one without some fields."""
    channel = workspace.channels[change.channel]
    if BOT_USER_ID not in channel.members or change.message is None:
        return []
    if change.kind == "posted":
        return _posted(change.message, channel, workspace, mention_lacks)
    if change.kind in {"changed", "deleted"}:
        return [_altered(change, change.message, channel, workspace)]
    return []


def _posted(
    message: Message, channel: Channel, workspace: Workspace, mention_lacks: Collection[str]
) -> list[JsonObject]:
    """Source: docs.slack.dev, events `message` and `app_mention` (the latter never for direct messages), read 2026-11."""
    event = {
        **workspace.render(message),
        "channel": channel.id,
        "event_ts": message.ts,
    }
    person = workspace.people[message.user]
    if person.team_id != TEAM_ID:
        event |= {"user_team": person.team_id, "source_team": person.team_id}
    if message.app_context and channel.im_user:
        # Source: docs.slack.dev, agent context: folded into direct messages to the app, read 2026-11.
        event["app_context"] = message.app_context
    events = [{**event, "channel_type": channel.type}]
    mentioned = f"<@{BOT_USER_ID}>" in message.text
    if mentioned and channel.type == "channel" and not message.is_bot:
        lacking = {"subtype", *mention_lacks}
        rest = {name: value for name, value in event.items() if name not in lacking}
        events.append(rest | {"type": "app_mention"})
    return events


def _altered(
    change: Change, message: Message, channel: Channel, workspace: Workspace
) -> JsonObject:
    """Source: docs.slack.dev, `message_changed` and `message_deleted`: hidden, with the previous message, read 2026-11."""
    event_ts = workspace.next_ts()
    event: JsonObject = {
        "type": "message",
        "subtype": f"message_{change.kind}",
        "hidden": True,
        "channel": channel.id,
        "channel_type": channel.type,
        "ts": event_ts,
        "event_ts": event_ts,
        "previous_message": change.previous,
    }
    if change.kind == "deleted":
        return event | {"deleted_ts": message.ts}
    return event | {"message": workspace.render(message)}


def session_stopped(*, workspace: Workspace, channel: str, thread_ts: str, user: str) -> JsonObject:
    """The native Stop. Source: docs.slack.dev, `agent_session_stopped`, read 2026-11."""
    return {
        "type": "agent_session_stopped",
        "channel": channel,
        "thread_ts": thread_ts,
        "user": user,
        "streaming_message_ts": [],
        "event_ts": workspace.next_ts(),
    }


def reaction_added(*, workspace: Workspace, message: Message, name: str, user: str) -> JsonObject:
    """Source: docs.slack.dev, `reaction_added`: `item_user` wrote the message, read 2026-11."""
    return {
        "type": "reaction_added",
        "user": user,
        "reaction": name,
        "item_user": message.user,
        "item": {"type": "message", "channel": message.channel, "ts": message.ts},
        "event_ts": workspace.next_ts(),
    }


def subteam_changed(*, workspace: Workspace, group: str) -> JsonObject:
    """Source: docs.slack.dev, `subteam_members_changed`, without the counts, read 2026-11."""
    return {
        "type": "subteam_members_changed",
        "subteam_id": group,
        "team_id": TEAM_ID,
        "event_ts": workspace.next_ts(),
    }


def app_home_opened(*, workspace: Workspace, user: str, tab: str) -> JsonObject:
    """Source: docs.slack.dev, `app_home_opened`: at every opening, with the view that was published, read 2026-11."""
    event = {
        "type": "app_home_opened",
        "user": user,
        "channel": workspace.channel(user).id,
        "tab": tab,
        "event_ts": workspace.next_ts(),
    }
    view = workspace.homes.get(user) if tab == "home" else None
    return event | ({"view": view} if view else {})


def envelope(event: JsonObject, channel: Channel, *, now_s: float) -> JsonObject:
    """Returns the HTTP body around an event. Source: docs.slack.dev, Events API, "Callback field", read 2026-11."""
    return {
        "token": "deprecated",
        "team_id": TEAM_ID,
        "context_team_id": TEAM_ID,
        "context_enterprise_id": ENTERPRISE_ID,
        "api_app_id": APP_ID,
        "event": event,
        "type": "event_callback",
        "event_id": new_id("Ev"),
        "event_time": int(now_s),
        "event_context": f"4-{new_id('')}",
        "is_ext_shared_channel": channel.is_ext_shared,
        "authorizations": [
            {
                "enterprise_id": ENTERPRISE_ID,
                "team_id": TEAM_ID,
                "user_id": BOT_USER_ID,
                "is_bot": True,
                "is_enterprise_install": False,
            }
        ],
    }


ENTRIES_KEPT, PAYLOADS_KEPT = 1000, 500


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


SOCKETS_MAX = 10
SEND_TIMEOUT_S = 5.0
POLICY_VIOLATION = 1008


@dataclass(slots=True, kw_only=True, eq=False)
class Socket:
    websocket: WebSocket
    pending: dict[str, asyncio.Future[JsonObject]] = field(default_factory=dict)
    is_deaf: bool = False
    """Open, answering pings, and delivering nothing: reported by integrators, read 2026-11."""

    async def send(self, frame: JsonObject) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self.websocket.send_text(json.dumps(frame))


class SocketHub:
    def __init__(self) -> None:
        self.tickets: set[str] = set()
        """Addresses given out and not yet used."""
        self.is_enabled = False
        """True from the first connection on: then nothing goes over HTTP, also while no socket is open."""
        self._sockets: list[Socket] = []
        self._any_open = asyncio.Event()
        self._turn = 0

    @property
    def count(self) -> int:
        return len(self._sockets)

    async def endpoint(self, websocket: WebSocket) -> None:
        ticket = websocket.query_params.get("ticket", "")
        await websocket.accept()
        if ticket not in self.tickets:
            await websocket.close(POLICY_VIOLATION, "invalid ticket")
            return
        self.tickets.discard(ticket)
        socket = Socket(websocket=websocket)
        if len(self._sockets) >= SOCKETS_MAX:
            await socket.send({"type": "disconnect", "reason": "too_many_websockets"})
            await websocket.close()
            return
        self._sockets.append(socket)
        self._any_open.set()
        self.is_enabled = True
        try:
            await socket.send(self._hello())
            await self._listen(socket)
        except (WebSocketDisconnect, TimeoutError):
            pass
        finally:
            self._drop(socket)

    async def send(
        self,
        kind: str,
        payload: JsonObject,
        *,
        deadline_s: float,
        attempt: int = 0,
        reason: str = "",
    ) -> Attempt:
        """Sends it to the next socket in turn; waits for one to be open and for its acknowledgement."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        envelope_id = str(uuid.uuid4())
        frame: JsonObject = {
            "type": kind,
            "envelope_id": envelope_id,
            "payload": payload,
            "accepts_response_payload": kind != "events_api",
        }
        if kind == "events_api":
            frame |= {"retry_attempt": attempt, "retry_reason": reason}
        failure, answer = "", JsonObject()
        try:
            async with asyncio.timeout(deadline_s):
                socket = await self._next_socket()
                answer = await self._exchange(socket, frame)
        except TimeoutError:
            failure = "timeout"
        except (WebSocketDisconnect, RuntimeError, ConnectionError):
            # RuntimeError: Starlette's word for a socket that closed under a send.
            failure = "connection_failed"
        latency_ms = round((loop.time() - started_s) * 1000)
        return Attempt(
            via="socket",
            status=None if failure else 200,
            reason=failure,
            latency_ms=latency_ms,
            answer=answer,
        )

    async def disconnect(self, reason: str) -> int:
        """Tell every socket to reconnect; on `refresh_requested` and `link_disabled` we close it as well."""
        sockets = list(self._sockets)
        for socket in sockets:
            await socket.send({"type": "disconnect", "reason": reason})
            if reason != "warning":
                self._drop(socket)
                await socket.websocket.close()
        return len(sockets)

    def deafen(self) -> int:
        """Lets the sockets that are open deliver nothing from now on; new ones do."""
        for socket in self._sockets:
            socket.is_deaf = True
        return len(self._sockets)

    async def _next_socket(self) -> Socket:
        await self._any_open.wait()
        self._turn += 1
        return self._sockets[self._turn % len(self._sockets)]

    async def _exchange(self, socket: Socket, frame: JsonObject) -> JsonObject:
        acked: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        socket.pending[frame["envelope_id"]] = acked
        try:
            if not socket.is_deaf:
                await socket.send(frame)
            return await acked
        finally:
            socket.pending.pop(frame["envelope_id"], None)

    async def _listen(self, socket: Socket) -> None:
        while True:
            frame = json.loads(await socket.websocket.receive_text())
            acked = socket.pending.get(frame.get("envelope_id", ""))
            if acked is not None and not acked.done():
                payload = frame.get("payload")
                acked.set_result(payload if isinstance(payload, dict) else {})

    def _drop(self, socket: Socket) -> None:
        if socket in self._sockets:
            self._sockets.remove(socket)
        if not self._sockets:
            self._any_open.clear()
        for acked in socket.pending.values():
            if not acked.done():
                acked.set_exception(ConnectionError("the socket closed"))

    def _hello(self) -> JsonObject:
        return {
            "type": "hello",
            "num_connections": len(self._sockets),
            "connection_info": {"app_id": APP_ID},
            "debug_info": {"host": "playground", "approximate_connection_time": 18060},
        }


def sign(secret: str, *, timestamp: str, body: bytes) -> str:
    """Source: docs.slack.dev, "Verifying requests from Slack", version v0, read 2026-11."""
    base = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()


class Deliverer:
    """Sends over Socket Mode once the app has connected that way, else to the events URL."""

    def __init__(self, *, config: FakeSlackConfig, clock: Clock, sockets: SocketHub) -> None:
        self.events_url = config.events_url
        self._config = config
        self._clock = clock
        self._sockets = sockets
        self._log: deque[JsonObject] = deque(maxlen=ENTRIES_KEPT)
        self._payloads: deque[JsonObject] = deque(maxlen=PAYLOADS_KEPT)
        self._group: TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Deliveries happen inside this block; leaving it drops what is still under way."""
        # trust_env: a proxy named in the environment must not see deliveries to this machine.
        async with (
            httpx.AsyncClient(verify=_NO_TLS, trust_env=False, limits=_NO_REUSE) as http,
            open_task_group() as group,
        ):
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
            self._start(self._deliver(payload, delay_s=delay_s))

    def redeliver(self, event_id: str, *, with_header: bool) -> bool:
        """Send a past event once more; without the retry header, as has been seen on real workspaces."""
        for payload in self._payloads:
            if payload["event_id"] == event_id:
                attempt, reason = (1, "http_timeout") if with_header else (0, "")
                self._start(self._deliver(payload, attempt=attempt, reason=reason, retries=False))
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
        self._record(payload["type"], payload["trigger_id"], 0, attempt)
        return attempt

    async def send_command(self, form: JsonObject) -> Attempt:
        """A slash command: a form of its own, not JSON in a field; never retried. Source: docs.slack.dev, "Slash commands", read 2026-11."""
        if self._sockets.is_enabled:
            attempt = await self._sockets.send(
                "slash_commands", form, deadline_s=self._config.ack_timeout_s
            )
        else:
            body = urlencode(form).encode()
            attempt = await self._post(body, "application/x-www-form-urlencoded", {})
        self._record("slash_commands", form["trigger_id"], 0, attempt)
        return attempt

    def log(self) -> list[JsonObject]:
        """Every attempt, newest first."""
        return list(reversed(self._log))

    def _record(
        self, kind: str, event_id: str, number: int, outcome: Attempt, *, ts: str | None = None
    ) -> None:
        entry = {"type": kind, "event_id": event_id, "message_ts": ts, "attempt": number}
        self._log.append(entry | {"at": self._clock.now().isoformat()} | asdict(outcome))

    def _start(self, delivery: Coroutine[object, object, None]) -> None:
        if self._group is None:
            delivery.close()
            raise RuntimeError("deliveries are not running")
        task = self._group.create_task(delivery)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self,
        payload: JsonObject,
        *,
        delay_s: float = 0.0,
        attempt: int = 0,
        reason: str = "",
        retries: bool = True,
    ) -> None:
        if delay_s:
            await self._clock.sleep(delay_s)
        event = payload["event"]
        while True:
            outcome = await self._attempt(payload, attempt=attempt, reason=reason)
            self._record(event["type"], payload["event_id"], attempt, outcome, ts=event.get("ts"))
            is_last = not retries or attempt >= len(self._config.retry_delays_s)
            if outcome.ok or outcome.no_retry or is_last:
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
    """Returns the JSON object of a body; an empty one where it has none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
