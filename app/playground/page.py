"""The page's files, and the headers that keep hostile text from becoming code."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

STATIC = Path(__file__).parent / "static"

HEADERS = {
    # Source: W3C Content Security Policy Level 3. No inline script or style, nothing from elsewhere, never in a frame.
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def page_routes() -> list[Route]:
    """`/`, `/deliveries`, and the files they load under `/static/`."""
    return [
        Route("/", _file("index.html")),
        Route("/deliveries", _file("deliveries.html")),
        Route("/static/{name}", _static),
    ]


def _file(name: str) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return FileResponse(STATIC / name, headers=HEADERS)

    return endpoint


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    path = STATIC / name
    if not name.endswith((".js", ".css", ".svg")) or not path.is_file():
        return Response("not found", 404)
    return FileResponse(path, headers=HEADERS)
