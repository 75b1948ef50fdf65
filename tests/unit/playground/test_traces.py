"""The local Langfuse refuses what the real one refuses, keeps the last traces, and shows them safely."""

import asyncio
import base64
import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypedDict

import httpx
import pytest
from fastapi import FastAPI
from langfuse import Langfuse
from langfuse.api import CreateTextPromptRequest, LangfuseAPI, NotFoundError
from langfuse.api import Error as BadRequest
from langfuse.api.prompt_version.client import PromptVersionClient
from langfuse.api.prompts.client import PromptsClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.playground.traces import receiver
from app.playground.traces.receiver import TraceStore, create_trace_app
from app.web.hosting import serve
from tests.plain_http import NO_TLS


class Keys(TypedDict):
    public_key: str
    secret_key: str


KEYS = Keys(public_key="pk-lf-t", secret_key="sk-lf-t")
STATIC = Path(receiver.__file__).parent / "static"


def headers(**changes: str) -> dict[str, str]:
    sent = {
        "authorization": "Basic " + base64.b64encode(b"pk-lf-t:sk-lf-t").decode(),
        "content-type": "application/x-protobuf",
        "content-encoding": "gzip",
        "x-langfuse-sdk-name": "python",
        "x-langfuse-public-key": "pk-lf-t",
        "x-langfuse-ingestion-version": "4",
    }
    return sent | {name.replace("_", "-"): value for name, value in changes.items()}


def export(
    *,
    trace: int = 1,
    span: int = 1,
    parent: int = 0,
    name: str = "run",
    start: int = 1_000,
    **texts: str,
) -> bytes:
    request = ExportTraceServiceRequest()
    scope_spans = request.resource_spans.add().scope_spans.add()
    key = scope_spans.scope.attributes.add()
    key.key, key.value.string_value = "public_key", "pk-lf-t"
    sent = scope_spans.spans.add()
    sent.trace_id, sent.span_id = trace.to_bytes(16, "big"), span.to_bytes(8, "big")
    sent.parent_span_id = parent.to_bytes(8, "big") if parent else b""
    sent.name = name
    sent.start_time_unix_nano, sent.end_time_unix_nano = (
        start * 1_000_000,
        start * 1_000_000 + 5_000_000,
    )
    for attribute, text in texts.items():
        pair = sent.attributes.add()
        pair.key, pair.value.string_value = attribute.replace("__", "."), text
    body: bytes = request.SerializeToString()
    return body


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_trace_app(**KEYS))
    async with httpx.AsyncClient(transport=transport, base_url="http://traces") as client:
        yield client


async def send(client: httpx.AsyncClient, body: bytes, **changes: str) -> int:
    response = await client.post(
        "/api/public/otel/v1/traces", content=gzip.compress(body), headers=headers(**changes)
    )
    return response.status_code


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"authorization": "Basic bm9ib2R5Om5vdGhpbmc="}, 401),
        ({"authorization": "Basic ***"}, 401),
        ({"authorization": ""}, 401),
        ({"content_type": "application/json"}, 400),
        ({"content_encoding": "br"}, 400),
        ({"content_encoding": "identity"}, 400),
        ({"x_langfuse_ingestion_version": "3"}, 400),
        ({"x_langfuse_public_key": "pk-lf-other"}, 400),
        ({"x_langfuse_sdk_name": "go"}, 400),
    ],
)
async def test_the_receiver_is_strict(
    client: httpx.AsyncClient, changes: dict[str, str], status: int
) -> None:
    """Wrong keys are 401, a wrong format or header is 400, and nothing of it is kept."""
    assert await send(client, export(), **changes) == status
    kept = (await client.get("/traces/api")).json()["traces"]
    assert len(kept) == (1 if status == 200 else 0)


@pytest.mark.parametrize(
    "body",
    [
        b"no protobuf",
        export(langfuse__observation__metadata__a="no json"),
        export(span=0)[:-4],
        gzip.compress(b"twice", mtime=0),
    ],
)
async def test_broken_exports_are_refused(client: httpx.AsyncClient, body: bytes) -> None:
    """What Langfuse could not file is 400, not a crash."""
    assert await send(client, body) == 400


async def test_a_cut_gzip_is_refused(client: httpx.AsyncClient) -> None:
    """Half a body is no body."""
    response = await client.post(
        "/api/public/otel/v1/traces", content=gzip.compress(export())[:-12], headers=headers()
    )
    assert response.status_code == 400


async def test_scores_are_an_array_and_replace_each_other(client: httpx.AsyncClient) -> None:
    """The array of SDK 5 is taken, anything else is 400; the same id again replaces."""
    score = {
        "id": "s",
        "name": "feedback",
        "value": 1.0,
        "dataType": "BOOLEAN",
        "traceId": f"{1:032x}",
    }
    for body, status in (
        (score, 400),
        ([{"id": "s"}], 400),
        ([score], 202),
        ([score | {"value": 0.0}], 202),
    ):
        response = await client.post(
            "/api/public/scores", json=body, headers={"authorization": headers()["authorization"]}
        )
        assert response.status_code == status
    assert (await client.post("/api/public/scores", json=[score])).status_code == 401
    await send(client, export())
    tree = (await client.get(f"/traces/api/{1:032x}")).json()
    assert [kept["value"] for kept in tree["scores"]] == [0.0]


async def test_the_sdk_accepts_the_project(client: httpx.AsyncClient) -> None:
    """The SDK's own check of its keys passes; wrong ones are 401."""

    def check(url: str) -> bool:
        with httpx.Client(verify=NO_TLS) as http:
            langfuse = Langfuse(**KEYS, base_url=url, tracing_enabled=False, httpx_client=http)
            try:
                return langfuse.auth_check()
            finally:
                langfuse.shutdown()

    async with serve(create_trace_app(**KEYS)) as url:
        assert await asyncio.to_thread(check, url)
    wrong = {"authorization": "Basic bm9ib2R5Om5vdGhpbmc="}
    assert (await client.get("/api/public/projects", headers=wrong)).status_code == 401


async def test_the_list_is_newest_first_and_bounded() -> None:
    """The last traces are kept, the newest stands first."""
    store = TraceStore(kept_traces=3)
    transport = httpx.ASGITransport(app=create_trace_app(**KEYS, store=store))
    async with httpx.AsyncClient(transport=transport, base_url="http://traces") as client:
        for trace in range(1, 6):
            await send(client, export(trace=trace, start=trace * 1000))
        rows = (await client.get("/traces/api")).json()["traces"]
    assert [int(row["id"], 16) for row in rows] == [5, 4, 3]


async def test_a_row_sums_the_trace_up(client: httpx.AsyncClient) -> None:
    """Name, user, session, duration, code and tokens; running until its root has come; children nest in any order."""
    generation = '{"input":10,"output":2,"cache_read_input_tokens":5}'
    await send(
        client,
        export(
            span=2,
            parent=1,
            start=2_000,
            name="model-call",
            langfuse__observation__type="generation",
            langfuse__observation__usage_details=generation,
        ),
    )
    (row,) = (await client.get("/traces/api")).json()["traces"]
    assert row["is_complete"] is False
    await send(
        client,
        export(
            user__id="U1",
            session__id="T-C-1",
            langfuse__observation__level="ERROR",
            langfuse__observation__metadata__error_code='"QUEUE_FULL"',
        ),
    )
    (row,) = (await client.get("/traces/api")).json()["traces"]
    told = (
        "name",
        "user",
        "session",
        "duration_ms",
        "code",
        "tokens_in",
        "tokens_out",
        "is_complete",
    )
    assert [row[key] for key in told] == ["run", "U1", "T-C-1", 1005, "QUEUE_FULL", 15, 2, True]
    tree = (await client.get(f"/traces/api/{row['id']}")).json()
    (root,) = tree["observations"]
    assert [child["name"] for child in root["children"]] == ["model-call"]


async def test_nothing_new_is_304(client: httpx.AsyncClient) -> None:
    """The page's polling costs nothing while nothing happens."""
    await send(client, export())
    first = await client.get("/traces/api")
    again = {"if-none-match": first.headers["etag"]}
    assert (await client.get("/traces/api", headers=again)).status_code == 304
    await send(client, export(trace=2))
    assert (await client.get("/traces/api", headers=again)).status_code == 200


async def test_unknown_things_are_404(client: httpx.AsyncClient) -> None:
    """No trace of that id, no other file of the folder."""
    for path in (
        "/traces/api/ffff",
        "/traces/static/traces.py",
        "/traces/static/..%2ftraces.py",
        "/",
    ):
        assert (await client.get(path)).status_code == 404


async def test_the_page_loads_only_its_own_files(client: httpx.AsyncClient) -> None:
    """Both addresses serve the page under a strict policy; what it names exists, and nothing is inline or foreign."""
    pages = [await client.get(path) for path in ("/traces", f"/traces/{1:032x}")]
    for page in pages:
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
    markup = pages[0].text
    named = re.findall(r'(?:src|href)="([^"]+)"', markup)
    assert len(named) >= 4
    for path in named:
        assert path.startswith("/traces")
        assert (await client.get(path)).status_code == 200
    assert "<style" not in markup
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=", markup)


def test_the_script_never_writes_markup() -> None:
    """Texts of traces come from people and models: the script builds elements, it parses no HTML."""
    script = (STATIC / "traces.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script)


async def test_the_routes_stand_beside_others() -> None:
    """Included in another app, the router leaves every other path alone."""
    app = FastAPI()

    @app.get("/api/conversations.list")
    async def other() -> dict[str, bool]:
        return {"ok": True}

    app.include_router(create_trace_app(**KEYS).router)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://x"
    ) as client:
        assert (await client.get("/api/conversations.list")).json() == {"ok": True}
        assert (await client.get("/traces/api")).json() == {"traces": []}


async def test_a_zip_bomb_is_refused(client: httpx.AsyncClient) -> None:
    """A small body that inflates beyond the limit is refused without inflating it."""
    bomb = gzip.compress(b"\0" * (receiver.MAX_INFLATED_BYTES + 1), compresslevel=1)
    response = await client.post("/api/public/otel/v1/traces", content=bomb, headers=headers())
    assert response.status_code == 400


async def test_prompts_are_kept_in_versions_with_labels() -> None:
    """By the SDK's own client: each new text is the next version, to which its labels move; `latest` is always at the last."""
    async with serve(create_trace_app(**KEYS)) as url:
        await asyncio.to_thread(keep_prompts, url)


def keep_prompts(url: str) -> None:
    with httpx.Client(verify=NO_TLS) as http:
        api = LangfuseAPI(
            base_url=url,
            username=KEYS["public_key"],
            password=KEYS["secret_key"],
            httpx_client=http,
        )
        prompts: PromptsClient = api.prompts
        versions: PromptVersionClient = api.prompt_version
        with pytest.raises(NotFoundError):
            prompts.get("greeting")
        for number, text in enumerate(("hello", "hi"), 1):
            asked = CreateTextPromptRequest(
                name="greeting", prompt=text, labels=["production"], commit_message="why"
            )
            made = prompts.create(request=asked)
            assert (made.version, made.labels) == (number, ["production", "latest"])
            assert (made.commit_message, made.tags, made.config) == ("why", [], {})
        assert prompts.get("greeting").prompt == "hi"
        first = prompts.get("greeting", version=1)
        assert (first.prompt, first.labels) == ("hello", [])
        moved = versions.update("greeting", 1, new_labels=["production"])
        assert moved.labels == ["production"]
        assert prompts.get("greeting").version == 1
        assert prompts.get("greeting", label="latest").version == 2
        with pytest.raises(BadRequest):
            prompts.get("greeting", version=1, label="latest")
        with pytest.raises(BadRequest):
            versions.update("greeting", 1, new_labels=["latest"])
        with pytest.raises(NotFoundError):
            versions.update("greeting", 9, new_labels=["production"])


@pytest.mark.parametrize(
    "changes",
    [
        {"type": None},
        {"type": "chat"},
        {"prompt": None},
        {"name": ""},
        {"labels": None},
        {"labels": ["A b"]},
        {"commitMessage": "x" * 501},
    ],
)
async def test_a_prompt_that_langfuse_would_refuse_is_refused(
    client: httpx.AsyncClient, changes: dict[str, object]
) -> None:
    """As are those of others."""
    url, asked = "/api/public/v2/prompts", {"name": "x", "prompt": "y"}
    given = {"authorization": headers()["authorization"]}
    response = await client.post(url, json=asked | changes, headers=given)
    assert response.status_code == 400
    assert response.json()["error"] == "InvalidRequestError"
    wrong = {"authorization": "Basic " + base64.b64encode(b"pk-lf-t:wrong").decode()}
    assert (await client.post(url, json=asked, headers=wrong)).status_code == 401
    assert (await client.get(f"{url}/x", headers=wrong)).status_code == 401
