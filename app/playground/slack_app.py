"""The look-alike as one ASGI app: which address leads where."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute

from app.playground.controls import control_router
from app.playground.files_http import file_routes
from app.playground.lookalike import SlackLookalike
from app.playground.page import page_routes
from app.playground.slack_types import Clock, LookalikeConfig
from app.playground.ui import respond_router, ui_router


def create_slack_app(
    config: LookalikeConfig | None = None, *, clock: Clock | None = None
) -> FastAPI:
    """The app with a lifespan (deliveries run inside it); the workspace behind it is `app.state.lookalike`."""
    lookalike = SlackLookalike(config or LookalikeConfig(), clock=clock)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with lookalike.deliverer.running():
            yield

    app = FastAPI(
        title="Slack look-alike", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.lookalike = lookalike
    app.router.routes += [
        Route("/api/{method}", lookalike.api.endpoint, methods=["GET", "POST"]),
        WebSocketRoute("/socket-mode", lookalike.sockets.endpoint),
        *file_routes(lookalike.files, config=lookalike.config),
        *page_routes(),
    ]
    for router in (ui_router(lookalike), respond_router(lookalike), control_router(lookalike)):
        app.include_router(router)
    return app
