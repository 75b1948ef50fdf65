"""Everything outside Orion on one address: which address leads where."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute

from app.playground.model.server import ModelPace, create_model_app
from app.playground.page.admin_api import create_admin_router
from app.playground.page.event_stream import EventStream
from app.playground.slack.fake_slack import FakeSlack
from app.playground.slack.types import Clock, FakeSlackConfig, SlackError
from app.playground.slack.web_api import file_routes
from app.playground.traces.receiver import (
    PLAYGROUND_PUBLIC_KEY,
    PLAYGROUND_SECRET_KEY,
    create_trace_app,
)

OFFLINE_MODEL_KEY = "sk-ant-playground-offline-model"
OFFLINE_OPENAI_KEY = "sk-playground-offline-model"
OFFLINE_GEMINI_KEY = "AIza-playground-offline-model"
TRACE_KEYS = {
    "LANGFUSE_PUBLIC_KEY": PLAYGROUND_PUBLIC_KEY,
    "LANGFUSE_SECRET_KEY": PLAYGROUND_SECRET_KEY,
}
OWN_KEYS_SECRET = "playground-secret-for-keys-of-its-people"  # noqa: S105 - of people who are not real

STATIC = Path(__file__).parent / "page" / "static"

RELOAD_SCRIPT = "sha256-66kqV3jpajf4+zRJ5ypmhBTpL46xW1Lk/BXvlHOX2bw="
"""Of the pages' inline script; a browser's console says which it wants when the script has changed."""

HEADERS = {
    # Source: W3C Content Security Policy Level 3. No inline style, of inline scripts the one in PAGES, nothing from elsewhere, never in a frame.
    "Content-Security-Policy": f"default-src 'self'; script-src 'self' '{RELOAD_SCRIPT}'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

PAGES = {"/": "index.html", "/deliveries": "deliveries.html"}


async def _page_file(request: Request) -> Response:
    """Returns a page, or what it loads under `/static/`."""
    page = PAGES.get(request.url.path)
    path = STATIC / (page or request.path_params["name"])
    if not page and (path.suffix not in {".js", ".css", ".svg"} or not path.is_file()):
        return Response("not found", 404)
    return FileResponse(path, headers=HEADERS)


def create_slack_app(
    config: FakeSlackConfig | None = None, *, clock: Clock | None = None
) -> FastAPI:
    """Returns the app with a lifespan (deliveries run inside it); the workspace behind it is `app.state.fake_slack`."""
    fake_slack = FakeSlack(config or FakeSlackConfig(), clock=clock)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with fake_slack.deliverer.running():
            yield

    app = FastAPI(
        title="fake Slack", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.fake_slack = fake_slack
    app.router.routes += [
        Route("/api/{method}", fake_slack.api.endpoint, methods=["GET", "POST"]),
        WebSocketRoute("/socket-mode", fake_slack.sockets.endpoint),
        *file_routes(fake_slack.workspace.files, config=fake_slack.config),
        *(Route(path, _page_file) for path in (*PAGES, "/static/{name}")),
        Route("/archives/{channel}/p{digits:int}", _open_permalink),
    ]
    app.include_router(create_admin_router(fake_slack, EventStream(fake_slack.workspace)))
    app.add_exception_handler(SlackError, _refuse)
    return app


async def _open_permalink(request: Request) -> Response:
    """Opens the page at the thread of a message. Source: Slack Web API, chat.getPermalink, the form of its answer, read 2026-11."""
    digits = str(request.path_params["digits"])
    thread = request.query_params.get("thread_ts") or f"{digits[:-6]}.{digits[-6:]}"
    where = urlencode({"channel": request.path_params["channel"], "thread": thread})
    return RedirectResponse(f"/?{where}")


async def _refuse(_request: Request, refused: Exception) -> Response:
    assert isinstance(refused, SlackError)  # noqa: S101 - this is registered for no other
    return JSONResponse({"detail": refused.error}, max(refused.status, 400))


def create_stack(config: FakeSlackConfig, *, pace: ModelPace | None = None) -> FastAPI:
    """Returns one app: the Slack page at `/`, its API below `/api/`, traces at `/traces`, the model below `/model`."""
    stack = create_slack_app(config)
    stack.include_router(create_trace_app().router)
    stack.mount("/model", create_model_app(pace=pace))
    return stack


def orion_environment(stack_url: str, config: FakeSlackConfig) -> Mapping[str, str]:
    """Settings that point an Orion at this stack over HTTP events."""
    return {
        "SLACK_BOT_TOKEN": config.bot_token,
        "SLACK_SIGNING_SECRET": config.signing_secret,
        "SLACK_API_URL": f"{stack_url}/api/",
        "ANTHROPIC_BASE_URL": f"{stack_url}/model",
        "ANTHROPIC_API_KEY": OFFLINE_MODEL_KEY,
        "OPENAI_BASE_URL": f"{stack_url}/model",
        "OPENAI_API_KEY": OFFLINE_OPENAI_KEY,
        "GEMINI_BASE_URL": f"{stack_url}/model",
        "GEMINI_API_KEY": OFFLINE_GEMINI_KEY,
        **TRACE_KEYS,
        "LANGFUSE_BASE_URL": stack_url,
    }
