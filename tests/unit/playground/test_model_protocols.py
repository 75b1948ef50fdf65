"""The offline model in the protocols of OpenAI and Google: the same steering, their own shapes, what they refuse."""

import json
from typing import Any

import httpx
import pytest

from app.playground.model.server import ModelPace, create_model_app
from app.web.hosting import serve
from tests.plain_http import NO_TLS
from tests.unit.playground.speaking import Model, Speech, Turn, data_lines, turns_of
from tests.unit.playground.speeches import CHAT, GEMINI, RESPONSES, SPEECHES

_PATCH = "*** Begin Patch\n*** Add File: a.md\n+Written by Orion's offline model.\n*** End Patch\n"


@pytest.fixture
def model(speaking_model: Model) -> Model:
    return speaking_model


each = pytest.mark.parametrize("speech", SPEECHES, ids=lambda speech: speech.name)
both_ways = pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "plain"])


@each
@both_ways
async def test_the_previous_turn_is_quoted_and_what_clients_add_is_not(
    model: Model, speech: Speech, is_stream: bool
) -> None:
    """History that is lost would be visible; contexts and times are not what a person wrote."""
    turns = turns_of("my name is Ada", "Hello Ada", "what is my name?")
    heard = await model.ask(speech, *turns, is_stream=is_stream)
    for said in ("You wrote: “what is my name?”", "“my name is Ada”", "I answered: “Hello Ada”"):
        assert said in heard.text
    assert "_context>" not in heard.text
    assert "<current_datetime>" not in heard.text
    assert heard.stop in ("completed", "stop", "STOP")
    first = await model.ask(speech, *turns_of("hi"), is_stream=is_stream)
    assert "first message of this thread" in first.text


@pytest.mark.parametrize(
    ("speech", "calls"),
    [
        (
            RESPONSES,
            [
                ("exec_command", {"cmd": "ls"}),
                (
                    "exec_command",
                    {
                        "cmd": "mkdir -p sub && printf %s 'Written by Orion'\"'\"'s offline model.\n' > sub/a.md"
                    },
                ),
                ("mcp__notes read", {"id": 1}),
            ],
        ),
        (
            CHAT,
            [
                ("bash", {"command": "ls", "description": "Run what was asked for"}),
                (
                    "write",
                    {"filePath": "sub/a.md", "content": "Written by Orion's offline model.\n"},
                ),
            ],
        ),
        (
            GEMINI,
            [
                ("run_shell_command", {"command": "ls", "description": "Run what was asked for"}),
                (
                    "write_file",
                    {"file_path": "sub/a.md", "content": "Written by Orion's offline model.\n"},
                ),
            ],
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@both_ways
async def test_steps_are_calls_of_the_tools_that_the_agent_offers(
    model: Model, speech: Speech, calls: list[tuple[str, dict[str, Any]]], is_stream: bool
) -> None:
    """`run:`, `edit:` and `call:` lines are one call each; then comes a report with what came back."""
    asked = "please\nrun: ls\nedit: sub/a.md"
    if len(calls) > 2:
        asked += '\ncall: mcp__notes__read {"id": 1}'
    turns = turns_of(asked)
    for number, (name, arguments) in enumerate(calls):
        heard = await model.ask(speech, *turns, is_stream=is_stream)
        assert (heard.name, heard.arguments) == (name, arguments)
        assert heard.text == f"Step {number + 1} of {len(calls)}."
        assert heard.stop in ("completed", "tool_calls", "STOP")
        assert heard.call is not None
        turns += [
            Turn(role="call", call=heard.call),
            Turn(role="result", call=heard.call, text=f"output {number}"),
        ]
    heard = await model.ask(speech, *turns, is_stream=is_stream)
    assert heard.call is None
    assert "`ls`\n\n```\noutput 0\n```" in heard.text
    assert "`sub/a.md`\n\n```\noutput 1\n```" in heard.text


@pytest.mark.parametrize(
    ("url", "tool", "given"),
    [
        ("/v1/responses", {"type": "custom", "name": "apply_patch"}, _PATCH),
        (
            "/v1/responses",
            {
                "type": "function",
                "name": "apply_patch",
                "parameters": {"properties": {"patchText": {}}},
            },
            {"patchText": _PATCH},
        ),
        (
            "/v1/responses",
            {"type": "function", "name": "create", "parameters": {"properties": {"path": {}}}},
            {"path": "a.md", "file_text": "Written by Orion's offline model.\n"},
        ),
        ("/v1/chat/completions", {"type": "custom", "custom": {"name": "apply_patch"}}, _PATCH),
    ],
)
@both_ways
async def test_files_are_written_by_patches_where_those_are_offered(
    model: Model, url: str, tool: dict[str, Any], given: object, is_stream: bool
) -> None:
    """OpenCode's function and the freeform tool of Copilot take the same text."""
    speech: Speech = RESPONSES if url.endswith("responses") else CHAT
    body = speech.body(turns_of("edit: a.md"), is_stream=is_stream) | {"tools": [tool]}
    response = await model.send(speech, body)
    heard = speech.streamed(response.text) if is_stream else speech.plain(response.json())
    assert heard.arguments == given


async def test_a_shell_that_takes_words_gets_words(model: Model) -> None:
    """Codex had such a tool for some models."""
    parameters = {"properties": {"command": {"type": "array"}}}
    tool = {"type": "function", "name": "shell", "parameters": parameters}
    body = RESPONSES.body(turns_of("run: ls -l")) | {"tools": [tool]}
    heard = RESPONSES.plain((await model.send(RESPONSES, body)).json())
    assert heard.arguments == {"command": ["bash", "-lc", "ls -l"]}


@each
@pytest.mark.parametrize("directive", ["!429", "!529", "!500", "!context"])
async def test_failures_on_request(model: Model, speech: Speech, directive: str) -> None:
    """With the status and the words of the protocol."""
    response = await model.send(speech, speech.body(turns_of(f"please {directive} now")))
    assert f"{response.status_code} {speech.kind(response.json())}" == speech.kinds[directive]


async def test_a_responses_stream_begins_before_the_model_finds_it_too_long(model: Model) -> None:
    """The API has answered 200 by then; the failure is its last event, with the code that Codex knows."""
    body = RESPONSES.body(turns_of("!context"), is_stream=True)
    response = await model.send(RESPONSES, body)
    assert response.status_code == 200
    last = json.loads(response.text.strip().rpartition("data: ")[2])
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "context_length_exceeded"


@each
@both_ways
async def test_a_refusal_is_no_answer(model: Model, speech: Speech, is_stream: bool) -> None:
    """OpenAI has a field for it, Google a reason for the end."""
    heard = await model.ask(speech, *turns_of("!refuse"), is_stream=is_stream)
    if speech is GEMINI:
        assert (heard.text, heard.stop) == ("", "SAFETY")
    else:
        assert heard.text.startswith("I'm sorry")


@each
@both_ways
async def test_long_answers_stop_at_the_limit(
    model: Model, speech: Speech, is_stream: bool
) -> None:
    """The limit asked for is kept and said."""
    heard = await model.ask(speech, *turns_of("!long"), is_stream=is_stream, limit=100)
    assert len(heard.text) == 400
    assert heard.stop in ("incomplete", "length", "MAX_TOKENS")


@each
@both_ways
async def test_usage_adds_up_and_knows_the_cache(
    model: Model, speech: Speech, is_stream: bool
) -> None:
    """The input counts include what is cached, as these protocols have it; a second turn reads what the first one wrote."""
    long = "hi " * 4000
    first = _counts((await model.ask(speech, *turns_of(long), is_stream=is_stream)).usage)
    turns = turns_of(long, "yes", "and now?")
    second = _counts((await model.ask(speech, *turns, is_stream=is_stream)).usage)
    assert first[0] > 3000
    assert first[1] == 0
    assert 3000 < second[1] < second[0]
    assert second[2] > 10
    assert second[3] == second[0] + second[2]


def _counts(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    """Input, of it cached, output, total."""
    match usage:
        case {"input_tokens": given, "input_tokens_details": {"cached_tokens": cached}}:
            return given, cached, usage["output_tokens"], usage["total_tokens"]
        case {"prompt_tokens": given, "prompt_tokens_details": {"cached_tokens": cached}}:
            return given, cached, usage["completion_tokens"], usage["total_tokens"]
        case _:
            cached = usage.get("cachedContentTokenCount", 0)
            output = usage["candidatesTokenCount"]
            return usage["promptTokenCount"], cached, output, usage["totalTokenCount"]


@each
async def test_what_an_agent_asks_for_itself_is_short_and_not_steered(
    model: Model, speech: Speech
) -> None:
    """A title, or a choice in JSON: they have no tools, and a person's directives do not count there."""
    body = speech.body(turns_of("!429 run: ls"))
    del body["tools"]
    schema = {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "pick": {"enum": ["flash", "pro"]}},
    }
    titled, chosen = json.dumps(body), dict(body)
    for who in ("Codex", "OpenCode", "Gemini CLI"):
        titled = titled.replace(f"You are {who}.", "You are a title generator.")
    if speech is GEMINI:
        chosen["generationConfig"] = {"responseJsonSchema": schema}
    elif speech is CHAT:
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        chosen["response_format"] = form
    else:
        chosen["text"] = {"format": {"type": "json_schema", "schema": schema}}
    answer = await model.send(speech, json.loads(titled))
    assert speech.plain(answer.json()).text == "Offline model"
    answer = await model.send(speech, chosen)
    assert json.loads(speech.plain(answer.json()).text) == {"reason": "offline", "pick": "flash"}


@each
@pytest.mark.parametrize(("directive", "total_s"), [("!slow", 20), ("!slow 5", 5)])
@both_ways
async def test_slow_answers_take_their_time(
    model: Model, speech: Speech, directive: str, total_s: float, is_stream: bool
) -> None:
    """Also those that are not streamed, so that there is time to press Stop."""
    await model.ask(speech, *turns_of(directive), is_stream=is_stream)
    assert sum(model.slept) == pytest.approx(total_s, abs=0.5)


@each
@both_ways
async def test_a_stalled_answer_waits_for_an_hour(
    model: Model, speech: Speech, is_stream: bool
) -> None:
    """Before its first word."""
    await model.ask(speech, *turns_of("!stall"), is_stream=is_stream)
    assert model.slept[0] == 3600


@each
async def test_garbage_is_no_event(model: Model, speech: Speech) -> None:
    """What a gateway might send is a stream that nobody can read."""
    body = speech.body(turns_of("!garbage"), is_stream=True)
    response = await model.send(speech, body, is_stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    with pytest.raises(json.JSONDecodeError):
        data_lines(response.text)


@each
@both_ways
async def test_a_cut_answer_breaks_off(speech: Speech, is_stream: bool) -> None:
    """The connection ends in the middle of the text."""
    async with (
        serve(create_model_app(pace=ModelPace(word_s=0))) as url,
        httpx.AsyncClient(verify=NO_TLS, base_url=url, trust_env=False) as http,
    ):
        body = speech.body(turns_of("!cut"), is_stream=is_stream)
        with pytest.raises(httpx.RemoteProtocolError):
            await Model(http=http).send(speech, body, is_stream=is_stream)


@pytest.mark.parametrize("name", ["gpt-5.4", "o3", "codex-mini-latest", "openai/gpt-5.1-codex"])
async def test_models_of_openai_are_known_by_their_names(model: Model, name: str) -> None:
    """Those of the gateway, too, which have their maker before a slash."""
    body = RESPONSES.body(turns_of("hi")) | {"model": name}
    assert (await model.send(RESPONSES, body)).json()["model"] == name
