"""The Slack of a measurement, in a process of its own.

`python -m tests.bench.slack_server PORT stack EVENTS_URL`: the playground's whole stack, without rate limits, with a model
that writes at once; `limited` instead of `stack`: with Slack's limits.
`python -m tests.bench.slack_server PORT instant`: says yes to every call and keeps nothing, so that throughput is Orion's
and not the fake Slack's.
"""

import argparse
import asyncio
import itertools
import time

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from app.playground.model.server import ModelPace
from app.playground.slack.types import (
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    YOU,
    Channel,
    FakeSlackConfig,
)
from app.playground.stack import create_stack

CHANNELS = tuple(f"channel-{number}" for number in range(50))
"""Beside those that are there: in one, Slack takes a message a second, and Orion keeps to that."""


async def healthz(_request: Request) -> Response:
    return PlainTextResponse("ok")


def create_instant_slack() -> ASGIApp:
    numbers = itertools.count(1)

    async def call(_request: Request) -> Response:
        ts = f"{int(time.time())}.{next(numbers):06d}"
        names = {"team_id": TEAM_ID, "user_id": BOT_USER_ID, "bot_id": BOT_ID}
        return JSONResponse({"ok": True, "ts": ts, "channel": "C0BENCH", "messages": [], **names})

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/api/{method}", call, methods=["POST", "GET"]),
        ]
    )


def create_quick_world(events_url: str, *, is_limited: bool) -> ASGIApp:
    config = FakeSlackConfig(rate_limits="real" if is_limited else "off", events_url=events_url)
    stack = create_stack(config, pace=ModelPace(word_s=0, slow_word_s=0))
    workspace = stack.state.fake_slack.workspace
    for number, name in enumerate(CHANNELS):
        channel_id = f"C0BENCH{number}"
        members = {YOU, BOT_USER_ID}
        workspace.channels[channel_id] = Channel(id=channel_id, name=name, members=members)
        workspace.messages[channel_id] = {}
    stack.add_route("/healthz", healthz)
    return stack


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("kind", choices=["instant", "stack", "limited"])
    parser.add_argument("events_url", nargs="?", default="")
    given = parser.parse_args()
    if given.kind == "instant":
        app = create_instant_slack()
    else:
        app = create_quick_world(given.events_url, is_limited=given.kind == "limited")
    server = uvicorn.Server(uvicorn.Config(app, port=given.port, log_level="warning"))
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
