"""A served fake Slack, and an app on the other side that records what Slack sends it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.model.server import ModelPace, create_model_app
from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import FakeSlackConfig
from app.playground.stack import create_slack_app
from app.web.hosting import serve
from tests.fake_slack_client import FakeSlackClient, open_client
from tests.plain_http import NO_TLS
from tests.unit.playground.speaking import Model
from tests.waiting import until


@dataclass
class Receiver:
    """The app's side: records requests, answers as scripted (then 200)."""

    app: FastAPI = field(default_factory=FastAPI)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answers: list[Response | float] = field(default_factory=list)
    """The next answers; a number is a delay in seconds before a 200."""

    def __post_init__(self) -> None:
        self.app.add_route("/slack/events", self._receive, methods=["POST"])

    async def _receive(self, request: Request) -> Response:
        self.requests.append((dict(request.headers), await request.body()))
        answer = self.answers.pop(0) if self.answers else Response()
        if isinstance(answer, Response):
            return answer
        await asyncio.sleep(answer)
        return Response()

    def payloads(self) -> list[dict[str, Any]]:
        return [_parsed(headers, body) for headers, body in self.requests]

    async def wait(self, count: int) -> list[dict[str, Any]]:
        await until(lambda: len(self.requests) >= count)
        return self.payloads()


def _parsed(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    is_form = headers["content-type"].startswith("application/x-www-form-urlencoded")
    text = parse_qs(body.decode())["payload"][0] if is_form else body
    parsed: dict[str, Any] = json.loads(text)
    return parsed


@dataclass
class Playground:
    url: str
    fake_slack: FakeSlack
    client: FakeSlackClient
    web: AsyncWebClient
    http: httpx.AsyncClient
    receiver: Receiver


StartPlayground = Callable[[FakeSlackConfig], Awaitable[Playground]]


@pytest.fixture
async def start() -> AsyncIterator[StartPlayground]:
    """Starts a fake Slack with the given settings, and a receiver its events go to."""
    async with AsyncExitStack() as stack:

        async def started(config: FakeSlackConfig) -> Playground:
            receiver = Receiver()
            receiver_url = await stack.enter_async_context(serve(receiver.app))
            app = create_slack_app(config)
            url = await stack.enter_async_context(serve(app))
            fake_slack: FakeSlack = app.state.fake_slack
            fake_slack.events_url = f"{receiver_url}/slack/events"
            client = await stack.enter_async_context(open_client(url))
            http = await stack.enter_async_context(
                httpx.AsyncClient(verify=NO_TLS, base_url=url, trust_env=False)
            )
            web = AsyncWebClient(token=config.bot_token, base_url=f"{url}/api/", timeout=10)
            return Playground(url, fake_slack, client, web, http, receiver)

        yield started


@pytest.fixture
async def playground(start: StartPlayground) -> Playground:
    """Without rate limits and with the app's own posts left out of the events."""
    return await start(
        FakeSlackConfig(rate_limits="off", send_bot_events=False, mention_gap_s=0.01)
    )


@pytest.fixture
async def speaking_model() -> AsyncIterator[Model]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    app = create_model_app(pace=ModelPace(word_s=0.02, slow_word_s=0.5), sleep=sleep)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as http:
        yield Model(http=http, slept=slept)
