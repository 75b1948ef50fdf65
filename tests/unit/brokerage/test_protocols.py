"""The broker in the protocols of OpenAI and Google: what passes, what is refused and how, what is counted."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from app.brokerage.broker import ModelsBroker, Upstream, create_broker_app
from app.brokerage.http import MAX_REQUEST_BYTES
from app.brokerage.registry import GrantRegistry
from app.playground.model.server import ModelPace, create_model_app
from app.runs.testing import GrantHooks, SystemClock
from app.web.hosting import serve
from tests.plain_http import NO_TLS
from tests.unit.brokerage.asking import (
    CHAT,
    GEMINI,
    KEY,
    LIMIT,
    MODELS,
    RESPONSES,
    Api,
    World,
    grant,
    upstreams,
)

each = pytest.mark.parametrize(
    "api", [RESPONSES, CHAT, GEMINI], ids=["responses", "chat", "gemini"]
)
both_ways = pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "plain"])


@each
@both_ways
async def test_a_call_passes_with_the_key_in_the_tokens_place(
    world: World, api: Api, is_stream: bool
) -> None:
    """The answer is the provider's, the token goes no further, and what was used is counted without the cached part."""
    answer = await world.ask(api, is_stream=is_stream)
    assert answer.status_code == 200
    assert "You wrote: " in answer.text
    seen = await world.seen()
    assert world.token not in json.dumps(seen)
    assert KEY in "".join(seen["headers"].values())
    assert KEY not in answer.text
    call = world.calls[-1]
    assert (call.model in MODELS, call.status, call.error) == (True, 200, "")
    assert call.usage.input_tokens > 5
    assert call.usage.output_tokens > 20
    assert (call.first_token_at is not None) is is_stream


@each
@both_ways
async def test_cached_input_is_counted_apart(world: World, api: Api, is_stream: bool) -> None:
    """OpenAI and Google count it among the input; our input excludes it."""
    long = "hi " * 4000
    name = {"openai": "messages" if api is CHAT else "input", "gemini": "contents"}[api.protocol]
    if api is GEMINI:
        turns: list[dict[str, Any]] = [
            {"role": role, "parts": [{"text": text}]}
            for role, text in (("user", long), ("model", "yes"), ("user", "and?"))
        ]
    else:
        turns = [
            {"role": role, "content": text}
            for role, text in (("user", long), ("assistant", "yes"), ("user", "and?"))
        ]
    fields: dict[str, Any] = {name: turns}
    answer = await world.ask(api, is_stream=is_stream, **fields)
    assert answer.status_code == 200
    usage = world.calls[-1].usage
    assert usage.cache_read_tokens > 2500
    assert usage.input_tokens < 400


@each
async def test_the_key_of_a_run_comes_in_any_header(world: World, api: Api) -> None:
    """As the CLIs of the protocol send it; in the query, too, and there it does not go on."""
    path, body = f"/broker/{api.protocol}{api.path}", json.dumps(api.body).encode()
    for name in api.token_headers:
        value = f"Bearer {world.token}" if name == "authorization" else world.token
        assert (await world.post(path, body, **{name: value})).status_code == 200
    answer = await world.post(f"{path}?key={world.token}&alt=json", body, accept="*/*")
    assert answer.status_code == 200
    assert world.token not in json.dumps(await world.seen())


@each
async def test_a_run_ends_and_other_runs_are_others(world: World, api: Api) -> None:
    """Forged, of an ended run, of none: 401 in the protocol's own shape, and nothing is asked."""
    with world.registry.open_grant(
        grant(run_id="run_2"), GrantHooks(on_call=world.calls.append)
    ) as ended:
        pass
    path, body = f"/broker/{api.protocol}{api.path}", json.dumps(api.body).encode()
    for token in (ended, world.token[:-4], "x", KEY):
        answer = await world.post(path, body, authorization=f"Bearer {token}")
        assert (answer.status_code, api.told(answer)) == (401, api.said[0])
    assert (await world.model.get("/requests")).json() == []


@each
async def test_other_models_are_refused(world: World, api: Api) -> None:
    """In the protocol's own shape; the trace is told."""
    if api is GEMINI:
        other = "/broker/gemini/v1beta/models/gemini-3-pro:generateContent"
        answer = await world.post(other, json.dumps(api.body).encode())
    else:
        answer = await world.ask(api, model="gpt-5.4-pro")
    assert (answer.status_code, api.told(answer)) == (403, api.said[1])
    assert "is not allowed for this run" in answer.json()["error"]["message"]
    assert (world.calls[-1].is_refused, world.calls[-1].status) == (True, 403)
    assert (await world.model.get("/requests")).json() == []


@each
async def test_huge_and_malformed_bodies_are_refused(world: World, api: Api) -> None:
    """Read no further than the limit; what is no JSON object is a 400."""
    path = f"/broker/{api.protocol}{api.path}"
    answer = await world.post(path, b" " * (MAX_REQUEST_BYTES + 1))
    assert (answer.status_code, api.told(answer)) == (413, api.said[2])
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        assert (await world.post(path, body)).status_code == 400


@each
@both_ways
async def test_answers_have_the_runs_size_at_the_most(
    world: World, api: Api, is_stream: bool
) -> None:
    """CLIs of these protocols name no limit, or the model's own: the run's is put in."""
    for given, sent in ((None, LIMIT), (128_000, LIMIT), (100, 100)):
        fields: Any = given
        for name in reversed(api.limit):
            fields = {name: fields}
        answer = await world.ask(api, is_stream=is_stream, **(fields if given else {}))
        assert answer.status_code == 200
        found = (await world.seen())["body"]
        for name in api.limit:
            found = found[name]
        assert found == sent
    for bad in ("9", 0, True, -1):
        fields = bad
        for name in reversed(api.limit):
            fields = {name: fields}
        assert (await world.ask(api, **fields)).status_code == 403


@each
@pytest.mark.parametrize(("directive", "number"), [("!429", 0), ("!529", 1), ("!500", 2)])
async def test_provider_errors_come_through_untouched(
    world: World, api: Api, directive: str, number: int
) -> None:
    """Status and words are the provider's own, so every client reacts as it should; the trace has the word."""
    words = {
        "openai": ("rate_limit_exceeded", "server_is_overloaded", "server_error"),
        "gemini": ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL"),
    }
    answer = await world.ask(api, text=directive)
    assert (answer.status_code, api.told(answer)) == (
        (429, 503, 500)[number],
        words[api.protocol][number],
    )
    assert world.calls[-1].error == words[api.protocol][number]


async def test_a_failure_in_a_stream_is_seen(world: World) -> None:
    """A Responses stream tells it in its last event, under a 200."""
    answer = await world.ask(RESPONSES, is_stream=True, text="!context")
    assert answer.status_code == 200
    assert world.calls[-1].error == "context_length_exceeded"


@each
@both_ways
async def test_an_answer_that_breaks_off_breaks_off(
    world: World, api: Api, is_stream: bool
) -> None:
    """The agent must see a cut answer, as it would without a broker; the trace names reason and cost."""
    with pytest.raises(httpx.RemoteProtocolError):
        await world.ask(api, is_stream=is_stream, text="!cut " + "hi " * 40)
    assert world.calls[-1].error == "RemoteProtocolError"
    usage = world.calls[-1].usage
    assert usage.input_tokens > 30
    assert usage.output_tokens > 1


@each
async def test_a_run_has_only_so_many_calls(world: World, api: Api) -> None:
    """A loop in the sandbox cannot spend without end."""
    few = grant(run_id="run_3", max_calls=2)
    with world.registry.open_grant(few, GrantHooks(on_call=world.calls.append)) as world.token:
        assert [(await world.ask(api)).status_code for _ in range(3)] == [200, 200, 403]


@each
async def test_a_protocol_without_a_key_is_refused(api: Api) -> None:
    """As a missing key is: the operator must act. Nobody is asked."""
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        broker = ModelsBroker(registry=registry, upstreams={}, http=http, clock=SystemClock())
        transport = httpx.ASGITransport(app=create_broker_app(broker.router()))
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as inside:
            world = World(registry=registry, inside=inside, model=inside)
            with registry.open_grant(
                grant(), GrantHooks(on_call=world.calls.append)
            ) as world.token:
                answer = await world.ask(api)
    assert (answer.status_code, api.told(answer)) == (401, api.said[0])
    assert f"no key for models of the protocol {api.protocol}" in answer.text


@each
async def test_a_persons_own_key_takes_the_operators_place(api: Api) -> None:
    """At the vendor's address, for the one protocol that it is for; models of others are not asked beside it."""
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    other = "gemini" if api.protocol == "openai" else "openai"
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
        httpx.AsyncClient(verify=NO_TLS, base_url=url, trust_env=False) as model,
    ):

        def own_upstream(protocol: str, key: str) -> Upstream:
            name = "x-goog-api-key" if protocol == "gemini" else "authorization"
            return Upstream(
                base_url=url,
                key_headers={name: f"Bearer {key}"},
                name_at=str if protocol == "gemini" else "openai/{}".format,
            )

        broker = ModelsBroker(
            registry=registry,
            upstreams=upstreams("http://127.0.0.1:9"),
            own_upstream=own_upstream,
            http=http,
            clock=SystemClock(),
        )
        transport = httpx.ASGITransport(app=create_broker_app(broker.router()))
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as inside:
            world = World(registry=registry, inside=inside, model=model)
            own = replace(grant(), own_key="own-1", own_key_protocol=api.protocol)
            with registry.open_grant(own, GrantHooks(on_call=world.calls.append)) as world.token:
                assert (await world.ask(api)).status_code == 200
            seen = await world.seen()
            assert "Bearer own-1" in seen["headers"].values()
            named = world.calls[-1].model  # by the run's name, whatever it is called there
            assert seen["body"].get("model") in (None, f"openai/{named}")
            assert ("model" in seen["body"]) is (api.protocol != "gemini")
            own = replace(own, own_key_protocol=other)
            with registry.open_grant(own, GrantHooks(on_call=world.calls.append)) as world.token:
                answer = await world.ask(api)
    assert (answer.status_code, api.told(answer)) == (403, api.said[1])
    assert "own key is not for models" in answer.text
    assert "own-1" not in repr(own)


@each
async def test_an_unreachable_provider_is_a_502(api: Api) -> None:
    """In the protocol's own shape, so that clients try again; the trace shows the call."""
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        broker = ModelsBroker(
            registry=registry,
            upstreams=upstreams("http://127.0.0.1:9"),
            http=http,
            clock=SystemClock(),
        )
        transport = httpx.ASGITransport(app=create_broker_app(broker.router()))
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as inside:
            world = World(registry=registry, inside=inside, model=inside)
            with registry.open_grant(
                grant(), GrantHooks(on_call=world.calls.append)
            ) as world.token:
                answer = await world.ask(api)
    assert (answer.status_code, api.told(answer)) == (502, api.said[3])
    assert (world.calls[0].status, world.calls[0].error) == (502, "ConnectError")


@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=["responses", "chat"])
async def test_what_nobody_reads_to_its_end_is_counted(world: World, api: Api) -> None:
    """OpenAI's counts are in the last event: who leaves before it has spent something nevertheless."""
    body = api.body | api.stream_fields
    text = json.dumps(body).replace("hello", "!long " + "hi " * 1000)
    headers = {"authorization": f"Bearer {world.token}"}
    async with world.inside.stream(
        "POST", f"/broker/openai{api.path}", content=text, headers=headers
    ) as answer:
        async for chunk in answer.aiter_text():
            if "Section" in chunk:
                break
    async with asyncio.timeout(10):
        while not world.calls:
            await asyncio.sleep(0.01)
    usage = world.calls[-1].usage
    assert usage.input_tokens > 500
    assert usage.output_tokens > 20


async def test_other_paths_do_not_exist(world: World) -> None:
    """The broker is no proxy: what is kept at a provider, made by it or listed there is not reached."""
    for path in (
        "/broker/openai/v1/files",
        "/broker/openai/v1/responses/resp_1",
        "/broker/openai/v1/embeddings",
        "/broker/openai/v1beta/models/gemini-2.5-pro:generateContent",
        "/broker/gemini/v1beta/models/gemini-2.5-pro:embedContent",
        "/broker/gemini/v1beta/models/gemini-2.5-pro",
        "/broker/gemini/v1beta/cachedContents",
        "/broker/gemini/v1beta/models/x%2F..%2Fgemini-2.5-pro:generateContent",
        "/broker/unknown/v1/messages",
    ):
        assert (await world.post(path, b"{}")).status_code == 404


@each
async def test_only_a_known_form_is_asked_for(world: World, api: Api) -> None:
    """The body is written anew, in JSON, and so it is called; of what a client accepts, what the API has."""
    path, body = f"/broker/{api.protocol}{api.path}", json.dumps(api.body).encode()
    own = {"authorization": f"Bearer {world.token}", "content-type": "text/plain"}
    for accept, sent in (("text/event-stream", "text/event-stream"), ("text/x-odd", "*/*")):
        assert (await world.post(path, body, accept=accept, **own)).status_code == 200
        headers = (await world.seen())["headers"]
        assert (headers["content-type"], headers["accept"]) == ("application/json", sent)


@each
@pytest.mark.parametrize("host", ["", "x/broker/openai/v1/files?", "x@[", "caf\u00e9"])
async def test_the_host_of_a_request_leads_nowhere(api: Api, tmp_path: Path, host: str) -> None:
    """Nor does the path of a socket: where a request goes is in its own path alone."""
    path = tmp_path / "broker" / api.protocol / "sock"
    path.parent.mkdir(parents=True)
    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as url,
        httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http,
    ):
        broker = ModelsBroker(
            registry=registry, upstreams=upstreams(url), http=http, clock=SystemClock()
        )
        async with (
            serve(create_broker_app(broker.router()), uds=path),
            httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(verify=NO_TLS, uds=str(path))
            ) as inside,
        ):
            with registry.open_grant(grant(), GrantHooks(on_call=lambda _call: None)) as token:
                answer = await inside.post(
                    f"http://broker/broker/{api.protocol}{api.path}",
                    json=api.body,
                    headers=[
                        (b"host", host.encode("latin-1")),
                        (b"authorization", f"Bearer {token}".encode()),
                    ],
                )
    assert answer.status_code == 200


async def test_a_stream_passes_as_it_comes() -> None:
    """The first event is read while the provider still writes the others."""
    released = asyncio.Event()
    provider = FastAPI()

    @provider.post("/v1/responses")
    async def create_response(_request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta"}\n\n'
            await released.wait()
            yield b"data: {}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    registry = GrantRegistry(signing_key=b"k" * 32, clock=SystemClock())
    async with serve(provider) as url, httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        broker = ModelsBroker(
            registry=registry, upstreams=upstreams(url), http=http, clock=SystemClock()
        )
        async with (
            serve(create_broker_app(broker.router())) as broker_url,
            httpx.AsyncClient(verify=NO_TLS, base_url=broker_url, trust_env=False) as inside,
        ):
            with registry.open_grant(grant(), GrantHooks(on_call=lambda _call: None)) as token:
                async with asyncio.timeout(10):
                    headers = {"authorization": f"Bearer {token}"}
                    path = "/broker/openai/v1/responses"
                    async with inside.stream(
                        "POST", path, json=RESPONSES.body, headers=headers
                    ) as answer:
                        chunks = answer.aiter_raw()
                        assert b"output_text.delta" in await anext(chunks)
                        released.set()
                        assert b"data: {}" in await anext(chunks)
