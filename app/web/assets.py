"""Files of Orion's own pages, and what browsers are told of them."""

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.responses import FileResponse, Response

SHARED: Final = Path(__file__).parent / "shared"
"""What more than one page loads."""
PAGE_HEADERS: Final[Mapping[str, str]] = {
    # Source: W3C Content Security Policy Level 3. Nothing inline, nothing from elsewhere, never in a frame.
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Not "no-referrer", with which a browser tells no origin of a form that is sent, not even to the page's own.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_KINDS: Final = frozenset({".css", ".js", ".svg"})


def file_response(name: str, folder: Path) -> Response:
    """Returns a page's script, style or picture, from its folder or from those that pages share; 404 for all else."""
    for place in (folder, SHARED):
        path = place / name
        if path.parent == place and path.suffix in _KINDS and path.is_file():
            return FileResponse(path, headers=PAGE_HEADERS)
    return Response("not found", HTTPStatus.NOT_FOUND)


def page_response(path: Path, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Returns a page."""
    return FileResponse(path, status, headers=PAGE_HEADERS)
