"""Takes what the Langfuse SDK sends, keeps the last traces in memory, and shows them on a page of its own.

Strict about what the SDK must send, so that what works here works with a real Langfuse.
Source: langfuse 5.0.4 over the wire against Langfuse server 4.16.0, recorded 2026-11.
"""

import base64
import binascii
import hmac
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from app.playground.traces.prompts import PromptStore, add_prompts
from app.web.assets import PAGE_HEADERS, file_response, page_response

PLAYGROUND_PUBLIC_KEY: Final = "pk-lf-playground"
PLAYGROUND_SECRET_KEY: Final = "sk-lf-playground"  # noqa: S105 - guards nothing: the page is local and open
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024

_STATIC: Final = Path(__file__).parent / "static"
_SCORE_FIELDS: Final = ("id", "name", "value", "dataType", "traceId")
KEPT_TRACES: Final = 200
KEPT_OBSERVATIONS: Final = 2_000
"""Per trace; later ones are dropped."""
_OBSERVATION: Final = "langfuse.observation."

Observation = dict[str, Any]


class TraceStore:
    """The last traces, by id. Repeated spans and scores replace their earlier versions, as in Langfuse."""

    def __init__(self, *, kept_traces: int = KEPT_TRACES) -> None:
        self.version = 0
        """Rises with every change."""
        self._kept = kept_traces
        self._traces: dict[str, dict[str, Observation]] = {}
        self._scores: dict[str, dict[str, Any]] = {}

    def add(self, observation: Observation) -> None:
        self.version += 1
        spans = self._traces.setdefault(observation["trace_id"], {})
        if observation["id"] in spans or len(spans) < KEPT_OBSERVATIONS:
            spans[observation["id"]] = observation
        while len(self._traces) > self._kept:
            oldest = next(iter(self._traces))
            del self._traces[oldest]

    def add_score(self, score: dict[str, Any]) -> None:
        self.version += 1
        self._scores[str(score["id"])] = score
        while len(self._scores) > self._kept:
            del self._scores[next(iter(self._scores))]

    def rows(self) -> list[dict[str, Any]]:
        """Returns all traces, newest first."""
        rows = [self._row(trace_id, spans) for trace_id, spans in self._traces.items()]
        return sorted(rows, key=lambda row: float(row["started_ms"]), reverse=True)

    def observations(self, trace_id: str) -> Sequence[Observation]:
        """Returns those of a trace as they came; none of an unknown one."""
        return tuple(self._traces.get(trace_id, {}).values())

    def tree(self, trace_id: str) -> dict[str, Any] | None:
        """Returns a trace with its observations nested. Those whose parent has not arrived (yet) stand beside the root."""
        spans = self._traces.get(trace_id)
        if spans is None:
            return None
        nodes = {span_id: {**span, "children": []} for span_id, span in spans.items()}
        roots: list[Observation] = []
        for node in sorted(nodes.values(), key=lambda node: (node["start_ms"], node["end_ms"])):
            parent = nodes.get(node["parent_id"])
            (parent["children"] if parent else roots).append(node)
        roots.sort(key=lambda node: (node["parent_id"] != "", node["start_ms"]))
        scores = [score for score in self._scores.values() if score["traceId"] == trace_id]
        return {"trace": self._row(trace_id, spans), "observations": roots, "scores": scores}

    def _row(self, trace_id: str, spans: dict[str, Observation]) -> dict[str, Any]:
        first = min(spans.values(), key=lambda span: span["start_ms"])
        root = next((span for span in spans.values() if not span["parent_id"]), None)
        shown = root or first
        end_ms = max(span["end_ms"] for span in spans.values())
        usages = [span["usage"] for span in spans.values() if span["type"] == "generation"]
        return {
            "id": trace_id,
            "name": shown["trace_name"] or shown["name"],
            "title": shown["input"] if root else "",
            "user": shown["user"],
            "session": shown["session"],
            "tags": shown["tags"],
            "environment": shown["environment"],
            "run_id": shown["trace_metadata"].get("run_id", ""),
            "started_ms": first["start_ms"],
            "duration_ms": end_ms - first["start_ms"],
            "is_complete": root is not None,
            "level": shown["level"] if root else "DEFAULT",
            "code": str(root["metadata"].get("error_code", "")) if root else "",
            "tokens_in": sum(n for usage in usages for key, n in usage.items() if "input" in key),
            "tokens_out": sum(n for usage in usages for key, n in usage.items() if "output" in key),
            "observations": len(spans),
        }


def parse_export(body: bytes, *, public_key: str) -> list[Observation]:
    """Returns the observations of one OTLP export request of that project.

    Raises:
        ValueError: not such a request, or with a span that Langfuse could not file, or of another project.
    """
    try:
        export = ExportTraceServiceRequest.FromString(body)
    except DecodeError as exc:
        raise ValueError("the body is no ExportTraceServiceRequest") from exc
    observations = list(_observations(export))
    if any(seen["public_key"] != public_key for seen in observations):
        raise ValueError("a span of another project")
    return observations


def _observations(export: ExportTraceServiceRequest) -> Iterator[Observation]:
    for resource_spans in export.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            scope = _attributes(scope_spans.scope.attributes)
            for span in scope_spans.spans:
                yield _observation(span, resource, public_key=str(scope.get("public_key", "")))


def _observation(span: Span, resource: dict[str, Any], *, public_key: str) -> Observation:
    if len(span.trace_id) != 16 or len(span.span_id) != 8:  # noqa: PLR2004 - OTLP's id sizes
        raise ValueError("a span without a trace id of 16 bytes and a span id of 8")
    if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
        raise ValueError(f"span {span.name!r} ends before it starts")
    found = _attributes(span.attributes)
    usage = _decoded(found.get(f"{_OBSERVATION}usage_details", "{}"))
    return {
        "trace_id": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "public_key": public_key,
        "name": span.name,
        "type": found.get(f"{_OBSERVATION}type", "span"),
        "start_ms": span.start_time_unix_nano / 1e6,
        "end_ms": span.end_time_unix_nano / 1e6,
        "level": found.get(f"{_OBSERVATION}level", "DEFAULT"),
        "status": found.get(f"{_OBSERVATION}status_message", span.status.message),
        "input": found.get(f"{_OBSERVATION}input", ""),
        "output": found.get(f"{_OBSERVATION}output", ""),
        "metadata": _below(found, f"{_OBSERVATION}metadata."),
        "model": found.get(f"{_OBSERVATION}model.name", ""),
        "prompt": found.get(f"{_OBSERVATION}prompt.name", ""),
        "prompt_version": found.get(f"{_OBSERVATION}prompt.version"),
        "usage": {key: n for key, n in usage.items() if isinstance(n, int)},
        "cost": _decoded(found.get(f"{_OBSERVATION}cost_details", "{}")),
        "first_token_at": _decoded(found.get(f"{_OBSERVATION}completion_start_time", '""')),
        "user": found.get("user.id", ""),
        "session": found.get("session.id", ""),
        "tags": found.get("langfuse.trace.tags", []),
        "trace_name": found.get("langfuse.trace.name", ""),
        "trace_metadata": _below(found, "langfuse.trace.metadata."),
        "environment": found.get("langfuse.environment", resource.get("langfuse.environment", "")),
        "release": resource.get("langfuse.release", ""),
        "is_app_root": found.get("langfuse.internal.is_app_root", False),
    }


def _below(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: _decoded(v) for key, v in found.items() if key.startswith(prefix)}


def _decoded(text: object) -> Any:  # noqa: ANN401 - foreign JSON
    try:
        return json.loads(str(text))
    except ValueError as exc:
        raise ValueError(f"an attribute that should be JSON is not: {str(text)[:80]!r}") from exc


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:  # noqa: ANN401 - OTLP's AnyValue
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return (
        getattr(value, kind)
        if kind in {"string_value", "bool_value", "int_value", "double_value"}
        else ""
    )


def create_trace_app(
    *,
    public_key: str = PLAYGROUND_PUBLIC_KEY,
    secret_key: str = PLAYGROUND_SECRET_KEY,
    store: TraceStore | None = None,
    prompts: PromptStore | None = None,
) -> FastAPI:
    """Returns the receiver and its page; everything lies under /traces and /api/public."""
    app = FastAPI(title="Orion traces", docs_url=None, redoc_url=None, openapi_url=None)
    kept = store or TraceStore()
    _add_ingestion(app.router, kept, public_key=public_key, secret_key=secret_key)
    add_prompts(
        app.router,
        prompts or PromptStore(),
        authorize=partial(_authorize, credentials=f"{public_key}:{secret_key}".encode()),
        body_of=_body_of,
    )
    _add_pages(app.router, kept)
    return app


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

    @router.get("/api/public/v2/observations")
    async def list_observations(request: Request) -> dict[str, Any]:
        _authorize(request, credentials)
        asked = request.query_params
        found = store.observations(asked.get("traceId", ""))
        limit, start = min(int(asked.get("limit", 50)), 1000), int(asked.get("cursor", 0))
        page = [{"id": one["id"], "name": one["name"]} for one in found[start : start + limit]]
        is_last = start + limit >= len(found)
        return {"data": page, "meta": {} if is_last else {"cursor": str(start + limit)}}

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
    async def asset(name: str) -> Response:
        return file_response(name, _STATIC)

    @router.get("/project/{project}/traces/{trace_id}")
    async def langfuses_own_address(project: str, trace_id: str) -> RedirectResponse:
        del project
        return RedirectResponse(f"/traces/{trace_id}")

    @router.get("/traces")
    @router.get("/traces/{trace_id}")
    async def page() -> Response:
        return page_response(_STATIC / "traces.html")


def _versioned(request: Request, version: int, content: dict[str, Any]) -> Response:
    """The page asks every second; mostly the answer is that nothing is new."""
    headers = {**PAGE_HEADERS, "cache-control": "no-cache", "etag": f'"{version}"'}
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
