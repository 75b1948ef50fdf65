"""The local stand-in for Langfuse: takes what its SDK sends, and shows it on a page of its own.

Strict about what the SDK must send, so that what works here works with a real Langfuse.
Source: langfuse 5.0.4 over the wire against Langfuse server 4.16.0, recorded 2026-11.
"""

import base64
import binascii
import hmac
import json
import zlib
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from app.playground.trace_store import TraceStore, parse_export

PLAYGROUND_PUBLIC_KEY: Final = "pk-lf-playground"
PLAYGROUND_SECRET_KEY: Final = "sk-lf-playground"  # noqa: S105 - guards nothing: the page is local and open
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024

_STATIC: Final = Path(__file__).parent / "static"
_ASSETS: Final = {
    "traces.css": "text/css",
    "traces.js": "text/javascript",
    "traces.svg": "image/svg+xml",
}
_PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_SCORE_FIELDS: Final = ("id", "name", "value", "dataType", "traceId")


def create_trace_app(
    *,
    public_key: str = PLAYGROUND_PUBLIC_KEY,
    secret_key: str = PLAYGROUND_SECRET_KEY,
    store: TraceStore | None = None,
) -> FastAPI:
    """The receiver and its page as an app of their own; everything lies under /traces and /api/public."""
    app = FastAPI(title="Orion traces", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(
        create_trace_router(public_key=public_key, secret_key=secret_key, store=store)
    )
    return app


def create_trace_router(
    *,
    public_key: str = PLAYGROUND_PUBLIC_KEY,
    secret_key: str = PLAYGROUND_SECRET_KEY,
    store: TraceStore | None = None,
) -> APIRouter:
    """The same routes, to be included beside others."""
    router = APIRouter()
    kept = store or TraceStore()
    _add_ingestion(router, kept, public_key=public_key, secret_key=secret_key)
    _add_pages(router, kept)
    return router


def _add_ingestion(
    router: APIRouter, store: TraceStore, *, public_key: str, secret_key: str
) -> None:
    credentials = f"{public_key}:{secret_key}".encode()

    @router.post("/api/public/otel/v1/traces")
    async def take_spans(request: Request) -> Response:
        _authorize(request, credentials)
        _demand(request, "content-type", "application/x-protobuf")
        _demand(request, "x-langfuse-ingestion-version", "4")
        _demand(request, "x-langfuse-public-key", public_key)
        _demand(request, "x-langfuse-sdk-name", "python")
        body = await _body_of(request)
        try:
            observations = parse_export(body, public_key=public_key)
        except ValueError as exc:
            raise HTTPException(400, str(exc)) from exc
        for observation in observations:
            store.add(observation)
        return Response()

    @router.post("/api/public/scores")
    async def take_scores(request: Request) -> JSONResponse:
        _authorize(request, credentials)
        try:
            scores = json.loads(await _body_of(request))
        except ValueError as exc:
            raise HTTPException(400, "the body is no JSON") from exc
        if not isinstance(scores, list) or not all(_is_score(score) for score in scores):
            raise HTTPException(
                400, f"scores are an array of objects with {', '.join(_SCORE_FIELDS)}"
            )
        for score in scores:
            store.add_score(score)
        return JSONResponse({"message": "Accepted"}, status_code=202)

    @router.get("/api/public/projects")
    async def projects(request: Request) -> dict[str, Any]:
        _authorize(request, credentials)
        project = {
            "id": "playground",
            "name": "Orion playground",
            "organization": {"id": "playground", "name": "Orion"},
            "metadata": {},
        }
        return {"data": [project]}


def _add_pages(router: APIRouter, store: TraceStore) -> None:
    @router.get("/traces/api")
    async def list_traces(request: Request) -> Response:
        return _versioned(request, store.version, {"traces": store.rows()})

    @router.get("/traces/api/{trace_id}")
    async def show_trace(request: Request, trace_id: str) -> Response:
        tree = store.tree(trace_id)
        if tree is None:
            raise HTTPException(404, "no such trace")
        return _versioned(request, store.version, tree)

    @router.get("/traces/static/{name}")
    async def asset(name: str) -> FileResponse:
        if name not in _ASSETS:
            raise HTTPException(404, "no such file")
        return FileResponse(_STATIC / name, media_type=_ASSETS[name], headers=_PAGE_HEADERS)

    @router.get("/traces")
    @router.get("/traces/{trace_id}")
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "traces.html", media_type="text/html", headers=_PAGE_HEADERS)


def _versioned(request: Request, version: int, content: dict[str, Any]) -> Response:
    """The page asks every second; mostly the answer is that nothing is new."""
    headers = {**_PAGE_HEADERS, "cache-control": "no-cache", "etag": f'"{version}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return JSONResponse(content, headers=headers)


def _authorize(request: Request, credentials: bytes) -> None:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        given = b""
    if scheme.lower() != "basic" or not hmac.compare_digest(given, credentials):
        raise HTTPException(401, "Invalid credentials.")


def _demand(request: Request, header: str, value: str) -> None:
    found = request.headers.get(header, "")
    if found != value:
        raise HTTPException(400, f"header {header} is {found!r}, not {value!r}")


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"more than {MAX_BODY_BYTES} bytes")
    match request.headers.get("content-encoding", "identity"):
        case "identity":
            return bytes(body)
        case "gzip":
            return _inflated(bytes(body))
        case other:
            raise HTTPException(400, f"content-encoding {other!r}")


def _inflated(body: bytes) -> bytes:
    # 16 + MAX_WBITS: a gzip header is demanded. Source: Python docs, zlib.decompress.
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as exc:
        raise HTTPException(400, "the body is no gzip") from exc
    if not inflater.eof:
        raise HTTPException(400, "the gzip body is cut short, or too large")
    return plain


def _is_score(score: object) -> bool:
    return isinstance(score, dict) and all(score.get(field) is not None for field in _SCORE_FIELDS)
