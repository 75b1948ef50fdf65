"""The Slack of a measurement, in a process of its own.

`python -m tests.bench.slack_server PORT world EVENTS_URL`: the playground's whole world, without rate limits, with a
model that writes at once. `python -m tests.bench.slack_server PORT instant`: says yes to every call and keeps nothing,
so that throughput is Orion's and not the look-alike's.
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

from app.playground.model import ModelPace
from app.playground.slack_types import BOT_ID, BOT_USER_ID, TEAM_ID, LookalikeConfig
from app.playground.world import create_world


async def healthz(_request: Request) -> Response:
    return PlainTextResponse("ok")


def create_instant_slack() -> ASGIApp:
    numbers = itertools.count(1)

    async def call(_request: Request) -> Response:
        ts = f"{int(time.time())}.{next(numbers):06d}"
        names = {"team_id": TEAM_ID, "user_id": BOT_USER_ID, "bot_id": BOT_ID}
        return JSONResponse({"ok": True, "ts": ts, "channel": "C0BENCH", "messages": [], **names})

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/api/{method}", call, methods=["POST", "GET"])]
    )


def create_quick_world(events_url: str) -> ASGIApp:
    config = LookalikeConfig(rate_limits="off", events_url=events_url)
    world = create_world(config, pace=ModelPace(word_s=0, slow_word_s=0))
    world.add_route("/healthz", healthz)
    return world


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("kind", choices=["instant", "world"])
    parser.add_argument("events_url", nargs="?", default="")
    given = parser.parse_args()
    is_world = given.kind == "world"
    app = create_quick_world(given.events_url) if is_world else create_instant_slack()
    server = uvicorn.Server(uvicorn.Config(app, port=given.port, log_level="warning"))
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
