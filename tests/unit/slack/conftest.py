"""A scripted Slack Web API over real HTTP: records calls, keeps messages, and fails as it is told; a Bolt app with a recording intake."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr
from slack_bolt.async_app import AsyncApp

from app.runs.testing import Run, RunRequest, Surface, run_id_for
from app.slack.api import RetryPolicy
from app.slack.connection import SlackConnection, SlackOptions, open_slack
from app.slack.live import UpdateTiming
from tests.unit.slack.building import RecordingIntake, make_app

MESSAGE_TS = "1799999999.000100"


@dataclass(frozen=True)
class Answer:
    """What one call gets instead of the usual; `accepts`: it is carried out all the same."""

    status: int = 200
    error: str = ""
    retry_after: str = ""
    cut: bool = False
    delay_s: float = 0.0
    until: asyncio.Event | None = None
    """It is not given before."""
    accepts: bool = False
    body: str = ""
    body_json: dict[str, Any] | None = None
    """What stands in the answer of a call that is carried out."""


@dataclass
class SlackServer:
    url: str = ""
    calls: list[tuple[str, dict[str, Any], float]] = field(default_factory=list)
    script: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    pages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Of people and channels that are not called by their ids."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of each answer."""
    in_flight: Counter[str] = field(default_factory=Counter)
    """Calls, by their methods."""

    def arguments(self, method: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments, _ in self.calls if name == method]

    def times(self, method: str) -> list[float]:
        return [at for name, _, at in self.calls if name == method]

    def fail(self, method: str, *answers: Answer) -> None:
        self.script[method].extend(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        arguments: dict[str, Any] = dict(request.query)
        if request.content_type == "application/json":
            arguments |= json.loads(await request.text())
        self.calls.append((method, arguments, asyncio.get_running_loop().time()))
        answer = self.script[method].pop(0) if self.script[method] else None
        self.in_flight[method] += 1
        try:
            await asyncio.sleep(answer.delay_s if answer else 0)
            if answer and answer.until:
                await answer.until.wait()
            result = self.carry_out(method, arguments) if not answer or answer.accepts else {}
            if answer and answer.body_json is not None:
                return web.json_response({"ok": True, **answer.body_json})
        finally:
            self.in_flight[method] -= 1
        if answer is None or (answer.accepts and not answer.cut and answer.status == 200):
            return web.json_response(result, headers=self.headers)
        if answer.cut:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if answer.body:
            return web.Response(status=answer.status, text=answer.body, content_type="text/html")
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        body = {"ok": False, "error": answer.error or "internal_error"}
        return web.json_response(body, status=answer.status, headers=headers)

    def carry_out(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if method.startswith("chat."):
            return self.write(method, arguments)
        if method == "conversations.replies":
            root = {"ts": arguments["ts"], "user": "UASKER", "text": "hello"}
            page = {"messages": [root, *self.messages.values()]}
            return {"ok": True, **(self.page(arguments) if self.pages else page)}
        fixed: dict[str, dict[str, Any]] = {
            "auth.test": {"team_id": "T1", "user_id": "UBOT", "bot_id": "BBOT"},
            "users.info": {"user": {"profile": {"display_name": self.name_of(arguments, "user")}}},
            "conversations.info": {"channel": {"name": self.name_of(arguments, "channel")}},
        }
        return {"ok": True, **fixed.get(method, {})}

    def name_of(self, arguments: dict[str, Any], key: str) -> str:
        one = str(arguments.get(key))
        return self.names.get(one, one.title())

    def write(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "chat.postMessage":
                ts = f"1800000000.{len(self.messages) + 1:06d}"
                self.messages[ts] = {**arguments, "ts": ts, "user": "UBOT", "bot_id": "BBOT"}
                return {"ok": True, "ts": ts, "channel": arguments["channel"]}
            case "chat.update":
                if arguments["ts"] not in self.messages:
                    return {"ok": False, "error": "message_not_found"}
                self.messages[arguments["ts"]] |= arguments
                return {"ok": True, "ts": arguments["ts"]}
            case _:
                return {"ok": True}

    def page(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Oldest first, the root always: real paging over `pages["all"]`, sizes as asked for."""
        root, *replies = self.pages["all"]
        latest = arguments.get("latest", "9")
        inside = [
            reply
            for reply in replies
            if arguments.get("oldest", "0") < reply["ts"] < latest
            or ("inclusive" in arguments and reply["ts"] == latest)
        ]
        start, size = int(arguments.get("cursor", "0")), int(arguments["limit"])
        more = start + size < len(inside)
        return {
            "messages": [root, *inside[start : start + size]],
            "has_more": more,
            "response_metadata": {"next_cursor": str(start + size) if more else ""},
        }


@pytest.fixture
async def slack_server() -> AsyncIterator[SlackServer]:
    server = SlackServer()
    application = web.Application()
    application.router.add_route("*", "/api/{method}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # asyncio's Server has them
    server.url = f"http://127.0.0.1:{port}/api/"
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest.fixture
def answer() -> type[Answer]:
    return Answer


@pytest.fixture
def slack_options(slack_server: SlackServer) -> SlackOptions:
    return SlackOptions(
        bot_token=SecretStr("xoxb-test"),
        base_url=slack_server.url,
        policy=RetryPolicy(first_wait_s=0.02, max_wait_s=0.05, call_timeout_s=0.4),
        timing=UpdateTiming(first_after_s=0.05, interval_s=0.3, refresh_after_s=1.0),
        look_again_after_s=0.05,
    )


@pytest.fixture
async def slack(slack_options: SlackOptions) -> AsyncIterator[SlackConnection]:
    async with open_slack(slack_options) as connection:
        yield connection


@pytest.fixture
def run() -> Run:
    request = RunRequest(
        run_id=run_id_for(team="T1", channel="C1", message_ts=MESSAGE_TS),
        team="T1",
        channel="C1",
        thread_ts=MESSAGE_TS,
        message_ts=MESSAGE_TS,
        user="UASKER",
        text="hello",
        surface=Surface.CHANNEL,
        received_at=datetime.now(UTC),
    )
    return Run(id=request.run_id, request=request, created_at=request.received_at)


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
def bolt(intake: RecordingIntake) -> AsyncApp:
    return make_app(intake)
