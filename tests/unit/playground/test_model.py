"""The offline model keeps the Messages API's shapes and does what the user's text asks for."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from agent_scripts.adapter import TurnMessage
from agent_scripts.cli_agent import render_prompt
from app.playground.model.server import ModelPace, create_model_app
from app.runs.history import MEANWHILE

_HEADERS = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
_SHELL = {"name": "shell", "input_schema": {"type": "object"}}
_BASH = {"name": "Bash", "input_schema": {"type": "object"}}
_WRITE = {"name": "Write", "input_schema": {"type": "object"}}
_EDIT = {"name": "edit_file", "input_schema": {"type": "object"}}


@dataclass
class Clock:
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    app = create_model_app(pace=ModelPace(word_s=0.02, slow_word_s=0.5), sleep=clock.sleep)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://model", headers=_HEADERS
    ) as client:
        yield client


def _body(*texts: str, **changes: object) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return {
        "model": "claude-x",
        "max_tokens": 20_000,
        "messages": messages,
        "tools": [_SHELL, _EDIT],
        **changes,
    }


async def _ask(client: httpx.AsyncClient, *texts: str, **changes: object) -> dict[str, Any]:
    response = await client.post("/v1/messages", json=_body(*texts, **changes))
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()
    return message


async def _events(client: httpx.AsyncClient, *texts: str) -> list[dict[str, Any]]:
    response = await client.post("/v1/messages", json=_body(*texts, stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for chunk in response.text.strip().split("\n\n"):
        name, data = chunk.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def _text(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


async def test_answer_says_what_it_is_and_quotes_the_previous_turn(
    client: httpx.AsyncClient,
) -> None:
    """Lost history would be visible."""
    text = _text(await _ask(client, "my name is Ada", "Hello Ada", "what is my name?"))
    assert "offline model" in text
    for quoted in ("my name is Ada", "Hello Ada", "what is my name?"):
        assert f"“{quoted}”" in text


async def test_first_message_has_no_previous_turn(client: httpx.AsyncClient) -> None:
    """Without history the answer says so."""
    assert "first message of this thread" in _text(await _ask(client, "hi"))


async def test_stream_has_the_events_of_the_api_in_order(client: httpx.AsyncClient) -> None:
    """Start, ping, block with deltas, delta with usage, stop; the deltas join to the text."""
    events = await _events(client, "!markdown")
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    assert events[-2]["usage"]["output_tokens"] > 50
    streamed = "".join(event["delta"]["text"] for event in events[3:-3])
    assert streamed == _text(await _ask(client, "!markdown"))


async def test_tool_input_is_streamed_as_json_pieces(client: httpx.AsyncClient) -> None:
    """The pieces of a tool call's input join to valid JSON."""
    events = await _events(client, "<@U1> run: `ls -la`")
    pieces = [
        event["delta"].get("partial_json", "")
        for event in events
        if event["type"] == "content_block_delta"
    ]
    assert json.loads("".join(pieces)) == {"command": "ls -la"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_steps_follow_each_other_and_end_in_a_report(client: httpx.AsyncClient) -> None:
    """`run:` and `edit:` lines are one tool call each; the report fences what came back, fences in it included."""
    body = _body("please\nrun: echo hi\nedit: a.md")
    names = []
    for output in ("```\nhi\n```", "wrote it"):
        message = (await client.post("/v1/messages", json=body)).json()
        assert message["stop_reason"] == "tool_use"
        call = message["content"][-1]
        names.append(call["name"])
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": output}
        answers = [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result]},
        ]
        body["messages"] += answers
    report = _text((await client.post("/v1/messages", json=body)).json())
    assert names == ["shell", "edit_file"]
    assert "````\n```\nhi\n```\n````" in report
    assert "wrote it" in report
    follow_up = {"role": "assistant", "content": report}, {"role": "user", "content": "thanks"}
    body["messages"] += follow_up
    text = _text((await client.post("/v1/messages", json=body)).json())
    assert "“please run: echo hi edit: a.md”" in text
    assert "and I answered: “I am Orion's offline model." in text


async def test_what_waits_for_a_person_is_called_again(client: httpx.AsyncClient) -> None:
    """As Orion asks an agent to, for as long as nobody has answered."""
    body = _body("run: git push\nedit: a.md")
    waiting = (
        "waiting for a person to allow the push to a/b: do exactly the same again to go on waiting"
    )
    names = []
    for output in (waiting, waiting, "pushed", "wrote it"):
        message = (await client.post("/v1/messages", json=body)).json()
        call = message["content"][-1]
        names.append(call["name"])
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": output}
        body["messages"] += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result]},
        ]
    assert names == ["shell"] * 3 + ["edit_file"]
    assert "pushed" in _text((await client.post("/v1/messages", json=body)).json())


async def test_tool_that_is_not_offered_is_not_called(client: httpx.AsyncClient) -> None:
    """A model cannot call what it was not given."""
    message = await _ask(client, "run: ls", tools=[])
    assert message["stop_reason"] == "end_turn"
    assert "no tool named shell" in _text(message)


@pytest.mark.parametrize(
    ("directive", "status", "kind"),
    [
        ("!429", 429, "rate_limit_error"),
        ("!529", 529, "overloaded_error"),
        ("!500", 500, "api_error"),
        ("!context", 400, "invalid_request_error"),
    ],
)
async def test_failures_on_request(
    client: httpx.AsyncClient, directive: str, status: int, kind: str
) -> None:
    """Directives fail each time, in the API's error shape, and only in the newest message."""
    for _ in range(2):
        response = await client.post(
            "/v1/messages", json=_body(f"please {directive} now", stream=True)
        )
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert (await _ask(client, directive, "sorry", "and now?"))["stop_reason"] == "end_turn"


async def test_refusal(client: httpx.AsyncClient) -> None:
    """`!refuse` is a stop reason without text."""
    message = await _ask(client, "!refuse")
    assert (message["stop_reason"], message["content"]) == ("refusal", [])


@pytest.mark.parametrize(("directive", "total_s"), [("!slow", 20), ("!slow 5", 5)])
async def test_slow_answer_takes_the_time_asked_for(
    client: httpx.AsyncClient, clock: Clock, directive: str, total_s: float
) -> None:
    """About 40 words at half a second each, or within the seconds named."""
    await _events(client, directive)
    assert len(clock.slept) == 40
    assert sum(clock.slept) == pytest.approx(total_s)


async def test_stall_sends_only_the_start(client: httpx.AsyncClient, clock: Clock) -> None:
    """`!stall` waits for an hour before its first word."""
    await _events(client, "!stall")
    assert clock.slept[0] == 3600


async def test_normal_answers_do_not_take_longer_than_a_demonstration_may(
    client: httpx.AsyncClient, clock: Clock
) -> None:
    """30,000 characters come within seven seconds, with code fences and a table in them."""
    text = _text(await _ask(client, "!long"))
    assert len(text) >= 30_000
    assert "|:---" in text
    assert text.count("```") % 2 == 0
    await _events(client, "!long")
    assert 1 < sum(clock.slept) < 7


@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [
        ({"model": "gpt-oss"}, 404, "not_found_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "a"}] * 2}, 400, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]},
            400,
            "invalid_request_error",
        ),
        ({"messages": [{"role": "user", "content": ["a"]}]}, 400, "invalid_request_error"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}
                ]
            },
            400,
            "invalid_request_error",
        ),
    ],
)
async def test_bad_requests_are_refused(
    client: httpx.AsyncClient, changes: dict[str, object], status: int, kind: str
) -> None:
    """What the API refuses is refused, so that a broken agent shows here and not only against the real one."""
    response = await client.post("/v1/messages", json=_body("hi", **changes))
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert response.json()["type"] == "error"


async def test_keys_and_versions_are_demanded(client: httpx.AsyncClient) -> None:
    """A request without a key is a 401; either header form is a key; the version header must be there."""
    bare = httpx.AsyncClient(transport=client._transport, base_url="http://model")
    version = {"anthropic-version": "2026-10-21"}
    async with bare:
        assert (
            await bare.post("/v1/messages", json=_body("hi"), headers=version)
        ).status_code == 401
        bearer = {**version, "authorization": "Bearer k"}
        assert (
            await bare.post("/v1/messages", json=_body("hi"), headers=bearer)
        ).status_code == 200
        assert (
            await bare.post("/v1/messages", json=_body("hi"), headers={"x-api-key": "k"})
        ).status_code == 400
        assert (await bare.post("/v1/messages", content=b"{", headers=_HEADERS)).status_code == 400


async def test_usage_adds_up(client: httpx.AsyncClient) -> None:
    """Cached and uncached input are the whole input, and a second call reads what the first one wrote."""
    marked = [{"type": "text", "text": "hi " * 500, "cache_control": {"type": "ephemeral"}}]
    plain = (await _ask(client, "hi " * 500))["usage"]
    assert plain["cache_read_input_tokens"] == 0
    assert plain["input_tokens"] > 300
    first = (await _ask(client, "", messages=[{"role": "user", "content": marked}]))["usage"]
    assert first["cache_creation_input_tokens"] > 300
    turns = [
        {"role": "user", "content": "hi " * 500},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": marked},
    ]
    second = (await _ask(client, "", messages=turns))["usage"]
    assert second["cache_read_input_tokens"] > 300


async def test_long_answers_stop_at_max_tokens(client: httpx.AsyncClient) -> None:
    """The limit asked for is kept and said."""
    message = await _ask(client, "!long", max_tokens=100)
    assert message["stop_reason"] == "max_tokens"
    assert len(_text(message)) == 400


async def test_request_log_keeps_the_last_hundred(client: httpx.AsyncClient) -> None:
    """Headers and bodies can be looked at; old ones go."""
    for number in range(101):
        await _ask(client, f"number {number}")
    log = (await client.get("/requests")).json()
    assert len(log) == 100
    assert log[0]["body"]["messages"][0]["content"] == "number 1"
    assert log[-1]["headers"]["x-api-key"] == "k"


async def test_claude_code_gets_calls_of_its_own_tools(client: httpx.AsyncClient) -> None:
    """The same wishes lead to the tools that the request offers."""
    message = await _ask(client, "run: ls", tools=[_BASH, _WRITE])
    call = message["content"][-1]
    assert (call["name"], call["input"]["command"]) == ("Bash", "ls")
    message = await _ask(client, "edit: a.txt", tools=[_BASH, _WRITE])
    call = message["content"][-1]
    assert (call["name"], call["input"]["file_path"]) == ("Write", "a.txt")
    assert call["input"]["content"]


async def test_what_a_client_adds_is_not_what_a_person_wrote(client: httpx.AsyncClient) -> None:
    """Reminders in the user's message and system messages between the others are passed over."""
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nrun: rm\n</system-reminder>"},
                {"type": "text", "text": "hello"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "run: rm"}]},
    ]
    message = await _ask(client, messages=messages)
    assert message["stop_reason"] == "end_turn"
    assert "You wrote: “hello”" in message["content"][0]["text"]
    response = await client.post("/v1/messages", json=_body(messages=messages[1:]))
    assert response.status_code == 400


@pytest.mark.parametrize(
    ("asked", "called"),
    [("run: echo u1", {"command": "echo u1"}), ("edit: a.md", {"path": "a.md"})],
)
async def test_what_is_told_in_mid_run_stands_on_a_line_of_its_own(
    asked: str, called: dict[str, str], client: httpx.AsyncClient
) -> None:
    """Behind what was asked, in a block of its own: no word of it becomes an argument."""
    texts = (asked, f"{MEANWHILE}\n\nrun: echo u2")
    content = [{"type": "text", "text": text} for text in texts]
    messages: list[Any] = [{"role": "user", "content": content}]
    message = await _ask(client, messages=messages)
    first = message["content"][-1]
    assert first["input"] | called == first["input"]
    result = {"type": "tool_result", "tool_use_id": first["id"], "content": "u1"}
    messages += [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]
    second = (await _ask(client, messages=messages))["content"][-1]
    assert second["input"] == {"command": "echo u2"}


async def test_what_is_told_beside_what_a_tool_gave_back_is_answered(
    client: httpx.AsyncClient,
) -> None:
    """What was asked before goes on, and what was said meanwhile is in the answer; a client's reminder is not."""
    messages: list[Any] = [{"role": "user", "content": "run: echo a\nrun: echo b"}]
    told = [
        {"type": "text", "text": f"{MEANWHILE}\n\nand be brief"},
        {"type": "text", "text": "<system-reminder>run: rm</system-reminder>"},
    ]
    await _goes_on(client, messages, [(told, []), ([], [])])


async def test_what_claude_code_is_told_in_mid_turn_is_answered(client: httpx.AsyncClient) -> None:
    """It comes as a system message of its own, behind what the tool gave back."""
    said = (
        f"The user sent a new message while you were working:\n{MEANWHILE}\n\nand be brief\n\n"
        "This is how Claude Code surfaces messages the user sends mid-turn."
    )
    system = {"role": "system", "content": [{"type": "text", "text": said}]}
    messages: list[Any] = [{"role": "user", "content": "run: echo a\nrun: echo b"}]
    await _goes_on(client, messages, [([], [system]), ([], [])])


async def _goes_on(
    client: httpx.AsyncClient,
    messages: list[Any],
    told: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]],
) -> None:
    """Both tools are called, and the answer holds what was told beside what they gave back, or behind it."""
    called: list[str] = []
    for beside, behind in told:
        message = await _ask(client, messages=messages)
        call = message["content"][-1]
        called.append(call["input"]["command"])
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
        messages += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result, *beside]},
            *behind,
        ]
    assert called == ["echo a", "echo b"]
    text = (await _ask(client, messages=messages))["content"][0]["text"]
    assert "`echo b`" in text
    assert text.endswith("Meanwhile you wrote: “and be brief”")


async def test_history_in_one_text_is_history(client: httpx.AsyncClient) -> None:
    """What Orion puts before a message, for agents that take one text, is not asked for again."""
    messages = [
        TurnMessage(role="user", text="run: rm"),
        TurnMessage(role="assistant", text="Gone."),
        TurnMessage(role="user", text="what did you do?"),
    ]
    message = await _ask(client, render_prompt(messages))
    text = message["content"][0]["text"]
    assert message["stop_reason"] == "end_turn"
    assert "You wrote: “what did you do?”" in text
    assert "Before that you wrote: “run: rm”" in text
    assert "and I answered: “Gone.”" in text
