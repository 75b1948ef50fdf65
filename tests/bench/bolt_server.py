"""The baseline: Bolt on FastAPI as its documentation shows it, acknowledging after the listener, without any durability.

Run as `python -m tests.bench.bolt_server PORT SECRET TOKEN API_URL [--reply]`. With `--reply` the listener posts
"Thinking…" itself, before the acknowledgement, which is the simplest bot there is.
"""

import argparse
import asyncio

import uvicorn
from fastapi import FastAPI, Request, Response
from slack_bolt.adapter.fastapi.async_handler import AsyncSlackRequestHandler
from slack_bolt.async_app import AsyncApp, AsyncSay
from slack_bolt.authorization import AuthorizeResult
from slack_sdk.web.async_client import AsyncWebClient

from app.playground.slack.types import BOT_ID, BOT_USER_ID


def create_bot(*, secret: str, token: str, api_url: str, replies: bool) -> AsyncApp:
    async def authorize(enterprise_id: str | None, team_id: str | None) -> AuthorizeResult:
        return AuthorizeResult(
            enterprise_id=enterprise_id,
            team_id=team_id,
            bot_token=token,
            bot_id=BOT_ID,
            bot_user_id=BOT_USER_ID,  # not who asks: Bolt would drop what its own bot says
        )

    client = AsyncWebClient(base_url=api_url)
    client.proxy = None  # this machine's Slack is never behind the environment's proxy
    bot = AsyncApp(
        client=client, signing_secret=secret, authorize=authorize, process_before_response=True
    )

    @bot.event("app_mention")
    async def mentioned(event: dict[str, str], say: AsyncSay) -> None:
        if replies:
            await say("Thinking…", thread_ts=event["ts"])

    @bot.event("message")
    async def said() -> None:
        """The twin of a mention, and the bot's own posts."""

    return bot


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("secret")
    parser.add_argument("token")
    parser.add_argument("api_url")
    parser.add_argument("--reply", action="store_true")
    given = parser.parse_args()
    bot = create_bot(
        secret=given.secret, token=given.token, api_url=given.api_url, replies=given.reply
    )
    handler = AsyncSlackRequestHandler(bot)
    api = FastAPI()

    @api.post("/slack/events")
    async def events(request: Request) -> Response:
        return await handler.handle(request)

    @api.get("/healthz")
    async def healthz() -> str:
        return "ok"

    asyncio.run(uvicorn.Server(uvicorn.Config(api, port=given.port, log_level="warning")).serve())


if __name__ == "__main__":
    main()
